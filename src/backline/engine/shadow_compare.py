"""Comparison of a call's result with that of another library, and its judgement where they differ.

Results that agree up to rounding need no more. Where they do not, the result may be another right one (signs of singular
vectors), or the Problem an ill-conditioned one: then both are judged as `accuracy` judges results, by a wider reference where the
answer is unique and by what it must satisfy where it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..libraries.array_kinds import kind_of
from ..problems import Operand, Problem
from ..problems.op_registry import operations
from . import accuracy

__all__ = [
    "WORSE", "Finding", "are_finite", "arrays_of", "compared", "distance", "distance_of", "judged", "on_host", "tolerance_of",
]  # fmt: skip

Array = Any

WORSE = 4.0  # a result drifts if its error is above the tolerance and so many times that of the other library
QUANTIZED = 1.0  # steps by which results of quantized operations may differ: half-way cases are rounded either way


@dataclass(frozen=True, slots=True)
class Finding:
    """The difference found by a comparison.

    Attributes
    ----------
    difference
        Relative to the largest element of a result, or in units for integers; the relative error where that was judged.
    drifts
        Whether it is more than rounding, or the tolerance, explains.
    """

    difference: float
    drifts: bool


def on_host(value: Any) -> Array:
    """Returns an array of NumPy for one of any kind; None and what is no array as they are."""
    if isinstance(value, (np.ndarray, np.generic)) or value is None:
        return value
    kind = kind_of(value)
    return np.asarray(kind.get(value)) if kind is not None and kind.get is not None else np.asarray(value)


def arrays_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Array]:
    """Returns the arrays of a call, in its order."""
    found = []
    for value in (*args, *kwargs.values()):
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, np.ndarray) or kind_of(part) is not None:
                found.append(part)
    return found


def tolerance_of(problem: Problem, precision: str, result: Any) -> float:
    """Returns the difference that rounding explains, for the number of terms, the dtype and the precision of an algorithm."""
    parts = _parts(result)
    if problem.dtype.kind in "fc" or problem.dtype.name == "bfloat16":
        return accuracy.bound(problem, precision)
    if all(part is None or part.dtype.kind in "biu" for part in parts):
        return QUANTIZED if problem.family == "quantized" else 0.0
    eps = max(_eps(part.dtype) for part in parts if part is not None and part.dtype.kind not in "biu")
    return 64 * eps * math.sqrt(problem.summands)


def _eps(dtype: Any) -> float:
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


def distance(result: Any, other: Any) -> float:
    """Returns the largest difference of two results, relative to the largest element; infinite where shapes differ.

    Elements that are NaN or infinite in both count as equal. Parts of integers count by units.

    Examples
    --------
    >>> distance(np.array([1.0, 4.0]), np.array([2.0, 4.0])), distance(np.array([np.nan, 1]), np.array([np.nan, 1]))
    (0.25, 0.0)
    """
    first, second = _parts(result), _parts(other)
    if len(first) != len(second):
        return math.inf
    return max((_apart(x, y) for x, y in zip(first, second, strict=True) if x is not None and y is not None), default=0.0)


def distance_of(problem: Problem, result: Any, other: Any) -> float:
    """Returns the largest difference of two results of a Problem, as `distance`, on a scale where its roundings are equal.

    Condition numbers c are compared as c / (1 + c): the smallest singular value of a singular matrix is zero or any number as
    large as the roundings, and the condition number infinite or any number as large as their reciprocal.
    """
    if problem.op != "linalg.cond":
        return distance(result, other)
    with np.errstate(all="ignore"):
        return distance(*(1 - 1 / (1 + np.asarray(on_host(each), np.float64)) for each in (result, other)))


def _parts(result: Any) -> list[Array]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return [None if part is None else np.asarray(on_host(part)) for part in parts]


def _apart(x: Array, y: Array) -> float:
    if x.shape != y.shape:
        return math.inf
    if not x.size:
        return 0.0
    if x.dtype.kind in "biu" and y.dtype.kind in "biu":
        return 0.0 if np.array_equal(x, y) else float(np.max(np.abs(x.astype(np.float64) - y.astype(np.float64))))
    with np.errstate(all="ignore"):
        wide = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
        x, y = x.astype(wide), y.astype(wide)
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.all():
            strange = ~finite & (np.isfinite(x) | np.isfinite(y) | ((x != y) & ~(np.isnan(x) & np.isnan(y))))
            if strange.any():
                return math.inf
            x, y = x[finite], y[finite]
        found, size = float(np.max(np.abs(x - y), initial=0.0)), float(np.max(np.abs(y), initial=0.0))
        if found == 0.0:
            return 0.0
        least = float(np.finfo(np.float64).tiny)
        return found / max(size, least)


def judged(problem: Problem, arrays: list[Array], *results: Any) -> list[float] | None:
    """Returns the relative errors of results of a Problem, or None where nothing can judge them."""
    if problem.device != "cpu" or len(arrays) != len(problem.operands) or problem.packed:
        return None
    if problem.dtype.kind not in "fc" and problem.dtype.name != "bfloat16":
        return None
    given = [_as_operand(a, o) for a, o in zip(arrays, problem.operands, strict=True)]
    if any(a is None for a in given):
        return None
    try:
        reference = accuracy.Reference(problem, given)
        return [reference.error(tuple(r) if isinstance(r, list) else r) for r in results]
    except Exception:  # operations of plug-ins have no reference, and one that fails must not take the program's call down
        return None


def _as_operand(array: Array, described: Operand) -> Array | None:
    """Returns an array as its operand describes it, whose strides references rely on; None where it is another."""
    if array.dtype == described.dtype:  # a vector may be described as a matrix
        return array
    if array.shape != described.shape or not described.is_contiguous():
        return None
    return np.ascontiguousarray(array, described.dtype)


def compared(problem: Problem, arrays: list[Array], result: Any, other: Any, allowed: float, strict: bool) -> Finding:
    """Compares a result with that of another library.

    Parameters
    ----------
    problem, arrays
        The Problem and its operands, as they were before the call.
    result, other
        The result, and the other library's.
    allowed
        The largest difference that does not count.
    strict
        Whether an error above that counts even where the other library's is not much smaller.
    """
    found = distance_of(problem, result, other)
    if found <= allowed:
        return Finding(found, False)
    if not are_finite(problem, arrays):
        return Finding(found, False)  # what becomes of NaN and infinity in sums is nobody's promise
    errors = judged(problem, arrays, result, other)
    if errors is None:
        row = operations.get(problem.op)
        unique = problem.family != "linalg" or (row is not None and row.check == "unique")
        return Finding(found, unique)
    error, theirs = errors
    return Finding(error, error > allowed and (strict or error > WORSE * theirs))


def are_finite(problem: Problem, arrays: list[Array]) -> bool:
    """Tells whether the operands of a Problem hold neither NaN nor infinity; what an output holds does not matter."""
    described = len(arrays) == len(problem.operands)
    outputs = {i for i, o in enumerate(problem.operands) if described and o.role.startswith("out")}
    for i, each in enumerate(arrays):
        if i in outputs:
            continue
        array = np.asarray(on_host(each))
        if array.dtype.kind not in "biufc":
            array = array.astype(np.float64)
        if not np.isfinite(array).all():
            return False
    return True
