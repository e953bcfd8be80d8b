"""Gradients of linear layers. `grad_output` is the gradient with respect to the layer's result; products are as in `matmul`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ..errors import BadValue
from .activations_grad import GRAD
from .array_arguments import cast, like, space_of
from .composite import composed_of, natively, on_its_device
from .doc_fragments import filled
from .families import function_family
from .layer_checks import Array, as_input
from .linear_layers import _same_dtype
from .matrix_products import matmul

__all__ = ["linear_bias", "linear_input", "linear_weight"]


TEXT = """Gradient of `linear` with respect to its {by}: {formula}.

Parameters
----------
{operand}
grad_output
    Shape (..., out).

{returns_array}
    Shape {shape}.

{one_dtype}

{examples}
>>> backline.nn.grad.linear_{by}(np.array([[1.0, 2.0]]), np.array([[3.0]]))
array([[3., 6.]])
"""
FACTS = {
    "input": {"formula": "``grad_output @ weight``", "operand": "weight\n    Shape (out, in).", "shape": "(..., in)"},
    "weight": {
        "formula": "the sum of all ``outer(grad_output, input)``", "operand": "input\n    Shape (..., in).", "shape": "(out, in)",
    },
}  # fmt: skip


def _input(by: str, weight: Array, grad_output: Array) -> Array:
    _same_dtype("linear_input", weight=weight, grad_output=grad_output)
    if weight.ndim != 2 or grad_output.ndim < 1 or grad_output.shape[-1] != weight.shape[0]:
        raise BadValue(
            f"linear_input: weight of shape {weight.shape} and grad_output of shape {grad_output.shape} do not fit",
            cause="they are (out, in) and (..., out)",
        )
    rows = grad_output.reshape(prod(grad_output.shape[:-1]), grad_output.shape[-1])
    return matmul(rows, weight).reshape(*grad_output.shape[:-1], weight.shape[1])


def _weight(by: str, input: Array, grad_output: Array) -> Array:
    _same_dtype("linear_weight", input=input, grad_output=grad_output)
    if input.ndim < 1 or grad_output.ndim < 1 or input.shape[:-1] != grad_output.shape[:-1]:
        raise BadValue(
            f"linear_weight: input has shape {input.shape}, grad_output {grad_output.shape}",
            cause="all but the last axis must agree",
        )
    rows = prod(input.shape[:-1])
    return matmul(grad_output.reshape(rows, grad_output.shape[-1]).T, input.reshape(rows, input.shape[-1]))


def _text(by: str) -> str | None:
    return filled(TEXT, by=by, **FACTS[by])


def _product(by: str, function: Callable[..., Array]) -> Callable[..., Array]:
    return composed_of("matmul", module=GRAD)(on_its_device(natively(function)))


(linear_input,) = function_family(_input, {"linear_input": "input"}, _text, module=GRAD, decorate=_product)
(linear_weight,) = function_family(_weight, {"linear_weight": "weight"}, _text, module=GRAD, decorate=_product)


@on_its_device
@natively
def linear_bias(grad_output: Array) -> Array:
    """Gradient of `linear` with respect to its bias: the sum of `grad_output` over all axes but the last.

    Parameters
    ----------
    grad_output
        Floating-point array of shape (..., out).

    {returns_array}
        Shape (out,).

    {raises}
        Not an array of floating-point numbers with an axis.

    {examples}
    >>> backline.nn.grad.linear_bias(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([4., 6.])
    """
    dtype = as_input("linear_bias", "grad_output", like(grad_output), rank=1).dtype
    axes = tuple(range(grad_output.ndim - 1))
    with np.errstate(all="ignore"):  # as compiled libraries: infinity and NaN show in the result
        total = space_of(grad_output).total(grad_output, axes)
        return cast(cast(total, np.float32) if dtype.itemsize == 2 else total, dtype)


linear_bias.__module__ = GRAD
