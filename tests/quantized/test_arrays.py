"""Quantizing and back: every integer against fractions, and what is refused."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integers import of_24_bits, quantized, rescaled

from backline import quantized as q
from backline.errors import BadType, BadValue
from backline.libraries.reference.reference_requantize import Factor

SCALES = st.floats(2.0**-126, 2.0**127, width=32, allow_subnormal=False)
KINDS = st.sampled_from(["uint8", "int8"])


def zero_of(draw: Any, dtype: str) -> int:
    return int(draw(st.integers(0, 255))) - (128 if dtype == "int8" else 0)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.floats(allow_nan=False), max_size=20), SCALES, KINDS)
def test_quantize_rounds_real_numbers(data: Any, values: list[float], scale: float, dtype: str) -> None:
    zero = zero_of(data.draw, dtype)
    halves = [(n + 0.5) * scale for n in (-2, -1, 0, 1, 100)]
    around = [np.nextafter(h, way) for h in halves for way in (-np.inf, np.inf)]
    x = np.array([*values, *halves, *around], np.float64)
    made = q.quantize(x, scale, zero, dtype)
    assert made.int_repr.tolist() == [quantized(v, scale, zero, dtype) for v in x.tolist()]
    assert made.dtype == dtype and made.scale == scale and made.zero_point == zero


@pytest.mark.parametrize("dtype", ["float16", "float32", ml_dtypes.bfloat16])
def test_every_dtype_of_real_numbers(dtype: Any) -> None:
    x = np.linspace(-3, 3, 101).astype(dtype)
    scale = np.float32(0.013)
    assert q.quantize(x, scale, 7).int_repr.tolist() == [quantized(float(v), float(scale), 7, "uint8") for v in x]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(st.integers(0, 255), max_size=20), SCALES, KINDS)
def test_dequantize_rounds_once(data: Any, values: list[int], scale: float, dtype: str) -> None:
    zero = zero_of(data.draw, dtype)
    integers = np.array(values, np.uint8).view(dtype)
    back = q.QArray(integers, scale, zero).dequantize()
    with np.errstate(over="ignore"):
        wanted = [np.float32(float(Fraction(int(i) - zero) * Fraction(scale))) for i in integers]
    assert back.dtype == np.float32 and back.tolist() == [float(w) for w in wanted]


@settings(max_examples=100, deadline=None)
@given(st.data(), SCALES, SCALES, KINDS, KINDS)
def test_requantize_is_exact(data: Any, old: float, new: float, dtype: str, other: str) -> None:
    near = data.draw(st.floats(2.0**-7, 128, width=32))
    for scale in (new, float(np.float32(min(max(old * near, 2.0**-126), 2.0**127))), old, old * 2 if old < 1e38 else old):
        zero, other_zero = zero_of(data.draw, dtype), zero_of(data.draw, other)
        every = np.arange(256, dtype=np.uint8).view(dtype)
        made = q.requantize(q.QArray(every, old, zero), scale, other_zero, other)
        wanted = [rescaled(int(i) - zero, Fraction(old), made.scale, other_zero, other) for i in every]
        assert made.dtype == other and made.int_repr.tolist() == wanted


def test_ties_go_to_the_even_integer() -> None:
    x = q.QArray(np.arange(8, dtype=np.uint8), 1.0, 0)
    assert q.requantize(x, 2.0).int_repr.tolist() == [0, 0, 1, 2, 2, 2, 3, 4]
    assert q.quantize(np.array([0.5, 1.5, 2.5, -0.5, -1.5]), 1.0, 0, "int8").int_repr.tolist() == [0, 2, 2, 0, -2]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**36), 2**36), min_size=1, max_size=10), SCALES, SCALES, SCALES)
def test_factors_of_any_size(sums: list[int], a: float, b: float, c: float) -> None:
    """Sums as long as they get, factors from 2**-380 to 2**382."""
    made = Factor(np.float64(a) * np.float64(b), np.float64(c)).rescale(np.array(sums), 3, np.dtype(np.int8))
    assert made.tolist() == [rescaled(s, Fraction(a) * Fraction(b), c, 3, "int8") for s in sums]


def test_a_factor_has_24_bits() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        a, b, c = (float(np.float32(v)) for v in rng.uniform(1e-4, 2, 3))
        f = Factor(np.float64(a * b), np.float64(c))
        assert Fraction(int(f.mantissa)) / 2 ** int(f.shift) == of_24_bits(Fraction(a * b) / Fraction(c))


def test_scales_along_an_axis() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    made = q.quantize(x, [0.5, 1.0, 2.0], [1, 2, 3], axis=-2)
    assert made.axis == 1 and made.scale.tolist() == [0.5, 1, 2] and made.zero_point.tolist() == [1, 2, 3]
    for i, (scale, zero) in enumerate(((0.5, 1), (1.0, 2), (2.0, 3))):
        one = q.quantize(x[:, i], scale, zero)
        assert (made.int_repr[:, i] == one.int_repr).all() and (made.dequantize()[:, i] == one.dequantize()).all()
    flat = q.requantize(made, 1.0, 0)
    assert flat.axis is None and (flat.dequantize() == np.rint(made.dequantize())).all()
    assert q.quantize(x, [1, 2], 0, axis=0).zero_point.tolist() == [0, 0]
    for values in (made.scale, made.zero_point):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_shapes_without_elements_or_axes() -> None:
    assert q.quantize(np.zeros((0, 3)), 1.0).shape == (0, 3)
    one = q.quantize(np.array(2.0), 0.5, 1)
    assert one.shape == () and one.int_repr.item() == 5 and one.dequantize().item() == 2 and one.ndim == 0 and one.size == 1
    assert q.quantize(np.zeros((2, 0)), [], [], axis=1).scale.shape == (0,)


def test_it_is_no_array_and_a_value() -> None:
    x = q.QArray(np.array([1, 2], np.uint8), 0.1, 3)
    with pytest.raises(BadType, match="QArray is no array"):
        np.asarray(x)
    with pytest.raises(TypeError):
        np.ones(2) + x  # type: ignore[operator]  # refused on purpose
    with pytest.raises(AttributeError):
        x.scale = 3  # type: ignore[misc]  # refused on purpose
    again = pickle.loads(pickle.dumps(x))
    assert again.scale == x.scale == float(np.float32(0.1)) and again.zero_point == 3 and (again.int_repr == x.int_repr).all()
    assert "uint8 2, scale 0.1, zero point 3" in repr(x)


A = np.zeros((2, 3), np.uint8)
X = np.zeros((2, 3))
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: q.QArray(X, 1.0), BadType, "QArray: int_repr is float64"),
    (lambda: q.QArray([1], 1.0), BadType, "int_repr must be a NumPy array, not list"),
    (lambda: q.QArray(A.astype(np.int32), 1.0), BadType, "int_repr is int32"),
    (lambda: q.QArray(A, 0.0), BadValue, "scale=0.0"),
    (lambda: q.QArray(A, -1), BadValue, "scale=-1.0"),
    (lambda: q.QArray(A, float("nan")), BadValue, "scale=nan"),
    (lambda: q.QArray(A, float("inf")), BadValue, "scale=inf"),
    (lambda: q.QArray(A, 1e-39), BadValue, "scale=1e-39"),
    (lambda: q.QArray(A, 1e39), BadValue, "scale=1e\\+39"),
    (lambda: q.QArray(A, "1"), BadType, "scale='1' is not a number"),
    (lambda: q.QArray(A, True), BadType, "scale=True is not a number"),
    (lambda: q.QArray(A, None), BadType, "scale=None is not a number"),
    (lambda: q.QArray(A, [1.0, 1.0]), BadValue, r"scale has shape \(2,\)"),
    (lambda: q.QArray(A, [1.0, 1.0], 0, axis=1), BadValue, r"scale has shape \(2,\), the array has 3"),
    (lambda: q.QArray(A, [[1.0], [1.0, 2.0]], 0, axis=1), BadType, "scale="),
    (lambda: q.QArray(A, [1.0, 0.0, 1.0], 0, axis=1), BadValue, "scale=0.0"),
    (lambda: q.QArray(A, 1.0, 256), BadValue, "zero_point=256.*\n.*uint8 are from 0 to 255"),
    (lambda: q.QArray(A, 1.0, -1), BadValue, "zero_point=-1"),
    (lambda: q.QArray(A, 1.0, 2**70), BadType, "zero_point="),
    (lambda: q.QArray(A.astype(np.int8), 1.0, 128), BadValue, "zero_point=128.*\n.*int8 are from -128 to 127"),
    (lambda: q.QArray(A, 1.0, 0.0), BadType, "zero_point=0.0 is not an integer"),
    (lambda: q.QArray(A, 1.0, [1, 2]), BadValue, r"zero_point has shape \(2,\)"),
    (lambda: q.QArray(A, 1.0, 0, axis=2), BadValue, r"axis=2.*\(2, 3\)"),
    (lambda: q.QArray(A, 1.0, 0, axis=True), BadType, "axis is an int, not True"),
    (lambda: q.quantize(A, 1.0), BadType, "quantize: x has dtype uint8"),
    (lambda: q.quantize(X * np.nan, 1.0), BadValue, r"quantize: x, of shape \(2, 3\), holds NaN"),
    (lambda: q.quantize(X, 1.0, 0, "int32"), BadType, "quantize: dtype is int32"),
    (lambda: q.quantize(X, 1.0, 0, None), BadType, "quantize: dtype is None"),
    (lambda: q.quantize(X, 1.0, 0, "int7"), BadType, "quantize: dtype='int7'"),
    (lambda: q.quantize(X, 1.0, 300), BadValue, "quantize: zero_point=300"),
    (lambda: q.dequantize(A), BadType, "dequantize: x must be a QArray, not ndarray"),
    (lambda: q.requantize(A, 1.0), BadType, "requantize: x must be a QArray"),
    (lambda: q.requantize(q.QArray(A, 1.0), 0.0), BadValue, "requantize: scale=0.0"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()
