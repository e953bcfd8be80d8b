"""Attention, its gradients, and multi-head attention."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import like, near, normwise

DTYPES = ("float32",) * 4 + ("float64",) * 2 + ("float16", "bfloat16")
TAME = ("normal", "normal", "normal", "zeros", "whole")


def formula(q: Array, k: Array, v: Array, mask: Array | None, factor: float) -> tuple[Array, Array, Array]:
    """Result, weights, scores."""
    with np.errstate(all="ignore"):
        s = np.matmul(q, np.swapaxes(k, -1, -2)) * factor
        scores = s
        if mask is not None:
            s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
        top = np.max(s, -1, keepdims=True, initial=-np.inf)
        e = np.where(np.isneginf(s), 0, np.exp(s - np.where(np.isneginf(top), 0, top)))
        total = e.sum(-1, keepdims=True)
        p = e / np.where(total == 0, 1, total)
        return np.matmul(p, v), p, scores


def rounding(dtype: str, q: Array, k: Array, v: Array, mask: Array | None, factor: float) -> tuple[Array, Array, Array, Array]:
    """Result, scores, and how far results and log-sum-exps of a library may be off, the latter with an axis of one element."""
    reference, _, scores = formula(q, k, v, mask, factor)
    # Scores are off by the rounding of a product; weights by twice as much, relatively; then another product.
    f = FORMATS[dtype]
    sizes = np.matmul(np.abs(q), np.abs(np.swapaxes(k, -1, -2))) * abs(factor)
    extra = 0.0 if mask is None or mask.dtype == bool else float(np.max(np.abs(mask[np.isfinite(mask)]), initial=0))
    worst = np.max(sizes, -1, keepdims=True, initial=0) * (q.shape[-1] + 8) + 4 * np.max(np.abs(scores), -1, keepdims=True, initial=0)
    off = f.accumulate * 4 * (worst + 4 * extra + k.shape[-2] + 32)
    spread, _, _ = formula(q, k, np.abs(v), mask, factor)
    # Weights of 16-bit floats may be rounded to those before the second product.
    bound = off * spread + (3 * f.eps if f.eps != f.accumulate else 0) * spread + f.eps * np.abs(reference) + 8 * f.tiny
    return reference, scores, bound, off


def gradients(q: Array, k: Array, v: Array, dy: Array, mask: Array | None, factor: float) -> tuple[Array, Array, Array, Array, float, float]:
    """Gradients by query, key, value and scores, the size of the last of them, and by how much softmax may enlarge errors."""
    _, p, _ = formula(q, k, v, mask, factor)
    dp = np.matmul(dy, np.swapaxes(v, -1, -2))
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    dq, dk, dv = np.matmul(ds, k) * factor, np.matmul(np.swapaxes(ds, -1, -2), q) * factor, np.matmul(np.swapaxes(p, -1, -2), dy)
    grown = float(np.max(np.abs(q), initial=0) * np.max(np.abs(k), initial=0)) * q.shape[-1] * abs(factor) + 1
    return dq, dk, dv, ds, float(np.max(np.abs(dp), initial=0)) * factor, 1 + grown / 8


class Case:
    """A random attention, and its result in wide arithmetic."""

    def __init__(self, draw: Draw) -> None:
        draw.values = draw.choice(TAME)
        self.dtype = draw.choice(DTYPES)
        lq, lk = draw.size(33), draw.size(33)
        if draw.chance(0.03) and not draw.plain.size:
            lq, lk = (draw.whole(60, 300), lk) if draw.chance(0.5) else (lq, draw.whole(60, 300))
        e, ev = draw.choice((1, 2, 3, 4, 8, 16, 17, 32)), draw.choice((1, 2, 3, 4, 8, 16, 17, 32))
        if draw.chance(0.4):
            lk, ev = lq, e
        heads = draw.choice((1, 1, 2, 3))
        rank = draw.choice((2, 3, 3, 4, 4))
        lead = (*(draw.size(3, 0) for _ in range(max(rank - 3, 0))), *((heads,) if rank > 2 else ()))
        self.gqa = rank > 2 and draw.chance(0.2)
        share = draw.choice((1, 2, 3)) if self.gqa else 1
        query_lead = (*lead[:-1], lead[-1] * share) if lead else ()
        other = tuple(1 if not self.gqa and draw.chance(0.05) else n for n in lead)
        self.q = self._heads(draw, query_lead, lq, e)
        self.k, self.v = self._heads(draw, lead, lk, e), self._heads(draw, other, lk, ev)
        self.causal = draw.chance(0.25)
        self.mask = None
        if not self.causal and draw.chance(0.4):
            lengths = draw.choice(((lq, lk), (lq, lk), (1, lk), (lq, 1), (*query_lead, lq, lk)))
            if draw.chance(0.5):
                keep = draw.fill(lengths, "bool")
                self.mask = draw.lay_out(keep)
            else:
                added = draw.fill(lengths, "float32", "normal").astype(np.float64)
                if draw.chance(0.3):
                    added = np.where(draw.fill(lengths, "bool"), added, -np.inf)
                narrow = "float32" if draw.chance(0.5) else self.dtype
                self.mask = draw.lay_out(added.astype(draw.fill((0,), narrow).dtype))
        self.scale = draw.choice((None, None, 0.5, 1.0))
        self.factor = 1 / math.sqrt(e) if self.scale is None else self.scale
        self.share, self.e, self.lk = share, e, lk

    def _heads(self, draw: Draw, lead: tuple[int, ...], length: int, e: int) -> Array:
        """Sometimes with heads innermost but one, as projections leave them."""
        x = draw.fill((*lead, length, e), self.dtype)
        if lead and draw.chance(0.3) and draw.layouts and not draw.plain.layout:
            return draw.lay_out(np.ascontiguousarray(x.swapaxes(-2, -3)), "C").swapaxes(-2, -3)
        return draw.lay_out(x)

    def operands(self) -> tuple[Array, Array, Array, Array | None, float]:
        """Query, key and value in wide arithmetic, with as many heads each, the mask, and the factor of the scores."""
        q, k, v, mask = wide(self.q), wide(self.k), wide(self.v), self.wide_mask()
        if self.gqa:
            k, v = np.repeat(k, self.share, -3), np.repeat(v, self.share, -3)
        if self.causal:
            mask = np.tri(q.shape[-2], k.shape[-2], dtype=bool)
        return q, k, v, mask, self.factor

    def words(self) -> dict[str, Any]:
        given = {"attn_mask": self.mask, "is_causal": self.causal, "scale": self.scale, "enable_gqa": self.gqa}
        return {k: v for k, v in given.items() if v is not None and v is not False}

    def wide_mask(self) -> Array | None:
        return None if self.mask is None else self.mask if self.mask.dtype == bool else self.mask.astype(wide(self.q).dtype)


@generates("attention", "nn.functional.scaled_dot_product_attention", weight=10)
def attention(draw: Draw, op: str) -> Call:
    c = Case(draw)
    reference, _, bound, _ = rounding(c.dtype, *c.operands())
    return Call(op, (c.q, c.k, c.v), c.words(), lambda result: near(result, reference, bound, c.q.dtype))


def _tolerance(dtype: str, terms: int) -> float:
    f = FORMATS[dtype]
    return (f.accumulate * (terms + 64) * 8) + (f.eps * 24 if f.eps != f.accumulate else 0)


@generates("attention", "nn.grad.scaled_dot_product_attention_backward", weight=3)
def backward(draw: Draw, op: str) -> Call:
    c = Case(draw)
    q, k, v, mask, factor = c.operands()
    g = draw.array((*np.broadcast_shapes(q.shape[:-2], v.shape[:-2]), q.shape[-2], v.shape[-1]), c.dtype, "normal")
    dq, dk, dv, ds, size, grown = gradients(q, k, v, wide(g), mask, factor)

    def fold(x: Array, shape: tuple[int, ...]) -> Array:
        """The sum over what was repeated."""
        if c.gqa and x.shape[-3] != shape[-3]:
            x = x.reshape(*x.shape[:-3], shape[-3], c.share, *x.shape[-2:]).sum(-3)
        x = x.sum(tuple(range(x.ndim - len(shape))))
        return x.sum(tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1), keepdims=True)

    terms = c.e + c.lk + c.q.shape[-2] + c.v.shape[-1]
    tolerance = _tolerance(c.dtype, terms) * grown

    def check(found: Any) -> None:
        for name, got, right, array in (("query", found.query, dq, c.q), ("key", found.key, dk, c.k), ("value", found.value, dv, c.v)):
            wanted = fold(right, array.shape)
            scale = max(float(np.max(np.abs(wanted), initial=0)), size * float(np.max(np.abs(array), initial=0)) if name != "value" else 0, 1e-3)
            normwise(got, wanted, tolerance, array.dtype, name, scale)
        if c.mask is not None and c.mask.dtype != bool:
            wanted = ds.sum(tuple(range(ds.ndim - c.mask.ndim)))
            axes = tuple(i for i, n in enumerate(c.mask.shape) if n == 1 and wanted.shape[i] != 1)
            wanted = wanted.sum(axes, keepdims=True)
            normwise(found.attn_mask, wanted, tolerance * 2 + 4 * FORMATS[c.mask.dtype.name].eps, c.mask.dtype, "attn_mask", max(float(np.max(np.abs(wanted), initial=0)), size / max(c.factor, 1e-9), 1e-3))

    words = c.words()
    return Call(op, (c.q, c.k, c.v, g), words, check)


@generates("attention", "nn.functional.varlen_attn", "nn.grad.varlen_attn_backward", weight=2)
def packed(draw: Draw, op: str) -> Call:
    """Sequences that lie one after the other: each is attended to as if it were alone."""
    draw.values = draw.choice(TAME)
    dtype = draw.choice(DTYPES)
    heads, share = draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 3))
    e, ev = (draw.choice((1, 2, 4, 8, 17)) for _ in "kv")
    # Sequences that follow each other may have the same lengths, which is one batch; some have no queries, or no keys.
    lengths: list[tuple[int, int]] = []
    for _ in range(draw.whole(0, 5)):
        alike = bool(lengths) and draw.chance(0.4)
        lengths.append(lengths[-1] if alike else (n := draw.size(17, 0.1), n if draw.chance(0.5) else draw.size(17, 0.1)))
    rows, keys = ([sum(each[:i]) for i in range(len(each) + 1)] for each in ([n[side] for n in lengths] for side in (0, 1)))
    q = draw.array((rows[-1], heads * share, e), dtype)
    k, v = (draw.array((keys[-1], heads, width), dtype) for width in (e, ev))
    causal, scale = draw.chance(0.4), draw.choice((None, None, 0.5, 1.0))
    factor = 1 / math.sqrt(e) if scale is None else scale
    g = draw.array((rows[-1], heads * share, ev), dtype, "normal")
    sequences = []
    for (start, stop), (first, last) in zip(pairwise(rows), pairwise(keys), strict=True):
        one = [wide(x)[at].swapaxes(0, 1) for x, at in ((q, slice(start, stop)), (k, slice(first, last)), (v, slice(first, last)), (g, slice(start, stop)))]
        shape = (stop - start, last - first)
        mask = np.tri(*shape, shape[1] - shape[0], dtype=bool) if causal else None
        sequences.append((slice(start, stop), slice(first, last), one, mask))

    def repeated(x: Array) -> Array:
        return np.repeat(x, share, 0)

    def check_forward(found: Any) -> None:
        output, lse = found if lses else (found, None)
        like(output, (rows[-1], heads * share, ev), q.dtype)
        for at, _, (x, y, z, _g), mask in sequences:
            reference, scores, bound, off = rounding(dtype, x, repeated(y), repeated(z), mask, factor)
            near(output[at], reference.swapaxes(0, 1), bound.swapaxes(0, 1), q.dtype)
            if lse is not None:
                seen = scores if mask is None else np.where(mask, scores, -np.inf)
                with np.errstate(all="ignore"):
                    wanted = np.logaddexp.reduce(seen, -1, initial=-np.inf)
                near(lse[at], wanted.T, off[..., 0].T + 4 * FORMATS[lse.dtype.name].eps * np.abs(np.nan_to_num(wanted.T, neginf=0)), lse.dtype, "lse")

    def check_backward(found: Any) -> None:
        for at, keyed, (x, y, z, dy), mask in sequences:
            *slopes, _ds, size, grown = gradients(x, repeated(y), repeated(z), dy, mask, factor)
            terms = e + ev + dy.shape[-2] + z.shape[-2] * share
            for name, where, wanted, array in (("query", at, slopes[0], x), ("key", keyed, slopes[1], y), ("value", keyed, slopes[2], z)):
                if name != "query":
                    wanted = wanted.reshape(heads, share, *wanted.shape[1:]).sum(1)
                level = max(float(np.max(np.abs(wanted), initial=0)), size * float(np.max(np.abs(array), initial=0)) if name != "value" else 0, 1e-3)
                normwise(getattr(found, name)[where], wanted.swapaxes(0, 1), _tolerance(dtype, terms) * grown, q.dtype, name, level)

    lses = "backward" not in op and draw.chance(0.4)
    kind = draw.choice((list, np.int32, np.int64))
    positions = [each if kind is list else np.array(each, kind) for each in (rows, keys)]
    kwargs: dict[str, Any] = {"is_causal": causal, "scale": scale, "enable_gqa": share > 1}
    if draw.chance(0.3):
        kwargs |= {"max_q": max((n for n, _ in lengths), default=0), "max_k": 100}
    if "backward" in op:
        return Call(op, (q, k, v, g, *positions), kwargs, check_backward, direct=False)
    return Call(op, (q, k, v, *positions), {**kwargs, "return_lse": lses}, check_forward, direct=False)


@generates("attention", "nn.functional.multi_head_attention", "nn.functional.multi_head_attention_forward", weight=4)
def multi_head(draw: Draw, op: str) -> Call:
    draw.values = "normal"
    forward = op.endswith("_forward")
    dtype = draw.choice(DTYPES)
    heads = draw.choice((1, 1, 2, 3, 4))
    size = heads * draw.choice((1, 2, 4, 5, 8, 16))
    n, lq, lk = draw.size(3, 0), draw.size(17, 0), draw.size(17, 0)
    selfish = draw.chance(0.5)
    if selfish:
        lk = lq
    keys, values = (size, size) if selfish or draw.chance(0.6) else (draw.choice((1, 3, 8)), draw.choice((1, 3, 8)))
    single = draw.chance(0.1) and n == 1

    def tokens(length: int, features: int) -> Array:
        shape = (length, features) if single else (length, n, features) if forward else (n, length, features)
        return draw.array(shape, dtype)

    q = tokens(lq, size)
    k = q if selfish else tokens(lk, keys)
    v = q if selfish else (k if draw.chance(0.3) and keys == values else tokens(lk, values))

    def weight(*shape: int) -> Array:
        return draw.array(shape, dtype, (draw.fill(shape, dtype).astype(np.float64) / math.sqrt(size)).astype(draw.fill((0,), dtype).dtype))

    together = (keys, values) == (size, size) and draw.chance(0.7)
    parts: Any = weight(3 * size, size) if together else (weight(size, size), weight(size, keys), weight(size, values))
    bias = weight(3 * size) if draw.chance(0.6) else None
    out_weight, out_bias = weight(size, size), weight(size) if draw.chance(0.6) else None
    causal = draw.chance(0.2)
    mask = padding = None
    batch = 1 if single else n
    if not causal and draw.chance(0.3):
        shape = draw.choice(((lq, lk), (batch * heads, lq, lk)))
        mask = draw.lay_out(~draw.fill(shape, "bool")) if draw.chance(0.5) else draw.array(shape, draw.choice(("float32", dtype)), "normal")
    if causal and forward:  # there it says only that the mask is the causal one
        mask = draw.lay_out(~np.tri(lq, lk, dtype=bool), draw.choice(("C", "F", "steps", "negative", "misaligned")))  # the values count
    if draw.chance(0.3):
        shape = (lk,) if single else (n, lk)
        padding = draw.lay_out(~draw.fill(shape, "bool")) if draw.chance(0.6) else draw.array(shape, dtype, "normal")
    need, average = draw.chance(0.3), draw.chance(0.5)

    # The formula in wide arithmetic.
    def first(x: Array) -> Array:
        x = wide(x)
        return x[None] if single else x.swapaxes(0, 1) if forward else x

    three = np.split(wide(parts), 3) if together else [wide(w) for w in parts]
    biases = np.split(wide(bias), 3) if bias is not None else [np.zeros(size)] * 3
    projected = [first(x) @ w.T + b for x, w, b in zip((q, k, v), three, biases, strict=True)]
    dim = size // heads
    hq, hk, hv = (p.reshape(batch, -1, heads, dim).swapaxes(1, 2) for p in projected)
    with np.errstate(all="ignore"):
        s = hq @ hk.swapaxes(-1, -2) / math.sqrt(dim)
        for m, shape in ((mask, None), (padding, (batch, 1, 1, lk))):
            if m is None:
                continue
            w = m if m.dtype == bool else wide(m)
            w = w.reshape(shape) if shape else w.reshape(batch, heads, lq, lk) if m.ndim == 3 else w
            s = np.where(w, -np.inf, s) if m.dtype == bool else s + w
        if causal:
            s = np.where(np.tri(lq, lk, dtype=bool), s, -np.inf)
        top = np.max(s, -1, keepdims=True)
        e = np.where(np.isneginf(s), 0, np.exp(s - np.where(np.isneginf(top), 0, top)))
        total = e.sum(-1, keepdims=True)
        p = e / np.where(total == 0, 1, total)
    attended = (p @ hv).swapaxes(1, 2).reshape(batch, lq, size)
    reference = attended @ wide(out_weight).T + (wide(out_bias) if out_bias is not None else 0)
    result = reference[0] if single else reference.swapaxes(0, 1) if forward else reference
    grown = float(np.max(np.abs(s[np.isfinite(s)]), initial=0)) + 4
    tolerance = _tolerance(dtype, size + keys + values + lk) * (2 + grown)
    level = max(float(np.max(np.abs(projected[2]), initial=0)), float(np.max(np.abs(reference), initial=0)), 1e-3)

    def check(found: Any) -> None:
        normwise(found.output, result, tolerance, q.dtype, "output", level)
        if need:
            wanted = p.mean(1) if average else p
            normwise(found.weights, wanted[0] if single else wanted, tolerance, q.dtype, "weights", 1.0)
        elif found.weights is not None:
            raise AssertionError("weights that nobody asked for")

    masks: dict[str, Any] = {"key_padding_mask": padding, "attn_mask": mask, "is_causal": causal, "need_weights": need, "average_attn_weights": average}
    if not forward:
        kwargs = {k: v for k, v in masks.items() if (v is not None and v is not False) or k == "average_attn_weights"}
        return Call(op, (q, k, v, heads, parts, bias, out_weight, out_bias), kwargs, check, direct=False)
    if not together:
        masks |= {"use_separate_proj_weight": True, "q_proj_weight": parts[0], "k_proj_weight": parts[1], "v_proj_weight": parts[2]}
    args = (q, k, v, size, heads, parts if together else None, bias, None, None, False, 0.0, out_weight, out_bias)
    return Call(op, args, masks, check, direct=False)
