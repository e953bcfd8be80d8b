"""Checks of dask arrays: what an operation by blocks needs of them, and what to do where they are cut otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import dask.array as da
import numpy as np

from ...errors import BadType, BadValue
from ...libraries.array_kinds import Described, meta_array
from ...problems.memory_layout import contiguous_strides

__all__ = ["dask_array", "same_cuts", "stand_in", "uncut"]

Array = Any


def dask_array(where: str, name: str, value: Any) -> Array:
    """Returns the value if it is a dask array whose chunks have known sizes."""
    if not isinstance(value, da.Array):
        raise BadType(
            f"{where}: {name} is {type(value).__name__}, not a dask array",
            remedy=f"dask.array.from_array({name}, chunks=...), or backline.{where} for an array in memory",
        )
    if any(math.isnan(size) for size in value.shape):
        raise BadValue(
            f"{where}: {name} has shape {value.shape}",
            cause="the sizes of its chunks are not known before they are computed",
            remedy=f"{name}.compute_chunk_sizes()",
        )
    return value


def _cuts(sizes: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, sizes[:4]))
    return f"chunks of {shown}{', ...' if len(sizes) > 4 else ''}"


def uncut(where: str, name: str, array: Array, axes: Iterable[int], *, remedy: str = "") -> None:
    """Raise `BadValue` unless an array has one chunk along each of some axes."""
    cut = sorted({axis % array.ndim for axis in axes if array.numblocks[axis] > 1})
    if cut:
        axis = cut[0]
        whole = ", ".join(f"{each}: -1" for each in cut)
        raise BadValue(
            f"{where}: {name}, of shape {array.shape}, is cut into {_cuts(array.chunks[axis])} along axis {axis}",
            cause="each block is computed by itself, and needs all of that axis",
            remedy=remedy or f"{name}.rechunk({{{whole}}})",
        )


def same_cuts(where: str, a: tuple[str, Array, int], b: tuple[str, Array, int]) -> None:
    """Raise `BadValue` unless two arrays, each given with its name and an axis, are cut alike along these axes."""
    (name, first, axis), (other, second, along) = a, b
    if first.chunks[axis] != second.chunks[along]:
        along %= second.ndim
        raise BadValue(
            f"{where}: {name} is cut into {_cuts(first.chunks[axis])} along axis {axis % first.ndim}, "
            f"{other} into {_cuts(second.chunks[along])} along axis {along}",
            cause="a block of the one is combined with the same block of the other",
            remedy=f"{other}.rechunk({{{along}: {name}.chunks[{axis % first.ndim}]}})",
        )


def stand_in(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns an array without data, of which an operation makes its Problem: this has the shape of the result."""
    return meta_array(Described(dtype, shape, contiguous_strides(shape, dtype.itemsize), "cpu"))
