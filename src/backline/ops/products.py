"""Made of matrix products: chains in the cheapest order, and sums over several axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from .axes import axes_of
from .bind import check_out, composed_of
from .kinds import given, into, on_its_device, one_kind
from .matmul import matmul, mm

__all__ = ["chain_matmul", "multi_dot", "tensordot"]

Array = np.ndarray[Any, Any]


@composed_of("matmul")
@on_its_device
def multi_dot(tensors: Sequence[Array], *, out: Array | None = None) -> Array:
    """Product of two or more matrices in the order that takes the fewest operations.

    Parameters
    ----------
    tensors
        Matrices; the first and the last may be vectors.
    out
        Array of the result's shape.

    Returns
    -------
    ndarray
        The product.

    Raises
    ------
    BadValue
        Fewer than two arrays, or shapes that do not fit.

    Notes
    -----
    The order is found by dynamic programming (Cormen et al., Introduction to Algorithms, section 15.2).

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.multi_dot([np.ones((2, 50)), np.ones((50, 3)), np.ones((3, 4))]).shape
    (2, 4)
    """
    try:
        arrays = list(tensors)
    except TypeError:
        raise BadType(f"multi_dot: tensors is {type(tensors).__name__}", remedy="a list or tuple of arrays") from None
    if len(arrays) < 2:
        raise BadValue(f"multi_dot takes two arrays or more, {len(arrays)} given")
    for i, a in enumerate(arrays):
        given(a, f"multi_dot: array {i}")
        ends = i in (0, len(arrays) - 1)
        if a.ndim != 2 and not (ends and a.ndim == 1):
            raise BadValue(f"multi_dot: array {i} has shape {a.shape}", remedy="matrices; the first and last may be vectors")
    sizes = [1 if arrays[0].ndim == 1 else arrays[0].shape[0]]
    sizes += [a.shape[0] for a in arrays[1:]]
    sizes.append(1 if arrays[-1].ndim == 1 else arrays[-1].shape[1])
    split = _best_splits(sizes)

    def product(i: int, j: int, out: Array | None = None) -> Array:
        if i == j:
            return arrays[i]
        s = split[i, j]
        left, right = product(i, s), product(s + 1, j)
        result: Array = matmul(left, right) if out is None else matmul(left, right, out=out)
        return result

    return product(0, len(arrays) - 1, out)


def _best_splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    n = len(sizes) - 1
    cost = {(i, i): 0 for i in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            costs = {
                s: cost[i, s] + cost[s + 1, j] + sizes[i] * sizes[s + 1] * sizes[j + 1] for s in range(i, j)
            }
            split[i, j] = min(costs, key=lambda s: costs[s])
            cost[i, j] = costs[split[i, j]]
    return split


@composed_of("matmul", module="backline")
@on_its_device
def chain_matmul(*matrices: Array, out: Array | None = None) -> Array:
    """Product of matrices in the order that takes the fewest operations; `linalg.multi_dot` with separate arguments.

    Parameters
    ----------
    *matrices
        Two matrices or more.
    out
        Array of the result's shape.

    Returns
    -------
    ndarray
        The product.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.chain_matmul(np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 1))).shape
    (2, 1)
    """
    for i, a in enumerate(matrices):
        given(a, f"chain_matmul: array {i}")
        if a.ndim != 2:
            raise BadValue(f"chain_matmul: array {i} must have 2 dimensions, it has shape {a.shape}")
    if len(matrices) == 1:
        alone: Array = into(out, "chain_matmul", matrices[0])
        return alone
    result: Array = multi_dot(matrices, out=out)
    return result


@composed_of("matmul", module="backline")
@on_its_device
def tensordot(
    a: Array,
    b: Array,
    dims: int | tuple[Sequence[int], Sequence[int]] = 2,
    out: Array | None = None,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] | None = None,
) -> Array:
    """Sum of products over several axes.

    Parameters
    ----------
    a, b
        Arrays of one dtype.
    dims
        Number of axes, the last of `a` and the first of `b`; or the axes of each.
    out
        Array of the result's shape.
    axes
        NumPy's name of `dims`.

    Returns
    -------
    ndarray
        The other axes of `a`, then those of `b`.

    Raises
    ------
    BadValue
        Axes that are not there, repeat, or differ in size.

    Notes
    -----
    Axes are moved by views; a copy is made only where a view cannot be reshaped to a matrix. With `axes` and `einsum`, opt_einsum
    runs on this package: ``opt_einsum.contract(..., backend="backline")``.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5)), dims=2).shape
    (2, 5)
    """
    given(a, "tensordot: a")
    given(b, "tensordot: b")
    one_kind("tensordot", a=a, b=b, out=out)
    if axes is not None:
        if dims != 2:
            raise BadValue(f"tensordot: dims={dims!r} and axes={axes!r}", cause="they are two names of one thing")
        dims = axes
    if isinstance(dims, (int, np.integer)):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise BadValue(f"tensordot: dims={dims} for arrays of {a.ndim} and {b.ndim} dimensions")
        summed = list(range(a.ndim - int(dims), a.ndim)), list(range(int(dims)))
    else:
        if not isinstance(dims, (tuple, list)) or len(dims) != 2 or not all(isinstance(d, (tuple, list)) for d in dims):
            raise BadType(f"tensordot: dims={dims!r}", remedy="a number of axes, or a pair of lists of axes")
        summed = (
            list(axes_of("tensordot", "dims[0]", tuple(dims[0]), a.shape, "a")),
            list(axes_of("tensordot", "dims[1]", tuple(dims[1]), b.shape, "b")),
        )
    sizes = [a.shape[i] for i in summed[0]], [b.shape[i] for i in summed[1]]
    if sizes[0] != sizes[1]:
        raise BadValue(f"tensordot: axes {summed[0]} of a have sizes {sizes[0]}, axes {summed[1]} of b have {sizes[1]}")
    free = [i for i in range(a.ndim) if i not in summed[0]], [i for i in range(b.ndim) if i not in summed[1]]
    shape = (*(a.shape[i] for i in free[0]), *(b.shape[i] for i in free[1]))
    inner = math.prod(sizes[0])
    rows = math.prod([a.shape[i] for i in free[0]])
    cols = math.prod([b.shape[i] for i in free[1]])
    left = a.transpose(*free[0], *summed[0]).reshape(rows, inner)
    right = b.transpose(*summed[1], *free[1]).reshape(inner, cols)
    if out is None:
        result: Array = mm(left, right).reshape(shape)
        return result
    if not isinstance(out, np.ndarray):
        of_device: Array = into(out, "tensordot", mm(left, right).reshape(shape))
        return of_device
    check_out(out, "tensordot: out", shape, a.dtype)
    target = out.reshape(rows, cols)
    if np.shares_memory(target, out):
        mm(left, right, out=target)
    else:
        out[...] = mm(left, right).reshape(shape)
    return out
