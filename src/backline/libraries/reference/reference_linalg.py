"""Linear algebra in NumPy alone: the reference results, for small sizes or where no LAPACK can be had.

Every function takes the Problem, the arrays, and the Problem's parameters as keywords. Batches are NumPy's where it has
them, else loops.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ...errors import BadValue, LinAlgError
from ...problems.linalg_problem import LinalgProblem, not_definite, singular
from ...processors import usable_cpus

Array = Any


@lru_cache(maxsize=1)
def blas_threads() -> int:
    """Threads that NumPy's BLAS uses: a bound, as its own variables give it or else the processors."""
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return len(usable_cpus())


def _batched(p: LinalgProblem, array: Array, core: int = 2) -> Array:
    """The array with its batch broadcast and flattened: (items, ...)."""
    shape = array.shape[array.ndim - core :]
    return np.broadcast_to(array, (*p.batch, *shape)).reshape(p.items, *shape)


def _shaped(p: LinalgProblem, items: list[Array], core: tuple[int, ...], dtype: Any) -> Array:
    if not items:
        return np.empty((*p.batch, *core), dtype)
    return np.stack(items).reshape((*p.batch, *core)).astype(dtype, copy=False)[()]


def _real(dtype: Any) -> Any:
    return np.dtype(dtype.char.lower())


# Factorisations -----------------------------------------------------------------------------------------------------


def cholesky(p: LinalgProblem, a: Array, *, upper: bool = False, check: bool = True) -> Any:
    n = p.n
    factors, infos = [], []
    for item in _batched(p, a):
        triangle = np.triu(item) if upper else np.tril(item)
        low = triangle.conj().T if upper else triangle
        factor, info = _cholesky(low)
        if info and check:
            raise LinAlgError(f"linalg.cholesky: {not_definite(info)}")
        factors.append(factor.conj().T if upper else factor)
        infos.append(np.int32(info))
    factor = _shaped(p, factors, (n, n), a.dtype)
    return factor if check else (factor, _shaped(p, infos, (), np.int32))


def _cholesky(low: Array) -> tuple[Array, int]:
    if not np.isfinite(low).all():
        return low, 1  # as if the first minor had failed, whatever runs
    n = low.shape[0]
    full = low + np.tril(low, -1).conj().T
    try:
        return np.linalg.cholesky(full), 0
    except np.linalg.LinAlgError:
        pass  # column by column below, to learn where it fails
    factor = low.astype(np.result_type(low, np.float64))
    for j in range(n):
        d = factor[j, j].real - np.sum(np.abs(factor[j, :j]) ** 2)
        if not d > 0:
            return low, j + 1
        factor[j, j] = np.sqrt(d)
        factor[j + 1 :, j] = (factor[j + 1 :, j] - factor[j + 1 :, :j] @ factor[j, :j].conj()) / factor[j, j]
    return np.tril(factor).astype(low.dtype), 0


def _lu(a: Array) -> tuple[Array, Array, int]:
    """Partial pivoting, column by column; interchanges counted from 1, info as LAPACK's getrf."""
    m, n = a.shape
    lu = np.array(a, dtype=np.result_type(a, np.float64))
    pivots = np.arange(1, min(m, n) + 1, dtype=np.int32)
    info = 0
    for j in range(min(m, n)):
        size = np.abs(lu[j:, j].real) + np.abs(lu[j:, j].imag)
        best = j + int(np.argmax(size))
        pivots[j] = best + 1
        if best != j:
            lu[[j, best]] = lu[[best, j]]
        if lu[j, j] == 0:
            info = info or j + 1
            continue
        lu[j + 1 :, j] /= lu[j, j]
        lu[j + 1 :, j + 1 :] -= np.outer(lu[j + 1 :, j], lu[j, j + 1 :])
    return lu.astype(a.dtype), pivots, info


def _zero_pivot(a: Array) -> int:
    """Returns the position at which NumPy found a matrix singular; 0 where that was NaN or infinity, which spread."""
    return (_lu(a)[2] or len(a)) if np.isfinite(a).all() else 0


