"""int8 by oneDNN and by our loop: every integer as the exact engine in NumPy has it, whatever layout, numbers and thread count."""

from __future__ import annotations

import copy
import ctypes
import itertools
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backline
from backline import _core, _kernels, backends, libraries
from backline import quantized as q
from backline.backends import quantized as backend
from backline.engine import plan_caches
from backline.errors import BadType, BadValue, NoKernel
from backline.libraries import capability, quantized_engines
from backline.libraries.kernels import int8_products, int8_steps
from backline.libraries.onednn import int8_sums
from backline.libraries.onednn import onednn_int8 as driven
from backline.libraries.reference import reference_requantize
from backline.problems.op_registry import operations
from backline.quantized import ops
from backline.quantized.checks import LEAST, MOST
from backline.quantized.observers import parameters_of_one
from support import algorithms, clean, need, new_seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean

KINDS, ENGINES = ("uint8", "int8"), ("x86", "onednn")
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}


def driven_by(name: str) -> Any:
    """The library; oneDNN where it adds up int8 exactly: some processors cannot."""
    library = need(name)
    if name == "onednn" and library.engine_reason("onednn"):
        pytest.skip(library.engine_reason("onednn"))
    return library


@pytest.fixture
def onednn() -> Any:
    return driven_by("onednn")


vnni = [pytest.mark.usefixtures("onednn"), pytest.mark.cpu_kernel]


def exact(test: Any) -> Any:
    """Decorator: the test needs kernels that oneDNN has for some processors only."""
    for mark in vnni:
        test = mark(test)
    return test


by_libraries = pytest.mark.parametrize("name", ["kernels", pytest.param("onednn", marks=pytest.mark.cpu_kernel)])


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, ends: bool = False) -> Array:
    low, high = LIMITS[dtype]
    if ends:
        return rng.choice(np.array([low, high], dtype), shape)
    return rng.integers(low, high, shape, dtype, endpoint=True)


def scale_of(rng: np.random.Generator, size: tuple[int, ...]) -> Any:
    """Any numbers, or powers of two: with those many sums lie in the middle between two integers."""
    return 2.0 ** rng.integers(-6, 2, size) if rng.random() < 0.4 else rng.uniform(0.001, 0.1, size)


def activations(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, last: bool = False) -> Any:
    made = whole(rng, shape, dtype, rng.random() < 0.2)
    if last:
        made = np.ascontiguousarray(made.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return q.QArray(made, float(scale_of(rng, ())), int(whole(rng, (), dtype, rng.random() < 0.3)))


def weights(rng: np.random.Generator, shape: tuple[int, ...], axis: int | None = 0, zeros: bool = False) -> Any:
    size = () if axis is None else (shape[0],)
    zero = whole(rng, size, "int8", rng.random() < 0.3) if zeros else np.zeros(size, np.int8)
    return q.QArray(whole(rng, shape, "int8", rng.random() < 0.2), scale_of(rng, size), zero, axis)


def biases(rng: np.random.Generator, outs: int, x: Any = None, w: Any = None) -> Array | None:
    """None, or anything from nothing to what int32 holds in units of the sums of `x` and `w`; without them, anything."""
    if rng.random() < 0.3:
        return None
    made = np.asarray(rng.standard_normal(outs) * 10.0 ** rng.integers(-3, 10)).astype(np.float32)
    return made if x is None else held(made, x.scale, w.scales.astype(np.float64).min())


def held(bias: Array, *scales: float) -> Array:
    """The bias, cut to what int32 holds in units of these scales."""
    most = (2**31 - 1) * float(np.prod(np.array(scales, np.float64)))
    limit = np.float32(min(most, float(np.finfo(np.float32).max)))
    limit = np.nextafter(limit, np.float32(0)) if float(limit) > most else limit
    return np.clip(bias, -limit, limit)


def both(pack: Any, engine: str, *args: Any) -> tuple[Any, Any]:
    with backend.flags(engine=engine):
        made = pack(*args)
    with backend.flags(engine="reference"):
        return made, pack(*args)


def by_each(op: str, library: Any, *args: Any) -> list[tuple[str, Array]]:
    """Returns what the public call gives, on 1 and 2 threads, and every algorithm."""
    found = []
    for threads in (1, 2):
        with backends.flags(num_threads=threads):
            made = getattr(q, op)(*args)
            found.append((f"call on {threads}", made.int_repr if isinstance(made, q.QArray) else made))
    problem = operations[f"quantized.{op}"].build(*args)
    arguments = getattr(ops, f"for_{op.removeprefix('linear_')}")(*args)
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    listed = algorithms(library.name, problem)
    assert listed and all(a.level == "threads" and a.basis == "construction" for a in listed)
    found += [(a.key, library.prepare(problem, a)(*arrays)) for a in listed]
    return found


def same(found: list[tuple[str, Array]], wanted: Array) -> None:
    for what, result in found:
        assert result.dtype == wanted.dtype and result.shape == wanted.shape, what
        np.testing.assert_array_equal(result, wanted, what)


SEEDS = st.integers(0, 2**32 - 1)


@by_libraries
@settings(max_examples=80, deadline=None)
@given(SEEDS, st.sampled_from(KINDS), st.sampled_from(ENGINES), st.sampled_from([None, 0]), st.booleans())
def test_linear(name: str, seed: int, dtype: str, engine: str, axis: int | None, zeros: bool) -> None:
    rng = np.random.default_rng(seed)
    lead = ((), (1,), (5,), (2, 3), (40,))[rng.integers(5)]
    terms, outs = int(rng.integers(1, 200)), int(rng.integers(1, 140))
    x, w = activations(rng, (*lead, terms), dtype), weights(rng, (outs, terms), axis, zeros)
    packed, reference = both(q.linear_prepack, engine, w, biases(rng, outs, x, w))
    scale, zero = float(np.float32(scale_of(rng, ()) * 10.0 ** rng.integers(-1, 3))), int(whole(rng, (), dtype))
    same(by_each("linear", driven_by(name), x, packed, scale, zero), q.linear(x, reference, scale, zero).int_repr)


@by_libraries
@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([None, 0]), st.booleans())
def test_linear_dynamic(name: str, seed: int, axis: int | None, zeros: bool) -> None:
    rng = np.random.default_rng(seed)
    terms, outs = int(rng.integers(1, 200)), int(rng.integers(1, 700))
    x = (rng.standard_normal((int(rng.integers(1, 9)), terms)) * 10.0 ** rng.integers(-30, 30)).astype(np.float32)
    packed, reference = both(q.linear_prepack, "onednn", weights(rng, (outs, terms), axis, zeros), biases(rng, outs))
    same(by_each("linear_dynamic", driven_by(name), x, packed), q.linear_dynamic(x, reference))


