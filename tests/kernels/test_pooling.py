"""Largest elements and means of windows of float32 and float64 by a compiled loop: against NumPy, at every level of instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import _kernels, backends
from backline.engine import plan_caches
from backline.errors import NoKernel
from backline.libraries.kernels import pooling_loops
from backline.nn import functional
from support import clean, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

LEVELS = range(_kernels.instruction_level + 1)
NASTY = (np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e37)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(pooling_loops, "vector_level", lambda: request.param)
    plan_caches.clear()
    yield request.param
    plan_caches.clear()


def images(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, last: int | None, nasty: bool) -> Array:
    """Random images, the axis `last` the innermost in memory."""
    made = rng.standard_normal(shape).astype(dtype)
    if nasty:
        made.flat[rng.integers(made.size, size=5)] = rng.choice(NASTY, 5)
    return made if last is None else np.moveaxis(np.ascontiguousarray(np.moveaxis(made, last, -1)), -1, last)


def both(op: str, x: Array, *window: Any, **words: Any) -> tuple[Array, Array]:
    function = getattr(functional, f"{op}_pool{len(window[0])}d")
    with backends.flags(only=("kernels",)):
        found = function(x, *window, **words)
        assert backline.explain().library == "kernels"
    with backends.flags(only=("numpy",)):
        return found, function(x, *window, **words)


def drawn(rng: np.random.Generator, rank: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(low, high, rank))


@pytest.mark.parametrize("op", ["max", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 2])
def test_every_window(rng: np.random.Generator, level: int, op: str, dtype: str, rank: int) -> None:
    tried = 0
    while tried < 60:
        size, kernel, stride = drawn(rng, rank, 1, 45), drawn(rng, rank, 1, 6), drawn(rng, rank, 1, 5)
        padding = tuple(int(rng.integers(0, n // 2 + 1)) for n in kernel)
        dilation = drawn(rng, rank, 1, 4) if op == "max" else (1,) * rank
        if any(n + 2 * p < (k - 1) * d + 1 for n, p, k, d in zip(size, padding, kernel, dilation, strict=True)):
            continue
        tried += 1
        lead = drawn(rng, int(rng.integers(1, 3)), 1, 36)
        last = len(lead) - 1 if rng.random() < 0.5 else None
        x = images(rng, (*lead, *size), dtype, last, bool(tried % 2))
        words = {"dilation": dilation, "ceil_mode": bool(rng.integers(2))} if op == "max" else {"count_include_pad": bool(rng.integers(2))}
        with backline.num_threads(1 + tried % 2):
            found, wanted = both(op, x, kernel, stride, padding, **words)
        what = f"{x.shape} {x.strides} {kernel} {stride} {padding} {words}"
        assert found.dtype == wanted.dtype and found.shape == wanted.shape, what
        shown = np.moveaxis(found, last, -1) if last is not None else found
        # The input may lie both ways: channels last is the usual order as well where there is one pixel, or one channel.
        assert shown.flags.c_contiguous or (x.flags.c_contiguous and found.flags.c_contiguous), what
        if op == "max":
            np.testing.assert_array_equal(found, wanted, what)
            continue
        # NumPy adds up in float64: a sum of that many terms loses as many roundings, of the sum of what its terms are without signs.
        size_of, wide = np.prod(kernel), np.isfinite(found) & np.isfinite(wanted)
        with np.errstate(over="ignore", invalid="ignore"):
            np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), what)
            whole = np.abs(np.where(np.isfinite(x), x, 0)).astype(np.float64)
        bound = (size_of + 1) * np.finfo(dtype).eps * both("avg", whole, kernel, stride, padding, **words)[1]
        assert (np.abs(found[wide].astype(np.float64) - wanted[wide]) <= bound[wide] + size_of * np.finfo(dtype).tiny).all(), what


def test_a_window_with_nan_is_nan_and_one_of_padding_the_least_number(level: int) -> None:
    for last in (None, 1):
        for at in range(4):
            x = np.zeros((1, 9, 2, 2), np.float32)
            x.reshape(9, 4)[:, at] = np.nan
            x = x if last is None else np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
            assert np.isnan(both("max", x, (2, 2))[0]).all() and np.isnan(both("avg", x, (2, 2))[0]).all()
        x = np.zeros((1, 9, 2, 2), np.float32)
        x = x if last is None else np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
        found, wanted = both("max", x, (2, 2), (1, 1), (1, 1), dilation=(3, 3))
        np.testing.assert_array_equal(found, wanted)
        assert np.isneginf(found).any()


def test_threads_give_the_same_bits(rng: np.random.Generator) -> None:
    for shape, last in (((5, 33, 40, 41), 1), ((5, 33, 40, 41), None)):
        x = images(rng, shape, "float32", last, False)
        made = []
        for threads in (1, 2):
            with backline.num_threads(threads), backends.flags(only=("kernels",)):
                made.append(functional.avg_pool2d(x, 3, 2, 1))
        np.testing.assert_array_equal(made[0], made[1])


def test_arrays_that_the_loop_does_not_take_are_refused_with_a_reason() -> None:
    x = np.zeros((2, 3, 4, 4), np.float32)
    for given, function, reason in (
        (x[:, :, ::2], functional.max_pool2d, "gaps between elements"),
        (x[None], functional.max_pool3d, "one or two dimensions"),
        (x.astype(np.float16), functional.avg_pool2d, "not float16"),
    ):
        with backends.flags(only=("kernels",)), pytest.raises(NoKernel, match=reason):
            function(given, 2)
