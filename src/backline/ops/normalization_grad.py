"""Gradients of normalizations, with respect to input, weight and bias together.

Sums are as in the gradients of activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..problems.neural_problem import NeuralProblem
from .activations_grad import GRAD, pair
from .doc_fragments import filled
from .families import function_family, kinds
from .layer_checks import Array, channels, parameter, positive, problem
from .normalization import normalized_axes
from .operation import operation

__all__ = ["NormGrads", "batch_norm_backward", "layer_norm_backward"]


class NormGrads(NamedTuple):
    """Gradients of a normalization with respect to its input, weight and bias."""

    input: Array
    weight: Array
    bias: Array


@operation("layer_norm_gradients", module=GRAD, family="neural", results=NormGrads)
def _layer_norm(
    input: Array, grad_output: Array, normalized_shape: Any, weight: Array | None = None, eps: float = 1e-5
) -> NeuralProblem:
    where = "layer_norm_backward"
    array, grad = pair(where, "input", input, grad_output)
    shape = normalized_axes(where, array, normalized_shape)
    arrays = {"input": array, "grad": grad, "weight": parameter(where, "weight", weight, shape, array)}
    return problem("layer_norm_grad", arrays, array.shape, axes=len(shape), eps=positive(where, "eps", eps))


@operation("batch_norm_gradients", module=GRAD, family="neural", results=NormGrads)
def _batch_norm(input: Array, grad_output: Array, weight: Array | None = None, eps: float = 1e-5) -> NeuralProblem:
    where = "batch_norm_backward"
    array, grad = pair(where, "input", input, grad_output)
    shape = (channels(where, array),)
    arrays = {"input": array, "grad": grad, "weight": parameter(where, "weight", weight, shape, array)}
    return problem("batch_norm_train_grad", arrays, array.shape, eps=positive(where, "eps", eps))


TEXT = """Gradients of `{op}`{when} with respect to its input, weight and bias.

Parameters
----------
input
    Input of `{op}`{shape}.
{grad_output}
{numbers}
    As for `{op}`.

Returns
-------
NormGrads
    `input` as the input; `weight` and `bias` of shape {weights} and the input's dtype.

{raises}
    As `{op}`; `grad_output` of another shape or dtype.

{examples}
{example}
"""
FACTS = {
    "layer_norm": {
        "when": "", "shape": "", "numbers": "normalized_shape, weight, eps", "weights": "`normalized_shape`",
        "example": """>>> x, g = np.array([[1.0, 3.0]]), np.array([[1.0, 1.0]])
>>> backline.nn.grad.layer_norm_backward(x, g, 2, eps=0).weight
array([-1.,  1.])""",
    },
    "batch_norm": {
        "when": " in training", "shape": ", of shape (N, C, ...)", "numbers": "weight, eps", "weights": "(C,)",
        "example": """>>> x, g = np.array([[1.0], [3.0]]), np.array([[0.0], [1.0]])
>>> backline.nn.grad.batch_norm_backward(x, g, eps=0).weight
array([1.])""",
    },
}  # fmt: skip


def _text(op: str) -> str | None:
    return filled(TEXT, op=op, **FACTS[op])


def _layer_norm_backward(
    op: str, input: Array, grad_output: Array, normalized_shape: int | Sequence[int], weight: Array | None = None,
    eps: float = 1e-5,
) -> NormGrads:  # fmt: skip
    return NormGrads(*_layer_norm(input, grad_output, normalized_shape, weight, eps))


def _batch_norm_backward(
    op: str, input: Array, grad_output: Array, weight: Array | None = None, eps: float = 1e-5
) -> NormGrads:
    return NormGrads(*_batch_norm(input, grad_output, weight, eps))


(layer_norm_backward,) = function_family(_layer_norm_backward, kinds("layer_norm", suffix="_backward"), _text, module=GRAD)
(batch_norm_backward,) = function_family(_batch_norm_backward, kinds("batch_norm", suffix="_backward"), _text, module=GRAD)
