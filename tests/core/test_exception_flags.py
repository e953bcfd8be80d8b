"""Native calls begin without the processor's exception flags, and those of ISO C that were set before are set again after them."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline import _core

SOURCE = r"""
#include <immintrin.h>
int get(void) { return _mm_getcsr() & 0x3f; }
void set(int flags) { _mm_setcsr((_mm_getcsr() & ~0x3f) | flags); }
void see(int *out, int raised) { *out = get(); _mm_setcsr(_mm_getcsr() | raised); }
"""
INVALID, DENORMAL, OVERFLOW, UNDERFLOW, INEXACT = 1, 2, 8, 16, 32

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the flags are those of x86-64")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("flags")
    (folder / "flags.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", "libflags.so", "flags.c"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "libflags.so"))


def plan(library: Any, items: int, threads: int, raised: int) -> Any:
    """A plan that writes the flags at the beginning of each item's calls to its argument, and raises others."""
    step = ("call", ctypes.cast(library.see, ctypes.c_void_p).value, [(0, 0, 4), raised], 0, None)
    nothing = ("call", ctypes.cast(library.get, ctypes.c_void_p).value, [], 0, None)  # a plan of one call alone runs as it is
    return _core.PreparedCall(1, [("argument", 0)], [(items, threads, [step, nothing])], [0], [])


@pytest.mark.parametrize("before", [0, INEXACT, UNDERFLOW | INEXACT, DENORMAL, INVALID | OVERFLOW | INEXACT])
@pytest.mark.parametrize("raised", [0, OVERFLOW, UNDERFLOW])
def test_flags_are_cleared_and_set_again(library: Any, before: int, raised: int) -> None:
    run, seen = plan(library, 1, 1, raised), np.full(1, -1, np.int32)
    library.set(before)
    try:
        run(seen)
        after = library.get()
    finally:
        library.set(0)
    assert seen[0] & ~INEXACT == 0
    assert after | INEXACT == (before & ~DENORMAL) | raised | INEXACT  # that one is not of ISO C


def test_threads_of_the_team_begin_without_flags_too(library: Any) -> None:
    run, seen = plan(library, 8, 2, UNDERFLOW), np.full(8, -1, np.int32)
    for _ in range(3):
        seen[:] = -1
        run(seen)
        assert seen[0] & ~INEXACT == 0 and seen[4] & ~INEXACT == 0  # the first item of each thread