@by_libraries
@settings(max_examples=80, deadline=None)
@given(SEEDS, st.sampled_from(KINDS), st.sampled_from(ENGINES), st.sampled_from([None, 0]), st.booleans(), st.booleans())
def test_conv2d(name: str, seed: int, dtype: str, engine: str, axis: int | None, zeros: bool, last: bool) -> None:
    rng = np.random.default_rng(seed)
    groups, channels, part = ((1, 3, 20), (2, 4, 3), (8, 1, 1), (3, 1, 2), (1, 16, 64), (4, 1, 2))[rng.integers(6)]
    kernel = tuple(int(n) for n in rng.integers(1, 4, 2))
    stride, padding, dilation = (tuple(int(n) for n in rng.integers(low, high, 2)) for low, high in ((1, 4), (0, 4), (1, 3)))
    size = tuple(int(n) for n in rng.integers(5, 18, 2))
    x = activations(rng, (int(rng.integers(1, 4)), groups * channels, *size), dtype, last)
    w = weights(rng, (groups * part, channels, *kernel), axis, zeros)
    packed, reference = both(q.conv2d_prepack, engine, w, biases(rng, groups * part, x, w), stride, padding, dilation, groups)
    scale, zero = float(np.float32(scale_of(rng, ()) * 10.0 ** rng.integers(-1, 3))), int(whole(rng, (), dtype))
    wanted = q.conv2d(x, reference, scale, zero).int_repr
    found = by_each("conv2d", driven_by(name), x, packed, scale, zero)
    same(found, wanted)
    assert all(r.strides == wanted.strides for _, r in found)


@by_libraries
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_convolution_that_threads_share(name: str, dtype: str, last: bool) -> None:
    rng, library = np.random.default_rng(1), driven_by(name)
    x = activations(rng, (3, 16, 40, 41), dtype, last)
    w = weights(rng, (24, 16, 3, 3))
    packed, reference = both(q.conv2d_prepack, "onednn", w, biases(rng, 24, x, w), 1, 1)
    wanted = q.conv2d(x, reference, 3.0, 7).int_repr
    assert channels_last(wanted) is last
    problem = operations["quantized.conv2d"].build(x, packed, 3.0, 7)
    assert {a.threads for a in algorithms(name, problem)} == {1, 2}
    same(by_each("conv2d", library, x, packed, 3.0, 7), wanted)


def channels_last(images: Array) -> bool:
    return bool(images.transpose(0, 2, 3, 1).flags.c_contiguous)


@by_libraries
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("outs", [7, 64, 1000])
def test_a_product_that_threads_share(name: str, dtype: str, outs: int) -> None:
    rng = np.random.default_rng(2)
    x, w = activations(rng, (501, 333), dtype), weights(rng, (outs, 333), zeros=outs == 64)
    packed, reference = both(q.linear_prepack, "x86", w, biases(rng, outs, x, w))
    same(by_each("linear", driven_by(name), x, packed, 2.5, 3), q.linear(x, reference, 2.5, 3).int_repr)


