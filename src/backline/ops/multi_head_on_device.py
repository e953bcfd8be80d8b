"""Multi-head attention on devices: the projections by `linear`, the heads by `scaled_dot_product_attention`.

Where the weights are a result they are computed as such, and all of them are held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..problems.dtypes import compute_dtype
from ..problems.multi_head_problem import MultiHeadProblem
from .activations import softmax
from .array_arguments import cast, dtype_of, functions
from .dot_product_attention import scaled_dot_product_attention
from .linear_layers import linear
from .matrix_products import matmul

__all__ = ["composed_on_device"]

Array = Any


def composed_on_device(p: MultiHeadProblem, arrays: dict[str, Array], seed: int | None = None) -> Any:
    """Returns the result of a Problem, and the weights where they are asked for; `seed` is that of dropout."""
    (batch, length), size = arrays["query"].shape[:2], p.embedding
    q, k, v = _heads(p, arrays)
    mask, causal = _mask(p, arrays, k.shape[2])
    weights = None
    if p.parameter("need_weights"):
        weights = _weights(p, q, k, mask, seed)
        attended = cast(matmul(weights, cast(v, dtype_of(weights))), p.dtype)
    else:
        attended = scaled_dot_product_attention(q, k, v, mask, p.parameter("dropout_p") or 0.0, causal, seed=seed)
    joined = attended.transpose(0, 2, 1, 3).reshape(batch, length, size)
    output = linear(joined, arrays["final_weight"], arrays.get("final_bias"))
    if weights is None:
        return output
    return output, cast(weights.mean(1) if p.parameter("average") else weights, p.dtype)


def _heads(p: MultiHeadProblem, arrays: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Query, key and value as (N, heads, length, E / heads): views of the projections, or what a call gives instead."""
    size, heads = p.embedding, p.heads
    query, bias = arrays["query"], arrays.get("bias")
    key = arrays.get("key", query)
    sources = (query, key, arrays.get("value", key))
    xp, batch = functions(query), query.shape[0]
    if all(p.get(role) is None for role in ("key", "value", "static_k", "static_v", "bias_k")) and "weight" in arrays:
        together = linear(query, arrays["weight"], bias)  # one product for all three
        projected = [together[..., i * size : (i + 1) * size] for i in range(3)]
    else:
        projected = []
        for i, (name, source) in enumerate(zip("qkv", sources, strict=True)):
            if f"static_{name}" in arrays:
                projected.append(arrays[f"static_{name}"].transpose(0, 2, 1, 3))
                continue
            rows = slice(i * size, (i + 1) * size)
            weight = arrays["weight"][rows] if "weight" in arrays else arrays[f"{name}_weight"]
            made = linear(source, weight, None if bias is None else bias[rows])
            if f"bias_{name}" in arrays:
                made = xp.concatenate([made, xp.repeat(arrays[f"bias_{name}"], batch, 0)], 1)
            projected.append(made)
    found = []
    for name, each in zip("qkv", projected, strict=True):
        split = each.reshape(batch, each.shape[1], heads, size // heads).transpose(0, 2, 1, 3)
        if p.parameter("add_zero_attn") and name != "q":
            split = xp.concatenate([split, xp.zeros((batch, heads, 1, size // heads), split.dtype)], 2)
        found.append(split)
    q, k, v = found
    return q, k, v


def _mask(p: MultiHeadProblem, arrays: dict[str, Array], keys: int) -> tuple[Array | None, bool]:
    """Returns the mask over all keys, of which those that were appended always take part; and whether it is the causal one."""
    xp, queries = functions(arrays["query"]), p.query.shape[1]
    own = p.get("static_k")
    given = own.shape[2] if own else p.sources[1].shape[1]
    mask, causal = arrays.get("mask"), bool(p.parameter("is_causal"))
    if causal and (keys > given or p.parameter("need_weights")):
        mask, causal = xp.tri(queries, given, dtype=bool)[None, None], False
    if mask is None or mask.shape[-1] == keys:
        return mask, causal
    more = xp.ones if mask.dtype.kind == "b" else xp.zeros
    return xp.concatenate([mask, more((*mask.shape[:-1], keys - mask.shape[-1]), mask.dtype)], -1), causal


def _weights(p: MultiHeadProblem, q: Array, k: Array, mask: Array | None, seed: int | None) -> Array:
    """The weights after dropout, zero where a key takes no part."""
    xp, dtype = functions(q), compute_dtype(p.dtype)
    if k.shape[2] == 0:
        return xp.zeros((*q.shape[:3], 0), dtype)
    scores = matmul(cast(q, dtype) * dtype.type(q.shape[-1] ** -0.5), cast(k, dtype).swapaxes(-1, -2))
    taken, zero = mask, xp.zeros((), dtype)
    if mask is not None and mask.dtype.kind != "b":
        taken = mask != -np.inf
        scores = scores + cast(mask, dtype)
    if taken is not None:
        scores = xp.where(taken, scores, xp.full((), -np.inf, dtype))
    weights: Array = softmax(scores, -1)
    if taken is not None:
        weights = xp.where(taken, weights, zero)  # a row that has none is NaN
    if p.parameter("dropout_p"):
        from ..libraries.cuda.attention.philox import kept

        weights = weights * kept(xp, tuple(weights.shape), seed or 0, p.parameter("dropout_p"), dtype)
    return weights
