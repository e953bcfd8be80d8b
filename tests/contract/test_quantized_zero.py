"""int8 where the zero point of an input is 0, and sums that one fused operation brings to their scale: as the exact engine has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import quantized as q
from backline.backends import quantized as backend
from support import clean, need, rng, seed

Array = Any
pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.cpu_kernel]
assert clean and rng and seed
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}


@pytest.fixture(autouse=True)
def onednn() -> None:
    """oneDNN where it adds up int8 exactly; some processors cannot."""
    library = need("onednn")
    if library.engine_reason("onednn"):
        pytest.skip(library.engine_reason("onednn"))


def both(pack: Any, *args: Any) -> tuple[Any, Any]:
    with backend.flags(engine="onednn"):
        made = pack(*args)
    with backend.flags(engine="reference"):
        return made, pack(*args)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("channels", "padding", "groups"), [(3, 1, 1), (32, 1, 1), (32, (0, 2), 1), (8, 1, 8), (5, 0, 1)])
def test_one_layer_takes_inputs_with_and_without_a_zero_point(
    channels: int, padding: Any, groups: int, dtype: str, rng: np.random.Generator
) -> None:
    low, high = LIMITS[dtype]
    weight = q.QArray(rng.integers(-127, 128, (16, channels // groups, 3, 3), np.int8), np.full(16, 0.01, np.float32), axis=0)
    bias = rng.uniform(-1, 1, 16).astype(np.float32)
    packed, reference = both(q.conv2d_prepack, weight, bias, 1, padding, 1, groups)
    images = rng.integers(low, high + 1, (2, channels, 9, 8), dtype)
    for given in (images, np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)):
        for zero in (0, 3, 0, high):
            x = q.QArray(given, 0.02, zero)
            wanted = q.conv2d(x, reference, 0.1, 2).int_repr
            for threads in (1, 2):
                with backline.num_threads(threads):
                    assert np.array_equal(q.conv2d(x, packed, 0.1, 2).int_repr, wanted), (zero, threads)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("terms", [1, 300])
def test_factors_of_every_size(terms: int, dtype: str, rng: np.random.Generator) -> None:
    """Powers of 2 put many products in the middle between two integers; others are close to it, or far outside the dtype."""
    low, high = LIMITS[dtype]
    weight = rng.integers(-127, 128, (130, terms), np.int8)
    x = rng.integers(low, high + 1, (9, terms), dtype)
    for exponent in (-24, -16, -15, -9, -4, -1, 0, 5, 12, 40):
        for more in (1.0, 1.0 + 2.0**-23, 4 / 3):
            unit = np.full(130, np.float32(2.0**exponent * more))
            unit[::2] *= np.float32(0.5)
            bias = (rng.integers(-50, 50, 130) * unit).astype(np.float32)
            packed, reference = both(q.linear_prepack, q.QArray(weight, unit, axis=0), bias)
            for zero in (0, low, high, 1):
                given = q.QArray(x, 1.0, 0)
                assert np.array_equal(
                    q.linear(given, packed, 1.0, zero).int_repr, q.linear(given, reference, 1.0, zero).int_repr
                ), (exponent, more)
