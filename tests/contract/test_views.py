"""Operands in every layout that a view can have: as on contiguous copies, and nothing outside of them is read."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import guarded
import numpy as np
import pytest

import backline
import backline.nn.functional as F

SCRIPT = Path(guarded.__file__)


@pytest.mark.parametrize("family", guarded.FAMILIES)
def test_every_layout_at_the_edge_of_memory(family: str) -> None:
    """In a process of its own, which a read outside ends: the last line it printed is the case."""
    done = subprocess.run([sys.executable, SCRIPT, family], capture_output=True, text=True, check=False, timeout=600)
    lines = done.stdout.splitlines()
    told = [f"{case}\n  {line}" for case, line in pairwise(lines) if line.startswith("WRONG")]
    assert done.returncode == 0, "\n".join((*told, *lines[-1:], done.stderr[-2000:]))
    assert len(lines) > 400  # with the fewest libraries


@pytest.mark.parametrize("role", range(3))
def test_multi_head_attention_of_a_reversed_sequence(role: int) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(s).astype(np.float32) for s in ((24, 8), (24,), (8, 8), (8,))]
    operands = [rng.standard_normal((1, 5, 8)).astype(np.float32) for _ in range(3)]
    operands[role] = operands[role][:, ::-1]
    found = F.multi_head_attention(*operands, 2, *weights).output
    wanted = F.multi_head_attention(*(x.copy() for x in operands), 2, *weights).output
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_output_that_overlaps_an_operand_is_refused() -> None:
    x = np.zeros((6, 6), np.float32)
    for call in (
        lambda: backline.matmul(x[:4, :4], x[:4, :4], out=x[1:5, 1:5]), lambda: F.linear(x[:3], x, out=x[1:4]),
        lambda: backline.linalg.inv(x, out=x.T), lambda: backline.einsum("ij,jk->ki", x, x, out=x[::-1]),
    ):  # fmt: skip
        with pytest.raises(backline.errors.BadValue, match=r"overlap|share"):
            call()
