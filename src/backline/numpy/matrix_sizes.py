"""Norms, condition numbers and ranks, as numpy.linalg has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import linalg
from .arguments import also_named, matrices, numbers, scalar, theirs
from .doc_texts import documented

__all__ = ["cond", "matrix_norm", "matrix_rank", "norm", "vector_norm"]


@also_named(dim="axis", keepdim="keepdims")
@documented
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norm of vectors or matrices, as numpy.linalg.norm.

    Parameters
    ----------
    x : array_like
        Any shape.
    ord : int, float, inf, "fro" or "nuc", optional
        Which norm; None: of all elements, or of vectors the Euclidean one.
    axis : int or pair of int, optional
        Of vectors along an axis, or of matrices along two; ``dim`` is another name for it.
    {keepdims}

    Returns
    -------
    scalar or ndarray
        The norms.

    {no_order}

    {example}
    >>> np.linalg.norm(np.array([3.0, 4.0]))
    np.float64(5.0)
    """
    given = numbers(x)
    if given is None or not given[0].size or not given[0].ndim or isinstance(ord, np.ndarray):
        return theirs.norm(x, ord, axis, keepdims)
    made = given[0]
    if not _has_axes(made, axis) or (ord is not None and axis is None and made.ndim > 2):
        return theirs.norm(x, ord, axis, keepdims)
    spectral = ord == "nuc" or (ord in (2, -2) and (made.ndim if axis is None else len(_pair(axis))) == 2)
    if spectral and not np.isfinite(made).all():
        return theirs.norm(x, ord, axis, keepdims)
    return scalar(linalg.norm(made, ord, axis, keepdims))


def _pair(axis: Any) -> tuple[Any, ...]:
    return tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


def _has_axes(array: np.ndarray, axis: Any) -> bool:
    if axis is None:
        return True
    axes = _pair(axis)
    within = all(isinstance(i, int) and -array.ndim <= i < array.ndim for i in axes)
    return within and len({i % array.ndim for i in axes}) == len(axes) in (1, 2)


@also_named(dim="axis", keepdim="keepdims")
@documented
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Norm of vectors, as numpy.linalg.vector_norm.

    Parameters
    ----------
    x : array_like
        Any shape.
    axis : int or sequence of int, optional
        What is summed over: everything unless told; ``dim`` is another name for it.
    {keepdims}
    ord : int, float, inf
        Which norm.

    Returns
    -------
    scalar or ndarray
        The norms.

    {no_order}

    {example}
    >>> np.linalg.vector_norm(np.array([3.0, 4.0]))
    np.float64(5.0)
    """
    given = numbers(x)
    if given is None or not given[0].size or not isinstance(ord, (int, float)):
        return theirs.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)
    return scalar(linalg.vector_norm(given[0], ord, axis, keepdims))


@also_named(keepdim="keepdims")
@documented
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Norm of matrices, as numpy.linalg.matrix_norm.

    Parameters
    ----------
    x : array_like
        Shape (..., m, n).
    keepdims : bool
        The two axes stay, of length 1; ``keepdim`` is another name for it.
    ord : 1, -1, 2, -2, inf, -inf, "fro" or "nuc"
        Which norm.

    Returns
    -------
    scalar or ndarray
        Shape (...).

    {no_order}

    {example}
    >>> np.linalg.matrix_norm(np.diag([3.0, 4.0]))
    np.float64(5.0)
    """
    made = matrices(x, finite=ord in (2, -2, "nuc"))
    if made is None or ord is None:
        return theirs.matrix_norm(x, keepdims=keepdims, ord=ord)
    return scalar(linalg.matrix_norm(made, ord, (-2, -1), keepdims))


@documented
def cond(x: Any, p: Any = None) -> Any:
    """Condition number, as numpy.linalg.cond.

    Parameters
    ----------
    x : array_like
        Shape (..., m, n); square unless the norm is the 2-norm.
    p : None, 1, -1, 2, -2, inf, -inf, "fro" or "nuc"
        By which norm; None is 2.

    Returns
    -------
    scalar or ndarray
        Shape (...), inf for singular matrices.

    Raises
    ------
    numpy.linalg.LinAlgError
        An empty matrix, or one that is not square.

    {example}
    >>> float(np.linalg.cond(np.diag([1.0, 4.0])))
    4.0
    """
    made = matrices(x, square=p not in (None, 2, -2), finite=True)
    if made is None:
        return theirs.cond(x, p)
    found = linalg.cond(made, p)
    return scalar(np.where(np.isnan(found), found.dtype.type(np.inf), found))  # of what is zero


@documented
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """Rank of a matrix, as numpy.linalg.matrix_rank.

    Parameters
    ----------
    A : array_like
        Shape (..., m, n), or a vector.
    tol : float, optional
        Singular values up to it count as zero.
    hermitian : bool
        The matrix is Hermitian.
    rtol : float, optional
        The same, times the largest; epsilon times max(m, n) unless told.

    Returns
    -------
    scalar or ndarray
        Shape (...), integers.

    Raises
    ------
    ValueError
        Both tolerances given.

    {example}
    >>> int(np.linalg.matrix_rank(np.ones((3, 3))))
    1
    """
    made = matrices(A, finite=True)
    plain = all(x is None or isinstance(x, (int, float)) for x in (tol, rtol))
    if made is None or not plain or (tol is not None and rtol is not None):
        return theirs.matrix_rank(A, tol, hermitian, rtol=rtol)
    limits = {"rtol": rtol} if tol is None else {"atol": float(tol), "rtol": 0.0}
    return scalar(linalg.matrix_rank(made, hermitian=hermitian, **limits))
