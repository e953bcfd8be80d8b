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
from ..libraries.array_kinds import kind_of
from ..problems.conv_problem import ConvProblem
from .convolution_checks import Array, Sizes, conv_problem, transpose_problem
from .operation import operation, published

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

P = ParamSpec("P")


class _OneImage:
    """The Plan of a call without a batch: that of a batch of one."""

    __slots__ = ("choice", "plan", "rank")

    def __init__(self, plan: Any, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.choice = plan.choice

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays = [a for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)]
        result = self.plan(*(a[None] if a.ndim == self.rank + 1 else a for a in arrays))
        out = kwargs.get("out")
        return result[0] if out is None else out


def _convolution(name: str, rank: int) -> Callable[[Callable[P, ConvProblem]], Callable[P, Array]]:
    """Decorator: an Operation that takes one image without a batch as well."""

    def make(function: Callable[P, ConvProblem]) -> Callable[P, Array]:
        batched: Any = operation(name, module="backline.nn.functional", family="conv")(function)
        signature = inspect.signature(batched)

        def single(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            given: Any = args[0] if args else kwargs.get("input")
            return _is_array(given) and given.ndim == rank + 1

        def resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            plan = batched.resolve(args, kwargs)
            return _OneImage(plan, rank) if single(args, kwargs) else plan

        def general(*args: Any, **kwargs: Any) -> Any:
            if not single(args, kwargs):
                return batched(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            for role in ("input", "residual", "out"):
                if _is_array(given.get(role)):
                    given[role] = given[role][None]
            result = op(**given)
            return result[0] if given.get("out") is None else kwargs["out"]

        op: Any = _core.Operation(name, batched.parameters, resolve, general)
        return published(op, function, batched.__module__, signature)

    return make


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or kind_of(value) is not None


def _arrays(input: Any, weight: Any, bias: Any, residual: Any, out: Any) -> dict[str, Any]:
    return {"input": input, "weight": weight, "bias": bias, "residual": residual, "out": out}


@_convolution("conv1d", 1)
def conv1d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> ConvProblem:
    """Convolution of signals (N, C, width); parameters, result and errors as `conv2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import conv1d
    >>> conv1d(np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[-1.0, 1.0]]]))
    array([[[1., 1., 1.]]])
    """
    arrays = _arrays(input, weight, bias, residual, out)
    return conv_problem("conv1d", 1, arrays, stride, padding, dilation, groups, activation)


@_convolution("conv2d", 2)
def conv2d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> ConvProblem:
    """Convolution of images (N, C, height, width), as networks mean it: the kernel is not turned round.

    Parameters
    ----------
    input
        Images of shape (N, C, height, width), or one of shape (C, height, width). With the strides of channels-last memory,
        ``images.transpose(0, 3, 1, 2)`` of (N, height, width, C), the result has them too.
    weight
        Shape (O, C / groups, kernel height, kernel width).
    bias
        Shape (O,), added to every point.
    stride, dilation
        Steps between the places of the kernel, and between its elements; an int or one for each dimension.
    padding
        Zeros before and after each dimension, an int or one for each; or "valid" (none), or "same" (the result has the input's
        size; with an odd number of zeros the last one is behind).
    groups
        Parts that channels and features are divided into; part i of the features sees part i of the channels only. With
        ``groups=C`` the convolution is depthwise.
    activation
        "relu", or None.
    residual
        Array of the result's shape, added before the activation.
    out
        Array of the result's shape and dtype, any strides; must not overlap the operands, but may be `residual` itself.

    Returns
    -------
    ndarray
        ``activation(convolution + bias + residual)``, of shape (N, O, ...); without N where the input has none. Of no images
        none come out; of images without channels those of the bias.

    Raises
    ------
    BadValue
        Shapes, groups, stride, padding or dilation that do not fit, a kernel larger than the padded image, an unfit `out`.
    BadType
        Not arrays, different dtypes, booleans, or numbers that are not ints.

    Notes
    -----
    float16 and bfloat16 accumulate in float32 and round once; integers wrap around as NumPy's do. Where a kernel reaches into the
    padding, libraries differ in whether infinite weights times those zeros give NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import conv2d
    >>> image = np.arange(9.0).reshape(1, 1, 3, 3)
    >>> conv2d(image, np.ones((1, 1, 2, 2)))
    array([[[[ 8., 12.],
             [20., 24.]]]])
    >>> conv2d(image, np.ones((2, 1, 3, 3)), np.array([0.0, -40.0]), padding="same", activation="relu")[0, :, 1]
    array([[21., 36., 27.],
           [ 0.,  0.,  0.]])
    """
    arrays = _arrays(input, weight, bias, residual, out)
    return conv_problem("conv2d", 2, arrays, stride, padding, dilation, groups, activation)


@_convolution("conv3d", 3)
def conv3d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> ConvProblem:
    """Convolution of volumes (N, C, depth, height, width); parameters, result and errors as `conv2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import conv3d
    >>> conv3d(np.ones((1, 2, 4, 4, 4)), np.ones((3, 2, 2, 2, 2)), stride=2)[0, :, 0, 0, 0]
    array([16., 16., 16.])
    """
    arrays = _arrays(input, weight, bias, residual, out)
    return conv_problem("conv3d", 3, arrays, stride, padding, dilation, groups, activation)


@_convolution("conv_transpose1d", 1)
def conv_transpose1d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> ConvProblem:
    """Transposed convolution of signals (N, C, width); parameters, result and errors as `conv_transpose2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import conv_transpose1d
    >>> conv_transpose1d(np.array([[[1.0, 2.0]]]), np.array([[[1.0, 10.0]]]), stride=2)
    array([[[ 1., 10.,  2., 20.]]])
    """
    arrays = _arrays(input, weight, bias, residual, out)
    return transpose_problem("conv_transpose1d", 1, arrays, stride, padding, output_padding, groups, dilation, activation)


@_convolution("conv_transpose2d", 2)
def conv_transpose2d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> ConvProblem:
    """Transposed convolution of images: the kernel, times each point, is added where a convolution would have read.

    Parameters
    ----------
    input
        Images of shape (N, C, height, width), or one of shape (C, height, width).
    weight
        Shape (C, O / groups, kernel height, kernel width).
    bias
        Shape (O,), added to every point.
    stride, dilation
        Steps between the places where the kernel is added, and between its elements; an int or one for each dimension.
    padding
        Points that are cut off on both sides of each dimension of the result.
    output_padding
        Points that the result has more, behind; smaller than stride or dilation.
    groups
        Parts that channels and features are divided into.
    activation, residual, out
        As `conv2d`.

    Returns
    -------
    ndarray
        Shape (N, O, ...) with ``(n - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + output_padding`` points in a
        dimension where the input has n.

    Raises
    ------
    BadValue, BadType
        As `conv2d`; and where padding cuts everything off.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import conv_transpose2d
    >>> conv_transpose2d(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)))
    array([[[[1., 2., 1.],
             [2., 4., 2.],
             [1., 2., 1.]]]])
    """
    arrays = _arrays(input, weight, bias, residual, out)
    return transpose_problem("conv_transpose2d", 2, arrays, stride, padding, output_padding, groups, dilation, activation)


@_convolution("conv_transpose3d", 3)
def conv_transpose3d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> ConvProblem:
    """Transposed convolution of volumes (N, C, depth, height, width); parameters, result and errors as `conv_transpose2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import conv_transpose3d
    >>> conv_transpose3d(np.ones((1, 2, 3, 3, 3)), np.ones((2, 4, 2, 2, 2)), stride=2, output_padding=1).shape
    (1, 4, 7, 7, 7)
    """
    arrays = _arrays(input, weight, bias, residual, out)
    return transpose_problem("conv_transpose3d", 3, arrays, stride, padding, output_padding, groups, dilation, activation)
