"""Distances between the rows of two matrices: cdist, as torch has it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _core, _kernels
from ..errors import BadType, BadValue
from ..libraries.kernels.array_loops import level_and_threads
from .array_arguments import cast, dtype_of, functions, given
from .composite import composed_of, on_its_device
from .linalg_checks import number
from .matrix_products import matmul
from .vectors import broadcast, pair

__all__ = ["cdist"]

Array = np.ndarray[Any, Any]
MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
MANY = 25  # rows of either array from which on Euclidean distances go by a product
CHUNK = 1 << 20  # differences that are held at a time


@composed_of("matmul", module="backline")
@on_its_device
def cdist(x1: Array, x2: Array, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Array:
    """p-norm distances between each row of one matrix and each row of another.

    Parameters
    ----------
    x1, x2
        Shapes (..., m, k) and (..., n, k), float32 or float64, whose batches broadcast.
    p
        Order of the norm, 0 or more: the p-th root of the sum of the p-th powers of differences; 0 counts those that are not
        zero, inf takes the largest.
    compute_mode
        Whether Euclidean distances (p = 2) are computed by a product of matrices, from squares of lengths: fast, and inaccurate
        for rows that are close together. "use_mm_for_euclid_dist" does, "donot_use_mm_for_euclid_dist" does not,
        "use_mm_for_euclid_dist_if_necessary" does where either array has more than 25 rows.

    {returns_array}
        Shape (..., m, n).

    Raises
    ------
    BadValue
        Shapes that do not fit, a negative order, an unknown mode.
    BadType
        Not arrays of real floating-point numbers of one dtype.

    {examples}
    >>> backline.cdist(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0]]))
    array([[0.],
           [5.]])
    """
    for name, value in (("X1", x1), ("X2", x2)):
        a = given(value, f"cdist: {name.lower()}")
        if dtype_of(a).name not in ("float32", "float64"):
            raise BadType(
                f"cdist only supports floating-point dtypes, {name} got: {dtype_of(a)}", cause="it takes float32 and float64",
                remedy="x.astype(np.float32)",
            )  # fmt: skip
        if a.ndim < 2:
            raise BadValue(f"cdist only supports at least 2D tensors, {name} got: {a.ndim}D", remedy="x[None]")
    a, b = pair("cdist", ("x1", "x2"), x1, x2)
    if a.shape[-1] != b.shape[-1]:
        raise BadValue(f"cdist: X1 and X2 must have the same number of columns. X1: {a.shape[-1]} X2: {b.shape[-1]}")
    order = number("cdist", "p", p)
    if not order >= 0:
        raise BadValue(f"cdist only supports non-negative p values. p is {p!r}")
    if not isinstance(compute_mode, str) or compute_mode not in MODES:
        remedy = f"one of: {', '.join(map(repr, MODES))}"
        raise BadValue(f"cdist: {compute_mode!r} is not a valid value for compute_mode", remedy=remedy)
    batch = broadcast("cdist", ("x1", "x2"), tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    m, n, k = a.shape[-2], b.shape[-2], a.shape[-1]
    xp = functions(a)
    if 0 in (*batch, m, n, k):
        result: Array = xp.zeros((*batch, m, n), dtype=dtype_of(a))
        return result
    product = order == 2 and (compute_mode == MODES[1] or (compute_mode == MODES[0] and (m > MANY or n > MANY)))
    with np.errstate(all="ignore"):
        if product:
            result = _by_product(xp, a, b)
        elif xp is not np:
            result = _norm(xp, a[..., :, None, :], b[..., None, :, :], order)
        else:
            result = _by_rows(a, b, (*batch, m, n), order)
    return result


def _by_product(xp: Any, a: Array, b: Array) -> Any:
    """Roots of |a|^2 - 2 a b + |b|^2, all three of them in one product."""
    ones = [xp.ones_like(each[..., :1]) for each in (a, b)]
    squares = [xp.sum(each * each, axis=-1, keepdims=True) for each in (a, b)]
    left = xp.concatenate([a * -2, squares[0], ones[0]], axis=-1)
    right = xp.concatenate([b, ones[1], squares[1]], axis=-1)
    product = matmul(left, xp.swapaxes(right, -1, -2))
    if xp is np and product.flags.c_contiguous:
        _kernels.clipped_roots(product, *level_and_threads(product.size))
        return product
    return xp.sqrt(xp.maximum(product, 0))


def _by_rows(a: Array, b: Array, shape: tuple[int, ...], order: float) -> Array:
    """A few rows at a time, so that their differences lie in the processor's cache."""
    result = _core.empty(shape, a.dtype)
    flat = result.reshape(-1, *shape[-2:])
    one = np.broadcast_to(a, (*shape[:-2], *a.shape[-2:])).reshape(-1, *a.shape[-2:])
    other = np.broadcast_to(b, (*shape[:-2], *b.shape[-2:])).reshape(-1, *b.shape[-2:])
    step = max(CHUNK // math.prod(b.shape[-2:]), 1)
    for target, x, y in zip(flat, one, other, strict=True):
        for first in range(0, len(x), step):
            target[first : first + step] = _norm(np, x[first : first + step, None, :], y[None], order)
    return result


def _norm(xp: Any, x: Array, y: Array, order: float) -> Any:
    size = xp.abs(x - y)
    if order == 0:
        return cast(xp.sum(size != 0, axis=-1), dtype_of(size))
    if order == 1:
        return xp.sum(size, axis=-1)
    if order == 2:
        return xp.sqrt(xp.sum(size * size, axis=-1))
    if math.isinf(order):
        return xp.max(size, axis=-1)
    return xp.sum(size**order, axis=-1) ** (1 / order)
