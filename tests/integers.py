"""Quantized arithmetic in fractions of whole numbers of any size: written apart from the package, to hold it against."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}


def nearest(x: Fraction) -> int:
    """The nearest integer, ties to the even one."""
    whole = x.numerator // x.denominator
    rest = x - whole
    if rest * 2 == 1:
        return whole + whole % 2
    return whole + (rest * 2 > 1)


def within(n: int, dtype: str) -> int:
    low, high = LIMITS[dtype]
    return min(max(n, low), high)


def quantized(x: float, scale: float, zero: int, dtype: str) -> int:
    if x in (float("inf"), float("-inf")):
        return LIMITS[dtype][x > 0]
    return within(nearest(Fraction(x) / Fraction(scale)) + zero, dtype)


@lru_cache(maxsize=256)
def of_24_bits(x: Fraction) -> Fraction:
    """The nearest number with 24 bits, whatever its exponent."""
    exponent = x.numerator.bit_length() - x.denominator.bit_length() - 24
    x /= Fraction(2) ** exponent
    while x >= 1 << 24:
        x, exponent = x / 2, exponent + 1
    while x < 1 << 23:
        x, exponent = x * 2, exponent - 1
    return nearest(x) * Fraction(2) ** exponent


def bias_units(bias: float, unit: Fraction) -> int:
    units = nearest(Fraction(float(Fraction(bias) / unit)))  # a float64, as the definition says
    return min(max(units, -(2**31)), 2**31 - 1)


def rescaled(total: int, inputs: Fraction, output: float, zero: int, dtype: str) -> int:
    return within(nearest(total * of_24_bits(inputs / Fraction(output))) + zero, dtype)


def real(total: int, unit: Fraction, bias: float | None) -> np.float32:
    value = float(total * unit)
    return np.float32(value if bias is None else float(Fraction(value) + Fraction(bias)))


def per_output(q: Any, i: int) -> tuple[Fraction, int]:
    return Fraction(float(q.scales[i % q.scales.size])), int(q.zero_points[i % q.zero_points.size])


def linear_sums(x: Any, weight: Any) -> list[list[int]]:
    rows, zero = x.int_repr.reshape(-1, x.shape[-1]).tolist(), int(x.zero_point)
    kernels = weight.int_repr.tolist()
    return [
        [sum((a - zero) * (b - per_output(weight, o)[1]) for a, b in zip(row, kernel, strict=True)) for o, kernel in enumerate(kernels)]
        for row in rows
    ]  # fmt: skip


def linear(x: Any, weight: Any, bias: Any, scale: float, zero: int) -> Any:
    result = []
    for row in linear_sums(x, weight):
        for o, total in enumerate(row):
            unit = Fraction(float(x.scale)) * per_output(weight, o)[0]
            added = 0 if bias is None else bias_units(float(bias[o]), unit)
            result.append(rescaled(total + added, unit, scale, zero, x.dtype.name))
    return np.array(result, x.dtype).reshape(*x.shape[:-1], weight.shape[0])


def linear_real(x: Any, weight: Any, bias: Any) -> Any:
    result = []
    for row in linear_sums(x, weight):
        for o, total in enumerate(row):
            unit = Fraction(float(x.scale)) * per_output(weight, o)[0]
            result.append(real(total, unit, None if bias is None else float(bias[o])))
    return np.array(result, np.float32).reshape(*x.shape[:-1], weight.shape[0])


def conv2d(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, scale: float, zero: int) -> Any:
    batch, _, height, width = x.shape
    outs, channels, kh, kw = weight.shape
    out_h = (height + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    out_w = (width + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    result = np.empty((batch, outs, out_h, out_w), x.dtype)
    image, kernels, x_zero = x.int_repr.tolist(), weight.int_repr.tolist(), int(x.zero_point)
    for n, o, i, j in product(*map(range, result.shape)):
        weight_scale, weight_zero = per_output(weight, o)
        total = 0
        for c, p, q in product(range(channels), range(kh), range(kw)):
            row, column = i * stride[0] + p * dilation[0] - padding[0], j * stride[1] + q * dilation[1] - padding[1]
            if 0 <= row < height and 0 <= column < width:
                source = image[n][o // (outs // groups) * channels + c][row][column]
                total += (source - x_zero) * (kernels[o][c][p][q] - weight_zero)
        unit = Fraction(float(x.scale)) * weight_scale
        added = 0 if bias is None else bias_units(float(bias[o]), unit)
        result[n, o, i, j] = rescaled(total + added, unit, scale, zero, x.dtype.name)
    return result
