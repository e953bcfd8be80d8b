"""Attention of MLX's arrays: its fused kernel on Metal, and the formula.

In the formula a key that a mask leaves out takes no part at all: NaN or infinity in it go nowhere. The fused kernel multiplies it
by zero, and has no gradients: these are the formula's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...problems.attention_problem import AttentionProblem
from ..attention_constraints import facts_of, refusal
from ..reference.attention_formula import AttentionSpace, kept_weights, run

__all__ = ["flash", "flash_note", "flash_refusal", "math", "math_refusal", "unfused"]

Array = Any
Run = Callable[..., Array]

DTYPES = ("float16", "bfloat16", "float32")
GRADIENT = "MLX's fused kernel has no gradients; those of the formula are there"


def _unfit(kernel: str, p: AttentionProblem) -> str:
    reason = refusal(kernel, p, facts_of(p.device))
    if reason:
        return reason
    if p.dtype.name not in DTYPES:
        return f"MLX has attention of {', '.join(DTYPES)}, not of {p.dtype.name}"
    return ""


def math_refusal(p: AttentionProblem) -> str:
    """Returns the reason that the formula does not take a Problem; empty where it does."""
    return _unfit("math", p)


def flash_refusal(p: AttentionProblem) -> str:
    """Returns the reason that MLX's fused kernel does not take a Problem; empty where it does."""
    reason = _unfit("flash_attention", p)
    if reason:
        return reason
    if p.get("grad") is not None:
        return GRADIENT
    if p.returns_lse:
        return "MLX's fused kernel does not tell the log-sum-exp of its scores"
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
    """Returns the note that a user sees."""
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
    """Returns MLX's own reason to have no fused kernel for a Problem; empty where it has. Nothing is computed."""
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
    """The function of the arrays of a call: attention, or its gradients, as products and a softmax in float32."""
    roles = [o.role for o in p.operands]

    def kept(shape: tuple[int, ...], seed: int) -> Array:
        return mx.array(kept_weights(p, shape, seed, np.dtype(np.float32)))

    def multiply(left: Array, right: Array) -> Array:
        if left.shape[-1]:
            return mx.matmul(left, right)
        lead = np.broadcast_shapes(tuple(left.shape[:-2]), tuple(right.shape[:-2]))
        return mx.zeros((*lead, left.shape[-2], right.shape[-1]))

    space = AttentionSpace(mx, mx.float32, mx.bool_, multiply, kept)
    return lambda *arrays, **scalars: run(p, space, dict(zip(roles, arrays, strict=True)), **scalars)
