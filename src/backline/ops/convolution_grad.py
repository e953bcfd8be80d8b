"""Gradients of convolutions by their input and by their weights.

Names, parameters and order are those of `torch.nn.grad`. The gradient by the bias is ``grad_output.sum((0, 2, ...))``. Complex
gradients are those of the real and imaginary parts, as one number: the adjoint of the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..problems.conv_problem import ConvProblem
from .convolution_checks import Array, Sizes, grad_problem
from .operation import operation

__all__ = ["conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight"]

MODULE = "backline.nn.grad"


@operation("conv1d_input", module=MODULE, family="conv")
def conv1d_input(
    input_size: Sequence[int],
    weight: Array,
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> ConvProblem:
    """Gradient of `conv1d` by its input; parameters, result and errors as `conv2d_input`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv1d_input
    >>> conv1d_input((1, 1, 3), np.array([[[1.0, 10.0]]]), np.ones((1, 1, 2)))
    array([[[ 1., 11., 10.]]])
    """
    arrays = {"weight": weight, "grad": grad_output}
    return grad_problem("conv1d_input", 1, "conv_grad_input", arrays, input_size, stride, padding, dilation, groups)


@operation("conv1d_weight", module=MODULE, family="conv")
def conv1d_weight(
    input: Array,
    weight_size: Sequence[int],
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> ConvProblem:
    """Gradient of `conv1d` by its weights; parameters, result and errors as `conv2d_weight`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv1d_weight
    >>> conv1d_weight(np.array([[[1.0, 2.0, 3.0]]]), (1, 1, 2), np.ones((1, 1, 2)))
    array([[[3., 5.]]])
    """
    arrays = {"input": input, "grad": grad_output}
    return grad_problem("conv1d_weight", 1, "conv_grad_weight", arrays, weight_size, stride, padding, dilation, groups)


@operation("conv2d_input", module=MODULE, family="conv")
def conv2d_input(
    input_size: Sequence[int],
    weight: Array,
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> ConvProblem:
    """Gradient of `conv2d` by its input.

    Parameters
    ----------
    input_size
        Shape of the input, (N, C, height, width): several sizes give a result of one size where the stride is not 1.
    weight
        What the convolution was given, (O, C / groups, kernel height, kernel width).
    grad_output
        Gradient by the result of the convolution, of its shape.
    stride, padding, dilation, groups
        What the convolution was given.

    Returns
    -------
    ndarray
        Shape `input_size`; lies in memory as `grad_output` does, channels last or in order.

    Raises
    ------
    BadValue
        Shapes or numbers that do not fit; `grad_output` is not of the shape that the convolution has as its result.
    BadType
        Not arrays, different dtypes, booleans, or numbers that are not ints.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv2d_input
    >>> conv2d_input((1, 1, 3, 3), np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)))
    array([[[[1., 2., 1.],
             [2., 4., 2.],
             [1., 2., 1.]]]])
    """
    arrays = {"weight": weight, "grad": grad_output}
    return grad_problem("conv2d_input", 2, "conv_grad_input", arrays, input_size, stride, padding, dilation, groups)


@operation("conv2d_weight", module=MODULE, family="conv")
def conv2d_weight(
    input: Array,
    weight_size: Sequence[int],
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> ConvProblem:
    """Gradient of `conv2d` by its weights.

    Parameters
    ----------
    input
        What the convolution was given, (N, C, height, width).
    weight_size
        Shape of the weights, (O, C / groups, kernel height, kernel width).
    grad_output
        Gradient by the result of the convolution, of its shape.
    stride, padding, dilation, groups
        What the convolution was given.

    Returns
    -------
    ndarray
        Shape `weight_size`, in order in memory.

    Raises
    ------
    BadValue, BadType
        As `conv2d_input`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv2d_weight
    >>> conv2d_weight(np.arange(9.0).reshape(1, 1, 3, 3), (1, 1, 2, 2), np.ones((1, 1, 2, 2)))
    array([[[[ 8., 12.],
             [20., 24.]]]])
    """
    arrays = {"input": input, "grad": grad_output}
    return grad_problem("conv2d_weight", 2, "conv_grad_weight", arrays, weight_size, stride, padding, dilation, groups)


@operation("conv3d_input", module=MODULE, family="conv")
def conv3d_input(
    input_size: Sequence[int],
    weight: Array,
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> ConvProblem:
    """Gradient of `conv3d` by its input; parameters, result and errors as `conv2d_input`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv3d_input
    >>> conv3d_input((1, 2, 5, 5, 5), np.ones((3, 2, 2, 2, 2)), np.ones((1, 3, 2, 2, 2)), stride=2)[0, 0, 0, 0]
    array([3., 3., 3., 3., 0.])
    """
    arrays = {"weight": weight, "grad": grad_output}
    return grad_problem("conv3d_input", 3, "conv_grad_input", arrays, input_size, stride, padding, dilation, groups)


@operation("conv3d_weight", module=MODULE, family="conv")
def conv3d_weight(
    input: Array,
    weight_size: Sequence[int],
    grad_output: Array,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> ConvProblem:
    """Gradient of `conv3d` by its weights; parameters, result and errors as `conv2d_weight`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.grad import conv3d_weight
    >>> conv3d_weight(np.ones((1, 1, 3, 3, 3)), (1, 1, 2, 2, 2), np.ones((1, 1, 2, 2, 2))).max().item()
    8.0
    """
    arrays = {"input": input, "grad": grad_output}
    return grad_problem("conv3d_weight", 3, "conv_grad_weight", arrays, weight_size, stride, padding, dilation, groups)