# Nasty numbers ----------------------------------------------------------------------------------------------------------


@by_libraries
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("zero_at", [0, 1])
def test_the_longest_sums(name: str, dtype: str, zero_at: int) -> None:
    """So that int32 holds them only just; the limit is that of the engine, and told when a weight is packed."""
    terms, ends = int8_steps.MOST_TERMS, LIMITS[dtype]
    x = q.QArray(np.full((2, terms), ends[1 - zero_at], dtype), 1.0, ends[zero_at])
    w = np.stack([np.full(terms, -128, np.int8), np.full(terms, 127, np.int8)])
    bias = held(np.array([2.0**31, -(2.0**31)], np.float32), 1.0)
    for zeros in ([0, 0], [127, -128]):
        for b in (None, bias, bias * np.float32(1e-4)):
            packed, reference = both(q.linear_prepack, "onednn", q.QArray(w, 1.0, 0) if not any(zeros) else q.QArray(w, [1.0, 1.0], zeros, 0), b)
            for scale in (1.0, float(np.float32(255 * 255 * terms / 77)), float(np.float32(2.0**31))):
                same(by_each("linear", driven_by(name), x, packed, scale, ends[0]), q.linear(x, reference, scale, ends[0]).int_repr)
    for engine in ENGINES:
        with backend.flags(engine=engine), pytest.raises(BadValue, match=rf"{terms + 1} terms a sum.*\n.*{terms} at most.*\n.*reference"):
            q.linear_prepack(q.QArray(np.zeros((1, terms + 1), np.int8), 1.0))


@by_libraries
def test_scales_at_the_ends_of_float32(name: str) -> None:
    rng = np.random.default_rng(3)
    least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    x = whole(rng, (4, 20), "uint8")
    for first in (least, 1.0, most):
        for second in (least, 1.0, most):
            w = q.QArray(whole(rng, (18, 20), "int8"), np.full(18, second), 0, 0)
            bias = held(np.linspace(-most, most, 18).astype(np.float32), first, second)
            packed, reference = both(q.linear_prepack, "onednn", w, bias)
            for third in (least, 1.0, most):
                args = q.QArray(x, first, 128), packed, third, 5
                same(by_each("linear", driven_by(name), *args), q.linear(args[0], reference, third, 5).int_repr)


@by_libraries
@pytest.mark.parametrize(("rows", "terms", "outs"), [(0, 4, 2), (3, 0, 2), (3, 4, 0), (0, 0, 0)])
def test_empty(name: str, rows: int, terms: int, outs: int) -> None:
    with backend.flags(engine="onednn"):
        packed = q.linear_prepack(q.QArray(np.ones((outs, terms), np.int8), 1.0), np.full(outs, 3, np.float32))
        kernel = q.conv2d_prepack(q.QArray(np.ones((outs, 2, 3, 3), np.int8), 1.0))
    x = q.QArray(np.ones((2, rows, terms), np.uint8), 1.0, 0)
    same(by_each("linear", driven_by(name), x, packed, 1.0, 5), np.full((2, rows, outs), 8 + terms, np.uint8))
    same(by_each("linear_dynamic", driven_by(name), np.zeros((2, rows, terms), np.float32), packed), np.full((2, rows, outs), 3, np.float32))
    assert q.conv2d(q.QArray(np.ones((rows, 2, 3, 3), np.uint8), 1.0, 0), kernel, 1.0, 0).shape == (rows, outs, 1, 1)


@by_libraries
def test_inputs_that_are_not_dense(name: str) -> None:
    rng = np.random.default_rng(4)
    flat, images = activations(rng, (5, 6), "int8"), activations(rng, (2, 3, 6, 5), "uint8")
    (packed, reference) = both(q.linear_prepack, "onednn", weights(rng, (4, 6)))
    kernel, plain = both(q.conv2d_prepack, "x86", weights(rng, (2, 3, 2, 2)), None, 1, 1)
    forms = (np.asfortranarray, lambda a: np.repeat(a, 2, -1)[..., ::2], lambda a: a[::-1].copy()[::-1], lambda a: a[..., ::-1])
    for form in forms:
        x = q.QArray(form(flat.int_repr), flat.scale, flat.zero_point)
        same(by_each("linear", driven_by(name), x, packed, 0.5, 1), q.linear(x, reference, 0.5, 1).int_repr)
        x = q.QArray(form(images.int_repr), images.scale, images.zero_point)
        same(by_each("conv2d", driven_by(name), x, kernel, 0.5, 1), q.conv2d(x, plain, 0.5, 1).int_repr)
    zero = q.QArray(np.broadcast_to(np.uint8(3), (2, 3, 6, 5)), 1.0, 3)
    same(by_each("conv2d", driven_by(name), zero, kernel, 0.5, 1), q.conv2d(zero, plain, 0.5, 1).int_repr)


