"""Fourier transforms of MLX's arrays against float64 of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import agree, mx, there

from backline import fft
from backline.errors import NoKernel
from support import clean, dtype_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean

RNG = np.random.default_rng(8)
ONE, SEVERAL = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), ("fft2", "ifft2", "fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn", "rfft2")
NORMS = (None, "backward", "ortho", "forward")


def draw(op: str, shape: tuple[int, ...]) -> Any:
    x = RNG.standard_normal(shape)
    return x.astype(np.float32) if op.lstrip("i").startswith(("rfft", "hfft")) and op[0] != "h" and not op.startswith("ir") else (
        x + 1j * RNG.standard_normal(shape)
    ).astype(np.complex64)


@pytest.mark.parametrize("op", ONE)
@pytest.mark.parametrize("n", [2, 3, 7, 16, 97, 100])
def test_lines(op: str, n: int) -> None:
    for norm in NORMS:
        agree(getattr(fft, op), draw(op, (2, n)), norm=norm, dtype="")
    agree(getattr(fft, op), draw(op, (3, n, 2)), n + 1, 1)
    agree(getattr(fft, op), draw(op, (3, n, 2)), max(n - 1, 1), 1)


@pytest.mark.parametrize("op", SEVERAL)
def test_several_axes(op: str) -> None:
    for norm in NORMS:
        agree(getattr(fft, op), draw(op, (3, 4, 6)), norm=norm)
    agree(getattr(fft, op), draw(op, (3, 4, 6)), (5, 4), (2, 0))


def test_real_numbers_and_halves() -> None:
    x = RNG.standard_normal((2, 12))
    for name in ("float16", "bfloat16", "float32"):
        given = x.astype(dtype_of(name))
        for op in ("fft", "ifft", "rfft", "irfft"):
            result = getattr(fft, op)(there(given))
            assert result.dtype == (mx.float32 if op == "irfft" else mx.complex64)
    agree(fft.fft, x.astype(np.float32), dtype="complex64")
    agree(fft.irfft, x.astype(np.float32))


def test_nothing_and_one_point() -> None:
    agree(fft.fft, np.zeros((0, 4), np.complex64))
    agree(fft.fft, np.zeros((2, 0), np.complex64), 4)
    agree(fft.fft, np.full((2, 1), 3, np.complex64))
    agree(fft.rfft, np.full((2, 1), 3, np.float32))
    agree(fft.fftn, np.full((2, 1), 3, np.complex64), dim=())


def test_what_is_not_finite() -> None:
    x = np.ones((2, 8), np.complex64)
    x[1, 3] = np.nan
    agree(fft.fft, x)


def test_refusals() -> None:
    for dtype in (mx.float64, mx.int32, mx.bool_):
        with pytest.raises(NoKernel, match="single precision"):
            fft.fft(mx.zeros((4,), dtype))
    with pytest.raises(NoKernel, match="no cosine and sine"):
        fft.dct(mx.zeros((4,)))
    with pytest.raises(NoKernel, match="nothing is written to"):
        fft.fft(mx.zeros((4,)), out=mx.zeros((4,), mx.complex64))
