"""Factorisations: Cholesky, LU, QR; names, parameters and results as in torch.linalg.

Results come in the memory order that costs nothing (factors often column-major): their values and shapes are what counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadValue
from ..problems.linalg_problem import LinalgProblem
from ..problems.result_tuples import QR, CholeskyEx, LUFactor, LUFactorEx
from .linalg_checks import Array, flag, matrix, no_check, problem, word
from .operation import operation

__all__ = ["cholesky", "cholesky_ex", "lu_factor", "lu_factor_ex", "qr"]


def _cholesky(where: str, A: Any, upper: bool, check: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A, square=True)
    n = a.shape[-1]
    results: tuple[Any, ...] = (((n, n), a.dtype),)
    if not check:
        results += (((), np.int32),)
    parameters = {"upper": flag(where, "upper", upper), "check": check}
    return problem("linalg.cholesky", {"a": a}, a.shape[:-2], (n, n, 0), parameters, out, results)


@operation("cholesky", module="backline.linalg")
def cholesky(A: Array, *, upper: bool = False, out: Array | None = None) -> LinalgProblem:
    """Cholesky factor of a symmetric or Hermitian positive definite matrix.

    Parameters
    ----------
    A
        Shape (..., n, n). Only the triangle that `upper` names is read.
    upper
        Return the upper factor U with A = U^H U instead of the lower L with A = L L^H.
    out
        Array for the factor.

    Returns
    -------
    ndarray
        Shape (..., n, n), zeros in the other triangle.

    Raises
    ------
    LinAlgError
        Not positive definite, or not finite.

    Notes
    -----
    LAPACK `?potrf`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    return _cholesky("cholesky", A, upper, True, out)


@operation("cholesky_ex", module="backline.linalg", results=CholeskyEx)
def cholesky_ex(
    A: Array, *, upper: bool = False, check_errors: bool = False, out: tuple[Array, Array] | None = None
) -> LinalgProblem:
    """`cholesky` that reports failure in `info` instead of raising.

    Parameters
    ----------
    A, upper
        As for `cholesky`.
    check_errors
        Not supported with a reported info: must be False. Use `cholesky` to have errors raised.
    out
        Arrays for the factor and for info (int32).

    Returns
    -------
    CholeskyEx
        `L` and `info`: 0, or the order of the first leading minor that is not positive definite.

    Examples
    --------
    >>> import numpy as np, backline
    >>> int(backline.linalg.cholesky_ex(-np.eye(2)).info)
    1
    """
    no_check("cholesky_ex", check_errors)
    return _cholesky("cholesky_ex", A, upper, False, out)


def _lu_factor(where: str, A: Any, pivot: Any, check: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A)
    if not flag(where, "pivot", pivot):
        raise BadValue(f"{where}: pivot=False", cause="no CPU library has LU without pivoting", remedy="pivot=True")
    m, n = a.shape[-2:]
    results: tuple[Any, ...] = (((m, n), a.dtype), ((min(m, n),), np.int32))
    if not check:
        results += (((), np.int32),)
    return problem("linalg.lu_factor", {"a": a}, a.shape[:-2], (m, n, 0), {"check": check}, out, results)


@operation("lu_factor", module="backline.linalg", results=LUFactor)
def lu_factor(A: Array, *, pivot: bool = True, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """LU factors with partial pivoting, both in one matrix.

    Parameters
    ----------
    A
        Shape (..., m, n).
    pivot
        Must be True.
    out
        Arrays for the factors and the pivots (int32).

    Returns
    -------
    LUFactor
        `LU`, the unit lower factor below the diagonal and the upper one from it up; `pivots`, the row interchanges, from 1.

    Raises
    ------
    LinAlgError
        A pivot is zero: the factors could not be used to solve.

    Notes
    -----
    LAPACK `?getrf`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]])).pivots
    array([2, 2], dtype=int32)
    """
    return _lu_factor("lu_factor", A, pivot, True, out)


@operation("lu_factor_ex", module="backline.linalg", results=LUFactorEx)
def lu_factor_ex(
    A: Array, *, pivot: bool = True, check_errors: bool = False, out: tuple[Array, Array, Array] | None = None
) -> LinalgProblem:
    """`lu_factor` that reports a zero pivot in `info` instead of raising.

    Parameters
    ----------
    A, pivot
        As for `lu_factor`.
    check_errors
        Must be False.
    out
        Arrays for the factors, the pivots and info (int32).

    Returns
    -------
    LUFactorEx
        `LU`, `pivots`, `info`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> int(backline.linalg.lu_factor_ex(np.zeros((2, 2))).info)
    1
    """
    no_check("lu_factor_ex", check_errors)
    return _lu_factor("lu_factor_ex", A, pivot, False, out)


@operation("qr", module="backline.linalg", results=QR)
def qr(A: Array, mode: str = "reduced", *, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """QR factors.

    Parameters
    ----------
    A
        Shape (..., m, n).
    mode
        "reduced": Q (m, k), R (k, n), k = min(m, n); "complete": Q (m, m), R (m, n); "r": R alone, Q is empty.
    out
        Arrays for Q and R (not for mode "r").

    Returns
    -------
    QR
        `Q`, `R`. The signs of R's diagonal are LAPACK's: they may be negative.

    Notes
    -----
    LAPACK `?geqrf` and `?orgqr` or `?ungqr`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> q, r = backline.linalg.qr(np.ones((3, 2)))
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    a = matrix("qr", "A", A)
    word("qr", "mode", mode, ("reduced", "complete", "r"), f"qr received unrecognized mode '{mode}'")
    m, n = a.shape[-2:]
    if mode == "r" and out is not None:
        raise BadValue("qr: out with mode='r'", cause="there is one result only", remedy="mode='reduced'")
    k = m if mode == "complete" else min(m, n)
    results = (((m, k), a.dtype), ((k, n), a.dtype))
    return problem("linalg.qr", {"a": a}, a.shape[:-2], (m, n, 0), {"mode": mode}, out, results)