def _singular(op: str, info: int) -> LinAlgError:
    return LinAlgError(f"{op}: {singular(op, info)}")


def lu_factor(p: LinalgProblem, a: Array, *, check: bool = True) -> Any:
    parts = [_lu(item) for item in _batched(p, a)]
    for *_, info in parts:
        if info and check:
            raise _singular(p.op, info)
    lu = _shaped(p, [x[0] for x in parts], (p.m, p.n), a.dtype)
    pivots = _shaped(p, [x[1] for x in parts], (min(p.m, p.n),), np.int32)
    return (lu, pivots) if check else (lu, pivots, _shaped(p, [np.int32(x[2]) for x in parts], (), np.int32))


def qr(p: LinalgProblem, a: Array, *, mode: str = "reduced") -> Any:
    if mode == "r":
        return np.empty(0, a.dtype), np.linalg.qr(a, mode="r")
    q, r = np.linalg.qr(a, mode="complete" if mode == "complete" else "reduced")
    return q, r


# Solving ------------------------------------------------------------------------------------------------------------


def _item_by_item(
    p: LinalgProblem, matrices: Array, sides: Array, compute: Callable[[Array, Array], Array], core: tuple[int, ...], check: bool
) -> Any:
    """Computes a function of each matrix and its right-hand side; NaN where a matrix is singular, or an error with `check`."""
    results, infos = [], []
    for matrix, side in zip(matrices, sides, strict=True):
        try:
            results.append(compute(matrix, side))
            infos.append(np.int32(0))
        except np.linalg.LinAlgError:
            info = _zero_pivot(matrix)
            if check and info:
                raise _singular(p.op, info) from None
            results.append(np.full_like(side, np.nan))
            infos.append(np.int32(info))
    out = _shaped(p, results, core, matrices.dtype)
    return out if check else (out, _shaped(p, infos, (), np.int32))


def inv(p: LinalgProblem, a: Array, *, check: bool = True) -> Any:
    items = _batched(p, a)
    return _item_by_item(p, items, items, lambda x, _: np.linalg.inv(x), (p.n, p.n), check)


def solve(p: LinalgProblem, a: Array, b: Array, *, left: bool = True, check: bool = True) -> Any:
    def compute(x: Array, y: Array) -> Array:
        return np.linalg.solve(x, y) if left else np.linalg.solve(x.T, y.T).T

    core = 1 if p.parameter("vector", False) else 2
    return _item_by_item(p, _batched(p, a), _batched(p, b, core), compute, b.shape[b.ndim - core :], check)


def _permutation(pivots: Array, n: int) -> Array:
    order = np.arange(n)
    if np.any((pivots < 1) | (pivots > n)):
        raise BadValue(
            "linalg.lu_solve: a pivot is not one of the rows, which are counted from 1", remedy="pivots as lu_factor returns them"
        )
    for i, j in enumerate(np.asarray(pivots) - 1):
        order[[i, j]] = order[[j, i]]
    return order


def lu_solve(p: LinalgProblem, a: Array, pivots: Array, b: Array, *, left: bool = True, adjoint: bool = False) -> Any:
    vector = bool(p.parameter("vector", False))
    results = []
    items = zip(_batched(p, a), _batched(p, pivots, 1), _batched(p, b, 1 if vector else 2), strict=True)
    for lu, piv, y in items:
        low, up = np.tril(lu, -1) + np.eye(p.n, dtype=lu.dtype), np.triu(lu)
        full = np.empty_like(lu)
        full[_permutation(piv, p.n)] = low @ up
        full = full.conj().T if adjoint else full
        results.append(np.linalg.solve(full, y) if left else np.linalg.solve(full.T, y.T).T)
    return _shaped(p, results, b.shape[b.ndim - (1 if vector else 2) :], a.dtype)