# The compiled code, for each instruction set ------------------------------------------------------------------------------


def levels() -> range:
    return range(_kernels.instruction_level + 1)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", KINDS)
def test_sums_are_brought_to_their_scale_at_every_level(level: int, dtype: str) -> None:
    """Sums up to the ends of int32, and many in the middle between two integers."""
    addresses = _kernels.addresses
    begin = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(addresses["requantize_numbers"])
    finish = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64)(addresses["requantize_finish"])
    rng, (low, high) = np.random.default_rng(level), LIMITS[dtype]
    for trial in range(60):
        outs, rows, many = int(rng.integers(1, 150)), int(rng.integers(1, 20)), int(rng.integers(2))
        repeats, terms = (16 if trial % 2 else 1), int(10.0 ** rng.integers(0, 5))
        most = min(255 * 255 * terms, 2**31 - 1)
        sums = rng.integers(-most, most, (rows, outs), np.int32, endpoint=True)
        if trial % 3 == 0:
            sums //= max(most // 1000, 1)
        unit, output = scale_of(rng, (outs if many else 1,)).astype(np.float32), np.float32([scale_of(rng, ())])
        bias = (rng.standard_normal(outs) * 10.0 ** rng.integers(-2, 9)).astype(np.float32)
        zero, one, nought = np.int32([rng.integers(low, high + 1)]), np.float32([1]), np.int32([0])
        layer = np.array([outs, repeats, terms, many, 0, 0, 1, low, high, level, 0], np.int64)
        memory = np.zeros(_kernels.requantize_header + 16 * outs * repeats + 64, np.uint8)
        numbers = memory[-memory.ctypes.data % 64 :]
        result = np.zeros((rows, outs), dtype)
        begin(*(None if a is None else a.ctypes.data for a in (layer, numbers, one, nought, unit, None, bias, output, zero, None)))
        finish(layer.ctypes.data, numbers.ctypes.data, sums.ctypes.data, None, result.ctypes.data, rows)
        wide = unit.astype(np.float64)
        added = np.clip(np.rint(bias.astype(np.float64) / wide), -(2**31), 2**31 - 1).astype(np.int64)
        wanted = reference_requantize.Factor(wide, output).rescale(sums + added, int(zero[0]), np.dtype(dtype))
        np.testing.assert_array_equal(result, wanted)


