"""Checks of the arguments of multi-head attention, in Backline's form and in PyTorch's."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.array_kinds import kind_of
from .array_arguments import dtype_of, functions, like, one_kind
from .composite import natively
from .layer_checks import Array, as_input, positive, same_dtype
from .linalg_checks import flag, whole
from .seeds import checked_seed

__all__ = ["WHERE", "checked", "checked_as_torch"]

WHERE = "multi_head_attention"


@natively
def checked(
    query: Any, key: Any, value: Any, num_heads: Any, in_proj_weight: Any, in_proj_bias: Any, out_proj_weight: Any,
    out_proj_bias: Any, key_padding_mask: Any = None, attn_mask: Any = None, is_causal: Any = False, need_weights: Any = False,
    average_attn_weights: Any = True, dropout_p: Any = 0.0, seed: Any = None, bias_k: Any = None, bias_v: Any = None,
    add_zero_attn: Any = False, static_k: Any = None, static_v: Any = None, where: str = WHERE,
) -> tuple[Any, ...]:  # fmt: skip
    """Returns what the operation takes, from the arguments of `multi_head_attention`."""
    one_kind(
        where, query=query, key=key, value=value, out_proj_weight=out_proj_weight, key_padding_mask=key_padding_mask,
        attn_mask=attn_mask,
    )  # fmt: skip
    q, k, v = _sources(where, query, key, value)
    (batch, queries, size), keys = q.shape, k.shape[1]
    heads = whole(where, "num_heads", num_heads)
    if heads < 1 or size % heads:
        raise BadValue(f"{where}: num_heads={heads} does not divide the {size} of query, of shape {query.shape}")

    def array(name: str, given: Any, *shape: int) -> Any:
        return None if given is None else _array(where, name, given, shape, q)

    weights: list[Any] = [None] * 4
    if isinstance(in_proj_weight, (tuple, list)):
        if len(in_proj_weight) != 3:
            raise BadValue(f"{where}: in_proj_weight has {len(in_proj_weight)} arrays, it needs 3 or one")
        for i, (name, given, source) in enumerate(zip("qkv", in_proj_weight, (q, k, v), strict=True), 1):
            weights[i] = _array(where, f"the weight of {name}", given, (size, source.shape[2]), q)
    else:
        if not k.shape[2] == v.shape[2] == size:
            raise BadValue(
                f"{where}: query, key and value have {size}, {k.shape[2]} and {v.shape[2]} features",
                cause="one packed in_proj_weight takes as many of each", remedy="a tuple of three weights",
            )  # fmt: skip
        weights[0] = _array(where, "in_proj_weight", in_proj_weight, (3 * size, size), q)
    if (bias_k is None) != (bias_v is None):
        raise BadValue(f"{where}: bias_k without bias_v, or bias_v without bias_k", cause="each key has a value")
    appended = [array(name, _with_axes(given, size), 1, 1, size) for name, given in (("bias_k", bias_k), ("bias_v", bias_v))]
    fixed = []
    for name, given in (("static_k", static_k), ("static_v", static_v)):
        if given is not None and appended[0] is not None:
            raise BadValue(f"{where}: {name} beside bias_k", cause="what is given projected is complete")
        length = given.shape[1] if _is_array(given) and given.ndim == 3 else keys
        found = array(name, given, batch * heads, length, size // heads)
        fixed.append(None if found is None else found.reshape(batch, heads, length, size // heads))
    lengths = [keys if f is None else f.shape[2] for f in fixed]
    if lengths[0] != lengths[1]:
        raise BadValue(f"{where}: {lengths[0]} keys and {lengths[1]} values")
    causal = flag(where, "is_causal", is_causal)
    if causal and attn_mask is not None:
        raise BadValue(f"{where}: attn_mask and is_causal together", remedy="one of them, or np.tril in the mask")
    mask, causal = _mask(where, q, (batch, heads, queries, lengths[0]), key_padding_mask, attn_mask, causal, query.ndim == 2)
    rate = positive(where, "dropout_p", dropout_p, most=1.0)
    return (
        q, None if key is query else k, None if value is key else v, *weights, array("in_proj_bias", in_proj_bias, 3 * size),
        _array(where, "out_proj_weight", out_proj_weight, (size, size), q), array("out_proj_bias", out_proj_bias, size), mask,
        *appended, *fixed, heads, causal, flag(where, "add_zero_attn", add_zero_attn), flag(where, "need_weights", need_weights),
        flag(where, "average_attn_weights", average_attn_weights), rate, checked_seed(where, seed) if rate else None,
    )  # fmt: skip


def _with_axes(given: Any, size: int) -> Any:
    """A bias of shape (E,) or (1, E) as one of (1, 1, E); another value as it is."""
    return given.reshape(1, 1, size) if _is_array(given) and given.shape in ((size,), (1, size)) else given


def _is_array(value: Any) -> bool:
    """True for arrays of NumPy and of CuPy, which are what this takes."""
    kind = kind_of(value)
    return isinstance(value, np.ndarray) or (kind is not None and kind.package == "cupy")


def _input(where: str, name: str, value: Any) -> Array:
    """Returns an array of real floating-point numbers, of NumPy or CuPy."""
    as_input(where, name, like(value) if _is_array(value) else value)
    array: Array = value
    return array


def _sources(where: str, query: Any, key: Any, value: Any) -> list[Array]:
    """Query, key and value with a batch."""
    arrays = [_input(where, name, a) for name, a in (("query", query), ("key", key), ("value", value))]
    shapes = ", ".join(str(a.shape) for a in arrays)
    if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
        raise BadValue(f"{where}: query, key and value have shapes {shapes}", cause="with a batch they have 3 axes, else 2")
    if len({dtype_of(a) for a in arrays}) > 1:
        raise BadType(f"{where}: query, key and value have dtypes {', '.join(str(a.dtype) for a in arrays)}")
    if query.ndim == 2:
        kept: dict[int, Array] = {}
        arrays = [kept.setdefault(id(a), a[None]) for a in arrays]
    q, k, v = arrays
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        raise BadValue(f"{where}: query, key and value of shapes {shapes} do not fit", cause="one batch, as many keys as values")
    return arrays


def _array(where: str, name: str, given: Any, shape: tuple[int, ...], query: Array) -> Array:
    array = _input(where, name, given)
    if array.shape != shape:
        raise BadValue(f"{where}: {name} has shape {array.shape}, it must have {shape}")
    same_dtype(where, name, like(array), "query", dtype_of(query))
    return array


def _mask(
    where: str, q: Array, whole_shape: tuple[int, ...], padding: Any, attn: Any, causal: bool, single: bool
) -> tuple[Array | None, bool]:
    """The two masks as one of attention, in which True takes part; and whether the causal one is still to be applied."""
    batch, heads, queries, keys = whole_shape
    found, xp = [], functions(q)
    if padding is not None:
        array = _masking(where, "key_padding_mask", padding, q)
        wanted = [(batch, keys), *([(keys,)] if single else [])]
        if array.shape not in wanted:
            raise BadValue(f"{where}: key_padding_mask has shape {array.shape}, it must have {' or '.join(map(str, wanted))}")
        found.append(array.reshape(batch, 1, 1, keys))
    if attn is not None:
        array = _masking(where, "attn_mask", attn, q)
        if array.shape not in ((queries, keys), (batch * heads, queries, keys)):
            raise BadValue(
                f"{where}: attn_mask has shape {array.shape}, it must have {(queries, keys)} or {(batch * heads, queries, keys)}"
            )
        found.append(array.reshape(*((batch, heads) if array.ndim == 3 else (1, 1)), queries, keys))
    if causal and found:
        found.append(~xp.tri(queries, keys, dtype=bool)[None, None])
    if not found:
        return None, causal
    if all(m.dtype.kind == "b" for m in found):
        return ~reduce(xp.logical_or, found), False
    added = next(m.dtype for m in found if m.dtype.kind != "b")
    total: Any = None
    for m in found:
        floats = xp.where(m, xp.full((), -np.inf, added), xp.zeros((), added)) if m.dtype.kind == "b" else m
        total = floats if total is None else total + floats
    return total, False


def _masking(where: str, name: str, given: Any, q: Array) -> Array:
    if not _is_array(given) or given.dtype.kind != "b":
        array = _input(where, name, given)
        if dtype_of(array) not in (np.float32, dtype_of(q)):
            raise BadType(f"{where}: {name} has dtype {array.dtype}", cause=f"it is of bool, float32, or {q.dtype} as query")
        return array
    masking: Array = given
    return masking


@natively
def checked_as_torch(
    query: Any, key: Any, value: Any, embed_dim_to_check: Any, num_heads: Any, in_proj_weight: Any, in_proj_bias: Any,
    bias_k: Any, bias_v: Any, add_zero_attn: Any, dropout_p: Any, out_proj_weight: Any, out_proj_bias: Any, training: Any = True,
    key_padding_mask: Any = None, need_weights: Any = True, attn_mask: Any = None, use_separate_proj_weight: Any = False,
    q_proj_weight: Any = None, k_proj_weight: Any = None, v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None,
    average_attn_weights: Any = True, is_causal: Any = False, *, seed: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The same, from the arguments of `multi_head_attention_forward`."""
    where = f"{WHERE}_forward"
    sources = {"query": query, "key": key, "value": value}
    swapped: dict[int, Any] = {}  # the same array stays the same
    for name, array in sources.items():
        _input(where, name, array)
        swapped.setdefault(id(array), array.swapaxes(0, 1) if array.ndim == 3 else array)
    if query.shape[-1:] != (whole(where, "embed_dim_to_check", embed_dim_to_check),):
        raise BadValue(f"{where}: embed_dim_to_check={embed_dim_to_check}, and query has shape {query.shape}")
    separate = flag(where, "use_separate_proj_weight", use_separate_proj_weight)
    weight = (q_proj_weight, k_proj_weight, v_proj_weight) if separate else in_proj_weight
    if flag(where, "is_causal", is_causal) and attn_mask is None:
        raise BadValue(
            f"{where}: Need attn_mask if specifying the is_causal hint",
            cause="is_causal says there only that the mask is the causal one",
            remedy="attn_mask=~np.tri(L, S, dtype=bool), or multi_head_attention, which needs no mask",
        )
    q, k, v = (swapped[id(a)] for a in (query, key, value))
    return checked(
        q, k, v, num_heads, weight, in_proj_bias, out_proj_weight, out_proj_bias,
        key_padding_mask, attn_mask, False, need_weights, average_attn_weights,
        dropout_p if flag(where, "training", training) else 0.0, seed, bias_k, bias_v, add_zero_attn, static_k, static_v,
        where=where,
    )  # fmt: skip
