"""The named tuples that linear-algebra operations return; names and order as in torch.linalg."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "LU", "QR", "SVD", "CholeskyEx", "Eig", "Eigh", "InvEx", "LDLFactor", "LDLFactorEx", "LUFactor", "LUFactorEx", "Lstsq",
    "Slogdet", "SolveEx",
]  # fmt: skip

Array = np.ndarray[Any, Any]


class InvEx(NamedTuple):
    """Inverse and LAPACK's info (0, or the index from 1 of the zero pivot)."""

    inverse: Array
    info: Array


class CholeskyEx(NamedTuple):
    """Factor and info (0, or the order of the leading minor that is not positive definite)."""

    L: Array
    info: Array


class LUFactor(NamedTuple):
    """Both factors in one matrix, and the row interchanges counted from 1."""

    LU: Array
    pivots: Array


class LUFactorEx(NamedTuple):
    """`LUFactor` and info (0, or the index from 1 of the zero pivot)."""

    LU: Array
    pivots: Array
    info: Array


class LDLFactor(NamedTuple):
    """Both factors in one matrix, and the interchanges counted from 1, negative in pairs for blocks of two rows."""

    LD: Array
    pivots: Array


class LDLFactorEx(NamedTuple):
    """`LDLFactor` and info (0, or the row from 1 where the block diagonal factor is zero)."""

    LD: Array
    pivots: Array
    info: Array


class LU(NamedTuple):
    """Permutation, unit lower and upper factor: A = P L U."""

    P: Array
    L: Array
    U: Array


class QR(NamedTuple):
    """Orthonormal and upper triangular factor."""

    Q: Array
    R: Array


class Eigh(NamedTuple):
    """Eigenvalues in ascending order, eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class Eig(NamedTuple):
    """Complex eigenvalues, eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class SVD(NamedTuple):
    """A = U diag(S) Vh."""

    U: Array
    S: Array
    Vh: Array


class SolveEx(NamedTuple):
    """Solution and info (0, or the index from 1 of the zero pivot)."""

    result: Array
    info: Array


class Lstsq(NamedTuple):
    """Solution, squared residuals, rank, singular values; what a driver does not compute is empty."""

    solution: Array
    residuals: Array
    rank: Array
    singular_values: Array


class Slogdet(NamedTuple):
    """Sign (or phase) and logarithm of the absolute value of the determinant."""

    sign: Array
    logabsdet: Array
