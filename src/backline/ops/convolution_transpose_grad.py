"""Gradients of transposed convolutions by their input and by their weights.

The gradient by the input is a convolution of the gradient that is given; that by the weights is the weight gradient of that
convolution, in which input and gradient have changed places. Those run it. Parameters and order are those of the transposed
convolutions; the gradient by the bias is ``grad_output.sum((0, 2, ...))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from . import convolution, convolution_grad
from .array_arguments import dtype_of, functions, like, native, one_kind
from .composite import composed_of, on_its_device
from .convolution_checks import Sizes, arrays, dims, numbers, rank_of, transpose_problem
from .linalg_checks import enough_memory

__all__ = [
    "conv_transpose1d_input", "conv_transpose1d_weight", "conv_transpose2d_input", "conv_transpose2d_weight",
    "conv_transpose3d_input", "conv_transpose3d_weight",
]  # fmt: skip

Array = np.ndarray[Any, Any]
MODULE = "backline.nn.grad"
PLAIN = (convolution.conv1d, convolution.conv2d, convolution.conv3d)
BY_WEIGHT = (convolution_grad.conv1d_weight, convolution_grad.conv2d_weight, convolution_grad.conv3d_weight)


def _problem(where: str, rank: int, given: dict[str, Any], size: Any, **numbers_given: Any) -> Any:
    """The Problem of the transposed convolution, once the gradient is known to be that of its result."""
    shown = {"grad": "grad_output"}
    one_kind(where, **{shown.get(role, role): a for role, a in given.items()})
    likenesses = {role: like(a) for role, a in given.items()}
    arrays(where, {shown.get(role, role): a for role, a in likenesses.items()})
    name, role = ("input_size", "input") if "weight" in given else ("weight_size", "weight")
    if not isinstance(size, (tuple, list)):
        raise BadType(f"{where}: {name}={size!r} is not a tuple of {rank + 2} ints")
    if len(size) != rank + 2:
        raise BadValue(f"{where}: {name}={size!r} has {len(size)} numbers, there are {rank + 2} dimensions")
    shape = numbers(where, name, size, rank + 2, 0)
    grad = likenesses.pop("grad")
    enough_memory(where, shape, grad.dtype)
    likenesses[role] = np.broadcast_to(np.zeros((), grad.dtype), shape)
    rank_of(where, "input" if role == "weight" else name, likenesses["input"].shape, rank, dims("N, C", rank))
    p = transpose_problem(
        where, rank, {**likenesses, "bias": None, "residual": None, "out": None}, activation=None, **numbers_given
    )
    if grad.shape != p.result:
        raise BadValue(
            f"{where}: grad_output has shape {grad.shape}, the transposed convolution has a result of shape {p.result}",
            cause=f"input {likenesses['input'].shape}, weight {likenesses['weight'].shape}, stride {p.stride}, "
            f"padding {tuple(before for before, _ in p.padding)}, output_padding {p.output_padding}, dilation {p.dilation}",
        )
    return p


def _nothing(array: Array, shape: tuple[int, ...]) -> Array:
    zeros: Array = functions(array).zeros(shape, dtype=dtype_of(array).newbyteorder("="))
    return zeros


def _further(p: Any) -> tuple[int, ...]:
    """Points that the convolution of the gradient has behind those of the input: output padding may be wider than a stride."""
    return tuple(extra // s for extra, s in zip(p.output_padding, p.stride, strict=True))


def _input(where: str, rank: int, size: Any, weight: Array, grad: Array, **given: Any) -> Array:
    weight, grad = native(weight), native(grad)
    p = _problem(where, rank, {"weight": weight, "grad": grad}, size, **given)
    shape = (p.batch, p.channels, *p.image)
    if 0 in (*shape, *grad.shape):
        return _nothing(grad, shape)
    kernel = functions(weight).conj(weight) if dtype_of(weight).kind == "c" else weight
    cut = tuple(before for before, _ in p.padding)
    result = PLAIN[rank - 1](grad, kernel, None, p.stride, cut, p.dilation, p.groups)
    if not any(_further(p)):
        return result
    result = result[(slice(None), slice(None), *(slice(n) for n in p.image))]
    return result.copy(order="K") if isinstance(result, np.ndarray) else result


def _weight(where: str, rank: int, input: Array, size: Any, grad: Array, **given: Any) -> Array:
    input, grad = native(input), native(grad)
    p = _problem(where, rank, {"input": input, "grad": grad}, size, **given)
    shape = (p.channels, p.features // p.groups, *p.kernel)
    if 0 in (*shape, *input.shape, *grad.shape):
        return _nothing(grad, shape)
    xp, further = functions(grad), _further(p)
    if any(further):  # points of zeros, which add nothing
        input = xp.pad(input, [(0, 0), (0, 0), *((0, n) for n in further)])
    cut = tuple(before for before, _ in p.padding)
    result = BY_WEIGHT[rank - 1](grad, shape, input, p.stride, cut, p.dilation, p.groups)
    return xp.conj(result) if dtype_of(grad).kind == "c" else result


@composed_of("nn.functional.conv1d", module=MODULE)
@on_its_device
def conv_transpose1d_input(
    input_size: Sequence[int],
    weight: Array,
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """Gradient of `conv_transpose1d` by its input; parameters, result and errors as `conv_transpose2d_input`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv_transpose1d_input
    >>> conv_transpose1d_input((1, 1, 2), np.array([[[1.0, 10.0]]]), np.array([[[1.0, 2.0, 3.0]]]))
    array([[[21., 32.]]])
    """
    return _input(
        "conv_transpose1d_input", 1, input_size, weight, grad_output, stride=stride, padding=padding,
        output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip


@composed_of("nn.grad.conv1d_weight", module=MODULE)
@on_its_device
def conv_transpose1d_weight(
    input: Array,
    weight_size: Sequence[int],
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """Gradient of `conv_transpose1d` by its weights; parameters, result and errors as `conv_transpose2d_weight`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv_transpose1d_weight
    >>> conv_transpose1d_weight(np.ones((1, 1, 2)), (1, 1, 2), np.array([[[1.0, 2.0, 3.0]]]))
    array([[[3., 5.]]])
    """
    return _weight(
        "conv_transpose1d_weight", 1, input, weight_size, grad_output, stride=stride, padding=padding,
        output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip


@composed_of("nn.functional.conv2d", module=MODULE)
@on_its_device
def conv_transpose2d_input(
    input_size: Sequence[int],
    weight: Array,
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """Gradient of `conv_transpose2d` by its input.

    Parameters
    ----------
    input_size
        Shape of the input, (N, C, height, width).
    weight
        What the transposed convolution was given, (C, O / groups, kernel height, kernel width).
    grad_output
        Gradient by its result, of its shape.
    stride, padding, output_padding, groups, dilation
        What it was given.

    Returns
    -------
    ndarray
        Shape `input_size`; lies in memory as `grad_output` does, channels last or in order.

    Raises
    ------
    BadValue
        Shapes or numbers that do not fit; `grad_output` is not of the shape that the transposed convolution has as its result.
    BadType
        Not arrays, different dtypes, booleans, or numbers that are not ints.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv_transpose2d_input
    >>> conv_transpose2d_input((1, 1, 2, 2), np.ones((1, 1, 2, 2)), np.ones((1, 1, 3, 3)))
    array([[[[4., 4.],
             [4., 4.]]]])
    """
    return _input(
        "conv_transpose2d_input", 2, input_size, weight, grad_output, stride=stride, padding=padding,
        output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip


@composed_of("nn.grad.conv2d_weight", module=MODULE)
@on_its_device
def conv_transpose2d_weight(
    input: Array,
    weight_size: Sequence[int],
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """Gradient of `conv_transpose2d` by its weights.

    Parameters
    ----------
    input
        What the transposed convolution was given, (N, C, height, width).
    weight_size
        Shape of the weights, (C, O / groups, kernel height, kernel width).
    grad_output
        Gradient by its result, of its shape.
    stride, padding, output_padding, groups, dilation
        What it was given.

    Returns
    -------
    ndarray
        Shape `weight_size`, in order in memory.

    Raises
    ------
    BadValue, BadType
        As `conv_transpose2d_input`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv_transpose2d_weight
    >>> conv_transpose2d_weight(np.ones((1, 1, 2, 2)), (1, 1, 2, 2), np.arange(9.0).reshape(1, 1, 3, 3))
    array([[[[ 8., 12.],
             [20., 24.]]]])
    """
    return _weight(
        "conv_transpose2d_weight", 2, input, weight_size, grad_output, stride=stride, padding=padding,
        output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip


@composed_of("nn.functional.conv3d", module=MODULE)
@on_its_device
def conv_transpose3d_input(
    input_size: Sequence[int],
    weight: Array,
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """Gradient of `conv_transpose3d` by its input; parameters, result and errors as `conv_transpose2d_input`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv_transpose3d_input
    >>> conv_transpose3d_input((1, 2, 2, 2, 2), np.ones((2, 3, 2, 2, 2)), np.ones((1, 3, 4, 4, 4)), stride=2)[0, :, 0, 0, 0]
    array([24., 24.])
    """
    return _input(
        "conv_transpose3d_input", 3, input_size, weight, grad_output, stride=stride, padding=padding,
        output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip


@composed_of("nn.grad.conv3d_weight", module=MODULE)
@on_its_device
def conv_transpose3d_weight(
    input: Array,
    weight_size: Sequence[int],
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """Gradient of `conv_transpose3d` by its weights; parameters, result and errors as `conv_transpose2d_weight`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv_transpose3d_weight
    >>> conv_transpose3d_weight(np.ones((1, 2, 2, 2, 2)), (2, 3, 2, 2, 2), np.ones((1, 3, 4, 4, 4)), stride=2).max().item()
    8.0
    """
    return _weight(
        "conv_transpose3d_weight", 3, input, weight_size, grad_output, stride=stride, padding=padding,
        output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip
