"""Linear algebra; names, parameters and results as in torch.linalg.

See `backline.ops.linalg` (what libraries run) and `backline.ops.composed` (what is made of it).
"""

from __future__ import annotations

from .ops.composed import cond, det, lu, matrix_norm, matrix_power, matrix_rank, multi_dot, norm, pinv, slogdet, vector_norm
from .ops.linalg import (
    LinAlgError,
    cholesky,
    cholesky_ex,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    inv_ex,
    lstsq,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    qr,
    solve,
    solve_ex,
    solve_triangular,
    svd,
    svdvals,
)
from .ops.matmul import matmul

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "lstsq", "lu",
    "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv",
    "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "vector_norm",
]  # fmt: skip
