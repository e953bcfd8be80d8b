"""The matrices of LDL factors and of reflectors, times vectors, in the widest arithmetic of NumPy: for `accuracy_linalg`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .double_double import Pair

__all__ = ["by_factors", "by_reflectors", "symmetric"]

Array = Any


def _wide(x: Array) -> Array:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def _pair(x: Array) -> Pair:
    high = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return Pair(high, (x - high).astype(high.dtype))


def symmetric(a: Array, hermitian: bool) -> Array:
    """The whole matrix whose lower triangle is that of `a`."""
    low = np.tril(a, -1)
    diagonal = np.einsum("...ii->...i", a)
    turned = np.swapaxes(low.conj() if hermitian else low, -1, -2)
    return low + turned + (diagonal.real if hermitian else diagonal)[..., None] * np.eye(a.shape[-1])


def by_factors(ld: Array, pivots: Array, x: Array, hermitian: bool) -> Pair:
    """The matrix of LDL factors, times vectors."""
    batch = np.broadcast_shapes(ld.shape[:-2], x.shape[:-2])
    n, k = x.shape[-2:]
    y = np.array(np.broadcast_to(_wide(x), (*batch, n, k)), np.result_type(_wide(ld), _wide(x))).reshape(-1, n, k)
    factors = np.broadcast_to(_wide(ld), (*batch, n, n)).reshape(-1, n, n)
    orders = np.broadcast_to(pivots, (*batch, n)).reshape(-1, n)
    for item, order, columns in zip(factors, orders, y, strict=True):
        _times(item, order, columns, hermitian)
    return _pair(y.reshape(*batch, n, k))


def _times(ld: Array, pivots: Array, y: Array, hermitian: bool) -> None:
    n = len(ld)
    blocks, k = [], 0
    while k < n:
        step = 1 if pivots[k] > 0 else 2
        blocks.append((k, k + step, abs(int(pivots[k])) - 1))
        k += step
    for first, end, row in blocks:
        y[[end - 1, row]] = y[[row, end - 1]]
        below = ld[end:, first:end]
        y[first:end] += (below.conj() if hermitian else below).T @ y[end:]
    for first, end, _ in blocks:
        y[first:end] = symmetric(ld[first:end, first:end], hermitian) @ y[first:end]
    for first, end, row in reversed(blocks):
        y[end:] += ld[end:, first:end] @ y[first:end]
        y[[end - 1, row]] = y[[row, end - 1]]


def by_reflectors(a: Array, tau: Array, x: Array) -> Pair:
    """The product of reflectors, times vectors that begin with `x` and end with zeros."""
    a, tau = _wide(a), _wide(tau)
    m, k = a.shape[-2], tau.shape[-1]
    y = np.zeros((*a.shape[:-2], m, x.shape[-1]), np.result_type(a, x))
    y[..., : x.shape[-2], :] = x
    for i in reversed(range(k)):
        v = a[..., i:, i : i + 1].copy()
        v[..., 0, :] = 1
        y[..., i:, :] -= tau[..., i, None, None] * (v @ (v.conj().swapaxes(-1, -2) @ y[..., i:, :]))
    return _pair(y)
