"""Refinement of NumPy's float64 linear algebra to results two formats wider, for the references of `accuracy`.

Solutions and factors are corrected by Newton's method with residuals in double-double arithmetic; eigenvalues and singular
values are Rayleigh quotients of computed vectors, whose error is the square of that of the vectors. Each result comes with a
bound on what is still unknown of it, relative to its largest element: where a problem is too ill-conditioned to be refined,
that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .double_double import Pair, pair, product

__all__ = [
    "Refined", "Spectrum", "adjoint", "cholesky", "general_values", "hermitian_values", "least_squares", "singular_values",
    "solution",
]  # fmt: skip

Array = Any

STEPS = 4
NEAR = 2.0**-20  # what the product of a left and a right eigenvector may differ from 1 by
ENOUGH = 2.0**-70  # relative to the largest element


class Refined(NamedTuple):
    """A result, and its own relative error as far as it can be told."""

    value: Pair
    unknown: float


class Spectrum(NamedTuple):
    """Eigenvalues or singular values, how far they can be off, and the condition number of each (1 where it is always 1)."""

    values: Pair
    unknown: float
    conditions: Array


def adjoint(x: Any) -> Any:
    """The conjugate transpose of an array or a Pair, batch by batch."""
    return x.each(_adjoint) if isinstance(x, Pair) else _adjoint(x)


def _adjoint(x: Array) -> Array:
    turned = np.swapaxes(x, -1, -2)
    return turned.conj() if x.dtype.kind == "c" else turned


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _newton(start: Array, change: Callable[[Pair], Array]) -> Refined:
    """Add corrections until the next one would not matter; each is smaller than the last by the same factor."""
    found, scale = pair(start), _largest(start)
    last, unknown = scale, 1.0
    for _ in range(STEPS):
        try:
            step = change(found)
        except np.linalg.LinAlgError:
            break
        size = _largest(step)
        if size == 0.0:
            unknown = 0.0
            break
        if not size < last / 4:  # it does not converge, or holds NaN
            break
        found, unknown = found + Pair(step), size * (size / last) / scale
        last = size
        if unknown <= ENOUGH:
            break
    return Refined(found, unknown)


def solution(matrix: Array | Pair, right: Array, start: Array) -> Refined:
    """X of ``matrix @ X = right`` from a first approximation; the matrix may itself be a Pair."""
    wide, near = pair(right), pair(matrix).high

    def change(x: Pair) -> Array:
        return np.linalg.solve(near, (wide - product(matrix, x)).high)

    return _newton(start, change)


def cholesky(matrix: Array, start: Array) -> Refined:
    """The lower factor of a positive definite matrix."""
    wide = pair(matrix)

    def change(factor: Pair) -> Array:
        residual = (wide - product(factor, adjoint(factor))).high
        left = np.linalg.solve(start, residual)
        scaled = np.tril(adjoint(np.linalg.solve(start, adjoint(left))))
        rows = np.arange(start.shape[-1])
        scaled[..., rows, rows] /= 2
        return np.matmul(start, scaled)

    return _newton(start, change)


def least_squares(matrix: Array, right: Array, start: Array) -> Refined:
    """The solution of a least-squares problem of full rank; of those with more columns than rows the shortest."""
    m, n = matrix.shape[-2:]
    turned, wide = adjoint(matrix), pair(right)
    if m >= n:
        factor = np.linalg.qr(matrix, mode="r")
        if not _full_rank(factor, m):
            return Refined(pair(start), 1.0)

        def change(x: Pair) -> Array:
            gradient = product(turned, wide - product(matrix, x)).high
            return np.linalg.solve(factor, np.linalg.solve(adjoint(factor), gradient))

        return _newton(start, change)
    factor = np.linalg.qr(turned, mode="r")
    if not _full_rank(factor, n):
        return Refined(pair(start), 1.0)

    def solve(rest: Array) -> Array:
        return np.linalg.solve(factor, np.linalg.solve(adjoint(factor), rest))

    weights = _newton(solve(right), lambda y: solve((wide - product(matrix, product(turned, y))).high))
    return Refined(product(turned, weights.value), weights.unknown)


def _full_rank(factor: Array, n: int) -> bool:
    """Returns false where rounding errors decide what a triangular factor's smallest diagonal elements are."""
    sizes = np.abs(np.diagonal(factor, axis1=-2, axis2=-1))
    return bool(np.all(np.min(sizes, axis=-1) > n * np.finfo(np.float64).eps * np.max(sizes, axis=-1)))


