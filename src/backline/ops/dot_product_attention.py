"""Scaled dot product attention: what the operation checks before any kernel, and the Problem it makes."""

from __future__ import annotations

from typing import Any, Literal, Protocol, cast, overload

import numpy as np

from ..errors import BadType, BadValue
from ..problems.attention_problem import AttentionLSE, AttentionProblem, attention_problem, wrong
from .array_arguments import check_array
from .linalg_checks import flag, number
from .operation import operation
from .seeds import checked_seed, seed_given

__all__ = ["AttentionLSE", "attention_call", "result_shape", "scaled_dot_product_attention"]

Array = np.ndarray[Any, Any]
WHERE = "scaled_dot_product_attention"


@operation(WHERE, module="backline.nn.functional", family="attention", scalar="seed")
def _attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False, *, seed: int | None = None, return_lse: bool = False,
) -> AttentionProblem:  # fmt: skip
    """Attention: ``softmax(scale * query @ key.T + mask) @ value``.

    Parameters
    ----------
    query
        Shape (..., heads, Lq, E): float16, bfloat16, float32, float64 or longdouble.
    key, value
        Shapes (..., heads, Lk, E) and (..., heads, Lk, Ev), of the query's dtype.
    attn_mask
        Broadcasts to (..., heads, Lq, Lk). One of bool says where a key takes part; one of float32, or of the query's dtype, is
        added to the scores.
    dropout_p
        Probability with which a weight is left out, 0 to 1.
    is_causal
        Key j takes part for query i only if ``j <= i``, counted from the upper left corner. Not together with a mask.
    scale
        Default: one over the root of E.
    enable_gqa
        Key and value may have fewer heads than the query, which their numbers divide: neighbouring query heads share one.
    seed
        For dropout: the same seed leaves out the same weights. None draws one, where `backline.manual_seed` has been called.
    return_lse
        Whether to return an `AttentionLSE` instead of an array: the output, and the log-sum-exp of the scores of each query.
        `backline.nn.grad.scaled_dot_product_attention_backward` takes both and computes neither again.

    {returns_array}
        Shape (..., heads, Lq, Ev), of the query's dtype. With `return_lse`, ``(output, lse)``: `lse` has the shape
        (..., heads, Lq); it is float32 for 16-bit floats, else of the query's dtype; minus infinity where no key takes part.

    Raises
    ------
    BadValue
        Shapes that do not fit, a mask beside is_causal, a probability outside 0 to 1, dropout without a seed.
    BadType
        Not arrays, several dtypes, a mask of another dtype.
    NoKernel
        No kernel that is switched on can run it; the message has every kernel with its reason.

    Notes
    -----
    A key that takes no part does not count at all, whatever is in it; a mask of minus infinity says the same as False. A query
    for which no key takes part gives zeros. `backline.nn.attention.sdpa_kernel` says which kernels may run: "flash" holds a tile
    of the scores for each thread, "math" of a BLAS library those of a block of queries, and NumPy's all of them. In bfloat16, on
    processors with AMX, "flash" rounds weights to bfloat16 before the product with the values; sums are float32.

    On devices only "math" keeps NaN and infinity out in that way. The fused kernels there, "flash", "efficient" and cuDNN's,
    multiply what is left out by zero: a NaN in such a key or value spreads to rows that it has no part in. On CUDA one seed
    leaves out the same weights in "flash", "efficient" and "math"; cuDNN draws other numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import scaled_dot_product_attention
    >>> x = np.eye(2, dtype=np.float32)
    >>> scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.0)
    array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)

    Gradients from the output and the log-sum-exp:

    >>> from backline.nn.grad import scaled_dot_product_attention_backward
    >>> attended = scaled_dot_product_attention(x, x, x, return_lse=True)
    >>> gradients = scaled_dot_product_attention_backward(x, x, x, x, output=attended.output, lse=attended.lse)
    >>> attended.lse.round(2), gradients.value.round(2)
    (array([1.11, 1.11], dtype=float32), array([[0.67, 0.33],
           [0.33, 0.67]], dtype=float32))
    """
    return attention_call(WHERE, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, seed, return_lse)


