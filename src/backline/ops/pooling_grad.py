"""Gradients of pooling: max_pool, avg_pool and adaptive_avg_pool, with respect to their input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BadType, BadValue
from ..problems.neural_problem import NeuralProblem
from .activations_grad import GRAD
from .convolution_checks import Sizes
from .doc_fragments import filled
from .families import operation_family, ranks
from .layer_checks import Array, as_input, problem, same_dtype
from .linalg_checks import whole
from .pooling import adaptive_parameters, avg_parameters, images, max_parameters, shaped

__all__ = [
    "adaptive_avg_pool1d_input", "adaptive_avg_pool2d_input", "adaptive_avg_pool3d_input", "avg_pool1d_input", "avg_pool2d_input",
    "avg_pool3d_input", "max_pool1d_input", "max_pool2d_input", "max_pool3d_input",
]  # fmt: skip

MAX = """Gradient of `max_pool{rank}d` with respect to its input.

An element of `grad_output` goes to the first of the largest elements of its window.

Parameters
----------
input
    Input of `max_pool{rank}d`.
grad_output
    Array of the result's shape and the input's dtype.
kernel_size, stride, padding, dilation, ceil_mode
    As for `max_pool{rank}d`.

{as_input}

{raises}
    As the operation; `grad_output` of another shape or dtype.

{examples}
>>> x = np.arange({points}.0).reshape({shape})
>>> backline.nn.grad.max_pool{rank}d_input(x, np.ones(({ones})), 2).ravel()
array([{largest}])
"""

AVERAGE = """Gradient of `{name}{rank}d` with respect to its input.

Parameters
----------
input_size
    Shape of the input of `{name}{rank}d`.
grad_output
    Floating-point array of the result's shape.
{numbers}
    As for `{name}{rank}d`.

{returns_array}
    Shape `input_size`, dtype and order of axes in memory of `grad_output`.

{raises}
    As the operation; a shape of `grad_output` that the operation's result would not have.

{examples}
>>> backline.nn.grad.{name}{rank}d_input(({shape}), np.ones(({ones})), {argument}).ravel()
array([{mean}])
"""

EXAMPLES: dict[int, dict[str, str]] = {
    1: {"points": "2", "shape": "1, 1, 2", "ones": "1, 1, 1", "largest": "0., 1.", "mean": "0.5, 0.5"},
    2: {"points": "4", "shape": "1, 1, 2, 2", "ones": "1, 1, 1, 1", "largest": "0., 0., 0., 1.",
        "mean": "0.25, 0.25, 0.25, 0.25"},
    3: {"points": "8", "shape": "1, 1, 2, 2, 2", "ones": "1, 1, 1, 1, 1", "largest": "0., 0., 0., 0., 0., 0., 0., 1.",
        "mean": ", ".join(["0.125"] * 8)},
}  # fmt: skip


ROW: dict[str, Any] = {"module": GRAD, "family": "neural"}


def _text(doc: str, **facts: str) -> Callable[[int], str | None]:
    return lambda rank: filled(doc, rank=str(rank), **EXAMPLES[rank], **facts)


def _fits(where: str, grad: Array, shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    result = (*shape[: len(shape) - len(sizes)], *sizes)
    if grad.shape != result:
        raise BadValue(f"{where}: grad_output has shape {grad.shape}, for input of shape {shape} the result has {result}")


def _input_size(where: str, value: Any, rank: int) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        raise BadType(f"{where}: input_size is a shape, not {value!r}")
    shape = tuple(whole(where, "each number of input_size", n) for n in value)
    if min(shape, default=0) < 0:
        raise BadValue(f"{where}: input_size={shape}", cause="sizes are 0 or more")
    shaped(where, "input_size", shape, rank)
    return shape


def _max_pool(
    rank: int, input: Array, grad_output: Array, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False,
) -> NeuralProblem:  # fmt: skip
    name = f"max_pool{rank}d_input"
    array, grad = images(name, input, rank), as_input(name, "grad_output", grad_output)
    parameters, sizes = max_parameters(name, array.shape[-rank:], kernel_size, stride, padding, dilation, ceil_mode)
    _fits(name, grad, array.shape, sizes)
    same_dtype(name, "grad_output", grad, "input", array.dtype)
    return problem("max_pool_grad", {"input": array, "grad": grad}, array.shape, **parameters)


# torch has no divisor_override for signals.
def _avg_pool1d(
    rank: int, input_size: Sequence[int], grad_output: Array, kernel_size: Sizes, stride: Sizes | None = None,
    padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True,
) -> NeuralProblem:  # fmt: skip
    return _avg_pool(rank, input_size, grad_output, kernel_size, stride, padding, ceil_mode, count_include_pad)


def _avg_pool(
    rank: int, input_size: Sequence[int], grad_output: Array, kernel_size: Sizes, stride: Sizes | None = None,
    padding: Sizes = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> NeuralProblem:  # fmt: skip
    name = f"avg_pool{rank}d_input"
    grad, shape = as_input(name, "grad_output", grad_output), _input_size(name, input_size, rank)
    op, parameters, sizes = avg_parameters(
        name, shape[-rank:], kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
    _fits(name, grad, shape, sizes)
    return problem(f"{op}_grad", {"grad": grad}, shape, **parameters)


def _adaptive_avg_pool(rank: int, input_size: Sequence[int], grad_output: Array, output_size: Sizes) -> NeuralProblem:
    name = f"adaptive_avg_pool{rank}d_input"
    grad, shape = as_input(name, "grad_output", grad_output), _input_size(name, input_size, rank)
    op, parameters, sizes = adaptive_parameters(name, shape[-rank:], output_size)
    _fits(name, grad, shape, sizes)
    return problem(f"{op}_grad", {"grad": grad}, shape, **parameters)


NUMBERS = "kernel_size, stride, padding, ceil_mode, count_include_pad"
_AVERAGE = _text(AVERAGE, name="avg_pool", argument="2", numbers=f"{NUMBERS}, divisor_override")
max_pool1d_input, max_pool2d_input, max_pool3d_input = operation_family(_max_pool, ranks("max_pool{}d_input"), _text(MAX), **ROW)
(avg_pool1d_input,) = operation_family(
    _avg_pool1d, {"avg_pool1d_input": 1}, _text(AVERAGE, name="avg_pool", argument="2", numbers=NUMBERS), **ROW
)
avg_pool2d_input, avg_pool3d_input = operation_family(_avg_pool, {"avg_pool2d_input": 2, "avg_pool3d_input": 3}, _AVERAGE, **ROW)
adaptive_avg_pool1d_input, adaptive_avg_pool2d_input, adaptive_avg_pool3d_input = operation_family(
    _adaptive_avg_pool, ranks("adaptive_avg_pool{}d_input"),
    _text(AVERAGE, name="adaptive_avg_pool", argument="1", numbers="output_size"), **ROW,
)  # fmt: skip
