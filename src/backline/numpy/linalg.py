"""Linear algebra as numpy.linalg has it, run by Backline.

A function computes with Backline's libraries where its matrices are ordinary arrays of numbers; empty matrices, subclasses and
wrong shapes go to NumPy's own function, whose results and errors they have.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .decompositions import cholesky, eig, eigh, eigvals, eigvalsh, qr, svd, svdvals
from .equations import det, inv, lstsq, matrix_power, multi_dot, pinv, slogdet, solve, tensorinv, tensorsolve
from .matrix_sizes import cond, matrix_norm, matrix_rank, norm, vector_norm
from .products import matmul, tensordot

__all__ = [
    "LinAlgError", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet",
    "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip

LinAlgError = np.linalg.LinAlgError
cross, diagonal, outer, trace = np.linalg.cross, np.linalg.diagonal, np.linalg.outer, np.linalg.trace
matrix_transpose, vecdot = np.linalg.matrix_transpose, np.linalg.vecdot


def __getattr__(name: str) -> Any:
    return getattr(np.linalg, name)
