"""Norms of vectors and matrices of every order, condition numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import near

DTYPES = ("float32", "float64", "complex64", "complex128")
ORDERS = (2, 2, 1, 0, np.inf, -np.inf, 3, 0.5, -1, -2, -3.5, 1.5, 7, -0.25)


def _real(dtype: str) -> Any:
    return np.zeros(0, dtype).real.dtype


def exact_norm(x: Array, p: float, axes: tuple[int, ...], keep: bool) -> Array:
    """The norm in long double, with elements scaled so that no power leaves its range."""
    a = np.abs(x).astype(np.longdouble)
    with np.errstate(all="ignore"):
        if p == np.inf:
            return np.max(a, axes, keepdims=keep)
        if p == -np.inf:
            return np.min(a, axes, keepdims=keep)
        if p == 0:
            return np.sum(a != 0, axes, keepdims=keep).astype(np.longdouble)
        pick = np.max if p > 0 else np.min
        unit = pick(a, axes, keepdims=True, initial=0 if p > 0 else np.inf)
        unit = np.where((unit > 0) & np.isfinite(unit), unit, 1)
        total = unit * np.sum((a / unit) ** np.longdouble(p), axes, keepdims=True) ** (1 / np.longdouble(p))
        return total if keep else np.squeeze(total, axes)


def _bound(reference: Array, p: float, count: int, dtype: Any) -> Array:
    f = FORMATS[dtype.name]
    with np.errstate(all="ignore"):
        # The root of a sum that is off by so many roundings, whose terms are powers.
        factor = (count + 8) / max(abs(p), 1) if p and math.isfinite(p) else 4
        grow = 8 + 4 * (abs(p) + 1 / abs(p) * 40) if p not in (0, 1, 2) and math.isfinite(p) else 8
        return f.eps * np.abs(reference) * (factor * max(1, 1 / abs(p) if p and math.isfinite(p) else 1) + grow) + 4 * f.tiny


def _some_axes(draw: Draw, rank: int) -> tuple[Any, tuple[int, ...]]:
    if draw.chance(0.4) or not rank:
        return None, tuple(range(rank))
    axes = list(range(rank))
    draw.random.shuffle(axes)
    axes = axes[: draw.whole(1, rank)]
    dim: Any = axes[0] - rank if len(axes) == 1 and draw.chance(0.7) else tuple(axes)
    return dim, tuple(axes)


@generates("norms", "linalg.vector_norm", weight=4)
def vector(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    rank = draw.choice((0, 1, 1, 1, 2, 3))
    shape = draw.shape(rank, 65, 3000, 0)
    if rank == 1 and draw.chance(0.1) and not draw.plain.size:
        shape = (draw.whole(100, 3000),)
    x = draw.array(shape, dtype)
    p = draw.choice(ORDERS)
    dim, axes = _some_axes(draw, rank)
    keep = draw.chance(0.3)
    reference = np.asarray(exact_norm(wide(x), p, axes, keep))
    count = math.prod(x.shape[a] for a in axes)
    kind = _real(dtype)
    bound = _bound(reference, p, count, kind)
    kwargs = {k: v for k, v in (("dim", dim), ("keepdim", keep)) if v is not None and v is not False}
    return Call(op, (x, p), kwargs, lambda result: near(result, reference, bound, kind, special="any"))


@generates("norms", "linalg.matrix_norm", "linalg.norm", weight=3)
def matrix(draw: Draw, op: str) -> Call:
    if draw.values in ("special", "huge", "tiny"):
        draw.values = "normal"
    dtype = draw.choice(DTYPES)
    shape = draw.shape(draw.choice((2, 2, 3)), 17, 1000, 0)
    x = draw.array(shape, dtype)
    p: Any = draw.choice(("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf))
    axes = list(range(len(shape)))
    draw.random.shuffle(axes)
    dim = (axes[0], axes[1]) if len(shape) > 2 or draw.chance(0.4) else None
    keep = draw.chance(0.3)
    given = dim if dim is not None else (-2, -1)
    w = wide(x)
    if p == "fro":
        reference = exact_norm(w, 2, given, keep)
    elif p in ("nuc", 2, -2):
        moved = np.moveaxis(w, given, (-2, -1)).astype(np.complex128)
        s = np.linalg.svd(moved, compute_uv=False)
        reference = s.sum(-1) if p == "nuc" else s.max(-1) if p == 2 else s.min(-1)
        reference = np.expand_dims(reference, [g % x.ndim for g in given]) if keep else reference
    else:
        summed, kept = given if p in (1, -1) else given[::-1]
        s = np.abs(w).sum(summed, keepdims=True)
        reference = (s.max if p in (1, np.inf) else s.min)(kept, keepdims=True)
        reference = reference if keep else np.squeeze(reference, tuple(given))
    kind = _real(dtype)
    f = FORMATS[kind.name]
    reference = np.asarray(reference, np.longdouble)
    size = np.sqrt((np.abs(w) ** 2).sum(tuple(given), keepdims=keep)) if p in ("nuc", 2, -2) else np.abs(reference)
    bound = f.eps * (8 + 4 * sum(x.shape)) * size + f.tiny * 4
    kwargs = {k: v for k, v in (("dim", dim), ("keepdim", keep)) if v is not None and v is not False}
    return Call(op, (x, p), kwargs, lambda result: near(result, reference, bound, kind))


@generates("norms", "linalg.cond")
def cond(draw: Draw, op: str) -> Call:
    draw.values = draw.choice(("normal", "normal", "whole"))
    dtype = draw.choice(DTYPES)
    n = draw.size(17, 0)
    p: Any = draw.choice((None, 2, -2, "fro", "nuc", 1, -1, np.inf, -np.inf))
    batch = tuple(draw.size(3, 0) for _ in range(draw.choice((0, 0, 1))))
    x = draw.array((*batch, n, n), dtype)
    w = wide(x).astype(np.complex128)
    s = np.linalg.svd(w, compute_uv=False)
    with np.errstate(all="ignore"):
        k = s[..., 0] / s[..., -1]
        if p in (None, 2):
            reference = k
        elif p == -2:
            reference = 1 / k
        else:
            sane = np.where(((k < 1e12) & np.isfinite(k))[..., None, None], w, np.eye(n))
            reference = np.asarray(np.linalg.norm(sane, p, (-2, -1)) * np.linalg.norm(np.linalg.inv(sane), p, (-2, -1)))
        kind = _real(dtype)
        f = FORMATS[kind.name]
        bound = f.eps * (16 + 8 * n * n) * np.asarray(k) * np.abs(reference)
        bound = np.where(np.asarray(k) * f.eps * (16 + 8 * n * n) > 0.3, np.inf, bound)
    return Call(op, (x, p), {}, lambda result: near(result, np.asarray(reference, np.longdouble), bound, kind))
