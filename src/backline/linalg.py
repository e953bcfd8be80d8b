"""Linear algebra; names, parameters and results as in torch.linalg.

Libraries run what is in `ops.factorizations`, `ops.symmetric_indefinite`, `ops.linear_systems` and `ops.eigenvalues`;
`ops.composed_linalg`, `ops.norms`, `ops.exponential` and `ops.tensor_equations` are made of these.
"""

from __future__ import annotations

from .errors import LinAlgError
from .ops.composed_linalg import det, lu, matrix_power, matrix_rank, pinv, slogdet
from .ops.eigenvalues import eig, eigh, eigvals, eigvalsh, svd, svdvals
from .ops.exponential import matrix_exp
from .ops.factorizations import cholesky, cholesky_ex, lu_factor, lu_factor_ex, qr
from .ops.linear_systems import inv, inv_ex, lstsq, lu_solve, solve, solve_ex, solve_triangular
from .ops.matrix_chains import multi_dot
from .ops.matrix_products import matmul
from .ops.norms import cond, matrix_norm, norm, vector_norm
from .ops.symmetric_indefinite import householder_product, ldl_factor, ldl_factor_ex, ldl_solve
from .ops.tensor_equations import tensorinv, tensorsolve
from .ops.vectors import cross, diagonal, vander, vecdot

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "ldl_factor", "ldl_factor_ex", "ldl_solve", "lstsq", "lu", "lu_factor",
    "lu_factor_ex", "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv",
    "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot",
    "vector_norm",
]  # fmt: skip
