"""Shared by tests of the exchange: whether there is one here, what every address holds, programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from backline import _exchange
from backline.interop import numpy as exchange
from backline.interop.exchange import layouts, loaded_objects, origin_pools
from backline.libraries.reference.numpy_threads import openblas_thread_count
from processes import wrapped

_WHY_NOT = layouts.unsupported()
_ELSEWHERE = [s.symbol.routine for m in ([] if _WHY_NOT else loaded_objects.modules()) for s in m.slots if not s.symbol.bundled]
wheels_only = pytest.mark.skipif(bool(_WHY_NOT or _ELSEWHERE), reason="NumPy is no wheel for Linux with glibc here")


def held() -> dict[int, int]:
    """Returns what every address holds."""
    return {slot.address: _exchange.read(slot.address) for module in loaded_objects.modules() for slot in module.slots}


def same(before: dict[int, int]) -> bool:
    """Tells whether every address holds what it did. One that the loader had not bound yet may have been bound meanwhile."""
    functions = {slot.address: slot.function for module in loaded_objects.modules() for slot in module.slots}
    now = held()
    return all(now[slot] in (value, functions[slot]) for slot, value in before.items())


def loaded_origins() -> set[str]:
    return {file for module in loaded_objects.modules() for file in module.origins}


def threads_of(file: str) -> int:
    functions = openblas_thread_count(file)
    return functions[0]() if functions else 0


def pool_threads() -> list[int]:
    """Thread counts of the copies of OpenBLAS that NumPy and SciPy brought along."""
    return [threads for file in sorted(loaded_origins()) if (threads := threads_of(file))]


@pytest.fixture
def restored() -> Iterator[None]:
    """Every test leaves the process as it found it: the same address in every slot."""
    before = held()
    threads = pool_threads()
    yield
    exchange.restore()
    assert same(before)
    assert pool_threads() == threads and not origin_pools.limited()


def child(text: str, *, status: int = 0, arguments: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> str:
    """Returns what a program prints, in a process of its own."""
    command = wrapped([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(text), *arguments])
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=os.environ | (environment or {}))
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr
