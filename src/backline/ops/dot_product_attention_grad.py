"""Gradients of scaled dot product attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.attention_problem import AttentionGrads, AttentionProblem
from .array_arguments import check_array
from .dot_product_attention import Array, attention_call, result_shape
from .layer_checks import same_dtype
from .operation import operation

__all__ = ["AttentionGrads", "scaled_dot_product_attention_backward"]

WHERE = "scaled_dot_product_attention_backward"


@operation(WHERE, module="backline.nn.grad", family="attention", results=AttentionGrads, scalar="seed")
def scaled_dot_product_attention_backward(
    query: Array, key: Array, value: Array, grad_output: Array, attn_mask: Array | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *, seed: int | None = None,
    output: Array | None = None, lse: Array | None = None,
) -> AttentionProblem:  # fmt: skip
    """Gradients of `scaled_dot_product_attention` with respect to its arrays.

    Parameters
    ----------
    query, key, value
        What the operation was given.
    grad_output
        Array of the result's shape and dtype.
    attn_mask, dropout_p, is_causal, scale, enable_gqa, seed
        As for the operation; the same seed leaves out the same weights.
    output, lse
        The operation's results with `return_lse`, both or neither: with them the softmax of the scores is not computed again.

    Returns
    -------
    AttentionGrads
        `query`, `key`, `value`: as what they belong to. `attn_mask`: as a mask that is added; None without one.

    {raises}
        As the operation; `grad_output` of another shape or dtype.
    NoKernel
        The kernel "math" is switched off: no other has gradients on the CPU.

    Notes
    -----
    "math" holds all weights, computed again; it alone has the gradient of a mask. "flash", "efficient" and cuDNN's
    kernel, on CUDA, hold none. A key that takes no part has no share in any gradient.

    {examples}
    >>> q, k, v = np.zeros((1, 2)), np.zeros((2, 2)), np.array([[1.0], [3.0]])
    >>> backline.nn.grad.scaled_dot_product_attention_backward(q, k, v, np.ones((1, 1))).value
    array([[0.5],
           [0.5]])
    """
    check_array(grad_output, f"{WHERE}: grad_output")
    problem = attention_call(WHERE, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, seed)
    _check_given(problem, output, lse)
    shape = result_shape(problem)
    if grad_output.shape != shape:
        raise BadValue(f"{WHERE}: grad_output has shape {grad_output.shape}, the result has {shape}")
    same_dtype(WHERE, "grad_output", grad_output, "query", problem.dtype)
    operands = (*problem.operands[:3], operand("grad", np.asarray(grad_output)), *problem.operands[3:])
    if output is not None and lse is not None:
        operands = (*operands, operand("output", np.asarray(output)), operand("lse", np.asarray(lse)))
    parameters = {**dict(problem.parameters), "needs_grad": True}
    return replace(
        problem, op=f"nn.grad.{WHERE}", operands=operands, parameters=tuple(sorted(parameters.items())),
        mask_needs_grad=problem.mask is not None and problem.mask.dtype.kind != "b",
    )  # fmt: skip


def _check_given(problem: AttentionProblem, output: Array | None, lse: Array | None) -> None:
    """Refuses results of the operation that are not those of this call."""
    if output is None and lse is None:
        return
    if output is None or lse is None:
        missing, given = ("output", "lse") if output is None else ("lse", "output")
        raise BadValue(
            f"{WHERE}: {given} without {missing}", cause="the gradients take both, or neither",
            remedy="output, lse = scaled_dot_product_attention(..., return_lse=True)",
        )  # fmt: skip
    shape = result_shape(problem)
    for name, array, wanted, dtype in (("output", output, shape, problem.dtype), ("lse", lse, shape[:-1], problem.lse_dtype)):
        check_array(array, f"{WHERE}: {name}")
        if array.shape != wanted:
            raise BadValue(f"{WHERE}: {name} has shape {array.shape}, that of the operation has {wanted}")
        if array.dtype != dtype:
            raise BadType(f"{WHERE}: {name} has dtype {array.dtype}, that of the operation has {dtype}")
