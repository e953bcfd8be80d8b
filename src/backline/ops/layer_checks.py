"""Argument checks of activations, normalizations, pooling and recurrent layers, and the Problems that they build."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.neural_problem import NeuralProblem
from . import device_dispatch
from .array_arguments import check_array
from .linalg_checks import enough_memory, number

__all__ = [
    "FLOATS", "MODULE", "Array", "as_input", "channels", "parameter", "positive", "problem", "same_dtype", "same_shape",
]  # fmt: skip

Array = np.ndarray[Any, Any]
FLOATS = ("float16", "bfloat16", "float32", "float64")
MODULE = "backline.nn.functional"


def as_input(
    where: str, name: str, value: Any, *, rank: int = 0, integers: tuple[str, ...] = (), dtypes: tuple[str, ...] = FLOATS
) -> Array:
    """Returns an array of one of the dtypes, of `rank` dimensions or more; on the devices named, of integers too."""
    array = check_array(value, f"{where}: {name}")
    legal = device_dispatch.device().partition(":")[0] in integers
    if array.dtype.name not in dtypes and not (legal and array.dtype.kind in "iu"):
        cause = f"it takes {', '.join(dtypes)}{' and integers' if legal else ''}"
        remedy = "x.astype(np.complex128)" if array.dtype.kind == "c" and "complex128" in dtypes else "x.astype(np.float32)"
        raise BadType(f"{where}: {name} has dtype {array.dtype}", cause=cause, remedy=remedy)
    if array.ndim < rank:
        raise BadValue(f"{where}: {name} must have {rank} dimension{'s' if rank > 1 else ''} or more, it has shape {array.shape}")
    return array


def same_shape(where: str, name: str, value: Any, other_name: str, other: Array) -> Array:
    """Returns an array of another one's shape and dtype."""
    array = as_input(where, name, value)
    if array.shape != other.shape:
        raise BadValue(f"{where}: {name} has shape {array.shape}, {other_name} has {other.shape}")
    same_dtype(where, name, array, other_name, other.dtype)
    return array


def same_dtype(where: str, name: str, array: Array, other_name: str, dtype: np.dtype[Any]) -> None:
    """Refuses an array of another dtype than another array's."""
    if array.dtype != dtype:
        dtypes = f"{name} has dtype {array.dtype}, {other_name} has {dtype}"
        raise BadType(f"{where}: {dtypes}", remedy=f"{name}.astype(np.{dtype.name})")


def parameter(where: str, name: str, value: Any, shape: tuple[int, ...], input: Array) -> Array | None:
    """Returns an array of parameters, of the input's dtype, or of float32 beside a 16-bit float; None stays."""
    if value is None:
        return None
    array = as_input(where, name, value)
    if array.shape != shape:
        raise BadValue(
            f"{where}: {name} has shape {array.shape}, for input of shape {input.shape} it must have {shape}",
            cause=f"Expected {name} to be of same shape as normalized_shape"
            if where.startswith(("layer_norm", "rms_norm"))
            else f"{name} should contain {prod(shape)} elements not {array.size}",
        )
    if array.dtype != input.dtype and not (input.dtype.itemsize == 2 and array.dtype == np.float32):
        raise BadType(
            f"{where}: {name} has dtype {array.dtype}, input has {input.dtype}",
            cause="parameters have the input's dtype, or float32 beside float16 and bfloat16",
            remedy=f"{name}.astype(np.{input.dtype.name})",
        )
    return array


def channels(where: str, input: Array) -> int:
    if input.ndim < 2:
        raise BadValue(f"{where}: input must have shape (N, C, ...), it has {input.shape}")
    size: int = input.shape[1]
    return size


def positive(where: str, name: str, value: Any, *, most: float = float("inf")) -> float:
    """Returns a finite number from 0 to `most`."""
    checked = number(where, name, value)
    if not (0 <= checked <= most and checked < float("inf")):
        legal = "a finite number, 0 or more" if most == float("inf") else f"a number from 0 to {most:g}"
        dropped = name in ("p", "dropout_p", "dropout")
        raise BadValue(f"{where}: {name}={checked}", cause=_PROBABILITY.format(checked) if dropped else "", remedy=legal)
    return checked


_PROBABILITY = "dropout probability has to be between 0 and 1, but got {}"


def problem(op: str, arrays: dict[str, Array | None], result: tuple[int, ...], **parameters: Any) -> NeuralProblem:
    """Returns the Problem; arrays by role, in the order of the call."""
    operands = tuple(operand(role, a) for role, a in arrays.items() if a is not None)
    enough_memory(op, result, operands[0].dtype)
    return NeuralProblem(op, operands, tuple(sorted(parameters.items())), "neural", result=result)
