"""Results of linear algebra where there is nothing to compute, over an array namespace: no routine is called for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...problems.linalg_problem import LinalgProblem

__all__ = ["empty"]


def empty(p: LinalgProblem, arrays: dict[str, Any], xp: Any) -> tuple[Any, ...]:
    """Results of a Problem without elements, or without right-hand sides: identities, and zeros."""
    m, n, k, least, mode = p.m, p.n, p.k, min(p.m, p.n), p.parameter("mode", "reduced")
    real = np.dtype(p.dtype.char.lower())

    def zeros(*core: int, dtype: Any = p.dtype) -> Any:
        return xp.zeros((*p.batch, *core), dtype)

    def identity(size: int) -> Any:
        made = zeros(size, size)
        made[...] = xp.eye(size, dtype=p.dtype)
        return made

    op = p.op.removeprefix("linalg.")
    info = () if p.parameter("check", True) else (zeros(dtype=np.int32),)
    if op == "lu_factor":
        return zeros(m, n), zeros(least, dtype=np.int32), *info
    if op in ("cholesky", "inv"):
        return zeros(n, n), *info
    if op == "cholesky_inverse":
        return (zeros(n, n),)
    if op in ("solve", "lu_solve", "solve_triangular", "cholesky_solve"):
        sides = (n,) if p.parameter("vector", False) else (n, k) if p.parameter("left", True) else (k, n)
        return zeros(*sides), *info
    if op == "qr":
        if mode == "r":
            return xp.zeros((0,), p.dtype), zeros(least, n)
        return (identity(m), zeros(m, n)) if mode == "complete" else (zeros(m, least), zeros(least, n))
    if op in ("eigh", "eigvalsh", "svdvals"):
        return zeros(least, dtype=real), *((zeros(n, n),) if op == "eigh" else ())
    if op in ("eig", "eigvals"):
        values = np.result_type(p.dtype, np.complex64)
        return zeros(n, dtype=values), *((zeros(n, n, dtype=values),) if op == "eig" else ())
    if op == "svd":
        full = p.parameter("full_matrices", True)
        u, vh = (identity(m), identity(n)) if full else (zeros(m, least), zeros(least, n))
        return u, zeros(least, dtype=real), vh
    vector = p.parameter("vector", False)
    residuals = xp.zeros((0,), real)
    if m > n:
        b = xp.abs(arrays["b"]) ** 2
        residuals = xp.broadcast_to(b.sum(axis=-1)[..., None] if vector else b.sum(axis=-2), (*p.batch, k)).astype(real)
    return zeros(*((n,) if vector else (n, k))), residuals, xp.zeros((0,), np.int64), xp.zeros((0,), real)
