"""NumPy's memory laid as a device's: NumPy aligns to 16 bytes, where a test would depend on chance for more."""

from __future__ import annotations

from typing import Any

import numpy as np

BLOCK = 512  # bytes that addresses of CuPy's pool are multiples of


def placed(array: np.ndarray[Any, Any], by: int = 0) -> np.ndarray[Any, Any]:
    """The same numbers and strides, the first element `by` bytes after a multiple of 512."""
    reach = [stride * (size - 1) for size, stride in zip(array.shape, array.strides, strict=True)] if array.size else []
    low, high = sum(min(0, each) for each in reach), sum(max(0, each) for each in reach)
    memory = np.empty(high - low + array.itemsize + BLOCK, np.uint8)
    begin = (by - memory.ctypes.data + low) % BLOCK - low
    made: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, begin, array.strides)
    made[...] = array
    return made
