"""Convolutions of MLX's arrays and their gradients against float64 of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import agree, mx, there

from backline.errors import NoKernel
from backline.nn import functional, grad
from support import clean, dtype_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean

RNG = np.random.default_rng(6)


def draw(shape: tuple[int, ...], name: str = "float32") -> Any:
    return RNG.standard_normal(shape).astype(dtype_of(name))


IMAGE = {1: (11,), 2: (9, 8), 3: (6, 5, 7)}
KERNEL = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}
PLACES: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"stride": 2, "padding": 2, "dilation": 2}, {"groups": 2},
    {"groups": 4, "padding": 1}, {"padding": "same"}, {"stride": 3, "groups": 2, "padding": 1},
]  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_convolutions(rank: int, places: dict[str, Any]) -> None:
    groups = places.get("groups", 1)
    x, weight = draw((2, 4, *IMAGE[rank])), draw((8, 4 // groups, *KERNEL[rank]))
    conv = getattr(functional, f"conv{rank}d")
    plain = agree(conv, x, weight, **places)
    residual = draw(plain.shape)
    agree(conv, x, weight, draw((8,)), **places)
    agree(conv, x, weight, draw((8,)), activation="relu", residual=residual, **places)
    given = {**places}
    agree(getattr(grad, f"conv{rank}d_input"), x.shape, weight, residual, **given)
    agree(getattr(grad, f"conv{rank}d_weight"), x, weight.shape, residual, **given)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "places",
    [{}, {"stride": 2}, {"stride": 2, "output_padding": 1}, {"padding": 2}, {"dilation": 2, "padding": 1}, {"groups": 2, "stride": 3},
     {"stride": 3, "padding": 3, "output_padding": 2, "groups": 2, "dilation": 2}],
    ids=str,
)  # fmt: skip
def test_transposed_convolutions(rank: int, places: dict[str, Any]) -> None:
    x, weight = draw((2, 4, *IMAGE[rank])), draw((4, 6 // places.get("groups", 1), *KERNEL[rank]))
    agree(getattr(functional, f"conv_transpose{rank}d"), x, weight, draw((6,)), **places)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_other_dtypes(name: str) -> None:
    x, weight, bias = draw((2, 4, 9, 8), name), draw((6, 4, 3, 3), name), draw((6,), name)
    agree(functional.conv2d, x, weight, bias, activation="relu")
    agree(functional.conv_transpose2d, x, draw((4, 6, 3, 3), name), bias, stride=2)


@pytest.mark.parametrize(
    ("x", "weight"), [((0, 4, 9, 8), (6, 4, 3, 3)), ((2, 0, 9, 8), (6, 0, 3, 3)), ((2, 4, 9, 8), (0, 4, 3, 3)), ((1, 1, 1, 1), (1, 1, 1, 1))]
)
def test_nothing_and_one(x: Any, weight: Any) -> None:
    agree(functional.conv2d, draw(x), draw(weight), draw((weight[0],)))


def test_one_image_without_a_batch() -> None:
    agree(functional.conv2d, draw((4, 9, 8)), draw((6, 4, 3, 3)), draw((6,)))
    agree(functional.conv1d, draw((4, 9)), draw((6, 4, 3)), residual=draw((6, 7)), activation="relu")
    agree(functional.conv_transpose2d, draw((4, 9, 8)), draw((4, 6, 3, 3)))


def test_what_is_not_finite_stays_at_its_places() -> None:
    x = draw((1, 1, 6, 6))
    x[0, 0, 2, 3] = np.nan
    agree(functional.conv2d, x, np.ones((1, 1, 2, 2), np.float32))


def test_refusals() -> None:
    x, weight = draw((1, 2, 5, 5)), draw((3, 2, 3, 3))
    with pytest.raises(NoKernel, match="not of complex64"):
        functional.conv2d(there(x.astype(np.complex64)), there(weight.astype(np.complex64)))
    with pytest.raises(NoKernel, match="float64 in single precision"):
        functional.conv2d(there(x.astype(np.float64)), there(weight.astype(np.float64)))
    with pytest.raises(NoKernel, match="nothing is written to"):
        functional.conv2d(there(x), there(weight), out=mx.zeros((1, 3, 3, 3)))
