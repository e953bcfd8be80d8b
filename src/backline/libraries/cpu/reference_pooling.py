"""Pooling in NumPy alone, one axis of the image after the other: maximum, average, adaptive average, and their gradients.

Sums are taken in float64 and rounded once. A maximum has the bits of the element it is; a NaN in a window is its maximum. Every
function takes the Problem, then arrays named by their roles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...problems.neural import NeuralProblem

__all__ = [
    "adaptive_avg_pool", "adaptive_avg_pool_grad", "avg_pool", "avg_pool_divided", "avg_pool_divided_grad", "avg_pool_grad",
    "max_pool", "max_pool_grad",
]  # fmt: skip

Array = Any


def _new(like: Array, shape: tuple[int, ...]) -> Array:
    """An array whose axes have the order in memory that another one's have."""
    return np.empty_like(like, shape=shape, order="K", subok=False)


def _geometry(p: NeuralProblem) -> Iterator[tuple[int, int, int, int, tuple[int, int]]]:
    """Axis, kernel, stride, dilation and padding of every dimension of the images."""
    kernel = p.parameter("kernel")
    rank = len(kernel)
    dilation = p.parameter("dilation") or (1,) * rank
    first = len(p.result) - rank
    yield from zip(range(first, first + rank), kernel, p.parameter("stride"), dilation, p.parameter("padding"), strict=True)


def _padded(x: Array, axis: int, padding: tuple[int, int], value: float) -> Array:
    if not any(padding):
        return x
    shape = list(x.shape)
    shape[axis] += sum(padding)
    wide = _new(x, tuple(shape))
    wide[...] = value
    wide[_along(axis, padding[0], x.shape[axis])] = x
    return wide


def _along(axis: int, start: int, count: int, step: int = 1) -> tuple[slice, ...]:
    """Index of `count` elements along an axis."""
    return (*(slice(None),) * axis, slice(start, start + (count - 1) * step + 1, step))


# Maximum -------------------------------------------------------------------------------------------------------------


def max_pool(p: NeuralProblem, input: Array) -> Array:
    x = input
    for axis, kernel, stride, dilation, padding in _geometry(p):
        x = _padded(x, axis, padding, -math.inf)
        count = p.result[axis]
        best = x[_along(axis, 0, count, stride)].copy("K")
        for i in range(1, kernel):
            np.maximum(best, x[_along(axis, i * dilation, count, stride)], out=best)
        x = best
    result = _new(input, p.result)
    result[...] = x
    return result


def max_pool_grad(p: NeuralProblem, input: Array, grad: Array) -> Array:
    """The gradient goes to the first element that is the maximum; in a window with NaN, to its last one."""
    dims = list(_geometry(p))
    points = grad.shape[len(grad.shape) - len(dims) :]
    x, inside = input, np.ones(input.shape[len(input.shape) - len(dims) :], bool)
    for number, (axis, _, _, _, padding) in enumerate(dims):
        x = _padded(x, axis, padding, -math.inf)
        inside = np.pad(inside, [padding if i == number else (0, 0) for i in range(len(dims))])
    best = np.full(grad.shape, -np.inf, x.dtype)
    chosen = np.full(grad.shape, -1, np.int64)
    offsets = list(itertools.product(*(range(kernel) for _, kernel, _, _, _ in dims)))
    windows = [tuple(_window(o, d, n) for o, d, n in zip(offset, dims, points, strict=True)) for offset in offsets]
    for number, window in enumerate(windows):
        value = x[(Ellipsis, *window)]
        better = ((chosen < 0) | (value > best) | np.isnan(value)) & inside[window]
        np.copyto(best, value, where=better)
        chosen[better] = number
    total: Array = np.zeros(x.shape, np.float64)
    for number, window in enumerate(windows):
        total[(Ellipsis, *window)] += np.where(chosen == number, grad.astype(np.float64, copy=False), 0.0)
    for axis, _, _, _, padding in dims:
        total = total[_along(axis, padding[0], input.shape[axis])]
    return _rounded(total, input)