class _Attention(Protocol):
    """The operation for type checkers: what it returns depends on `return_lse`."""

    @overload
    def __call__(
        self, query: Array, key: Array, value: Array, attn_mask: Array | None = ..., dropout_p: float = ...,
        is_causal: bool = ..., scale: float | None = ..., enable_gqa: bool = ..., *, seed: int | None = ...,
        return_lse: Literal[False] = ...,
    ) -> Array: ...  # fmt: skip
    @overload
    def __call__(
        self, query: Array, key: Array, value: Array, attn_mask: Array | None = ..., dropout_p: float = ...,
        is_causal: bool = ..., scale: float | None = ..., enable_gqa: bool = ..., *, seed: int | None = ...,
        return_lse: Literal[True],
    ) -> AttentionLSE: ...  # fmt: skip


scaled_dot_product_attention = cast("_Attention", _attention)


def attention_call(
    where: str, query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any, enable_gqa: Any,
    seed: Any, return_lse: Any = False,
) -> AttentionProblem:  # fmt: skip
    """Returns the Problem of a call, checked for everything that no kernel could run."""
    arrays = {"query": query, "key": key, "value": value}
    for name, array in arrays.items():
        check_array(array, f"{where}: {name}")
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise BadType(f"{where}: {name} has dtype {array.dtype}, which is not real floating", remedy="x.astype(np.float32)")
    if attn_mask is not None:
        check_array(attn_mask, f"{where}: attn_mask")
    number(where, "dropout_p", dropout_p)
    if scale is not None:
        number(where, "scale", scale)
    causal, gqa = flag(where, "is_causal", is_causal), flag(where, "enable_gqa", enable_gqa)
    with_lse = flag(where, "return_lse", return_lse)
    problem = attention_problem(query, key, value, attn_mask, dropout_p, causal, scale, gqa, return_lse=with_lse)
    reason = wrong(problem)
    if reason:
        raise (BadType if _dtypes_clash(problem) else BadValue)(f"{where}: {reason}")
    _check_shapes(where, problem)
    if problem.dropout:
        checked_seed(where, seed)
    else:
        seed_given(where, seed)
    return problem


def _dtypes_clash(problem: AttentionProblem) -> bool:
    """Returns true if a dtype is what is wrong with a Problem, and all else that `wrong` checks is right."""
    if len({o.dtype for o in problem.qkv}) > 1:
        return True
    mask = problem.mask
    return mask is not None and not problem.is_causal and mask.dtype not in (np.dtype(bool), np.dtype(np.float32), problem.dtype)


def _lead(problem: AttentionProblem) -> tuple[int, ...]:
    """Returns batch and heads of the result, those of the arrays broadcast; a `ValueError` says that they do not."""
    if not problem.enable_gqa:
        return np.broadcast_shapes(*(shape[:-2] for shape in problem.shapes))
    batch = np.broadcast_shapes(*(shape[:-3] for shape in problem.shapes))
    return (*batch, problem.heads[0]) if max(map(len, problem.shapes)) > 2 else ()


def result_shape(problem: AttentionProblem) -> tuple[int, ...]:
    """Returns the shape of the result of a Problem that was checked."""
    return (*_lead(problem), problem.lengths[0], problem.dims[2])


def _check_shapes(where: str, problem: AttentionProblem) -> None:
    """Refuses batches and heads that do not broadcast, and a mask that does not broadcast to them."""
    try:
        lead = _lead(problem)
    except ValueError:
        axes = "batches" if problem.enable_gqa else "batches and heads"
        raise BadValue(
            f"{where}: the {axes} of query, key and value do not broadcast: shapes {', '.join(map(str, problem.shapes))}",
            remedy="" if problem.enable_gqa else "enable_gqa=True where query heads share those of key and value",
        ) from None
    mask = problem.mask
    if mask is None:
        return
    whole = (*lead, *problem.lengths[:2])
    fits = len(mask.shape) <= len(whole) and all(n in (1, m) for n, m in zip(mask.shape[::-1], whole[::-1], strict=False))
    if not fits:
        raise BadValue(f"{where}: attn_mask of shape {mask.shape} does not broadcast to {whole}")