def nasty(rng: np.random.Generator, scale: float) -> Array:
    """Numbers of every size, and the middles between integers of a scale, with their neighbours."""
    middles = ((np.arange(-700, 700) + 0.5) * scale).astype(np.float32)
    beside = [middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
    with np.errstate(over="ignore"):
        sizes = (rng.standard_normal(3000) * 10.0 ** rng.integers(-45, 39, 3000)).astype(np.float32)
    return np.concatenate([*beside, sizes, np.float32([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45])])


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", KINDS)
def test_real_numbers_become_integers_at_every_level(level: int, dtype: str) -> None:
    rng, (low, high) = np.random.default_rng(level), LIMITS[dtype]
    tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    with np.errstate(over="ignore", under="ignore"):
        for scale in (np.float32(s) for s in (0.5, 0.1, 1.0, 3.0, 0.0123, 1e-30, 1e30, tiny, most)):
            x = nasty(rng, float(scale))
            for zero in (low, high, 0, 3):
                made = np.empty(x.shape, dtype)
                _kernels.quantize(x, made, float(scale), zero, level, 1)
                np.testing.assert_array_equal(made, reference_requantize.to_integers(x, scale, np.int32(zero), np.dtype(dtype)))
            back, every = np.empty(256, np.float32), np.arange(low, high + 1).astype(dtype)
            _kernels.dequantize(every, back, float(scale), 3, level, 1)
            np.testing.assert_array_equal(back, ((every.astype(np.float64) - 3) * float(scale)).astype(np.float32))


@pytest.mark.parametrize("level", levels())
def test_extremes_at_every_level(level: int) -> None:
    rng = np.random.default_rng(5)
    for size in (0, 1, 3, 100, 70000):
        x = rng.standard_normal(size).astype(np.float32)
        assert _kernels.value_range(x, level) == (min(x.min(initial=0), 0), max(x.max(initial=0), 0))
        if size:
            for wrong in (np.nan, -np.nan, np.inf, -np.inf):
                x[size // 2] = wrong
                found = _kernels.value_range(x, level)
                assert np.isnan(found).any() if np.isnan(wrong) else wrong in found and not np.isnan(found).any()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("most", [127, 255])
def test_integers_by_their_own_range_are_those_of_the_single_steps(level: int, most: int) -> None:
    rng, limits = np.random.default_rng(new_seed()), (0, most, LEAST, MOST, level, 1)
    for size, factor in itertools.product((0, 1, 5, 100, 70000), (1.0, 1e-44, 1e30, 1e38)):
        for shift in (0.0, 3.0, -30.0):
            with np.errstate(over="ignore"):
                x = np.clip((rng.standard_normal(size) + shift) * factor, -3.4e38, 3.4e38).astype(np.float32)
            made, step, zero = np.empty(size, np.uint8), np.empty(1, np.float32), np.empty(1, np.int32)
            assert _kernels.quantize_by_range(x, made, step, zero, *limits)
            wanted = parameters_of_one(*_kernels.value_range(x, level), 0, most)
            assert (step.tobytes(), zero.tobytes()) == (wanted[0].tobytes(), wanted[1].tobytes())
            np.testing.assert_array_equal(made, reference_requantize.to_integers(x, step[0], zero[0], made.dtype))
            for wrong in (np.nan, -np.nan, np.inf, -np.inf) if size else ():
                x[size // 2] = wrong
                assert not _kernels.quantize_by_range(x, made, step, zero, *limits)
                assert (step.tobytes(), zero.tobytes()) == (wanted[0].tobytes(), wanted[1].tobytes())  # they stay as they were


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, lambda a: a[:, ::2], lambda a: a.T, lambda a: a.astype(">f4")])
def test_quantizing_takes_every_layout(form: Any) -> None:
    """And large arrays in parts, on several threads."""
    x = form(np.random.default_rng(6).standard_normal((600, 500)).astype(np.float32))
    made = q.quantize(x, 0.03, 100)
    wanted = reference_requantize.to_integers(x, np.float32(0.03), np.int32(100), np.dtype(np.uint8))
    np.testing.assert_array_equal(made.int_repr, wanted)
    real = ((wanted.astype(np.float64) - 100) * np.float64(np.float32(0.03))).astype(np.float32)
    np.testing.assert_array_equal(made.dequantize(), real)
    images = np.ascontiguousarray(x[:100, :100]).reshape(2, 50, 50, 2).transpose(0, 3, 1, 2)
    kept = q.quantize(images, 0.03, 100)
    assert channels_last(kept.int_repr) and channels_last(kept.dequantize())
    np.testing.assert_array_equal(kept.int_repr, reference_requantize.to_integers(images, np.float32(0.03), np.int32(100), np.dtype(np.uint8)))
    with pytest.raises(BadValue, match="NaN"):
        q.quantize(np.where(x > 3, np.float32(np.nan), x), 0.03, 100)


def test_the_compiled_functions_refuse_what_they_cannot_take() -> None:
    x, to = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.uint8)
    fixed = to.copy()
    fixed.flags.writeable = False
    for args in ((x[:, ::2], to, 1.0, 0, 0, 1), (x, to[:2], 1.0, 0, 0, 1), (x, fixed, 1.0, 0, 0, 1), (x, to, 1.0, 0, 3, 1), (to, x, 1.0, 0, 0, 1)):
        with pytest.raises(ValueError, match=r"needed|level"):
            _kernels.quantize(*args)
    with pytest.raises(ValueError, match="level"):
        _kernels.value_range(x, -1)
    step, zero = np.empty(1, np.float32), np.empty(1, np.int32)
    for args in ((x[:, ::2], to, step, zero), (x, to[:2], step, zero), (x, fixed, step, zero), (x, to, zero, zero), (x, to, step, np.empty(2, np.int32))):
        with pytest.raises(ValueError, match="needed"):
            _kernels.quantize_by_range(*args, 0, 255, LEAST, MOST, 0, 1)


# A weight that is packed ------------------------------------------------------------------------------------------------


