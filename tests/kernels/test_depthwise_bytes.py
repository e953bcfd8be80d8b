"""Depthwise sums of bytes at every level of vector instructions: exact, and within their memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from backline import _kernels
from backline.libraries.kernels.conv_steps import geometry_words
from backline.libraries.kernels.int8_steps import BLOCK
from support import rng, seed

Array = Any
assert rng and seed  # fixtures: imported to be found by pytest

LEVELS = range(_kernels.instruction_level + 1)
GUARD = 64
LEVEL_AT = 26  # of the words of a Geometry


def windows(image: Array, kernel: tuple[int, int], stride: Any, dilation: Any, padding: Any, zero: int) -> Array:
    """Returns what every tap sees at every point: (rows, columns, taps, channels)."""
    full = np.pad(image.astype(np.int64), ((padding[0],) * 2, (padding[1],) * 2, (0, 0)), constant_values=zero)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    rows, columns = ((n - span) // s + 1 for n, span, s in zip(full.shape[:2], spans, stride, strict=True))
    seen = [
        full[y * dilation[0] :: stride[0], x * dilation[1] :: stride[1]][:rows, :columns]
        for y in range(kernel[0])
        for x in range(kernel[1])
    ]  # fmt: skip
    return np.stack(seen, 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_sums_are_exact(rng: np.random.Generator, level: int, dtype: str) -> None:
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 4)(
        _kernels.addresses[f"depthwise_{dtype}"]
    )
    pair = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(_kernels.addresses["pair_weights"])
    limits = np.iinfo(dtype)
    for _ in range(150):
        channels = int(rng.integers(1, 100))
        kernel, stride, dilation, padding = (tuple(map(int, rng.integers(low, high, 2))) for low, high in ((1, 6), (1, 3), (1, 3), (0, 4)))
        size = tuple(int(rng.integers(max((k - 1) * d + 1 - 2 * p, 1), 15)) for k, d, p in zip(kernel, dilation, padding, strict=True))
        image = rng.integers(limits.min, limits.max, (*size, channels), dtype, endpoint=True)
        weights = rng.integers(-128, 127, (kernel[0] * kernel[1], channels), np.int8, endpoint=True)
        zero = np.array([rng.integers(limits.min, limits.max, endpoint=True)], np.int32)
        seen = windows(image, kernel, stride, dilation, padding, int(zero[0]))
        wanted = (seen * weights).sum(2).reshape(-1, channels)
        steps = (0, 1, size[1] * channels, channels)
        words = np.frombuffer(
            geometry_words(1, channels, size, kernel, seen.shape[:2], stride, dilation, padding, steps), np.int64
        ).copy()  # fmt: skip
        words[LEVEL_AT] = level
        paired = np.full(2 * -(-channels // BLOCK) * BLOCK * (len(weights) + 1) + GUARD, 0x5A, np.uint8)
        pair(words.ctypes.data, weights.ctypes.data, paired.ctypes.data)
        assert (paired[-GUARD:] == 0x5A).all()
        first = int(rng.integers(len(wanted)))
        count = int(rng.integers(1, len(wanted) - first, endpoint=True))
        sums = np.full((count + 2, channels), 7, np.int32)
        rooms = np.full((2, len(weights) + 2), 7, np.int64), np.full(channels + 1, 7, dtype)
        run(
            words.ctypes.data, image.ctypes.data, paired.ctypes.data, sums[1:].ctypes.data, first, count, zero.ctypes.data,
            rooms[0][0].ctypes.data, rooms[0][1].ctypes.data, rooms[1].ctypes.data,
        )  # fmt: skip
        np.testing.assert_array_equal(sums[1:-1], wanted[first : first + count])
        assert (sums[[0, -1]] == 7).all() and (rooms[0][:, -1] == 7).all() and rooms[1][-1] == 7