# Eigenvalues and singular values -------------------------------------------------------------------------------------


def _inner(rows: Array | Pair, columns: Array | Pair) -> Pair:
    """The products of row i with column i."""
    return pair(rows).times(pair(columns).each(lambda x: np.swapaxes(x, -1, -2))).sum()


def _over(numerator: Pair, denominator: Pair, power: float = 1.0) -> Pair:
    """numerator / denominator**power, where the denominator is close to 1."""
    small = (denominator.high - 1) + denominator.low
    factor = -power * small + power * (power + 1) / 2 * small * small
    return numerator + Pair(numerator.high * factor)


def _bounds(values: Array, residuals: Array, conditions: Any = 1.0) -> float:
    """The error that Rayleigh quotients can have: the residual squared over the gap to the next value, at most the residual."""
    n = values.shape[-1]
    order = np.sort(values, axis=-1)
    gaps = np.full(values.shape, np.inf)
    if n > 1:
        steps = np.diff(order, axis=-1)
        gaps[..., 1:] = steps
        gaps[..., :-1] = np.minimum(gaps[..., :-1], steps)
    residuals = conditions * np.take_along_axis(residuals, np.argsort(values, axis=-1), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = np.minimum(residuals, np.where(residuals > 0, residuals**2 / gaps, 0.0))
    return _largest(worst) / max(_largest(values), 1e-300)


def _lengths(columns: Array) -> Array:
    return np.sqrt(np.sum(np.abs(columns) ** 2, axis=-2))


def _sorted(values: Pair, descending: bool = False) -> Pair:
    order = np.argsort(-values.high if descending else values.high, axis=-1)
    return values.each(lambda x: np.take_along_axis(x, order, axis=-1))


def hermitian_values(matrix: Array) -> Spectrum:
    """Eigenvalues of a symmetric or Hermitian matrix, ascending."""
    values, vectors = np.linalg.eigh(matrix)
    image = product(matrix, vectors)
    turned = adjoint(vectors)
    quotients = _over(_inner(turned, image).each(np.real), _inner(turned, vectors).each(np.real))
    residual = (image - pair(vectors).times(values[..., None, :])).high
    return Spectrum(_sorted(quotients), _bounds(values, _lengths(residual)), 1.0)


def singular_values(matrix: Array) -> Spectrum:
    """Singular values, descending."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    vectors = adjoint(right)
    image = product(matrix, vectors)
    norms = _inner(adjoint(left), left).each(np.real), _inner(right, vectors).each(np.real)
    quotients = _over(_over(_inner(adjoint(left), image).each(np.real), norms[0], 0.5), norms[1], 0.5)
    residual = (image - pair(left).times(values[..., None, :])).high
    return Spectrum(_sorted(quotients, descending=True), _bounds(values, 2 * _lengths(residual)), 1.0)


def general_values(matrix: Array, *, refine: bool) -> Spectrum:
    """Eigenvalues of any matrix, with their condition numbers; in no particular order.

    A change of the matrix by some amount changes an eigenvalue by that amount times its condition number, the product of the
    lengths of its right and left vectors.
    """
    values, vectors = np.linalg.eig(matrix)
    values, vectors = values.astype(np.complex128), vectors.astype(np.complex128)
    try:
        left = np.linalg.inv(vectors)
    except np.linalg.LinAlgError:  # defective: there are fewer vectors than values
        return Spectrum(pair(values), 1.0, np.full(values.shape, 1.0))
    conditions = np.maximum(np.sqrt(np.sum(np.abs(left) ** 2, axis=-1)) * _lengths(vectors), 1.0)
    if not refine:  # for float32, one rounding of which moves a value of a larger condition number out of its surroundings
        return Spectrum(pair(values), 0.0 if _largest(conditions) <= 1 / NEAR else 1.0, conditions)
    image = product(matrix, vectors)
    near = (_inner(left, image), _inner(left, vectors))
    if not _largest(near[1].high - 1) <= NEAR:  # nearly defective
        return Spectrum(pair(values), 1.0, conditions)
    quotients = _over(*near)
    moved = _largest((quotients.high - values) / conditions) / max(_largest(values), 1e-300)
    return Spectrum(quotients, min((moved * _largest(conditions)) ** 2, 1.0), conditions)
