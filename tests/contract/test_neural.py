"""Activations, softmax, normalisation and dropout: every library, dtype and layout against formulas in float64."""

from __future__ import annotations

import doctest
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from layers import DTYPES, FORMULAS, LAYOUTS, assert_near, by_each, draw, exact, order, wide

import backline
from backline import _core
from backline.errors import BadAxis, BadType, BadValue
from backline.nn import functional as F
from backline.nn import grad as G
from support import clean, dtype_of, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

OPS = "nn.functional."
INF, NAN = math.inf, math.nan

# Activations ---------------------------------------------------------------------------------------------------------


def called(name: str) -> tuple[str, dict[str, Any]]:
    return (f"{OPS}gelu", {"approximate": "tanh"}) if name == "gelu_tanh" else (f"{OPS}{name}", {})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMULAS)
def test_activations(name: str, dtype: str, rng: np.random.Generator) -> None:
    op, keywords = called(name)
    for shape in ((7, 300), (5,), (2, 3, 4, 5), (1,), (1, 40000)):
        x = draw(rng, shape, dtype)
        for what, result in by_each(op, x, **keywords):
            # In float64 the rounding of the exponential's argument shows: a few units of it, which is 708 at most. Vendors
            # approximate.
            ours = "numpy" in what or "kernels" in what
            assert_near(result, exact(name, x), dtype, what, 2000 if ours and dtype == "float64" else 4, 0.0 if ours else 8.0)


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("name", FORMULAS)
def test_activations_far_out(name: str, dtype: str) -> None:
    """To the ends of the range NumPy's are right to the last places, without a warning."""
    size = np.array([0.0, 1e-30, 1e-5, 0.4, 0.7, 3.0, 5.6, 6.0, 12.0, 20.0, 36.0, 88.0, 100.0, 700.0, 1e10, 1e30], dtype)
    x = np.concatenate([size, -size])
    op, keywords = called(name)
    problem_op = getattr(F, op.rpartition(".")[2])
    with backline.backends.flags(only=("numpy",)), warnings.catch_warnings():
        warnings.simplefilter("error")
        result = problem_op(x, **keywords)
    with np.errstate(all="ignore"):
        wanted = np.array([_safe(name, float(v)) for v in x])
    assert_near(result, wanted, dtype, name, 2000 if dtype == "float64" else 1)


def _safe(name: str, x: float) -> float:
    if abs(x) > 1e3:
        return {"tanh": math.copysign(1, x), "sigmoid": float(x > 0)}.get(name, max(x, 0.0))
    return float(FORMULAS[name](x))


def test_activations_of_what_is_not_finite() -> None:
    x = np.array([NAN, INF, -INF, -0.0], np.float32)
    wanted = {
        "relu": [NAN, INF, 0, 0], "gelu": [NAN, INF, NAN, 0], "gelu_tanh": [NAN, INF, NAN, 0], "silu": [NAN, INF, NAN, 0],
        "tanh": [NAN, 1, -1, 0], "sigmoid": [NAN, 1, 0, 0.5],
    }  # fmt: skip
    with backline.backends.flags(only=("numpy",)):
        for name, values in wanted.items():
            op, keywords = called(name)
            np.testing.assert_array_equal(getattr(F, op.rpartition(".")[2])(x, **keywords), values, err_msg=name)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("name", FORMULAS)
