"""Symmetric indefinite factors, solutions by them, and products of reflectors: ldl_factor, ldl_solve, householder_product.

Names, parameters and results are those of torch.linalg.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.tuning.sample_operands import factors, hermitian
from ..errors import BadType, BadValue
from ..problems.linalg_problem import LinalgProblem
from ..problems.memory_layout import broadcast_batch
from ..problems.result_tuples import LDLFactor, LDLFactorEx
from .array_arguments import check_array
from .linalg_checks import Array, flag, matrix, no_check, problem, same_dtype
from .operation import operation

__all__ = ["householder_product", "ldl_factor", "ldl_factor_ex", "ldl_solve", "orgqr"]


def _ldl_factor(where: str, A: Any, hermitian: Any, check: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A, square=True)
    parameters = {"hermitian": flag(where, "hermitian", hermitian) and a.dtype.kind == "c", "check": check}
    return problem("linalg.ldl_factor", {"a": a}, parameters, out, (a.shape[-2:], a.dtype), (a.shape[-1:], np.int32))


@operation("ldl_factor", module="backline.linalg", results=LDLFactor, flops=lambda m, n, k: n**3 / 3, sample=hermitian)
def ldl_factor(A: Array, *, hermitian: bool = False, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """LDL factors of a symmetric or Hermitian matrix that need not be definite, both in one matrix.

    Parameters
    ----------
    A
        Shape (..., n, n). Only the lower triangle is read.
    hermitian
        Whether a complex A is Hermitian; else it is symmetric.
    {out_factors}

    Returns
    -------
    LDLFactor
        `LD`, D in blocks of one or two rows on the diagonal and the unit lower factor below, zeros above; `pivots` as LAPACK
        has them, from 1: a positive number is the row interchanged, two equal negative ones belong to a block of two rows.

    Raises
    ------
    LinAlgError
        A block of D is zero: the factors could not be used to solve. NaN and infinity do not raise; they spread.

    {lapack} `?sytrf` or `?hetrf`: Bunch and Kaufman's pivoting.

    {examples}
    >>> ld, pivots = backline.linalg.ldl_factor(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> pivots
    array([-2, -2], dtype=int32)
    """
    return _ldl_factor("ldl_factor", A, hermitian, True, out)


@operation("ldl_factor_ex", module="backline.linalg", results=LDLFactorEx)
def ldl_factor_ex(
    A: Array, *, hermitian: bool = False, check_errors: bool = False, out: tuple[Array, Array, Array] | None = None
) -> LinalgProblem:
    """`ldl_factor` that reports a block that is zero in `info` instead of raising.

    Parameters
    ----------
    A, hermitian
        As for `ldl_factor`.
    {check_errors}
    {out_factors_info}

    Returns
    -------
    LDLFactorEx
        `LD`, `pivots`, `info`: 0, or the row from 1 where D is zero.

    {examples}
    >>> int(backline.linalg.ldl_factor_ex(np.zeros((2, 2))).info)
    1
    """
    return _ldl_factor("ldl_factor_ex", A, hermitian, no_check("ldl_factor_ex", check_errors), out)


@operation("ldl_solve", module="backline.linalg", flops=lambda m, n, k: 2 * n**2 * k, sample=factors)
def ldl_solve(LD: Array, pivots: Array, B: Array, *, hermitian: bool = False, out: Array | None = None) -> LinalgProblem:
    """Solution of A X = B by factors that `ldl_factor` made.

    Parameters
    ----------
    LD, pivots
        As `ldl_factor` returns them: (..., n, n) and (..., n) of int32.
    B
        Shape (..., n, k), of LD's dtype.
    hermitian
        What `ldl_factor` was told.
    {out_solution}

    {returns_array}
        Of B's shape, its batch broadcast. A zero in D gives infinities or NaN, not an error.

    Raises
    ------
    BadValue
        Pivots that no factorisation has, or shapes that do not fit.

    {lapack} `?sytrs` or `?hetrs`.

    {examples}
    >>> a = np.array([[0.0, 2.0], [2.0, 0.0]])
    >>> backline.linalg.ldl_solve(*backline.linalg.ldl_factor(a), np.array([[2.0], [4.0]])).ravel()
    array([2., 1.])
    """
    a = matrix("ldl_solve", "LD", LD, square=True)
    p = check_array(pivots, "ldl_solve: pivots")
    b = matrix("ldl_solve", "B", B)
    if p.dtype.kind not in "iu":
        raise BadType(f"ldl_solve: Expected pivots to be integers. Got {p.dtype}", remedy="int32, as ldl_factor returns them")
    if p.dtype != np.int32:
        raise BadType(f"ldl_solve: pivots have dtype {p.dtype}", remedy="int32, as ldl_factor returns them")
    if p.shape != a.shape[:-1]:
        raise BadValue(
            f"ldl_solve: Expected LD.shape[:-1] and pivots.shape to be the same, but got pivots of shape {p.shape} "
            f"for LD of shape {a.shape}"
        )
    same_dtype("ldl_solve", a, b)
    n, k = b.shape[-2:]
    batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
    if n != a.shape[-1] or batch is None:
        raise BadValue(f"ldl_solve: LD of shape {a.shape} and B of shape {b.shape} do not fit")
    parameters = {"hermitian": flag("ldl_solve", "hermitian", hermitian) and a.dtype.kind == "c"}
    return problem("linalg.ldl_solve", {"a": a, "p": p, "b": b}, parameters, out, ((n, k), a.dtype), k=k, batch=batch)


@operation(
    "householder_product", module="backline.linalg", flops=lambda m, n, k: 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3,
)  # fmt: skip
def householder_product(A: Array, tau: Array, *, out: Array | None = None) -> LinalgProblem:
    """First columns of a product of Householder reflectors.

    Parameters
    ----------
    A
        Shape (..., m, n), m >= n: reflector i is 1 - tau[i] v v^H, v having zeros above row i, 1 there, and column i of A below.
    tau
        Shape (..., k), k <= n, of A's dtype.
    out
        Array for the columns.

    {returns_array}
        Shape (..., m, n).

    Raises
    ------
    BadValue
        Shapes that do not fit.

    {lapack} `?orgqr` or `?ungqr`; also known as `orgqr`.

    {examples}
    >>> backline.linalg.householder_product(np.array([[9.0], [1.0]]), np.array([1.0]))
    array([[ 0.],
           [-1.]])
    """
    a = matrix("householder_product", "A", A)
    t = matrix("householder_product", "tau", tau, rank=1)
    same_dtype("householder_product", a, t)
    m, n = a.shape[-2:]
    if m < n:
        raise BadValue(
            "householder_product: input.shape[-2] must be greater than or equal to input.shape[-1]",
            cause=f"A has shape {a.shape}",
        )
    if t.ndim != a.ndim - 1 or t.shape[:-1] != a.shape[:-2]:
        raise BadValue(
            f"householder_product: Expected tau to have one dimension less than input and its batch, but tau has shape {t.shape} "
            f"and A {a.shape}"
        )
    k = t.shape[-1]
    if k > n:
        raise BadValue(
            "householder_product: input.shape[-1] must be greater than or equal to tau.shape[-1]",
            cause=f"A has shape {a.shape}, tau {t.shape}",
        )
    return problem("linalg.householder_product", {"a": a, "t": t}, {}, out, ((m, n), a.dtype), k=k)


orgqr = householder_product  # torch's older name, beside `linalg`
