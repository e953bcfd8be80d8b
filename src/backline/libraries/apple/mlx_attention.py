"""Attention of MLX's arrays: its fused kernel on Metal, and the formula written down.

In the formula a key that a mask leaves out takes no part at all: NaN or infinity in it go nowhere. The fused kernel multiplies it
by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems.attention import AttentionProblem
from ...switches.table import KERNELS
from ..attention import facts_of, refusal
from ..base import Refusal

__all__ = ["flash", "flash_note", "flash_refusal", "math", "math_refusal", "others", "unfused"]

Array = Any
Run = Callable[..., Array]

DTYPES = ("float16", "bfloat16", "float32")
GRADIENT = "MLX differentiates the operation itself: mx.vjp gives these gradients"


def others(library: str, p: AttentionProblem) -> Iterator[Refusal]:
    """Why the kernels that MLX does not have are none here."""
    for kernel in KERNELS:
        if kernel == "overrideable":
            yield Refusal(library, kernel, "no extension has registered one")
        elif kernel not in ("math", "flash_attention"):
            yield Refusal(library, kernel, refusal(kernel, p, facts_of(p.device)))


def _unfit(kernel: str, p: AttentionProblem) -> str:
    reason = refusal(kernel, p, facts_of(p.device))
    if reason:
        return reason
    if p.get("grad") is not None:
        return GRADIENT
    if p.dtype.name not in DTYPES:
        return f"MLX has attention of {', '.join(DTYPES)}, not of {p.dtype.name}"
    return ""


def math_refusal(p: AttentionProblem) -> str:
    """Why the formula does not take a Problem; empty where it does."""
    return _unfit("math", p)


def flash_refusal(p: AttentionProblem) -> str:
    """Why MLX's fused kernel is not to be asked; empty where it is."""
    reason = _unfit("flash_attention", p)
    if reason:
        return reason
    leads = {shape[:-3] for shape in p.shapes}
    queries, keys, values = p.heads
    if len(leads) > 1:
        return f"query, key and value need one batch, not {' and '.join(map(str, leads))}"
    if keys != values or (queries != keys and not p.enable_gqa):
        return f"query, key and value need as many heads each, or with enable_gqa key and value as many, not {p.heads}"
    if p.mask is not None and p.mask.dtype.kind != "b" and p.mask.dtype != p.dtype:
        return f"its masks are of bool or {p.dtype.name} like the query, not {p.mask.dtype.name}"
    if 0 in p.lengths or 0 in p.dims or 0 in p.heads or 0 in p.batches:
        return "there is nothing to attend to"
    return ""


def flash_note(p: AttentionProblem) -> str:
    """What else a user should know."""
    if p.mask is None and not p.is_causal:
        return ""
    return "NaN or infinity in a value spread even where a mask leaves its key out"


def _mask(p: AttentionProblem, mx: Any, given: dict[str, Array]) -> Any:
    """The mask as MLX's kernel takes it: its "causal" is aligned to the lower right corner, and ours to the upper left."""
    queries, keys, _ = p.lengths
    if p.is_causal:
        return "causal" if queries == keys else mx.tri(queries, keys, 0, dtype=mx.bool_)
    mask = given.get("mask")
    if mask is None:
        return None
    if len(p.shapes[0]) > 4 and mask.ndim > 3:  # the batch is one axis there
        mask = mx.broadcast_to(mask, (*p.shapes[0][:-1], keys)).reshape(-1, p.heads[0], queries, keys)
    return mask


def _four(x: Array) -> Array:
    """Batch, heads, length, head dim."""
    return x.reshape(-1, x.shape[-3] if x.ndim > 2 else 1, *x.shape[-2:])


def unfused(p: AttentionProblem, mx: Any) -> str:
    """Why MLX has no fused kernel for a Problem, by its own word; empty where it has. Nothing is computed."""
    dtype = getattr(mx, p.dtype.name)
    given = {o.role: mx.zeros(o.shape, mx.bool_ if o.dtype.kind == "b" else dtype) for o in p.operands}
    try:
        _fused(p, mx, given)
    except ValueError as error:
        return str(error)
    return ""


def _fused(p: AttentionProblem, mx: Any, given: dict[str, Array]) -> Array:
    query, key, value = (_four(given[role]) for role in ("query", "key", "value"))
    run = mx.fast.scaled_dot_product_attention
    return run(query, key, value, scale=p.scale, mask=_mask(p, mx, given), force_fused=True)


