"""Products of vectors along an axis, diagonals and powers: vecdot, cross, diagonal, vander, as in torch.linalg.

Sums and products of elements are those of the arrays' own library. `ops.small_products` has what torch has beside `linalg`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Problem, operand
from ..problems.dtypes import HALVES
from ..problems.elements_problem import ElementsProblem
from ..problems.op_registry import operations
from .array_arguments import cast, dtype_of, functions, given, into, native, one_kind, plain
from .axes import axis_of
from .composite import on_its_device
from .linalg_checks import FLOATS, enough_memory, whole
from .matrix_products import vdot
from .planned import planned

__all__ = [
    "are_vectors", "broadcast", "cross", "cross_along", "cross_problem", "diagonal", "diagonal_of", "pair", "powers_of",
    "same_numbers", "vander", "vander_problem", "vecdot",
]  # fmt: skip

Array = np.ndarray[Any, Any]


def pair(where: str, names: tuple[str, str], one: Any, other: Any, out: Any = None) -> tuple[Array, Array]:
    """Two arrays of one kind and one dtype, as far as they are any."""
    a, b = native(given(one, f"{where}: {names[0]}")), native(given(other, f"{where}: {names[1]}"))
    one_kind(where, **{names[0]: a, names[1]: b, "out": out})
    first, second = dtype_of(a), dtype_of(b)
    if first != second:
        raise BadType(
            f"{where}: {names[0]} has dtype {first}, {names[1]} has {second}", cause="expected x and y to have the same dtype",
            remedy=f"{names[1]}.astype(np.{first.name})",
        )  # fmt: skip
    return a, b


def broadcast(where: str, names: tuple[str, str], one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(one, other)
    except ValueError:
        raise BadValue(
            f"{where}: {names[0]} of shape {tuple(one)} and {names[1]} of shape {tuple(other)} do not broadcast",
            cause="the size of one must match the size of tensor other in every axis, or be 1",
        ) from None


def _vecdot_problem(x: Any, y: Any, *, dim: Any = -1) -> Problem | None:
    if type(dim) is not int or not same_numbers(x, y):
        return None
    if x.ndim == y.ndim == 1:
        if not are_vectors(x, y) or dim not in (-1, 0):
            return None
        product: Problem = operations["vdot"].build(x, y)
        return product
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return None
    rank = len(shape)
    # Sums of complex products are those of a BLAS, or NumPy's.
    if x.dtype.kind == "c" or not -rank <= dim < rank or not x.ndim or not y.ndim:
        return None
    axis = dim % rank
    result = shape[:axis] + shape[axis + 1 :]
    return ElementsProblem("linalg.vecdot", (operand("x", x), operand("y", y)), (("dim", axis),), "linalg", result=result)


def same_numbers(x: Any, y: Any) -> bool:
    """Tells if both are NumPy arrays of one dtype, of numbers that every BLAS takes."""
    both = isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    return both and x.dtype == y.dtype and x.dtype.name in FLOATS


def are_vectors(x: Any, y: Any) -> bool:
    """Tells if both are NumPy arrays of one dimension, dtype and length, of numbers that every BLAS takes."""
    return same_numbers(x, y) and x.ndim == 1 and x.shape == y.shape


@planned(_vecdot_problem, "vdot", family="matmul")
@on_its_device
def vecdot(x: Array, y: Array, *, dim: int = -1, out: Array | None = None) -> Array:
    """Sums of products along one axis of two arrays that broadcast, the first array conjugated.

    Parameters
    ----------
    x, y
        Arrays of one dtype, of real or complex numbers.
    dim
        The axis, of the broadcast arrays.
    {out}

    Returns
    -------
    scalar or ndarray
        The broadcast shape without the axis.

    Raises
    ------
    BadValue
        Shapes that do not broadcast, or vectors of different lengths.
    BadType
        Different dtypes, or integers.

    {examples}
    >>> backline.linalg.vecdot(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0]))
    array([-1., -1.])
    """
    a, b = pair("vecdot", ("x", "y"), x, y, out)
    dtype = dtype_of(a)
    if dtype.name not in (*FLOATS, *HALVES):
        cause = "Expected a floating point or complex tensor as input"
        raise BadType(f"vecdot: x has dtype {dtype}", cause=cause, remedy="x.astype(np.float64)")
    if a.ndim == 1 and b.ndim == 1:
        axis_of("vecdot", "dim", dim, a.shape, "x")
        if a.shape != b.shape:
            sizes = f"{a.shape[0]} and {b.shape[0]}"
            raise BadValue(f"vecdot: inconsistent tensor size, x and y must have the same number of elements, not {sizes}")
        return into(out, "vecdot", vdot(a, b))
    shape = broadcast("vecdot", ("x", "y"), tuple(a.shape), tuple(b.shape))
    if not shape:
        return into(out, "vecdot", plain(functions(a).conj(a) * b))
    axis = axis_of("vecdot", "dim", dim, shape, "x times y")
    xp = functions(a)
    if dtype.name in HALVES:
        a, b = cast(a, np.float32), cast(b, np.float32)
    with np.errstate(all="ignore"):
        if xp is np:
            a, b = (np.moveaxis(np.broadcast_to(each, shape), axis, -1) for each in (a, b))
            result = np.asarray(np.vecdot(a, b))
        else:
            result = xp.sum((xp.conj(a) if dtype.kind == "c" else a) * b, axis=axis)
    return into(out, "vecdot", plain(cast(result, dtype)))


def cross_along(where: str, a: Array, b: Array, axis: int, out: Any) -> Array:
    if dtype_of(a).kind == "b":
        raise BadType(f"{where}: input has dtype bool", cause="there is no difference of booleans", remedy="x.astype(np.int64)")
    if a.ndim != b.ndim:
        raise BadValue(
            f"{where}: inputs must have the same number of dimensions, they have shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.shape[axis] != 3 or b.shape[axis] != 3:
        raise BadValue(f"{where}: inputs dimension {axis} must have length 3. Got {a.shape[axis]} and {b.shape[axis]}")
    broadcast(where, ("input", "other"), tuple(a.shape), tuple(b.shape))
    xp, dtype = functions(a), dtype_of(a)
    halves = dtype.name in HALVES
    if halves:  # a product may be out of their range where the difference is not
        a, b = cast(a, np.float32), cast(b, np.float32)
    at = [(slice(None),) * axis + (i,) for i in range(3)]
    x, y = ([each[place] for place in at] for each in (a, b))
    with np.errstate(all="ignore"):
        parts = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
        if xp is np and out is None:
            made = np.empty((*parts[0].shape[:axis], 3, *parts[0].shape[axis:]), dtype)
            for place, part in zip(at, parts, strict=True):
                made[place] = part
            return made
        result = xp.stack(parts, axis)
        return into(out, where, cast(result, dtype) if halves else result)


def cross_problem(op: str, input: Any, other: Any, axis: int | None) -> Problem | None:
    """Returns the Problem of cross products along an axis; None where it is left to the function."""
    if axis is None or not same_numbers(input, other) or input.ndim != other.ndim or not -input.ndim <= axis < input.ndim:
        return None
    axis %= input.ndim
    if input.shape[axis] != 3 or other.shape[axis] != 3:
        return None
    try:
        shape = np.broadcast_shapes(input.shape, other.shape)
    except ValueError:
        return None
    operands = operand("input", input), operand("other", other)
    return ElementsProblem(op, operands, (("dim", axis),), "linalg", result=shape)


def _cross_problem(input: Any, other: Any, *, dim: Any = -1) -> Problem | None:
    return cross_problem("linalg.cross", input, other, dim if type(dim) is int else None)


@planned(_cross_problem)
@on_its_device
def cross(
input: Array, other: Array, *, dim: int = -1, out: Array | None = None) -> Array:
    """Cross products of vectors of three elements.

    Parameters
    ----------
    input, other
        Arrays of one dtype and as many dimensions, which broadcast.
    dim
        The axis of three elements.
    {out}

    {returns_array}
        The broadcast shape.

    Raises
    ------
    BadValue
        The axis has not three elements, or the arrays have not as many dimensions.

    {examples}
    >>> backline.linalg.cross(np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0]))
    array([0., 0., 1.])
    """
    a, b = pair("linalg.cross", ("input", "other"), input, other, out)
    return cross_along("linalg.cross", a, b, axis_of("linalg.cross", "dim", dim, tuple(a.shape)), out)


def diagonal_of(where: str, name: str, a: Array, offset: Any, dims: tuple[Any, Any]) -> Array:
    a, offset = native(a), whole(where, "offset", offset)
    shape = tuple(a.shape)
    first, second = (axis_of(where, f"dim{i}", dim, shape, name) for i, dim in enumerate(dims, 1))
    if first == second:
        raise BadValue(f"{where}: diagonal dimensions cannot be identical {dims[0]}, {dims[1]}")
    # What lies beyond the matrix is the empty diagonal, as far away as it may be.
    offset = max(-shape[first], min(offset, shape[second]))
    result: Array = functions(a).diagonal(a, offset, first, second)
    if isinstance(result, np.ndarray) and a.flags.writeable:
        result.flags.writeable = True  # a view as in torch, which may be written to
    return result


@on_its_device
def diagonal(A: Array, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Diagonals of matrices, as a view.

    Parameters
    ----------
    A
        Array of two dimensions or more.
    offset
        0 is the main diagonal, positive numbers are above it, negative ones below.
    dim1, dim2
        The axes of the matrices.

    {returns_array}
        The other axes, then the diagonal; of A's memory (a copy for arrays of MLX, which are values, and of the other byte
        order, which is never returned).

    Raises
    ------
    BadAxis, BadValue
        An axis that is not there, or the same one twice.

    {examples}
    >>> backline.linalg.diagonal(np.arange(9.0).reshape(3, 3), offset=1)
    array([1., 5.])
    """
    return diagonal_of("linalg.diagonal", "A", given(A, "linalg.diagonal: A"), offset, (dim1, dim2))


