"""Operations that torch has beside `linalg`: inner, kron, addbmm, trace; cross, diagonal and vander with other defaults."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np

from ..engine import events
from ..errors import BadAxis, BadType, BadValue
from ..problems import Problem, operand
from ..problems.dtypes import compute_dtype
from ..problems.elements_problem import ElementsProblem
from ..problems.norm_problem import NormProblem
from ..problems.op_registry import operations
from .array_arguments import cast, dtype_of, functions, given, into, native, plain
from .axes import axis_of
from .composite import composed_of, on_its_device
from .linalg_checks import enough_memory, flag, whole
from .matrix_products import addmm, mm
from .matrix_views import product_along
from .planned import planned
from .vectors import are_vectors, cross_along, cross_problem, diagonal_of, pair, powers_of, same_numbers, vander_problem

__all__ = ["addbmm", "cross", "diagonal", "inner", "kron", "trace", "vander"]

Array = np.ndarray[Any, Any]


def _inner_problem(input: Any, other: Any) -> Problem | None:
    if are_vectors(input, other):
        product: Problem = operations["dot"].build(input, other)
        return product
    if not same_numbers(input, other) or not input.ndim or not other.ndim or input.shape[-1] != other.shape[-1]:
        return None
    last = (input.ndim - 1,), (other.ndim - 1,)
    return product_along(input, other, *last)


@planned(_inner_problem, "matmul", module="backline", family="matmul")
@on_its_device
def inner(input: Array, other: Array, *, out: Array | None = None) -> Array:
    """Sums of products along the last axes of two arrays; where one is a scalar, the product.

    Parameters
    ----------
    input, other
        Arrays of one dtype whose last axes are equally long: (..., k) and (..., k).
    {out}

    Returns
    -------
    scalar or ndarray
        The axes of `input` but the last, then those of `other` but the last. Complex numbers are not conjugated.

    Raises
    ------
    BadValue
        Last axes of different lengths.
    BadType
        Different dtypes, or booleans.

    {examples}
    >>> backline.inner(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    array([3., 7.])
    """
    a, b = pair("inner", ("input", "other"), input, other, out)
    if dtype_of(a).kind == "b":
        raise BadType("inner: input has dtype bool", cause="there is no sum of booleans", remedy="x.astype(np.int64)")
    if a.ndim == 0 or b.ndim == 0:
        with np.errstate(all="ignore"):
            return into(out, "inner", plain(a * b))
    if a.shape[-1] != b.shape[-1]:
        raise BadValue(
            f"inner() the last dimension must match on both input tensors but got shapes {list(a.shape)} and {list(b.shape)}"
        )
    k, rows, columns = a.shape[-1], math.prod(a.shape[:-1]), math.prod(b.shape[:-1])
    product = mm(a.reshape(rows, k), b.reshape(columns, k).T)
    return into(out, "inner", plain(product.reshape((*a.shape[:-1], *b.shape[:-1]))))


@composed_of("addmm", module="backline")
@on_its_device
def addbmm(
    input: Array, batch1: Array, batch2: Array, *, beta: complex = 1, alpha: complex = 1, out: Array | None = None
) -> Array:
    """``beta * input + alpha * sum(batch1[i] @ batch2[i])``: products of stacks of matrices, added up.

    Parameters
    ----------
    {added_matrix}
    batch1, batch2
        Shapes (b, m, k) and (b, k, n), one dtype.
    {beta_alpha}
    out
        Array of shape (m, n); may be `input` itself.

    {returns_array}
        Shape (m, n).

    {raises}
        As `baddbmm`.

    Notes
    -----
    One product of matrices whose inner axis holds the whole stack.

    {examples}
    >>> backline.addbmm(np.zeros((2, 2)), np.ones((5, 2, 3)), np.ones((5, 3, 2)))
    array([[15., 15.],
           [15., 15.]])
    """
    given(input, "addbmm: input")
    a, b = pair("addbmm", ("batch1", "batch2"), batch1, batch2, out)
    if dtype_of(a).kind == "b":
        raise BadType("addbmm: batch1 has dtype bool", cause="there is no sum of booleans", remedy="x.astype(np.int64)")
    for name, array in (("batch1", a), ("batch2", b)):
        if array.ndim != 3:
            raise BadValue(f"addbmm: {name} must be a 3D tensor, it has shape {tuple(array.shape)}")
    if a.shape[0] != b.shape[0]:
        sizes = f"{a.shape[0]} and {b.shape[0]}"
        raise BadValue(f"addbmm: batch1 and batch2 must have same number of batches, they are stacks of {sizes} matrices")
    if a.shape[2] != b.shape[1]:
        raise BadValue(f"addbmm: Incompatible matrix sizes for bmm: batch1 has shape {tuple(a.shape)}, batch2 {tuple(b.shape)}")
    count, m, k = a.shape
    left = a.reshape(m, k) if count == 1 else a.transpose(1, 0, 2).reshape(m, count * k)
    right = b.reshape(count * k, b.shape[2])
    if out is None:
        return addmm(input, left, right, beta=beta, alpha=alpha)
    return addmm(input, left, right, beta=beta, alpha=alpha, out=out)


def _kron_problem(input: Any, other: Any) -> Problem | None:
    if not same_numbers(input, other):
        return None
    rank = max(input.ndim, other.ndim)
    if rank > 32:
        return None
    one, two = ((1,) * (rank - each.ndim) + each.shape for each in (input, other))
    shape = tuple(n * m for n, m in zip(one, two, strict=True))
    enough_memory("kron", shape, input.dtype)
    return ElementsProblem("kron", (operand("input", input), operand("other", other)), (), "linalg", result=shape)


@planned(_kron_problem, module="backline")
@on_its_device
def kron(
input: Array, other: Array, *, out: Array | None = None) -> Array:
    """Kronecker product: every element of one array times the whole of the other.

    Parameters
    ----------
    input, other
        Arrays of one dtype; the one of fewer dimensions counts as of size 1 in those before its first.
    {out}

    Returns
    -------
    scalar or ndarray
        In each axis as long as the product of both.

    {examples}
    >>> backline.kron(np.array([[1.0, 10.0]]), np.array([[1.0], [2.0]]))
    array([[ 1., 10.],
           [ 2., 20.]])
    """
    a, b = pair("kron", ("input", "other"), input, other, out)
    rank = max(a.ndim, b.ndim)
    one, two = (1,) * (rank - a.ndim) + tuple(a.shape), (1,) * (rank - b.ndim) + tuple(b.shape)
    if rank > 32:
        cause = "the product has twice as many while it is made, and NumPy's arrays have at most 64"
        raise BadValue(f"kron: one of input and other has {rank} dimensions", cause=cause, remedy="reshape to 32 or fewer")
    shape = tuple(n * m for n, m in zip(one, two, strict=True))
    enough_memory("kron", shape, dtype_of(a))
    spread = [n for size in one for n in (size, 1)], [n for size in two for n in (1, size)]
    with np.errstate(all="ignore"):
        product = a.reshape(spread[0]) * b.reshape(spread[1])
    return into(out, "kron", plain(product.reshape(shape)))


def _cross_problem(input: Any, other: Any, dim: Any = None) -> Problem | None:
    if dim is None and isinstance(input, np.ndarray) and 3 in input.shape:
        dim = input.shape.index(3)
    return cross_problem("cross", input, other, dim if type(dim) is int else None)


@planned(_cross_problem, module="backline")
@on_its_device
def cross(input: Array, other: Array, dim: int | None = None, *, out: Array | None = None) -> Array:
    """Cross products as `linalg.cross`, by default along the first axis of three elements.

    Parameters
    ----------
    input, other, out
        As for `linalg.cross`.
    dim
        The axis of three elements; None takes the first one that `input` has.

    {returns_array}
        The broadcast shape.

    {examples}
    >>> backline.cross(np.eye(3)[:, :1], np.eye(3)[:, 1:2]).ravel()
    array([0., 0., 1.])
    """
    a, b = pair("cross", ("input", "other"), input, other, out)
    if dim is not None:
        return cross_along("cross", a, b, axis_of("cross", "dim", dim, tuple(a.shape)), out)
    if 3 not in a.shape:
        raise BadAxis(f"cross: no dimension of size 3 in input of shape {tuple(a.shape)}")
    return cross_along("cross", a, b, tuple(a.shape).index(3), out)


@on_its_device
def diagonal(input: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Diagonals as `linalg.diagonal`, by default of the first two axes.

    Parameters
    ----------
    input
        Array of two dimensions or more.
    offset, dim1, dim2
        As for `linalg.diagonal`.

    {returns_array}
        The other axes, then the diagonal; a view where `linalg.diagonal` gives one.

    {examples}
    >>> backline.diagonal(np.arange(4.0).reshape(2, 2))
    array([0., 3.])
    """
    return diagonal_of("diagonal", "input", given(input, "diagonal: input"), offset, (dim1, dim2))


def _trace_problem(input: Any = None) -> Problem | None:
    if not isinstance(input, np.ndarray) or input.dtype.name not in ("float32", "float64") or input.ndim != 2 or not input.size:
        return None
    return NormProblem("trace", (operand("x", input),), (), "linalg")


@overload
def trace() -> events.Trace: ...
@overload
def trace(input: Array) -> Array: ...
@planned(_trace_problem, module="backline")
@on_its_device
def trace(input: Any = None) -> Any:
    """Sum of a matrix's main diagonal; without a matrix, a scope that collects an Event for every operation run inside it.

    Parameters
    ----------
    input
        A matrix; None asks for the scope.

    Returns
    -------
    scalar or Trace
        The sum, int64 for integers; or the scope, which collects what this thread or task runs.

    Raises
    ------
    BadValue
        An array that has not two dimensions.

    {examples}
    >>> float(backline.trace(np.diag([1.0, 2.0])))
    3.0
    >>> with backline.trace() as events:
    ...     _ = backline.matmul(np.eye(3), np.eye(3))
    >>> [e.op for e in events]
    ['matmul']
    """
    if input is None:
        return events.trace()
    a = native(given(input, "trace: input"))
    dtype = dtype_of(a)
    if a.ndim != 2:
        remedy = "linalg.diagonal(A).sum(-1) for a batch"
        raise BadValue(f"trace: expected a matrix, but got tensor with dim {a.ndim}", remedy=remedy)
    if dtype.kind == "b":
        raise BadType("trace: input has dtype bool", cause="there is no sum of booleans", remedy="x.astype(np.int64)")
    values = functions(a).diagonal(a, 0, 0, 1)
    if dtype.kind in "iu":
        return plain(functions(a).sum(cast(values, np.int64)))
    inside = compute_dtype(dtype)
    with np.errstate(all="ignore"):
        return plain(cast(functions(a).sum(cast(values, inside)), dtype))


def _vander_problem(x: Any, N: Any = None, increasing: Any = False) -> Problem | None:
    legal = isinstance(x, np.ndarray) and x.ndim == 1 and type(increasing) is bool
    return vander_problem("vander", x, N, increasing) if legal else None


@planned(_vander_problem, module="backline")
@on_its_device
def vander(x: Array, N: int | None = None, increasing: bool = False) -> Array:
    """Vandermonde matrix of a vector, as `linalg.vander`, by default with the highest power first.

    Parameters
    ----------
    x
        Vector of n numbers.
    N
        Number of powers; None takes n.
    increasing
        Whether they begin with the power 0.

    {returns_array}
        Shape (n, N); int64 for integers and booleans.

    Raises
    ------
    BadValue
        No vector, or a negative N.

    {examples}
    >>> backline.vander(np.array([1, 2, 3]))[2]
    array([9, 3, 1])
    """
    a = native(given(x, "vander: x"))
    if a.ndim != 1:
        remedy = "linalg.vander takes batches"
        raise BadValue(f"vander: x must be a one-dimensional tensor. It has shape {tuple(a.shape)}", remedy=remedy)
    count = a.shape[0] if N is None else whole("vander", "N", N)
    if count < 0:
        raise BadValue(f"vander: N must be non-negative. It is {count}")
    up = flag("vander", "increasing", increasing)
    powers = powers_of("vander", cast(a, np.int64) if dtype_of(a).kind in "biu" else a, count)
    return powers if up else functions(a).ascontiguousarray(powers[..., ::-1])