def test_a_nan_stays_one_in_every_library(name: str, dtype: str, rng: np.random.Generator) -> None:
    x = draw(rng, (3, 700), dtype)
    x[1, ::50] = NAN
    op, keywords = called(name)
    for what, result in by_each(op, x, **keywords):
        np.testing.assert_array_equal(np.isnan(wide(result)), np.isnan(wide(x)), err_msg=what)
    for op in ("softmax", "log_softmax"):
        for what, result in by_each(OPS + op, x, 1):
            assert np.isnan(wide(result)).all(1).tolist() == [False, True, False], what


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_a_result_keeps_the_order_of_axes(layout: str, dtype: str, rng: np.random.Generator) -> None:
    x = LAYOUTS[layout](draw(rng, (3, 4, 5, 6), dtype))
    w = draw(rng, (4,), dtype)
    plain = x.copy()
    calls: dict[str, tuple[Any, ...]] = {
        "relu": (), "gelu": (), "silu": (), "softmax": (1,), "log_softmax": (-1,), "layer_norm": ((5, 6),),
    }  # fmt: skip
    for name, more in calls.items():
        result = getattr(F, name)(x, *more)
        assert order(result) == order(x), name
        assert abs(np.array(result.strides)).min() == x.itemsize, f"{name} is not dense"
        # Another order may be another library's, and their logarithms differ.
        assert_near(result, wide(getattr(F, name)(plain, *more)), dtype, name, 32 if name == "log_softmax" else 8, 1.0)
    result = F.batch_norm(x, w, np.abs(w) + w.dtype.type(1), w, w)
    assert order(result) == order(x)
    near(result, F.batch_norm(plain, w, np.abs(w) + w.dtype.type(1), w, w), dtype, "batch_norm")
    assert order(F.batch_norm(x, None, None, training=True)) == order(x)
    assert order(F.dropout(x, 0.5, seed=1)) == order(x)


def near(result: Array, other: Array, dtype: str, what: str) -> None:
    assert_near(result, wide(other), dtype, what, 8, 1.0)


# Softmax ---------------------------------------------------------------------------------------------------------------


def softmax_by_hand(x: Array, axis: int) -> tuple[Array, Array]:
    y = np.asarray(x, np.longdouble)
    y = y - y.max(axis, keepdims=True)
    total = np.exp(y).sum(axis, keepdims=True)
    return (np.exp(y) / total).astype(np.float64), (y - np.log(total)).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(dtype: str, rng: np.random.Generator) -> None:
    for shape, dim in (((6, 50), 1), ((6, 50), 0), ((2, 3, 4), -2), ((9,), 0), ((3, 1), 1), ((2, 3, 17, 19), 1), ((2, 40000), 1)):
        x = draw(rng, shape, dtype, 5)
        plain, logarithm = softmax_by_hand(wide(x), dim)
        for what, result in by_each(f"{OPS}softmax", x, dim):
            ulps = 100 if "loops" not in what or dtype == "float64" else 2
            assert_near(result, plain, dtype, what, ulps, 0 if "loops" in what else 1e-3)
        for what, result in by_each(f"{OPS}log_softmax", x, dim):
            assert_near(result, logarithm, dtype, what, 4 if "loops" in what else 8, 1.0 if "loops" in what else float(np.abs(x).max()))


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_no_probability_is_above_one(dtype: str, rng: np.random.Generator) -> None:
    """And the logarithm of one near 1 keeps its digits: it is that of the sum of the others, however small that is."""
    info = np.finfo(dtype)
    for n in (1, 2, 3, 7, 16, 33, 65, 300):
        for scale in (1e-3, 1.0, 5.0, 25.0):
            x = (scale * rng.standard_normal((6, n))).astype(dtype)
            y = x.astype(np.longdouble)
            y -= y.max(1, keepdims=True)
            others = np.where(y == 0, 0, np.exp(y)).sum(1, keepdims=True) + ((y == 0).sum(1, keepdims=True) - 1)
            logarithm = y - np.log1p(others)
            for dim, laid in ((1, x), (0, np.ascontiguousarray(x.T)), (1, np.asfortranarray(x)), (1, x[::-1])):
                wanted = logarithm.T if dim == 0 else logarithm[::-1] if laid.strides[0] < 0 else logarithm
                for what, result in by_each(f"{OPS}log_softmax", laid, dim):
                    assert result.max() <= 0, what
                    off = np.abs(result - wanted)
                    assert (off <= (8 + n) * info.eps * np.maximum(np.abs(wanted), 1)).all(), what  # a sum of n
                    if "kernels" in what:  # an exponent off by a rounding has its result off by as many as it is large
                        assert (off <= (16 + 2 * np.abs(y).max()) * info.eps * np.abs(wanted) + 1e-37).all(), what
                for what, result in by_each(f"{OPS}softmax", laid, dim):
                    assert result.min() >= 0 and result.max() <= 1, what
                    assert np.abs(result.astype(np.longdouble).sum(dim) - 1).max() <= (8 + n) * info.eps, what
                # However the array lies, the compiled loop has a way.
                if laid.strides[0] > 0:
                    assert any("kernels" in what for what, _ in by_each(f"{OPS}log_softmax", laid, dim)) or n == 1


