"""From sums of int8 products to results, as each engine defines it, in NumPy.

The engines "x86", "onednn" and "reference" have one definition, which is ours, `Numbers`:

* the factor from sums to the result, ``input scale * weight scale / output scale``, is rounded to 24 bits, as a float32 has;
* ``sum * factor`` is rounded to the nearest integer, a tie to the even one, without an error before that;
* a bias is ``bias / (input scale * weight scale)`` in float64, rounded the same way, within int32.

"fbgemm" and "qnnpack" are FBGEMM's and QNNPACK's definitions, as PyTorch calls them on x86-64: every step is one operation of
float32, and rounds. They differ from each other in the bias, which QNNPACK rounds to an integer first, in the factor, which
QNNPACK multiplies by the reciprocal of the output scale, and in one fused operation of FBGEMM's. There is one difference from
them here: what is past int32 after the factor saturates, where x86's conversion gives the least integer instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...problems.quantized_problem import QuantizedProblem

__all__ = ["FLOAT32", "Factor", "Numbers", "fused", "input_integers", "input_parameters", "numbers", "to_integers"]

Array = Any

FLOAT32 = {"fbgemm": "rounded in float32 as FBGEMM does", "qnnpack": "rounded in float32 as QNNPACK does"}
"""The engines that round in float32, and what `explain` says of them."""

BITS = 24  # of a factor
NONE = np.zeros(1, np.int32)
SMALLEST_SCALE = np.float32(6.1e-5)  # of a real input: PyTorch keeps out of the subnormal numbers of float16


def to_integers(x: Array, scale: Array, zero: Array, dtype: np.dtype[Any]) -> Array:
    """The integers nearest to ``x / scale`` as real numbers, ties to even, plus `zero`, within the dtype.

    `scale` is float32 and broadcasts; `x` has any floating-point dtype and no NaN.

    Examples
    --------
    >>> import numpy as np
    >>> to_integers(np.array([0.25, 0.75, 9e9]), np.float32(0.5), np.int32(3), np.dtype("uint8"))
    array([  3,   5, 255], dtype=uint8)
    """
    limits = np.iinfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        wide, step = x.astype(np.float64), np.asarray(scale, np.float64)
        near = np.clip(np.rint(wide / step), -1024, 1024)  # further away it saturates anyway
        # The quotient was rounded before it was rounded to an integer. The middles between integers times the scale are exact.
        above, below = (near + 0.5) * step, (near - 0.5) * step
        odd = near % 2 != 0
        near += (wide > above) | ((wide == above) & odd)
        near -= (wide < below) | ((wide == below) & odd)
    result: Array = np.clip(near + zero, limits.min, limits.max).astype(dtype)
    return result


class Factor:
    """Factor that brings sums to integers of another scale: 24 bits and a power of two.

    Examples
    --------
    >>> import numpy as np
    >>> halves = Factor(np.float64(1), np.float64(2))
    >>> halves.rescale(np.array([1, 3, 5, -3]), 0, np.dtype("int8"))
    array([ 0,  2,  2, -2], dtype=int8)
    """

    def __init__(self, inputs: Array, output: Array) -> None:
        fraction, exponent = np.frexp(np.asarray(inputs, np.float64) / np.asarray(output, np.float64))
        self.mantissa: Array = np.rint(np.ldexp(fraction, BITS)).astype(np.int64)
        # With a shift below 1 every sum but 0 is far outside any dtype, as with 1; with one above 62 nothing is left, as with 62.
        self.shift: Array = np.clip(BITS - exponent.astype(np.int64), 1, 62)

    def rescale(self, sums: Array, zero: Any, dtype: np.dtype[Any]) -> Array:
        """``sums * factor`` rounded, ties to even, plus `zero`, within the dtype; `sums` are integers."""
        limits = np.iinfo(dtype)
        product = sums.astype(np.int64) * self.mantissa
        whole = product >> self.shift
        rest = product - (whole << self.shift)
        half = np.int64(1) << (self.shift - 1)
        whole += (rest > half) | ((rest == half) & (whole % 2 != 0))
        result: Array = np.clip(whole + np.int64(zero), limits.min, limits.max).astype(dtype)
        return result


class Numbers:
    """The operands of one call by role, and what follows from the scales: the definition for most engines."""

    def __init__(self, p: QuantizedProblem, arrays: tuple[Array, ...]) -> None:
        given = {o.role: a for o, a in zip(p.operands, arrays, strict=True)}
        self.input, self.weight = given["input"], given["weight"]
        self.input_zero = int(given["input_zero"].item())
        self.weight_zero = given.get("weight_zero", NONE).astype(np.int64)
        self.bias = given.get("bias")
        self.out_zero = int(given["result_zero"].item()) if "result_zero" in given else 0
        self._scales(given["input_scale"].reshape(1), given["weight_scale"], given.get("result_scale", NONE).reshape(1))

    def _scales(self, inputs: Array, weights: Array, output: Array) -> None:
        self.unit = inputs.astype(np.float64) * weights.astype(np.float64)
        self.output = output

    def _added(self) -> Array:
        """The bias in units of the sums."""
        if self.bias is None:
            return np.int64(0)
        with np.errstate(over="ignore", under="ignore"):
            units = np.rint(self.bias.astype(np.float64) / self.unit)
        return np.clip(units, -(2**31), 2**31 - 1).astype(np.int64)

    def rescale(self, sums: Array, dtype: np.dtype[Any]) -> Array:
        """Integers of the result from int64 sums (..., O)."""
        return Factor(self.unit, self.output).rescale(sums + self._added(), self.out_zero, dtype)

    def real(self, sums: Array) -> Array:
        """Sums as float32, with the bias."""
        with np.errstate(over="ignore", under="ignore"):
            values = sums.astype(np.float64) * self.unit
            if self.bias is not None:
                values += self.bias
            return values.astype(np.float32)


class _Fbgemm(Numbers):
    """FBGEMM's definition."""

    def _scales(self, inputs: Array, weights: Array, output: Array) -> None:
        self.unit, self.output = inputs * weights, output

    def _with_bias(self, sums: Array) -> Array:
        units = sums.astype(np.float32)
        if self.bias is None:
            return units
        # FBGEMM divides where there is a scale for each output, and multiplies by a reciprocal where there is one.
        return units + (self.bias / self.unit if self.unit.size > 1 else self.bias * (np.float32(1) / self.unit))

    def _factor(self) -> Array:
        return self.unit / self.output

    def rescale(self, sums: Array, dtype: np.dtype[Any]) -> Array:
        limits, zero = np.iinfo(dtype), np.float32(self.out_zero)
        scaled = np.clip(self._with_bias(sums) * self._factor(), limits.min - zero, limits.max - zero)
        result: Array = (np.rint(scaled) + zero).astype(dtype)
        return result

    def real(self, sums: Array) -> Array:
        units = sums.astype(np.float32)
        return units * self.unit if self.bias is None else fused(units, self.unit, self.bias)


