"""oneDNN's layers of bfloat16 keep what is not finite: convolutions with relu, and the largest of windows."""

from __future__ import annotations

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
