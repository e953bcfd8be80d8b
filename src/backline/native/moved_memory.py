"""Memory laid out another way: copies of arrays at other alignments, allocations at other addresses and with other bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..problems import operand
from .filled_memory import filled_memory

__all__ = ["moved_copies", "moved_memory"]

LINE = 64  # bytes that vectors and cache lines are aligned to at the most
BLOCKS, LARGEST = 256, 1 << 20


@contextmanager
def moved_memory(number: int) -> Iterator[None]:
    """Has memory come from other addresses, and with glibc hold other bytes before it is written to; number 0 changes nothing.

    Blocks of many sizes are held, with gaps of others between them. NumPy keeps small blocks for itself when they are freed:
    those are not filled.

    Parameters
    ----------
    number
        Each gives another layout and another byte.
    """
    if not number:
        yield
        return
    rng = random.Random(number)
    blocks = [bytearray(int(2.0 ** rng.uniform(4, LARGEST.bit_length() - 1))) for _ in range(BLOCKS)]
    rng.shuffle(blocks)
    held = blocks[::2]
    del blocks
    try:
        with filled_memory(1 + 37 * number % 255):
            yield
    finally:
        del held


def moved_copies(value: Any, number: int) -> Any:
    """Returns copies of the arrays in a value; each number has them begin at another distance from a 64-byte boundary.

    Strides stay, and so does whether an array is aligned to its elements. What is no NumPy array, tuple, list or dict of them is
    returned as it is.

    Examples
    --------
    >>> x = np.arange(6.0).reshape(2, 3).T
    >>> copy, other = moved_copies((x, x), 3)
    >>> bool((copy == x).all()), copy.strides == x.strides, copy.ctypes.data % 64, copy is other
    (True, True, 24, True)
    """
    return _moved(value, number, {})


def _moved(value: Any, number: int, known: dict[int, Any]) -> Any:
    if id(value) in known:  # an array that is given twice stays one
        return known[id(value)]
    if type(value) is np.ndarray and not value.dtype.hasobject:
        known[id(value)] = _copy(value, number)
        return known[id(value)]
    if type(value) in (tuple, list):
        return type(value)(_moved(part, number, known) for part in value)
    if type(value) is dict:
        return {key: _moved(part, number, known) for key, part in value.items()}
    return value


def _copy(array: np.ndarray[Any, Any], number: int) -> np.ndarray[Any, Any]:
    if not array.size:
        return array.copy()
    low, end = operand("", array).extent()
    memory = np.empty(end - low + 2 * LINE, np.uint8)
    size = array.itemsize
    begin = -memory.ctypes.data % LINE + number * size % LINE // size * size + (array.ctypes.data + low) % size
    copy: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, begin - low, array.strides)
    copy[...] = array
    return copy
