"""Multi-head attention, and the path that is made of other operations."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np

from ..problems import operand
from ..problems.multi_head_problem import MultiHeadProblem
from ..problems.op_registry import operations
from .activations import dropout, softmax
from .composite import on_its_device
from .layer_checks import MODULE, Array
from .linear_layers import linear
from .matrix_products import matmul
from .multi_head_checks import WHERE, checked, checked_as_torch
from .operation import operation
from .promote import accepted, names_of

__all__ = ["MultiHeadAttention", "multi_head_attention", "multi_head_attention_forward"]

ROLES = (
    "query", "key", "value", "weight", "q_weight", "k_weight", "v_weight", "bias", "final_weight", "final_bias", "mask", "bias_k",
    "bias_v", "static_k", "static_v",
)  # fmt: skip


class MultiHeadAttention(NamedTuple):
    """Output of multi-head attention, and its weights or None."""

    output: Array
    weights: Array | None


@operation(WHERE, module=MODULE, family="attention", results=MultiHeadAttention, scalar="seed")
def _attend(
    query: Array, key: Array | None, value: Array | None, weight: Array | None, q_weight: Array | None, k_weight: Array | None,
    v_weight: Array | None, bias: Array | None, out_weight: Array, out_bias: Array | None, mask: Array | None,
    bias_k: Array | None, bias_v: Array | None, static_k: Array | None, static_v: Array | None, num_heads: int, is_causal: bool,
    add_zero_attn: bool, need_weights: bool, average: bool, dropout_p: float, seed: int | None,
) -> MultiHeadProblem:  # fmt: skip
    """Everything checked, every array in its place; None for `key` is the query, None for `value` is the key."""
    arrays = (query, key, value, weight, q_weight, k_weight, v_weight, bias, out_weight, out_bias, mask, bias_k, bias_v, static_k,
              static_v)  # fmt: skip
    parameters = {
        "num_heads": num_heads, "is_causal": is_causal, "add_zero_attn": add_zero_attn, "need_weights": need_weights,
        "average": average, "dropout_p": dropout_p,
    }  # fmt: skip
    operands = tuple(operand(role, a) for role, a in zip(ROLES, arrays, strict=True) if a is not None)
    return MultiHeadProblem(f"nn.functional.{WHERE}", operands, tuple(sorted(parameters.items())), "attention")


@on_its_device
def multi_head_attention(
    query: Array, key: Array, value: Array, num_heads: int, in_proj_weight: Array | tuple[Array, Array, Array],
    in_proj_bias: Array | None, out_proj_weight: Array, out_proj_bias: Array | None, *, key_padding_mask: Array | None = None,
    attn_mask: Array | None = None, is_causal: bool = False, need_weights: bool = False, average_attn_weights: bool = True,
    dropout_p: float = 0.0, seed: int | None = None,
) -> MultiHeadAttention:  # fmt: skip
    """Multi-head attention: project query, key and value, attend in every head, project the result.

    Parameters
    ----------
    query
        Shape (N, L, E), or (L, E) without a batch: floating-point.
    key, value
        Shapes (N, S, K) and (N, S, V), or without the batch, of the query's dtype. For self-attention give the same array: where
        the objects are the same, one product projects them together.
    num_heads
        Heads, among which E is divided: it divides E.
    in_proj_weight
        Shape (3 E, E): those of query, key and value one below the other. Or a tuple of three, of shapes (E, E), (E, K), (E, V).
    in_proj_bias
        Shape (3 E,), or None.
    out_proj_weight, out_proj_bias
        Shapes (E, E) and (E,); the bias may be None.
    key_padding_mask
        Shape (N, S), or (S,). Of bool: True takes a key out for all queries. Of floats: added to the scores.
    attn_mask
        Shape (L, S), or (N * num_heads, L, S). Of bool: True takes a key out for a query, which is the other way round than in
        `scaled_dot_product_attention`. Of float32, or of the query's dtype: added to the scores.
    is_causal
        Key j takes part for query i only if ``j <= i``. Not together with `attn_mask`.
    need_weights
        Whether the weights are returned too.
    average_attn_weights
        Whether those are the mean over the heads.
    dropout_p, seed
        Probability with which a weight is left out, and the seed; None draws one, where `backline.manual_seed` has been called.

    Returns
    -------
    MultiHeadAttention
        `output`, as the query; `weights`, of shape (N, L, S), or (N, num_heads, L, S) where they are not averaged, after dropout,
        or None.

    Raises
    ------
    BadType, BadValue
        Not arrays of one dtype, shapes that do not fit, a mask beside is_causal, dropout without a seed.

    Notes
    -----
    A query for which no key takes part attends to zeros: its output is `out_proj_bias`.

    While `backline.backends.mha` allows the fast path, a BLAS library runs all of it in one call, "fused": a product for all
    three projections of self-attention, the compiled attention on the heads where they are, and the last product. It has
    float32 and float64, neither weights nor dropout, and needs rows at even steps. Else, "composed", linear, matmul and softmax
    run one by one. ``backline.explain(multi_head_attention, ...)`` says which, and why not the other.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import multi_head_attention
    >>> x, one = np.eye(2, dtype=np.float32)[None], np.eye(2, dtype=np.float32)
    >>> attended = multi_head_attention(x, x, x, 1, np.concatenate([one, one, one]), None, one, None, need_weights=True)
    >>> attended.weights.round(3)
    array([[[0.67, 0.33],
            [0.33, 0.67]]], dtype=float32)
    """
    arguments = checked(
        query, key, value, num_heads, in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias, key_padding_mask, attn_mask,
        is_causal, need_weights, average_attn_weights, dropout_p, seed,
    )  # fmt: skip
    return _result(_attend(*arguments), arguments, query.ndim == 2)


@on_its_device
def multi_head_attention_forward(
    query: Array, key: Array, value: Array, embed_dim_to_check: int, num_heads: int, in_proj_weight: Array | None,
    in_proj_bias: Array | None, bias_k: Array | None, bias_v: Array | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Array, out_proj_bias: Array | None, training: bool = True, key_padding_mask: Array | None = None,
    need_weights: bool = True, attn_mask: Array | None = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Array | None = None, k_proj_weight: Array | None = None, v_proj_weight: Array | None = None,
    static_k: Array | None = None, static_v: Array | None = None, average_attn_weights: bool = True, is_causal: bool = False, *,
    seed: int | None = None,
) -> MultiHeadAttention:  # fmt: skip
    """`multi_head_attention` with the parameters that torch's function of this name has: the batch is the second axis.

    Parameters
    ----------
    query, key, value
        Shapes (L, N, E), (S, N, K), (S, N, V), or without the batch.
    embed_dim_to_check
        E.
    num_heads, in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias, key_padding_mask, need_weights
        As in `multi_head_attention`.
    bias_k, bias_v
        Shape (1, 1, E), (1, E) or (E,): a key and a value that are appended to those projected. Both or neither.
    add_zero_attn
        Whether a key and a value of zeros are appended.
    dropout_p, training, seed
        Dropout happens in training only, and then needs a seed, or `backline.manual_seed` before.
    attn_mask, is_causal
        As there; is_causal says that the mask is the causal one, and needs it.
    use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight
        Three weights in the place of `in_proj_weight`.
    static_k, static_v
        Shape (N * num_heads, S, E / num_heads): keys and values in the place of those projected.
    average_attn_weights
        As there.

    Returns
    -------
    MultiHeadAttention
        `output` (L, N, E), and `weights` (N, L, S) or (N, num_heads, L, S), or None.

    Raises
    ------
    BadType, BadValue
        As `multi_head_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import multi_head_attention_forward
    >>> x, one = np.eye(2)[:, None], np.eye(2)
    >>> packed = np.concatenate([one, one, one])
    >>> multi_head_attention_forward(x, x, x, 2, 1, packed, None, None, None, False, 0.0, one, None).output.shape
    (2, 1, 2)
    """
    arguments = checked_as_torch(
        query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v, add_zero_attn, dropout_p,
        out_proj_weight, out_proj_bias, training, key_padding_mask, need_weights, attn_mask, use_separate_proj_weight,
        q_proj_weight, k_proj_weight, v_proj_weight, static_k, static_v, average_attn_weights, is_causal, seed=seed,
    )  # fmt: skip
    output, weights = _result(_attend(*arguments), arguments, query.ndim == 2)
    return MultiHeadAttention(output if query.ndim == 2 else output.swapaxes(0, 1), weights)


def _result(found: Any, arguments: tuple[Any, ...], single: bool) -> MultiHeadAttention:
    output, weights = found if isinstance(found, tuple) else (found, None)
    if single:
        output, weights = output[0], None if weights is None else weights[0]
    return MultiHeadAttention(output, weights)


# Linear, matmul and softmax one by one --------------------------------------------------------------------------------------


def _composed(p: MultiHeadProblem, arrays: dict[str, Array], seed: int | None = None) -> Any:
    """The result of a Problem, and the weights where they are asked for; `seed` is that of dropout."""
    if not isinstance(arrays["query"], np.ndarray):
        from .multi_head_on_device import composed_on_device

        return composed_on_device(p, arrays, seed)
    size, heads = p.embedding, p.heads
    query = arrays["query"]
    key = arrays.get("key", query)
    sources = (query, key, arrays.get("value", key))
    batch, length = query.shape[:2]
    split = []
    for i, (name, source) in enumerate(zip("qkv", sources, strict=True)):
        fixed = arrays.get(f"static_{name}")
        if fixed is None:
            rows = slice(i * size, (i + 1) * size)
            weight = arrays["weight"][rows] if "weight" in arrays else arrays[f"{name}_weight"]
            projected = linear(source, weight, arrays["bias"][rows] if "bias" in arrays else None)
            if f"bias_{name}" in arrays:
                projected = np.concatenate([projected, np.repeat(arrays[f"bias_{name}"], batch, 0)], 1)
            fixed = projected.reshape(batch, projected.shape[1], heads, size // heads).transpose(0, 2, 1, 3)
        if p.parameter("add_zero_attn") and name != "q":
            fixed = np.concatenate([fixed, np.zeros_like(fixed[:, :, :1], shape=(batch, heads, 1, size // heads))], 2)
        split.append(fixed)
    q, k, v = split
    added, taken = _taken(p, arrays.get("mask"), length, k.shape[2])
    with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
        scores = matmul(q * q.dtype.type((size // heads) ** -0.5), k.swapaxes(-1, -2))
        if added is not None:
            scores = (scores + added).astype(q.dtype, copy=False)
        if taken is not None:
            scores = np.where(taken, scores, scores.dtype.type(-np.inf))
    weights = softmax(scores, -1) if k.shape[2] else scores
    if taken is not None:
        weights = np.where(taken, weights, weights.dtype.type(0))  # a row that has none is NaN
    if p.parameter("dropout_p"):
        weights = dropout(weights, p.parameter("dropout_p"), seed=seed)
    attended = _weighted(weights, v, taken).transpose(0, 2, 1, 3).reshape(batch, length, size)
    output = linear(attended, arrays["final_weight"], arrays.get("final_bias"))
    if not p.parameter("need_weights"):
        return output
    return output, weights.mean(1, dtype=np.float64).astype(weights.dtype) if p.parameter("average") else weights


def _taken(p: MultiHeadProblem, mask: Array | None, queries: int, keys: int) -> tuple[Array | None, Array | None]:
    """Returns what is added to the scores, and a mask of the keys that take part; appended keys always do."""
    if p.parameter("is_causal"):
        own = p.get("static_k")
        mask = np.tri(queries, own.shape[2] if own else p.sources[1].shape[1], dtype=bool)[None, None]
    if mask is None:
        return None, None
    more = [(0, 0)] * 3 + [(0, keys - mask.shape[-1])]
    if mask.dtype.kind == "b":
        return None, np.pad(mask, more, constant_values=True)
    mask = np.pad(mask, more)
    return mask, mask != -np.inf


def _weighted(weights: Array, value: Array, taken: Array | None) -> Array:
    """The product, in which a value that is not finite does not meet the weight 0 of a key that takes no part."""
    finite: Array = np.asarray(np.isfinite(value).all(-1))
    if taken is None or finite.all():
        return np.asarray(matmul(weights, value))
    total = matmul(weights, np.where(finite[..., None], value, value.dtype.type(0)))
    taken = np.broadcast_to(taken, weights.shape)
    with np.errstate(all="ignore"):
        for j in np.flatnonzero(~finite.reshape(-1, finite.shape[-1]).all(0)):
            part = weights[..., j, None] * np.where(finite[..., j, None], value.dtype.type(0), value[..., j, :])[..., None, :]
            total = total + np.where(taken[..., j, None], part, value.dtype.type(0))
    return np.asarray(total)


_row = operations[f"nn.functional.{WHERE}"] = operations[f"nn.functional.{WHERE}"].replaced(compose=_composed)


def _register(function: Any, check: Any) -> None:
    name, names = f"nn.functional.{function.__name__}", names_of(function)

    def build(*args: Any, **kwargs: Any) -> Any:
        return accepted(lambda *a, **k: _row.build(*check(*a, **k)), names, args, kwargs)

    operations[name] = _row.replaced(name=name, build=build, signature=inspect.signature(function))


_register(multi_head_attention, checked)
_register(multi_head_attention_forward, checked_as_torch)
for _function in (multi_head_attention, multi_head_attention_forward, MultiHeadAttention):
    _function.__module__ = MODULE