def test_activations_stay_in_their_range() -> None:
    x = np.concatenate([np.linspace(-200, 200, 4001), [INF, -INF, 1e38, -1e38, 1e-45]]).astype(np.float32)
    for name, low, high in (("tanh", -1, 1), ("sigmoid", 0, 1), ("relu", 0, INF)):
        for what, result in by_each(f"{OPS}{name}", x):
            assert result.min() >= low and result.max() <= high, what


def test_softmax_of_extremes() -> None:
    x = np.array([[1e38, -1e38, 0.0], [-INF, 0, -INF], [NAN, 0, 0], [INF, 0, 0], [-INF, -INF, -INF]], np.float32)
    nans = [NAN] * 3
    wanted = np.array([[1, 0, 0], [0, 1, 0], nans, nans, nans])
    np.testing.assert_array_equal(F.softmax(x, 1), wanted)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(F.log_softmax(x, 1)[1:], np.log(wanted)[1:])
    assert F.log_softmax(np.array([0.0, -1000.0]), 0)[1] == -1000
    for dtype in ("float32", "float64"):
        for more in (0, 2, 15, 30, 100):
            y = np.concatenate([x, np.full((5, more), -3.0)], 1).astype(dtype)
            for op in ("softmax", "log_softmax"):
                found = dict(by_each(f"{OPS}{op}", y, 1))
                wanted = found[next(what for what in found if "loops" in what)]
                for what, result in found.items():
                    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-30 if op == "softmax" else 1e-5, err_msg=what)


def test_softmax_of_every_length(rng: np.random.Generator) -> None:
    """Rows that end anywhere in the vectors, and those of one thread and of two."""
    for dtype in ("float32", "float64"):
        for shape in (*((3, n) for n in range(1, 70)), (2, 8193), (300, 300), (1, 100000)):
            x = draw(rng, shape, dtype, 4)
            ulps = 200 + shape[1] / 16  # oneDNN adds up an eighth of a row one by one, each with half an ulp of the sum
            for op, wanted in zip(("softmax", "log_softmax"), softmax_by_hand(wide(x), 1), strict=True):
                for what, result in by_each(f"{OPS}{op}", x, 1):
                    assert_near(result, wanted, dtype, what, ulps, 1e-3 if op == "softmax" else float(np.abs(x).max()) / 16)


# Normalisation ---------------------------------------------------------------------------------------------------------


