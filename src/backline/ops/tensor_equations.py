"""Inverses of, and solutions with, arrays that stand for linear maps between arrays: tensorinv, tensorsolve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Problem
from ..problems.op_registry import operations
from ..switches.switch import show
from .array_arguments import dtype_of, functions, given, into
from .axes import axes_of
from .composite import on_its_device
from .linalg_checks import FLOATS, Array, is_matrix, whole
from .linear_systems import inv, solve
from .planned import planned
from .vectors import pair

__all__ = ["tensorinv", "tensorsolve"]


def _square(where: str, a: Any, axes: str, shape: tuple[int, ...], split: int) -> int:
    """The size of the matrix that the array is when its axes before and after `split` are taken together."""
    dtype = dtype_of(a)
    if dtype.name not in FLOATS:
        raise BadType(f"{where}: A has dtype {dtype}", cause=f"linear algebra takes {', '.join(FLOATS)}")
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    if rows != columns:
        raise BadValue(
            f"{where}: Expected self to satisfy the requirement prod(self.shape[{axes}:]) == prod(self.shape[:{axes}]), "
            f"but got {columns} != {rows}",
            cause=f"A has shape {shape}, and must be square when its first {split} axes are taken together, and the others",
        )  # fmt: skip
    return rows


def _inverse_problem(A: Any, ind: Any = 2) -> Problem | None:
    if type(ind) is not int or ind != 1 or not is_matrix(A, square=True) or A.ndim != 2:
        return None
    found: Problem = operations["linalg.inv"].build(A)
    return found


def _solution_problem(A: Any, B: Any, dims: Any = None) -> Problem | None:
    if dims is not None or not is_matrix(A, square=True) or A.ndim != 2 or not isinstance(B, np.ndarray):
        return None
    if B.shape != A.shape[:1] or B.dtype != A.dtype:
        return None
    found: Problem = operations["linalg.solve"].build(A, B)
    return found


@planned(_inverse_problem, "linalg.inv")
@on_its_device
def tensorinv(A: Array, ind: int = 2, *, out: Array | None = None) -> Array:
    """Inverse of `tensordot` with an array: ``tensordot(tensorinv(A, ind), A, ind)`` is an identity.

    Parameters
    ----------
    A
        Array whose first `ind` axes have as many elements as the others.
    ind
        How many axes come first, 1 or more.
    {out_inverse}

    {returns_array}
        Shape ``A.shape[ind:] + A.shape[:ind]``.

    {singular}
    BadValue
        A is not square in that sense.

    {examples}
    >>> backline.linalg.tensorinv(np.eye(6).reshape(2, 3, 6)).shape
    (6, 2, 3)
    """
    a = given(A, "tensorinv: A")
    first = whole("tensorinv", "ind", ind)
    if not 0 < first <= a.ndim:
        if first > 0:
            raise BadValue(f"tensorinv: A has {a.ndim} dimensions, and ind={first}")
        raise BadValue(f"tensorinv: Expected a strictly positive integer for 'ind', but got {first}")
    shape = tuple(a.shape)
    size = _square("tensorinv", a, "ind", shape, first)
    return into(out, "tensorinv", inv(a.reshape(size, size)).reshape(shape[first:] + shape[:first]))


@planned(_solution_problem, "linalg.solve")
@on_its_device
def tensorsolve(A: Array, B: Array, dims: Sequence[int] | None = None, *, out: Array | None = None) -> Array:
    """Solution X of ``tensordot(A, X, X.ndim) == B``.

    Parameters
    ----------
    A
        Array whose first ``B.ndim`` axes have as many elements as the others.
    B
        Array of A's dtype.
    dims
        Axes of A that are moved behind the others first.
    {out_solution}

    {returns_array}
        The shape of A's other axes.

    {singular}
    BadValue
        A is not square in that sense, or an axis is not there.

    {examples}
    >>> backline.linalg.tensorsolve(np.eye(6).reshape(2, 3, 6), np.ones((2, 3))).shape
    (6,)
    """
    a, b = pair("tensorsolve", ("A", "B"), A, B, out)
    if dims is not None:
        if not isinstance(dims, (tuple, list)):
            raise BadType(f"tensorsolve: dims is a tuple of ints or None, not {show(dims)}")
        moved = axes_of("tensorsolve", "dims", tuple(dims), tuple(a.shape), "A")
        a = functions(a).moveaxis(a, moved, tuple(range(a.ndim - len(moved), a.ndim)))
    shape = tuple(a.shape)
    size = _square("tensorsolve", a, "other.ndim", shape, b.ndim)
    if math.prod(b.shape) != size:
        elements = math.prod(b.shape)
        raise BadValue(f"tensorsolve: B of shape {tuple(b.shape)} has {elements} elements, A of shape {shape} takes {size}")
    return into(out, "tensorsolve", solve(a.reshape(size, size), b.reshape(size)).reshape(shape[b.ndim :]))
