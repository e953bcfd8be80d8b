"""Linear layers and convolutions of quantized arrays with packed weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isfinite, isnan
from typing import Any, TypeVar

import numpy as np

from ..errors import BadType, BadValue
from ..libraries import host_arrays
from ..libraries.array_kinds import ArrayKind, kind_of
from ..libraries.reference.reference_requantize import FLOAT32, input_integers, input_parameters
from ..ops.array_arguments import dtype_of
from ..ops.convolution_checks import points_of
from ..ops.linalg_checks import enough_memory
from ..ops.operation import operation
from ..problems import operand
from ..problems.quantized_problem import QuantizedProblem
from .arrays import F32, QArray, by_own_range, check_quantized, extremes, integers
from .checks import Array, check_kind, one_of_each
from .observers import parameters_of_one
from .packing import Packed, PackedConv2d, PackedLinear
from .schemes import scheme

__all__ = ["conv2d", "fits", "for_conv2d", "for_dynamic", "for_linear", "kind_there", "linear", "linear_dynamic"]

MODULE = "backline.quantized"
U8 = np.dtype(np.uint8)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _public(function: _Function) -> _Function:
    """Decorator: gives a function the module by which users and `explain` know it."""
    function.__module__ = MODULE
    return function


# The compiled calls: arrays and plain values only, so that one Plan serves every scale ------------------------------------

_ROLES = (
    "input", "weight", "form", "input_scale", "input_zero", "weight_scale", "weight_zero", "bias", "result_scale", "result_zero",
)  # fmt: skip


def _problem(op: str, arrays: tuple[Any, ...], result: tuple[int, ...], **parameters: Any) -> QuantizedProblem:
    operands = tuple(operand(role, a) for role, a in zip(_ROLES, arrays, strict=False) if a is not None)
    return QuantizedProblem(f"quantized.{op}", operands, tuple(sorted(parameters.items())), "quantized", result=result)


def _linear_problem(op: str, x: Any, w: Any, *others: Any, engine: str) -> QuantizedProblem:
    return _problem(op, (x, w, *others), (*x.shape[:-1], w.shape[0]), engine=engine)


def _conv2d_problem(
    x: Any, w: Any, *others: Any, engine: str, stride: Any, padding: Any, dilation: Any, groups: int, from_zero: bool
) -> QuantizedProblem:  # fmt: skip
    pairs = tuple((n, n) for n in padding)
    points = points_of("conv2d", x.shape[2:], w.shape[2:], stride, pairs, dilation)
    result = (x.shape[0], w.shape[0], *points)
    enough_memory("conv2d", result, np.dtype(np.uint8))
    sizes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if from_zero and any(padding):  # without padding it makes no difference to any library
        sizes["from_zero"] = True
    return _problem("conv2d", (x, w, *others), result, engine=engine, **sizes)


@operation("linear", module=MODULE, family="quantized")
def _linear(
    x: Any, w: Any, form: Any, xs: Any, xz: Any, ws: Any, wz: Any, bias: Any, s: Any, z: Any, engine: str
) -> QuantizedProblem:  # fmt: skip
    """Returns the arrays of a linear layer."""
    return _linear_problem("linear", x, w, form, xs, xz, ws, wz, bias, s, z, engine=engine)


@operation("linear_dynamic", module=MODULE, family="quantized")
def _linear_dynamic(
    x: Any, w: Any, form: Any, xs: Any, xz: Any, ws: Any, wz: Any, bias: Any, engine: str
) -> QuantizedProblem:  # fmt: skip
    """Returns the arrays of a linear layer with a result of real numbers."""
    return _linear_problem("linear_dynamic", x, w, form, xs, xz, ws, wz, bias, engine=engine)


@operation("linear_dynamic_there", module=MODULE, family="quantized")
def _linear_dynamic_there(
    x: Any, w: Any, sums: Any, ws: Any, wz: Any, bias: Any, engine: str, least: int, most: int
) -> QuantizedProblem:  # fmt: skip
    """Returns the arrays of a linear layer with a result of real numbers on a device, where `x` is quantized, too."""
    roles = ("input", "weight", "weight_sums", "weight_scale", "weight_zero", "bias")
    operands = tuple(operand(role, a) for role, a in zip(roles, (x, w, sums, ws, wz, bias), strict=True) if a is not None)
    parameters = (("engine", engine), ("least", least), ("most", most))
    outs = w.shape[0] if sums is None else sums.shape[0]  # the weight may be filled up with zeros
    return QuantizedProblem("quantized.linear_dynamic", operands, parameters, "quantized", result=(*x.shape[:-1], outs))


@operation("conv2d", module=MODULE, family="quantized")
def _conv2d(
    x: Any, w: Any, form: Any, xs: Any, xz: Any, ws: Any, wz: Any, bias: Any, s: Any, z: Any, engine: str, stride: Any,
    padding: Any, dilation: Any, groups: int, from_zero: bool,
) -> QuantizedProblem:  # fmt: skip
    """Returns the arrays of a convolution."""
    return _conv2d_problem(
        x, w, form, xs, xz, ws, wz, bias, s, z, engine=engine, stride=stride, padding=padding, dilation=dilation, groups=groups,
        from_zero=from_zero,
    )  # fmt: skip


# The public functions ---------------------------------------------------------------------------------------------------


def _packed(where: str, packed: Any, kind: type[Packed]) -> Any:
    if not isinstance(packed, kind):
        by = "linear_prepack" if kind is PackedLinear else "conv2d_prepack"
        raise BadType(f"{where}: packed must be a {kind.__name__}, not {type(packed).__name__}", remedy=f"quantized.{by}(weight)")
    return packed


def _input(where: str, x: Any) -> QArray:
    given = check_quantized(where, "x", x)
    if given.axis is not None:
        raise BadValue(
            f"{where}: x has {given.scales.size} scales along axis {given.axis}, for shape {given.shape}",
            cause="an input has one",
            remedy="quantized.requantize(x, scale, zero_point)",
        )
    return given


def fits(where: str, shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    if not shape or shape[-1] != weight[1]:
        raise BadValue(
            f"{where}: x of shape {shape} and weight of shape {weight} do not fit",
            cause=f"the last axis of x must have the {weight[1]} elements that a row of the weight has",
        )


def _dense(array: Array) -> Array:
    """Returns the array if its memory layout is one that libraries take, else a copy."""
    if array.flags.c_contiguous or (array.ndim == 4 and array.transpose(0, 2, 3, 1).flags.c_contiguous):
        return array
    return np.ascontiguousarray(array)


def _linear_arrays(op: str, x: Array, step: Array, zero: Array, layer: PackedLinear) -> tuple[Any, ...]:
    weight, scale, zeros, bias = layer.parts
    # A form serves any number of rows, and both kinds of linear layers.
    form = layer.form(x.dtype, lambda: _linear_problem(op, x, weight, engine=layer.engine))
    return x, weight, form, step, zero, scale, zeros, bias


@_public
def linear(x: QArray, packed: PackedLinear, scale: float, zero_point: int) -> QArray:
    """``x @ weight.T + bias``, quantized in and out.

    Parameters
    ----------
    x
        `QArray` of shape (..., in), with one scale.
    packed
        From `linear_prepack`.
    scale, zero_point
        Those of the result.

    Returns
    -------
    QArray
        Shape (..., out), of the dtype of `x`.

    Raises
    ------
    BadType, BadValue
        Not such operands; shapes that do not fit; numbers as for `QArray`; a bias of more than 2**31 - 1 units.
    NoKernel
        The library of the engine that packed the weight is switched off.

    Notes
    -----
    Sums of integers are exact. A bias is rounded to units of ``x.scale * weight.scale``, ties to even; then the sum times
    ``x.scale * weight.scale / scale``, a factor of 24 bits, is rounded once to the nearest integer, ties to even, and saturates.
    A weight packed by "fbgemm" or "qnnpack" has the result rounded in float32, step by step, as those libraries do it on x86-64.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> packed = quantized.linear_prepack(quantized.QArray(np.array([[1, 2]], np.int8), 1.0), np.array([4], np.float32))
    >>> x = quantized.QArray(np.array([[10, 20]], np.uint8), 1.0, 10)
    >>> quantized.linear(x, packed, 2.0, 100)
    <QArray uint8 1x1, scale 2, zero point 100>
    >>> quantized.linear(x, packed, 2.0, 100).dequantize()
    array([[24.]], dtype=float32)
    """
    return _quantized(_linear, *for_linear(x, packed, scale, zero_point))


def for_linear(x: Any, packed: Any, scale: Any, zero_point: Any) -> tuple[Any, ...]:
    layer, given = _packed("linear", packed, PackedLinear), _input("linear", x)
    fits("linear", given.shape, layer.shape)
    layer.check_bias("linear", given.scale)
    made = one_of_each("linear", scale, zero_point, given.dtype)
    layer.check_scales("linear", given.scale, made[0].item())
    x_int = np.ascontiguousarray(given.int_repr)
    return *_linear_arrays("linear", x_int, given.scales, given.zero_points, layer), *made, layer.engine


def _quantized(call: Any, *arguments: Any) -> QArray:
    return QArray._of(call(*arguments), arguments[8], arguments[9])


@_public
def linear_dynamic(x: Array, packed: PackedLinear) -> Array:
    """``x @ weight.T + bias`` of real numbers, with `x` quantized by its own least and greatest value.

    Parameters
    ----------
    x
        float32 array of shape (..., in), without NaN or infinity; also one of CuPy or MLX.
    packed
        From `linear_prepack`.

    Returns
    -------
    ndarray
        float32, shape (..., out), of the kind of `x`.

    Raises
    ------
    BadType, BadValue
        Not such operands; shapes that do not fit.
    NoKernel
        The library of the engine that packed the weight is switched off.

    Notes
    -----
    `x` becomes uint8, in the range that the engine of the packed weight has for activations. Sums of integers are exact; times
    ``x.scale * weight.scale``, and plus the bias, they are float64, which is rounded to float32; with a weight packed by "fbgemm"
    or "qnnpack" all of it is float32, as in those libraries. On arrays of CuPy the bits are the same. On those of MLX all of that
    is float32, and an element half-way between two integers may become the other one. On neither is NaN or infinity looked for,
    which would take waiting for the device: with one in `x` every result is NaN; nor are scales out of float32's range.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> packed = quantized.linear_prepack(quantized.QArray(np.array([[1, 2]], np.int8), 1.0))
    >>> quantized.linear_dynamic(np.array([[255.0, 0.0]], np.float32), packed)
    array([[255.]], dtype=float32)
    """
    if type(x) is not np.ndarray:
        other = host_arrays.call(linear_dynamic, (x, packed), {})
        if other is not NotImplemented:
            return other  # type: ignore[no-any-return]  # an array of the kind that x is of
    call = _linear_dynamic if kind_there(x) is None else _linear_dynamic_there
    result: Array = call(*for_dynamic(x, packed))
    return result


def _in_mlx(layer: PackedLinear, device: str) -> tuple[Any, ...]:
    """Returns the packed integers, their sums (none), scales, offsets and the bias of a layer as arrays of MLX."""
    from ..libraries.mlx.mlx_quantized import pack

    array = sys.modules["mlx.core"].array
    weight, scale, zeros, bias = layer.parts
    words, scales, offsets = map(array, pack(weight, scale, zeros))
    return words, None, scales, offsets, None if bias is None else array(bias)


def _in_cupy(layer: PackedLinear, device: str) -> tuple[Any, ...]:
    """Returns the same as arrays of CuPy, with the sums of the rows, and zero points or None."""
    from ..libraries.cuda.cupy.int8_layers import on_device

    return on_device(layer.parts, int(device.partition(":")[2] or 0))


_THERE = {"mlx": _in_mlx, "cupy": _in_cupy}  # the kinds of arrays that have linear layers with packed weights


def kind_there(x: Any) -> ArrayKind | None:
    """Returns the kind of an array that is quantized where it is; None for an array of NumPy's, and what is none."""
    kind = kind_of(x)
    return kind if kind is not None and kind.package in _THERE else None


