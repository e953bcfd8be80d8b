"""Gradients of normalizations, with respect to input, weight and bias together.

Sums are as in the gradients of activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..problems.neural_problem import NeuralProblem
from .activations_grad import GRAD, pair
from .doc_fragments import filled
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


def layer_norm_backward(
    input: Array, grad_output: Array, normalized_shape: int | Sequence[int], weight: Array | None = None, eps: float = 1e-5
) -> NormGrads:
    """Gradients of `layer_norm` with respect to its input, weight and bias.

    Parameters
    ----------
    input
        Input of `layer_norm`.
    {grad_output}
    normalized_shape, weight, eps
        As for `layer_norm`.

    Returns
    -------
    NormGrads
        `input` as the input; `weight` and `bias` of shape `normalized_shape` and the input's dtype.

    Raises
    ------
    BadType, BadValue
        As `layer_norm`; `grad_output` of another shape or dtype.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x, g = np.array([[1.0, 3.0]]), np.array([[1.0, 1.0]])
    >>> backline.nn.grad.layer_norm_backward(x, g, 2, eps=0).weight
    array([-1.,  1.])
    """
    return NormGrads(*_layer_norm(input, grad_output, normalized_shape, weight, eps))


@operation("batch_norm_gradients", module=GRAD, family="neural", results=NormGrads)
def _batch_norm(input: Array, grad_output: Array, weight: Array | None = None, eps: float = 1e-5) -> NeuralProblem:
    where = "batch_norm_backward"
    array, grad = pair(where, "input", input, grad_output)
    shape = (channels(where, array),)
    arrays = {"input": array, "grad": grad, "weight": parameter(where, "weight", weight, shape, array)}
    return problem("batch_norm_train_grad", arrays, array.shape, eps=positive(where, "eps", eps))


def batch_norm_backward(input: Array, grad_output: Array, weight: Array | None = None, eps: float = 1e-5) -> NormGrads:
    """Gradients of `batch_norm` in training with respect to its input, weight and bias.

    Parameters
    ----------
    input
        Input of `batch_norm`, of shape (N, C, ...).
    {grad_output}
    weight, eps
        As for `batch_norm`.

    Returns
    -------
    NormGrads
        `input` as the input; `weight` and `bias` of shape (C,) and the input's dtype.

    Raises
    ------
    BadType, BadValue
        As `batch_norm`; `grad_output` of another shape or dtype.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x, g = np.array([[1.0], [3.0]]), np.array([[0.0], [1.0]])
    >>> backline.nn.grad.batch_norm_backward(x, g, eps=0).weight
    array([1.])
    """
    return NormGrads(*_batch_norm(input, grad_output, weight, eps))


for _public in (layer_norm_backward, batch_norm_backward):
    _public.__module__, _public.__doc__ = GRAD, filled(_public.__doc__)
