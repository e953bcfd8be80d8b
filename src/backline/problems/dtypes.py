"""The 16-bit floating-point dtypes, and the dtype that operations on them are computed in."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

__all__ = ["HALVES", "bfloat16", "compute_dtype", "is_bfloat16"]

HALVES = ("float16", "bfloat16")


@cache
def bfloat16() -> np.dtype[Any]:
    """Returns the dtype bfloat16 of ml_dtypes, which the first call imports: its release 0.7.0 takes a second for that."""
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Tells whether a dtype is bfloat16.

    Examples
    --------
    >>> is_bfloat16(np.dtype(np.float16)), is_bfloat16(bfloat16())
    (False, True)
    """
    return dtype.itemsize == 2 and dtype.name == "bfloat16" and dtype == bfloat16()


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype that operations are computed in: float32 for 16-bit floats, otherwise the dtype itself.

    Examples
    --------
    >>> compute_dtype(np.dtype("float16")).name, compute_dtype(np.dtype("int16")).name
    ('float32', 'int16')
    """
    return np.dtype(np.float32) if dtype.name in HALVES else dtype