def for_dynamic(x: Any, packed: Any) -> tuple[Any, ...]:
    layer, there = _packed("linear_dynamic", packed, PackedLinear), kind_there(x)
    array = check_kind("linear_dynamic", x) if there is None else x
    if (there is not None or array.dtype != F32) and dtype_of(array).name != "float32":
        raise BadType(f"linear_dynamic: x has dtype {array.dtype}, it must be float32", remedy="x.astype(float32)")
    fits("linear_dynamic", tuple(array.shape), layer.shape)
    if there is not None:
        device = there.device(x)
        make = _THERE[there.package]
        arrays = layer.there(device, lambda: make(layer, device))
        return array, *arrays, layer.engine, *scheme(layer.engine).activations(U8)
    least, most = scheme(layer.engine).activations(U8)
    found = None if layer.engine in FLOAT32 else by_own_range(array, least, most)
    made, step, start = _by_steps(array, layer, least, most) if found is None else found
    return *_linear_arrays("linear_dynamic", made, step, start, layer), layer.engine


def _by_steps(array: Array, layer: PackedLinear, least: int, most: int) -> tuple[Array, Array, Array]:
    """Returns the integers of any real numbers by their range, with their scale and zero point; refuses what is not finite."""
    low, high = extremes(array)
    if not (isfinite(low) and isfinite(high)):
        what = "NaN" if isnan(low) or isnan(high) else "infinity"
        raise BadValue(f"linear_dynamic: x, of shape {array.shape}, holds {what}", cause="no scale covers it")
    if layer.engine in FLOAT32:
        step, start = input_parameters(low, high, least, most)
        layer.check_scales("linear_dynamic", step.item())
        return np.ascontiguousarray(input_integers(array, step, start)), step, start
    step, start = parameters_of_one(low, high, least, most)
    return np.ascontiguousarray(integers(array, step, start, None, U8)), step, start