@exact
def test_a_weight_is_packed_once_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each order that kernels want it in. Some processors take int8 and uint8 with one order, others do not."""
    orders: list[int8_sums.Packing] = []
    pack = int8_sums.Packing.pack
    monkeypatch.setattr(int8_sums.Packing, "pack", lambda self, weight: orders.append(self) or pack(self, weight))
    rng = np.random.default_rng(7)
    packed, _ = both(q.linear_prepack, "onednn", weights(rng, (20, 30)))
    for rows in (1, 7, 300):
        q.linear(activations(rng, (rows, 30), "uint8"), packed, 0.5, 1)
        q.linear_dynamic(rng.standard_normal((rows, 30)).astype(np.float32), packed)
    assert len(orders) == 1
    q.linear(activations(rng, (3, 30), "int8"), packed, 0.5, 1)
    q.linear(activations(rng, (9, 30), "int8"), packed, 0.5, 1)
    assert len(orders) == 1 or (len(orders) == 2 and orders[0] != orders[1])
    kernel, _ = both(q.conv2d_prepack, "onednn", weights(rng, (20, 16, 3, 3)), None, 1, 1)
    del orders[:]
    for size in (8, 9, 8, 30):
        q.conv2d(activations(rng, (1, 16, size, size), "uint8"), kernel, 0.5, 1)
    assert orders and all(one != other for one, other in itertools.combinations(orders, 2))


@exact
@pytest.mark.parametrize("zeros", [False, True])
def test_a_kernel_that_does_not_take_that_order_gets_its_own(onednn: Any, monkeypatch: pytest.MonkeyPatch, zeros: bool) -> None:
    monkeypatch.setattr(driven, "is_reference", lambda kernel: True)
    rng = np.random.default_rng(13)
    x, images = activations(rng, (9, 30), "int8"), activations(rng, (2, 6, 9, 9), "uint8")
    packed, reference = both(q.linear_prepack, "onednn", weights(rng, (20, 30), zeros=zeros))
    kernel, plain = both(q.conv2d_prepack, "onednn", weights(rng, (4, 3, 3, 3), zeros=zeros), None, 1, 1, 1, 2)
    found = by_each("linear", onednn, x, packed, 0.5, 1)
    same(found, q.linear(x, reference, 0.5, 1).int_repr)
    same(by_each("conv2d", onednn, images, kernel, 0.5, 1), q.conv2d(images, plain, 0.5, 1).int_repr)
    assert "slow" in str(backline.explain(q.linear, x, packed, 0.5, 1))


@exact
def test_plans_keep_no_weight() -> None:
    """Two weights of one shape share a plan, and each gives its own result."""
    rng = np.random.default_rng(8)
    x = activations(rng, (6, 30), "uint8")
    layers = [weights(rng, (20, 30)) for _ in range(3)]
    pairs = [both(q.linear_prepack, "onednn", w, biases(rng, 20, x, w)) for w in layers]
    for _ in range(2):
        for packed, reference in pairs:
            np.testing.assert_array_equal(q.linear(x, packed, 0.5, 1).int_repr, q.linear(x, reference, 0.5, 1).int_repr)


@exact
def test_what_is_packed_stays_with_its_engine_and_can_be_copied() -> None:
    rng = np.random.default_rng(9)
    x, real = activations(rng, (6, 30), "uint8"), rng.standard_normal((6, 30)).astype(np.float32)
    packed, reference = both(q.linear_prepack, "onednn", weights(rng, (20, 30), zeros=True), np.ones(20, np.float32))
    wanted, dynamic = q.linear(x, reference, 0.5, 1).int_repr, q.linear_dynamic(real, reference)
    for held in (packed, copy.copy(packed), copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        for engine in backend.supported_engines:
            with backend.flags(engine=engine):
                np.testing.assert_array_equal(q.linear(x, held, 0.5, 1).int_repr, wanted)
                np.testing.assert_array_equal(q.linear_dynamic(real, held), dynamic)
                assert held.engine == "onednn" and backline.explain().library == "onednn"
        assert not held.weight.int_repr.flags.writeable and not held.bias.flags.writeable
    kernel, _ = both(q.conv2d_prepack, "x86", weights(rng, (4, 2, 3, 3)), None, 2, 1, 1, 2)
    again = pickle.loads(pickle.dumps(kernel))
    assert (again.stride, again.padding, again.dilation, again.groups, again.engine) == ((2, 2), (1, 1), (1, 1), 2, "x86")


@exact
def test_threads_that_share_a_packed_weight() -> None:
    rng = np.random.default_rng(10)
    packed, reference = both(q.linear_prepack, "onednn", weights(rng, (200, 300)), np.ones(200, np.float32))
    inputs = [activations(rng, (64, 300), "uint8") for _ in range(4)]
    wanted = [q.linear(x, reference, 2.0, 1).int_repr for x in inputs]
    wrong = []

    def work(x: Any, right: Array) -> None:
        for _ in range(50):
            if not np.array_equal(q.linear(x, packed, 2.0, 1).int_repr, right):
                wrong.append(1)

    workers = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@exact
def test_new_scales_need_no_new_plan() -> None:
    from backline.engine import plan_caches

    rng = np.random.default_rng(11)
    x, (packed, _) = activations(rng, (3, 4), "uint8"), both(q.linear_prepack, "onednn", weights(rng, (2, 4)))
    q.linear(x, packed, 0.5, 1)
    before = plan_caches.cache("onednn").misses
    for n in range(1, 20):
        q.linear(q.QArray(x.int_repr, n / 100, n), packed, n / 10, n)
    assert plan_caches.cache("onednn").misses == before


# Engines ----------------------------------------------------------------------------------------------------------------


def test_engines_are_those_that_are_driven() -> None:
    def runs(library: Any, engine: str) -> bool:
        return engine in library.engines and library.available() and not getattr(library, "engine_reason", lambda name: "")(engine)

    assert backend.supported_engines == [e for e in quantized_engines._ORDER if any(runs(x, e) for x in libraries.all_libraries())]
    assert backend.engine == backend.supported_engines[0] and backend.supported_engines[-1] == "reference"
    for name in set(quantized_engines._ORDER) - set(backend.supported_engines):
        reason = quantized_engines.reason(name)
        assert "x86-64" in reason, reason
        with pytest.raises(BadValue, match="reference"):
            backend.engine = name


def test_the_default_is_x86_and_its_numbers_leave_a_bit_out() -> None:
    assert backend.engine == "x86" and set(ENGINES) <= set(backend.supported_engines)
    packed = q.linear_prepack(q.quantize_weights(np.eye(3)))
    assert packed.engine == "x86" and q.MinMaxObserver().range == (0, 127) and q.MinMaxObserver(engine="onednn").range == (0, 255)
    with pytest.raises(BadType, match=r"weight has dtype uint8.*\n.*'x86' takes int8"):
        q.linear_prepack(q.QArray(np.zeros((1, 1), np.uint8), 1.0))


@exact
def test_without_instructions_that_add_exactly_onednn_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries.onednn.primitives import Engine

    packed, _ = both(q.linear_prepack, "onednn", q.quantize_weights(np.eye(3)))
    x = q.QArray(np.ones((2, 3), np.uint8), 1.0)
    wanted = q.linear(x, packed, 1.0, 0).int_repr
    for isa, allowed, why in ((0x27, True, "VNNI"), (0x67, False, "needs avx512")):  # the first: AVX-512 as it was at first
        backline.engine.plan_caches.clear()
        monkeypatch.setattr(Engine, "isa", isa)
        monkeypatch.setattr(capability, "allows", lambda word, allowed=allowed: allowed or word != "avx512")
        assert why in libraries.get("onednn").engine_reason("onednn")  # type: ignore[attr-defined]  # it has it
        assert set(ENGINES) <= set(backend.supported_engines)
        with backends.flags(only=("onednn",)), pytest.raises(NoKernel, match=why):
            q.linear(x, packed, 1.0, 0)
        np.testing.assert_array_equal(q.linear(x, packed, 1.0, 0).int_repr, wanted)
        assert backline.explain().library == "kernels"


def test_a_prohibition_holds() -> None:
    packed, _ = both(q.linear_prepack, "onednn", q.quantize_weights(np.eye(3)))
    x = q.QArray(np.ones((2, 3), np.uint8), 1.0, 0)
    refused = pytest.raises(NoKernel, match=r"kernels\.enabled(?s:.*)packed by engine 'onednn'")
    with backends.mkldnn.flags(enabled=False), backends.kernels.flags(enabled=False), refused:
        q.linear(x, packed, 1.0, 0)
    with backends.mkldnn.flags(enabled=False):
        assert q.linear(x, packed, 1.0, 0).shape == (2, 3) and backline.explain().library == "kernels"
    assert q.linear(x, packed, 1.0, 0).shape == (2, 3)


def test_the_default_is_one_that_may_run() -> None:
    with backends.kernels.flags(enabled=False), backends.mkldnn.flags(enabled=False):
        assert backend.engine == "reference" and "x86" in backend.supported_engines
    with backends.flags(only=("numpy",)):
        assert q.linear_prepack(q.quantize_weights(np.eye(3))).engine == "reference"
    with backends.flags(only=("numpy", "kernels")):
        assert backend.engine == "x86"


@exact
def test_the_default_is_one_that_onednn_runs() -> None:
    with backends.flags(only=("numpy", "onednn")):
        assert backend.engine == "x86"


@exact
def test_explain_and_problems_as_text() -> None:
    from backline.problems import Problem

    for key in (
        "quantized.linear u8 2x4 3x4 engine=x86", "quantized.linear_dynamic u8 2x4 3x4 engine=onednn",
        "quantized.conv2d i8 2x4x5x5 6x2x3x3 engine=x86 groups=2 padding=1,0 stride=2,2",
    ):  # fmt: skip
        problem = Problem.parse(key)
        assert problem.key == key and [a.name for a in algorithms("onednn", problem, 1)] == ["int8", "int8_gemm"]
    x, (packed, _) = q.QArray(np.zeros((2, 4), np.uint8), 1.0), both(q.linear_prepack, "x86", q.quantize_weights(np.eye(4)))
    asked = backline.explain(q.linear, x, packed, 0.5, 1)
    assert asked.library == "onednn" and "same bits" in str(asked) and asked.problem.key == "quantized.linear u8 2x4 4x4 engine=x86"
    q.linear(x, packed, 0.5, 1)
    assert backline.explain().problem == asked.problem


@exact
def test_benchmark_measures_it() -> None:
    rng = np.random.default_rng(12)
    x = activations(rng, (200, 160), "uint8")
    packed, reference = both(q.linear_prepack, "onednn", weights(rng, (140, 160)))
    with backends.flags(benchmark=True, num_threads=2):
        np.testing.assert_array_equal(q.linear(x, packed, 0.5, 3).int_repr, q.linear(x, reference, 0.5, 3).int_repr)


# Images in parts ----------------------------------------------------------------------------------------------------------


@exact
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(6, 8, 9, 10), (5, 4, 8, 8), (1, 3, 7, 9)])
def test_images_in_parts_have_the_integers_of_all_at_once(
    shape: tuple[int, ...], last: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that exceed a cache are made for some images at a time: six in sixes, threes, pairs or one by one, five one by one.

    Where threads divide the images evenly, each does parts of its own.
    """
    monkeypatch.setattr(driven, "INT8_THREAD_FLOPS", 0)
    rng = np.random.default_rng(1)
    x = activations(rng, shape, "uint8", last)
    weight = q.quantize_weights(rng.standard_normal((16, shape[1], 3, 3), np.float32))
    bias = rng.standard_normal(16, np.float32)
    parts, results, plain = [], [], driven._Layer._image_parts
    monkeypatch.setattr(driven._Layer, "_image_parts", lambda self: (parts.append(plain(self)), parts[-1])[1])
    for cached in (1, 4 * 16 * 9 * 10, 8 * 16 * 9 * 10, 1 << 40):
        monkeypatch.setattr(driven, "CACHED", cached)
        plan_caches.clear()
        _core.memo_clear()
        with backline.num_threads(threads):
            results.append(q.conv2d(x, q.conv2d_prepack(weight, bias, padding=1), 0.2, 9).int_repr)
        assert backline.explain().library == "onednn"
    shares = threads if shape[0] % threads == 0 else 1
    assert parts[0] == (shape[0], shares) and parts[-1] == (shares, shares)
    with backend.flags(engine="reference"):
        reference = q.conv2d_prepack(weight, bias, padding=1)
    wanted = q.conv2d(x, reference, 0.2, 9).int_repr
    for found in results:
        np.testing.assert_array_equal(found, wanted)


