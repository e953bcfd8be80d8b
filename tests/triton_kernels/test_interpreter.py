"""The numbers of our attention kernels, forward and backward, in Triton's interpreter: against float64, on small shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]
PROGRAM = Path(__file__).with_name("interpreted.py")
WANTED = """plain|one query|one key|causal|causal, more keys|causal, more queries|causal, uneven tiles|mask of bool|mask added|mask, nothing left
mask by columns|shared heads|odd dims|half|dropout|dropout of all|interleaved|scale|large scores|forward alone
log-sum-exp given|log-sum-exp given, dropout""".replace("\n", "|").split("|")


@pytest.fixture(scope="module")
def measured() -> dict[str, list[tuple[str, float, float]]]:
    """Case -> results with their errors and what is allowed."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", str(PROGRAM)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[tuple[str, float, float]]] = {}
    for line in done.stdout.splitlines():
        name, role, error, allowed = line.split("\t")
        found.setdefault(name, []).append((role, float(error), float(allowed)))
    return found


@pytest.mark.parametrize("case", WANTED)
def test_numbers(case: str, measured: dict[str, list[tuple[str, float, float]]]) -> None:
    roles = [role for role, _, _ in measured[case]]
    passes = ([] if case.startswith("log-sum-exp") else ["O", "LSE"]), ([] if case == "forward alone" else ["DQ", "DK", "DV_"])
    assert roles == [*passes[0], *passes[1]]
    for role, error, allowed in measured[case]:
        assert error <= allowed, role