def flash(p: AttentionProblem, mx: Any) -> Run:
    """The function of the arrays of a call, by MLX's fused kernel."""
    roles = [o.role for o in p.operands]

    def run(*arrays: Array) -> Array:
        given = dict(zip(roles, arrays, strict=True))
        result = _fused(p, mx, given).reshape(*given["query"].shape[:-1], p.dims[2])
        mask = given.get("mask")
        if mask is None:
            return result
        taken = mask if p.mask is not None and p.mask.dtype.kind == "b" else mask != -float("inf")
        any_key = mx.any(mx.broadcast_to(taken, (*taken.shape[:-1], p.lengths[1])), axis=-1, keepdims=True)
        return mx.where(any_key, result, mx.zeros((), result.dtype))  # no key takes part: zeros

    return run


# The formula ---------------------------------------------------------------------------------------------------------


def math(p: AttentionProblem, mx: Any) -> Run:
    """The function of the arrays of a call: products and a softmax, in float32."""
    roles = [o.role for o in p.operands]

    def run(*arrays: Array) -> Array:
        given = dict(zip(roles, arrays, strict=True))
        dtype = given["query"].dtype
        return _formula(p, mx, given).astype(dtype)

    return run


def _formula(p: AttentionProblem, mx: Any, given: dict[str, Array]) -> Array:
    root = abs(p.scale) ** 0.5
    # Each times the root: that keeps large scores finite longer.
    query = given["query"].astype(mx.float32) * (-root if p.scale < 0 else root)
    key, value = given["key"].astype(mx.float32) * root, given["value"].astype(mx.float32)
    if p.enable_gqa:
        key, value = (_repeated(mx, x, p.heads[0]) for x in (key, value))
    lead = np.broadcast_shapes(*(tuple(x.shape[:-2]) for x in (query, key, value)))
    if 0 in lead or 0 in (*p.lengths, p.dims[2]):
        return mx.zeros((*lead, p.lengths[0], p.dims[2]))
    mask, taken = given.get("mask"), None
    scores = _product(mx, query, mx.swapaxes(key, -1, -2))
    if mask is not None and p.mask is not None:
        added = p.mask.dtype.kind != "b"
        taken = mask != -float("inf") if added else mask
        scores = scores + mask.astype(mx.float32) if added else scores
    elif p.is_causal:
        taken = mx.tri(*p.lengths[:2], 0, dtype=mx.bool_)
    if taken is not None:
        scores = mx.where(taken, scores, -float("inf"))
    most = mx.max(scores, axis=-1, keepdims=True)
    weights = mx.exp(scores - mx.where(most == -float("inf"), 0.0, most))
    total = mx.sum(weights, axis=-1, keepdims=True)
    weights = weights / mx.where(total == 0, 1.0, total)  # no key takes part: zeros
    if p.dropout > 0:
        weights = weights * _kept(p, mx, weights.shape)
    if taken is None:
        return _product(mx, weights, value)
    return _careful(mx, mx.where(taken, weights, 0.0), value, taken)


def _repeated(mx: Any, x: Array, heads: int) -> Array:
    """The heads of a key or value, each as often as query heads share it."""
    return mx.repeat(x, heads // x.shape[-3], axis=-3) if x.ndim > 2 and x.shape[-3] not in (0, heads) else x


def _product(mx: Any, a: Array, b: Array) -> Array:
    return mx.matmul(a, b) if a.shape[-1] else mx.zeros((*a.shape[:-1], b.shape[-1]))


def _careful(mx: Any, weights: Array, value: Array, taken: Array) -> Array:
    """The product, but what is not finite in a value counts only where its key takes part."""
    finite = mx.isfinite(value)
    product = mx.matmul(weights, mx.where(finite, value, 0.0))
    counted = mx.concatenate([value == float("inf"), value == -float("inf"), mx.isnan(value)], axis=-1).astype(mx.float32)
    taken = mx.broadcast_to(taken, (*taken.shape[:-1], value.shape[-2])).astype(mx.float32)
    if taken.ndim < 2:
        taken = taken[None]
    up, down, neither = mx.split(mx.matmul(taken, counted) > 0, 3, axis=-1)
    product = mx.where(up, product + float("inf"), product)
    product = mx.where(down, product - float("inf"), product)  # both: NaN
    return mx.where(neither, float("nan"), product)


def _kept(p: AttentionProblem, mx: Any, shape: tuple[int, ...]) -> Array:
    """What dropout multiplies the weights with; the same numbers as for arrays of NumPy."""
    kept = np.random.default_rng(p.parameter("seed")).random(tuple(shape)) >= p.dropout
    return mx.array(kept * np.float32(1 / (1 - p.dropout) if p.dropout < 1 else 0))