def normalised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    y = np.asarray(x, np.longdouble)
    y = y - y.mean(axes, keepdims=True)
    return y / np.sqrt((y * y).mean(axes, keepdims=True) + eps)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_the_dtype_of_softmax(op: str, rng: np.random.Generator) -> None:
    function = getattr(F, op)
    for given in (*DTYPES, "int8", "uint64", "bool"):
        x = rng.integers(0, 5, (3, 4, 5)).astype(dtype_of(given))
        for dtype in DTYPES:
            wanted = function(x.astype(dtype_of(dtype)), 1)
            for name in (dtype_of(dtype), dtype, dtype_of(dtype).type):
                result = function(x, dim=1, dtype=name)
                assert result.dtype == dtype_of(dtype)
                np.testing.assert_array_equal(result, wanted, err_msg=f"{given} as {dtype}")
    x = rng.standard_normal((4, 6))[::-2, ::3]
    np.testing.assert_array_equal(function(x, 0, dtype=np.float32), function(x.astype(np.float32), 0))
    np.testing.assert_array_equal(function(x.astype(">f8"), 0, dtype=np.float32), function(x.astype(np.float32), 0))
    said = ("input f64 -> f32",)
    assert backline.explain().problem.converted == backline.explain(function, x, 0, dtype=np.float32).problem.converted == said
    function(x.astype(np.float32), 0, dtype=np.float32)
    assert backline.explain().problem.converted == ()


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_without_an_axis_warns_each_time(op: str, rng: np.random.Generator) -> None:
    function = getattr(F, op)
    for rank, axis in ((1, 0), (2, 1), (3, 0), (4, 1), (5, 1)):
        x = rng.standard_normal((2, 3, 4, 5, 2)[:rank])
        for more in ({}, {"dim": None}, {"dtype": np.float64}):
            with pytest.warns(UserWarning, match=f"Implicit dimension choice for {op} has been deprecated") as caught:
                result = function(x, **more)
            assert caught[0].filename == __file__
            np.testing.assert_array_equal(result, function(x, axis))


def test_softmax_of_no_axis() -> None:
    for number, wanted in ((3.0, (1.0, 0.0)), (np.inf, (np.nan, np.nan)), (np.nan, (np.nan, np.nan))):
        for dtype in DTYPES:
            x = np.array(number, dtype_of(dtype))
            for dim in (0, -1):
                for op, value in zip((F.softmax, F.log_softmax), wanted, strict=True):
                    result = op(x, dim)
                    assert result.shape == () and result.dtype == x.dtype
                    np.testing.assert_array_equal(wide(result), value)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_relu_of_integers(dtype: str, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (5, 7), dtype, endpoint=True)
    for given in (x, x.T, x[::-1, ::2], x.astype(x.dtype.newbyteorder(">")), x[:0], x[:1, 0].reshape(())):
        for what, result in by_each("nn.functional.relu", np.asarray(given, dtype)):
            np.testing.assert_array_equal(result, np.maximum(given, 0), err_msg=what)
        result = F.relu(given)
        assert result.dtype == np.dtype(dtype) and result.dtype.isnative


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype: str, rng: np.random.Generator) -> None:
    for shape, last in (((5, 40), 1), ((3, 4, 5), 2), ((2, 3, 4), 3), ((7,), 1), ((2, 50, 800), 1)):
        x = draw(rng, shape, dtype) + dtype_of(dtype).type(3)
        w, b = draw(rng, shape[-last:], dtype), draw(rng, shape[-last:], dtype)
        plain = normalised(wide(x), tuple(range(-last, 0)), 1e-3)
        for given in ((None, None), (w, None), (None, b), (w, b)):
            wanted = plain * (1 if given[0] is None else wide(w)) + (0 if given[1] is None else wide(b))
            for what, result in by_each(f"{OPS}layer_norm", x, shape[-last:], *given, eps=1e-3):
                assert_near(result, wanted.astype(np.float64), dtype, what, 8, 4.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: str, rng: np.random.Generator) -> None:
    for shape, last in (((5, 40), 1), ((3, 4, 5), 2), ((2, 3, 4), 3), ((7,), 1), ((2, 50, 800), 1), ((0, 3), 1), ((2, 1), 1)):
        x, w = draw(rng, shape, dtype), draw(rng, shape[-last:], dtype)
        for eps in (None, 1e-3):
            added = (2.0**-52 if dtype == "float64" else 2.0**-23) if eps is None else eps
            plain = wide(x) / np.sqrt((wide(x) ** 2).mean(tuple(range(-last, 0)), keepdims=True) + added)
            for weight, wanted in ((None, plain), (w, plain * wide(w))):
                for what, result in by_each(f"{OPS}rms_norm", x, shape[-last:], weight, eps):
                    assert_near(result, wanted.astype(np.float64), dtype, what, 8, 1.0)
    for bad, match in (((x, 3), r"rms_norm: normalized_shape=\(3,\)"), ((x, 1, w[:0]), r"rms_norm: weight has shape \(0,\)")):
        with pytest.raises(BadValue, match=match):
            F.rms_norm(*bad)
    with pytest.raises(BadValue, match="rms_norm: eps=-1"):
        F.rms_norm(x, 1, eps=-1.0)