def powers_of(where: str, x: Array, count: int) -> Array:
    """Powers 1, x, x^2, ... along a last axis, each the one before times x."""
    xp, shape = functions(x), (*x.shape, count)
    enough_memory(where, shape, dtype_of(x), f"N={count}")
    if 0 in shape:
        empty: Array = xp.zeros(shape, dtype=dtype_of(x))
        return empty
    with np.errstate(all="ignore"):
        if xp is np:
            result: Array = np.empty(shape, x.dtype)
            result[..., 0], result[..., 1:] = 1, x[..., None]
            return np.multiply.accumulate(result, axis=-1, out=result)
        found = [xp.ones_like(x)]
        while len(found) < count:
            found.append(found[-1] * x)
        stacked: Array = xp.stack(found, -1)
        return stacked


def vander_problem(op: str, x: Any, N: Any, increasing: bool = True) -> Problem | None:
    """Returns the Problem of the powers of the elements of an array; None where it is left to the function."""
    legal = N is None or type(N) is int
    if not legal or not isinstance(x, np.ndarray) or x.dtype.name not in FLOATS or not x.ndim:
        return None
    count = x.shape[-1] if N is None else N
    if count < 2:
        return None
    enough_memory(op, (*x.shape, count), x.dtype, f"N={count}")
    parameters = (("N", N), ("increasing", increasing)) if op == "vander" else (("N", N),)
    return ElementsProblem(op, (operand("x", x),), parameters, "linalg", result=(*x.shape, count))


