"""Frames times a window, and squared magnitudes: NumPy's, bit by bit."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from backline import _kernels

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
LEVELS = range(_kernels.instruction_level + 1)


def same_bits(found: Any, wanted: Any) -> bool:
    """Tells if two arrays are the same to the last bit, NaN apart, which has many forms."""
    numbers = ~np.isnan(wanted)
    return (
        found.dtype == wanted.dtype
        and np.array_equal(found, wanted, equal_nan=True)
        and found[numbers].tobytes() == wanted[numbers].tobytes()
    )


def nasty(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng([SEED, *shape])
    limits = np.finfo(dtype)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape)).astype(dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, limits.tiny, limits.max, -limits.max, limits.smallest_subnormal]
    x.reshape(-1)[: len(special)] = np.array(special, dtype)[: x.size]
    return x


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("count", "length", "points", "hop"), [(1, 1, 1, 1), (3, 40, 7, 3), (2, 100, 33, 50), (1, 40_000, 512, 160)]
)
def test_frames_are_those_of_numpy(count: int, length: int, points: int, hop: int, dtype: str, level: int) -> None:
    x, window = nasty((count, length), dtype), nasty((points,), dtype)
    with np.errstate(all="ignore"):
        wanted = sliding_window_view(x, points, axis=1)[:, ::hop] * window
    frames = wanted.shape[1]
    for threads in (1, 2):
        for first in {0, count * frames // 2}:
            found = np.empty((count * frames - first, points), dtype)
            _kernels.windowed_frames(x, window, found, frames, hop, first, level, threads)
            assert same_bits(found, wanted.reshape(-1, points)[first:])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 7), (300, 257)])
def test_squares_are_those_of_numpy(shape: tuple[int, int], dtype: str, level: int) -> None:
    x = np.ascontiguousarray(nasty((shape[0], 2 * shape[1]), dtype)).view(np.dtype(dtype).char.upper())
    with np.errstate(all="ignore"):
        wanted = x.real**2 + x.imag**2
    for threads in (1, 2):
        found = np.empty(shape, dtype)
        _kernels.squared_magnitudes(x, found, level, threads)
        assert same_bits(found, wanted)


def test_other_arrays_are_refused() -> None:
    x, window, to = np.ones((2, 9)), np.ones(4), np.empty((4, 4))
    fixed = np.empty((4, 4))
    fixed.flags.writeable = False
    for given in (
        (x[0], window, to, 2, 4, 0), (x[:, ::2], window, to, 2, 1, 0), (x.astype("f"), window, to, 2, 4, 0),
        (x, window[:3], to, 2, 4, 0), (x, window, fixed, 2, 4, 0), (x, window, to, 3, 4, 0), (x, window, to, 2, 4, 1),
        (x, window, to, 2, 0, 0), (x, window, to, 0, 4, 0), (x, window, to, 2, 4, -1), (x.astype(int), window, to, 2, 4, 0),
        ([1.0], window, to, 2, 4, 0), (x.astype(">f8"), window, to, 2, 4, 0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"array|frames"):
            _kernels.windowed_frames(*given, 0, 1)
    with pytest.raises(ValueError, match="level"):
        _kernels.windowed_frames(x, window, to, 2, 4, 0, 3, 1)
    spectra = np.ones((2, 3), complex)
    for one, other in (
        (spectra, np.empty((2, 2))),
        (spectra, np.empty((2, 3), "f")),
        (spectra.real, np.empty((2, 3))),
        (spectra[0], np.empty((1, 3))),
    ):
        with pytest.raises(ValueError, match=r"array|elements"):
            _kernels.squared_magnitudes(one, other, 0, 1)
    with pytest.raises(ValueError, match="level"):
        _kernels.squared_magnitudes(spectra, np.empty((2, 3)), -1, 1)
