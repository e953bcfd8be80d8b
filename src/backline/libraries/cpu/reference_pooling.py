"""Pooling in NumPy alone, one axis of the image after the other: maximum, average, adaptive average, and their gradients.

Sums are taken in float64 and rounded once. A maximum has the bits of the element it is; a NaN in a window is its maximum. Every
function takes the Problem, then arrays named by their roles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...problems.neural import NeuralProblem
from .. import formulas
from ..spaces import NUMPY

__all__ = [
    "adaptive_avg_pool", "adaptive_avg_pool_grad", "avg_pool", "avg_pool_divided", "avg_pool_divided_grad", "avg_pool_grad",
    "max_pool", "max_pool_grad",
]  # fmt: skip

Array = Any


def max_pool(p: NeuralProblem, input: Array) -> Array:
    x = formulas.max_pool(NUMPY, p, input)
    result = np.empty_like(input, shape=x.shape, order="K", subok=False)
    result[...] = x
    return result


def max_pool_grad(p: NeuralProblem, input: Array, grad: Array) -> Array:
    return _rounded(formulas.max_pool_grad(NUMPY, p, input, grad.astype(np.float64, copy=False)), input)


def avg_pool(p: NeuralProblem, input: Array) -> Array:
    return _rounded(formulas.avg_pool(NUMPY, p, input.astype(np.float64, copy=False)), input)


def avg_pool_grad(p: NeuralProblem, grad: Array) -> Array:
    return _rounded(formulas.avg_pool_grad(NUMPY, p, grad.astype(np.float64, copy=False)), grad)


avg_pool_divided, avg_pool_divided_grad = avg_pool, avg_pool_grad


def adaptive_avg_pool(p: NeuralProblem, input: Array) -> Array:
    return _rounded(formulas.adaptive_avg_pool(NUMPY, p, input.astype(np.float64, copy=False)), input)


def adaptive_avg_pool_grad(p: NeuralProblem, grad: Array) -> Array:
    return _rounded(formulas.adaptive_avg_pool_grad(NUMPY, p, grad.astype(np.float64, copy=False)), grad)


def _rounded(x: Array, like: Array) -> Array:
    """The float64 result in the dtype and the order of axes of an operand."""
    result = np.empty_like(like, shape=x.shape, order="K", subok=False)
    result[...] = x.astype(np.float32) if like.dtype.itemsize == 2 else x
    return result
