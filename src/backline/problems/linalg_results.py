"""Shapes and dtypes of what linear algebra returns, which a Problem decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from .linalg_problem import LinalgProblem

__all__ = ["Result", "linalg_results"]

Result = tuple[tuple[int, ...], np.dtype[Any]]
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def linalg_results(p: LinalgProblem) -> tuple[Result, ...] | None:
    """Returns shape and dtype of every result; None for an operation whose results the Problem alone does not decide.

    >>> from backline.problems.problem_text import read
    >>> [(shape, dtype.name) for shape, dtype in linalg_results(read("linalg.svd f32 2x5x3"))]
    [((2, 5, 5), 'float32'), ((2, 3), 'float32'), ((2, 3, 3), 'float32')]
    """
    m, n, k, least, own = p.m, p.n, p.k, min(p.m, p.n), p.dtype
    real = np.dtype(own.char.lower()) if own.kind == "c" else own

    def one(*core: int, dtype: np.dtype[Any] = own) -> Result:
        return (*p.batch, *core), dtype

    op = p.op.removeprefix("linalg.")
    info = () if p.parameter("check", True) else (one(dtype=_INT32),)
    if op in ("lu_factor", "ldl_factor"):
        return one(m, n), one(least, dtype=_INT32), *info
    if op in ("cholesky", "inv", "cholesky_inverse"):
        return one(n, n), *info
    if op in ("solve", "lu_solve", "ldl_solve", "solve_triangular", "cholesky_solve"):
        vector, left = p.parameter("vector", False), p.parameter("left", True)
        return one(*((n,) if vector else (n, k) if left else (k, n))), *info
    if op == "householder_product":
        return (one(m, n),)
    if op == "qr":
        mode = p.parameter("mode", "reduced")
        if mode == "r":
            return ((0,), own), one(least, n)
        return (one(m, m), one(m, n)) if mode == "complete" else (one(m, least), one(least, n))
    if op in ("eigh", "eigvalsh", "svdvals"):
        return one(least, dtype=real), *((one(n, n),) if op == "eigh" else ())
    if op in ("eig", "eigvals"):
        values = np.result_type(own, np.complex64)
        return one(n, dtype=values), *((one(n, n, dtype=values),) if op == "eig" else ())
    if op == "svd":
        full = p.parameter("full_matrices", True)
        return one(m, m if full else least), one(least, dtype=real), one(n if full else least, n)
    if op == "lstsq":
        sides = (n,) if p.parameter("vector", False) else (n, k)
        residuals = one(k, dtype=real) if m > n else ((0,), real)
        return one(*sides), residuals, ((0,), _INT64), ((0,), real)
    return _composed(p, op, one, real)


def _composed(p: LinalgProblem, op: str, one: Any, real: np.dtype[Any]) -> tuple[Result, ...] | None:
    """Results of the operations that libraries have a plan for beside what they are composed of."""
    m, n, least = p.m, p.n, min(p.m, p.n)
    if op == "det":
        return (one(),)
    if op == "slogdet":
        return one(), one(dtype=real)
    if op == "lu":
        return one(m, m), one(m, least), one(least, n)
    if op == "matrix_rank":
        return (one(dtype=_INT64),)
    if op == "pinv":
        return (one(n, m),)
    if op in ("matrix_power", "matrix_exp"):
        return (one(n, n),)
    if op == "cond":
        return (one(dtype=real),)
    if op == "matrix_norm":
        return (one(*(1, 1) if p.parameter("keepdim") else (), dtype=real),)
    return None
