"""oneDNN's layers of bfloat16 keep what is not finite: convolutions with relu, and the largest of windows."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline.nn import functional
from support import clean, need

BF16 = ml_dtypes.bfloat16
pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.cpu_kernel]
assert clean


@pytest.fixture(autouse=True)
def onednn() -> None:
    if not need("onednn").traits.engine.bf16:
        pytest.skip("oneDNN has no instructions for bfloat16 on this processor")


def images(value: float, last: bool) -> Any:
    x = np.random.default_rng(1).standard_normal((2, 9, 9, 5)).astype(BF16)
    x[0, 4, 4, 2] = value
    return x.transpose(0, 3, 1, 2) if last else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def wide(x: Any) -> Any:
    return x.astype(np.float32)


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("way", ["plain", "packed", "residual", "in place", "strided out"])
def test_relu_after_a_convolution_is_that_of_its_result(way: str, last: bool, value: float) -> None:
    rng, x = np.random.default_rng(2), images(value, last)
    w, b, residual = (rng.standard_normal(s).astype(BF16) for s in ((6, 5, 3, 3), (6,), (2, 6, 9, 9)))
    added = {"residual": residual.copy()} if way in ("residual", "in place") else {}
    with backline.use("onednn", only=True):
        linear = functional.conv2d(x, w, b, padding=1, **added)
        if way == "packed":
            result = functional.prepack_conv2d(w, b, padding=1, activation="relu")(x)
        elif way == "in place":
            result = functional.conv2d(x, w, b, padding=1, activation="relu", residual=residual, out=residual)
        else:
            out = {"out": np.empty((2, 6, 9, 18), BF16)[..., ::2]} if way == "strided out" else {}
            result = functional.conv2d(x, w, b, padding=1, activation="relu", **added, **out)
    np.testing.assert_array_equal(wide(result), np.maximum(wide(linear), 0))


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("last", [False, True])
def test_max_pool_is_numpys(last: bool, value: float) -> None:
    x = images(value, last)
    with backline.use("numpy", only=True):
        wanted = functional.max_pool2d(x, 3, 2, 1)
    with backline.use("onednn", only=True):
        result = functional.max_pool2d(x, 3, 2, 1)
    np.testing.assert_array_equal(wide(result), wide(wanted))


def laid(x: Any, layout: str) -> Any:
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "rows apart":
        apart = np.full((x.shape[0], x.shape[1] + 7), np.nan, x.dtype)[:, : x.shape[1]]
        apart[...] = x
        return apart
    return np.repeat(x, 2, 1)[:, ::2] if layout == "steps" else x


@pytest.mark.parametrize("layouts", ["C C", "C F", "F C", "F F", "rows apart,rows apart", "steps,steps"])
@pytest.mark.parametrize(
    "m,k,n",
    [(300, 1, 300), (700, 30, 900), (900, 64, 1100), (301, 40, 507), (300, 60, 700), (90, 100, 80), (520, 100, 611), (257, 300, 640), (650, 1001, 1100), (641, 1024, 1030)],
)
def test_products_whose_inner_size_is_padded(m: int, k: int, n: int, layouts: str) -> None:
    """Tiles want other inner sizes. The sums are those of float32, whatever lies beside the operands and was in workspace."""
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((m, k)).astype(BF16), rng.standard_normal((k, n)).astype(BF16)
    wanted, bias = wide(a) @ wide(b), rng.standard_normal(n).astype(BF16)
    first, second = layouts.split("," if "," in layouts else " ")
    out = np.full((m, n), np.nan, BF16)
    with backline.use("onednn", only=True):
        for threads in (1, 2):
            with backline.num_threads(threads):
                for _ in range(2):
                    got = backline.matmul(laid(a, first), laid(b, second))
                    np.testing.assert_allclose(wide(got), wanted, rtol=2**-8, atol=1e-5 * k)
                backline.matmul(laid(a, first), laid(b, second), out=out)
                np.testing.assert_array_equal(wide(out), wide(got))
                summed = backline.addmm(bias, laid(a, first), laid(b, second))
                np.testing.assert_allclose(wide(summed), wanted + wide(bias), rtol=2**-8, atol=1e-5 * k)
        layer = functional.linear(laid(a, first), laid(np.ascontiguousarray(b.T), second), bias, activation="relu")
    np.testing.assert_allclose(wide(layer), np.maximum(wanted + wide(bias), 0), rtol=2**-8, atol=1e-5 * k)


def test_padding_an_inner_size_keeps_what_is_not_finite() -> None:
    a, b = np.ones((400, 40), BF16), np.ones((40, 500), BF16)
    a[3, 39], b[0, 7] = np.inf, np.nan
    with backline.use("onednn", only=True):
        got = wide(backline.matmul(a, b))
    wanted = wide(a) @ wide(b)
    np.testing.assert_array_equal(got, wanted)
    assert np.isinf(wanted[3]).sum() == 499 and np.isnan(wanted[:, 7]).all()


def test_inner_sizes_are_padded_only_for_tiles() -> None:
    """A kernel that takes tiles of a whole inner size is left as it is; one without tiles gets the first size that has them."""
    if not need("onednn").traits.engine.amx:
        return
    with backline.use("onednn", only=True):
        for m, k, n, padded in (900, 64, 1100, 0), (900, 96, 1100, 0), (900, 40, 1100, 64), (700, 30, 900, 128), (700, 96, 900, 128):
            backline.matmul(np.ones((m, k), BF16), np.ones((k, n), BF16))
            found = re.search(r"padded to (\d+)", str(backline.explain()))
            assert int(found[1] if found else 0) == padded, (m, k, n)


def test_a_large_matrix_by_rows_is_laid_in_blocks() -> None:
    """Only there: by columns, in few rows of A and where level-2 caches hold it, oneDNN's own copies are as fast."""
    tiles = need("onednn").traits.engine.amx
    a, few, b = np.ones((640, 1024), BF16), np.ones((639, 1024), BF16), np.ones((1024, 1024), BF16)
    with backline.use("onednn", only=True):
        for left, right, large in (a, b, True), (few, b, False), (a, np.asfortranarray(b), False), (a, b[:, :1023], False):
            backline.matmul(left, right)
            assert ("B laid in blocks" in str(backline.explain())) is (large and tiles), (left.shape, right.shape)