@_public
def conv2d(x: QArray, packed: PackedConv2d, scale: float, zero_point: int) -> QArray:
    """Convolution of images, quantized in and out.

    Parameters
    ----------
    x
        `QArray` of shape (N, C, H, W), with one scale.
    packed
        From `conv2d_prepack`.
    scale, zero_point
        Those of the result.

    Returns
    -------
    QArray
        Shape (N, O, H', W'), of the dtype of `x`; with channels last where those of `x` are.

    Raises
    ------
    BadType, BadValue, NoKernel
        As `linear`.

    Notes
    -----
    Rounding as in `linear`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> packed = quantized.conv2d_prepack(quantized.QArray(np.ones((1, 1, 2, 2), np.int8), 1.0))
    >>> x = quantized.QArray(np.arange(9, dtype=np.uint8).reshape(1, 1, 3, 3), 1.0, 0)
    >>> quantized.conv2d(x, packed, 1.0, 0).int_repr[0, 0]
    array([[ 8, 12],
           [20, 24]], dtype=uint8)
    """
    return _quantized(_conv2d, *for_conv2d(x, packed, scale, zero_point))


def for_conv2d(x: Any, packed: Any, scale: Any, zero_point: Any) -> tuple[Any, ...]:
    layer, given = _packed("conv2d", packed, PackedConv2d), _input("conv2d", x)
    if given.ndim != 4:
        raise BadValue(f"conv2d: x must have 4 dimensions, (N, C, H, W); it has shape {given.shape}")
    channels = layer.shape[1] * layer.groups
    if given.shape[1] != channels:
        raise BadValue(
            f"conv2d: x of shape {given.shape} has {given.shape[1]} channels",
            cause=f"weight of shape {layer.shape} with groups={layer.groups} takes {channels}",
        )
    layer.check_bias("conv2d", given.scale)
    made = one_of_each("conv2d", scale, zero_point, given.dtype)
    layer.check_scales("conv2d", given.scale, made[0].item())
    x_int, engine = _dense(given.int_repr), layer.engine
    weight, steps, zeros, bias = layer.parts
    sizes = layer.stride, layer.padding, layer.dilation, layer.groups, not given.zero_points[0]
    names = dict(zip(("stride", "padding", "dilation", "groups", "from_zero"), sizes, strict=True))
    key = x_int.shape, x_int.strides, x_int.dtype, sizes[-1]
    form = layer.form(key, lambda: _conv2d_problem(x_int, weight, engine=engine, **names))
    return x_int, weight, form, given.scales, given.zero_points, steps, zeros, bias, *made, engine, *sizes
