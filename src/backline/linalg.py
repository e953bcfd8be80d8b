"""Linear algebra; names, parameters and results as in torch.linalg.

Libraries run what is in `ops.factorise`, `ops.solve` and `ops.spectra`; `ops.composed`, `ops.norms` are made of these.
"""

from __future__ import annotations

from .errors import LinAlgError
from .ops.composed import det, lu, matrix_power, matrix_rank, pinv, slogdet
from .ops.factorise import cholesky, cholesky_ex, lu_factor, lu_factor_ex, qr
from .ops.matmul import matmul
from .ops.norms import cond, matrix_norm, norm, vector_norm
from .ops.products import multi_dot
from .ops.solve import inv, inv_ex, lstsq, lu_solve, solve, solve_ex, solve_triangular
from .ops.spectra import eig, eigh, eigvals, eigvalsh, svd, svdvals

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "lstsq", "lu",
    "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv",
    "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "vector_norm",
]  # fmt: skip
