"""Pooling in NumPy alone, one axis of the image after the other: maximum, average, adaptive average, and their gradients.

Sums are taken in float64 and rounded once. A maximum has the bits of the element it is; a NaN in a window is its maximum. Every
function takes the Problem, then arrays named by their roles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...problems.neural_problem import NeuralProblem
from . import formulas
from .array_namespaces import NUMPY

__all__ = [
    "adaptive_avg_pool", "adaptive_avg_pool_grad", "avg_pool", "avg_pool_divided", "avg_pool_divided_grad", "avg_pool_grad",
    "max_pool", "max_pool_grad", "max_pool_indices",
]  # fmt: skip

Array = Any


def max_pool(p: NeuralProblem, input: Array) -> Array:
    x = formulas.max_pool(NUMPY, p, input)
    result = np.empty_like(input, shape=x.shape, order="K", subok=False)
    result[...] = x
    return result


def max_pool_indices(p: NeuralProblem, input: Array) -> tuple[Array, Array]:
    dims = list(formulas.geometry(p))
    rank = len(dims)
    image, shape = input.shape[input.ndim - rank :], p.result
    steps = [math.prod(image[i + 1 :]) for i in range(rank)]
    best = np.empty_like(input, shape=shape, order="K", subok=False)
    best[...] = formulas.least(p.dtype)
    # A window starts with the first of its elements that is in the image, and an element beats it if it is larger or NaN.
    taps = [[np.arange(shape[axis]) * s - before + i * d for i in range(k)] for axis, k, s, d, (before, _) in dims]
    first = [np.where(at[0] < 0, at[0] % d, at[0]) for at, (_, _, _, d, _) in zip(taps, dims, strict=True)]
    where = np.empty_like(best, dtype=np.int64)
    where[...] = _flat(first, steps)
    for window in itertools.product(*taps):
        inside = [np.flatnonzero((at >= 0) & (at < n)) for at, n in zip(window, image, strict=True)]
        if not all(map(len, inside)):
            continue
        part: Any = (..., *(slice(at[0], at[-1] + 1) for at in inside))  # those inside are neighbours
        there = [at[points] for at, points in zip(window, inside, strict=True)]
        x = input[(..., *(slice(at[0], at[-1] + 1, s) for at, (_, _, s, _, _) in zip(there, dims, strict=True)))]
        better = (x > best[part]) | (x != x)
        np.copyto(best[part], x, where=better)
        np.copyto(where[part], np.broadcast_to(_flat(there, steps), x.shape), where=better)
    return best, where


def _flat(places: list[Array], steps: list[int]) -> Array:
    """Places in a flat image, of places along each of its axes."""
    found: Array = 0
    for at, step in zip(places, steps, strict=True):
        found = np.expand_dims(found, -1) + at * step
    return found


def max_pool_grad(p: NeuralProblem, input: Array, grad: Array) -> Array:
    return _rounded(formulas.max_pool_grad(NUMPY, p, input, grad.astype(np.float64, copy=False)), input)


def _rounded(x: Array, like: Array) -> Array:
    """The float64 result in the dtype and the order of axes of an operand."""
    result = np.empty_like(like, shape=x.shape, order="K", subok=False)
    result[...] = x.astype(np.float32) if like.dtype.itemsize == 2 else x
    return result


def _in_float64(compute: Callable[..., Array]) -> Callable[..., Array]:
    def run(p: NeuralProblem, **given: Array) -> Array:
        ((_, x),) = given.items()
        return _rounded(compute(NUMPY, p, x.astype(np.float64, copy=False)), x)

    return run


avg_pool = avg_pool_divided = _in_float64(formulas.avg_pool)
avg_pool_grad = avg_pool_divided_grad = _in_float64(formulas.avg_pool_grad)
adaptive_avg_pool = _in_float64(formulas.adaptive_avg_pool)
adaptive_avg_pool_grad = _in_float64(formulas.adaptive_avg_pool_grad)
