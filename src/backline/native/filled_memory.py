"""The bytes that newly allocated memory holds before it is written to: glibc can fill it."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["filled_memory"]

M_PERTURB = -6  # of glibc's mallopt: fill memory with a byte when it is freed, and with the inverted one when it is allocated
ZEROED = 255  # this byte's inverse


@functools.cache
def _mallopt() -> Any:
    """Returns glibc's mallopt, or None where the C library has none."""
    return getattr(ctypes.CDLL(None), "mallopt", None)


def _of_the_user() -> int:
    """Returns the byte that the environment asks of glibc, 0 for none."""
    asked = re.findall(r"glibc\.malloc\.perturb=(\w+)", os.environ.get("GLIBC_TUNABLES", "")) or ["0"]
    try:
        return int(os.environ.get("MALLOC_PERTURB_", asked[-1]), 0) & 255
    except ValueError:
        return 0


_lock = threading.Lock()
_asked = [_of_the_user()]  # what holds outside, and what those ask for who are inside


@contextmanager
def filled_memory(byte: int = ZEROED) -> Iterator[None]:
    """Has memory that the process allocates meanwhile hold the inverse of a byte; freed memory is filled with the byte itself.

    It holds for all threads, and the last one to enter decides. Without glibc nothing changes. glibc keeps blocks of less than
    about a kilobyte for itself when they are freed: those are not filled.

    Examples
    --------
    >>> import numpy as np
    >>> with filled_memory():
    ...     memory = np.empty(100_000, np.uint8)
    """
    mallopt = _mallopt()
    if mallopt is None:
        yield
        return
    with _lock:
        _asked.append(byte)
        mallopt(M_PERTURB, byte)
    try:
        yield
    finally:
        with _lock:
            _asked.remove(byte)
            mallopt(M_PERTURB, _asked[-1])
