"""Factors, eigenvalues and singular values, as numpy.linalg has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import linalg
from .arguments import matrices, theirs
from .doc_texts import documented

__all__ = ["cholesky", "eig", "eigh", "eigvals", "eigvalsh", "qr", "svd", "svdvals"]


@documented
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Cholesky factor, as numpy.linalg.cholesky.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), Hermitian and positive definite; one triangle is read.
    upper : bool
        The upper triangle is read and returned, instead of the lower.

    Returns
    -------
    ndarray
        The factor, shape (..., n, n).

    Raises
    ------
    numpy.linalg.LinAlgError
        A matrix that is not positive definite, or not square.

    {example}
    >>> np.linalg.cholesky(np.array([[4.0, 0.0], [0.0, 9.0]]))
    array([[2., 0.],
           [0., 3.]])
    """
    made = matrices(a, square=True)
    return theirs.cholesky(a, upper=upper) if made is None else linalg.cholesky(made, upper=upper)


@documented
def qr(a: Any, mode: str = "reduced") -> Any:
    """QR factors, as numpy.linalg.qr.

    {of_matrices}
    mode : {"reduced", "complete", "r", "raw"}
        Both factors, smallest or square; R alone; or LAPACK's own form, which NumPy computes.

    Returns
    -------
    namedtuple or ndarray
        `Q` and `R`, or R.

    Raises
    ------
    ValueError
        An unknown mode.

    {example}
    >>> [part.shape for part in np.linalg.qr(np.ones((3, 2)))]
    [(3, 2), (2, 2)]
    """
    made = matrices(a) if mode in ("reduced", "complete", "r") else None
    if made is None:
        return theirs.qr(a, mode)
    factors = linalg.qr(made, mode)
    return factors[1] if mode == "r" else factors


def _really_real(a: np.ndarray, *results: Any) -> list[Any]:
    """Eigenvalues of real matrices as NumPy returns them: real where none has an imaginary part."""
    if a.dtype.kind == "c" or results[0].imag.any():
        return list(results)
    return [result.real.copy() for result in results]


@documented
def eig(a: Any) -> Any:
    """Eigenvalues and right eigenvectors, as numpy.linalg.eig.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), finite.

    Returns
    -------
    namedtuple
        `eigenvalues` (..., n) and `eigenvectors` (..., n, n), real where all eigenvalues of a real matrix are.

    {not_finite}

    {example}
    >>> np.linalg.eig(np.diag([1.0, 2.0])).eigenvalues
    array([1., 2.])
    """
    made = matrices(a, square=True, finite=True)
    if made is None:
        return theirs.eig(a)
    found = linalg.eig(made)
    return type(found)(*_really_real(made, *found))


@documented
def eigvals(a: Any) -> Any:
    """Eigenvalues, as numpy.linalg.eigvals.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n), finite.

    Returns
    -------
    ndarray
        Shape (..., n), real where all eigenvalues of a real matrix are.

    {not_finite}

    {example}
    >>> np.linalg.eigvals(np.diag([1.0, 2.0]))
    array([1., 2.])
    """
    made = matrices(a, square=True, finite=True)
    return theirs.eigvals(a) if made is None else _really_real(made, linalg.eigvals(made))[0]


@documented
def eigh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues and eigenvectors of a Hermitian matrix, as numpy.linalg.eigh.

    {of_hermitian_matrices}

    Returns
    -------
    namedtuple
        `eigenvalues` (..., n), ascending, and `eigenvectors` (..., n, n).

    {not_hermitian}

    {example}
    >>> np.linalg.eigh(np.diag([2.0, 1.0])).eigenvalues
    array([1., 2.])
    """
    made = matrices(a, square=True, finite=True)
    return theirs.eigh(a, UPLO) if made is None else linalg.eigh(made, UPLO.upper())


@documented
def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues of a Hermitian matrix, as numpy.linalg.eigvalsh.

    {of_hermitian_matrices}

    Returns
    -------
    ndarray
        Shape (..., n), ascending.

    {not_hermitian}

    {example}
    >>> np.linalg.eigvalsh(np.diag([2.0, 1.0]))
    array([1., 2.])
    """
    made = matrices(a, square=True, finite=True)
    return theirs.eigvalsh(a, UPLO) if made is None else linalg.eigvalsh(made, UPLO.upper())


@documented
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Singular values and vectors, as numpy.linalg.svd.

    {of_matrices}
    full_matrices : bool
        Square U and Vh, or the smallest.
    compute_uv : bool
        Also the vectors, not the values alone.
    hermitian : bool
        The matrix is Hermitian: NumPy computes by eigenvalues.

    Returns
    -------
    namedtuple or ndarray
        `U`, `S` and `Vh`, or S.

    {no_convergence}

    {example}
    >>> np.linalg.svd(np.diag([3.0, 4.0])).S
    array([4., 3.])
    """
    made = None if hermitian else matrices(a, finite=True)
    if made is None:
        return theirs.svd(a, full_matrices, compute_uv, hermitian)
    return linalg.svd(made, full_matrices) if compute_uv else linalg.svdvals(made)


@documented
def svdvals(x: Any, /) -> Any:
    """Singular values, as numpy.linalg.svdvals.

    Parameters
    ----------
    x : array_like
        Shape (..., m, n).

    Returns
    -------
    ndarray
        Shape (..., min(m, n)), descending.

    {no_convergence}

    {example}
    >>> np.linalg.svdvals(np.diag([3.0, 4.0]))
    array([4., 3.])
    """
    return svd(x, compute_uv=False)
