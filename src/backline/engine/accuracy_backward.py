"""Backward errors: by how much the operands would have to change, relative to their size, for a result to be the exact one.

They stand in for errors of results that no reference can be had for: where operands are so ill-conditioned that float64's
rounding moves a solution or an eigenvalue by more than can be told, results of good algorithms differ, and none of them is
wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .double_double import Pair, pair, product
from .refinement import adjoint

__all__ = ["cholesky", "eigenvalues", "inverse", "least_squares", "solution"]

Array = Any

FLOPS = 2e9  # of eigenvalues that are looked at one by one


def solution(matrix: Array | Pair, right: Array, x: Array) -> float:
    """That of X as the solution of ``matrix @ X = right``."""
    return _worst((pair(right) - product(matrix, x)).high, _length(matrix) * _length(x) + _length(right))


def inverse(matrix: Array, right: Array, x: Array) -> float:
    """That of an inverse by rows or by columns, whichever is smaller: algorithms that work by either are as good."""
    return min(solution(matrix, right, x), solution(adjoint(matrix), right, adjoint(x)))


def least_squares(matrix: Array, right: Array, x: Array) -> float:
    """That of a least-squares solution, whatever the rank: its residual has to be orthogonal to the columns."""
    gradient = product(adjoint(matrix), pair(right) - product(matrix, x)).high
    length = _length(matrix)
    return _worst(gradient, length * (length * _length(x) + _length(right)))


def cholesky(matrix: Array, factor: Array) -> float:
    """That of a lower Cholesky factor of a matrix whose lower triangle counts."""
    residual = np.tril((pair(matrix) - product(factor, adjoint(factor))).high)
    return _worst(residual, _length(np.tril(matrix)))


def eigenvalues(matrix: Array, values: Array) -> float:
    """The largest of those of eigenvalues, and that of their sum; of a large matrix some of the values are looked at."""
    n = matrix.shape[-1]
    size = _length(matrix)
    trace = np.abs(np.sum(values, axis=-1) - np.trace(matrix, axis1=-2, axis2=-1))
    worst = _worst(trace[..., None, None], np.sqrt(n) * size)
    step = max(round(10.0 * n**2 * values.size / FLOPS * n), 1)
    for i in range(0, n, step):
        shifted = matrix - values[..., i, None, None] * np.eye(n)
        if not np.isfinite(shifted).all():
            return float("inf")
        least = np.linalg.svd(shifted, compute_uv=False)[..., -1]  # the change that makes it singular
        worst = max(worst, _worst(least[..., None, None], size))
    return worst


def _length(x: Array | Pair) -> Array:
    return np.sqrt(np.sum(np.abs(pair(x).high) ** 2, axis=(-2, -1)))


def _worst(residual: Array, sizes: Array) -> float:
    largest = np.max(np.abs(residual), axis=(-2, -1))
    found = np.max(np.where(largest == 0, 0.0, largest / sizes), initial=0.0)
    return float("inf") if np.isnan(found) else float(found)
