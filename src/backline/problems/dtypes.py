"""The 16-bit floating-point dtypes, and the dtype that operations on them are computed in."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["HALVES", "compute_dtype"]

HALVES = ("float16", "bfloat16")


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype that operations are computed in: float32 for 16-bit floats, otherwise the dtype itself.

    Examples
    --------
    >>> compute_dtype(np.dtype("float16")).name, compute_dtype(np.dtype("int16")).name
    ('float32', 'int16')
    """
    return np.dtype(np.float32) if dtype.name in HALVES else dtype
