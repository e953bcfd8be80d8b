"""Scales and zero points from values, in the ranges of the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline import quantized as q
from backline.backends import quantized as backend
from backline.errors import BadType, BadValue

RANGES = {
    "x86": {"uint8": (0, 127), "int8": (-64, 63)},
    "fbgemm": {"uint8": (0, 127), "int8": (-64, 63)},
    "onednn": {"uint8": (0, 255), "int8": (-128, 127)},
    "qnnpack": {"uint8": (0, 255), "int8": (-128, 127)},
    "reference": {"uint8": (0, 255), "int8": (-128, 127)},
}
OBSERVERS = (q.MinMaxObserver, q.HistogramObserver)


@pytest.mark.parametrize("kind", OBSERVERS)
@pytest.mark.parametrize("engine", RANGES)
def test_ranges_of_the_engines(engine: str, kind: Any) -> None:
    for dtype, wanted in RANGES[engine].items():
        observer = kind(dtype=dtype, engine=engine)
        assert observer.range == wanted and observer.dtype == dtype and dtype in repr(observer)
    assert kind().range == RANGES[backend.engine]["uint8"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=1, max_size=30), st.sampled_from(sorted(RANGES)),
    st.sampled_from(["uint8", "int8"]), st.booleans(),
)  # fmt: skip
def test_every_value_seen_is_covered(values: list[float], engine: str, dtype: str, symmetric: bool) -> None:
    x = np.array(values, np.float32)
    for observer in (q.MinMaxObserver(dtype, engine=engine, symmetric=symmetric),
                     q.HistogramObserver(100, dtype=dtype, engine=engine, symmetric=symmetric)):  # fmt: skip
        assert observer(x) is x
        scale, zero = observer.calculate_qparams()
        low, high = RANGES[engine][dtype]
        assert low <= zero <= high and (not symmetric or zero == (low + high + 1) // 2)
        made = q.quantize(x, scale, zero, dtype)
        assert low - 1 <= made.int_repr.min() and made.int_repr.max() <= high + 1
        error = np.abs(made.dequantize().astype(float) - x)
        assert (error <= 1.01 * scale).all()  # a half for the integer, a half for the zero point
        assert q.quantize(np.zeros(1), scale, zero, dtype).dequantize().item() == 0


@settings(max_examples=50, deadline=None)
@given(st.permutations(list(range(8))), st.integers(0, 2**32 - 1))
def test_the_order_of_values_does_not_matter(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(50) * 10.0 ** rng.integers(-4, 5) for _ in range(8)]
    for make in (q.MinMaxObserver, lambda: q.HistogramObserver(98)):
        one, other = make(), make()
        for i in range(8):
            one(parts[i])
            other(parts[order[i]])
        assert one.calculate_qparams() == other.calculate_qparams()


def test_a_histogram_leaves_out_what_is_rare() -> None:
    x = np.append(np.random.default_rng(0).standard_normal(100_000), [1e6, -1e6, 1e30])
    wide, narrow = q.HistogramObserver(100, engine="onednn"), q.HistogramObserver(99.9, engine="onednn")
    wide(x)
    with np.errstate(all="raise"):
        narrow(x[:-3])
        narrow(x[-3:-1])
    assert wide.calculate_qparams()[0] > 1e27
    scale, zero = narrow.calculate_qparams()
    assert scale < 300 / 255 and 100 < zero < 156  # bins are as wide as the outliers need


def test_an_axis_has_ranges_of_its_own() -> None:
    observer = q.MinMaxObserver("int8", engine="onednn", symmetric=True, axis=-2)
    observer(np.array([[1.0, -2.0], [0.5, 0.25]]))
    observer(np.array([[0.0, 0.0], [0.0, -4.0]]))
    scale, zero = observer.calculate_qparams()
    np.testing.assert_array_equal(scale, np.array([2, 4], np.float32) / np.float32(127))
    assert zero.tolist() == [0, 0]
    with pytest.raises(BadValue, match="3 indices along axis -2, 2 before"):
        observer(np.zeros((3, 2)))


def test_nothing_but_zeros_and_nothing_at_all() -> None:
    for kind in OBSERVERS:
        observer = kind(engine="onednn")
        with pytest.raises(BadValue, match="has seen no value"):
            observer.calculate_qparams()
        observer(np.zeros(3))
        assert observer.calculate_qparams() == (1.0, 0)
    tiny = q.MinMaxObserver(engine="onednn")
    tiny(np.array([1e-300]))
    assert tiny.calculate_qparams() == (2.0**-126, 0)


@pytest.mark.parametrize("engine", RANGES)
def test_weights_as_engines_take_them(engine: str) -> None:
    w = np.random.default_rng(1).standard_normal((4, 3, 2)) * np.array([1.0, 10, 0, 0.1])[:, None, None]
    made = q.quantize_weights(w.astype(np.float32), engine=engine)
    assert made.dtype == np.int8 and made.axis == (None if engine == "qnnpack" else 0) and not np.any(made.zero_point)
    assert made.int_repr.min() >= -127 and np.abs(made.int_repr).max() == 127
    step = np.broadcast_to(made.scales, 4)[:, None, None]
    assert (np.abs(made.dequantize() - w) <= 0.5001 * step).all()


def test_the_largest_float32_is_not_quantized_to_infinity() -> None:
    most = np.finfo(np.float32).max
    for x in (np.array([[most, 1.0]], np.float32), np.array([[-most, most / 3]], np.float32)):
        assert np.isfinite(q.quantize_weights(x).dequantize()).all()


def seen(value: float) -> Any:
    observer = q.MinMaxObserver()
    observer(np.array([value]))
    return observer


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: q.MinMaxObserver("int16"), BadType, "MinMaxObserver: dtype is int16"),
    (lambda: q.MinMaxObserver(engine="fbgem"), BadValue, "engine='fbgem'"),
    (lambda: q.MinMaxObserver(engine=3), BadType, "engine=3"),
    (lambda: q.MinMaxObserver(symmetric=1), BadType, "MinMaxObserver: symmetric"),
    (lambda: q.MinMaxObserver(axis=0.5), BadType, "axis=0.5"),
    (lambda: q.MinMaxObserver(axis=2)(np.zeros(2)), BadValue, r"axis=2.*\(2,\)"),
    (lambda: seen(1e300).calculate_qparams(), BadValue, r"MinMaxObserver: values as large as 1e\+300"),
    (lambda: q.MinMaxObserver()(np.array([np.inf])), BadValue, r"shape \(1,\), holds infinity"),
    (lambda: q.MinMaxObserver()(np.array([np.nan])), BadValue, "holds NaN"),
    (lambda: q.HistogramObserver()(np.array([np.inf])), BadValue, "holds infinity"),
    (lambda: q.HistogramObserver()(np.array([1])), BadType, "x has dtype int64"),
    (lambda: q.HistogramObserver(0), BadValue, "percentile=0"),
    (lambda: q.HistogramObserver(101), BadValue, "percentile=101"),
    (lambda: q.HistogramObserver(float("nan")), BadValue, "percentile=nan"),
    (lambda: q.HistogramObserver("99"), BadType, "percentile='99'"),
    (lambda: q.quantize_weights(np.array(1.0)), BadValue, "no axis"),
    (lambda: q.quantize_weights(np.array([np.inf])), BadValue, "holds infinity"),
    (lambda: q.quantize_weights(np.zeros(2), engine="none"), BadValue, "engine='none'"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()
