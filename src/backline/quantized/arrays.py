"""Quantized arrays, and the conversions from and to real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _kernels
from ..errors import BadType, BadValue
from ..libraries.kernels.array_loops import level_and_threads
from ..libraries.kernels.vector_level import vector_level
from ..libraries.reference.reference_requantize import Factor, to_integers
from ..ops.array_arguments import check_array
from .checks import LEAST, MOST, Array, axis_of, check_kind, integer_dtype, one_of_each, scales, zero_points

__all__ = [
    "QArray", "by_own_range", "check_floats", "check_quantized", "dequantize", "extremes", "integers", "quantize", "requantize",
]  # fmt: skip

F32 = np.dtype(np.float32)


class QArray:
    """Integers that stand for the real numbers ``(int_repr - zero_point) * scale``.

    Parameters
    ----------
    int_repr
        Array of uint8 or int8. It is kept, not copied.
    scale
        A positive number; or one for each index along `axis`, as a sequence. Rounded to float32.
    zero_point
        The integer that stands for 0, within the dtype; or one for each index along `axis`.
    axis
        The axis along which scales and zero points differ, or None.

    Attributes
    ----------
    int_repr
        The integers.
    scale
        float, or a read-only float32 array.
    zero_point
        int, or a read-only int32 array.
    axis
        Not negative, or None.

    Raises
    ------
    BadType, BadValue
        An array of another dtype; scales that float32 does not hold as finite, positive, normal numbers; zero points outside
        the dtype; numbers that do not fit the axis.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.quantized import QArray
    >>> x = QArray(np.array([[0, 2], [4, 6]], np.uint8), 0.5, 2)
    >>> x.dequantize()
    array([[-1.,  0.],
           [ 1.,  2.]], dtype=float32)
    >>> QArray(x.int_repr, [0.5, 1.0], 0, axis=0)
    <QArray uint8 2x2, 2 scales along axis 0>
    """

    __slots__ = ("_axis", "_int_repr", "_scales", "_zero_points")
    __array_ufunc__ = None  # arithmetic with arrays is an error, and not one with objects

    def __init__(self, int_repr: Array, scale: Any, zero_point: Any = 0, axis: int | None = None) -> None:
        array = check_array(int_repr, "QArray: int_repr")
        integer_dtype("QArray: int_repr", array.dtype)
        self._int_repr = array
        self._axis = axis_of("QArray", axis, array.shape)
        if self._axis is None:
            self._scales, self._zero_points = one_of_each("QArray", scale, zero_point, array.dtype)
        else:
            size = array.shape[self._axis]
            self._scales = scales("QArray", scale, size)
            self._zero_points = zero_points("QArray", zero_point, size, array.dtype)

    @classmethod
    def _of(cls, array: Array, step: Array, zero: Array, axis: int | None = None) -> QArray:
        """Returns an array of parts that are known to fit: scales and zero points are vectors, read-only."""
        made = cls.__new__(cls)
        made._int_repr, made._scales, made._zero_points, made._axis = array, step, zero, axis
        return made

    @property
    def int_repr(self) -> Array:
        return self._int_repr

    @property
    def scale(self) -> Any:
        return float(self._scales[0]) if self._axis is None else self._scales

    @property
    def zero_point(self) -> Any:
        return int(self._zero_points[0]) if self._axis is None else self._zero_points

    @property
    def axis(self) -> int | None:
        return self._axis

    @property
    def scales(self) -> Array:
        """The scales as a float32 array of one element or of one for each index along the axis."""
        return self._scales

    @property
    def zero_points(self) -> Array:
        """The zero points as an int32 array, likewise."""
        return self._zero_points

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._int_repr.shape)

    @property
    def ndim(self) -> int:
        return self._int_repr.ndim

    @property
    def size(self) -> int:
        return self._int_repr.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 or int8."""
        kind: np.dtype[Any] = self._int_repr.dtype
        return kind

    def dequantize(self) -> Array:
        """Returns the real numbers, as `quantized.dequantize`."""
        return dequantize(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise BadType(
            "a QArray is no array of numbers",
            cause="its integers mean something else than themselves",
            remedy="x.dequantize() for the real numbers, x.int_repr for the integers",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return QArray, (self._int_repr, self.scale, self.zero_point, self._axis)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        if self._axis is None:
            return f"<QArray {self.dtype} {size}, scale {self.scale:.6g}, zero point {self.zero_point}>"
        return f"<QArray {self.dtype} {size}, {self._scales.size} scales along axis {self._axis}>"


def quantize(x: Array, scale: Any, zero_point: Any = 0, dtype: Any = "uint8", axis: int | None = None) -> QArray:
    """Quantizes real numbers: ``x / scale`` rounded to the nearest, ties to even, plus the zero point, within the dtype.

    Parameters
    ----------
    x
        Array of float16, bfloat16, float32 or float64, without NaN. Infinity saturates.
    scale, zero_point, axis
        As for `QArray`.
    dtype
        uint8 or int8.

    Returns
    -------
    QArray
        Of the same shape.

    Raises
    ------
    BadType, BadValue
        As `QArray`; an `x` that is no array of real numbers, or holds NaN.

    Notes
    -----
    The result is that of real numbers, with `scale` as it is in float32: no quotient is rounded on the way.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> quantized.quantize(np.array([-1.0, 0.25, 0.75, 1000.0]), 0.5, 10).int_repr
    array([  8,  10,  12, 255], dtype=uint8)
    """
    array = check_kind("quantize", x)
    kind = integer_dtype("quantize: dtype", dtype)
    along = axis_of("quantize", axis, array.shape)
    if along is None:
        steps, zeros = one_of_each("quantize", scale, zero_point, kind)
    else:
        size = array.shape[along]
        steps, zeros = scales("quantize", scale, size), zero_points("quantize", zero_point, size, kind)
    return QArray._of(integers(array, steps, zeros, along, kind), steps, zeros, along)


def integers(array: Array, steps: Array, zeros: Array, axis: int | None, kind: np.dtype[Any]) -> Array:
    """Returns the integers of real numbers, by compiled code where that takes the array; both give the same. Refuses NaN."""
    flat = _in_order(array) if axis is None and array.dtype == F32 else None
    if flat is not None:
        made: Array = np.empty_like(array, kind, subok=False)
        target = _in_order(made)
        if target is not None and target.shape == flat.shape:
            if not _kernels.quantize(flat, target, float(steps[0]), int(zeros[0]), *level_and_threads(flat.size)):
                raise _holds_nan("quantize", array)
            return made
    check_floats("quantize", array)
    return np.asarray(to_integers(array, _along(steps, axis, array.ndim), _along(zeros, axis, array.ndim), kind))


def by_own_range(array: Array, least: int, most: int) -> tuple[Array, Array, Array] | None:
    """Returns the uint8 integers, scale and zero point of float32 numbers by the range of these, in one compiled call.

    They are those of `observers.parameters_of_one` and `integers`. None where compiled code does not take the array, and where an
    element is NaN or infinity.
    """
    flat = _in_order(array) if array.dtype == F32 else None
    if flat is not array:
        return None
    made, step, zero = np.empty(array.shape, np.uint8), np.empty(1, F32), np.empty(1, np.int32)
    done = _kernels.quantize_by_range(array, made, step, zero, least, most, LEAST, MOST, *level_and_threads(array.size))
    return (made, step, zero) if done else None


def dequantize(x: QArray) -> Array:
    """Returns the real numbers that a quantized array stands for.

    Parameters
    ----------
    x
        A `QArray`.

    Returns
    -------
    ndarray
        float32: ``(int_repr - zero_point) * scale``, rounded once.

    Raises
    ------
    BadType
        Not a `QArray`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> quantized.dequantize(quantized.QArray(np.array([7, 8, 9], np.int8), 0.25, 8))
    array([-0.25,  0.  ,  0.25], dtype=float32)
    """
    check_quantized("dequantize", "x", x)
    array = x.int_repr
    flat = _in_order(array) if x.axis is None else None
    if flat is not None:
        made: Array = np.empty_like(array, F32, subok=False)
        target = _in_order(made)
        if target is not None and target.shape == flat.shape:
            _kernels.dequantize(flat, target, float(x.scales[0]), int(x.zero_points[0]), *level_and_threads(flat.size))
            return made
    zero, scale = _along(x.zero_points, x.axis, x.ndim), _along(x.scales, x.axis, x.ndim)
    with np.errstate(over="ignore", under="ignore"):
        values = (x.int_repr.astype(np.float64) - zero) * scale.astype(np.float64)
        return np.asarray(values, np.float32)


def requantize(x: QArray, scale: float, zero_point: int = 0, dtype: Any = None) -> QArray:
    """Returns the same real numbers with another scale and zero point, as near as integers come.

    Parameters
    ----------
    x
        A `QArray`; its scales may differ along an axis.
    scale, zero_point
        One number each, those of the result.
    dtype
        uint8 or int8; None for that of `x`.

    Returns
    -------
    QArray
        Of the same shape, with one scale.

    Raises
    ------
    BadType, BadValue
        Not a `QArray`; numbers as for `QArray`.

    Notes
    -----
    Exact integers throughout: ``old scale / new scale`` is rounded to 24 bits, as a float32 has, and the product with it is
    rounded to the nearest integer, ties to even.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> x = quantized.QArray(np.array([10, 11, 13], np.uint8), 0.5, 10)
    >>> quantized.requantize(x, 1.0, 100).int_repr
    array([100, 100, 102], dtype=uint8)
    """
    check_quantized("requantize", "x", x)
    kind = x.dtype if dtype is None else integer_dtype("requantize: dtype", dtype)
    step, zero = scales("requantize", scale, None), zero_points("requantize", zero_point, None, kind)
    sums = x.int_repr.astype(np.int64) - _along(x.zero_points, x.axis, x.ndim)
    factor = Factor(_along(x.scales, x.axis, x.ndim), step)
    return QArray._of(np.asarray(factor.rescale(sums, zero, kind)), step.reshape(-1), zero.reshape(-1))


# Compiled code -----------------------------------------------------------------------------------------------------------


def _in_order(array: Array) -> Array | None:
    """Returns the elements of a dense array in the order of memory, as a view; None of one that is not."""
    if array.flags.c_contiguous:
        return array if array.dtype.isnative and array.flags.aligned else None
    if array.ndim == 4:
        last = array.transpose(0, 2, 3, 1)
        if last.flags.c_contiguous and array.flags.aligned:
            return last if array.dtype.isnative else None
    return None


def extremes(array: Array) -> tuple[float, float]:
    """Returns the least and the greatest of 0 and the elements; one of them or both are NaN if an element is."""
    flat = _in_order(array) if array.dtype == F32 else None
    if flat is not None:
        return _kernels.value_range(flat, vector_level())
    return float(np.min(array, initial=0)), float(np.max(array, initial=0))


# Checks ----------------------------------------------------------------------------------------------------------------


def check_quantized(where: str, name: str, value: Any) -> QArray:
    """Returns the value if it is a quantized array."""
    if not isinstance(value, QArray):
        raise BadType(
            f"{where}: {name} must be a QArray, not {type(value).__name__}",
            remedy="quantized.quantize(x, scale, zero_point) makes one of real numbers",
        )
    return value


def check_floats(where: str, value: Any) -> Array:
    """Returns the value if it is an array of real numbers without NaN."""
    array = check_kind(where, value)
    low, high = extremes(array)
    if low != low or high != high:
        raise _holds_nan(where, array)
    return array


def _holds_nan(where: str, array: Array) -> BadValue:
    return BadValue(f"{where}: x, of shape {array.shape}, holds NaN", cause="no integer stands for it")


def _along(values: Array, axis: int | None, ndim: int) -> Array:
    """Returns a view of a shape that broadcasts along the axis."""
    if axis is None:
        return values.reshape(())
    shape = [1] * ndim
    shape[axis] = -1
    return values.reshape(shape)