@by_libraries
@pytest.mark.parametrize("seed", range(12))
def test_images_whose_channels_are_groups(name: str, seed: int) -> None:
    """By oneDNN's primitive and by a loop of ours, in one part and in several, whatever the layout."""
    rng = np.random.default_rng([int(os.environ.get("BACKLINE_TEST_SEED", "0")), seed])
    dtype, last = KINDS[seed % 2], bool(seed // 2 % 2)
    channels = (2, 3, 17, 64, 100)[rng.integers(5)]
    kernel, stride, padding, dilation = (tuple(int(n) for n in rng.integers(low, high, 2)) for low, high in ((1, 6), (1, 4), (0, 4), (1, 3)))
    size = (int(rng.integers(11, 40)), int(rng.integers(11, 40)))
    x = activations(rng, (int(rng.integers(1, 4)), channels, *size), dtype, last)
    w = weights(rng, (channels, 1, *kernel), zeros=seed == 5)
    packed, reference = both(q.conv2d_prepack, "onednn", w, biases(rng, channels, x, w), stride, padding, dilation, channels)
    wanted = q.conv2d(x, reference, 0.7, 3).int_repr
    found = by_each("conv2d", driven_by(name), x, packed, 0.7, 3)
    same(found, wanted)
    assert name != "onednn" or (seed == 5) is not any("int8_gemm" in what for what, _ in found)


@by_libraries
@pytest.mark.parametrize("dtype", KINDS)
def test_products_without_a_primitive_share_blocks(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, of linear layers and of convolutions, divided among threads: the integers are the same."""
    for kind in (int8_steps.ByteSteps, int8_products._Products):
        monkeypatch.setattr(kind, "block_bytes", 1)
    for module in (int8_steps, int8_products):
        monkeypatch.setattr(module, "LEAST_POINTS", 8)
    monkeypatch.setattr(driven, "INT8_THREAD_FLOPS", 0)
    monkeypatch.setattr(int8_products, "THREAD_FLOPS", 0)
    rng = np.random.default_rng(9)
    x, w = activations(rng, (67, 33), dtype), weights(rng, (21, 33))
    packed, reference = both(q.linear_prepack, "onednn", w, biases(rng, 21, x, w))
    same(by_each("linear", driven_by(name), x, packed, 2.5, 3), q.linear(x, reference, 2.5, 3).int_repr)
    for groups, last, size in ((1, False, 3), (2, True, 3), (3, False, 1), (12, True, 3), (12, False, 2)):
        images = activations(rng, (3, 12, 9, 11), dtype, last)
        w = weights(rng, (12, 12 // groups, size, size))
        kernel, plain = both(q.conv2d_prepack, "x86", w, biases(rng, 12, images, w), 1, size // 2, 1, groups)
        same(by_each("conv2d", driven_by(name), images, kernel, 2.0, 5), q.conv2d(images, plain, 2.0, 5).int_repr)
