"""Softmax, normalisation and pooling, with their gradients, for arrays of any `Space`.

Whole arrays in the dtype they are computed in: who calls divides them into blocks, widens halves before and rounds after. Nothing
looks at a value, so nothing waits for a device; nothing is added up in any order but one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...problems.neural_problem import NeuralProblem
from .array_namespaces import Space, count

__all__ = [
    "adaptive_avg_pool", "adaptive_avg_pool_grad", "avg_pool", "avg_pool_grad", "divisors", "geometry", "keep_divisor", "least",
    "log_softmax", "log_softmax_grad", "max_pool", "max_pool_grad", "moments", "norm_grad", "normalised", "parts",
    "rms_normalised", "softmax", "softmax_grad",
]  # fmt: skip

Array = Any
Axes = tuple[int, ...]


# Softmax -------------------------------------------------------------------------------------------------------------


def softmax(f: Space, x: Array, axis: int) -> Array:
    e = f.piece("shifted_exp", x, f.max(x, axis))
    return f.piece("divided", e, f.sum(e, (axis,)))


def log_softmax(f: Space, x: Array, axis: int) -> Array:
    m = f.max(x, axis)
    return f.piece("less", x, m, f.xp.log(f.sum(f.piece("shifted_exp", x, m), (axis,))))


def softmax_grad(f: Space, y: Array, g: Array, axis: int) -> Array:
    return f.piece("softmax_moved", y, g, f.sum(f.piece("times", y, g), (axis,)))


def log_softmax_grad(f: Space, y: Array, g: Array, axis: int) -> Array:
    return f.piece("log_softmax_moved", y, g, f.sum(g, (axis,)))


# Normalisation -------------------------------------------------------------------------------------------------------


def moments(f: Space, x: Array, axes: Axes) -> tuple[Array, Array]:
    """Mean and biased variance, taken in two passes; their axes stay with size 1."""
    n = max(count(tuple(x.shape), axes), 1)
    mean = f.sum(x, axes) / n
    return mean, f.sum(f.piece("squared", x, mean), axes) / n


def normalised(f: Space, x: Array, mean: Array, inverse: Array, weight: Array | None, bias: Array | None) -> Array:
    """``(x - mean) * inverse * weight + bias``."""
    if weight is None and bias is None:
        return f.piece("normalised", x, mean, inverse)
    weight = f.xp.ones_like(bias) if weight is None else weight
    bias = f.xp.zeros_like(weight) if bias is None else bias
    return f.piece("scaled", x, mean, inverse, weight, bias)


def rms_normalised(f: Space, x: Array, axes: Axes, eps: float, weight: Array | None) -> Array:
    """The elements divided by the root of the mean of their squares along axes, times `weight`."""
    n = max(count(tuple(x.shape), axes), 1)
    y = f.piece("times", x, 1 / f.xp.sqrt(f.sum(f.piece("times", x, x), axes) / n + eps))
    return y if weight is None else f.piece("times", y, weight)


def norm_grad(
    f: Space, x: Array, g: Array, weight: Array | None, axes: Axes, summed: Axes, eps: float
) -> tuple[Array, Array, Array]:
    """Gradients of input, weight and bias, where `axes` are averaged over and the parameters are repeated along `summed`.

    `weight` broadcasts against `x`; the gradients of the parameters keep the axes that are summed over, with size 1.
    """
    n = max(count(tuple(x.shape), axes), 1)
    mean, variance = moments(f, x, axes)
    inverse = 1 / f.xp.sqrt(variance + eps)
    y = f.piece("normalised", x, mean, inverse)
    by_weight, by_bias = f.sum(f.piece("times", g, y), summed), f.sum(g, summed)
    h = g if weight is None else f.piece("times", g, weight)
    first, second = f.sum(h, axes) / n, f.sum(f.piece("times", h, y), axes) / n
    return f.piece("norm_moved", y, h, inverse, first, second), by_weight, by_bias


# Pooling -------------------------------------------------------------------------------------------------------------


def geometry(p: NeuralProblem) -> Iterator[tuple[int, int, int, int, tuple[int, int]]]:
    """Axis, kernel, stride, dilation and padding of every dimension of the images."""
    kernel = p.parameter("kernel")
    rank = len(kernel)
    dilation = p.parameter("dilation") or (1,) * rank
    first = len(p.result) - rank
    yield from zip(range(first, first + rank), kernel, p.parameter("stride"), dilation, p.parameter("padding"), strict=True)


def _along(axis: int, start: int, number: int, step: int = 1) -> tuple[slice, ...]:
    """Index of a number of elements along an axis."""
    return (*(slice(None),) * axis, slice(start, start + (number - 1) * step + 1, step))


def _padded(f: Space, x: Array, axis: int, padding: tuple[int, int], value: float) -> Array:
    if not any(padding):
        return x
    return f.xp.pad(x, [padding if i == axis else (0, 0) for i in range(x.ndim)], constant_values=value)


def _joined(f: Space, function: Any, windows: Iterator[Array]) -> Array:
    """Reduces several arrays by a function of two, without more memory than for the result where arrays can be written to."""
    made, own = next(windows), False
    for x in windows:
        made = function(made, x, out=made) if own and f.writes else function(made, x)
        own = True
    return made


def least(dtype: np.dtype[Any]) -> float:
    """The number below which a dtype has none."""
    return int(np.iinfo(dtype).min) if dtype.kind in "iu" else -math.inf


def max_pool(f: Space, p: NeuralProblem, x: Array) -> Array:
    for axis, kernel, stride, dilation, padding in geometry(p):
        x = _padded(f, x, axis, padding, least(p.dtype))
        x = _joined(f, f.xp.maximum, (x[_along(axis, i * dilation, p.result[axis], stride)] for i in range(kernel)))
    return x


def max_pool_grad(f: Space, p: NeuralProblem, x: Array, g: Array) -> Array:
    """The gradient goes to the first element that is the maximum; in a window with NaN, to its last one."""
    dims, shape = list(geometry(p)), tuple(g.shape)
    image, points = tuple(x.shape)[x.ndim - len(dims) :], shape[g.ndim - len(dims) :]
    offsets = itertools.product(*(range(kernel) for _, kernel, _, _, _ in dims))
    windows = [[_reached(*each) for each in zip(offset, dims, image, points, strict=True)] for offset in offsets]
    best, chosen = f.xp.full(shape, -math.inf, dtype=x.dtype), f.full(shape, -1, np.dtype(np.int32))
    places = []  # number of an element of the windows, where it is for those that have it inside the image, and which these are
    for number, window in enumerate(windows):
        if any(part.start >= part.stop for _, part in window):
            continue
        inside, part = ((Ellipsis, *(pair[i] for pair in window)) for i in (0, 1))
        value, before, which = x[inside], best[part], chosen[part]
        better = (which < 0) | (value > before) | f.xp.isnan(value)
        best = f.put(best, part, f.xp.where(better, value, before))
        chosen = f.put(chosen, part, f.xp.where(better, number, which))
        places.append((number, inside, part))
    total = f.xp.zeros(tuple(x.shape), dtype=g.dtype)
    for number, inside, part in places:
        f.add_to(total, inside, f.xp.where(chosen[part] == number, g[part], 0))
    return total


def _reached(offset: int, dim: tuple[int, int, int, int, tuple[int, int]], size: int, points: int) -> tuple[slice, slice]:
    """Along one axis, the elements of the image at one offset of the windows, and the points whose windows have one there."""
    _, _, stride, dilation, (padding, _) = dim
    at = offset * dilation - padding  # of the first window's
    first, end = max(-(at // stride), 0), min((size - 1 - at) // stride + 1, points)
    start = at + first * stride
    return slice(start, start + (end - first - 1) * stride + 1, stride), slice(first, end)


def divisors(p: NeuralProblem, image: tuple[int, ...], points: tuple[int, ...]) -> Any:
    """Returns the divisors of the sums of all windows: an int, or a NumPy array that broadcasts over the images."""
    given = p.parameter("divisor")
    if given is not None:
        return given
    dims = list(geometry(p))
    overhang = p.parameter("overhang") or (0,) * len(dims)
    found: Any = 1
    for i, (_, kernel, stride, _, (before, after)) in enumerate(dims):
        start = np.arange(points[i]) * stride - before
        if p.parameter("count_include_pad", True):
            counts = np.minimum(start + kernel, image[i] + after - overhang[i]) - start
        else:
            counts = np.minimum(start + kernel, image[i]) - np.maximum(start, 0)
        found = found * counts.reshape(-1, *[1] * (len(dims) - 1 - i))
    return found


def _divisor(f: Space, p: NeuralProblem, image: tuple[int, ...], points: tuple[int, ...], dtype: Any) -> Any:
    """Returns the `divisors` for arrays of a dtype of the Space: a number where all are equal."""
    by = np.asarray(divisors(p, image, points))
    if by.size == 0 or (by == by.flat[0]).all():
        return float(by.flat[0]) if by.size else 1.0
    return f.xp.array(by.astype(np.float64), dtype=dtype)


def keep_divisor(f: Space, p: NeuralProblem, dtype: Any) -> None:
    """Have the Space, which is of this Problem alone, keep what its averages are divided by."""
    rank = len(p.parameter("kernel"))
    given = p.get("input")
    other = (given if given is not None else p.operands[p.index("grad") or 0]).shape[-rank:]
    image, points = (other, p.result[-rank:]) if given is not None else (p.result[-rank:], other)
    f.keep("divisor", lambda: _divisor(f, p, image, points, dtype))


def avg_pool(f: Space, p: NeuralProblem, x: Array) -> Array:
    rank = len(p.parameter("kernel"))
    image, points, dtype = tuple(x.shape)[x.ndim - rank :], p.result[x.ndim - rank :], x.dtype
    for axis, kernel, stride, _, padding in geometry(p):
        x = _padded(f, x, axis, padding, 0.0)
        x = _joined(f, f.xp.add, (x[_along(axis, i, p.result[axis], stride)] for i in range(kernel)))
    return x / f.keep("divisor", lambda: _divisor(f, p, image, points, dtype))


def avg_pool_grad(f: Space, p: NeuralProblem, g: Array) -> Array:
    rank = len(p.parameter("kernel"))
    image, points = p.result[g.ndim - rank :], tuple(g.shape)[g.ndim - rank :]
    x = g / f.keep("divisor", lambda: _divisor(f, p, image, points, g.dtype))
    for axis, kernel, stride, _, padding in geometry(p):
        size, shape = p.result[axis], list(x.shape)
        shape[axis] = size + sum(padding)
        total = f.xp.zeros(tuple(shape), dtype=x.dtype)
        for i in range(kernel):
            f.add_to(total, _along(axis, i, x.shape[axis], stride), x)
        x = total[_along(axis, padding[0], size)]
    return x


def parts(size: int, points: int) -> list[slice]:
    """The window of every point of an adaptive pooling: they overlap where sizes do not divide."""
    return [slice(i * size // points, -(-(i + 1) * size // points)) for i in range(points)]


def adaptive_avg_pool(f: Space, p: NeuralProblem, x: Array) -> Array:
    output = p.parameter("output")
    for axis, points in enumerate(output, x.ndim - len(output)):
        whole = (slice(None),) * axis
        means = [f.sum(x[(*whole, part)], (axis,)) / (part.stop - part.start) for part in parts(x.shape[axis], points)]
        x = f.xp.concatenate(means, axis=axis)
    return x


def adaptive_avg_pool_grad(f: Space, p: NeuralProblem, g: Array) -> Array:
    output = p.parameter("output")
    x = g
    for axis, points in enumerate(output, g.ndim - len(output)):
        size = p.result[axis]
        total = f.xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), dtype=x.dtype)
        for i, part in enumerate(parts(size, points)):
            f.add_to(total, (*(slice(None),) * axis, part), x[_along(axis, i, 1)] / (part.stop - part.start))
        x = total
    return x
