"""Arrays beside pages that must not be touched: what a kernel reads or writes past an end shows as a crash or a changed byte."""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

import numpy as np

from ..problems import Operand

__all__ = ["PLACES", "Guarded"]

Array = np.ndarray[Any, Any]
PLACES = ("end", "start")  # which end of the array lies at a page that must not be touched
CANARY, POISON = 0xA5, 0xFF  # 0xFF in every byte is NaN in each floating-point format
NO_ACCESS = 0


@functools.cache
def _mprotect() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function


def _forbid(address: int, nbytes: int) -> None:
    if _mprotect()(address, nbytes, NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect failed")


class Guarded:
    """One array in pages of its own, between two that must not be touched.

    Parameters
    ----------
    o
        Describes the array.
    place
        "end": its last byte is the last of a page, and the next page must not be touched; "start": the same before its first.
    values
        What is copied into it; None fills it with NaN.

    Examples
    --------
    >>> from backline.problems import operand
    >>> guarded = Guarded(operand("a", np.zeros(3)), "end", np.arange(3.0))
    >>> guarded.array.sum(), guarded.touched()
    (np.float64(3.0), '')
    """

    def __init__(self, o: Operand, place: str, values: Array | None) -> None:
        low, high = o.extent()
        page = mmap.PAGESIZE
        used = high - low + (0 if o.aligned else 1)
        room = max(-(-used // page), 1) * page
        self._map = mmap.mmap(-1, room + 2 * page)
        self._bytes = np.frombuffer(self._map, np.uint8)
        address = self._bytes.ctypes.data
        for guard in (address, address + page + room):
            _forbid(guard, page)
        shift = 0 if o.aligned else 1  # an array that is not aligned begins or ends a byte away from the page
        self._start = page + (shift if place == "start" else room - used)
        self._stop = self._start + high - low
        self._room = slice(page, page + room)
        self._bytes[self._room] = CANARY
        self._bytes[self._start : self._stop] = POISON
        self.array: Array = np.ndarray(o.shape, o.dtype, self._map, self._start - low, o.strides)
        self.input = values is not None
        if values is not None:
            self.array[...] = values
        self._before = self._bytes[self._room].copy()

    def touched(self) -> str:
        """Return what a run did that it must not have done to the bytes here; an empty string if nothing."""
        changed = self._bytes[self._room] != self._before
        at, end = self._start - self._room.start, self._stop - self._room.start
        if changed[:at].any():
            return f"writes {at - int(changed.argmax())} bytes before the start of an array"
        if changed[end:].any():
            return f"writes up to {changed.size - int(changed[::-1].argmax()) - end} bytes past the end of an array"
        return "changes an operand" if self.input and changed.any() else ""
