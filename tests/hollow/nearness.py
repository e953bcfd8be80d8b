"""Random arrays of a dtype, and how near float64 a kernel's results of them are."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gpu.arrays import dtype_of

__all__ = ["DTYPES", "drawn", "generator", "near", "wide"]

DTYPES = ("float16", "bfloat16", "float32", "float64")
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 0.0}
Array = Any


def generator(*more: int) -> np.random.Generator:
    """Random numbers by the seed of the run."""
    return np.random.default_rng([int(os.environ.get("BACKLINE_TEST_SEED", "0")), *more])


def drawn(*shape: int, dtype: str, scale: float = 1.0, mean: float = 0.0) -> Array:
    return (mean + scale * generator(*shape).standard_normal(shape)).astype(dtype_of(dtype))


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def computed(dtype: str) -> float:
    """The rounding of the dtype that a kernel computes in."""
    return max(2.0**-52, min(EPSILON[dtype], 2.0**-23))


def near(found: Array, wanted: Array, dtype: str, terms: int, size: Array | None = None) -> None:
    """Results agree with float64, up to rounding once, and to as much of `size` as sums of so many terms may lose."""
    got = wide(found.get())
    assert found.dtype == dtype_of(dtype) and got.shape == wanted.shape
    bound = EPSILON[dtype] * np.abs(wanted) + computed(dtype) * (terms + 40) * (np.abs(wanted) if size is None else size) + 2 * TINY[dtype]
    with np.errstate(over="ignore"):
        same = (got == wanted) | (got == wide(wanted.astype(found.dtype))) | (np.isnan(got) & np.isnan(wanted))  # or both too large
    odd = ~(same | (np.abs(got - wanted) <= bound))
    assert not odd.any(), (np.argwhere(odd)[:3], got[odd][:3], wanted[odd][:3])
