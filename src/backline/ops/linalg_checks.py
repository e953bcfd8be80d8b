"""Checks of the arguments of linear algebra, and the Problem made of them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..errors import BadType, BadValue, TooLarge
from ..problems import Operand, operand
from ..problems.linalg_problem import LinalgProblem
from ..switches.switch import show
from . import device_dispatch
from .array_arguments import check_array, check_out, dtype_of, given

__all__ = [
    "FLOATS", "Array", "dtype_given", "enough_memory", "flag", "is_matrix", "matrices", "matrix", "no_check", "not_square",
    "number", "problem", "same_dtype", "whole", "word",
]  # fmt: skip

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float64", "complex64", "complex128")
PROBED = 1 << 30  # bytes from which it is worth asking whether there is as much memory


def matrix(where: str, name: str, value: Any, *, square: bool = False, rank: int = 2) -> Array:
    """Returns a matrix or a batch of them, of numbers that linear algebra takes, in an array of NumPy's."""
    return matrices(where, check_array(value, f"{where}: {name}"), square=square, rank=rank, name=name)


def matrices(where: str, A: Any, *, square: bool = False, rank: int = 2, name: str = "A") -> Array:
    """Returns what `matrix` returns, in an array of any kind."""
    array = given(A, f"{where}: {name}")
    dtype = dtype_of(array)
    if dtype.name not in FLOATS:
        cause = f"Expected a floating point or complex tensor as input: linear algebra takes {', '.join(FLOATS)}"
        raise BadType(f"{where}: {name} has dtype {dtype}", cause=cause, remedy="x.astype(np.float64)")
    if array.ndim < rank:
        axes = f"{rank} dimension{'s' if rank > 1 else ''}"
        raise BadValue(f"{where}: {name} must have at least {axes}, it has shape {tuple(array.shape)}")
    if square and array.shape[-1] != array.shape[-2]:
        raise not_square(where, name, tuple(array.shape))
    return array


def not_square(where: str, name: str, shape: tuple[int, ...]) -> BadValue:
    """The error for matrices that are not square."""
    return BadValue(
        f"{where}: {name} must be a square matrix or a batch of them, it has shape {shape}",
        cause=f"{name} must be batches of square matrices, but they are {shape[-2]} by {shape[-1]} matrices",
    )


def same_dtype(where: str, a: Array, b: Array) -> None:
    if a.dtype != b.dtype:
        raise BadType(
            f"{where}: Expected A and B to have the same dtype, but dtypes {a.dtype} and {b.dtype} differ",
            remedy=f"b.astype(np.{a.dtype.name})",
        )


def whole(where: str, name: str, value: Any, kind: str = "an int") -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise BadType(f"{where}: {name} is {kind}, not {show(value)}")
    return int(value)


def flag(where: str, name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise BadType(f"{where}: {name} is True or False, not {show(value)}")
    return bool(value)


def dtype_given(where: str, value: Any, legal: tuple[str, ...]) -> np.dtype[Any]:
    """The dtype that a call names, as NumPy takes them, if it is one of those that are legal by name."""
    try:
        if value is None or isinstance(value, np.ndarray):
            raise TypeError
        dtype: np.dtype[Any] = np.dtype(value).newbyteorder("=")
    except TypeError:
        raise BadType(f"{where}: dtype is {value!r}", remedy=f"one of: {', '.join(legal)}") from None
    if dtype.name not in legal:
        wrong = f"{where} requires a floating point or complex dtype, not" if dtype.kind in "biu" else f"{where}: dtype is"
        raise BadType(f"{wrong} {dtype}", remedy=f"one of: {', '.join(legal)}")
    return dtype


def word(where: str, name: str, value: Any, legal: tuple[str, ...], cause: str = "") -> str:
    if not isinstance(value, str):
        raise BadType(f"{where}: {name} is a str, not {type(value).__name__}")
    if value not in legal:
        raise BadValue(f"{where}: {name}={value!r}", cause=cause, remedy=f"one of: {', '.join(map(repr, legal))}")
    return value


def number(where: str, name: str, value: Any) -> float:
    """A real number, as a float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise BadType(f"{where}: {name} is a number, not {show(value)}")
    try:
        return float(value)
    except OverflowError:
        raise BadValue(
            f"{where}: {name} is an int of {int(value).bit_length()} bits", cause="a float holds at most 1.8e308"
        ) from None


def enough_memory(
    where: str, shape: tuple[int, ...], dtype: np.dtype[Any], given: str | Callable[[], str] = "this"
) -> None:  # fmt: skip
    """Refuses a result that cannot be allocated, before a library plans it; `given` names the arguments that ask for it."""
    nbytes = dtype.itemsize * prod(n for n in shape if n)
    if nbytes < PROBED or (device_dispatch.device() != "cpu" and nbytes < 2**62):  # a device has memory of its own
        return
    try:
        np.empty(shape, dtype)
    except (MemoryError, ValueError, OverflowError):
        size = f"{nbytes / 2**30:.3g} GiB" if nbytes < 2**1000 else f"2**{nbytes.bit_length() - 1} bytes"
        words = given if isinstance(given, str) else given()
        raise TooLarge(
            f"{where}: {words} gives a result of shape {shape}, {size}", cause="so much memory cannot be had",
            remedy="a smaller size, a smaller dtype, or the computation in parts",
        ) from None  # fmt: skip


def problem(
    op: str, arrays: dict[str, Array], parameters: dict[str, Any], out: Any = None, *results: tuple[tuple[int, ...], Any],
    k: int = 0, batch: tuple[int, ...] | None = None,
) -> LinalgProblem:  # fmt: skip
    """Returns the Problem, of the sizes of the matrix ``a``.

    `results` are core shape and dtype of each result, against which `out` is checked; where the parameter ``check`` is False, an
    info follows them. The batch is that of the matrix where none is given.
    """
    where, a = op.removeprefix("linalg."), arrays["a"]
    batch = a.shape[:-2] if batch is None else batch
    if parameters.get("check") is False:
        results += (((), np.int32),)
    operands: list[Operand] = [operand(role, array) for role, array in arrays.items()]
    if out is not None:
        many = len(results) > 1
        if many and (not isinstance(out, tuple) or len(out) != len(results)):
            raise BadType(f"{where}: out is a tuple of {len(results)} arrays")
        for i, (array, (core, dtype)) in enumerate(zip(out if many else (out,), results, strict=True)):
            check_out(array, f"{where}: out" + (f"[{i}]" if many else ""), (*batch, *core), np.dtype(dtype))
            operands.append(operand(f"out{i}", array))
    m, n = a.shape[-2:]
    return LinalgProblem(op, tuple(operands), tuple(sorted(parameters.items())), "linalg", m=m, n=n, k=k, batch=batch)


def no_check(where: str, check_errors: Any) -> bool:
    """Returns False, the only value that `check_errors` may have where an info is reported."""
    if flag(where, "check_errors", check_errors):
        raise BadValue(
            f"{where}: check_errors=True", cause="info would always be 0", remedy=f"{where.removesuffix('_ex')}, which raises"
        )
    return False


def is_matrix(value: Any, *, square: bool = False) -> bool:
    """Tells if a value is a NumPy array of matrices with elements, of numbers that linear algebra takes."""
    if not isinstance(value, np.ndarray) or value.dtype.name not in FLOATS or value.ndim < 2 or not value.size:
        return False
    return not square or value.shape[-1] == value.shape[-2]
