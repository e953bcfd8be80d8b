"""Convolutions and their gradients: every library, every algorithm it lists, every dtype and layout, against direct loops.

The reference goes through the elements of the kernel, and adds its products, at all places at once, in the widest type that NumPy
has. Bounds are componentwise: gamma_n times the sum of absolute products, plus one rounding into the result's dtype.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backline
from backline.errors import BadType, BadValue
from backline.libraries.blas import im2col
from backline.libraries.reference import reference_conv
from backline.ops import convolution as ops
from backline.ops import convolution_grad as grads
from support import (
    FLOATS,
    HALVES,
    LAYOUTS,
    LIBRARIES,
    algorithms,
    assert_close,
    clean,
    dtype_of,
    need,
    numpy_on_one_thread,
    problem_of,
    random_array,
    rng,
    roundoff,
    run_each,
    seed,
    smallest,
    wide,
)  # fmt: skip

Array = Any
DTYPES = (*HALVES, *FLOATS, "int32", "uint8")
CONV = (ops.conv1d, ops.conv2d, ops.conv3d)
TRANSPOSED = (ops.conv_transpose1d, ops.conv_transpose2d, ops.conv_transpose3d)
BY_INPUT = (grads.conv1d_input, grads.conv2d_input, grads.conv3d_input)
BY_WEIGHT = (grads.conv1d_weight, grads.conv2d_weight, grads.conv3d_weight)
BLAS = tuple(name for name in LIBRARIES if name != "numpy")
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed  # fixtures: imported to be found by pytest


# The reference --------------------------------------------------------------------------------------------------------


def tuples(rank: int, kwargs: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Stride, padding, dilation, groups; one number for each dimension."""
    spread = [
        v if isinstance(v, tuple) else (v,) * rank
        for v in (kwargs.get(k, d) for k, d in (("stride", 1), ("padding", 0), ("dilation", 1)))
    ]
    return (*spread, kwargs.get("groups", 1))  # type: ignore[return-value]  # as many as the rank asks for


def pairs(
    points: tuple[int, ...], image: tuple[int, ...], kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any
) -> Any:
    """Every element of the kernel; the places where it meets an element of the image, and those elements."""
    for tap in np.ndindex(kernel):
        places, elements = [], []
        for n, size, s, b, t, d in zip(points, image, stride, padding, tap, dilation, strict=True):
            at = np.arange(n) * s - b + t * d
            inside = (at >= 0) & (at < size)
            places.append(np.flatnonzero(inside))
            elements.append(at[inside])
        yield np.ix_(*places), tap, np.ix_(*elements)


