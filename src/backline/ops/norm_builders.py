"""Problems of norms and condition numbers, for the calls that libraries have a plan for; None for all others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..problems import Problem, operand
from ..problems.dtypes import HALVES
from ..problems.norm_problem import NormProblem
from .axes import whole_axes
from .linalg_checks import FLOATS, Array, is_matrix, problem

__all__ = ["condition_problem", "matrix_problem", "norm_problem", "vector_problem"]

INVERSE_SIZE = 128  # matrices so small have condition numbers by their inverse in one plan


def vector_problem(x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Problem | None:
    axes = _whole_axes(x, dim)
    if dtype is not None or axes is None or not _is_order(ord) or type(keepdim) is not bool or 0 in x.shape:
        return None
    return _described("linalg.vector_norm", x, ord, axes, keepdim)


def matrix_problem(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: Any = False, *, dtype: Any = None) -> Problem | None:
    axes = _whole_axes(A, dim)
    if dtype is not None or axes is None or dim is None or len(axes) != 2 or type(keepdim) is not bool or 0 in A.shape:
        return None
    if _is_word(ord, "fro") or (_is_order(ord) and abs(ord) in (1, math.inf)):
        return _described("linalg.matrix_norm", A, ord, axes, keepdim)
    last = set(axes) == {A.ndim - 2, A.ndim - 1}
    if (_is_word(ord, "nuc") or (_is_order(ord) and abs(ord) == 2)) and A.dtype.name in FLOATS and last:
        return _spectral_problem("linalg.matrix_norm", A, {"ord": ord, "keepdim": keepdim})
    return None


def norm_problem(A: Any, ord: Any = None, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> Problem | None:
    if type(dim) is tuple and len(dim) not in (1, 2):
        return None
    if ord is None:
        return vector_problem(A, 2, dim, keepdim, dtype=dtype)
    if dim is None and isinstance(A, np.ndarray) and A.ndim == 2:
        dim = (0, 1)
    if type(dim) is tuple and len(dim) == 2:
        return matrix_problem(A, ord, dim, keepdim, dtype=dtype)
    if (type(dim) is int or (type(dim) is tuple and len(dim) == 1)) or (isinstance(A, np.ndarray) and A.ndim == 1):
        return vector_problem(A, ord, dim, keepdim, dtype=dtype)
    return None


def condition_problem(A: Any, p: Any = None) -> Problem | None:
    if not is_matrix(A):
        return None
    square, spectral = A.shape[-1] == A.shape[-2], p is None or (_is_order(p) and abs(p) == 2)
    by_inverse = _is_word(p, "fro") or (_is_order(p) and abs(p) in (1, math.inf))
    # Of large matrices the inverse and its norms are better taken one after the other, on all threads.
    if not spectral and not (square and (_is_word(p, "nuc") or (by_inverse and A.shape[-1] <= INVERSE_SIZE))):
        return None
    return _spectral_problem("linalg.cond", A, {"p": p})


def _is_order(ord: Any) -> bool:
    """Tells if the order of a norm is a number, and no integer past what floats hold."""
    return type(ord) in (int, float) and ord == ord and (math.isinf(ord) or abs(ord) < 2**53)


def _is_word(ord: Any, word: str) -> bool:
    return type(ord) is str and ord == word


def _whole_axes(x: Any, dim: Any) -> tuple[int, ...] | None:
    """The axes that a call names, none of them negative; None where it is left to the function."""
    if not isinstance(x, np.ndarray) or x.dtype.name not in (*HALVES, *FLOATS):
        return None
    dims = tuple(range(x.ndim)) if dim is None or (type(dim) is tuple and not dim) else (dim,) if type(dim) is int else dim
    return whole_axes(x.ndim, dims)


def _described(op: str, x: Array, ord: Any, axes: tuple[int, ...], keepdim: bool) -> NormProblem:
    result = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdim or i not in axes)
    parameters = (("dim", axes), ("keepdim", keepdim), ("ord", ord))
    return NormProblem(op, (operand("x", x),), parameters, "linalg", result=result)


def _spectral_problem(op: str, A: Array, parameters: dict[str, Any]) -> Problem | None:
    return problem(op, {"a": A}, parameters) if A.size else None
