"""Attention over packed sequences where one call of a library computes all of them: a part of `varlen_attn` and its gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.attention_problem import AttentionGrads
from ..problems.dtypes import compute_dtype
from ..problems.packed_attention_problem import PackedAttentionProblem
from .array_arguments import check_array
from .dot_product_attention import attention_call
from .linalg_checks import flag
from .operation import operation

__all__ = ["checked_arrays", "checked_results", "checked_shapes", "packed_attention", "packed_attention_backward"]

Array = np.ndarray[Any, Any]
WHERE, BACKWARD = "varlen_attn", "varlen_attn_backward"


def checked_shapes(where: str, query: Array, key: Array, value: Array) -> None:
    """Refuses query, key and value that are not rows of all sequences; arrays may be of any kind."""
    arrays = query, key, value
    if any(a.ndim != 3 for a in arrays) or key.shape[:2] != value.shape[:2]:
        raise BadValue(
            f"{where}: query, key and value have shapes {', '.join(str(tuple(a.shape)) for a in arrays)}",
            cause="they are (rows of all sequences, heads, head dim)",
        )  # fmt: skip


def checked_arrays(where: str, query: Array, key: Array, value: Array, scale: Any, enable_gqa: Any) -> None:
    """Refuses query, key and value of all sequences that no attention has."""
    checked_shapes(where, query, key, value)
    # Everything else is as in attention of the whole, of which this is a part.
    q, k, v = (a.swapaxes(0, 1) for a in (query, key, value))
    attention_call(where, q, k, v, None, 0.0, False, scale, enable_gqa, None)
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise BadValue(
            f"{where}: query has {query.shape[1]} heads, key and value have {key.shape[1]}",
            remedy="enable_gqa=True where query heads share those of key and value",
        )  # fmt: skip


def checked_results(query: Array, value: Array, grad_output: Any, output: Any, lse: Any) -> None:
    """Refuses a gradient, an output and a log-sum-exp that are not those of such a call."""
    shape, dtype = (*query.shape[:2], value.shape[2]), query.dtype
    results = {
        "grad_output": (grad_output, shape, dtype), "output": (output, shape, dtype),
        "lse": (lse, shape[:2], compute_dtype(dtype)),
    }  # fmt: skip
    for name, (array, wanted, kind) in results.items():
        if array is None and name != "grad_output":
            continue
        found = check_array(array, f"{BACKWARD}: {name}")
        if found.shape != wanted:
            raise BadValue(f"{BACKWARD}: {name} has shape {found.shape}, it must have {wanted}")
        if found.dtype != kind:
            raise BadType(f"{BACKWARD}: {name} has dtype {found.dtype}, it must have {kind}")
    if (output is None) != (lse is None):
        raise BadValue(f"{BACKWARD}: output without lse, or lse without output", cause="the gradients take both, or neither")


def _problem(
    where: str, query: Array, key: Array, value: Array, cu_seq_q: Array, cu_seq_k: Array | None, max_q: int, max_k: int,
    is_causal: bool, scale: float | None, enable_gqa: bool, gaps: bool, return_lse: bool,
) -> PackedAttentionProblem:  # fmt: skip
    arrays = {"query": query, "key": key, "value": value}
    for name, array in arrays.items():
        check_array(array, f"{where}: {name}")
    checked_arrays(where, query, key, value, scale, enable_gqa)
    positions = {"cu_seq_q": cu_seq_q} | ({} if cu_seq_k is None else {"cu_seq_k": cu_seq_k})
    for name, array in positions.items():
        check_array(array, f"{where}: {name}")
        if array.ndim != 1 or array.dtype.name not in ("int32", "int64"):
            raise BadType(
                f"{where}: {name} has shape {array.shape} and dtype {array.dtype}", cause="positions on a device are one axis of "
                "int32 or int64", remedy="x.astype('int32')"
            )  # fmt: skip
    if not len(cu_seq_q) or (cu_seq_k is not None and len(cu_seq_k) != len(cu_seq_q)):
        raise BadValue(
            f"{where}: cu_seq_q has {len(cu_seq_q)} positions, cu_seq_k {len(cu_seq_q if cu_seq_k is None else cu_seq_k)}"
        )
    for name, length in (("max_q", max_q), ("max_k", max_k)):
        if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 1:
            raise BadValue(f"{where}: {name} is {length!r}, it must be a whole number from 1")
    parameters: dict[str, Any] = {
        "enable_gqa": bool(enable_gqa), "gaps": flag(where, "gaps", gaps), "is_causal": flag(where, "is_causal", is_causal),
        "max_k": int(max_k), "max_q": int(max_q), "scale": None if scale is None else float(scale),
    }  # fmt: skip
    if flag(where, "return_lse", return_lse):
        parameters["return_lse"] = True
    return PackedAttentionProblem(
        "nn.functional.packed_attention", tuple(operand(role, array) for role, array in {**arrays, **positions}.items()),
        tuple(sorted(parameters.items())), "attention",
    )  # fmt: skip


@operation("packed_attention", module="backline.nn.functional", family="attention")
def packed_attention(
    query: Array, key: Array, value: Array, cu_seq_q: Array, cu_seq_k: Array | None = None, max_q: int = 1, max_k: int = 1,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, gaps: bool = True, return_lse: bool = False,
) -> PackedAttentionProblem:  # fmt: skip
    """Attention within each of several sequences, all of them by one call of a library."""
    return _problem(
        WHERE, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, scale, enable_gqa, gaps, return_lse
    )  # fmt: skip


@operation("packed_attention_backward", module="backline.nn.grad", family="attention", results=AttentionGrads)
def packed_attention_backward(
    query: Array, key: Array, value: Array, grad_output: Array, cu_seq_q: Array, cu_seq_k: Array | None = None, max_q: int = 1,
    max_k: int = 1, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, gaps: bool = True,
    output: Array | None = None, lse: Array | None = None,
) -> PackedAttentionProblem:  # fmt: skip
    """Gradients of `packed_attention` with respect to query, key and value."""
    made = _problem(BACKWARD, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, scale, enable_gqa, gaps, False)
    checked_results(query, value, grad_output, output, lse)
    # In the order of the call.
    operands = (*made.operands[:3], operand("grad", grad_output), *made.operands[3:])
    if output is not None and lse is not None:
        operands = (*operands, operand("output", output), operand("lse", lse))
    return replace(made, op="nn.grad.packed_attention_backward", operands=operands)
