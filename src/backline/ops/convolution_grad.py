"""Gradients of convolutions and transposed convolutions by their input and by their weights.

Names, parameters and order are those of `torch.nn.grad`; for transposed convolutions, those of the operation. The gradient by the
bias is ``grad_output.sum((0, 2, ...))``. Complex gradients are those of the real and imaginary parts, as one number: the adjoint
of the convolution.

The gradient of a transposed convolution by its input is a convolution of the gradient that is given; that by its weights is the
weight gradient of that convolution, in which input and gradient have changed places. Each is one Problem of those, and so one
Plan, but for complex numbers, which are conjugated beside it, output padding of a stride or more, and arrays without elements.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _core
from ..errors import BadValue
from ..libraries import host_arrays
from ..problems.conv_problem import ConvProblem
from . import convolution
from .array_arguments import dtype_of, functions, like, native, one_kind
from .composite import on_its_device
from .convolution_checks import Array, Sizes, conv_problem, grad_problem, grad_shape, transpose_problem
from .doc_fragments import filled
from .families import RANKS, function_family, operation_family, ranks
from .linalg_checks import enough_memory
from .operation import operation, published

__all__ = [
    "conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight", "conv_transpose1d_input",
    "conv_transpose1d_weight", "conv_transpose2d_input", "conv_transpose2d_weight", "conv_transpose3d_input",
    "conv_transpose3d_weight",
]  # fmt: skip

MODULE = "backline.nn.grad"

TEXT = """Gradient of `{stem}{rank}d` by its {part}.

Parameters
----------
{first}
{second}
grad_output
    Gradient by the result of `{stem}{rank}d`, of its shape.
{numbers}
    As for `{stem}{rank}d`.

{returns_array}
    Shape `{by}_size`{layout}.

Raises
------
BadValue
    Shapes or numbers that do not fit; `grad_output` is not of the shape that the operation has as its result.
{conv_types}

Examples
--------
>>> import numpy as np
>>> from backline.nn.grad import {stem}{rank}d_{by}
>>> {stem}{rank}d_{by}{example}
"""
BY = {
    "input": {
        "by": "input", "part": "input", "layout": "; lies in memory as `grad_output` does, channels last or in order",
        "first": "input_size\n    Shape of the input, (N, C, {sizes}){several}",
        "second": "weight\n    Weights of `{stem}{rank}d`, ({weights}, {kernel}).",
    },
    "weight": {
        "by": "weight", "part": "weights", "layout": ", in order in memory",
        "first": "input\n    Input of `{stem}{rank}d`, (N, C, {sizes}).",
        "second": "weight_size\n    Shape of the weights, ({weights}, {kernel}).",
    },
}  # fmt: skip
CONV = {
    "stem": "conv", "weights": "O, C / groups", "numbers": "stride, padding, dilation, groups",
    "several": ": several sizes give a result of one size where the stride is not 1.",
}  # fmt: skip
TRANSPOSE = {
    "stem": "conv_transpose", "weights": "C, O / groups", "numbers": "stride, padding, output_padding, groups, dilation",
    "several": ".",
}  # fmt: skip
EXAMPLES = {
    "conv1d_input": "((1, 1, 3), np.array([[[1.0, 10.0]]]), np.ones((1, 1, 2)))\narray([[[ 1., 11., 10.]]])",
    "conv2d_input": """((1, 1, 3, 3), np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)))
array([[[[1., 2., 1.],
         [2., 4., 2.],
         [1., 2., 1.]]]])""",
    "conv3d_input": """((1, 2, 5, 5, 5), np.ones((3, 2, 2, 2, 2)), np.ones((1, 3, 2, 2, 2)), stride=2)[0, 0, 0, 0]
array([3., 3., 3., 3., 0.])""",
    "conv1d_weight": "(np.array([[[1.0, 2.0, 3.0]]]), (1, 1, 2), np.ones((1, 1, 2)))\narray([[[3., 5.]]])",
    "conv2d_weight": """(np.arange(9.0).reshape(1, 1, 3, 3), (1, 1, 2, 2), np.ones((1, 1, 2, 2)))
array([[[[ 8., 12.],
         [20., 24.]]]])""",
    "conv3d_weight": "(np.ones((1, 1, 3, 3, 3)), (1, 1, 2, 2, 2), np.ones((1, 1, 2, 2, 2))).max().item()\n8.0",
    "conv_transpose1d_input": """((1, 1, 2), np.array([[[1.0, 10.0]]]), np.array([[[1.0, 2.0, 3.0]]]))
array([[[21., 32.]]])""",
    "conv_transpose2d_input": """((1, 1, 2, 2), np.ones((1, 1, 2, 2)), np.ones((1, 1, 3, 3)))
array([[[[4., 4.],
         [4., 4.]]]])""",
    "conv_transpose3d_input": """((1, 2, 2, 2, 2), np.ones((2, 3, 2, 2, 2)), np.ones((1, 3, 4, 4, 4)), stride=2)[0, :, 0, 0, 0]
