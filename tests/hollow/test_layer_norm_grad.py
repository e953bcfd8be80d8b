"""The gradients of layer normalisation by rows: numbers against float64, rows and columns, sums in parts, odd numbers, launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries.base import Algorithm
from backline.nn import grad as G
from backline.problems.op_registry import operations
from hollow.nearness import DTYPES, drawn, near, wide

pytestmark = pytest.mark.cupy
Array = Any


def by_rows(*arguments: Any) -> Any:
    found = G.layer_norm_backward(*arguments)
    assert backline.explain().algorithm == "rows", backline.explain()
    return found


def check(here: Any, x: Array, g: Array, axes: int, w: Array | None, dtype: str, put: Any = None) -> None:
    """Holds the three gradients against float64; `put` makes the arrays of the device of the large ones."""
    xp, put = here.xp, put or here.xp.asarray
    shape = x.shape[x.ndim - axes :]
    moved, by_weight, by_bias = by_rows(put(x), put(g), shape, None if w is None else xp.asarray(w), 0.1)
    along, lead = tuple(range(x.ndim - axes, x.ndim)), tuple(range(x.ndim - axes))
    scale = 1.0 if w is None else wide(w)
    inverse = 1 / np.sqrt(wide(x).var(along, keepdims=True) + 0.1)
    normal = (wide(x) - wide(x).mean(along, keepdims=True)) * inverse
    h, grown = wide(g) * scale, 1 + np.abs(normal)
    wanted = inverse * (h - h.mean(along, keepdims=True) - normal * (h * normal).mean(along, keepdims=True))
    most = np.abs(h) + np.abs(h).mean(along, keepdims=True) + grown * (np.abs(h) * grown).mean(along, keepdims=True)
    terms = int(np.prod(shape)) // 32 + 40
    near(moved, wanted, dtype, terms, inverse * most)
    rows = x.size // int(np.prod(shape)) // 16 + 40
    near(by_weight, (wide(g) * normal).sum(lead), dtype, terms + rows, (np.abs(wide(g)) * grown).sum(lead))
    near(by_bias, wide(g).sum(lead), dtype, rows, np.abs(wide(g)).sum(lead))
    steps = [[s for n, s in zip(a.shape, a.strides, strict=True) if n != 1] for a in (moved, put(x))]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length(here: Any, dtype: str) -> None:
    held = "float32" if dtype == "bfloat16" else dtype  # parameters of float32 beside 16-bit floats
    for n in (1, 3, 33, 300, 5000, 20_000):
        rows = 5 if n > 1000 else 37
        x, g = drawn(rows, n, dtype=dtype, mean=1), drawn(n, rows, dtype=dtype).T.copy()
        check(here, x, g, 1, drawn(n, dtype=held), dtype)
        check(here, x, g, 1, None, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_axes_and_columns(here: Any, dtype: str) -> None:
    xp = here.xp
    for shape, axes, order in (((2, 3, 4), 2, (0, 1, 2)), ((7, 6, 5), 2, (1, 2, 0)), ((40, 3, 9), 1, (2, 0, 1)), ((3, 4, 5), 3, (0, 1, 2)), ((2, 1, 4), 2, (0, 2, 1))):
        x, g, w = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype, mean=1), drawn(*shape[3 - axes :], dtype=dtype)
        back = [order.index(axis) for axis in range(3)]
        check(here, x, g, axes, w, dtype, lambda a, order=order, back=back: xp.asarray(np.ascontiguousarray(a.transpose(order))).transpose(back))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_sums_of_many_rows_are_taken_in_parts(here: Any, dtype: str) -> None:
    x, g, w = drawn(6000, 5, dtype=dtype), drawn(6000, 5, dtype=dtype, mean=1), drawn(5, dtype=dtype)
    check(here, x, g, 1, w, dtype)
    problem, library = operations["nn.grad.layer_norm_gradients"].build(x, g, 5, w), libraries.get("cupy")
    from dataclasses import replace

    problem = replace(problem, device="cuda:0")
    plan = next(library.prepare(problem, a) for a in library.algorithms(problem, 1) if isinstance(a, Algorithm) and a.name == "rows")
    arrays = [here.xp.asarray(a) for a in (x, g, w)]
    first = [part.get().tobytes() for part in plan(*arrays)]
    before = here.device.hollow_launches()
    assert [part.get().tobytes() for part in plan(*arrays)] == first
    assert here.device.hollow_launches() - before == 3


def test_nasty_rows_are_as_on_the_host(here: Any) -> None:
    for n in (4, 40, 6000):
        x, g = drawn(7, n, dtype="float32"), drawn(7, n, dtype="float32", mean=1)
        x[0, 1], x[1, n // 2], x[2, 0], x[3, :2] = np.inf, np.nan, -np.inf, (np.inf, -np.inf)
        g[4, 2], g[5, 1] = np.inf, np.nan
        x[6] = 3.0  # no deviation
        for given, slope in ((x, g), (x[6:], g[6:]), (x[4:6], g[4:6])):
            wanted = G.layer_norm_backward(given, slope, n)
            for got, want in zip(by_rows(here.xp.asarray(given), here.xp.asarray(slope), n), wanted, strict=True):
                np.testing.assert_allclose(got.get(), want, rtol=1e-4, atol=1e-4 * n**0.5)


def test_a_large_mean_costs_no_digits(here: Any) -> None:
    x, g = drawn(9, 700, dtype="float32", mean=1e4, scale=0.5), drawn(9, 700, dtype="float32", mean=1)
    found = by_rows(here.xp.asarray(x), here.xp.asarray(g), 700)
    normal = (wide(x) - wide(x).mean(1, keepdims=True)) / np.sqrt(wide(x).var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found[1].get(), (wide(g) * normal).sum(0), rtol=1e-4, atol=1e-4)


def test_the_same_bits_for_every_alignment(here: Any) -> None:
    xp = here.xp
    for dtype, n in (("float32", 513), ("bfloat16", 40_000)):
        x, g = drawn(3, n, dtype=dtype), drawn(3, n, dtype=dtype, mean=1)
        plain, slope, room = xp.asarray(x), xp.asarray(g), xp.zeros(x.size + 8, x.dtype)
        wanted = [part.get().tobytes() for part in by_rows(plain, slope, n)]
        for begin in (1, 3, 4):
            moved = room[begin : begin + x.size].reshape(x.shape)
            moved[...] = plain
            assert [part.get().tobytes() for part in by_rows(moved, slope, n)] == wanted
    gaps = xp.zeros((3, 2 * n), x.dtype)
    gaps[:, ::2] = plain
    assert [part.get().tobytes() for part in by_rows(gaps[:, ::2], slope, n)] == wanted


def test_no_rows_give_zeros(here: Any) -> None:
    for shape in ((0, 6), (3, 0)):
        x = here.xp.zeros(shape, np.float32)
        moved, *sums = G.layer_norm_backward(x, x, shape[1:])
        assert moved.shape == shape and all(v.shape == shape[1:] and not v.any() for v in sums)
