"""Gradients of transposed convolutions: against direct loops over the elements of the kernel, in the widest type that NumPy has."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline.errors import BadType, BadValue, TooLarge
from backline.nn import functional as F
from backline.nn import grad as G
from support import (
    FLOATS,
    LAYOUTS,
    LIBRARIES,
    assert_close,
    clean,
    dtype_of,
    need,
    numpy_on_one_thread,
    random_array,
    rng,
    roundoff,
    seed,
    wide,
)

Array = Any
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed

# input, weight, keywords
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 5, 4), (3, 4, 3, 2), {}),
    "strides": ((2, 3, 4, 4), (3, 2, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "signal": ((2, 4, 7), (4, 3, 3), {"stride": 3, "padding": 2, "dilation": 2, "output_padding": 2}),
    "volume": ((1, 2, 3, 2, 3), (2, 3, 2, 2, 2), {"stride": (1, 2, 1), "padding": (0, 1, 0)}),
    "groups": ((2, 4, 3, 3), (4, 3, 2, 2), {"groups": 2, "stride": (2, 1)}),
    "depthwise": ((1, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    # The convolution of the gradient has more points than the input.
    "wide output padding": ((2, 2, 4, 3), (2, 3, 2, 2), {"dilation": 4, "output_padding": (3, 2), "padding": 1}),
    "wider than the padding": ((1, 2, 4), (2, 2, 3), {"dilation": 3, "stride": 2, "output_padding": 2}),
    "one point": ((3, 2, 1, 1), (2, 2, 1, 1), {}),
}


def exact(x: Array, w: Array, grad: Array, **kwargs: Any) -> tuple[Array, Array]:
    """Gradients by input and weights; of the absolute values they are the sizes of what was added."""
    rank = w.ndim - 2
    stride, padding, dilation = (np.broadcast_to(kwargs.get(name, usual), rank) for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1)))
    groups = kwargs.get("groups", 1)
    by_input, by_weight = np.zeros_like(x), np.zeros_like(w)
    c, o = x.shape[1] // groups, w.shape[1]
    for tap in itertools.product(*map(range, w.shape[2:])):
        for point in itertools.product(*map(range, x.shape[2:])):
            at = tuple(int(i * s - p + d * k) for i, s, p, d, k in zip(point, stride, padding, dilation, tap, strict=True))
            if any(not 0 <= a < n for a, n in zip(at, grad.shape[2:], strict=True)):
                continue
            for g in range(groups):
                channels, features = slice(g * c, (g + 1) * c), slice(g * o, (g + 1) * o)
                part = grad[(slice(None), features, *at)]
                by_input[(slice(None), channels, *point)] += part @ w[(channels, slice(None), *tap)].conj().T
                by_weight[(channels, slice(None), *tap)] += x[(slice(None), channels, *point)].conj().T @ part
    return by_input, by_weight


def functions(rank: int) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    return getattr(F, f"conv_transpose{rank}d"), getattr(G, f"conv_transpose{rank}d_input"), getattr(G, f"conv_transpose{rank}d_weight")


def channels_last(x: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


@pytest.mark.parametrize("dtype", [*FLOATS, "float16", "int32"])
@pytest.mark.parametrize("case", CASES)
def test_gradients(case: str, dtype: str, rng: np.random.Generator) -> None:
    shape, weights, kwargs = CASES[case]
    kind = dtype_of(dtype)
    forward, by_input, by_weight = functions(len(shape) - 2)
    x, w = random_array(rng, shape, kind), random_array(rng, weights, kind)
    grad = random_array(rng, forward(x, w, **kwargs).shape, kind)
    lift = (lambda a: a.astype(np.int64)) if kind.kind == "i" else wide
    wanted = exact(lift(x), lift(w), lift(grad), **kwargs)
    sizes = exact(*(np.abs(lift(a)) for a in (x, w, grad)), **kwargs)
    unit = roundoff(kind) * (200 if kind.name == "float16" else 100)
    for layout, arrange in (*LAYOUTS.items(), ("channels last", channels_last)):
        given = [arrange(a) for a in (x, w, grad)]
        found = by_input(shape, given[1], given[2], **kwargs), by_weight(given[0], weights, given[2], **kwargs)
        for what, got, value, size in zip(("by input", "by weight"), found, wanted, sizes, strict=True):
            assert got.dtype == kind and got.dtype.isnative, f"{what} {layout}"
            assert_close(got, value, size * unit, f"{what} {layout}")
        assert all(np.array_equal(a, b) for a, b in zip(given, (x, w, grad), strict=True))


@pytest.mark.parametrize("library", [*LIBRARIES, "onednn"])
def test_every_library_that_has_the_convolutions(library: str, rng: np.random.Generator) -> None:
    need(library)
    shape, weights, kwargs = CASES["strides"]
    _, by_input, by_weight = functions(2)
    x, w = random_array(rng, shape, np.dtype("f")), random_array(rng, weights, np.dtype("f"))
    grad = random_array(rng, F.conv_transpose2d(x, w, **kwargs).shape, x.dtype)
    wanted = exact(wide(x), wide(w), wide(grad), **kwargs)
    with backline.use(library, only=True), backline.trace() as events:
        found = by_input(shape, w, grad, **kwargs), by_weight(x, weights, grad, **kwargs)
    assert [e.op for e in events] == ["conv_transpose2d_input", "conv_transpose2d_weight"] and {e.library for e in events} == {library}
    for got, value in zip(found, wanted, strict=True):
        assert np.abs(got - value).max() < 1e-4 * np.abs(value).max()


def test_the_gradient_by_the_input_lies_as_the_gradient_that_is_given(rng: np.random.Generator) -> None:
    shape, weights, kwargs = CASES["wide output padding"]
    for case in ("strides", "wide output padding"):
        shape, weights, kwargs = CASES[case]
        w = random_array(rng, weights, np.dtype("f"))
        grad = random_array(rng, F.conv_transpose2d(np.zeros(shape, "f"), w, **kwargs).shape, w.dtype)
        for arrange in (np.ascontiguousarray, channels_last):
            got = G.conv_transpose2d_input(shape, w, arrange(grad), **kwargs)
            assert got.strides == arrange(np.zeros(shape, "f")).strides


def test_of_no_images_and_of_no_channels() -> None:
    w = np.ones((2, 3, 2, 2))
    assert G.conv_transpose2d_input((0, 2, 4, 4), w, np.ones((0, 3, 5, 5))).shape == (0, 2, 4, 4)
    assert not G.conv_transpose2d_weight(np.ones((0, 2, 4, 4)), w.shape, np.ones((0, 3, 5, 5))).any()
    for call in (  # images without points, which the transposed convolution refuses: there is no gradient of its result
        lambda: G.conv_transpose2d_weight(np.ones((1, 2, 0, 4)), w.shape, np.ones((1, 3, 1, 5))),
        lambda: G.conv_transpose2d_input((1, 2, 0, 4), w, np.ones((1, 3, 1, 5))),
    ):
        with pytest.raises(BadValue, match="Only zero batch or zero channel inputs are supported"):
            call()


X, W, GRAD = np.ones((1, 2, 4, 4)), np.ones((2, 3, 2, 2)), np.ones((1, 3, 5, 5))
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: G.conv_transpose2d_input(X.shape, W, GRAD[..., :4]), BadValue, r"the transposed convolution has a result of shape \(1, 3, 5, 5\)"),
    (lambda: G.conv_transpose2d_weight(X, W.shape, GRAD, stride=2), BadValue, r"result of shape \(1, 3, 8, 8\)"),
    (lambda: G.conv_transpose2d_input(X.shape, W, GRAD.astype("f")), BadType, "float32"),
    (lambda: G.conv_transpose2d_input(4, W, GRAD), BadType, "input_size=4 is not a tuple"),
    (lambda: G.conv_transpose2d_input((1, 2, 4), W, GRAD), BadValue, "has 3 numbers"),
    (lambda: G.conv_transpose2d_input((1, 2, 4, -4), W, GRAD), BadValue, "input_size"),
    (lambda: G.conv_transpose2d_input((2**31 - 1,) * 4, W, GRAD), TooLarge, "so much memory cannot be had"),
    (lambda: G.conv_transpose2d_input((1, 3, 4, 4), W, GRAD), BadValue, "3 channels"),
    (lambda: G.conv_transpose2d_weight(X, (2, 3, 2), GRAD), BadValue, "weight_size"),
    (lambda: G.conv_transpose2d_weight(X, (2, 3, 2, 2.0), GRAD), BadType, "weight_size"),
    (lambda: G.conv_transpose2d_weight(X[0], W.shape, GRAD), BadValue, "input must have 4 dimensions"),
    (lambda: G.conv_transpose2d_weight(None, W.shape, GRAD), BadType, "input must be a NumPy array"),
    (lambda: G.conv_transpose2d_input(X.shape, W, None), BadType, "grad_output must be a NumPy array"),
    (lambda: G.conv_transpose2d_input(X.shape, W, GRAD, output_padding=1), BadValue, "output_padding"),
    (lambda: G.conv_transpose2d_input(X.shape, W, GRAD, padding="same"), BadType, "padding"),
    (lambda: G.conv_transpose2d_input(X.shape, W, GRAD, groups=0), BadValue, "groups"),
    (lambda: G.conv_transpose2d_input(X.shape, W > 0, GRAD > 0), BadType, "bool"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_refused(number: int) -> None:
    call, kind, text = WRONG[number]
    with pytest.raises(kind, match=text):
        call()
