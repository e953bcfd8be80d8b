"""Bytes turned from rows to columns, and spread into columns where a zero point stands for the padding."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backline import _kernels
from backline.libraries.kernels.conv_steps import geometry_words

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
Array = Any


def kernel(name: str, pointers: int, integers: int, after: int = 0) -> Callable[..., None]:
    kinds = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * integers + [ctypes.c_void_p] * after
    return ctypes.CFUNCTYPE(None, *kinds)(_kernels.addresses[name])


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64, 67])
@pytest.mark.parametrize("columns", [1, 3, 8, 15, 16, 131])
def test_bytes_are_turned(rows: int, columns: int) -> None:
    rng = np.random.default_rng([SEED, rows, columns])
    for gap, behind in ((0, 0), (5, 3)):
        whole = rng.integers(0, 256, (rows, columns + gap), np.uint8)
        made = np.full((columns, rows + behind), 7, np.uint8)
        kernel("turn_bytes", 2, 4)(whole.ctypes.data, made.ctypes.data, rows, columns, columns + gap, rows + behind)
        np.testing.assert_array_equal(made[:, :rows], whole[:, :columns].T)
        assert (made[:, rows:] == 7).all(), "what lies between the rows is left alone"


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_bytes_are_spread_into_columns(seed: int, last: bool) -> None:
    rng = np.random.default_rng([SEED, seed])
    channels, height, width = (int(n) for n in rng.integers(1, 24, 3))
    size, stride, dilation, before = (rng.integers(low, high, 2).tolist() for low, high in ((1, 6), (1, 4), (1, 3), (0, 4)))
    reach = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    points = [(n + 2 * b - r - 1) // s + 1 for n, b, r, s in zip((height, width), before, reach, stride, strict=True)]
    if min(points) < 1:
        points, before = [1, 1], reach  # one place, the kernel all over the image and its padding
    images, zero = rng.integers(0, 256, (channels, height, width), np.uint8), np.int32([rng.integers(0, 256)])
    laid = np.ascontiguousarray(images.transpose(1, 2, 0)) if last else images
    strides = [0, 1, width * channels, channels] if last else [0, height * width, width, 1]
    shape = np.frombuffer(
        geometry_words(1, channels, (height, width), size, points, stride, dilation, before, strides), np.int64
    ).copy()
    wide = np.full((channels, height + 2 * before[0] + 8, width + 2 * before[1] + 8), zero[0], np.uint8)
    wide[:, before[0] : before[0] + height, before[1] : before[1] + width] = images
    wanted = np.empty((channels, *size, *points), np.uint8)
    for y in range(size[0]):
        for x in range(size[1]):
            rows, columns = (at * d + s * np.arange(n) for at, d, s, n in zip((y, x), dilation, stride, points, strict=True))
            wanted[:, y, x] = wide[:, rows][:, :, columns]
    first = int(rng.integers(points[0] * points[1]))
    count = int(rng.integers(1, points[0] * points[1] - first + 1))
    part = wanted.reshape(channels, *size, -1)[..., first : first + count]
    wanted = part.transpose(3, 1, 2, 0) if last else part
    made = np.empty(wanted.shape, np.uint8)
    name = "im2col_byte_points" if last else "im2col_byte_rows"
    kernel(name, 3, 3, 1)(shape.ctypes.data, laid.ctypes.data, made.ctypes.data, channels, first, count, zero.ctypes.data)
    np.testing.assert_array_equal(made, wanted)
