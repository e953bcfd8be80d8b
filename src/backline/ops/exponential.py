"""The exponential of matrices: Taylor polynomials in few products, scaling and squaring.

`problems.taylor_polynomials` has the polynomials and their reference. Scaling and squaring: N. J. Higham, Functions of Matrices,
chapter 10.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..libraries.array_kinds import kind_of
from ..problems import Problem
from ..problems.dtypes import HALVES
from ..problems.taylor_polynomials import DEGREES, NORMS, T8_INNER, T8_OUTER, T8_SQUARE, T12, T18, X3
from .array_arguments import cast, dtype_of, functions, given
from .composite import on_its_device
from .linalg_checks import is_matrix, matrices, problem
from .matrix_products import matmul
from .planned import planned

__all__ = ["matrix_exp"]

Array = np.ndarray[Any, Any]


def _problem(A: Any) -> Problem | None:
    if not is_matrix(A, square=True) or A.shape[-1] == 1 or not A.size:
        return None
    return problem("linalg.matrix_exp", {"a": A}, {})


def _flops(m: int, n: int, k: int) -> float:
    return 10.0 * n**3  # five products


@planned(_problem, "matmul", flops=_flops)
@on_its_device
def matrix_exp(A: Array) -> Array:
    """Exponential of square matrices.

    Parameters
    ----------
    A
        Shape (..., n, n); float16 and bfloat16 are computed in float32.

    {returns_array}
        Shape (..., n, n). A matrix of more than one element that holds NaN or infinity has NaN everywhere.

    {raises}
        Not square matrices of real or complex numbers.

    Notes
    -----
    Products of matrices alone: the Taylor polynomial of the degree that the norm asks for, after scaling by a power of two where
    that is too large, and as many squarings (Bader, Blanes and Casas 2019, as in PyTorch). Matrices of a batch take the degree of
    their own norm in NumPy's arrays; in those of devices, where norms are read back, that of the largest.

    {examples}
    >>> backline.linalg.matrix_exp(np.array([[0.0, 1.0], [0.0, 0.0]]))
    array([[1., 1.],
           [0., 1.]])
    """
    dtype = dtype_of(given(A, "linalg.matrix_exp: A"))
    if dtype.name in HALVES:
        return cast(matrix_exp(cast(A, np.float32)), dtype.newbyteorder("="))
    a = matrices("linalg.matrix_exp", A, square=True)
    xp, n = functions(a), a.shape[-1]
    if 0 in a.shape:
        empty: Array = xp.zeros(a.shape, dtype=a.dtype)
        return empty
    if n == 1:
        with np.errstate(all="ignore"):
            numbers: Array = xp.exp(a)
            return numbers
    single = dtype_of(a).name in ("float32", "complex64")
    norms = NORMS["single" if single else "double"]
    with np.errstate(all="ignore"):
        if kind_of(a) is not None:
            return _of_norm(xp, a, float(xp.max(xp.sum(xp.abs(a), axis=-2))), norms)
        flat = a.reshape(-1, n, n)
        sizes = np.abs(flat).sum(axis=-2, dtype=np.float64).max(axis=-1)
        if len(flat) == 1:
            return _of_norm(np, a, float(sizes[0]), norms)
        result = np.full(flat.shape, np.nan, a.dtype.newbyteorder("="))
        steps = np.searchsorted(norms, sizes)
        for step in np.unique(steps[np.isfinite(sizes)]):
            chosen = np.flatnonzero((steps == step) & np.isfinite(sizes))
            if step < len(DEGREES):
                result[chosen] = _taylor(np, flat[chosen], DEGREES[step])
            else:
                result[chosen] = _squared(flat[chosen], np.ceil(np.log2(sizes[chosen] / norms[-1])).astype(int))
        return result.reshape(a.shape)


def _of_norm(xp: Any, a: Array, size: float, norms: tuple[float, ...]) -> Array:
    """The exponentials of matrices whose largest norm is known."""
    if not math.isfinite(size):
        return cast(xp.zeros(a.shape, dtype=a.dtype) + math.nan, dtype_of(a))
    degree = next((d for d, limit in zip(DEGREES, norms, strict=True) if size <= limit), 0)
    if degree:
        return _taylor(xp, a, degree)
    times = math.ceil(math.log2(size / norms[-1]))
    result = _taylor(xp, a * 2.0**-times, DEGREES[-1])
    for _ in range(times):
        result = matmul(result, result)
    return result


def _squared(a: Array, times: Array) -> Array:
    """The exponentials of matrices that are scaled by powers of two of their own."""
    scale = np.ldexp(1.0, -times)[:, None, None].astype(a.real.dtype)
    result = _taylor(np, a * scale, DEGREES[-1])
    for i in range(1, int(times.max()) + 1):
        chosen = times >= i
        if chosen.all():
            result = matmul(result, result)
        else:
            part = result[chosen]
            result[chosen] = matmul(part, part)
    return result


def _taylor(xp: Any, a: Array, degree: int) -> Array:
    """Taylor polynomial of the exponential; degrees from 8 in 3, 4 and 5 products."""
    one: Array = xp.eye(a.shape[-1], dtype=a.dtype)
    if degree == 1:
        return one + a
    a2 = matmul(a, a)
    if degree == 2:
        return one + a + a2 * 0.5
    if degree == 4:
        return one + a + matmul(a2, _sum((0.5, 1 / 6, 1 / 24), (one, a, a2)))
    if degree == 8:
        a4 = matmul(a2, _sum(T8_INNER, (a, a2)))
        return one + a + a2 * T8_SQUARE + matmul(a2 * X3 + a4, _sum(T8_OUTER, (one, a, a2, a4)))
    a3 = matmul(a2, a)
    if degree == 12:
        b = [_sum(row, (one, a, a2, a3)) for row in T12]
        a6 = b[2] + matmul(b[3], b[3])
        return b[0] + matmul(b[1] + a6, a6)
    powers = (one, a, a2, a3, matmul(a3, a3))
    b = [_sum(row, powers) for row in T18]
    a9 = b[3] + matmul(b[0], b[4])
    return b[1] + matmul(b[2] + a9, a9)


def _sum(factors: tuple[float, ...], arrays: tuple[Array, ...]) -> Array:
    total: Array | None = None
    for factor, array in zip(factors, arrays, strict=True):
        if factor:
            term = array * factor
            total = term if total is None else total + term
    assert total is not None
    return total
