"""Gradients of linear layers, activations, softmax, normalisation and pooling, so that a small network can be trained.

`grad_output` is the gradient with respect to the result of the operation that a name begins with, and comes after the arrays that
operation was given. A name that ends in ``_input``, ``_weight`` or ``_bias`` returns the gradient with respect to that, one that
ends in ``_backward`` those of input, weight and bias together. Dtypes and layouts are those of the operations. NumPy takes
sums in float64 and rounds once, other libraries take those of float32 in float32; products are as in `matmul`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadValue
from ..problems.neural import NeuralProblem
from .bind import composed_of, operation
from .checks import word
from .kinds import cast, like, on_its_device, space_of
from .layer_checks import Array, as_input, axis_of, channels, parameter, positive, problem, same_shape
from .linear import _same_dtype
from .matmul import matmul
from .normalise import normalised_axes

__all__ = [
    "GRAD", "NormGrads", "batch_norm_backward", "gelu_input", "layer_norm_backward", "linear_bias", "linear_input",
    "linear_weight", "log_softmax_input", "relu_input", "sigmoid_input", "silu_input", "softmax_input", "tanh_input",
]  # fmt: skip

GRAD = "backline.nn.grad"


class NormGrads(NamedTuple):
    """Gradients of a normalisation with respect to its input, weight and bias."""

    input: Array
    weight: Array
    bias: Array


# Linear layers --------------------------------------------------------------------------------------------------------


@composed_of("matmul", module=GRAD)
@on_its_device
def linear_input(weight: Array, grad_output: Array) -> Array:
    """Gradient of `linear` with respect to its input: ``grad_output @ weight``.

    Parameters
    ----------
    weight
        Shape (out, in).
    grad_output
        Shape (..., out).

    Returns
    -------
    ndarray
        Shape (..., in).

    Raises
    ------
    BadType, BadValue
        Not arrays of one dtype; shapes that do not fit.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.linear_input(np.array([[1.0, 2.0]]), np.array([[3.0]]))
    array([[3., 6.]])
    """
    _same_dtype("linear_input", weight=weight, grad_output=grad_output)
    if weight.ndim != 2 or grad_output.ndim < 1 or grad_output.shape[-1] != weight.shape[0]:
        raise BadValue(
            f"linear_input: weight of shape {weight.shape} and grad_output of shape {grad_output.shape} do not fit",
            cause="they are (out, in) and (..., out)",
        )
    rows = grad_output.reshape(prod(grad_output.shape[:-1]), grad_output.shape[-1])
    result: Array = matmul(rows, weight).reshape(*grad_output.shape[:-1], weight.shape[1])
    return result


@composed_of("matmul", module=GRAD)
@on_its_device
def linear_weight(input: Array, grad_output: Array) -> Array:
    """Gradient of `linear` with respect to its weight: the sum of all ``outer(grad_output, input)``.

    Parameters
    ----------
    input
        Shape (..., in).
    grad_output
        Shape (..., out).

    Returns
    -------
    ndarray
        Shape (out, in).

    Raises
    ------
    BadType, BadValue
        Not arrays of one dtype; shapes that do not fit.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.linear_weight(np.array([[1.0, 2.0]]), np.array([[3.0]]))
    array([[3., 6.]])
    """
    _same_dtype("linear_weight", input=input, grad_output=grad_output)
    if input.ndim < 1 or grad_output.ndim < 1 or input.shape[:-1] != grad_output.shape[:-1]:
        raise BadValue(
            f"linear_weight: input has shape {input.shape}, grad_output {grad_output.shape}",
            cause="all but the last axis must agree",
        )
    rows = prod(input.shape[:-1])
    result: Array = matmul(grad_output.reshape(rows, grad_output.shape[-1]).T, input.reshape(rows, input.shape[-1]))
    return result


@on_its_device
def linear_bias(grad_output: Array) -> Array:
    """Gradient of `linear` with respect to its bias: the sum of `grad_output` over all axes but the last.

    Parameters
    ----------
    grad_output
        Floating-point array of shape (..., out).

    Returns
    -------
    ndarray
        Shape (out,).

    Raises
    ------
    BadType, BadValue
        Not an array of floating-point numbers with an axis.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.linear_bias(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([4., 6.])
    """
    dtype = as_input("linear_bias", "grad_output", like(grad_output), rank=1).dtype
    axes = tuple(range(grad_output.ndim - 1))
    with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
        total = space_of(grad_output).total(grad_output, axes)
        rounded: Array = cast(cast(total, np.float32) if dtype.itemsize == 2 else total, dtype)
        return rounded


# Activations and softmax -----------------------------------------------------------------------------------------------


def _pair(where: str, name: str, value: Any, grad_output: Any) -> tuple[Array, Array]:
    array = as_input(where, name, value)
    return array, same_shape(where, "grad_output", grad_output, name, array)


@operation("relu_input", module=GRAD, family="neural")
def relu_input(input: Array, grad_output: Array) -> NeuralProblem:
    """Gradient of `relu` with respect to its input: `grad_output` where the input is not 0 or below.

    Parameters
    ----------
    input
        What `relu` was given. Its result serves as well.
    grad_output
        Array of the same shape and dtype.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType, BadValue
        Not arrays of floating-point numbers, of one shape and dtype.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.relu_input(np.array([-1.0, 2.0]), np.array([5.0, 5.0]))
    array([0., 5.])
    """
    array, grad = _pair("relu_input", "input", input, grad_output)
    return problem("relu_grad", {"input": array, "grad": grad}, array.shape)


@operation("gelu_input", module=GRAD, family="neural")
def gelu_input(input: Array, grad_output: Array, approximate: str = "none") -> NeuralProblem:
    """Gradient of `gelu` with respect to its input.

    Parameters
    ----------
    input
        What `gelu` was given.
    grad_output
        Array of the same shape and dtype.
    approximate
        As for `gelu`.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType, BadValue
        As `relu_input`; another word for `approximate`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.gelu_input(np.array([0.0, 9.0]), np.array([1.0, 1.0]))
    array([0.5, 1. ])
    """
    array, grad = _pair("gelu_input", "input", input, grad_output)
    form = word("gelu_input", "approximate", approximate, ("none", "tanh"))
    return problem("gelu_grad", {"input": array, "grad": grad}, array.shape, approximate=form)


@operation("silu_input", module=GRAD, family="neural")
def silu_input(input: Array, grad_output: Array) -> NeuralProblem:
    """Gradient of `silu` with respect to its input: `grad_output` times ``s * (1 + x * (1 - s))`` with the sigmoid s of x.

    Parameters
    ----------
    input
        What `silu` was given.
    grad_output
        Array of the same shape and dtype.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType, BadValue
        As `relu_input`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.silu_input(np.array([0.0, 900.0]), np.array([1.0, 1.0]))
    array([0.5, 1. ])
    """
    array, grad = _pair("silu_input", "input", input, grad_output)
    return problem("silu_grad", {"input": array, "grad": grad}, array.shape)


@operation("tanh_input", module=GRAD, family="neural")
def tanh_input(input: Array, grad_output: Array) -> NeuralProblem:
    """Gradient of `tanh` with respect to its input: `grad_output` times ``1 - tanh(x) ** 2``.

    Parameters
    ----------
    input
        What `tanh` was given.
    grad_output
        Array of the same shape and dtype.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType, BadValue
        As `relu_input`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.tanh_input(np.array([0.0, 900.0]), np.array([1.0, 1.0]))
    array([1., 0.])
    """
    array, grad = _pair("tanh_input", "input", input, grad_output)
    return problem("tanh_grad", {"input": array, "grad": grad}, array.shape)


@operation("sigmoid_input", module=GRAD, family="neural")
def sigmoid_input(input: Array, grad_output: Array) -> NeuralProblem:
    """Gradient of `sigmoid` with respect to its input: `grad_output` times ``s * (1 - s)`` with the sigmoid s of x.

    Parameters
    ----------
    input
        What `sigmoid` was given.
    grad_output
        Array of the same shape and dtype.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType, BadValue
        As `relu_input`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.sigmoid_input(np.array([0.0, 900.0]), np.array([1.0, 1.0]))
    array([0.25, 0.  ])
    """
    array, grad = _pair("sigmoid_input", "input", input, grad_output)
    return problem("sigmoid_grad", {"input": array, "grad": grad}, array.shape)


@operation("softmax_input", module=GRAD, family="neural")
def softmax_input(output: Array, grad_output: Array, dim: int) -> NeuralProblem:
    """Gradient of `softmax` with respect to its input, from its result.

    Parameters
    ----------
    output
        What `softmax` returned.
    grad_output
        Array of the same shape and dtype.
    dim
        As for `softmax`.

    Returns
    -------
    ndarray
        As `output`.

    Raises
    ------
    BadType, BadValue
        As `relu_input`; no such axis.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.softmax_input(np.array([0.5, 0.5]), np.array([1.0, 0.0]), dim=0)
    array([ 0.25, -0.25])
    """
    return _softmax("softmax", output, grad_output, dim)


@operation("log_softmax_input", module=GRAD, family="neural")
def log_softmax_input(output: Array, grad_output: Array, dim: int) -> NeuralProblem:
    """Gradient of `log_softmax` with respect to its input, from its result.

    Parameters
    ----------
    output
        What `log_softmax` returned.
    grad_output
        Array of the same shape and dtype.
    dim
        As for `log_softmax`.

    Returns
    -------
    ndarray
        As `output`.

    Raises
    ------
    BadType, BadValue
        As `softmax_input`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.grad.log_softmax_input(np.log([0.5, 0.5]), np.array([1.0, 0.0]), dim=0)
    array([ 0.5, -0.5])
    """
    return _softmax("log_softmax", output, grad_output, dim)


def _softmax(op: str, output: Any, grad_output: Any, dim: Any) -> NeuralProblem:
    where = f"{op}_input"
    array, grad = _pair(where, "output", output, grad_output)
    if array.ndim < 1:
        raise BadValue(f"{where}: output must have 1 dimension or more, it has shape ()")
    return problem(f"{op}_grad", {"result": array, "grad": grad}, array.shape, axis=axis_of(where, "dim", dim, array))


# Normalisation -------------------------------------------------------------------------------------------------------


@operation("layer_norm_gradients", module=GRAD, family="neural")
def _layer_norm(
    input: Array, grad_output: Array, normalized_shape: Any, weight: Array | None = None, eps: float = 1e-5
) -> NeuralProblem:
    where = "layer_norm_backward"
    array, grad = _pair(where, "input", input, grad_output)
    shape = normalised_axes(where, array, normalized_shape)
    arrays = {"input": array, "grad": grad, "weight": parameter(where, "weight", weight, shape, array)}
    return problem("layer_norm_grad", arrays, array.shape, axes=len(shape), eps=positive(where, "eps", eps))


def layer_norm_backward(
    input: Array, grad_output: Array, normalized_shape: int | Sequence[int], weight: Array | None = None, eps: float = 1e-5
) -> NormGrads:
    """Gradients of `layer_norm` with respect to its input, weight and bias.

    Parameters
    ----------
    input
        What `layer_norm` was given.
    grad_output
        Array of the same shape and dtype.
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


@operation("batch_norm_gradients", module=GRAD, family="neural")
def _batch_norm(input: Array, grad_output: Array, weight: Array | None = None, eps: float = 1e-5) -> NeuralProblem:
    where = "batch_norm_backward"
    array, grad = _pair(where, "input", input, grad_output)
    shape = (channels(where, array),)
    arrays = {"input": array, "grad": grad, "weight": parameter(where, "weight", weight, shape, array)}
    return problem("batch_norm_train_grad", arrays, array.shape, eps=positive(where, "eps", eps))


def batch_norm_backward(input: Array, grad_output: Array, weight: Array | None = None, eps: float = 1e-5) -> NormGrads:
    """Gradients of `batch_norm` in training with respect to its input, weight and bias.

    Parameters
    ----------
    input
        What `batch_norm` was given, of shape (N, C, ...).
    grad_output
        Array of the same shape and dtype.
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


for _public in (linear_bias, layer_norm_backward, batch_norm_backward):
    _public.__module__ = GRAD