def solve_triangular(
    p: LinalgProblem, a: Array, b: Array, *, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> Any:
    results = []
    for x, y in zip(_batched(p, a), _batched(p, b), strict=True):
        triangle = np.triu(x) if upper else np.tril(x)
        if unitriangular:
            np.fill_diagonal(triangle, 1)  # not by arithmetic: what is on the diagonal may be NaN
        results.append(_substitute(triangle, y, upper) if left else _substitute(triangle.T, y.T, not upper).T)
    return _shaped(p, results, b.shape[-2:], a.dtype)


def _substitute(t: Array, y: Array, upper: bool) -> Array:
    """Row by row: a zero on the diagonal gives infinities, as BLAS does, not an error."""
    n = t.shape[0]
    x = y.astype(np.result_type(y, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in reversed(range(n)) if upper else range(n):
            known = slice(i + 1, n) if upper else slice(0, i)
            x[i] = (x[i] - t[i, known] @ x[known]) / t[i, i]
    return x


def cholesky_solve(p: LinalgProblem, a: Array, b: Array, *, upper: bool = False) -> Any:
    results = []
    for x, y in zip(_batched(p, a), _batched(p, b), strict=True):
        factor = np.triu(x).conj().T if upper else np.tril(x)
        middle = _substitute(factor, y, False)
        results.append(_substitute(factor.conj().T, middle, True))
    return _shaped(p, results, b.shape[-2:], a.dtype)


def cholesky_inverse(p: LinalgProblem, a: Array, *, upper: bool = False) -> Any:
    results = []
    for x in _batched(p, a):
        factor = np.triu(x).conj().T if upper else np.tril(x)
        zero = np.flatnonzero(np.diag(factor) == 0)
        if zero.size:
            raise LinAlgError(f"cholesky_inverse: element {zero[0] + 1} of the diagonal is zero, the factor is singular")
        half = _substitute(factor, np.eye(p.n, dtype=x.dtype), False)
        results.append(half.conj().T @ half)
    return _shaped(p, results, (p.n, p.n), a.dtype)


def lstsq(p: LinalgProblem, a: Array, b: Array, *, driver: str | None = None, rcond: float = 0.0) -> Any:
    vector = bool(p.parameter("vector", False))
    xs, residuals, ranks, values = [], [], [], []
    for x, y in zip(_batched(p, a), _batched(p, b, 1 if vector else 2), strict=True):
        solution, residual, rank, s = np.linalg.lstsq(x, y, rcond=rcond)
        xs.append(solution)
        residuals.append(np.atleast_1d(residual))
        ranks.append(np.int64(rank))
        values.append(s)
    real = _real(a.dtype)
    out = _shaped(p, xs, (p.n,) if vector else (p.n, p.k), a.dtype)
    complete = driver in ("gels", "gelsd", "gelss") and p.m > p.n and all(r.size for r in residuals)
    left_over = _shaped(p, residuals, (p.k,), real) if complete else np.empty(0, real)
    s = _shaped(p, values, (min(p.m, p.n),), real) if driver in ("gelsd", "gelss") else np.empty(0, real)
    return out, left_over, np.empty(0, np.int64) if driver == "gels" else _shaped(p, ranks, (), np.int64), s


# Eigenvalues and singular values ------------------------------------------------------------------------------------


def eigh(p: LinalgProblem, a: Array, *, UPLO: Literal["L", "U"] = "L") -> Any:
    return tuple(np.linalg.eigh(a, UPLO))


def eigvalsh(p: LinalgProblem, a: Array, *, UPLO: Literal["L", "U"] = "L") -> Any:
    return np.linalg.eigvalsh(a, UPLO)


def _complex(array: Array) -> Array:
    return array.astype(np.result_type(array.dtype, np.complex64), copy=False)


def eig(p: LinalgProblem, a: Array) -> Any:
    values, vectors = np.linalg.eig(a)
    return _complex(values), _complex(vectors)


def eigvals(p: LinalgProblem, a: Array) -> Any:
    return _complex(np.linalg.eigvals(a))


def svd(p: LinalgProblem, a: Array, *, full_matrices: bool = True, driver: str | None = None) -> Any:
    return tuple(np.linalg.svd(a, full_matrices=full_matrices))


def svdvals(p: LinalgProblem, a: Array, *, driver: str | None = None) -> Any:
    return np.linalg.svd(a, compute_uv=False)
