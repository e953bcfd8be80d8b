"""Cholesky, LU and QR factorizations, and what a Cholesky factor solves; names, parameters and results as in torch.linalg.

Results come in the memory order that costs nothing (factors often column-major): their values and shapes are what counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.tuning.sample_operands import definite, triangle
from ..errors import BadValue
from ..problems.linalg_problem import LinalgProblem
from ..problems.memory_layout import broadcast_batch
from ..problems.result_tuples import QR, CholeskyEx, LUFactor, LUFactorEx
from .linalg_checks import Array, flag, matrix, no_check, problem, same_dtype, word
from .operation import operation

__all__ = ["cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "lu_factor", "lu_factor_ex", "qr"]


def _cholesky(where: str, A: Any, upper: bool, check: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A, square=True)
    parameters = {"upper": flag(where, "upper", upper), "check": check}
    return problem("linalg.cholesky", {"a": a}, parameters, out, (a.shape[-2:], a.dtype))


@operation(
    "cholesky", module="backline.linalg", flops=lambda m, n, k: n**3 / 3, sample=definite, check="unique", powers=(0, 0.5, 0),
    bench=True,
)  # fmt: skip
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

    {returns_array}
        Shape (..., n, n), zeros in the other triangle.

    Raises
    ------
    LinAlgError
        Not positive definite, or not finite.

    {lapack} `?potrf`.

    {examples}
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

    {examples}
    >>> int(backline.linalg.cholesky_ex(-np.eye(2)).info)
    1
    """
    return _cholesky("cholesky_ex", A, upper, no_check("cholesky_ex", check_errors), out)


@operation(
    "cholesky_solve", family="linalg", flops=lambda m, n, k: 2 * n**2 * k, sample=triangle, check="unique", powers=(0, -2, 1),
    sizes="{n}x{n} {n}x{n}",
)  # fmt: skip
def cholesky_solve(B: Array, L: Array, upper: bool = False, *, out: Array | None = None) -> LinalgProblem:
    """Solution of A X = B by the Cholesky factor of A.

    Parameters
    ----------
    B
        Shape (..., n, k).
    L
        Factor of shape (..., n, n), as `linalg.cholesky` returns it.
    {upper_factor}
    {out_solution}

    {returns_array}
        Shape (..., n, k).

    {lapack} `?potrs`.

    {examples}
    >>> backline.cholesky_solve(np.ones((2, 1)), np.diag([2.0, 1.0])).ravel()
    array([0.25, 1.  ])
    """
    a = matrix("cholesky_solve", "L", L, square=True)
    b = matrix("cholesky_solve", "B", B)
    same_dtype("cholesky_solve", a, b)
    batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
    if b.shape[-2] != a.shape[-1] or batch is None:
        sizes = f"each A matrix is {a.shape[-2]} by {a.shape[-1]} but each b matrix is {b.shape[-2]} by {b.shape[-1]}"
        raise BadValue(
            f"cholesky_solve: L of shape {a.shape} and B of shape {b.shape} do not fit",
            cause=f"Incompatible matrix sizes for cholesky_solve: {sizes}",
        )
    parameters = {"upper": flag("cholesky_solve", "upper", upper)}
    core = b.shape[-2:]
    return problem("cholesky_solve", {"b": b, "a": a}, parameters, out, (core, a.dtype), k=core[1], batch=batch)


@operation(
    "cholesky_inverse", family="linalg", flops=lambda m, n, k: 2 * n**3 / 3, sample=triangle, check="unique", powers=(0, -2, 0),
)  # fmt: skip
def cholesky_inverse(L: Array, upper: bool = False, *, out: Array | None = None) -> LinalgProblem:
    """Inverse of A by its Cholesky factor.

    Parameters
    ----------
    L
        Factor of shape (..., n, n).
    {upper_factor}
    {out_inverse}

    {returns_array}
        Shape (..., n, n), both triangles.

    Raises
    ------
    LinAlgError
        A zero on the diagonal.

    {lapack} `?potri`.

    {examples}
    >>> backline.cholesky_inverse(np.array([[2.0, 0.0], [1.0, 1.0]]))
    array([[ 0.5, -0.5],
           [-0.5,  1. ]])
    """
    a = matrix("cholesky_inverse", "L", L, square=True)
    parameters = {"upper": flag("cholesky_inverse", "upper", upper)}
    return problem("cholesky_inverse", {"a": a}, parameters, out, (a.shape[-2:], a.dtype))


def _lu_factor(where: str, A: Any, pivot: Any, check: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A)
    if not flag(where, "pivot", pivot):
        raise BadValue(f"{where}: pivot=False", cause="no CPU library has LU without pivoting", remedy="pivot=True")
    results = (a.shape[-2:], a.dtype), ((min(a.shape[-2:]),), np.int32)
    return problem("linalg.lu_factor", {"a": a}, {"check": check}, out, *results)


@operation("lu_factor", module="backline.linalg", results=LUFactor, flops=lambda m, n, k: m * n**2 - n**3 / 3, bench=True)
def lu_factor(A: Array, *, pivot: bool = True, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """LU factors with partial pivoting, both in one matrix.

    Parameters
    ----------
    {rectangular}
    {pivot}
    {out_factors}

    Returns
    -------
    LUFactor
        `LU`, the unit lower factor below the diagonal and the upper one from it up; `pivots`, the row interchanges, from 1.

    Raises
    ------
    LinAlgError
        A pivot is zero: the factors could not be used to solve.

    {lapack} `?getrf`.

    {examples}
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
    {check_errors}
    {out_factors_info}

    Returns
    -------
    LUFactorEx
        `LU`, `pivots`, `info`.

    {examples}
    >>> int(backline.linalg.lu_factor_ex(np.zeros((2, 2))).info)
    1
    """
    return _lu_factor("lu_factor_ex", A, pivot, no_check("lu_factor_ex", check_errors), out)


@operation("qr", module="backline.linalg", results=QR, flops=lambda m, n, k: 4 * m * n**2 - 4 * n**3 / 3, bench=True)
def qr(A: Array, mode: str = "reduced", *, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """QR factors.

    Parameters
    ----------
    {rectangular}
    mode
        "reduced": Q (m, k), R (k, n), k = min(m, n); "complete": Q (m, m), R (m, n); "r": R alone, Q is empty.
    out
        Arrays for Q and R (not for mode "r").

    Returns
    -------
    QR
        `Q`, `R`. The signs of R's diagonal are LAPACK's: they may be negative.

    {lapack} `?geqrf` and `?orgqr` or `?ungqr`.

    {examples}
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
    return problem("linalg.qr", {"a": a}, {"mode": mode}, out, ((m, k), a.dtype), ((k, n), a.dtype))
