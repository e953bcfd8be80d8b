"""Argument checks of quantized arrays: dtypes, axes, scales and zero points."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries import host_arrays
from ..ops import axes
from ..ops.array_arguments import check_array

__all__ = ["LEAST", "MOST", "Array", "axis_of", "check_kind", "integer_dtype", "one_of_each", "scales", "zero_points"]

Array = np.ndarray[Any, Any]

_FLOATS = frozenset(map(np.dtype, ("float16", "float32", "float64")))  # found faster than by their names
_INTEGERS = frozenset(map(np.dtype, ("uint8", "int8")))
LEAST, MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def check_kind(where: str, value: Any) -> Array:
    """Returns the value if it is an array of real numbers."""
    if type(value) is not np.ndarray:
        value = host_arrays.view_of(value, f"{where}: x")
    array = check_array(value, f"{where}: x")
    if array.dtype not in _FLOATS and array.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise BadType(
            f"{where}: x has dtype {array.dtype}",
            cause="float16, bfloat16, float32 and float64 are quantized",
            remedy="x.astype(np.float32)",
        )
    return array


def integer_dtype(where: str, dtype: Any) -> np.dtype[Any]:
    """Returns the dtype, uint8 or int8."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise BadType(f"{where}={dtype!r} is no dtype", remedy="np.uint8 or np.int8") from None
    if dtype is None or found not in _INTEGERS:
        raise BadType(f"{where} is {'None' if dtype is None else found}", remedy="np.uint8 or np.int8")
    return found


def axis_of(where: str, axis: Any, shape: tuple[int, ...]) -> int | None:
    """Returns the axis, counted from the first; None for None."""
    return None if axis is None else axes.axis_of(where, "axis", axis, shape, "the array")


def _numbers(where: str, name: str, value: Any, size: int | None, kinds: str, what: str) -> Array:
    """Returns one number, or where there is an axis one for each index of it."""
    try:
        given = np.asarray(value)
    except (TypeError, ValueError):
        given = np.asarray(None)
    if given.dtype.kind not in kinds and not (given.size == 0 and given.ndim == 1):
        raise BadType(f"{where}: {name}={value!r} is not {what}")
    if size is None and given.ndim:
        raise BadValue(
            f"{where}: {name} has shape {given.shape}", cause="without an axis there is one", remedy="a number, or axis=..."
        )
    if size is not None and given.shape not in ((), (size,)):
        raise BadValue(f"{where}: {name} has shape {given.shape}, the array has {size} along the axis")
    return given if size is None else np.broadcast_to(given, (size,))


def scales(where: str, value: Any, size: int | None) -> Array:
    """Returns scales as a read-only float32 array without axes, or of one for each index."""
    given = _numbers(where, "scale", value, size, "iuf", "a number" if size is None else "numbers")
    wide = given.astype(np.float64)
    wrong = wide[~(np.isfinite(wide) & (wide > 0))]
    if wrong.size:
        raise BadValue(f"{where}: scale={wrong.flat[0].item()!r}", cause="a scale is finite and positive")
    wrong = wide[(wide < LEAST) | (wide > MOST)]
    if wrong.size:
        raise BadValue(
            f"{where}: scale={wrong.flat[0].item()!r}", cause=f"float32 keeps numbers from {LEAST:.4g} to {MOST:.4g} in full"
        )
    made = wide.astype(np.float32)
    made.flags.writeable = False
    return made


def zero_points(where: str, value: Any, size: int | None, dtype: np.dtype[Any]) -> Array:
    """Returns zero points as a read-only int32 array, likewise."""
    given = _numbers(where, "zero_point", value, size, "iu", "an integer" if size is None else "integers")
    limits = np.iinfo(dtype)
    wrong = given[(given < limits.min) | (given > limits.max)]
    if wrong.size:
        raise BadValue(
            f"{where}: zero_point={wrong.flat[0].item()}", cause=f"zero points of {dtype} are from {limits.min} to {limits.max}"
        )
    made = given.astype(np.int32)
    made.flags.writeable = False
    return made


def one_of_each(where: str, scale: Any, zero_point: Any, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Returns one scale and one zero point, each as a read-only vector of one element."""
    if type(scale) is float and type(zero_point) is int:  # as nearly always: then they are known from the last time
        return _known(where, scale, zero_point, dtype)
    return scales(where, scale, None).reshape(1), zero_points(where, zero_point, None, dtype).reshape(1)


@lru_cache(maxsize=4096)
def _known(where: str, scale: float, zero_point: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    return scales(where, scale, None).reshape(1), zero_points(where, zero_point, None, dtype).reshape(1)