array([24., 24.])""",
    "conv_transpose1d_weight": "(np.ones((1, 1, 2)), (1, 1, 2), np.array([[[1.0, 2.0, 3.0]]]))\narray([[[3., 5.]]])",
    "conv_transpose2d_weight": """(np.ones((1, 1, 2, 2)), (1, 1, 2, 2), np.arange(9.0).reshape(1, 1, 3, 3))
array([[[[ 8., 12.],
         [20., 24.]]]])""",
    "conv_transpose3d_weight": """(np.ones((1, 2, 2, 2, 2)), (2, 3, 2, 2, 2), np.ones((1, 3, 4, 4, 4)), stride=2).max().item()
8.0""",
}


def _text(facts: dict[str, str], by: str) -> Callable[[int], str | None]:
    return lambda rank: filled(TEXT, **RANKS[rank], **BY[by], **facts, example=EXAMPLES[f"{facts['stem']}{rank}d_{by}"])


def _conv_input(
    rank: int, input_size: Sequence[int], weight: Array, grad_output: Array, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> ConvProblem:  # fmt: skip
    arrays = {"weight": weight, "grad": grad_output}
    return grad_problem(f"conv{rank}d_input", rank, "conv_grad_input", arrays, input_size, stride, padding, dilation, groups)


def _conv_weight(
    rank: int, input: Array, weight_size: Sequence[int], grad_output: Array, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> ConvProblem:  # fmt: skip
    arrays = {"input": input, "grad": grad_output}
    return grad_problem(f"conv{rank}d_weight", rank, "conv_grad_weight", arrays, weight_size, stride, padding, dilation, groups)


conv1d_input, conv2d_input, conv3d_input = operation_family(
    _conv_input, ranks("conv{}d_input"), _text(CONV, "input"), module=MODULE, family="conv"
)
conv1d_weight, conv2d_weight, conv3d_weight = operation_family(
    _conv_weight, ranks("conv{}d_weight"), _text(CONV, "weight"), module=MODULE, family="conv"
)


# Of transposed convolutions --------------------------------------------------------------------------------------------

PLAIN = (convolution.conv1d, convolution.conv2d, convolution.conv3d)
PLAIN_BY_WEIGHT = (conv1d_weight, conv2d_weight, conv3d_weight)


def _problem(where: str, rank: int, arrays: dict[str, Any], size: Any, numbers: tuple[Any, Any, Any, Any, Any]) -> ConvProblem:
    """Returns the Problem of the transposed convolution, once the gradient is known to be that of its result."""
    one_kind(where, **{"grad_output" if role == "grad" else role: a for role, a in arrays.items()})
    described = {role: like(a) for role, a in arrays.items()}
    role = "input" if "weight" in arrays else "weight"
    shape = grad_shape(where, rank, described, f"{role}_size", size)
    grad = described.pop("grad")
    enough_memory(where, shape, grad.dtype)
    described[role] = np.broadcast_to(np.zeros((), grad.dtype), shape)
    p = transpose_problem(where, rank, {**described, "bias": None, "residual": None, "out": None}, *numbers, None)
    if grad.shape != p.result:
        raise BadValue(
            f"{where}: grad_output has shape {grad.shape}, the transposed convolution has a result of shape {p.result}",
            cause=f"input {described['input'].shape}, weight {described['weight'].shape}, stride {p.stride}, "
            f"padding {tuple(before for before, _ in p.padding)}, output_padding {p.output_padding}, dilation {p.dilation}",
        )
    return p


def _overhang(p: ConvProblem) -> tuple[int, ...]:
    """Returns the points that the convolution of the gradient has beyond the input: output padding may exceed a stride."""
    return tuple(extra // s for extra, s in zip(p.output_padding, p.stride, strict=True))


def _cut(p: ConvProblem) -> tuple[int, ...]:
    """Returns the padding of the convolution of the gradient: what the transposed one cuts off."""
    return tuple(before for before, _ in p.padding)


def _zeros(array: Array, shape: tuple[int, ...]) -> Array:
    zeros: Array = functions(array).zeros(shape, dtype=dtype_of(array).newbyteorder("="))
    return zeros


def _conv_transpose_input(
    rank: int, input_size: Sequence[int], weight: Array, grad_output: Array, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Array:  # fmt: skip
    weight, grad = native(weight), native(grad_output)
    name, arrays = f"conv_transpose{rank}d_input", {"weight": weight, "grad": grad}
    p = _problem(name, rank, arrays, input_size, (stride, padding, output_padding, groups, dilation))
    shape = (p.batch, p.channels, *p.image)
    if 0 in (*shape, *grad.shape):
        return _zeros(grad, shape)
    kernel = functions(weight).conj(weight) if dtype_of(weight).kind == "c" else weight
    result = PLAIN[rank - 1](grad, kernel, None, p.stride, _cut(p), p.dilation, p.groups)
    if not any(_overhang(p)):
        return result
    result = result[(slice(None), slice(None), *(slice(n) for n in p.image))]
    return result.copy(order="K") if isinstance(result, np.ndarray) else result


def _conv_transpose_weight(
    rank: int, input: Array, weight_size: Sequence[int], grad_output: Array, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Array:  # fmt: skip
    input, grad = native(input), native(grad_output)
    name, arrays = f"conv_transpose{rank}d_weight", {"input": input, "grad": grad}
    p = _problem(name, rank, arrays, weight_size, (stride, padding, output_padding, groups, dilation))
    shape = (p.channels, p.features // p.groups, *p.kernel)
    if 0 in (*shape, *input.shape, *grad.shape):
        return _zeros(grad, shape)
    xp, overhang = functions(grad), _overhang(p)
    if any(overhang):  # points of zeros, which add nothing
        input = xp.pad(input, [(0, 0), (0, 0), *((0, n) for n in overhang)])
    result: Array = PLAIN_BY_WEIGHT[rank - 1](grad, shape, input, p.stride, _cut(p), p.dilation, p.groups)
    return xp.conj(result) if dtype_of(grad).kind == "c" else result


class SeveralSteps(BadValue):
    """A call that is no Problem of its own: the composed function runs it."""


def _one_step(name: str, p: ConvProblem, part: str) -> None:
    """Refuses a call that takes more than one operation."""
    if not p.empty and not any(_overhang(p)) and p.dtype.kind != "c":
        return
    raise SeveralSteps(
        f"{MODULE.removeprefix('backline.')}.{name} is made of other operations here: {part}",
        cause="no library has one plan for such a call", remedy=f"explain {part}, or trace() a run of it",
    )  # fmt: skip


def _input_problem(
    rank: int, input_size: Sequence[int], weight: Array, grad_output: Array, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> ConvProblem:  # fmt: skip
    name, arrays = f"conv_transpose{rank}d_input", {"weight": weight, "grad": grad_output}
    p = _problem(name, rank, arrays, input_size, (stride, padding, output_padding, groups, dilation))
    _one_step(name, p, f"nn.functional.conv{rank}d")
    given = {"weight": weight, "input": grad_output, "bias": None, "residual": None, "out": None}
    return conv_problem(name, rank, given, p.stride, _cut(p), p.dilation, p.groups, None)


def _weight_problem(
    rank: int, input: Array, weight_size: Sequence[int], grad_output: Array, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> ConvProblem:  # fmt: skip
    name, arrays = f"conv_transpose{rank}d_weight", {"input": input, "grad": grad_output}
    p = _problem(name, rank, arrays, weight_size, (stride, padding, output_padding, groups, dilation))
    _one_step(name, p, f"nn.grad.conv{rank}d_weight")
    given = {"grad": input, "input": grad_output}
    return grad_problem(name, rank, "conv_grad_weight", given, weight_size, p.stride, _cut(p), p.dilation, p.groups)


def _planned(build: Callable[..., ConvProblem]) -> Callable[[int, Callable[..., Array]], Callable[..., Array]]:
    """Decorator of the composed functions: operations of the Problems that `build` makes, which run these for other calls."""

    def make(rank: int, function: Callable[..., Array]) -> Callable[..., Array]:
        signature = inspect.signature(function)
        composed = on_its_device(function)

        def problem(*args: Any, **kwargs: Any) -> ConvProblem:
            return build(rank, *args, **kwargs)

        problem.__name__, problem.__doc__ = function.__name__, function.__doc__
        problem.__signature__ = signature  # type: ignore[attr-defined]  # `inspect` looks at it; stubs of functions lack it
        single: Any = operation(function.__name__, module=MODULE, family="conv")(problem)

        def resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return single.resolve(args, kwargs)
            except SeveralSteps:
                return None

        def general(*args: Any, **kwargs: Any) -> Any:
            result = host_arrays.call(op, args, kwargs)
            if result is not NotImplemented:
                return result
            try:
                return single(*args, **kwargs)
            except SeveralSteps:
                return composed(*args, **kwargs)

        op: Any = _core.Operation(function.__name__, single.parameters, resolve, general)
        published(op, problem, MODULE, signature)
        op.__wrapped__ = composed  # what runs where there is no Problem
        return op  # type: ignore[no-any-return]  # it has the signature of the function

    return make


conv_transpose1d_input, conv_transpose2d_input, conv_transpose3d_input = function_family(
    _conv_transpose_input, ranks("conv_transpose{}d_input"), _text(TRANSPOSE, "input"), module=MODULE,
    decorate=_planned(_input_problem),
)  # fmt: skip
conv_transpose1d_weight, conv_transpose2d_weight, conv_transpose3d_weight = function_family(
    _conv_transpose_weight, ranks("conv_transpose{}d_weight"), _text(TRANSPOSE, "weight"), module=MODULE,
    decorate=_planned(_weight_problem),
)  # fmt: skip
