"""Attention over sequences of several lengths that lie one after the other, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.array_kinds import kind_of
from ..problems.dtypes import compute_dtype
from .array_arguments import dtype_of, functions, given, like, one_kind
from .composite import composed_of, natively, on_its_device
from .dot_product_attention import AttentionLSE, attention_call, scaled_dot_product_attention
from .dot_product_attention_grad import AttentionGrads, scaled_dot_product_attention_backward
from .linalg_checks import flag

__all__ = ["varlen_attn", "varlen_attn_backward"]

Array = np.ndarray[Any, Any]
MODULE, WHERE = "backline.nn.functional", "varlen_attn"
BACKWARD = "varlen_attn_backward"


class _Run(NamedTuple):
    """Sequences that follow each other and have the same lengths: one batch. `query` and `key` are the rows of it."""

    sequences: int
    query: slice
    key: slice
    lengths: tuple[int, int]


@overload
def varlen_attn(
    query: Array, key: Array, value: Array, cu_seq_q: Array | Sequence[int], cu_seq_k: Array | Sequence[int] | None = ...,
    max_q: int | None = ..., max_k: int | None = ..., *, is_causal: bool = ..., scale: float | None = ...,
    enable_gqa: bool = ..., return_lse: Literal[False] = ...,
) -> Array: ...  # fmt: skip
@overload
def varlen_attn(
    query: Array, key: Array, value: Array, cu_seq_q: Array | Sequence[int], cu_seq_k: Array | Sequence[int] | None = ...,
    max_q: int | None = ..., max_k: int | None = ..., *, is_causal: bool = ..., scale: float | None = ...,
    enable_gqa: bool = ..., return_lse: Literal[True],
) -> AttentionLSE: ...  # fmt: skip
@composed_of("nn.functional.scaled_dot_product_attention", module=MODULE)
@on_its_device
@natively
def varlen_attn(
    query: Array, key: Array, value: Array, cu_seq_q: Array | Sequence[int], cu_seq_k: Array | Sequence[int] | None = None,
    max_q: int | None = None, max_k: int | None = None, *, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, return_lse: bool = False,
) -> Any:  # fmt: skip
    """Attention within each of several sequences, which lie one after the other without padding.

    Parameters
    ----------
    query
        Shape (Tq, heads, E): the queries of all sequences, float16, bfloat16, float32 or float64.
    key, value
        Shapes (Tk, heads, E) and (Tk, heads, Ev), of the query's dtype.
    cu_seq_q, cu_seq_k
        Where the sequences begin: whole numbers 0, the length of the first, that of the first two, ... up to Tq, and up to Tk. On
        the host: a NumPy array of integers, or a list. None for `cu_seq_k` stands for `cu_seq_q`.
    max_q, max_k
        Lengths that no sequence exceeds, for programs that have them; they are checked, and change nothing.
    is_causal
        Key j takes part for query i only if ``j - i <= keys - queries`` of their sequence: the last query attends to all keys.
    scale
        Default: one over the root of E.
    enable_gqa
        As in `scaled_dot_product_attention`.
    return_lse
        Whether to return an `AttentionLSE`: the output, and the log-sum-exp of the scores of each query.

    {returns_array}
        Shape (Tq, heads, Ev), of the query's dtype. With `return_lse`, ``(output, lse)``; `lse` has the shape (Tq, heads).

    Raises
    ------
    BadValue
        Shapes that do not fit, positions that do not begin with 0, decrease, or do not end with the length of the array, a length
        above `max_q` or `max_k`.
    BadType
        Not arrays of one dtype; positions that are no whole numbers, or on a device.

    Notes
    -----
    Each sequence is attended to by itself, by the library that is chosen for its lengths; sequences that follow each other and
    have the same lengths are one batch. A query without keys gives zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import varlen_attn
    >>> x = np.array([1.0, 3.0, 5.0])[:, None, None]
    >>> varlen_attn(x, x, x, [0, 1, 3], scale=0.0).ravel()
    array([1., 4., 4.])
    """
    runs = _checked(WHERE, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, enable_gqa)
    causal, with_lse = flag(WHERE, "is_causal", is_causal), flag(WHERE, "return_lse", return_lse)
    xp, dtype = functions(query), dtype_of(query)
    (rows, heads, _), width = query.shape, value.shape[2]
    output, lse = xp.empty((rows, heads, width), dtype), xp.empty((rows, heads), compute_dtype(dtype)) if with_lse else None
    for run in runs:
        q, k, v = _batch(query, run, 0), _batch(key, run, 1), _batch(value, run, 1)
        mask, simple = _causal(xp, run) if causal else (None, False)
        settings = (mask, 0.0, simple, scale, enable_gqa)
        if lse is None:
            _batch(output, run, 0)[...] = scaled_dot_product_attention(q, k, v, *settings)
        else:
            attended = scaled_dot_product_attention(q, k, v, *settings, return_lse=True)
            _batch(output, run, 0)[...], _lines(lse, run)[...] = attended.output, attended.lse
    return output if lse is None else AttentionLSE(output, lse)


@composed_of("nn.grad.scaled_dot_product_attention_backward", module="backline.nn.grad")
@on_its_device
@natively
def varlen_attn_backward(
    query: Array, key: Array, value: Array, grad_output: Array, cu_seq_q: Array | Sequence[int],
    cu_seq_k: Array | Sequence[int] | None = None, max_q: int | None = None, max_k: int | None = None, *, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False, output: Array | None = None, lse: Array | None = None,
) -> AttentionGrads:  # fmt: skip
    """Gradients of `backline.nn.functional.varlen_attn` with respect to query, key and value.

    Parameters
    ----------
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, scale, enable_gqa
        As for the operation.
    grad_output
        Array of the result's shape and dtype.
    output, lse
        The operation's results with `return_lse`, both or neither: with them the softmax of the scores is not computed again.

    Returns
    -------
    AttentionGrads
        `query`, `key`, `value`: as what they belong to; `attn_mask` is None.

    Raises
    ------
    BadValue, BadType
        As the operation; `grad_output`, `output` or `lse` of another shape or dtype.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import varlen_attn_backward
    >>> x = np.array([1.0, 3.0, 5.0])[:, None, None]
    >>> varlen_attn_backward(x, x, x, np.ones_like(x), [0, 1, 3], scale=0.0).value.ravel()
    array([1., 1., 1.])
    """
    runs = _checked(BACKWARD, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, enable_gqa)
    causal = flag(BACKWARD, "is_causal", is_causal)
    dtype, shape = dtype_of(query), (*query.shape[:2], value.shape[2])
    results = {
        "grad_output": (grad_output, shape, dtype), "output": (output, shape, dtype),
        "lse": (lse, shape[:2], compute_dtype(dtype)),
    }  # fmt: skip
    for name, (array, wanted, kind) in results.items():
        if array is None and name != "grad_output":
            continue
        found = like(given(array, f"{BACKWARD}: {name}"))
        if found.shape != wanted:
            raise BadValue(f"{BACKWARD}: {name} has shape {found.shape}, it must have {wanted}")
        if found.dtype != kind:
            raise BadType(f"{BACKWARD}: {name} has dtype {found.dtype}, it must have {kind}")
    if (output is None) != (lse is None):
        raise BadValue(f"{BACKWARD}: output without lse, or lse without output", cause="the gradients take both, or neither")
    xp = functions(query)
    grads = [xp.zeros(array.shape, dtype) for array in (query, key, value)]
    for run in runs:
        q, k, v = _batch(query, run, 0), _batch(key, run, 1), _batch(value, run, 1)
        mask, simple = _causal(xp, run) if causal else (None, False)
        parts = scaled_dot_product_attention_backward(
            q, k, v, _batch(grad_output, run, 0), mask, 0.0, simple, scale, enable_gqa,
            output=None if output is None else _batch(output, run, 0), lse=None if lse is None else _lines(lse, run),
        )  # fmt: skip
        for target, side, part in zip(grads, (0, 1, 1), parts, strict=False):
            _batch(target, run, side)[...] = part
    return AttentionGrads(grads[0], grads[1], grads[2], None)


def _batch(array: Array, run: _Run, side: int) -> Array:
    """A view of the rows of some sequences, as (sequences, heads, length, E)."""
    part = array[run.key if side else run.query]
    return part.reshape(run.sequences, run.lengths[side], *array.shape[1:]).swapaxes(1, 2)


def _lines(lse: Array, run: _Run) -> Array:
    """A view of the log-sum-exp of some sequences, as (sequences, heads, length)."""
    return lse[run.query].reshape(run.sequences, run.lengths[0], lse.shape[1]).swapaxes(1, 2)


def _causal(xp: Any, run: _Run) -> tuple[Array | None, bool]:
    """The mask of the keys that are not later than the last of a query; None and True where attention has it itself."""
    queries, keys = run.lengths
    return (None, True) if queries == keys else (xp.tri(queries, keys, keys - queries, dtype=bool), False)


def _checked(
    where: str, query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: Any, max_k: Any, scale: Any,
    enable_gqa: Any,
) -> list[_Run]:  # fmt: skip
    """Checks the arguments, and returns the sequences in batches of the same lengths."""
    one_kind(where, query=query, key=key, value=value)
    arrays = [like(given(array, f"{where}: {name}")) for name, array in (("query", query), ("key", key), ("value", value))]
    shapes = ", ".join(str(a.shape) for a in arrays)
    if any(a.ndim != 3 for a in arrays) or arrays[1].shape[:2] != arrays[2].shape[:2]:
        raise BadValue(
            f"{where}: query, key and value have shapes {shapes}", cause="they are (rows of all sequences, heads, head dim)"
        )
    # Everything else is as in attention of the whole, of which this is a part.
    q, k, v = (a.swapaxes(0, 1) for a in arrays)
    attention_call(where, q, k, v, None, 0.0, False, scale, enable_gqa, None)
    if arrays[0].shape[1] != arrays[1].shape[1] and not enable_gqa:
        raise BadValue(
            f"{where}: query has {arrays[0].shape[1]} heads, key and value have {arrays[1].shape[1]}",
            remedy="enable_gqa=True where query heads share those of key and value",
        )  # fmt: skip
    kind = kind_of(query)
    if kind is not None and kind.package == "mlx":
        raise BadType(f"{where}: query is an array of MLX", cause="the result is written sequence by sequence, those are values")
    starts = _positions(where, "cu_seq_q", cu_seq_q, arrays[0].shape[0], max_q)
    others = _positions(where, "cu_seq_q" if cu_seq_k is None else "cu_seq_k", cu_seq_q if cu_seq_k is None else cu_seq_k,
                        arrays[1].shape[0], max_k)  # fmt: skip
    if len(starts) != len(others):
        raise BadValue(f"{where}: cu_seq_q has {len(starts) - 1} sequences, cu_seq_k {len(others) - 1}")
    each = zip(starts, starts[1:], others, others[1:], strict=False)
    runs = []
    for lengths, group in groupby(each, lambda s: (s[1] - s[0], s[3] - s[2])):
        members = list(group)
        rows = slice(members[0][0], members[-1][1]), slice(members[0][2], members[-1][3])
        if lengths[0]:  # else there is nothing to compute
            runs.append(_Run(len(members), *rows, lengths))
    return runs


def _positions(where: str, name: str, positions: Any, rows: int, most: Any) -> list[int]:
    """Returns where sequences begin, as Python's numbers; refuses positions that no array of so many rows has."""
    if not isinstance(positions, (np.ndarray, list, tuple)):
        raise BadType(
            f"{where}: {name} is {type(positions).__name__}, not a NumPy array of integers or a list",
            cause="positions are checked before anything runs, so they are read on the host",
            remedy=f"{name}.get() for one of CuPy: Backline never copies between devices implicitly",
        )  # fmt: skip
    array = np.asarray(positions)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadType(f"{where}: {name} has shape {array.shape} and dtype {array.dtype}, not one axis of integers")
    found = [int(n) for n in array]
    if not found or found[0] != 0 or found[-1] != rows:
        raise BadValue(
            f"{where}: {name} goes from {found[0] if found else 'nothing'} to {found[-1] if found else 'nothing'}",
            cause=f"it begins with 0 and ends with the {rows} rows of the array", remedy="np.cumsum of the lengths, after a 0",
        )  # fmt: skip
    for i, (start, end) in enumerate(pairwise(found)):
        if end < start:
            raise BadValue(f"{where}: {name} decreases from {start} to {end}, at index {i + 1}", remedy="np.cumsum of lengths")
    if most is not None:
        if isinstance(most, bool) or not isinstance(most, (int, np.integer)):
            raise BadType(f"{where}: the longest sequence of {name} is {most!r}, not an int")
        longest = max((end - start for start, end in pairwise(found)), default=0)
        if longest > most:
            raise BadValue(f"{where}: {name} has a sequence of {longest} rows, longer than the {most} that are named")
    return found
