"""Observers that find scales and zero points: from the least and the greatest value, or from a histogram, and for weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..ops.linalg_checks import flag
from .arrays import QArray, check_floats, quantize
from .checks import LEAST, MOST, Array, axis_of, integer_dtype
from .schemes import scheme

__all__ = ["HistogramObserver", "MinMaxObserver", "parameters", "parameters_of_one", "quantize_weights"]


def parameters(
    low: Array, high: Array, least: int, most: int, symmetric: bool = False, *, where: str = "parameters"
) -> tuple[Array, Array]:
    """Returns scales (float32) and zero points (int32) by which integers from `least` to `most` cover the ranges, 0 exactly.

    Raises
    ------
    BadValue
        A range so wide that the integers would stand for numbers past float32.

    Examples
    --------
    >>> import numpy as np
    >>> scale, zero = parameters(np.array(-1.0), np.array(3.0), 0, 255)
    >>> round(float(scale), 6), int(zero)
    (0.015686, 64)
    >>> parameters(np.array(-1.0), np.array(2.0), -128, 127, symmetric=True)[1].item()
    0
    """
    low, high = np.minimum(np.asarray(low, np.float64), 0.0), np.maximum(np.asarray(high, np.float64), 0.0)
    middle = (least + most + 1) // 2
    if symmetric:
        scale = np.maximum(-low, high) / (most - middle)
    else:
        scale = high / (most - least) - low / (most - least)  # the difference of two large numbers may not exist
    widest = most - middle if symmetric else most - least
    if bool((scale > MOST / widest).any()):
        reach = float(np.maximum(-low, high).max())
        raise BadValue(
            f"{where}: values as large as {reach:.6g}",
            cause=f"integers stand for float32 numbers, and {widest} steps of the scale would be past {MOST:.4g}",
            remedy="smaller values: x / factor, and the factor on what comes out",
        )
    scale = np.where((low == 0) & (high == 0), 1.0, np.maximum(scale, LEAST))
    kept = np.asarray(scale, np.float32)
    # Rounded up, a scale at the limit would have its last integer stand for infinity.
    kept = np.where(kept.astype(np.float64) * widest > MOST, np.nextafter(kept, np.float32(0)), kept).astype(np.float32)
    zero = np.full(kept.shape, float(middle)) if symmetric else least + np.rint(-low / kept.astype(np.float64))
    return kept, np.asarray(np.clip(zero, least, most), np.int32)


def parameters_of_one(low: float, high: float, least: int, most: int) -> tuple[Array, Array]:
    """Returns the result of `parameters` for one range around 0, as vectors of one element, faster than for arrays of ranges.

    Examples
    --------
    >>> scale, zero = parameters_of_one(-1.0, 3.0, 0, 255)
    >>> round(float(scale[0]), 6), int(zero[0])
    (0.015686, 64)
    """
    scale = 1.0 if low == 0 and high == 0 else high / (most - least) - low / (most - least)
    kept = np.array([min(max(scale, LEAST), MOST)], np.float32)
    zero = least + round(-low / kept.item())
    return kept, np.array([min(max(zero, least), most)], np.int32)


class _Observer:
    """Base of the observers: the range of integers, and checks of the values that they look at."""

    _NAME = ""

    def __init__(self, dtype: Any, engine: str | None, symmetric: bool) -> None:
        self._dtype = integer_dtype(f"{self._NAME}: dtype", dtype)
        self._symmetric = flag(self._NAME, "symmetric", symmetric)
        self._range = scheme(engine).activations(self._dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the integers."""
        return self._dtype

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest integer that values are mapped to."""
        return self._range

    def _checked(self, x: Any) -> Array:
        array = check_floats(self._NAME, x)
        if not bool(np.isfinite(array).all()):
            raise BadValue(f"{self._NAME}: x, of shape {array.shape}, holds infinity", cause="no scale covers it")
        return array

    def _unseen(self) -> BadValue:
        return BadValue(f"{self._NAME} has seen no value", remedy="observer(x) before")


class MinMaxObserver(_Observer):
    """Scale and zero point from the least and the greatest value seen.

    Parameters
    ----------
    dtype
        uint8 or int8.
    engine
        Whose range of integers is taken: "x86" and "fbgemm" leave one bit out. None for `backends.quantized.engine`.
    symmetric
        Whether the zero point is the middle of the range.
    axis
        The axis along which every index has a range of its own, or None.

    Raises
    ------
    BadType, BadValue
        Not such a dtype, engine, flag or axis; values that are NaN, infinite, or so large that no scale of float32 covers them;
        nothing seen yet.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> observer = quantized.MinMaxObserver(engine="onednn")
    >>> seen = observer(np.array([0.0, 25.5])), observer(np.array([-25.5]))
    >>> scale, zero_point = observer.calculate_qparams()
    >>> round(scale, 6), zero_point
    (0.2, 127)
    """

    _NAME = "MinMaxObserver"

    def __init__(
        self, dtype: Any = "uint8", *, engine: str | None = None, symmetric: bool = False, axis: int | None = None
    ) -> None:
        super().__init__(dtype, engine, symmetric)
        if axis is not None and (isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer))):
            raise BadType(f"MinMaxObserver: axis={axis!r} is not an int or None")
        self._axis = None if axis is None else int(axis)
        self._low: Array | None = None
        self._high: Array | None = None

    def __call__(self, x: Array) -> Array:
        """Looks at an array of real numbers, and returns it."""
        array = self._checked(x)
        axis = self._axis
        kept = axis_of("MinMaxObserver", axis, array.shape)
        others = None if kept is None else tuple(i for i in range(array.ndim) if i != kept)
        wide = array.astype(np.float64)
        # Ranges hold 0 anyway, so it can stand for what is not there.
        low, high = np.min(wide, axis=others, initial=0.0), np.max(wide, axis=others, initial=0.0)
        if self._low is not None and self._high is not None:
            if low.shape != self._low.shape:
                sizes = f"{low.size} indices along axis {axis}, {self._low.size} before"
                raise BadValue(f"MinMaxObserver: x has shape {array.shape}", cause=sizes)
            low, high = np.minimum(low, self._low), np.maximum(high, self._high)
        self._low, self._high = np.asarray(low), np.asarray(high)
        return x

    def calculate_qparams(self) -> tuple[Any, Any]:
        """Scale and zero point: numbers, or with an axis arrays."""
        if self._low is None or self._high is None:
            raise self._unseen()
        scale, zero = parameters(self._low, self._high, *self._range, self._symmetric, where=self._NAME)
        return (float(scale), int(zero)) if self._axis is None else (scale, zero)

    def __repr__(self) -> str:
        return f"<MinMaxObserver {self.dtype} {self.range[0]}..{self.range[1]}>"


class HistogramObserver(_Observer):
    """Scale and zero point from a histogram, without the rarest large values.

    Parameters
    ----------
    percentile
        How many of the values have to be covered: above 0, up to 100. What is left out is shared between both ends.
    dtype, engine, symmetric
        As for `MinMaxObserver`.

    Raises
    ------
    BadType, BadValue
        As `MinMaxObserver`, and for a percentile out of range.

    Notes
    -----
    Bins have the width of a power of two, and pairs of them are joined when a value does not fit: the result does not depend on
    the order in which values come, and takes no more memory for many of them.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> observer = quantized.HistogramObserver(99.0, engine="onednn")
    >>> seen = observer(np.append(np.linspace(0.0, 1.0, 10_000), 1000.0))
    >>> observer.calculate_qparams()[0] < 0.01
    True
    """

    _NAME = "HistogramObserver"
    _BINS = 1 << 14

    def __init__(
        self, percentile: float = 99.99, *, dtype: Any = "uint8", engine: str | None = None, symmetric: bool = False
    ) -> None:
        super().__init__(dtype, engine, symmetric)
        if isinstance(percentile, (bool, np.bool_)) or not isinstance(percentile, (int, float, np.integer, np.floating)):
            raise BadType(f"HistogramObserver: percentile={percentile!r} is not a number")
        if not 0 < percentile <= 100:
            raise BadValue(f"HistogramObserver: percentile={percentile}", cause="it is above 0, and 100 at most")
        self._percentile = float(percentile)
        self._counts = np.zeros(self._BINS, np.int64)
        self._exponent: int | None = None  # bins are 2**exponent wide, from -BINS/2 of them to BINS/2
        self._low, self._high = math.inf, -math.inf

    def __call__(self, x: Array) -> Array:
        """Looks at an array of real numbers, and returns it."""
        array = self._checked(x).reshape(-1)
        if not array.size:
            return x
        wide = array.astype(np.float64)
        self._low, self._high = min(self._low, float(wide.min())), max(self._high, float(wide.max()))
        self._widen(max(-self._low, self._high))
        assert self._exponent is not None
        bins = np.floor(np.ldexp(wide, -self._exponent)).astype(np.int64) + self._BINS // 2
        self._counts += np.bincount(bins, minlength=self._BINS)
        return x

    def _widen(self, bound: float) -> None:
        """Extends the bins to cover values up to a bound, which must lie below their end."""
        # bound < 2**e, and half of the bins are 2**(e - exponent).
        needed = max(math.frexp(bound)[1], -900) - (self._BINS.bit_length() - 2)
        if self._exponent is None:
            self._exponent = needed
        quarter = self._BINS // 4
        while self._exponent < needed:
            joined = self._counts.reshape(-1, 2).sum(axis=1)
            if not joined.any():
                self._exponent = needed
                return
            self._counts = np.zeros(self._BINS, np.int64)
            self._counts[quarter : 3 * quarter] = joined
            self._exponent += 1

    def calculate_qparams(self) -> tuple[float, int]:
        """Scale and zero point."""
        if self._exponent is None:
            raise self._unseen()
        below = np.cumsum(self._counts)
        count = int(below[-1])
        rest = math.floor(count * (100.0 - self._percentile) / 200.0)  # values at either end that may be left out
        first = int(np.searchsorted(below, rest, side="right"))
        last = int(np.searchsorted(below, count - rest, side="left"))
        half = self._BINS // 2
        low = max(math.ldexp(first - half, self._exponent), self._low)
        high = min(math.ldexp(last + 1 - half, self._exponent), self._high)
        scale, zero = parameters(np.array(low), np.array(high), *self._range, self._symmetric, where=self._NAME)
        return float(scale), int(zero)

    def __repr__(self) -> str:
        return f"<HistogramObserver {self._percentile:g} % {self.dtype} {self.range[0]}..{self.range[1]}>"


def quantize_weights(weight: Array, *, engine: str | None = None) -> QArray:
    """Weights of a layer as int8 with zero point 0, in the form that an engine takes.

    Parameters
    ----------
    weight
        Array of real numbers, without NaN or infinity; output channels along the first axis.
    engine
        For which engine: one scale for each output channel, for "qnnpack" one for all. None for `backends.quantized.engine`.

    Returns
    -------
    QArray
        int8, from -127 to 127.

    Raises
    ------
    BadType, BadValue
        Not such an array; no such engine; weights that no scale of float32 covers.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> quantized.quantize_weights(np.array([[1.0, -0.5], [0.0, 127.0]]), engine="onednn").int_repr
    array([[127, -64],
           [  0, 127]], dtype=int8)
    """
    array = check_floats("quantize_weights", weight)
    if array.ndim < 1:
        raise BadValue("quantize_weights: weight has no axis", remedy="an array (out, ...)")
    if not bool(np.isfinite(array).all()):
        raise BadValue(f"quantize_weights: x, of shape {array.shape}, holds infinity", cause="no scale covers it")
    axis = 0 if scheme(engine).per_channel else None
    size = np.abs(array.astype(np.float64)).max(axis=tuple(range(1, array.ndim)) if axis == 0 else None, initial=0.0)
    scale, zero = parameters(-size, size, -128, 127, symmetric=True, where="quantize_weights")
    return quantize(array, scale, zero, "int8", axis)
