"""Pooling: every library, dtype and layout against windows written out one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layers import DTYPES, LAYOUTS, assert_near, by_each, draw, order, wide

import backline
from backline.errors import BadType, BadValue
from backline.nn import functional as F
from backline.problems import Problem
from support import clean, dtype_of, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

OPS = "nn.functional."


def points(n: int, k: int, s: int, p: int, d: int, ceil: bool) -> int:
    room = n + 2 * p - d * (k - 1) - 1
    count = (math.ceil(room / s) if ceil else math.floor(room / s)) + 1
    return count - 1 if ceil and (count - 1) * s >= n + p else count


def by_hand(
    kind: str, x: Array, k: tuple[int, ...], s: tuple[int, ...], p: tuple[int, ...], d: tuple[int, ...] = (1, 1, 1),
    ceil: bool = False, include: bool = True, divisor: int | None = None,
) -> Array:  # fmt: skip
    """Every window on its own, in float64."""
    rank = len(k)
    lead, image = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    sizes = [points(n, *rest, ceil) for n, *rest in zip(image, k, s, p, d, strict=False)]
    flat = wide(x).reshape(-1, *image)
    out = np.empty((len(flat), *sizes))
    for where in itertools.product(*(range(n) for n in sizes)):
        starts = [w * step - margin for w, step, margin in zip(where, s, p, strict=True)]
        taps = [[a + i * gap for i in range(size)] for a, size, gap in zip(starts, k, d, strict=False)]
        inside = [[t for t in tap if 0 <= t < n] for tap, n in zip(taps, image, strict=True)]
        window = flat[np.ix_(range(len(flat)), *inside)].reshape(len(flat), -1)
        if kind == "max":
            out[(slice(None), *where)] = window.max(1) if window.size else -np.inf
            continue
        padded = math.prod(min(a + size, n + margin) - a for a, size, n, margin in zip(starts, k, image, p, strict=True))
        out[(slice(None), *where)] = window.sum(1) / (divisor or (padded if include else window.shape[1]))
    return out.reshape(*lead, *sizes)


CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9), {"kernel_size": 3}),
    ((2, 3, 10), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ((2, 3, 8, 9), {"kernel_size": 2}),
    ((2, 3, 8, 9), {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0)}),
    ((2, 3, 7, 7), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ((2, 3, 5, 6), {"kernel_size": 2, "stride": 5, "ceil_mode": True}),
    ((3, 7, 6), {"kernel_size": 2, "stride": 1}),  # no batch
    ((1, 1, 1, 1), {"kernel_size": 3, "stride": 1, "padding": 1}),
    # One point along an axis, of which padding makes more.
    ((1, 2, 4, 1), {"kernel_size": 2, "stride": 1, "padding": 1}),
    ((2, 3, 1, 5), {"kernel_size": 2, "stride": 1, "padding": 1}),
    ((3, 1, 4), {"kernel_size": (2, 2), "stride": 1, "padding": 1}),
    ((2, 16, 1), {"kernel_size": 4, "stride": 1, "padding": 2}),
    ((1, 3, 2, 1, 1), {"kernel_size": (2, 2, 4), "stride": 1, "padding": (0, 1, 2)}),
    ((2, 2, 5, 6, 4), {"kernel_size": (2, 3, 2), "stride": 2, "padding": (1, 1, 0)}),
    ((2, 16, 30, 40), {"kernel_size": 3, "stride": 2, "padding": 1}),
]


def shown(shape: tuple[int, ...], case: dict[str, Any]) -> tuple[int, tuple[Any, ...]]:
    """Rank of the images, and kernel, stride, padding for each dimension."""
    given = [case["kernel_size"], case.get("stride", case["kernel_size"]), case.get("padding", 0)]
    longest = max((len(v) for v in given if isinstance(v, tuple)), default=0)
    rank = longest or (1 if len(shape) == 3 and shape[0] == 2 else 2)
    return rank, tuple(v if isinstance(v, tuple) else (v,) * rank for v in given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", range(len(CASES)))
def test_pooling(number: int, dtype: str, rng: np.random.Generator) -> None:
    shape, case = CASES[number]
    rank, (k, s, p) = shown(shape, case)
    x = draw(rng, shape, dtype)
    ceil = case.get("ceil_mode", False)
    for what, result in by_each(f"{OPS}max_pool{rank}d", x, **case):
        np.testing.assert_array_equal(wide(result), by_hand("max", x, k, s, p, ceil=ceil), err_msg=what)
        assert result.dtype == x.dtype
    for include in (True, False):
        wanted = by_hand("avg", x, k, s, p, ceil=ceil, include=include)
        for what, result in by_each(f"{OPS}avg_pool{rank}d", x, count_include_pad=include, **case):
            assert_near(result, wanted, dtype, what, 4, 2.0)
    if rank > 1:
        wanted = by_hand("avg", x, k, s, p, ceil=ceil, divisor=5)
        for what, result in by_each(f"{OPS}avg_pool{rank}d", x, divisor_override=5, **case):
            assert_near(result, wanted, dtype, what, 4, 2.0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_geometry_of_windows(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3), "rank")

    def each(low: int, high: int, name: str) -> tuple[int, ...]:
        return tuple(data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank), name))

    image, k, s, d = each(1, 7, "image"), each(1, 4, "kernel"), each(1, 5, "stride"), each(1, 3, "dilation")
    p = tuple(min(n, (gap * (size - 1) + 1) // 2) for n, size, gap in zip(each(0, 3, "padding"), k, d, strict=True))
    ceil, include = data.draw(st.booleans(), "ceil"), data.draw(st.booleans(), "include")
    x = np.arange(2 * 3 * math.prod(image), dtype=np.float64).reshape(2, 3, *image) ** 1.5 % 7 - 3
    sizes = [points(n, *rest, ceil) for n, *rest in zip(image, k, s, p, d, strict=True)]
    if min(sizes) < 1:
        with pytest.raises(BadValue, match="covers"):
            getattr(F, f"max_pool{rank}d")(x, k, s, p, d, ceil)
    else:
        np.testing.assert_array_equal(getattr(F, f"max_pool{rank}d")(x, k, s, p, d, ceil), by_hand("max", x, k, s, p, d, ceil))
    p = tuple(min(m, size // 2) for m, size in zip(p, k, strict=True))
    if min(points(n, *rest, 1, ceil) for n, *rest in zip(image, k, s, p, strict=True)) >= 1:
        result = getattr(F, f"avg_pool{rank}d")(x, k, s, p, ceil, include)
        np.testing.assert_allclose(result, by_hand("avg", x, k, s, p, ceil=ceil, include=include), rtol=1e-13, atol=1e-13)
    output = each(1, 8, "output")
    result = getattr(F, f"adaptive_avg_pool{rank}d")(x, output)
    np.testing.assert_allclose(result, adaptive_by_hand(x, output), rtol=1e-13, atol=1e-13)


def adaptive_by_hand(x: Array, output: tuple[int, ...]) -> Array:
    result = np.empty((*x.shape[: x.ndim - len(output)], *output))
    image = x.shape[x.ndim - len(output) :]
    for where in itertools.product(*(range(n) for n in output)):
        parts = [slice(i * n // m, math.ceil((i + 1) * n / m)) for i, n, m in zip(where, image, output, strict=True)]
        window = wide(x)[(..., *parts)]
        result[(..., *where)] = window.mean(tuple(range(-len(output), 0)))
    return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_adaptive_pooling(dtype: str, rng: np.random.Generator) -> None:
    x = draw(rng, (2, 3, 8, 9), dtype)
    for output in (1, (8, 9), (4, 3), (3, 4), (11, 2), (None, 3), (2, None)):
        full = tuple(n if m is None else m for n, m in zip((8, 9), output if isinstance(output, tuple) else (1, 1), strict=True))
        for what, result in by_each(f"{OPS}adaptive_avg_pool2d", x, output):
            assert_near(result, adaptive_by_hand(x, full), dtype, what, 4, 1.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pooling_keeps_the_order_of_axes(layout: str, rng: np.random.Generator) -> None:
    x = LAYOUTS[layout](draw(rng, (2, 4, 7, 9), "float32"))
    plain = x.copy()
    for what, a, b in (
        ("max", F.max_pool2d(x, 3, 2, 1), F.max_pool2d(plain, 3, 2, 1)),
        ("average", F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(plain, 3, 2, 1)),
        ("adaptive", F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_avg_pool2d(plain, (3, 2))),
    ):
        assert order(a) == order(x), what
        assert_near(a, wide(b), "float32", what, 4, 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite(dtype: str) -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 0, 1], x[0, 0, 3, 3], x[0, 0, 0, 2], x[0, 0, 2, 0] = np.nan, np.inf, -np.inf, -np.inf
    x = x.astype(dtype_of(dtype))
    for what, result in by_each(f"{OPS}max_pool2d", x, 2):
        np.testing.assert_array_equal(wide(result)[0, 0], [[np.nan, 0], [0, np.inf]], err_msg=what)
    for what, result in by_each(f"{OPS}avg_pool2d", x, 2):
        np.testing.assert_array_equal(wide(result)[0, 0], [[np.nan, -np.inf], [-np.inf, np.inf]], err_msg=what)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("stride", [(), []])
def test_an_empty_stride_is_the_size_of_the_window(name: str, stride: Any) -> None:
    x = np.arange(48.0).reshape(1, 1, 6, 8)
    assert np.array_equal(getattr(F, name)(x, (2, 3), stride), getattr(F, name)(x, (2, 3)))


def test_padding_is_below_every_number() -> None:
    x = np.full((1, 1, 3), -5.0)
    np.testing.assert_array_equal(F.max_pool1d(x, 3, 1, 1), x)
    np.testing.assert_array_equal(F.max_pool1d(np.full((1, 1, 3), -np.inf), 3, 1, 1), np.full((1, 1, 3), -np.inf))


def test_sums_do_not_overflow() -> None:
    x = np.full((1, 1, 64), 60000, np.float16)
    assert F.avg_pool1d(x, 64).item() == np.float16(60000)
    with backline.backends.flags(only=("numpy",)):  # vendors add up in float32
        assert F.avg_pool1d(np.full((1, 1, 4), 3e38, np.float32), 4).item() == np.float32(3e38)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4), (0, 4, 4)])
def test_empty_in_empty_out(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    wanted = (*shape[:-2], 2, 2)
    assert F.max_pool2d(x, 2).shape == F.avg_pool2d(x, 2).shape == F.adaptive_avg_pool2d(x, 2).shape == wanted


# Places of the largest elements, and integers ---------------------------------------------------------------------------


def places_by_hand(x: Array, k: tuple[int, ...], s: tuple[int, ...], p: tuple[int, ...], d: tuple[int, ...], ceil: bool) -> Any:
    """The element of every window that no later one beats, and where it is: a NaN beats all, and so does a larger number."""
    rank = len(k)
    lead, image = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    sizes = [points(n, *rest, ceil) for n, *rest in zip(image, k, s, p, d, strict=True)]
    flat = x.reshape(-1, *image)
    values, places = np.empty((len(flat), *sizes), x.dtype), np.empty((len(flat), *sizes), np.int64)
    for where in itertools.product(range(len(flat)), *(range(n) for n in sizes)):
        best = None
        for tap in itertools.product(*map(range, k)):
            at = tuple(w * step - m + t * gap for w, step, m, t, gap in zip(where[1:], s, p, tap, d, strict=True))
            if not all(0 <= i < n for i, n in zip(at, image, strict=True)):
                continue
            value = flat[(where[0], *at)]
            if best is None or value > best or value != value:
                best, values[where], places[where] = value, value, np.ravel_multi_index(at, image)
    return values.reshape(*lead, *sizes), places.reshape(*lead, *sizes)


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_places_of_the_largest_elements(number: int, dtype: str, rng: np.random.Generator) -> None:
    shape, case = CASES[number]
    rank, (k, s, p) = shown(shape, case)
    ceil, pool = case.get("ceil_mode", False), getattr(F, f"max_pool{rank}d")
    numbers = rng.integers(0 if dtype[0] == "u" else -4, 5, shape).astype(dtype_of(dtype))  # many are equal
    strange = numbers.astype(np.float64)
    strange[rng.random(shape) < 0.2] = np.nan
    strange[rng.random(shape) < 0.2] = -np.inf
    strange[rng.random(shape) < 0.1] = np.inf
    for x in (numbers, *([strange.astype(dtype_of(dtype))] if dtype in DTYPES else [])):
        for dilation in (1, 2):
            d = (dilation,) * rank
            if min(points(n, *rest, ceil) for n, *rest in zip(shape[-rank:], k, s, p, d, strict=True)) < 1:
                continue
            values, places = pool(x, **case, dilation=dilation, return_indices=True)
            wanted, there = places_by_hand(x, k, s, p, d, ceil)
            assert values.dtype == x.dtype and places.dtype == np.int64
            inside = by_hand("max", np.ones(shape), k, s, p, d, ceil) == 1  # some windows have no element
            np.testing.assert_array_equal(wide(values)[inside], wide(wanted)[inside])
            np.testing.assert_array_equal(places[inside], there[inside])
            np.testing.assert_array_equal(wide(values), wide(pool(x, **case, dilation=dilation)))
            if dilation == 1:
                flat, where = x.reshape(*shape[:-rank], -1), places.reshape(*shape[:-rank], -1)
                np.testing.assert_array_equal(wide(np.take_along_axis(flat, where, -1)), wide(values.reshape(where.shape)))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_have_a_maximum(dtype: str, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (2, 3, 7, 8), dtype, endpoint=True)
    x[0] = info.min  # the padding must not be larger
    for what, result in by_each(f"{OPS}max_pool2d", x, 3, 2, 1):
        assert result.dtype == x.dtype, what
        np.testing.assert_array_equal(result[0], np.full((3, 4, 4), info.min))
        np.testing.assert_array_equal(result[1, 0, 1, 1], x[1, 0, 1:4, 1:4].max())
    for big in (x.astype(x.dtype.newbyteorder(">")), x[..., ::-1][..., ::-1]):
        np.testing.assert_array_equal(F.max_pool2d(big, 3, 2, 1), F.max_pool2d(x, 3, 2, 1))


def test_places_of_layouts_keywords_and_nothing(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 6, 7)).astype(np.float32)
    wanted = F.max_pool2d(x, 2, return_indices=True)
    assert isinstance(wanted, tuple) and len(wanted) == 2
    for layout, lay in LAYOUTS.items():
        values, places = F.max_pool2d(lay(x), 2, None, 0, 1, False, True)
        np.testing.assert_array_equal(values, wanted[0], err_msg=layout)
        np.testing.assert_array_equal(places, wanted[1], err_msg=layout)
        assert order(values) == order(places) == order(F.max_pool2d(lay(x), 2))
    empty = F.max_pool2d(x[:0], 2, return_indices=True)
    assert empty[0].shape == empty[1].shape == (0, 3, 3, 3) and empty[1].dtype == np.int64
    with backline.backends.flags(benchmark=True):
        np.testing.assert_array_equal(F.max_pool2d(x, 3, return_indices=True)[0], F.max_pool2d(x, 3))
    key = backline.explain(F.max_pool2d, x, 2, return_indices=True).problem.key
    assert "max_pool_indices" in key and Problem.parse(key).key == key


X = np.ones((1, 2, 5, 5), np.float32)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: F.max_pool2d(X[0, 0], 2), BadValue, r"max_pool2d: input must have shape \(N, C, H, W\) or \(C, H, W\), it has \(5, 5\)"),
    (lambda: F.max_pool2d(X, 6), BadValue, "max_pool2d: kernel_size=6 covers 6 points, the images have 5"),
    (lambda: F.max_pool2d(X, 3, dilation=3), BadValue, "covers 7 points"),
    (lambda: F.max_pool2d(X, 2, padding=2), BadValue, "max_pool2d: padding=2 with kernel_size=2"),
    (lambda: F.max_pool2d(X, 0), BadValue, "max_pool2d: kernel_size=0"),
    (lambda: F.max_pool2d(X, (2, 2, 2)), BadValue, "kernel_size"),
    (lambda: F.max_pool2d(X, 2.0), BadType, "kernel_size=2.0"),
    (lambda: F.max_pool2d(X, 2, 0), BadValue, "stride=0"),
    (lambda: F.max_pool2d(X, 2, dilation=0), BadValue, "dilation=0"),
    (lambda: F.max_pool2d(X, 2, ceil_mode=1), BadType, "ceil_mode is True or False"),
    (lambda: F.max_pool2d(X.astype(bool), 2), BadType, "input has dtype bool"),
    (lambda: F.max_pool2d(X, 2, return_indices=1), BadType, "return_indices is True or False"),
    (lambda: F.avg_pool2d(X.astype(int), 2), BadType, "input has dtype int64"),
    (lambda: F.avg_pool2d(X, 2, divisor_override=0), BadValue, "divisor_override=0"),
    (lambda: F.avg_pool2d(X, 2, count_include_pad=None), BadType, "count_include_pad"),
    (lambda: F.adaptive_avg_pool2d(X, 0), BadValue, r"adaptive_avg_pool2d: output_size=\(0, 0\)"),
    (lambda: F.adaptive_avg_pool2d(X, (1, 2, 3)), BadValue, "output_size"),
    (lambda: F.adaptive_avg_pool2d(X[:, :, :0], 1), BadValue, "images without points"),
    (lambda: F.avg_pool3d(X[0], 2), BadValue, r"\(N, C, D, H, W\)"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [1, 3, 16, 33, 70])
def test_integers_of_images_with_channels_last(dtype: str, channels: int, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (3, 9, 10, channels), dtype, endpoint=True).transpose(0, 3, 1, 2)
    assert (x.size >= 1 << 14) == (channels == 70)  # some on one thread, some on several
    for case in ((2,), (3, 2, 1), ((3, 2), (1, 2), (1, 0)), (3, 1, 1, 2)):
        _, (k, s, p) = shown(x.shape, dict(zip(("kernel_size", "stride", "padding"), case, strict=False)))
        d = (case[3:] or (1,)) * 2
        wanted, _ = places_by_hand(x, k, s, p, d, False)
        for what, result in by_each(f"{OPS}max_pool2d", x, *case):
            assert result.dtype == x.dtype, what
            np.testing.assert_array_equal(result, wanted, what)
