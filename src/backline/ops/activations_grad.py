"""Gradients of activations and softmax, so that a small network can be trained.

`grad_output` is the gradient with respect to the result of the operation that a name begins with, and comes after the arrays that
operation was given. A name that ends in ``_input``, ``_weight`` or ``_bias`` returns the gradient with respect to that, one that
ends in ``_backward`` those of input, weight and bias together. Dtypes and layouts are those of the operations. NumPy takes
sums in float64 and rounds once, other libraries take those of float32 in float32.
"""

from __future__ import annotations

from typing import Any

from ..errors import BadValue
from ..problems.neural_problem import NeuralProblem
from .axes import axis_of
from .layer_checks import Array, as_input, problem, same_shape
from .linalg_checks import word
from .operation import operation

__all__ = [
    "GRAD", "gelu_input", "log_softmax_input", "pair", "relu_input", "sigmoid_input", "silu_input", "softmax_input", "tanh_input",
]  # fmt: skip

GRAD = "backline.nn.grad"


def pair(where: str, name: str, value: Any, grad_output: Any) -> tuple[Array, Array]:
    """An array that an operation was given or returned, and the gradient of its result, of the same shape."""
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
    array, grad = pair("relu_input", "input", input, grad_output)
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
    array, grad = pair("gelu_input", "input", input, grad_output)
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
    array, grad = pair("silu_input", "input", input, grad_output)
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
    array, grad = pair("tanh_input", "input", input, grad_output)
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
    array, grad = pair("sigmoid_input", "input", input, grad_output)
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
    array, grad = pair(where, "output", output, grad_output)
    if array.ndim < 1:
        raise BadValue(f"{where}: output must have 1 dimension or more, it has shape ()")
    return problem(f"{op}_grad", {"result": array, "grad": grad}, array.shape, axis=axis_of(where, "dim", dim, array.shape))
