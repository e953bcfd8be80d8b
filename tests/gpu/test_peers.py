"""Backline beside PyTorch and CuPy: recorded, never decided on. A child process times them, for this one has no PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from gpu import peers

ROWS = {"products": "PERF-1", "convolution": "PERF-2", "attention": "PERF-3", "algebra": "PERF-4", "layers": "PERF-5", "calls": "CALL-1"}


@pytest.fixture(scope="session")
def timed(_check: Any) -> dict[str, Any]:
    """Returns what all sections found, by one child process."""
    left = max(_check.deadline - _check.spent(), 10.0)
    found: dict[str, Any] = _check.machine.peers(list(ROWS), min(left, 300.0))
    return found


@pytest.mark.parametrize("section", [pytest.param(name, marks=pytest.mark.gpu(row=row), id=name) for name, row in ROWS.items()])
def test_in_turn_with_peers(row: Any, timed: dict[str, Any], section: str, _check: Any) -> None:
    row.record()
    row.expect("timings of Backline and its peers, taken in turn")
    lines = timed[section]
    if not lines and timed.get("late"):
        pytest.skip(f"not reached: {timed['late']}")
    for line in lines:
        about = {name: line[name] for name in ("op", "shape", "dtype")}
        if "error" in line:
            row.observe(f"{line['library']} {line['op']} {line['dtype']}: {line['error']}")
        else:
            library, _, algorithm = line["library"].partition(" ")
            row.timing(**about, library=library, algorithm=algorithm, times_us=line["times_us"], flops=line["flops"], cold_cache=section != "calls")
    for case, found in peers.ratios(lines).items():
        row.observe(f"{case}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
    if section == "attention":
        row.finding(6, "; ".join(f"{case}: {found}" for case, found in peers.ratios(lines).items()))
    mine = [line for line in lines if line["library"].startswith("backline")]
    failed = [line for line in mine if "error" in line and "not reached" not in line["error"]]
    if any(map(_check.lacks, ("triton", "cudnn", "capability >= 8.0"))):  # kernels of attention are asked for by name
        failed = [line for line in failed if section != "attention" or not line["error"].startswith("NoKernel")]
    assert lines, timed.get("printed", "")
    assert not failed, f"{failed}\n{timed.get('printed', '')}"
    assert any("times_us" in line for line in mine) or (section == "attention" and not failed)
