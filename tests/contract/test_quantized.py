"""Linear layers and convolutions on int8: every integer against fractions, by the engine "reference", and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import integers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backline
from backline import libraries, switches
from backline import quantized as q
from backline.backends import quantized as backend
from backline.errors import BackendUnavailable, BadType, BadValue, NoKernel
from backline.libraries import quantized_engines
from backline.libraries.base import Algorithm
from backline.problems.op_registry import operations
from backline.problems.quantized_problem import QuantizedProblem
from backline.quantized.schemes import SCHEMES
from support import algorithms, clean

Array = Any
pytestmark = pytest.mark.usefixtures("clean", "by_reference")
assert clean

KINDS = ("uint8", "int8")


@pytest.fixture
def by_reference() -> Iterator[None]:
    """Weights packed here are packed by the exact engine in NumPy."""
    with backend.flags(engine="reference"):
        yield


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    low, high = integers.LIMITS[dtype]
    return rng.integers(low, high, shape, dtype, endpoint=True)


def activations(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    return q.QArray(whole(rng, shape, dtype), rng.uniform(0.001, 0.1), int(whole(rng, (), dtype)))


def weights(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "int8", axis: int | None = 0) -> Any:
    size = () if axis is None else (shape[0],)
    return q.QArray(whole(rng, shape, dtype), rng.uniform(0.001, 0.1, size), whole(rng, size, dtype), axis)


def output(rng: np.random.Generator, terms: int, dtype: str) -> tuple[float, int]:
    return float(np.float32(rng.uniform(0.02, 0.3) * terms**0.5)), int(whole(rng, (), dtype))


def by_each(op: str, *args: Any) -> list[tuple[str, Array]]:
    """The integers of every algorithm, those of the public call first."""
    made = getattr(q, op)(*args)
    found = [("call", made.int_repr if isinstance(made, q.QArray) else made)]
    problem = operations[f"quantized.{op}"].build(*args)
    arguments = getattr(q.ops, f"for_{op.removeprefix('linear_')}")(*args)  # type: ignore[attr-defined]  # found by its name
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    names = set()
    for algorithm in algorithms("numpy", problem):
        names.add(algorithm.name)
        found.append((algorithm.name, libraries.get("numpy").prepare(problem, algorithm)(*arrays)))
    assert names == {"exact", "loops"}
    return found


def same(found: list[tuple[str, Array]], wanted: Array) -> None:
    for what, result in found:
        assert result.dtype == wanted.dtype and result.shape == wanted.shape, what
        np.testing.assert_array_equal(result, wanted, what)


# Exactness ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.sampled_from(KINDS), st.sampled_from([None, 0]), st.booleans())
def test_linear(seed: int, dtype: str, kind: str, axis: int | None, biased: bool) -> None:
    rng = np.random.default_rng(seed)
    lead = ((), (1,), (5,), (2, 3))[rng.integers(4)]
    terms, outs = int(rng.integers(1, 40)), int(rng.integers(1, 7))
    x, w = activations(rng, (*lead, terms), dtype), weights(rng, (outs, terms), kind, axis)
    bias = rng.standard_normal(outs).astype(np.float32) * np.float32(10.0 ** rng.integers(-3, 9)) if biased else None
    packed = q.linear_prepack(w, bias)
    scale, zero = output(rng, terms, dtype)
    if bias is not None and (np.abs(bias) / (x.scale * w.scales.astype(np.float64))).max() > 2**31 - 1:
        with pytest.raises(BadValue, match=r"units of x\.scale"):
            q.linear(x, packed, scale, zero)
        return
    same(by_each("linear", x, packed, scale, zero), integers.linear(x, w, bias, scale, zero))
    made = q.linear(x, packed, scale, zero)
    assert made.scale == scale and made.zero_point == zero and made.axis is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.sampled_from([None, 0]), st.booleans())
def test_linear_dynamic(seed: int, kind: str, axis: int | None, biased: bool) -> None:
    rng = np.random.default_rng(seed)
    terms, outs = int(rng.integers(1, 40)), int(rng.integers(1, 7))
    x = (rng.standard_normal((3, terms)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    w = weights(rng, (outs, terms), kind, axis)
    bias = rng.standard_normal(outs).astype(np.float32) if biased else None
    observer = q.MinMaxObserver(engine="reference")
    quantized = q.quantize(x, *observer_of(observer, x))
    same(by_each("linear_dynamic", x, q.linear_prepack(w, bias)), integers.linear_real(quantized, w, bias))


def observer_of(observer: Any, x: Array) -> Any:
    observer(x)
    return observer.calculate_qparams()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.sampled_from(KINDS), st.sampled_from([None, 0]), st.booleans())
def test_conv2d(seed: int, dtype: str, kind: str, axis: int | None, biased: bool) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(1, 4))
    outs, channels = groups * int(rng.integers(1, 3)), int(rng.integers(1, 3))
    kernel = tuple(int(n) for n in rng.integers(1, 4, 2))
    stride, padding, dilation = (tuple(int(n) for n in rng.integers(low, high, 2)) for low, high in ((1, 3), (0, 3), (1, 3)))
    x = activations(rng, (int(rng.integers(1, 3)), groups * channels, 6, 5), dtype)
    if any(n + 2 * p < d * (k - 1) + 1 for n, p, d, k in zip((6, 5), padding, dilation, kernel, strict=True)):
        return
    w = weights(rng, (outs, channels, *kernel), kind, axis)
    bias = rng.standard_normal(outs).astype(np.float32) if biased else None
    packed = q.conv2d_prepack(w, bias, stride, padding, dilation, groups)
    scale, zero = output(rng, channels * kernel[0] * kernel[1], dtype)
    wanted = integers.conv2d(x, w, bias, stride, padding, dilation, groups, scale, zero)
    same(by_each("conv2d", x, packed, scale, zero), wanted)


def test_the_longest_sums_stay_exact() -> None:
    """2**20 products of 255 and -255: beyond int32, and beyond what float32 holds."""
    terms = 1 << 20
    x = q.QArray(np.full((1, terms), 255, np.uint8), 1.0, 0)
    w = q.QArray(np.stack([np.full(terms, 0, np.uint8), np.full(terms, 255, np.uint8)]), 1.0, [255, 0], 0)
    bias = np.array([65025.0, -65025.0], np.float32)
    total = 65025 * (terms - 1)
    step = float(np.float32(total / 100))
    wanted = np.array([[integers.rescaled(s, integers.Fraction(1), step, 0, "uint8") for s in (-total, total)]], np.uint8)
    same(by_each("linear", x, q.linear_prepack(w, bias), step, 0), wanted)
    same(by_each("linear_dynamic", np.full((1, terms), 255, np.float32), q.linear_prepack(w)), np.array([[-65025.0 * terms, 65025.0 * terms]], np.float32))
    with pytest.raises(BadValue, match="1048577 terms a sum"):
        q.linear_prepack(q.QArray(np.zeros((1, terms + 1), np.int8), 1.0))


def test_many_rows_and_outputs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries.reference import reference_quantized

    rng = np.random.default_rng(2)
    x, w = activations(rng, (23, 7), "uint8"), weights(rng, (11, 7))
    packed = q.linear_prepack(w, np.ones(11, np.float32))
    wanted = integers.linear(x, w, np.ones(11, np.float32), 0.25, 9)
    monkeypatch.setattr(reference_quantized, "CHUNK", 8 * 11 * 3)
    same(by_each("linear", x, packed, 0.25, 9)[1:], wanted)


def test_layouts_of_the_input() -> None:
    rng = np.random.default_rng(3)
    w, packed_input = weights(rng, (4, 6)), activations(rng, (5, 6), "int8")
    packed = q.linear_prepack(w)
    wanted = integers.linear(packed_input, w, None, 0.5, 1)
    for form in (np.asfortranarray, lambda a: np.repeat(a, 2, 1)[:, ::2], lambda a: a[::-1].copy()[::-1]):
        x = q.QArray(form(packed_input.int_repr), packed_input.scale, packed_input.zero_point)
        same(by_each("linear", x, packed, 0.5, 1), wanted)
    image, kernel = activations(rng, (2, 3, 4, 4), "uint8"), q.conv2d_prepack(weights(rng, (2, 3, 2, 2)))
    last = q.QArray(np.ascontiguousarray(image.int_repr.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), image.scale, image.zero_point)
    same(by_each("conv2d", last, kernel, 0.5, 1), q.conv2d(image, kernel, 0.5, 1).int_repr)


@pytest.mark.parametrize(("rows", "terms", "outs"), [(0, 4, 2), (3, 0, 2), (3, 4, 0), (0, 0, 0)])
def test_empty(rows: int, terms: int, outs: int) -> None:
    x = q.QArray(np.ones((2, rows, terms), np.uint8), 1.0, 0)
    packed = q.linear_prepack(q.QArray(np.ones((outs, terms), np.int8), 1.0), np.full(outs, 3, np.float32))
    same(by_each("linear", x, packed, 1.0, 5), np.full((2, rows, outs), 8 + terms, np.uint8))
    same(by_each("linear_dynamic", np.zeros((2, rows, terms), np.float32), packed), np.full((2, rows, outs), 3, np.float32))
    images = q.QArray(np.ones((rows, 2, 3, 3), np.uint8), 1.0, 0)
    assert q.conv2d(images, q.conv2d_prepack(q.QArray(np.ones((outs, 2, 3, 3), np.int8), 1.0)), 1.0, 0).shape == (rows, outs, 1, 1)


def test_new_scales_need_no_new_plan() -> None:
    from backline.engine import plan_caches

    rng = np.random.default_rng(4)
    x, packed = activations(rng, (3, 4), "uint8"), q.linear_prepack(weights(rng, (2, 4)))
    q.linear(x, packed, 0.5, 1)
    before = plan_caches.cache("numpy").misses
    for n in range(1, 20):
        q.linear(q.QArray(x.int_repr, n / 100, n), packed, n / 10, n)
    assert plan_caches.cache("numpy").misses == before


# Engines --------------------------------------------------------------------------------------------------------------


def test_a_packed_weight_stays_with_its_engine() -> None:
    """And it serves linear and linear_dynamic, one after the other."""
    rng = np.random.default_rng(6)
    w, x = weights(rng, (3, 8)), activations(rng, (4, 8), "uint8")
    real = rng.standard_normal((4, 8)).astype(np.float32)
    with backend.flags(engine="reference"):
        packed, kernel = q.linear_prepack(w), q.conv2d_prepack(weights(rng, (2, 1, 2, 2)))
        static, dynamic = q.linear(x, packed, 0.5, 3).int_repr, q.linear_dynamic(real, packed)
    with backend.flags(engine="fbgemm"):
        assert packed.engine == kernel.engine == "reference"
        np.testing.assert_array_equal(q.linear(x, packed, 0.5, 3).int_repr, static)
        np.testing.assert_array_equal(q.linear_dynamic(real, packed), dynamic)
        np.testing.assert_array_equal(q.linear(x, packed, 0.5, 3).int_repr, static)
        q.conv2d(activations(rng, (1, 1, 4, 4), "int8"), kernel, 0.5, 3)
        other = q.linear_prepack(q.quantize_weights(w.dequantize()))
    assert other.engine == "fbgemm"
    with backend.flags(engine="reference"):
        q.linear(x, other, 0.5, 3)
        assert backline.explain().problem.parameter("engine") == "fbgemm"


def test_engines_take_the_weights_of_their_scheme() -> None:
    rng = np.random.default_rng(7)
    for name in ("fbgemm", "qnnpack"):
        with backend.flags(engine=name):
            assert q.linear_prepack(q.quantize_weights(rng.standard_normal((3, 4)))).engine == name
            with pytest.raises(BadType, match=rf"weight has dtype uint8.*\n.*{name!r} takes int8"):
                q.linear_prepack(weights(rng, (3, 4), "uint8"))
    assert set(SCHEMES) == set(quantized_engines._ORDER)


def test_an_engine_of_the_environment_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_engines, "reason", lambda name: "" if name == "reference" else "gone")
    from backline.quantized import schemes

    monkeypatch.setattr(schemes.switches, "get", lambda name: "fbgemm")
    with pytest.raises(BackendUnavailable, match=r"linear_prepack: quantized\.engine is 'fbgemm'.*\n.*gone\n.*'reference'"):
        q.linear_prepack(q.QArray(np.zeros((1, 1), np.int8), 1.0))


def test_a_prohibition_holds() -> None:
    x, packed = q.QArray(np.zeros((1, 1), np.uint8), 1.0), q.linear_prepack(q.QArray(np.zeros((1, 1), np.int8), 1.0))
    with backline.backends.numpy.flags(enabled=False), pytest.raises(NoKernel, match=r"numpy\.enabled"):
        q.linear(x, packed, 1.0, 0)


def test_one_thread_without_a_blas_that_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries.reference import numpy_threads, reference_linalg

    monkeypatch.setattr(reference_linalg, "blas_threads", lambda: 4)
    monkeypatch.setattr(numpy_threads, "_count", lambda: None)
    problem = operations["quantized.linear"].build(np.zeros((100, 100), np.uint8), np.zeros((100, 100), np.int8))
    assert [a.name for a in algorithms("numpy", problem, 1)] == ["loops"]
    assert all(isinstance(a, Algorithm) and a.level == "threads" for a in algorithms("numpy", problem, 4))


# A weight that is packed ------------------------------------------------------------------------------------------------


def test_what_is_packed_is_a_copy_that_nobody_writes_to() -> None:
    integers_of, bias = np.ones((2, 3), np.int8), np.ones(2, np.float32)
    packed = q.linear_prepack(q.QArray(integers_of, 1.0), bias)
    x = q.QArray(np.ones((1, 3), np.uint8), 1.0)
    integers_of[...] = 9
    bias[...] = 9
    assert q.linear(x, packed, 1.0, 0).int_repr.tolist() == [[4, 4]]
    for held in (packed.weight.int_repr, packed.bias):
        with pytest.raises(ValueError, match="read-only"):
            held[...] = 0
    again, other = packed.unpack()
    again.int_repr[...] = 5
    other[...] = 5
    assert q.linear(x, packed, 1.0, 0).int_repr.tolist() == [[4, 4]] and packed.shape == (2, 3)
    assert repr(packed) == "<PackedLinear 2x3 int8, by engine 'reference'>"


# Asking ---------------------------------------------------------------------------------------------------------------


def test_explain_tells_of_them() -> None:
    x, packed = q.QArray(np.zeros((2, 4), np.uint8), 1.0), q.linear_prepack(q.QArray(np.zeros((3, 4), np.int8), 1.0))
    asked = backline.explain(q.linear, x, packed, 0.5, 1)
    assert isinstance(asked.problem, QuantizedProblem) and asked.library == "numpy" and "same bits" in str(asked)
    q.linear(x, packed, 0.5, 1)
    assert backline.explain().problem == asked.problem
    assert asked.problem.key == "quantized.linear u8 2x4 3x4 engine=reference" and asked.problem.flops == 48
    assert backline.explain(q.linear_dynamic, np.zeros((2, 4), np.float32), packed).problem.op == "quantized.linear_dynamic"


@pytest.mark.parametrize("key", [
    "quantized.linear u8 2x4 3x4 engine=reference", "quantized.linear_dynamic u8 2x4 3x4 engine=reference",
    "quantized.conv2d i8 2x4x5x5 6x2x3x3 engine=reference groups=2 padding=1,0 stride=2,2",
])  # fmt: skip
def test_a_key_reads_as_the_problem(key: str) -> None:
    from backline.problems import Problem

    assert Problem.parse(key).key == key and Problem.parse(key).family == "quantized"


def test_benchmark_measures_it() -> None:
    rng = np.random.default_rng(8)
    x, w = activations(rng, (6, 16), "uint8"), weights(rng, (4, 16))
    with backline.backends.flags(benchmark=True):
        same([("measured", q.linear(x, q.linear_prepack(w), 0.5, 3).int_repr)], integers.linear(x, w, None, 0.5, 3))
        assert "measured" in str(backline.explain())


# What is refused ------------------------------------------------------------------------------------------------------

X, W = q.QArray(np.ones((2, 3), np.uint8), 1.0), q.QArray(np.ones((4, 3), np.int8), 1.0)
IMAGE, KERNEL = q.QArray(np.ones((1, 4, 5, 5), np.uint8), 1.0), q.QArray(np.ones((4, 2, 3, 3), np.int8), 1.0)
REAL, BIAS = np.ones((2, 3), np.float32), np.ones(4, np.float32)


def conv(x: Any = IMAGE, **sizes: Any) -> Any:
    return q.conv2d(x, q.conv2d_prepack(KERNEL, None, **{"groups": 2, **sizes}), 1.0, 0)


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: q.linear_prepack(REAL), BadType, "linear_prepack: weight must be a QArray, not ndarray"),
    (lambda: q.linear_prepack(KERNEL), BadValue, r"weight must have shape \(out, in\), it has \(4, 2, 3, 3\)"),
    (lambda: q.linear_prepack(q.QArray(W.int_repr, [1, 1, 1], 0, 1)), BadValue, r"scales along axis 1, for shape \(4, 3\)"),
    (lambda: q.quantize_weights(np.array([[1e300, 1.0]])), BadValue, r"quantize_weights: values as large as 1e\+300\n.*past 3.403e\+38"),
    (
        lambda: q.linear(q.QArray(np.ones((1, 3), np.uint8), 1e-3), q.linear_prepack(W, BIAS + 1e8), 1.0, 0),
        BadValue, r"linear: the bias is up to .*e\+1\d units of x.scale \* weight.scale, with x.scale=0.001\n.*2147483647 units at most",
    ),
    (lambda: q.linear_prepack(W, BIAS[:2]), BadValue, r"bias has shape \(2,\), for weight of shape \(4, 3\)"),
    (lambda: q.linear_prepack(W, BIAS.astype(float)), BadType, "bias has dtype float64"),
    (lambda: q.linear_prepack(W, BIAS * np.nan), BadValue, r"bias, of shape \(4,\), holds NaN"),
    (lambda: q.linear_prepack(W, [1.0]), BadType, "bias must be a NumPy array"),
    (lambda: q.linear(REAL, q.linear_prepack(W), 1.0, 0), BadType, "linear: x must be a QArray"),
    (lambda: q.linear(X, W, 1.0, 0), BadType, "linear: packed must be a PackedLinear, not QArray"),
    (lambda: q.linear(X, q.conv2d_prepack(KERNEL), 1.0, 0), BadType, "not PackedConv2d"),
    (lambda: q.linear(q.QArray(W.int_repr.T, 1.0), q.linear_prepack(W), 1.0, 0), BadValue, r"x of shape \(3, 4\) and weight of shape \(4, 3\)"),
    (lambda: q.linear(q.QArray(np.array(1, np.uint8), 1.0), q.linear_prepack(W), 1.0, 0), BadValue, r"x of shape \(\)"),
    (lambda: q.linear(q.QArray(X.int_repr, [1, 1], 0, 0), q.linear_prepack(W), 1.0, 0), BadValue, "x has 2 scales along axis 0"),
    (lambda: q.linear(X, q.linear_prepack(W), 0.0, 0), BadValue, "linear: scale=0.0"),
    (lambda: q.linear(X, q.linear_prepack(W), float("inf"), 0), BadValue, "linear: scale=inf"),
    (lambda: q.linear(X, q.linear_prepack(W), [1.0], 0), BadValue, r"linear: scale has shape \(1,\)"),
    (lambda: q.linear(X, q.linear_prepack(W), 1.0, 256), BadValue, "linear: zero_point=256"),
    (lambda: q.linear(X, q.linear_prepack(W), 1.0, 0.5), BadType, "linear: zero_point=0.5"),
    (lambda: q.linear_dynamic(X, q.linear_prepack(W)), BadType, "linear_dynamic: x must be a NumPy array, not QArray"),
    (lambda: q.linear_dynamic(REAL.astype(float), q.linear_prepack(W)), BadType, "linear_dynamic: x has dtype float64"),
    (lambda: q.linear_dynamic(REAL * np.nan, q.linear_prepack(W)), BadValue, "linear_dynamic: x, of shape"),
    (lambda: q.linear_dynamic(np.full((2, 3), -np.inf, np.float32), q.linear_prepack(W)), BadValue, "holds infinity"),
    (lambda: q.linear_dynamic(REAL[:, :2], q.linear_prepack(W)), BadValue, r"x of shape \(2, 2\)"),
    (lambda: q.linear_dynamic(REAL, q.conv2d_prepack(KERNEL)), BadType, "not PackedConv2d"),
    (lambda: q.conv2d_prepack(W), BadValue, r"weight must have shape \(O, C / groups, h, w\), it has \(4, 3\)"),
    (lambda: q.conv2d_prepack(q.QArray(np.ones((4, 2, 0, 3), np.int8), 1.0)), BadValue, "kernel without elements"),
    (lambda: conv(stride=0), BadValue, "conv2d_prepack: stride=0"),
    (lambda: conv(stride=1.0), BadType, "conv2d_prepack: stride=1.0"),
    (lambda: conv(padding=(1, 1, 1)), BadValue, "conv2d_prepack: padding="),
    (lambda: conv(padding="same"), BadType, "conv2d_prepack: padding='same'"),
    (lambda: conv(dilation=-1), BadValue, "conv2d_prepack: dilation=-1"),
    (lambda: conv(groups=3), BadValue, "groups=3"),
    (lambda: conv(groups=True), BadType, "groups=True"),
    (lambda: conv(groups=1), BadValue, r"x of shape \(1, 4, 5, 5\) has 4 channels.*\n.*takes 2"),
    (lambda: conv(q.QArray(IMAGE.int_repr[0], 1.0)), BadValue, r"conv2d: x must have 4 dimensions"),
    (lambda: conv(dilation=9), BadValue, "conv2d"),
    (lambda: q.conv2d(IMAGE, q.linear_prepack(W), 1.0, 0), BadType, "conv2d: packed must be a PackedConv2d"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()


def test_the_switch_is_known() -> None:
    assert "quantized" in switches.lookup("quantized.engine").governs
