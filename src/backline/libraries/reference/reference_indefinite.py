"""LDL factors, solutions by them, and products of reflectors in NumPy alone: the reference results.

References: J. R. Bunch, L. Kaufman, Some stable methods for calculating inertia and solving symmetric linear systems, Mathematics
of Computation 31 (1977) 163; the results are laid out as LAPACK's `?sytrf`, `?sytrs` and `?orgqr` lay them out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import BadValue, LinAlgError
from ...problems.linalg_problem import LinalgProblem

__all__ = ["check_pivots", "householder_product", "ldl_factor", "ldl_solve"]

Array = Any
ALPHA = (1 + 17**0.5) / 8  # bounds the growth of elements (Bunch and Kaufman)


def check_pivots(pivots: Array) -> None:
    """Raises `BadValue` for pivots that no factorisation returns: native code follows them without looking."""
    if not pivots.size:
        return
    n = pivots.shape[-1]
    rows = np.asarray(pivots, np.int64).reshape(-1, n)
    right = (rows != 0) & (np.abs(rows) <= n)
    for row in rows[(rows < 0).any(axis=1)]:
        k = 0
        while k < n:
            if row[k] < 0 and (k + 1 == n or row[k + 1] != row[k]):
                right[...] = False
            k += 2 if row[k] < 0 else 1
    if not right.all():
        raise BadValue(
            "linalg.ldl_solve: pivots are rows counted from 1, or pairs of equal negative ones",
            remedy="pivots as ldl_factor returns them",
        )


def _size(x: Array) -> Array:
    return np.abs(x.real) + np.abs(x.imag)


def _factor(a: Array, hermitian: bool) -> tuple[Array, Array, int]:
    """LD, pivots and info of one matrix, its lower triangle being read."""
    n = a.shape[0]
    turn = np.conj if hermitian else np.asarray
    low = np.tril(a).astype(np.result_type(a, np.float64))
    if hermitian:
        np.fill_diagonal(low, low.diagonal().real)
    rest = low + turn(np.tril(low, -1)).T  # what is left to factor, in full
    ld, pivots, info = np.zeros_like(rest), np.zeros(n, np.int32), 0
    k = 0
    while k < n:
        step, row = _pivot(rest, k)
        if not row < n:  # nothing in the column
            info, row = info or k + 1, k
            ld[k, k], pivots[k] = rest[k, k], k + 1
            k += 1
            continue
        last = k + step - 1
        for x in (rest, rest.T):
            x[[last, row], k:] = x[[row, last], k:]
        block = rest[k : k + step, k : k + step]
        below = rest[k + step :, k : k + step]
        columns = np.linalg.solve(block.T, below.T).T if below.size else below
        ld[k : k + step, k : k + step] = np.tril(block)
        ld[k + step :, k : k + step] = columns
        rest[k + step :, k + step :] -= columns @ turn(below).T
        pivots[k : k + step] = row + 1 if step == 1 else -(row + 1)
        k += step
    return ld.astype(a.dtype), pivots, info


def _pivot(rest: Array, k: int) -> tuple[int, int]:
    """Returns the rows of the next block, and the row that is interchanged with its last one; a row too far where all is zero."""
    n = rest.shape[0]
    here = _size(rest[k, k])
    column = _size(rest[k + 1 :, k])
    best = k + 1 + int(np.argmax(column)) if column.size else k
    largest = column[best - k - 1] if column.size else 0.0
    if max(here, largest) == 0:
        return 1, n
    if here >= ALPHA * largest:
        return 1, k
    others = _size(rest[best, k:]).copy()
    others[best - k] = 0
    reach = others.max()
    if here * reach >= ALPHA * largest * largest:
        return 1, k
    return (1, best) if _size(rest[best, best]) >= ALPHA * reach else (2, best)


def ldl_factor(p: LinalgProblem, a: Array, *, hermitian: bool = False, check: bool = True) -> Any:
    n = p.n
    ld, pivots = np.empty((p.items, n, n), a.dtype), np.empty((p.items, n), np.int32)
    infos = np.zeros(p.items, np.int32)
    for i, item in enumerate(a.reshape(p.items, n, n)):
        if np.isfinite(np.tril(item)).all():
            ld[i], pivots[i], infos[i] = _factor(item, hermitian)
        else:
            ld[i], pivots[i] = np.tril(np.full((n, n), np.nan)), np.arange(1, n + 1)
        if infos[i] and check:
            raise zero_block(p, i, int(infos[i]))
    parts = ld.reshape(a.shape), pivots.reshape(a.shape[:-1])
    return parts if check else (*parts, infos.reshape(p.batch)[()])


def zero_block(p: LinalgProblem, item: int, info: int) -> LinAlgError:
    where = f"item {item} of the batch: " if p.items > 1 else ""
    return LinAlgError(f"{p.op}: {where}the matrix is singular (D is zero in row {info})")


def ldl_solve(p: LinalgProblem, a: Array, pivots: Array, b: Array, *, hermitian: bool = False) -> Any:
    n, k = p.n, p.k
    check_pivots(pivots)
    lds = np.broadcast_to(a, (*p.batch, n, n)).reshape(p.items, n, n)
    rows = np.broadcast_to(pivots, (*p.batch, n)).reshape(p.items, n)
    x = np.array(np.broadcast_to(b, (*p.batch, n, k)), np.result_type(a, np.float64), order="C").reshape(p.items, n, k)
    for ld, order, columns in zip(lds, rows, x, strict=True):
        _substitute(ld, order, columns, hermitian)
    return x.reshape(*p.batch, n, k).astype(a.dtype, copy=False)


def _substitute(ld: Array, pivots: Array, x: Array, hermitian: bool) -> None:
    n = len(ld)
    turn = np.conj if hermitian else np.asarray
    k = 0
    while k < n:
        step = 1 if pivots[k] > 0 else 2
        row, last, end = abs(int(pivots[k])) - 1, k + step - 1, k + step
        x[[last, row]] = x[[row, last]]
        x[end:] -= ld[end:, k:end] @ x[k:end]
        if step == 1:
            x[k] /= ld[k, k].real if hermitian else ld[k, k]
        else:
            c = ld[k + 1, k]
            first, second = (ld[i, i].real if hermitian else ld[i, i] for i in (k, k + 1))
            first, second = first / turn(c), second / c
            one, two = x[k] / turn(c), x[k + 1] / c
            x[k], x[k + 1] = (second * one - two) / (first * second - 1), (first * two - one) / (first * second - 1)
        k = end
    while k > 0:
        step = 1 if pivots[k - 1] > 0 else 2
        begin, row = k - step, abs(int(pivots[k - 1])) - 1
        x[begin:k] -= turn(ld[k:, begin:k]).T @ x[k:]
        x[[k - 1, row]] = x[[row, k - 1]]
        k = begin


def householder_product(p: LinalgProblem, a: Array, tau: Array) -> Any:
    m, n = p.m, p.n
    result = np.zeros((*p.batch, m, n), np.result_type(a, np.float64))
    result[..., range(n), range(n)] = 1
    for i in reversed(range(p.k)):
        v = np.array(a[..., i:, i : i + 1], result.dtype)
        v[..., 0, :] = 1
        result[..., i:, :] -= tau[..., i, None, None] * (v @ (v.conj().swapaxes(-1, -2) @ result[..., i:, :]))
    return result.astype(a.dtype, copy=False)