def test_normalisation_far_from_zero_does_not_cancel(rng: np.random.Generator) -> None:
    """Two passes: the variance of large numbers close to each other is right."""
    x = (1e4 + rng.standard_normal((4, 1000))).astype(np.float32)
    with backline.backends.flags(only=("numpy",)):
        assert_near(F.layer_norm(x, 1000), normalised(wide(x), (1,), 1e-5).astype(np.float64), "float32", "layer_norm", 2, 1.0)
        y = F.batch_norm(x.T.copy(), None, None, training=True)
    assert_near(y, normalised(wide(x.T), (0,), 1e-5).astype(np.float64), "float32", "batch_norm", 2, 1.0)


def test_float32_parameters_beside_halves(rng: np.random.Generator) -> None:
    x, w = draw(rng, (4, 6), "float16"), draw(rng, (6,), "float32")
    wanted = normalised(wide(x), (1,), 1e-5) * w
    assert_near(F.layer_norm(weight=w, input=x, normalized_shape=6), wanted.astype(np.float64), "float16", "layer_norm", 2, 1.0)
    mean, variance = np.zeros(6, np.float32), np.ones(6, np.float32)
    y = F.batch_norm(x, mean, variance, w, training=True, momentum=1.0)
    assert_near(y, (normalised(wide(x), (0,), 1e-5) * w).astype(np.float64), "float16", "batch_norm", 2, 1.0)
    assert_near(variance, wide(x).var(0, ddof=1), "float32", "variance", 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4), (1, 3, 4), (3, 3, 100, 130)])
