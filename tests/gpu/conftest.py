"""Fixtures of the check on a GPU: the recorder of a row, the device, its clock. What they do is in ``check.py`` and ``machine.py``."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backline import switches
from gpu.check import Check
from gpu.proofs import Proof
from gpu.results import Recorder

Clock = Callable[..., list[float]]


@pytest.fixture(scope="session")
def _check(request: pytest.FixtureRequest) -> Check:
    found: Check = request.config.pluginmanager.getplugin("gpu-check")
    return found


@pytest.fixture
def row(request: pytest.FixtureRequest, _check: Check) -> Recorder:
    """Takes down what the test of a row expects and sees."""
    return _check.recorder(request.node)


@pytest.fixture(scope="session")
def rehearsed(_check: Check) -> bool:
    """Tells whether stand-ins take the place of a device."""
    return _check.machine.rehearsed


@pytest.fixture(scope="session")
def size(_check: Check) -> Callable[[Any, Any], Any]:
    """``size(real, rehearsed)``: the first on a device, the second where NumPy does the work."""
    return lambda real, rehearsed: rehearsed if _check.machine.rehearsed else real


@pytest.fixture(scope="session")
def device(_check: Check) -> Any:
    """The `DeviceInfo` of device 0."""
    return _check.machine.device()


@pytest.fixture
def xp(_check: Check) -> Iterator[Any]:
    """The module ``cupy``. After the test its memory goes back, so that the tests do not add up."""
    cupy = _check.machine.cupy()
    yield cupy
    if not _check.machine.rehearsed:
        gc.collect()
        if cupy.get_default_memory_pool().total_bytes() > 4 << 30:
            cupy.get_default_memory_pool().free_all_blocks()


@pytest.fixture
def clock(xp: Any, device: Any, _check: Check) -> Clock:
    """``clock(function, runs=10, warm=3, flush=True)``: microseconds of each run, by events; before each, the cache is overwritten."""
    return _check.machine.clock


@pytest.fixture
def tf32_is_permitted_to_products() -> Iterator[None]:
    """Permits TF32 to products alone: tests of linear algebra compare with the precision of the dtype."""
    with switches.scope({"cuda.matmul.fp32_precision": "tf32"}):
        yield


@pytest.fixture
def proof(row: Recorder, xp: Any) -> Proof:
    """Runs operations of linear algebra, and looks at their routines and residuals."""
    row.expect("the routine of the rule on each side of each threshold, residual below 50 n eps")
    return Proof(row, xp)
