"""Linear algebra; names, parameters and results as in torch.linalg.

Libraries run what is in `ops.factorise`, `ops.indefinite`, `ops.solve` and `ops.spectra`; `ops.composed`, `ops.norms`,
`ops.exponential` and `ops.tensors` are made of these.
"""

from __future__ import annotations

from .errors import LinAlgError
from .ops.composed import det, lu, matrix_power, matrix_rank, pinv, slogdet
from .ops.exponential import matrix_exp
from .ops.factorise import cholesky, cholesky_ex, lu_factor, lu_factor_ex, qr
from .ops.indefinite import householder_product, ldl_factor, ldl_factor_ex, ldl_solve
from .ops.matmul import matmul
from .ops.norms import cond, matrix_norm, norm, vector_norm
from .ops.products import multi_dot
from .ops.solve import inv, inv_ex, lstsq, lu_solve, solve, solve_ex, solve_triangular
from .ops.spectra import eig, eigh, eigvals, eigvalsh, svd, svdvals
from .ops.tensors import tensorinv, tensorsolve
from .ops.vectors import cross, diagonal, vander, vecdot

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "ldl_factor", "ldl_factor_ex", "ldl_solve", "lstsq", "lu", "lu_factor",
    "lu_factor_ex", "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv",
    "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot",
    "vector_norm",
]  # fmt: skip
