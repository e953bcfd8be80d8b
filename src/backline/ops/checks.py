"""What the operations of linear algebra check, and the Problem they make."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Operand, operand
from ..problems.linalg import LinalgProblem
from .bind import check_array, check_out

__all__ = ["FLOATS", "Array", "flag", "matrix", "no_check", "problem", "same_dtype", "word"]

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float64", "complex64", "complex128")


def matrix(where: str, name: str, value: Any, *, square: bool = False, rank: int = 2) -> Array:
    array = check_array(value, f"{where}: {name}")
    if array.dtype.name not in FLOATS:
        raise BadType(
            f"{where}: {name} has dtype {array.dtype}",
            cause=f"linear algebra takes {', '.join(FLOATS)}",
            remedy="x.astype(np.float64)",
        )
    if array.ndim < rank:
        raise BadValue(f"{where}: {name} must have {rank} dimensions or more, it has shape {array.shape}")
    if square and array.shape[-1] != array.shape[-2]:
        raise BadValue(f"{where}: {name} must be a square matrix or a batch of them, it has shape {array.shape}")
    return array


def same_dtype(where: str, a: Array, b: Array) -> None:
    if a.dtype != b.dtype:
        raise BadType(f"{where}: dtypes {a.dtype} and {b.dtype} differ", remedy=f"b.astype(np.{a.dtype.name})")


def flag(where: str, name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise BadType(f"{where}: {name} is True or False, not {value!r}")
    return bool(value)


def word(where: str, name: str, value: Any, legal: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise BadType(f"{where}: {name} is a str, not {type(value).__name__}")
    if value not in legal:
        raise BadValue(f"{where}: {name}={value!r}", remedy=f"one of: {', '.join(map(repr, legal))}")
    return value


def problem(
    op: str,
    arrays: dict[str, Array],
    batch: tuple[int, ...],
    sizes: tuple[int, int, int],
    parameters: dict[str, Any],
    out: Any = None,
    results: tuple[tuple[tuple[int, ...], Any], ...] = (),
) -> LinalgProblem:
    """The Problem; `results` are core shape and dtype of each result, against which `out` is checked."""
    where = op.removeprefix("linalg.")
    operands: list[Operand] = [operand(role, a) for role, a in arrays.items()]
    if out is not None:
        many = len(results) > 1
        given = out if many else (out,)
        if many and (not isinstance(out, tuple) or len(out) != len(results)):
            raise BadType(f"{where}: out is a tuple of {len(results)} arrays")
        for i, (array, (core, dtype)) in enumerate(zip(given, results, strict=True)):
            check_out(array, f"{where}: out" + (f"[{i}]" if many else ""), (*batch, *core), np.dtype(dtype))
            operands.append(operand(f"out{i}", array))
    kept = tuple(sorted((k, v) for k, v in parameters.items()))
    m, n, k = sizes
    return LinalgProblem(op, tuple(operands), kept, "linalg", m=m, n=n, k=k, batch=batch)


def no_check(where: str, check_errors: Any) -> None:
    if flag(where, "check_errors", check_errors):
        raise BadValue(
            f"{where}: check_errors=True", cause="info would always be 0", remedy=f"{where.removesuffix('_ex')}, which raises"
        )