def _window(offset: int, dim: tuple[int, int, int, int, tuple[int, int]], count: int) -> slice:
    """Where the elements at one offset of every window lie along one axis of the padded image."""
    _, _, stride, dilation, _ = dim
    return slice(offset * dilation, offset * dilation + (count - 1) * stride + 1, stride)


# Average -------------------------------------------------------------------------------------------------------------


def _divisors(p: NeuralProblem, image: tuple[int, ...], points: tuple[int, ...]) -> Any:
    """What the sum of every window is divided by: an int, or an array that broadcasts over the images."""
    given = p.parameter("divisor")
    if given is not None:
        return given
    dims = list(_geometry(p))
    overhang = p.parameter("overhang") or (0,) * len(dims)
    divisors: Any = 1
    for i, (_, kernel, stride, _, (before, after)) in enumerate(dims):
        start = np.arange(points[i]) * stride - before
        if p.parameter("count_include_pad", True):
            counts = np.minimum(start + kernel, image[i] + after - overhang[i]) - start
        else:
            counts = np.minimum(start + kernel, image[i]) - np.maximum(start, 0)
        divisors = divisors * counts.reshape(-1, *[1] * (len(dims) - 1 - i))
    return divisors


def avg_pool(p: NeuralProblem, input: Array) -> Array:
    x = input.astype(np.float64, copy=False)
    rank = len(p.parameter("kernel"))
    for axis, kernel, stride, _, padding in _geometry(p):
        x = _padded(x, axis, padding, 0.0)
        count = p.result[axis]
        total = x[_along(axis, 0, count, stride)].copy("K")
        for i in range(1, kernel):
            total += x[_along(axis, i, count, stride)]
        x = total
    return _rounded(x / _divisors(p, input.shape[input.ndim - rank :], p.result[input.ndim - rank :]), input)


def avg_pool_grad(p: NeuralProblem, grad: Array) -> Array:
    rank = len(p.parameter("kernel"))
    image, points = p.result[grad.ndim - rank :], grad.shape[grad.ndim - rank :]
    x = grad.astype(np.float64, copy=False) / _divisors(p, image, points)
    for axis, kernel, stride, _, padding in _geometry(p):
        size = p.result[axis]
        shape = list(x.shape)
        shape[axis] = size + sum(padding)
        total = np.zeros(shape)
        for i in range(kernel):
            total[_along(axis, i, x.shape[axis], stride)] += x
        x = total[_along(axis, padding[0], size)]
    return _rounded(x, grad)


avg_pool_divided, avg_pool_divided_grad = avg_pool, avg_pool_grad


def _parts(size: int, points: int) -> list[slice]:
    """The window of every point of an adaptive pooling: they overlap where sizes do not divide."""
    return [slice(i * size // points, -(-(i + 1) * size // points)) for i in range(points)]


def adaptive_avg_pool(p: NeuralProblem, input: Array) -> Array:
    output = p.parameter("output")
    x = input.astype(np.float64, copy=False)
    for axis, points in enumerate(output, input.ndim - len(output)):
        means = [x[(*(slice(None),) * axis, part)].mean(axis) for part in _parts(input.shape[axis], points)]
        x = np.stack(means, axis)
    return _rounded(x, input)


def adaptive_avg_pool_grad(p: NeuralProblem, grad: Array) -> Array:
    output = p.parameter("output")
    x = grad.astype(np.float64, copy=False)
    for axis, points in enumerate(output, grad.ndim - len(output)):
        size = p.result[axis]
        total = np.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]))
        for i, part in enumerate(_parts(size, points)):
            total[(*(slice(None),) * axis, part)] += x[_along(axis, i, 1)] / (part.stop - part.start)
        x = total
    return _rounded(x, grad)


def _rounded(x: Array, like: Array) -> Array:
    """The float64 result in the dtype and the order of axes of an operand."""
    result = _new(like, x.shape)
    result[...] = x.astype(np.float32) if like.dtype.itemsize == 2 else x
    return result
