"""Attention over sequences of several lengths that lie one after the other, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from ..errors import BadType, BadValue, FallbackRefused, NoKernel, NotDeterministic
from ..libraries.array_kinds import kind_of
from ..problems.dtypes import compute_dtype
from ..problems.packed_attention_problem import length_class
from .array_arguments import dtype_of, functions, given, like, one_kind
from .composite import composed_of, natively, on_its_device
from .dot_product_attention import AttentionLSE, scaled_dot_product_attention
from .dot_product_attention_grad import AttentionGrads, scaled_dot_product_attention_backward
from .linalg_checks import flag
from .packed_attention import checked_arrays, checked_results, checked_shapes, packed_attention, packed_attention_backward

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
@composed_of("nn.functional.packed_attention", "nn.functional.scaled_dot_product_attention", module=MODULE)
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
        the host: a NumPy array of integers, or a list. None for `cu_seq_k` stands for `cu_seq_q`. For arrays of CuPy also one of
        CuPy, of int32 or int64, which is not read on the host and so not checked.
    max_q, max_k
        Lengths that no sequence exceeds. Needed beside positions on a device, where rows of a longer sequence may be left out;
        for positions on the host they are checked, and may be None.
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
        Not arrays of one dtype; positions that are no whole numbers, or on a device that the arrays are not on.
    NoKernel
        Positions are on a device, and no library has all sequences in one call.

    Notes
    -----
    On CUDA, cuDNN from 9.25 on computes all sequences of float16 and bfloat16 in one call (`cuda.cudnn_sdp` permits it). Its
    plans are kept for classes of lengths (`max_q` and `max_k`, else those of the longest sequence), and serve all positions. A
    NaN or infinity in one sequence may spread to others then.

    Else each sequence is attended to by itself, by the library that is chosen for its lengths; sequences that follow each other
    and have the same lengths are one batch. A query without keys gives zeros, and so does a row that belongs to no sequence.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import varlen_attn
    >>> x = np.array([1.0, 3.0, 5.0])[:, None, None]
    >>> varlen_attn(x, x, x, [0, 1, 3], scale=0.0).ravel()
    array([1., 4., 4.])
    """
    causal, with_lse = flag(WHERE, "is_causal", is_causal), flag(WHERE, "return_lse", return_lse)
    sequences = _sequences(WHERE, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
    if sequences.at_once(causal):
        packed = (*sequences.bounds, causal, scale, enable_gqa, sequences.gaps(causal), with_lse)
        found = _by_one_call(WHERE, sequences, packed_attention, query, key, value, *sequences.on_device(), *packed)
        if found is not None:
            return found
    _checked(WHERE, query, key, value, scale, enable_gqa)
    xp, dtype = functions(query), dtype_of(query)
    (rows, heads, _), width = query.shape, value.shape[2]
    output, lse = xp.empty((rows, heads, width), dtype), xp.empty((rows, heads), compute_dtype(dtype)) if with_lse else None
    for run in sequences.runs():
        q, k, v = _batch(query, run, 0), _batch(key, run, 1), _batch(value, run, 1)
        mask, simple = _causal(xp, run) if causal else (None, False)
        settings = (mask, 0.0, simple, scale, enable_gqa)
        if lse is None:
            _batch(output, run, 0)[...] = scaled_dot_product_attention(q, k, v, *settings)
        else:
            attended = scaled_dot_product_attention(q, k, v, *settings, return_lse=True)
            _batch(output, run, 0)[...], _lines(lse, run)[...] = attended.output, attended.lse
    return output if lse is None else AttentionLSE(output, lse)


@composed_of("nn.grad.packed_attention_backward", "nn.grad.scaled_dot_product_attention_backward", module="backline.nn.grad")
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
    causal = flag(BACKWARD, "is_causal", is_causal)
    sequences = _sequences(BACKWARD, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
    one_kind(BACKWARD, query=query, grad_output=grad_output, output=output, lse=lse)
    if sequences.at_once(causal):
        packed = (*sequences.bounds, causal, scale, enable_gqa, sequences.gaps(causal), output, lse)
        found = _by_one_call(
            BACKWARD, sequences, packed_attention_backward, query, key, value, grad_output, *sequences.on_device(), *packed
        )
        if found is not None:
            return found  # type: ignore[no-any-return]  # gradients, as the operation's
    _checked(BACKWARD, query, key, value, scale, enable_gqa)
    dtype = dtype_of(query)
    checked_results(*(like(array) for array in (query, value, grad_output, output, lse)))
    xp = functions(query)
    grads = [xp.zeros(array.shape, dtype) for array in (query, key, value)]
    for run in sequences.runs():
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


def _checked(where: str, query: Any, key: Any, value: Any, scale: Any, enable_gqa: Any) -> None:
    """Refuses arrays that attention does not have, and those of MLX."""
    checked_arrays(where, like(query), like(key), like(value), scale, enable_gqa)
    kind = kind_of(query)
    if kind is not None and kind.package == "mlx":
        raise BadType(f"{where}: query is an array of MLX", cause="the result is written sequence by sequence, those are values")


class _Sequences:
    """The sequences of a call, by positions on the host, which are checked, or on the device, which nothing here reads."""

    def __init__(self, query: Array, starts: Any, others: Any, bounds: tuple[int, int]) -> None:
        self.query = query
        self.starts, self.others = starts, others  # of queries, and of keys; one array where they are the same
        self.bounds = length_class(bounds[0]), length_class(bounds[1])
        self.on_host = isinstance(starts, np.ndarray)
        self.lengths = (np.diff(starts), np.diff(others)) if self.on_host else None

    def at_once(self, causal: bool) -> bool:
        """Tells whether one call of a library is tried: on CUDA, and not where one call of attention does."""
        kind = kind_of(self.query)
        if kind is None or kind.package != "cupy":
            return False
        if self.lengths is None:
            return True
        queries, keys = self.lengths
        # Kernels for packed sequences are for 16-bit floats: to find none again at each call takes as long as some sequences do.
        if not queries.any() or dtype_of(self.query).itemsize != 2:
            return False
        alike = queries.min() == queries.max() and keys.min() == keys.max()
        return not alike or (causal and queries[0] != keys[0])

    def gaps(self, causal: bool) -> bool:
        """Tells whether there may be rows for which nothing is computed."""
        if self.lengths is None:
            return True
        queries, keys = self.lengths
        if self.starts is self.others:
            return False
        return bool(((queries > 0) != (keys > 0)).any() or (causal and (queries > keys).any()))

    def on_device(self) -> tuple[Any, Any]:
        """Positions of queries, and of keys where these are others, beside the query."""
        same = self.starts is self.others
        if not self.on_host:
            return self.starts, None if same else self.others
        asarray = functions(self.query).asarray
        if same:
            return asarray(self.starts), None
        both = asarray(np.stack([self.starts, self.others]))  # one copy
        return both[0], both[1]

    def runs(self) -> list[_Run]:
        """Returns the sequences with anything to compute, in batches of the same lengths."""
        starts, others = self.starts.tolist(), self.others.tolist()
        each = zip(starts, starts[1:], others, others[1:], strict=False)
        runs = []
        for lengths, group in groupby(each, lambda s: (s[1] - s[0], s[3] - s[2])):
            members = list(group)
            rows = slice(members[0][0], members[-1][1]), slice(members[0][2], members[-1][3])
            if lengths[0]:  # else there is nothing to compute
                runs.append(_Run(len(members), *rows, lengths))
        return runs


def _by_one_call(where: str, sequences: _Sequences, function: Any, *arguments: Any) -> Any:
    """Calls an operation; None where no library has it here, and the sequences can be computed one after the other."""
    try:
        return function(*arguments)
    except (NoKernel, FallbackRefused, NotDeterministic) as error:
        if sequences.on_host:
            return None
        raise NoKernel(
            f"{where}: the positions are on a device, and no library has all sequences in one call",
            cause=f"without reading them, sequences cannot be computed one after the other. {error}",
            remedy="positions on the host, cu_seq_q.get(): Backline never copies between devices implicitly",
        ) from error


def _sequences(where: str, query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: Any, max_k: Any) -> _Sequences:
    """Returns the sequences of a call; refuses arrays without rows, and positions on the host that these have not."""
    one_kind(where, query=query, key=key, value=value)
    checked_shapes(where, *(given(x, f"{where}: {name}") for name, x in (("query", query), ("key", key), ("value", value))))
    longest = [None if most is None else _most(where, name, most) for name, most in (("max_q", max_q), ("max_k", max_k))]
    kind = kind_of(cu_seq_q)
    if kind is not None and kind.package == "cupy" and kind_of(query) is not None:
        return _given_on_device(where, query, key, cu_seq_q, cu_seq_k, longest)
    starts = _positions(where, "cu_seq_q", cu_seq_q, query.shape[0], longest[0])
    name, positions = ("cu_seq_q", cu_seq_q) if cu_seq_k is None else ("cu_seq_k", cu_seq_k)
    others = _positions(where, name, positions, key.shape[0], longest[1])
    if len(starts) != len(others):
        raise BadValue(f"{where}: cu_seq_q has {len(starts) - 1} sequences, cu_seq_k {len(others) - 1}")
    others = starts if np.array_equal(starts, others) else others
    # Lengths that are named stay the same from call to call, and with them the Plan.
    bounds = [
        int(np.diff(each).max(initial=1)) if most is None else min(most, int(each[-1]))
        for each, most in zip((starts, others), longest, strict=True)
    ]
    return _Sequences(query, starts, others, (bounds[0], bounds[1]))


def _given_on_device(where: str, query: Any, key: Any, cu_seq_q: Any, cu_seq_k: Any, longest: list[int | None]) -> _Sequences:
    """Returns the sequences of a call whose positions are on the device."""
    if cu_seq_k is not None and kind_of(cu_seq_k) is None:
        raise BadType(f"{where}: cu_seq_k is {type(cu_seq_k).__name__}, cu_seq_q is on a device", remedy="both in one place")
    one_kind(where, query=query, cu_seq_q=cu_seq_q, cu_seq_k=cu_seq_k)
    most_q, most_k = longest[0], longest[1] if cu_seq_k is not None else longest[0]
    if most_q is None or most_k is None:
        raise BadValue(
            f"{where}: cu_seq_q is on a device, and {'max_q' if most_q is None else 'max_k'} is None",
            cause="Backline never copies between devices implicitly, so the longest length is not known",
            remedy="max_q and max_k, or positions on the host",
        )  # fmt: skip
    rows = query.shape[0], key.shape[0]
    if 0 in rows:  # wherever sequences begin
        return _Sequences(query, np.array([0, rows[0]]), np.array([0, rows[1]]), (1, 1))
    others = cu_seq_q if cu_seq_k is None else cu_seq_k
    return _Sequences(query, cu_seq_q, others, (min(most_q, rows[0]), min(most_k, rows[1])))


def _most(where: str, name: str, most: Any) -> int:
    if isinstance(most, bool) or not isinstance(most, (int, np.integer)):
        raise BadType(f"{where}: {name} is {most!r}, not an int")
    if most < 0:
        raise BadValue(f"{where}: {name} is {most}, a length is no less than 0")
    return int(most)


def _positions(where: str, name: str, positions: Any, rows: int, most: int | None) -> Array:
    """Returns where sequences begin, as an int64 array; refuses positions that no array of so many rows has."""
    if not isinstance(positions, (np.ndarray, list, tuple)):
        raise BadType(
            f"{where}: {name} is {type(positions).__name__}, not a NumPy array of integers or a list",
            cause="positions are checked before anything runs, so they are read on the host",
            remedy=f"{name}.get() for one of CuPy: Backline never copies between devices implicitly",
        )  # fmt: skip
    array = np.asarray(positions)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadType(f"{where}: {name} has shape {array.shape} and dtype {array.dtype}, not one axis of integers")
    if not len(array) or array[0] != 0 or array[-1] != rows:
        raise BadValue(
            f"{where}: {name} goes from {array[0] if len(array) else 'nothing'} to {array[-1] if len(array) else 'nothing'}",
            cause=f"it begins with 0 and ends with the {rows} rows of the array", remedy="np.cumsum of the lengths, after a 0",
        )  # fmt: skip
    if (array[1:] < array[:-1]).any():
        i = int(np.argmax(array[1:] < array[:-1]))
        raise BadValue(
            f"{where}: {name} decreases from {array[i]} to {array[i + 1]}, at index {i + 1}", remedy="np.cumsum of lengths"
        )
    found = array.astype(np.int64)
    longest = int(np.diff(found).max(initial=0))
    if most is not None and longest > most:
        raise BadValue(f"{where}: {name} has a sequence of {longest} rows, longer than the {most} that are named")
    return found
