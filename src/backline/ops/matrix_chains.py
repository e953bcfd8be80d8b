"""Made of matrix products: chains in the cheapest order, and sums over several axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Problem, operand
from ..problems.contraction_planner import chain_path
from ..problems.linalg_problem import LinalgProblem
from ..switches.switch import show
from .array_arguments import cast, check_out, dtype_of, functions, given, into, one_kind
from .axes import axes_of, whole_axes
from .composite import composed_of, natively, on_its_device
from .linalg_checks import is_matrix
from .matrix_products import matmul, mm
from .matrix_views import product_along
from .planned import planned
from .vectors import same_numbers

__all__ = ["chain_matmul", "multi_dot", "tensordot"]

Array = np.ndarray[Any, Any]


CHAIN_SIZE, CHAIN = 64, 6  # matrices so small, and so many of them at most, are multiplied in one plan


def _chain_problem(tensors: Any) -> Problem | None:
    if type(tensors) not in (tuple, list) or not 3 <= len(tensors) <= CHAIN:
        return None
    first = tensors[0]
    for a in tensors:
        if not is_matrix(a) or a.ndim != 2 or a.dtype != first.dtype or max(a.shape) > CHAIN_SIZE:
            return None
    if any(a.shape[1] != b.shape[0] for a, b in itertools.pairwise(tensors)):
        return None
    operands = tuple(operand("a" if i == 0 else f"a{i}", a) for i, a in enumerate(tensors))
    m, n, k = first.shape[0], tensors[-1].shape[1], first.shape[1]
    return LinalgProblem("linalg.multi_dot", operands, (), "linalg", m=m, n=n, k=k, batch=())


def _chain_flops(m: int, n: int, k: int) -> float:
    return 4.0 * m * n * k


@planned(_chain_problem, "matmul", lists=("tensors",), flops=_chain_flops)
@on_its_device
def multi_dot(tensors: Sequence[Array], *, out: Array | None = None) -> Array:
    """Product of two or more matrices in the order that takes the fewest operations.

    Parameters
    ----------
    tensors
        Matrices; the first and the last may be vectors.
    {out_of_shape}

    {returns_array}
        The product.

    Raises
    ------
    BadValue
        Fewer than two arrays, or shapes that do not fit.

    Notes
    -----
    The order is found by dynamic programming (Cormen et al., Introduction to Algorithms, section 15.2).

    {examples}
    >>> backline.linalg.multi_dot([np.ones((2, 50)), np.ones((50, 3)), np.ones((3, 4))]).shape
    (2, 4)
    """
    try:
        arrays = list(tensors)
    except TypeError:
        raise BadType(f"multi_dot: tensors is {type(tensors).__name__}", remedy="a list or tuple of arrays") from None
    if len(arrays) < 2:
        cause = f"expected at least 2 tensors but got {len(arrays)}"
        raise BadValue(f"multi_dot takes two arrays or more, {len(arrays)} given", cause=cause)
    for i, a in enumerate(arrays):
        given(a, f"multi_dot: array {i}")
        ends = i in (0, len(arrays) - 1)
        if a.ndim != 2 and not (ends and a.ndim == 1):
            which = "the first tensor" if i == 0 else "the last tensor" if ends else f"tensor {i}"
            raise BadValue(
                f"multi_dot: array {i} has shape {a.shape}",
                cause=f"{which} must be {'1D or 2D' if ends else '2D'} but got {a.ndim}D",
                remedy="matrices; the first and last may be vectors",
            )  # fmt: skip
    for i, (a, b) in enumerate(itertools.pairwise(arrays)):
        if a.dtype != b.dtype:
            raise BadType(
                f"multi_dot: array {i} has dtype {dtype_of(a)}, array {i + 1} {dtype_of(b)}",
                cause="all tensors must have be the same dtype",
                remedy=f"x.astype(np.{dtype_of(a).name})",
            )
        if a.shape[-1] != b.shape[0]:
            raise BadValue(
                f"multi_dot: tensors {i} and {i + 1} with shapes {list(a.shape)} and {list(b.shape)} cannot be multiplied",
                cause=f"{a.shape[-1]} columns on the left, {b.shape[0]} rows on the right",
            )
    sizes = [1 if arrays[0].ndim == 1 else arrays[0].shape[0]]
    sizes += [a.shape[0] for a in arrays[1:]]
    sizes.append(1 if arrays[-1].ndim == 1 else arrays[-1].shape[1])
    parts = list(enumerate(arrays))  # partial products, each with the place of its first matrix in the chain
    *path, last = chain_path(tuple(sizes))
    for step in path:
        left, right = (parts[i] for i in step)
        parts = [part for part in parts if part is not left and part is not right]
        parts.append((left[0], matmul(left[1], right[1])))
    left, right = (parts[i] for i in last)
    return matmul(left[1], right[1]) if out is None else matmul(left[1], right[1], out=out)


@composed_of("matmul", module="backline")
@on_its_device
@natively
def chain_matmul(*matrices: Array, out: Array | None = None) -> Array:
    """Product of matrices in the order that takes the fewest operations; `linalg.multi_dot` with separate arguments.

    Parameters
    ----------
    *matrices
        Two matrices or more.
    {out_of_shape}

    {returns_array}
        The product.

    {examples}
    >>> backline.chain_matmul(np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 1))).shape
    (2, 1)
    """
    for i, a in enumerate(matrices):
        given(a, f"chain_matmul: array {i}")
        if a.ndim != 2:
            raise BadValue(f"chain_matmul: array {i} must have 2 dimensions, it has shape {a.shape}")
    if not matrices:
        raise BadValue("chain_matmul(): Expected one or more matrices, and there are none")
    if len(matrices) == 1:
        return into(out, "chain_matmul", matrices[0])
    return multi_dot(matrices, out=out)


def _spread(a: Array, b: Array, summed: tuple[list[int], list[int]]) -> tuple[Array, Array]:
    """Sum an array over those of its axes that meet an axis of size 1, which stands for as many equal elements."""
    alone: tuple[list[int], list[int]] = [], []
    for i, j in zip(*summed, strict=True):
        if a.shape[i] == b.shape[j]:
            continue
        if 1 not in (a.shape[i], b.shape[j]):
            raise BadValue(
                f"tensordot: contracted dimensions need to match, but first has size {a.shape[i]} in dim {i} and second has size"
                f" {b.shape[j]} in dim {j}",
                cause=f"shapes are {tuple(a.shape)} and {tuple(b.shape)}; only a size of 1 is spread",
            )
        alone[0 if b.shape[j] == 1 else 1].append(i if b.shape[j] == 1 else j)
    if not any(alone):
        return a, b
    return _total(a, alone[0]), _total(b, alone[1])


def _total(array: Array, axes: list[int]) -> Array:
    if not axes:
        return array
    kind = dtype_of(array)
    half = kind.itemsize == 2 and kind.kind in "fV"
    with np.errstate(all="ignore"):  # as BLAS: what is not finite shows in the result
        wide = cast(array, np.float32) if half else array
        return cast(functions(array).sum(wide, axis=tuple(axes), keepdims=True), kind)


def _tensordot_problem(a: Any, b: Any, dims: Any = 2, *, axes: Any = None) -> Problem | None:
    dims = dims if axes is None else axes if type(dims) is int and dims == 2 else None
    if not same_numbers(a, b):
        return None
    if type(dims) is int and 0 <= dims <= min(a.ndim, b.ndim):
        summed = tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    elif type(dims) is tuple and len(dims) == 2:
        found = whole_axes(a.ndim, dims[0]), whole_axes(b.ndim, dims[1])
        if found[0] is None or found[1] is None or len(found[0]) != len(found[1]):
            return None
        summed = found[0], found[1]
    else:
        return None
    if any(a.shape[i] != b.shape[j] for i, j in zip(*summed, strict=True)):
        return None
    return product_along(a, b, *summed)


@planned(_tensordot_problem, "matmul", module="backline", family="matmul")
@on_its_device
def tensordot(
    a: Array, b: Array, dims: int | tuple[Sequence[int], Sequence[int]] = 2, out: Array | None = None, *,
    axes: int | tuple[Sequence[int], Sequence[int]] | None = None,
) -> Array:  # fmt: skip
    """Sum of products over several axes.

    Parameters
    ----------
    a, b
        Arrays of one dtype.
    dims
        Number of axes, the last of `a` and the first of `b`; or the axes of each. An axis of size 1 goes with one of any size.
    {out_of_shape}
    axes
        NumPy's name of `dims`.

    {returns_array}
        The other axes of `a`, then those of `b`.

    Raises
    ------
    BadValue
        Axes that are not there, repeat, or differ in size.

    Notes
    -----
    Axes are moved by views; a copy is made only where a view cannot be reshaped to a matrix. With `axes` and `einsum`, opt_einsum
    runs on this package: ``opt_einsum.contract(..., backend="backline")``.

    {examples}
    >>> backline.tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5)), dims=2).shape
    (2, 5)
    """
    given(a, "tensordot: a")
    given(b, "tensordot: b")
    one_kind("tensordot", a=a, b=b, out=out)
    if axes is not None:
        if not (isinstance(dims, int) and dims == 2):
            raise BadValue(f"tensordot: dims={show(dims)} and axes={show(axes)}", cause="they are two names of one thing")
        dims = axes
    if isinstance(dims, (int, np.integer)) and not isinstance(dims, bool):
        if dims < 0:
            raise BadValue(f"tensordot expects dims >= 0, but got dims={show(dims)}")
        if dims > min(a.ndim, b.ndim):
            raise BadValue(
                f"tensordot expects dims < ndim_a or ndim_b, but got dims={show(dims)}",
                cause=f"a has {a.ndim} dimensions, b {b.ndim}"
            )
        summed = list(range(a.ndim - int(dims), a.ndim)), list(range(int(dims)))
    else:
        if not isinstance(dims, (tuple, list)) or len(dims) != 2 or not all(isinstance(d, (tuple, list)) for d in dims):
            raise BadType(f"tensordot: dims={show(dims)}", remedy="a number of axes, or a pair of lists of axes")
        summed = (
            list(axes_of("tensordot", "dims[0]", tuple(dims[0]), a.shape, "a")),
            list(axes_of("tensordot", "dims[1]", tuple(dims[1]), b.shape, "b")),
        )
    if len(summed[0]) != len(summed[1]):
        lengths = f"{len(summed[0])} and {len(summed[1])}"
        raise BadValue(f"tensordot: both dimension lists should have same length, they have {lengths}")
    a, b = _spread(a, b, summed)
    sizes = [a.shape[i] for i in summed[0]]
    free = [i for i in range(a.ndim) if i not in summed[0]], [i for i in range(b.ndim) if i not in summed[1]]
    shape = (*(a.shape[i] for i in free[0]), *(b.shape[i] for i in free[1]))
    inner = math.prod(sizes)
    rows = math.prod([a.shape[i] for i in free[0]])
    cols = math.prod([b.shape[i] for i in free[1]])
    left = a.transpose(*free[0], *summed[0]).reshape(rows, inner)
    right = b.transpose(*summed[1], *free[1]).reshape(inner, cols)
    if out is None:
        return mm(left, right).reshape(shape)
    if not isinstance(out, np.ndarray):
        return into(out, "tensordot", mm(left, right).reshape(shape))
    check_out(out, "tensordot: out", shape, a.dtype)
    target = out.reshape(rows, cols)
    if np.shares_memory(target, out):
        mm(left, right, out=target)
    else:
        out[...] = mm(left, right).reshape(shape)
    return out