class _Qnnpack(_Fbgemm):
    """QNNPACK's definition."""

    def _with_bias(self, sums: Array) -> Array:
        if self.bias is None:
            return sums.astype(np.float32)
        units = np.rint(self.bias * (np.float32(1) / self.unit)).astype(np.float64)
        return (sums + np.clip(units, -(2**31), 2**31 - 1).astype(np.int64)).astype(np.float32)

    def _factor(self) -> Array:
        return self.unit * (np.float32(1) / self.output)

    def real(self, sums: Array) -> Array:
        values = sums.astype(np.float32) * self.unit
        return values if self.bias is None else values + self.bias


_DEFINITIONS = {"fbgemm": _Fbgemm, "qnnpack": _Qnnpack}


def numbers(p: QuantizedProblem, arrays: tuple[Array, ...]) -> Numbers:
    """The operands of one call, by the definition of its engine."""
    return _DEFINITIONS.get(p.engine, Numbers)(p, arrays)


# Real inputs of the engines that round in float32 ------------------------------------------------------------------------


def fused(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of float32 numbers, rounded once, as a fused multiply-add does.

    Examples
    --------
    >>> import numpy as np
    >>> x, tiny = np.float32(1 + 2.0**-12), np.float32(2.0**-24)
    >>> float(fused(x, x, -np.float32(1)) / tiny), float((x * x - np.float32(1)) / tiny)
    (8193.0, 8192.0)
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)  # exact: 48 bits
    wide = np.asarray(c, np.float64)
    total = np.asarray(product + wide)
    back = total - product
    error = (product - (total - back)) + (wide - back)
    # Rounded to odd, so that the second rounding, to float32, is that of the exact sum.
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    result: Array = (bits + np.where(odd, step, 0)).view(np.float64).astype(np.float32)
    return result


def input_parameters(low: float, high: float, least: int, most: int) -> tuple[Array, Array]:
    """Scale and zero point of real inputs from `low` <= 0 to `high` >= 0, as PyTorch chooses them for both engines.

    Returns vectors of one element, float32 and int32.

    Examples
    --------
    >>> scale, zero = input_parameters(-1.0, 3.0, 0, 127)
    >>> round(float(scale[0]), 6), int(zero[0])
    (0.031496, 32)
    """
    scale, narrow = (high - low) / (most - least), np.float32
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        if narrow(scale) == 0 or np.isinf(narrow(1) / narrow(scale)):
            scale = 0.1
        if scale < float(SMALLEST_SCALE):
            if low == 0:
                high = float(SMALLEST_SCALE * narrow(most - least))
            elif high == 0:
                low = -float(SMALLEST_SCALE * narrow(most - least))
            else:
                by = SMALLEST_SCALE / narrow(scale)
                low, high = float(narrow(low) * by), float(narrow(high) * by)
            scale = float(SMALLEST_SCALE)
    from_low, from_high = least - low / scale, most - high / scale
    zero = from_low if abs(least) - abs(low / scale) < abs(most) - abs(high / scale) else from_high
    return np.array([scale], np.float32), np.array([min(max(round(zero), least), most)], np.int32)


def input_integers(x: Array, scale: Array, zero: Array) -> Array:
    """float32 inputs without NaN as uint8: ``x * (1 / scale) + zero`` in one fused operation, then rounded, ties to even."""
    shifted = fused(x, np.float32(1) / scale, zero.astype(np.float32))
    result: Array = np.clip(np.rint(shifted), 0, 255).astype(np.uint8)
    return result
