"""Convolutions and transposed convolutions of one, two and three dimensions.

Names, parameters and rules are those of torch; `activation` and `residual`, fused into the operation, and `out` are additions.
The result lies in memory as the input does: channels last if that has its channels last, else in order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from .. import _core
from ..engine.choose import renewed
from ..libraries import host_arrays
from ..libraries.array_kinds import kind_of
from ..problems.conv_problem import ConvProblem
from .convolution_checks import Array, Sizes, conv_problem, transpose_problem
from .doc_fragments import filled
from .families import RANKS, operation_family, ranks
from .operation import operation, published

__all__ = ["UnbatchedPlan", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

P = ParamSpec("P")


class UnbatchedPlan:
    """The Plan of a call without a batch: that of a batch of one."""

    __slots__ = ("choice", "plan", "rank")

    def __init__(self, plan: Any, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.choice = plan.choice

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.plan = renewed(self.plan)
        self.choice = self.plan.choice
        arrays = [a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)]
        result = self.plan(*(a[None] if a.ndim == self.rank + 1 else a for a in arrays))
        out = kwargs.get("out")
        return result[0] if out is None else out


def _convolution(name: str) -> Callable[[Callable[P, ConvProblem]], Callable[P, Array]]:
    """Decorator: an operation that takes one image without a batch as well."""
    rank = int(name[-2])  # of conv2d

    def make(function: Callable[P, ConvProblem]) -> Callable[P, Array]:
        batched: Any = operation(name, module="backline.nn.functional", family="conv")(function)
        signature = inspect.signature(batched)

        def single(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            input: Any = args[0] if args else kwargs.get("input")
            return _is_array(input) and input.ndim == rank + 1

        def resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            plan = batched.resolve(args, kwargs)
            if not single(args, kwargs):
                return plan
            return (UnbatchedPlan(plan[0], rank),) if isinstance(plan, tuple) else UnbatchedPlan(plan, rank)

        def general(*args: Any, **kwargs: Any) -> Any:
            result = host_arrays.call(op, args, kwargs)
            if result is not NotImplemented:
                return result
            if not single(args, kwargs):
                return batched(*args, **kwargs)
            arguments = signature.bind(*args, **kwargs).arguments
            for role in ("input", "residual", "out"):
                if _is_array(arguments.get(role)):
                    arguments[role] = arguments[role][None]
            result = op(**arguments)
            return result[0] if arguments.get("out") is None else kwargs["out"]

        op: Any = _core.Operation(name, batched.parameters, resolve, general)
        return published(op, function, batched.__module__, signature)

    return make


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or kind_of(value) is not None


CONV = """Convolution of {images} (N, C, {sizes}), as networks mean it: a cross-correlation, as in torch.

Parameters
----------
{conv_input}
    With the strides of channels-last memory, a transposed array (N, {sizes}, C), the result has them too.
{conv_arrays}
{conv_extras}

{returns_array}
    ``activation(convolution + bias + residual)``, of shape (N, O, {sizes}); without N where the input has none.
    Of no images none come out; of images without channels those of the bias.

Raises
------
BadValue
    {conv_numbers}, a kernel larger than the padded image, an unfit `out`.
{conv_types}

Notes
-----
float16 and bfloat16 accumulate in float32 and round once; integers wrap around as NumPy's do. Where a kernel reaches into the
padding, libraries differ in whether infinite weights times those zeros give NaN.

Examples
--------
>>> import numpy as np
>>> from backline.nn.functional import conv{rank}d
{example}
"""
CONV_EXAMPLES = {
    1: """>>> conv1d(np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[-1.0, 1.0]]]))
array([[[1., 1., 1.]]])""",
    2: """>>> image = np.arange(9.0).reshape(1, 1, 3, 3)
>>> conv2d(image, np.ones((1, 1, 2, 2)))
array([[[[ 8., 12.],
         [20., 24.]]]])
>>> conv2d(image, np.ones((2, 1, 3, 3)), np.array([0.0, -40.0]), padding="same", activation="relu")[0, :, 1]
array([[21., 36., 27.],
       [ 0.,  0.,  0.]])""",
    3: """>>> conv3d(np.ones((1, 2, 4, 4, 4)), np.ones((3, 2, 2, 2, 2)), stride=2)[0, :, 0, 0, 0]
array([16., 16., 16.])""",
}
TRANSPOSE = """Transposed convolution of {images} (N, C, {sizes}).

The kernel, times each point, is added where a convolution would read.

Parameters
----------
{conv_input}
{conv_transpose_arrays}
{conv_extras}

{returns_array}
    Shape (N, O, {sizes}), without N where the input has none. A dimension of n points gives
    ``(n - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + output_padding``.

Raises
------
BadValue
    {conv_numbers}, a padding that cuts everything off, an unfit `out`.
{conv_types}

Examples
--------
>>> import numpy as np
>>> from backline.nn.functional import conv_transpose{rank}d
{example}
"""
TRANSPOSE_EXAMPLES = {
    1: """>>> conv_transpose1d(np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0]]]), stride=2)
array([[[ 1., 10.,  2., 20.]]])""",
    2: """>>> conv_transpose2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)))
array([[[[1., 2., 1.],
         [2., 4., 2.],
         [1., 2., 1.]]]])""",
    3: """>>> conv_transpose3d(np.ones((1, 2, 3, 3, 3)), np.ones((2, 4, 2, 2, 2)), stride=2, output_padding=1).shape
(1, 4, 7, 7, 7)""",
}


def _conv(
    rank: int, input: Array, weight: Array, bias: Array | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1, *, activation: str | None = None, residual: Array | None = None,
    out: Array | None = None,
) -> ConvProblem:  # fmt: skip
    arrays = {"input": input, "weight": weight, "bias": bias, "residual": residual, "out": out}
    return conv_problem(f"conv{rank}d", rank, arrays, stride, padding, dilation, groups, activation)


def _conv_transpose(
    rank: int, input: Array, weight: Array, bias: Array | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, activation: str | None = None,
    residual: Array | None = None, out: Array | None = None,
) -> ConvProblem:  # fmt: skip
    arrays = {"input": input, "weight": weight, "bias": bias, "residual": residual, "out": out}
    name = f"conv_transpose{rank}d"
    return transpose_problem(name, rank, arrays, stride, padding, output_padding, groups, dilation, activation)


conv1d, conv2d, conv3d = operation_family(
    _conv, ranks("conv{}d"), lambda rank: filled(CONV, **RANKS[rank], example=CONV_EXAMPLES[rank]), make=_convolution
)
conv_transpose1d, conv_transpose2d, conv_transpose3d = operation_family(
    _conv_transpose, ranks("conv_transpose{}d"),
    lambda rank: filled(TRANSPOSE, **RANKS[rank], example=TRANSPOSE_EXAMPLES[rank]), make=_convolution,
)  # fmt: skip
