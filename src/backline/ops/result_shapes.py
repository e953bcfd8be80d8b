"""Shapes and dtypes of an operation's results, without computing them: what compilers of other frameworks ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..problems import Problem
from ..problems.attention_problem import AttentionProblem
from ..problems.conv_problem import ConvProblem
from ..problems.einsum_problem import EinsumProblem
from ..problems.elements_problem import ElementsProblem
from ..problems.fft_problem import FftProblem
from ..problems.grouped_problem import GroupedProblem
from ..problems.linalg_problem import LinalgProblem
from ..problems.linalg_results import Result, linalg_results
from ..problems.linear_problem import LinearProblem
from ..problems.matmul_problem import MatmulProblem
from ..problems.neural_problem import NeuralProblem
from ..problems.norm_problem import NormProblem
from ..problems.packed_attention_problem import PackedAttentionProblem
from ..problems.rnn_problem import RnnProblem
from .dot_product_attention import result_shape

__all__ = ["results_of"]

Results = tuple[Result, ...]


def results_of(problem: Problem) -> Results | None:
    """Returns shape and dtype of every result of a Problem, in the order of the results; None where it does not say them.

    >>> import numpy as np
    >>> from backline.problems.op_registry import operations
    >>> results_of(operations["matmul"].build(np.ones((4, 2, 3)), np.ones((3, 5))))
    (((4, 2, 5), dtype('float64')),)
    """
    rule = _RULES.get(type(problem))
    return None if rule is None else rule(problem)


def _plain(p: Any) -> Results:
    return ((p.result, p.dtype),)


def _norm(p: NormProblem) -> Results:
    own = p.operands[0].dtype
    real = np.dtype(own.char.lower()) if own.kind == "c" and p.op != "trace" else own
    return ((p.result, real),)


def _neural(p: NeuralProblem) -> Results:
    if p.op == "max_pool_indices":
        return (p.result, p.dtype), (p.result, np.dtype(np.int64))
    if p.op == "layer_norm_grad":
        inner = p.result[len(p.result) - p.parameter("axes") :]
        return (p.result, p.dtype), (inner, p.dtype), (inner, p.dtype)
    if p.op == "batch_norm_train_grad":
        return (p.result, p.dtype), (p.result[1:2], p.dtype), (p.result[1:2], p.dtype)
    if p.op == "batch_norm_train":
        sums = np.dtype(np.float32) if p.dtype.itemsize == 2 else p.dtype
        return (p.result, p.dtype), (p.result[1:2], sums), (p.result[1:2], sums)
    return ((p.result, p.dtype),)


def _attention(p: AttentionProblem) -> Results:
    if p.get("grad") is None:
        shape = result_shape(p)
        return ((shape, p.dtype), *(((shape[:-1], p.lse_dtype),) if p.returns_lse else ()))
    masks = [p.mask] if p.mask is not None and p.mask_needs_grad else []
    return tuple((o.shape, o.dtype) for o in (*p.qkv, *masks))


def _packed(p: PackedAttentionProblem) -> Results:
    if p.needs_grad:
        return tuple((o.shape, o.dtype) for o in p.qkv)
    return ((p.result, p.dtype), *(((p.result[:2], p.lse_dtype),) if p.returns_lse else ()))


def _recurrent(p: RnnProblem) -> Results:
    if p.is_gradient:
        of = [o for o in p.operands if o.role in ("input", "h0", "c0")]
        params = [o for o in p.operands if o.role[0] == "p" and o.role[1:].isdigit()]
        return tuple((o.shape, o.dtype) for o in (*of, *params))
    state = (p.layers * p.directions, p.batch, p.hidden)
    return (p.result, p.dtype), *((state, p.dtype),) * (2 if p.mode == "lstm" else 1)


_RULES: dict[type, Callable[[Any], Results | None]] = {
    AttentionProblem: _attention,
    ConvProblem: _plain,
    EinsumProblem: _plain,
    ElementsProblem: _plain,
    FftProblem: lambda p: ((p.result, p.result_dtype),),
    GroupedProblem: _plain,
    LinalgProblem: linalg_results,
    LinearProblem: _plain,
    MatmulProblem: _plain,
    NeuralProblem: _neural,
    NormProblem: _norm,
    PackedAttentionProblem: _packed,
    RnnProblem: _recurrent,
}
