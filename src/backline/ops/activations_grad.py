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
from .doc_fragments import filled
from .families import kinds, operation_family
from .layer_checks import Array, as_input, problem, same_shape
from .linalg_checks import word

__all__ = [
    "GRAD", "gelu_input", "log_softmax_input", "pair", "relu_input", "sigmoid_input", "silu_input", "softmax_input", "tanh_input",
]  # fmt: skip

GRAD = "backline.nn.grad"


def pair(where: str, name: str, value: Any, grad_output: Any) -> tuple[Array, Array]:
    """Returns an array that an operation was given or returned, and the gradient of its result, of the same shape."""
    array = as_input(where, name, value)
    return array, same_shape(where, "grad_output", grad_output, name, array)


TEXT = """Gradient of `{op}` with respect to its input{formula}.

Parameters
----------
{array}
    {role}
{grad_output}
{more}
{returns_array}
    As `{array}`.

{raises}
    Not arrays of floating-point numbers, of one shape and dtype{errors}.

{examples}
>>> backline.nn.grad.{op}_input{example}
"""
SIGMOID = ", with the sigmoid s of x"
BY_INPUT = {"array": "input", "role": "Input of `{op}`.", "formula": "", "more": "", "errors": ""}
BY_RESULT = {"array": "output", "role": "Result of `{op}`.", "formula": ", from its result", "errors": "; no such axis",
             "more": "dim\n    As for `{op}`.\n"}  # fmt: skip
FACTS = {
    "relu": BY_INPUT | {
        "formula": ": `grad_output` where the input is not 0 or below", "role": "Input of `{op}`, or its result.",
        "example": "(np.array([-1.0, 2.0]), np.array([5.0, 5.0]))\narray([0., 5.])",
    },
    "silu": BY_INPUT | {
        "formula": f": `grad_output` times ``s * (1 + x * (1 - s))``{SIGMOID}",
        "example": "(np.array([0.0, 900.0]), np.array([1.0, 1.0]))\narray([0.5, 1. ])",
    },
    "tanh": BY_INPUT | {
        "formula": ": `grad_output` times ``1 - tanh(x) ** 2``",
        "example": "(np.array([0.0, 900.0]), np.array([1.0, 1.0]))\narray([1., 0.])",
    },
    "sigmoid": BY_INPUT | {
        "formula": f": `grad_output` times ``s * (1 - s)``{SIGMOID}",
        "example": "(np.array([0.0, 900.0]), np.array([1.0, 1.0]))\narray([0.25, 0.  ])",
    },
    "gelu": BY_INPUT | {
        "more": "approximate\n    As for `{op}`.\n", "errors": "; another word for `approximate`",
        "example": "(np.array([0.0, 9.0]), np.array([1.0, 1.0]))\narray([0.5, 1. ])",
    },
    "softmax": BY_RESULT | {"example": "(np.array([0.5, 0.5]), np.array([1.0, 0.0]), dim=0)\narray([ 0.25, -0.25])"},
    "log_softmax": BY_RESULT | {"example": "(np.log([0.5, 0.5]), np.array([1.0, 0.0]), dim=0)\narray([ 0.5, -0.5])"},
}  # fmt: skip
ROW: dict[str, Any] = {"module": GRAD, "family": "neural"}


def _text(op: str) -> str | None:
    return filled(TEXT, op=op, **FACTS[op])


def _pointwise(op: str, input: Array, grad_output: Array) -> NeuralProblem:
    array, grad = pair(f"{op}_input", "input", input, grad_output)
    return problem(f"{op}_grad", {"input": array, "grad": grad}, array.shape)


def _gelu(op: str, input: Array, grad_output: Array, approximate: str = "none") -> NeuralProblem:
    array, grad = pair(f"{op}_input", "input", input, grad_output)
    form = word(f"{op}_input", "approximate", approximate, ("none", "tanh"))
    return problem(f"{op}_grad", {"input": array, "grad": grad}, array.shape, approximate=form)


def _softmax(op: str, output: Array, grad_output: Array, dim: int) -> NeuralProblem:
    where = f"{op}_input"
    array, grad = pair(where, "output", output, grad_output)
    if array.ndim < 1:
        raise BadValue(f"{where}: output must have 1 dimension or more, it has shape ()")
    return problem(f"{op}_grad", {"result": array, "grad": grad}, array.shape, axis=axis_of(where, "dim", dim, array.shape))


relu_input, silu_input, tanh_input, sigmoid_input = operation_family(
    _pointwise, kinds("relu", "silu", "tanh", "sigmoid", suffix="_input"), _text, **ROW
)
(gelu_input,) = operation_family(_gelu, kinds("gelu", suffix="_input"), _text, **ROW)
softmax_input, log_softmax_input = operation_family(_softmax, kinds("softmax", "log_softmax", suffix="_input"), _text, **ROW)
