"""Operations that only a Mac with a Metal device shows: on the GPU, against float64 of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import agree, back, mx, there

import backline
from backline import fft
from backline.libraries import presence
from backline.nn import functional
from support import clean, dtype_of

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.other_os,
    pytest.mark.skipif(not mx.metal.is_available(), reason="MLX has no Metal device here"),
]
assert clean

RNG = np.random.default_rng(11)
TF32 = 2.0**13  # float32 may be reduced so far, on the newest chips


def draw(shape: tuple[int, ...], name: str = "float32") -> Any:
    return np.asarray(RNG.standard_normal(shape)).astype(dtype_of(name))


def on_metal() -> bool:
    chosen = backline.explain().candidates[0]
    return chosen.verdict == "chosen" and chosen.detail is not None and "metal" in chosen.detail.traits


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_products_and_layers(name: str) -> None:
    times = TF32 if name == "float32" else 64
    x, weight, bias = draw((64, 96), name), draw((32, 96), name), draw((32,), name)
    agree(backline.matmul, x, weight.T.copy(), times=times)
    assert on_metal()
    agree(backline.addmm, bias, x, weight.T.copy(), alpha=2, beta=-1, times=times)
    agree(functional.linear, x, weight, bias, activation="gelu", times=times)
    agree(functional.conv2d, draw((2, 4, 9, 8), name), draw((8, 2, 3, 3), name), draw((8,), name), groups=2, times=times)
    agree(functional.conv_transpose2d, draw((2, 4, 9, 8), name), draw((4, 6, 3, 3), name), stride=2, padding=3, times=times)
    for op in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        agree(getattr(functional, op), x, times=64)
    agree(functional.softmax, x, 1, times=64)
    agree(functional.layer_norm, x, 96, times=64)
    agree(functional.max_pool2d, draw((2, 3, 9, 8), name), 3, padding=1)
    assert on_metal()


@pytest.mark.parametrize("lengths", [(64, 64), (64, 80), (1, 64)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_fused_attention(lengths: Any, causal: bool) -> None:
    q, k, v = draw((2, 4, lengths[0], 64), "float16"), draw((2, 2, lengths[1], 64), "float16"), draw((2, 2, lengths[1], 64), "float16")
    agree(functional.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=True, times=64)
    assert backline.explain().algorithm == "flash_attention"


def test_rows_that_a_mask_empties_are_zeros() -> None:
    q, k, v = (draw((1, 2, 32, 64), "float16") for _ in range(3))
    taken = np.ones((32, 32), bool)
    taken[5] = False
    result = agree(functional.scaled_dot_product_attention, q, k, v, taken, times=64)
    assert not result[..., 5, :].any()


@pytest.mark.parametrize("n", [7, 64, 97, 4096, 10007])
def test_transforms(n: int) -> None:
    agree(fft.fft, (draw((2, n)) + 1j * draw((2, n))).astype(np.complex64), times=256)
    assert on_metal()


def test_what_stays_on_the_cpu_stream() -> None:
    a = np.eye(4) + 0.1 * draw((4, 4), "float64")
    agree(backline.matmul, a, a)
    assert not on_metal()
    agree(backline.linalg.inv, a.astype(np.float32), times=64)
    assert not on_metal()
    with backline.backends.mps.flags(enabled=False):
        agree(backline.matmul, a.astype(np.float32), a.astype(np.float32))
        assert not on_metal()


def test_the_info_of_cholesky_is_lapack_s_there_too() -> None:
    a = np.eye(80, dtype=np.float32)
    a[69, 69] = -5
    assert int(back(backline.linalg.cholesky_ex(there(a)).info)) == 70


def test_the_device_has_a_name() -> None:
    assert backline.backends.mps.get_name() and presence.metal_facts()["name"] == backline.backends.mps.get_name()