def _vander_problem(x: Any, *, N: Any = None) -> Problem | None:
    return vander_problem("linalg.vander", x, N)


@planned(_vander_problem)
@on_its_device
def vander(
x: Array, *, N: int | None = None) -> Array:
    """Vandermonde matrices: the powers of each element, beginning with the power 0.

    Parameters
    ----------
    x
        Array (..., n) of real or complex numbers or integers; a scalar counts as one element.
    N
        Number of powers, 2 or more; None takes n.

    {returns_array}
        Shape (..., n, N); int64 for integers.

    Raises
    ------
    BadValue
        Fewer than two powers.

    {examples}
    >>> backline.linalg.vander(np.array([1.0, 2.0, 3.0]), N=3)[2]
    array([1., 3., 9.])
    """
    a = native(given(x, "linalg.vander: x"))
    dtype = dtype_of(a)
    if dtype.kind not in "iu" and dtype.name not in FLOATS:
        what = "linalg.vander supports floating point, complex, and integer tensors, but got"
        raise BadType(f"{what} {dtype}", remedy="x.astype(np.float64)")
    count = (a.shape[-1] if a.ndim else 0) if N is None else whole("linalg.vander", "N", N)
    if count <= 1:
        raise BadValue(f"linalg.vander: N must be greater than 1. It is {count}" + ("" if N is not None else ", the length of x"))
    a = cast(a, np.int64) if dtype.kind in "iu" else a
    return powers_of("linalg.vander", a if a.ndim else a[None], count)