def test_batch_norm(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x, (w, b, mean) = draw(rng, shape, dtype) + dtype_of(dtype).type(2), (draw(rng, (3,), dtype) for _ in range(3))
    variance = np.abs(draw(rng, (3,), dtype)) + dtype_of(dtype).type(0.5)

    def over(v: Array) -> Array:
        return wide(v).reshape(-1, *[1] * (len(shape) - 2))

    wanted = (wide(x) - over(mean)) / np.sqrt(over(variance) + 1e-2) * over(w) + over(b)
    for what, result in by_each(f"{OPS}batch_norm", x, mean, variance, w, b, eps=1e-2):
        assert_near(result, wanted, dtype, what, 8, 8.0)
    axes = (0, *range(2, len(shape)))
    before = mean.copy(), variance.copy()
    result = F.batch_norm(x, mean, variance, w, b, True, 0.25, 1e-2)
    wanted = normalised(wide(x), axes, 1e-2).astype(np.float64) * over(w) + over(b)
    assert_near(result, wanted, dtype, "training", 128 if dtype == "float32" else 8, 8.0)  # float32 may be added up as such
    assert_near(mean, 0.75 * wide(before[0]) + 0.25 * wide(x).mean(axes), dtype, "mean", 64 if dtype == "float32" else 4, 1.0)
    assert_near(variance, 0.75 * wide(before[1]) + 0.25 * wide(x).var(axes, ddof=1), dtype, "variance", 64 if dtype == "float32" else 4, 1.0)


def test_training_updates_running_arrays_of_any_strides_and_only_if_it_succeeds() -> None:
    x = np.array([[1.0, 5.0], [3.0, 5.0]])
    memory = np.zeros(4)
    F.batch_norm(x, memory[::2], None, training=True, momentum=0.5)
    assert memory.tolist() == [1, 0, 2.5, 0]
    with pytest.raises(BadValue, match="one value for each channel"):
        F.batch_norm(x[:1], memory[::2], None, training=True)
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    with pytest.raises(BadValue, match="running_mean is read-only"):
        F.batch_norm(x, fixed, None, training=True)
    assert F.batch_norm(x, fixed, np.ones(2)).shape == x.shape  # inference only reads
    assert memory.tolist() == [1, 0, 2.5, 0]


# Dropout -----------------------------------------------------------------------------------------------------------------


def test_dropout_is_repeatable_and_fair(rng: np.random.Generator) -> None:
    x = draw(rng, (200, 300), "float32")
    y = F.dropout(x, 0.3, seed=5)
    kept = y != 0
    assert abs(kept.mean() - 0.7) < 0.01
    assert_near(y[kept], wide(x)[kept] / 0.7, "float32", "kept", 2)
    np.testing.assert_array_equal(y, F.dropout(np.asfortranarray(x), 0.3, seed=np.random.default_rng(5)))
    assert (F.dropout(x, 0.3, seed=6) != y).any()
    half = F.dropout(x.astype(np.float16), 0.3, seed=5)
    assert ((half != 0) == (kept & (x.astype(np.float16) != 0))).all()
    generator = np.random.default_rng(1)
    assert (F.dropout(x, 0.5, seed=generator) != F.dropout(x, 0.5, seed=generator)).any()


def test_dropout_without_anything_to_drop() -> None:
    x = np.array([1.0, NAN, INF])
    for y in (F.dropout(x, 0.0), F.dropout(x, 0.5, training=False), F.dropout(x, 0.5, False, seed=1)):
        np.testing.assert_array_equal(y, x)
        assert not np.shares_memory(x, y)
    np.testing.assert_array_equal(F.dropout(x, 1.0, seed=0), [0, NAN, NAN])


# What is refused -----------------------------------------------------------------------------------------------------------

X, W = np.ones((2, 3), np.float32), np.ones(3, np.float32)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: F.relu([1.0]), BadType, "relu: input must be a NumPy array"),
    (lambda: F.relu(np.ones(3, bool)), BadType, "relu: input has dtype bool"),
    (lambda: F.silu(np.ones(3, complex)), BadType, "silu: input has dtype complex128"),
    (lambda: F.gelu(X, "fast"), BadValue, "gelu: approximate='fast'"),
    (lambda: F.gelu(X, 1), BadType, "gelu: approximate is a str"),
    (lambda: F.softmax(X, 2), BadValue, r"softmax: dim=2, and input of shape \(2, 3\) has 2 dimensions"),
    (lambda: F.log_softmax(X, 1.0), BadType, "log_softmax: dim is an int, not 1.0"),
    (lambda: F.softmax(np.ones(()), 1), BadAxis, "softmax: dim=1"),
    (lambda: F.softmax(X, 0, dtype=int), BadType, "softmax requires a floating point or complex dtype, not int64"),
    (lambda: F.softmax(X, 0, dtype="none"), BadType, "softmax: dtype is 'none'"),
    (lambda: F.softmax(X * 1j, 0, dtype=np.float32), BadType, "softmax: input has dtype complex64"),
    (lambda: F.log_softmax(np.ones(3, int), 0), BadType, "log_softmax: input has dtype int64"),
    (lambda: F.layer_norm(X, 2), BadValue, r"layer_norm: normalized_shape=\(2,\) for input of shape \(2, 3\)"),
    (lambda: F.layer_norm(X, ()), BadValue, r"layer_norm: normalized_shape=\(\)"),
    (lambda: F.layer_norm(X, 3, W[:2]), BadValue, r"layer_norm: weight has shape \(2,\)"),
    (lambda: F.layer_norm(X, 3, W.astype(float)), BadType, "layer_norm: weight has dtype float64"),
    (lambda: F.layer_norm(X, 3, eps=-1), BadValue, "layer_norm: eps=-1"),
    (lambda: F.layer_norm(X, 3, eps="0"), BadType, "layer_norm: eps is a number"),
    (lambda: F.batch_norm(X, None, W), BadValue, "batch_norm: no running_mean"),
    (lambda: F.batch_norm(X, W, None), BadValue, "batch_norm: no running_var"),
    (lambda: F.batch_norm(X[0], W, W), BadValue, r"batch_norm: input must have shape \(N, C, ...\)"),
    (lambda: F.batch_norm(X, W, W[:2]), BadValue, r"batch_norm: running_var has shape \(2,\)"),
    (lambda: F.batch_norm(X, W, W, bias=np.ones(3)), BadType, "batch_norm: bias has dtype float64"),
    (lambda: F.batch_norm(X, W, W, momentum=2), BadValue, "batch_norm: momentum=2"),
    (lambda: F.batch_norm(X, W, W, training=1), BadType, "batch_norm: training is True or False"),
    (lambda: F.dropout(X, 1.5, seed=0), BadValue, "dropout: p=1.5"),
    (lambda: F.dropout(X, 0.5), BadValue, "dropout without a seed"),
    (lambda: F.dropout(X, 0.5, seed="a"), BadType, "dropout: seed is an int or a numpy.random.Generator"),
    (lambda: F.dropout(X, 0.5, seed=-1), BadValue, "dropout: seed=-1"),
    (lambda: F.relu(X, nothing=1), TypeError, "unexpected keyword argument 'nothing'"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (2, 0, 4)])