def out_points(image: tuple[int, ...], kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    sizes = zip(image, kernel, stride, padding, dilation, strict=True)
    return tuple(max((n + 2 * p - d * (k - 1) - 1) // s + 1, 0) for n, k, s, p, d in sizes)


def in_groups(groups: int, *sizes: int) -> Any:
    for g in range(groups):
        yield tuple(slice(g * n // groups, (g + 1) * n // groups) for n in sizes)


class Exact:
    """The exact result, the sum of absolute products, and how many products there are for one element at most."""

    def __init__(self, shape: tuple[int, ...], kind: Any) -> None:
        self.value, self.size, self.terms = np.zeros(shape, kind), np.zeros(shape, np.longdouble), 1

    def add(self, where: Any, rule: str, a: Array, b: Array) -> None:
        self.value[where] += np.einsum(rule, a, b)
        self.size[where] += np.einsum(rule, np.abs(a), np.abs(b))

    def bound(self, dtype: np.dtype[Any]) -> Array:
        if dtype.kind in "iu":
            return np.zeros(self.value.shape)
        inner = np.dtype(np.float32) if dtype.name in HALVES else dtype
        n = self.terms + 4
        u = roundoff(inner) * (3 if dtype.kind == "c" else 1)
        bound = 1.01 * n * u / (1 - n * u) * self.size + n * smallest(inner) * 4
        if dtype.name in HALVES:
            bound = bound + roundoff(dtype) * 1.01 * (np.abs(self.value) + bound) + smallest(dtype)
        return np.abs(bound)

    def check(self, result: Array, dtype: np.dtype[Any], what: str) -> None:
        assert result.dtype == dtype, f"{what}: {result.dtype}"
        value = self.value
        if dtype.kind in "iu":  # they wrap around
            value = (
                (value.astype(object).astype(np.int64) if value.size else value.astype(np.int64))
                .astype(dtype)
                .astype(np.longdouble)
            )
        assert_close(result, value, self.bound(dtype), what)


def exact_conv(x: Array, w: Array, **kwargs: Any) -> Exact:
    rank = w.ndim - 2
    stride, padding, dilation, groups = tuples(rank, kwargs)
    points = out_points(x.shape[2:], w.shape[2:], stride, padding, dilation)
    x, w = wide(x), wide(w)
    e = Exact((len(x), len(w), *points), x.dtype)
    e.terms = w[0].size
    for place, tap, at in pairs(points, x.shape[2:], w.shape[2:], stride, padding, dilation):
        for c, o in in_groups(groups, x.shape[1], len(w)):
            e.add((slice(None), o, *place), "nc...,oc->no...", x[(slice(None), c, *at)], w[(o, slice(None), *tap)])
    return e


def exact_transposed(x: Array, w: Array, *, output_padding: Any = 0, size: Any = None, **kwargs: Any) -> Exact:
    """Also the gradient by the input, whose size is then given."""
    rank = w.ndim - 2
    stride, padding, dilation, groups = tuples(rank, kwargs)
    extra = output_padding if isinstance(output_padding, tuple) else (output_padding,) * rank
    each = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, extra, strict=True)
    size = size or tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, k, s, p, d, e in each)
    x, w = wide(x), wide(w)
    features = w.shape[1] * groups
    e = Exact((len(x), features, *size), x.dtype)
    e.terms = max(x.shape[1] * prod(w.shape[2:]), 1)
    for place, tap, at in pairs(x.shape[2:], size, w.shape[2:], stride, padding, dilation):
        for c, o in in_groups(groups, x.shape[1], features):
            e.add((slice(None), o, *at), "nc...,co->no...", x[(slice(None), c, *place)], w[(c, slice(None), *tap)])
    return e


def exact_by_weight(x: Array, size: tuple[int, ...], grad: Array, **kwargs: Any) -> Exact:
    stride, padding, dilation, groups = tuples(len(size) - 2, kwargs)
    x, grad = wide(x).conj(), wide(grad)
    e = Exact(size, x.dtype)
    e.terms = max(len(x) * prod(grad.shape[2:]), 1)
    for place, tap, at in pairs(grad.shape[2:], x.shape[2:], size[2:], stride, padding, dilation):
        for c, o in in_groups(groups, x.shape[1], size[0]):
            g, images = (a.reshape(*a.shape[:2], prod(a.shape[2:])) for a in (grad[(slice(None), o, *place)], x[(slice(None), c, *at)]))
            e.add((o, slice(None), *tap), "nop,ncp->oc", g, images)
    return e


def name_of(op: Any) -> str:
    return f"{op.__module__}.{op.__qualname__}".removeprefix("backline.")


# Layouts --------------------------------------------------------------------------------------------------------------


def channels_last(x: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if x.ndim > 2 else x


ALL_LAYOUTS = {**LAYOUTS, "channels last": channels_last}
PLAIN_PAIRS = (("C", "C"), ("channels last", "C"), ("channels last", "channels last"))


def some_layouts(rng: np.random.Generator, count: int = 4) -> list[tuple[str, str]]:
    """Layouts of images and of weights: the usual ones and some others."""
    names = list(ALL_LAYOUTS)
    return [*PLAIN_PAIRS, *((names[i], names[j]) for i, j in rng.integers(0, len(names), (count, 2)))]


# Every algorithm, every dtype -----------------------------------------------------------------------------------------

# Shapes of images and weights (O, C / groups, ...), and what else the call has.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 11), (4, 3, 3), {}),
    "1d strided": ((1, 2, 12), (4, 2, 4), {"stride": 3, "padding": 2}),
    "1d depthwise": ((2, 5, 9), (5, 1, 3), {"padding": 1, "groups": 5}),
    "3x3": ((2, 4, 6, 7), (5, 4, 3, 3), {"padding": 1}),
    "1x1": ((3, 8, 5, 4), (6, 8, 1, 1), {}),
    "1x1 grouped": ((2, 6, 4, 4), (4, 3, 1, 1), {"groups": 2}),
    "1x1 strided": ((2, 4, 5, 6), (3, 4, 1, 1), {"stride": 2}),
    "1x1 padded": ((2, 3, 4, 4), (2, 3, 1, 1), {"padding": (1, 0)}),
    "7x7 strided": ((1, 3, 15, 17), (4, 3, 7, 7), {"stride": 2, "padding": 3}),
    "sides differ": ((2, 3, 8, 9), (2, 3, 1, 4), {"stride": (2, 1), "padding": (0, 3), "dilation": (1, 2)}),
    "dilated": ((1, 2, 9, 9), (3, 2, 3, 3), {"padding": 2, "dilation": 2}),
    "grouped": ((2, 6, 5, 6), (4, 3, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((2, 4, 6, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
    "depthwise, two features each": ((1, 3, 6, 5), (6, 1, 3, 2), {"groups": 3, "stride": (1, 2)}),
    "kernel of the image's size": ((3, 2, 4, 3), (5, 2, 4, 3), {}),
    "kernel larger than the image": ((2, 2, 2, 3), (3, 2, 4, 5), {"padding": 2}),
    "stride larger than the kernel": ((2, 3, 9, 9), (2, 3, 2, 2), {"stride": 4}),
    "padding past the kernel": ((1, 2, 3, 3), (2, 2, 2, 2), {"padding": 4, "stride": 3}),
    "one channel, one feature": ((1, 1, 5, 5), (1, 1, 3, 3), {}),
    "3d": ((2, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"padding": (1, 0, 1), "stride": (1, 2, 1)}),
    "3d grouped": ((1, 4, 3, 4, 5), (4, 2, 3, 1, 2), {"padding": 1, "dilation": (1, 1, 2), "groups": 2}),
}
# Past a million operations, where threads come in.
THREADED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "threaded": ((2, 16, 16, 15), (24, 16, 3, 3), {"padding": 1}),
    "threaded 1x1": ((2, 40, 14, 14), (48, 40, 1, 1), {}),
    "threaded depthwise": ((2, 40, 30, 28), (40, 1, 3, 3), {"groups": 40, "padding": 1}),
    "threaded groups": ((1, 32, 14, 14), (128, 16, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
}


def transposed_weight(rng: np.random.Generator, x: Array, w: tuple[int, ...], groups: int) -> Array:
    """Weights (C, O / groups, ...) for a transposed convolution of the images of a case."""
    return random_array(rng, (x.shape[1], w[0] // groups, *w[2:]), x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_algorithm_in_every_layout(library: str, case: str, dtype: str, rng: np.random.Generator) -> None:
    shape, weight_shape, kwargs = CASES[case]
    x, w = (random_array(rng, s, dtype_of(dtype)) for s in (shape, weight_shape))
    exact = exact_conv(x, w, **kwargs)
    op = name_of(CONV[len(shape) - 3])
    for images, weights in some_layouts(rng):
        for name, result in run_each(library, op, ALL_LAYOUTS[images](x), ALL_LAYOUTS[weights](w), **kwargs):
            exact.check(result, x.dtype, f"{name}, {images} images, {weights} weights")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_transposed(library: str, case: str, dtype: str, rng: np.random.Generator) -> None:
    shape, weight_shape, kwargs = CASES[case]
    kwargs = {k: v if k != "padding" else min(np.min(v), np.min(weight_shape[2:]) // 2).item() for k, v in kwargs.items()}
    x = random_array(rng, shape, dtype_of(dtype))
    w = transposed_weight(rng, x, weight_shape, kwargs.get("groups", 1))
    stride = np.max(kwargs.get("stride", 1))
    extra = int(stride) - 1 if np.min(kwargs.get("stride", 1)) == stride else 0
    exact = exact_transposed(x, w, output_padding=extra, **kwargs)
    op = name_of(TRANSPOSED[len(shape) - 3])
    for images, weights in some_layouts(rng):
        for name, result in run_each(
            library, op, ALL_LAYOUTS[images](x), ALL_LAYOUTS[weights](w), output_padding=extra, **kwargs
        ):
            exact.check(result, x.dtype, f"{name}, {images} images, {weights} weights")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_gradients(library: str, case: str, dtype: str, rng: np.random.Generator) -> None:
    shape, weight_shape, kwargs = CASES[case]
    rank = len(shape) - 2
    stride, padding, dilation, _ = tuples(rank, kwargs)
    x, w = (random_array(rng, s, dtype_of(dtype)) for s in (shape, weight_shape))
    grad = random_array(
        rng, (shape[0], weight_shape[0], *out_points(shape[2:], weight_shape[2:], stride, padding, dilation)), x.dtype
    )
    by_input = exact_transposed(grad, w.conj(), size=shape[2:], **kwargs)
    by_weight = exact_by_weight(x, weight_shape, grad, **kwargs)
    for first, second in some_layouts(rng, 2):
        g = ALL_LAYOUTS[first](grad)
        for name, result in run_each(library, name_of(BY_INPUT[rank - 1]), shape, ALL_LAYOUTS[second](w), g, **kwargs):
            by_input.check(result, x.dtype, f"{name}, by input, {first}, {second}")
        for name, result in run_each(library, name_of(BY_WEIGHT[rank - 1]), ALL_LAYOUTS[second](x), weight_shape, g, **kwargs):
            by_weight.check(result, x.dtype, f"{name}, by weight, {second}, {first}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", THREADED)
@pytest.mark.parametrize("library", LIBRARIES)
def test_sizes_that_threads_share(library: str, case: str, dtype: str, rng: np.random.Generator) -> None:
    shape, weight_shape, kwargs = THREADED[case]
    x, w = (random_array(rng, s, dtype_of(dtype)) for s in (shape, weight_shape))
    exact = exact_conv(x, w, **kwargs)
    for images, weights in PLAIN_PAIRS:
        a, b = ALL_LAYOUTS[images](x), ALL_LAYOUTS[weights](w)
        for name, result in run_each(library, "nn.functional.conv2d", a, b, **kwargs):
            exact.check(result, x.dtype, f"{name}, {images} images, {weights} weights")
        if library != "numpy":
            listed = algorithms(library, problem_of("nn.functional.conv2d", a, b, **kwargs))
            assert [(alg.name, alg.threads) for alg in listed] == [("im2col", 2), ("im2col", 1)]


@pytest.mark.parametrize("library", BLAS)
def test_blocks_of_any_size(library: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that a convolution is cut into do not show in its result."""
    x, w = random_array(rng, (2, 6, 9, 8), np.dtype(np.float64)), random_array(rng, (4, 3, 3, 2), np.dtype(np.float64))
    kwargs = {"padding": 1, "groups": 2}
    grad = random_array(rng, (2, 4, 9, 9), x.dtype)
    wt = random_array(rng, (6, 5, 3, 2), x.dtype)
    checks = [
        (ops.conv2d, (x, w), exact_conv(x, w, **kwargs)),
        (ops.conv_transpose2d, (x, wt), exact_transposed(x, wt, **kwargs)),
        (grads.conv2d_input, (x.shape, w, grad), exact_transposed(grad, w, size=x.shape[2:], **kwargs)),
        (grads.conv2d_weight, (x, w.shape, grad), exact_by_weight(x, w.shape, grad, **kwargs)),
    ]
    for size, points in ((1, 1), (700, 5), (5000, 40)):
        monkeypatch.setattr(im2col, "BLOCK_BYTES", size)
        monkeypatch.setattr(im2col, "LEAST_POINTS", points)
        for op, args, exact in checks:
            for layout in (lambda a: a, channels_last):
                laid = tuple(layout(a) if isinstance(a, np.ndarray) else a for a in args)
                for name, result in run_each(library, name_of(op), *laid, **kwargs):
                    exact.check(result, x.dtype, f"{op.__name__}, {name}, blocks of {size} bytes")


def test_the_reference_in_pieces(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_conv, "CHUNK", 1)
    x, w = random_array(rng, (2, 4, 7, 6), np.dtype(np.float64)), random_array(rng, (3, 4, 3, 3), np.dtype(np.float64))
    exact = exact_conv(x, w, stride=2, padding=1)
    for name, result in run_each("numpy", "nn.functional.conv2d", x, w, stride=2, padding=1):
        exact.check(result, x.dtype, name)


# What is fused, and where the result goes -------------------------------------------------------------------------------


def out_in(layout: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return ALL_LAYOUTS[layout](np.full(shape, 7, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("library", LIBRARIES)
def test_bias_residual_activation_and_out(library: str, transposed: bool, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    x = random_array(rng, (2, 4, 6, 5), kind)
    w = random_array(rng, (4, 3, 3, 3) if transposed else (6, 2, 3, 3), kind)
    kwargs: dict[str, Any] = {"groups": 2, "padding": 1}
    op = name_of(ops.conv_transpose2d if transposed else ops.conv2d)
    exact = exact_transposed(x, w, **kwargs) if transposed else exact_conv(x, w, **kwargs)
    plain, size = exact.value.copy(), exact.size.copy()
    bias, residual = random_array(rng, (6,), kind), random_array(rng, plain.shape, kind)
    exact.terms += 2
    for has_bias, has_residual, relu in itertools.product((False, True), repeat=3):
        if relu and kind.kind == "c":
            continue
        value = plain + (wide(bias)[:, None, None] if has_bias else 0) + (wide(residual) if has_residual else 0)
        exact.size = size + has_bias * np.abs(wide(bias))[:, None, None] + has_residual * np.abs(wide(residual))
        exact.value = np.maximum(value, 0) if relu else value
        for images, other, out in [
            ("C", "C", None),
            ("channels last", "C", None),
            *zip(*rng.choice(list(ALL_LAYOUTS), (3, 4)), strict=True),
        ]:
            given = dict(kwargs)
            if has_bias:
                given["bias"] = ALL_LAYOUTS[other if other != "channels last" else "steps"](bias)
            if has_residual:
                given["residual"] = ALL_LAYOUTS[other](residual)
            if relu:
                given["activation"] = "relu"
            if out:
                given["out"] = out_in(out, plain.shape, kind)
            for name, result in run_each(library, op, ALL_LAYOUTS[images](x), w, **given):
                exact.check(result, kind, f"{name}, {images}, {other}, out {out}, {sorted(given)}")
                if out:
                    assert result is given["out"]
                    result[...] = 7


@pytest.mark.parametrize("library", LIBRARIES)
def test_repeated_and_reversed_bias(library: str, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 4, 5, 5)), rng.standard_normal((6, 2, 3, 3))
    exact = exact_conv(x, w, groups=2)
    plain = exact.value
    for bias in (np.broadcast_to(np.array([0.5]), (6,)), np.arange(6.0)[::-1]):
        exact.value = plain + bias[:, None, None]
        exact.size = exact.size + 6
        for layout in (np.copy, channels_last):
            for name, result in run_each(library, "nn.functional.conv2d", layout(x), w, bias, groups=2):
                exact.check(result, x.dtype, name)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_residual_may_be_the_result(library: str, rng: np.random.Generator) -> None:
    x, w, residual = rng.standard_normal((2, 3, 5, 5)), rng.standard_normal((4, 3, 3, 3)), rng.standard_normal((2, 4, 3, 3))
    wanted = np.maximum(ops.conv2d(x, w) + residual, 0)
    for layout in (np.copy, channels_last, LAYOUTS["steps"]):
        out = layout(residual)
        problem = problem_of("nn.functional.conv2d", x, w, residual=out, activation="relu", out=out)
        for algorithm in algorithms(library, problem):
            out[...] = residual
            result = need(library).prepare(problem, algorithm)(x, w, out, out)
            assert result is out
            np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_overlapping_out_is_refused(library: str, rng: np.random.Generator) -> None:
    memory = rng.standard_normal(2000)
    x, w = memory[:200].reshape(2, 4, 5, 5), memory[400:544].reshape(4, 4, 3, 3)
    residual = memory[1200:1272].reshape(2, 4, 3, 3)
    overlapping = {"input": memory[150:222], "weight": memory[500:572], "residual": memory[1201:1273], "bias": memory[990:1062]}
    for role, out in overlapping.items():
        call = {"bias": memory[1000:1004], "residual": residual, "out": out.reshape(2, 4, 3, 3)}
        problem = problem_of("nn.functional.conv2d", x, w, **call)
        for algorithm in algorithms(library, problem):
            before = memory.copy()
            with pytest.raises(BadValue, match="overlaps an operand"):
                need(library).prepare(problem, algorithm)(x, w, *call.values())
            assert (memory == before).all(), role
    apart = memory[1300:1372].reshape(2, 4, 3, 3)
    for name, result in run_each(library, "nn.functional.conv2d", x, w, out=apart):
        assert result is apart, name


def test_the_result_lies_as_the_input_does(rng: np.random.Generator) -> None:
    w3 = rng.standard_normal((4, 2, 2, 2, 2))
    for rank in (1, 2, 3):
        x, w = rng.standard_normal((2, 2, 6, 7, 5)[: rank + 2]), w3[(..., *[0] * (3 - rank))].copy()
        for library in LIBRARIES:
            with backline.use(library):
                for op, weights in ((CONV[rank - 1], w), (TRANSPOSED[rank - 1], w.reshape(2, 4, *w.shape[2:]))):
                    first, last = op(x, weights), op(channels_last(x), channels_last(weights))
                    assert first.flags.c_contiguous
                    assert np.moveaxis(last, 1, -1).flags.c_contiguous
                    np.testing.assert_allclose(first, last, rtol=1e-12, atol=1e-12)
                    assert op(LAYOUTS["steps"](x), weights).flags.c_contiguous
                grad = CONV[rank - 1](x, w)
                by_input = BY_INPUT[rank - 1](x.shape, w, channels_last(grad))
                assert np.moveaxis(by_input, 1, -1).flags.c_contiguous
                assert BY_INPUT[rank - 1](x.shape, w, grad).flags.c_contiguous
                assert BY_WEIGHT[rank - 1](channels_last(x), w.shape, channels_last(grad)).flags.c_contiguous


# Any shape ------------------------------------------------------------------------------------------------------------


@st.composite
def calls(draw: Any, transposed: bool = False) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of images and weights and the rest of a call that has a result."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    inner, features = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = draw(st.lists(st.integers(1, 4 if rank < 3 else 3), min_size=rank, max_size=rank))
    dilation = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    stride = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    padding = draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    extra = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    image = []
    for span, s, p, e in zip(spans, stride, padding, extra, strict=True):
        least = -(-max(2 * p + 1 - span - e, 0) // s) + 1 if transposed else span - 2 * p
        image.append(draw(st.integers(max(least, 1), max(least, 1) + 5)))
    kwargs: dict[str, Any] = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    if transposed:
        kwargs["output_padding"] = tuple(extra)
    batch = draw(st.integers(1, 3))
    return (batch, groups * inner, *image), (groups * features, inner, *kernel), kwargs


LAX = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@given(calls(), st.sampled_from(LIBRARIES), st.booleans(), st.integers(0, 2**32 - 1))
@LAX
def test_any_convolution(call: Any, library: str, last: bool, seed: int) -> None:
    shape, weight_shape, kwargs = call
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(shape), rng.standard_normal(weight_shape)
    laid = channels_last(x) if last else x
    for name, result in run_each(library, name_of(CONV[len(shape) - 3]), laid, w, **kwargs):
        exact_conv(x, w, **kwargs).check(result, x.dtype, name)


@given(calls(transposed=True), st.sampled_from(LIBRARIES), st.booleans(), st.integers(0, 2**32 - 1))
@LAX
def test_any_transposed_convolution(call: Any, library: str, last: bool, seed: int) -> None:
    shape, weight_shape, kwargs = call
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    w = transposed_weight(rng, x, weight_shape, kwargs["groups"])
    laid = channels_last(x) if last else x
    for name, result in run_each(library, name_of(TRANSPOSED[len(shape) - 3]), laid, w, **kwargs):
        exact_transposed(x, w, **kwargs).check(result, x.dtype, name)


@given(calls(), st.sampled_from(LIBRARIES), st.sampled_from(["float64", "complex128"]), st.integers(0, 2**32 - 1))
@LAX
def test_gradients_are_adjoint(call: Any, library: str, dtype: str, seed: int) -> None:
    """<grad, conv(x, w)> is <by_input(grad), x> and <by_weight(grad), w>."""
    shape, weight_shape, kwargs = call
    rng = np.random.default_rng(seed)
    rank, kind = len(shape) - 2, np.dtype(dtype)
    x, w = random_array(rng, shape, kind), random_array(rng, weight_shape, kind)
    with backline.use(library):
        y = CONV[rank - 1](x, w, **kwargs)
        grad = random_array(rng, y.shape, kind)
        wanted = np.vdot(grad, y)
        by_input = BY_INPUT[rank - 1](shape, w, grad, **kwargs)
        by_weight = BY_WEIGHT[rank - 1](x, weight_shape, grad, **kwargs)
    size = np.vdot(np.abs(grad), np.abs(y)) + float(np.abs(by_input).ravel() @ np.abs(x).ravel()) + 1
    assert abs(np.vdot(by_input, x) - wanted) <= 1e-12 * size
    assert abs(np.vdot(by_weight, w) - wanted) <= 1e-12 * size


@pytest.mark.parametrize("library", LIBRARIES)
def test_gradients_against_differences(library: str, rng: np.random.Generator) -> None:
    """Of half the squared result, by central differences, element by element."""
    x, w = rng.standard_normal((2, 4, 5, 4)), rng.standard_normal((4, 2, 3, 2))
    kwargs: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
    with backline.use(library):
        y = ops.conv2d(x, w, **kwargs)
        found = {"x": grads.conv2d_input(x.shape, w, y, **kwargs), "w": grads.conv2d_weight(x, w.shape, y, **kwargs)}
        for name, array in (("x", x), ("w", w)):
            numeric = np.empty_like(array)
            for at in np.ndindex(array.shape):
                losses = []
                for step in (1e-5, -1e-5):
                    old = array[at]
                    array[at] = old + step
                    losses.append(0.5 * float((ops.conv2d(x, w, **kwargs) ** 2).sum()))
                    array[at] = old
                numeric[at] = (losses[0] - losses[1]) / 2e-5
            np.testing.assert_allclose(found[name], numeric, rtol=1e-6, atol=1e-6)


def test_padding_by_words(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 8, 7))
    for kernel in ((3, 3), (2, 4), (1, 5)):
        w = rng.standard_normal((4, 3, *kernel))
        for dilation in (1, (2, 1)):
            d = dilation if isinstance(dilation, tuple) else (dilation, dilation)
            total = [s * (k - 1) for s, k in zip(d, kernel, strict=True)]
            padded = np.pad(x, [(0, 0), (0, 0), *((n // 2, n - n // 2) for n in total)])
            same = ops.conv2d(x, w, padding="same", dilation=dilation)
            assert same.shape == (2, 4, 8, 7)
            np.testing.assert_allclose(same, ops.conv2d(padded, w, dilation=dilation), rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(
                ops.conv2d(x, w, padding="valid", dilation=dilation), ops.conv2d(x, w, dilation=dilation)
            )
            grad = rng.standard_normal(same.shape)
            by_input = grads.conv2d_input(x.shape, w, grad, padding="same", dilation=dilation)
            assert np.vdot(by_input, x) == pytest.approx(np.vdot(grad, same), rel=1e-9, abs=1e-9)


# Ways to call -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_one_image_without_a_batch(library: str, rng: np.random.Generator) -> None:
    need(library)
    for rank in (1, 2, 3):
        x, w = rng.standard_normal((4, 6, 5, 4)[: rank + 1]), rng.standard_normal((4, 2, 2, 2, 2)[: rank + 2])
        residual = rng.standard_normal((4, 5, 4, 3)[: rank + 1])
        with backline.use(library):
            for op, weights, more in ((CONV[rank - 1], w, residual), (TRANSPOSED[rank - 1], w, None)):
                wanted = op(x[None], weights, groups=2)[0]
                for _ in range(2):  # as chosen, and from the memo
                    np.testing.assert_array_equal(op(x, weights, groups=2), wanted)
                    np.testing.assert_array_equal(op(weight=weights, groups=2, input=x), wanted)
                if more is not None:
                    out = np.empty(wanted.shape)
                    for _ in range(2):
                        assert op(x, weights, groups=2, residual=more, out=out) is out
                        np.testing.assert_allclose(out, wanted + more, rtol=1e-12, atol=1e-12)
                    assert op(x, weights, None, [1] * rank, groups=2, residual=more, out=out) is out
                    np.testing.assert_allclose(out, wanted + more, rtol=1e-12, atol=1e-12)
                assert backline.explain().library == library
                assert backline.explain(op, x, weights, groups=2).library == library
    subclass = type("Sub", (np.ndarray,), {})
    np.testing.assert_array_equal(ops.conv3d(x.view(subclass), w, groups=2), ops.conv3d(x, w, groups=2))
    np.testing.assert_array_equal(ops.conv3d(x.astype(">f8"), w, groups=2), ops.conv3d(x, w, groups=2))
    with backline.trace() as events:
        ops.conv3d(x, w, groups=2)
    assert len(events) == 1


def test_numbers_and_lists(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 4, 8, 9)), rng.standard_normal((4, 4, 3, 3))
    wanted = ops.conv2d(x, w, stride=(2, 2), padding=(1, 1), dilation=(2, 2))
    for two, one in ((2, 1), ([2, 2], [1]), ((2,), (1, 1)), (np.int64(2), np.int32(1)), ((np.int64(2), 2), 1)):
        np.testing.assert_array_equal(ops.conv2d(x, w, None, two, one, two), wanted)
    grad = rng.standard_normal(wanted.shape)
    np.testing.assert_array_equal(
        grads.conv2d_input(list(x.shape), w, grad, 2, [1, 1], 2), grads.conv2d_input(x.shape, w, grad, (2, 2), 1, (2, 2))
    )


def test_operations_are_documented_and_pickle() -> None:
    for op in (*CONV, *TRANSPOSED, *BY_INPUT, *BY_WEIGHT):
        assert ">>> " in op.__doc__
        assert pickle.loads(pickle.dumps(op)) is op


def test_weights_are_read_at_every_call(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((1, 3, 6, 6)), rng.standard_normal((4, 3, 3, 3))
    for library in LIBRARIES:
        with backline.use(library):
            for images in (x, channels_last(x)):
                for weights in (w.copy(), channels_last(w), LAYOUTS["steps"](w)):
                    before = ops.conv2d(images, weights)
                    weights *= 2
                    np.testing.assert_allclose(ops.conv2d(images, weights), 2 * before, rtol=1e-12, atol=1e-12)


def test_always_something_to_run_it(rng: np.random.Generator) -> None:
    """On one thread, at every level of determinism, in every dtype."""
    for dtype in (*DTYPES, "int8", "longdouble", "clongdouble"):
        x, w = (random_array(rng, shape, dtype_of(dtype)) for shape in ((4, 16, 12, 12), (16, 16, 3, 3)))
        for level in ("run", "threads"):
            with backline.num_threads(1), backline.backends.flags(deterministic=True, determinism_level=level):
                assert ops.conv2d(x, w, padding=1).dtype == x.dtype


# Bits and threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", BLAS)
def test_bits_do_not_depend_on_threads(library: str, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((3, 16, 15, 14)), rng.standard_normal((24, 16, 3, 3))
    grad, wt = rng.standard_normal((3, 24, 15, 14)), rng.standard_normal((16, 24, 3, 3))
    lib = need(library)
    checked = 0
    for layout in (np.copy, channels_last):
        a, g = layout(x), layout(grad)
        for op, args in (
            (ops.conv2d, (a, w)), (ops.conv_transpose2d, (a, wt)), (grads.conv2d_input, (x.shape, w, g)), (grads.conv2d_weight, (a, w.shape, g)),
        ):  # fmt: skip
            problem = problem_of(name_of(op), *args, padding=1)
            arrays = [v for v in args if isinstance(v, np.ndarray)]
            results = []
            for threads in (1, 2, 3, 5):
                for algorithm in algorithms(library, problem, threads):
                    assert algorithm.reaches("threads")
                    plan = lib.prepare(problem, algorithm)
                    results += [plan(*arrays).tobytes() for _ in range(2)]
                    checked += 1
            assert len(set(results)) == 1, op.__name__
    assert checked >= 7 * 8 or not lib.traits.pool


def test_one_plan_in_several_threads(rng: np.random.Generator) -> None:
    for library in BLAS:
        lib = need(library)
        x, w = rng.standard_normal((2, 16, 15, 14)), rng.standard_normal((24, 16, 3, 3))
        problem = problem_of("nn.functional.conv2d", channels_last(x), w, padding=1)
        for algorithm in algorithms(library, problem):
            plan = lib.prepare(problem, algorithm)
            images = [channels_last(rng.standard_normal(x.shape)) for _ in range(4)]
            wanted = [plan(image, w) for image in images]
            wrong: list[int] = []

            def work(
                i: int, plan: Any = plan, images: Any = images, wanted: Any = wanted, wrong: Any = wrong, w: Any = w
            ) -> None:
                for _ in range(10):
                    if not np.array_equal(plan(images[i], w), wanted[i]):
                        wrong.append(i)

            workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert not wrong


# Nothing, and what is not a number --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_empty_batches_and_images(library: str, dtype: str) -> None:
    kind = dtype_of(dtype)

    def run(op: Any, shape: tuple[int, ...], weight_shape: tuple[int, ...], bias: Array | None = None, **kwargs: Any) -> Array:
        results = list(run_each(library, name_of(op), np.ones(shape, kind), np.ones(weight_shape, kind), bias, **kwargs))
        assert results or kind.kind == "i" or library != "numpy"
        for _, result in results:
            assert result.dtype == kind
            yield result

    for result in run(ops.conv2d, (0, 3, 5, 5), (4, 3, 3, 3), padding=1):
        assert result.shape == (0, 4, 5, 5)
    for result in run(ops.conv2d, (2, 3, 5, 5), (0, 3, 3, 3)):
        assert result.shape == (2, 0, 3, 3)
    bias = np.arange(4).astype(kind)
    for result in run(ops.conv2d, (2, 0, 5, 5), (4, 0, 3, 3), bias):
        assert result.shape == (2, 4, 3, 3)
        assert (result == bias[:, None, None]).all()
    for result in run(ops.conv2d, (2, 3, 0, 5), (4, 3, 3, 3), padding=(2, 0)):
        assert result.shape == (2, 4, 2, 3) and not result.any()
    for result in run(ops.conv_transpose2d, (0, 3, 5, 5), (3, 4, 3, 3), stride=2):
        assert result.shape == (0, 4, 11, 11)
    for _, result in run_each(
        library, "nn.grad.conv2d_weight", np.ones((0, 3, 5, 5), kind), (4, 3, 3, 3), np.ones((0, 4, 3, 3), kind)
    ):
        assert result.shape == (4, 3, 3, 3)
        assert not result.any()
    for _, result in run_each(
        library, "nn.grad.conv2d_input", (0, 3, 5, 5), np.ones((4, 3, 3, 3), kind), np.ones((0, 4, 3, 3), kind)
    ):
        assert result.shape == (0, 3, 5, 5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_not_finite_passes_through(library: str, value: float, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 3, 7, 8)).astype(np.float32), np.abs(rng.standard_normal((4, 3, 3, 3))).astype(np.float32)
    x[1, 2, 3, 4] = value
    exact = exact_conv(x, w, padding=1)
    touched = np.zeros((2, 4, 7, 8), bool)
    touched[1, :, 2:5, 3:6] = True
    assert (np.isfinite(exact.value.astype(float)) != touched).all()
    for layout in (np.copy, channels_last):
        for name, result in run_each(library, "nn.functional.conv2d", layout(x), w, padding=1):
            assert (np.isfinite(result) != touched).all(), name
            np.testing.assert_array_equal(result[touched], np.full(touched.sum(), value, np.float32))
        for name, result in run_each(library, "nn.functional.conv2d", layout(x), w, padding=1, activation="relu"):
            after = 0.0 if value == -np.inf else value
            np.testing.assert_array_equal(result[touched], np.full(touched.sum(), after, np.float32), name)


# What is refused --------------------------------------------------------------------------------------------------------

X, W, B = np.zeros((2, 4, 8, 9)), np.zeros((6, 4, 3, 3)), np.zeros(6)
REFUSED: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (ops.conv2d, (X.tolist(), W), {}, BadType, "conv2d: input must be a NumPy array, not list"),
    (ops.conv2d, (X, None), {}, BadType, "conv2d: weight must be a NumPy array, not NoneType"),
    (ops.conv2d, (X, W.astype(np.float32)), {}, BadType, "conv2d: input has dtype float64, weight has float32"),
    (ops.conv2d, (X, W, B.astype(int)), {}, BadType, "conv2d: input has dtype float64, bias has int64"),
    (ops.conv2d, (X > 0, W > 0), {}, BadType, "conv2d: input has dtype bool"),
    (ops.conv2d, (X[0, 0], W), {}, BadValue, r"conv2d: input must have 4 dimensions, \(N, C, h, w\), or 3 without a batch; it has shape \(8, 9\)"),
    (ops.conv2d, (X, W[0]), {}, BadValue, r"conv2d: weight must have 4 dimensions, .* it has shape \(4, 3, 3\)"),
    (ops.conv1d, (X, W), {}, BadValue, r"conv1d: input must have 3 dimensions, \(N, C, w\), or 2 without a batch; it has shape \(2, 4, 8, 9\)"),
    (ops.conv2d, (X, W[:, :2]), {}, BadValue, r"conv2d: input has 4 channels, weight of shape \(6, 2, 3, 3\) with groups=1 takes 2"),
    (ops.conv2d, (X, W), {"groups": 2}, BadValue, "with groups=2 takes 8"),
    (ops.conv2d, (X, W[:5, :2]), {"groups": 2}, BadValue, r"weight of shape \(5, 2, 3, 3\) has 5 features, which groups=2 does not divide"),
    (ops.conv2d, (X, W), {"groups": 0}, BadValue, "groups=0"),
    (ops.conv2d, (X, W), {"groups": True}, BadType, "groups=True is not an int"),
    (ops.conv2d, (X, W), {"groups": 2.0}, BadType, "groups=2.0 is not an int"),
    (ops.conv2d, (X, W[..., :0]), {}, BadValue, r"weight of shape \(6, 4, 3, 0\) has a kernel without elements"),
    (ops.conv2d, (X, W, B[:5]), {}, BadValue, r"bias has shape \(5,\), the result has 6 channels"),
    (ops.conv2d, (X, W, B[:, None]), {}, BadValue, r"bias has shape \(6, 1\)"),
    (ops.conv2d, (X, W), {"stride": 0}, BadValue, "stride=0"),
    (ops.conv2d, (X, W), {"stride": (1, -1)}, BadValue, r"stride=\(1, -1\)"),
    (ops.conv2d, (X, W), {"stride": (1, 1, 1)}, BadValue, r"stride=\(1, 1, 1\) has 3 numbers, the images have 2 dimensions"),
    (ops.conv2d, (X, W), {"stride": ()}, BadValue, r"stride=\(\) has 0 numbers"),
    (ops.conv2d, (X, W), {"stride": 1.5}, BadType, "stride=1.5 is not an int or a tuple of 2 ints"),
    (ops.conv2d, (X, W), {"stride": (1, None)}, BadType, r"stride=\(1, None\)"),
    (ops.conv2d, (X, W), {"dilation": 0}, BadValue, "dilation=0"),
    (ops.conv2d, (X, W), {"stride": 2**70}, BadValue, "stride=1180591620717411303424"),
    (ops.conv2d, (X, W), {"padding": 2**31 - 1}, BadValue, "gives a result of shape"),
    (ops.conv_transpose2d, (X, W[:4]), {"stride": 2**31 - 1}, BadValue, "gives a result of shape"),
    (grads.conv2d_input, ((2**31 - 1, 2**31 - 1, 8, 9), W, X), {}, BadValue, "input_size has 2147483647 channels"),
    (ops.conv2d, (X, W), {"padding": -1}, BadValue, "padding=-1"),
    (ops.conv2d, (X, W), {"padding": "full"}, BadValue, "padding='full'"),
    (ops.conv2d, (X, W), {"padding": "same", "stride": 2}, BadValue, r"padding='same' with stride=\(2, 2\)"),
    (ops.conv2d, (X, W), {"dilation": 4}, BadValue, r"images of size \(8, 9\) .* smaller than a kernel of size \(3, 3\)"),
    (ops.conv2d, (X[..., :2], W), {}, BadValue, r"images of size \(8, 2\)"),
    (ops.conv2d, (X, W), {"activation": "gelu"}, BadValue, "activation='gelu'"),
    (ops.conv2d, (X, W), {"activation": 1}, BadType, "activation is a str"),
    (ops.conv2d, (X + 0j, W + 0j), {"activation": "relu"}, BadType, "activation='relu' for complex128"),
    (ops.conv2d, (X, W), {"residual": X}, BadValue, r"residual has shape \(2, 4, 8, 9\), the result has shape \(2, 6, 6, 7\)"),
    (ops.conv2d, (X, W), {"residual": np.zeros((2, 6, 6, 7), np.float32)}, BadType, "residual has float32"),
    (ops.conv2d, (X, W), {"out": X}, BadValue, r"out has shape \(2, 4, 8, 9\), the result has shape \(2, 6, 6, 7\)"),
    (ops.conv2d, (X, W), {"out": np.zeros((2, 6, 6, 7), np.float32)}, BadType, "out has dtype float32"),
    (ops.conv2d, (X[0], W), {"out": np.zeros((1, 6, 6, 7))}, BadValue, r"out has shape \(1, 6, 6, 7\), the result has shape \(6, 6, 7\)"),
    (ops.conv_transpose2d, (X, W), {}, BadValue, r"conv_transpose2d: input has 4 channels, weight of shape \(6, 4, 3, 3\) takes 6"),
    (ops.conv_transpose2d, (X, W[:4]), {"groups": 3}, BadValue, "4 channels, which groups=3 does not divide"),
    (ops.conv_transpose2d, (X, W[:4]), {"padding": "same"}, BadType, "padding='same' is not a number"),
    (ops.conv_transpose2d, (X, W[:4]), {"padding": 6}, BadValue, "padding=6 leaves a result of size -2"),
    (ops.conv_transpose2d, (X, W[:4]), {"output_padding": 1}, BadValue, "output_padding=1"),
    (ops.conv_transpose2d, (X, W[:4]), {"stride": 2, "output_padding": (1, 2)}, BadValue, r"output_padding=\(1, 2\)"),
    (grads.conv2d_input, ((2, 4, 8), W, X), {}, BadValue, r"conv2d_input: input_size=\(2, 4, 8\) has 3 numbers, there are 4 dimensions"),
    (grads.conv2d_input, (8, W, X), {}, BadType, "input_size=8 is not a tuple of 4 ints"),
    (grads.conv2d_input, ((2, 4, 8, 9.0), W, X), {}, BadType, "input_size="),
    (grads.conv2d_input, ((2, 4, 8, 9), W, X), {}, BadValue, r"grad_output has shape \(2, 4, 8, 9\), the convolution has a result of shape \(2, 6, 6, 7\)"),
    (grads.conv2d_input, ((2, 3, 8, 9), W, X), {}, BadValue, "input_size has 3 channels, weight of shape"),
    (grads.conv2d_input, ((2, 4, 8, 9), W[0], X), {}, BadValue, "weight must have 4 dimensions"),
    (grads.conv2d_weight, (X, (6, 4, 3, 3), X.astype(np.float32)), {}, BadType, "input has dtype float64, grad_output has float32"),
    (grads.conv2d_weight, (X, (6, 2, 3, 3), X), {}, BadValue, r"input has 4 channels, weight_size of shape \(6, 2, 3, 3\)"),
    (grads.conv2d_weight, (X, (6, 4, 0, 3), X), {}, BadValue, "has a kernel without elements"),
    (grads.conv2d_weight, (X, (6, 4, 3, -3), X), {}, BadValue, "weight_size="),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0].__name__} {case[4][:30]}")
def test_bad_calls_are_refused(case: Any) -> None:
    op, args, kwargs, kind, text = case
    with pytest.raises(kind, match=text):
        op(*args, **kwargs)


def test_what_is_not_an_argument_is_a_type_error() -> None:
    for call in (
        lambda: ops.conv2d(X),
        lambda: ops.conv2d(X, W, strides=2),
        lambda: ops.conv2d(X, W, B, 1, 0, 1, 1, "relu"),
        lambda: ops.conv2d(),
        lambda: ops.conv2d(X[0], W, B, [1, 1], 0, 1, 1, "relu"),
        lambda: ops.conv2d(X[0], W, B, [1, 1], strides=2),
    ):
        with pytest.raises(TypeError):
            call()


# Beside PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", [*CASES, *THREADED])
def test_as_torch(case: str, last: bool, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    shape, weight_shape, kwargs = {**CASES, **THREADED}[case]
    rank = len(shape) - 2
    x, w, bias = rng.standard_normal(shape), rng.standard_normal(weight_shape), rng.standard_normal(weight_shape[0])
    tx, tw, tb = (torch.tensor(a, requires_grad=True) for a in (x, w, bias))
    f = torch.nn.functional
    wanted = getattr(f, f"conv{rank}d")(tx, tw, tb, **kwargs)
    a = channels_last(x) if last else x
    np.testing.assert_allclose(CONV[rank - 1](a, w, bias, **kwargs), wanted.detach().numpy(), rtol=1e-10, atol=1e-10)
    grad = rng.standard_normal(wanted.shape)
    wanted.backward(torch.tensor(grad))
    np.testing.assert_allclose(BY_INPUT[rank - 1](shape, w, grad, **kwargs), tx.grad.numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(BY_WEIGHT[rank - 1](a, weight_shape, grad, **kwargs), tw.grad.numpy(), rtol=1e-10, atol=1e-10)
    wt = transposed_weight(rng, x, weight_shape, kwargs.get("groups", 1))
    kwargs = {**kwargs, "padding": 0}
    wanted = getattr(f, f"conv_transpose{rank}d")(torch.tensor(x), torch.tensor(wt), **kwargs)
    np.testing.assert_allclose(TRANSPOSED[rank - 1](a, wt, **kwargs), wanted.numpy(), rtol=1e-10, atol=1e-10)