def test_empty_in_empty_out(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        assert getattr(F, name)(x).shape == shape
    assert F.softmax(x, 0).shape == F.log_softmax(x, -1).shape == F.layer_norm(x, shape[-1]).shape == shape
    assert F.dropout(x, 0.5, seed=1).shape == shape
    if len(shape) > 1:
        w = np.ones(shape[1], np.float32)
        running = w.copy()
        assert F.batch_norm(x, w, w).shape == F.batch_norm(x, running, w.copy(), training=True).shape == shape
        np.testing.assert_array_equal(running, w)


def test_a_scalar_array_is_an_array() -> None:
    y = F.relu(np.array(-2.0))
    assert isinstance(y, np.ndarray) and y.shape == () and y == 0


# As operations -------------------------------------------------------------------------------------------------------------

PUBLIC = {f"{module.__name__}.{name}": getattr(module, name) for module in (F, G) for name in module.__all__}
COMPILED = {name: op for name, op in PUBLIC.items() if isinstance(op, _core.Operation)}


@pytest.mark.parametrize("name", COMPILED)
def test_the_examples_of_operations_run(name: str) -> None:
    text = COMPILED[name].__doc__
    assert text
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert len(test.examples) >= 2
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert not doctest.DocTestRunner(optionflags=flags).run(test, out=report.append).failed, "".join(report)


def test_operations_are_known_by_their_public_names() -> None:
    for name, op in PUBLIC.items():
        if not isinstance(op, type):
            assert f"{op.__module__}.{op.__qualname__}" == name
            assert pickle.loads(pickle.dumps(op)) is op
        assert op.__doc__ and ("Examples" in op.__doc__ or isinstance(op, type)), name


def test_explain_tells_what_runs() -> None:
    choice = backline.explain(F.batch_norm, X, None, None, training=True)
    assert choice.problem.op == "batch_norm_train" and choice.library
    assert backline.explain("nn.functional.batch_norm", X, W, W).problem.op == "batch_norm"
    F.relu(X)
    assert backline.explain().problem.key == "relu f32 2x3"


@pytest.mark.parametrize("op", ["softmax", "gelu", "layer_norm", "batch_norm"])
def test_benchmark_measures_layers(op: str, rng: np.random.Generator) -> None:
    x, w = draw(rng, (4, 6, 5, 5), "float32"), np.ones(6, np.float32)
    calls: dict[str, Any] = {
        "softmax": lambda: F.softmax(x, 1), "gelu": lambda: F.gelu(x), "layer_norm": lambda: F.layer_norm(x, 5),
        "batch_norm": lambda: F.batch_norm(x, w, w, w, w),
    }  # fmt: skip
    plain = calls[op]()
    with backline.backends.flags(benchmark=True):
        near(calls[op](), plain, "float32", op)
