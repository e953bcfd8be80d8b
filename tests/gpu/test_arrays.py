"""Arrays as programs have them beside the usual ones: views that begin anywhere, very large ones, and no room for a result."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import fft, linalg, switches
from backline.errors import OutOfMemory
from backline.nn import functional as F
from gpu.arrays import error, moved, normal, wide

ON_LT = {"cuda.preferred_blas_library": "cublaslt"}
FINE = 2e-5
Size = Callable[[Any, Any], Any]


@pytest.mark.gpu(row="ARR-1")
@pytest.mark.parametrize("by", [1, 2, 4])
def test_views_that_begin_anywhere(row: Any, xp: Any, by: int) -> None:
    row.expect(f"addresses {by} bytes past a multiple of 512: the results of aligned arrays, and a device that goes on working")
    square = normal((64, 64)) + 16 * np.eye(64, dtype=np.float32)
    images, weight = normal((2, 8, 16, 16)), normal((8, 8, 3, 3), seed=2)
    heads = normal((1, 4, 32, 64), "float16", seed=4)
    cases: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "matmul": (backline.matmul, (square, square)), "solve": (linalg.solve, (square, square)), "fft": (fft.fft, (square,)),
        "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (images, weight)), "relu": (F.relu, (images,)),
        "softmax": (lambda x: F.softmax(x, -1), (images,)), "einsum": (lambda x, y: backline.einsum("ij,kj->ki", x, y), (square, square)),
        "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (heads,)),
        "halves": (backline.matmul, (square.astype(np.float16), square.astype(np.float16))),
    }  # fmt: skip
    for given in ({}, ON_LT):
        with switches.scope(given):
            for name, (op, hosts) in cases.items():
                wanted = op(*map(xp.asarray, hosts))
                found = op(*(moved(xp, host, by) for host in hosts))
                far = error(found, wide(wanted))
                row.observe(far, name)
                assert far < (1e-2 if found.dtype == np.float16 else FINE), name
            out = moved(xp, np.zeros_like(square), by)
            assert backline.matmul(xp.asarray(square), xp.asarray(square), out=out) is out
            # Fetched as bytes: CuPy's own kernels, copy() among them, read whole elements, and lose the device.
            assert error(out, wide(square) @ wide(square)) < FINE


@pytest.mark.gpu(row="ARR-2")
def test_an_image_of_2_31_elements_is_convolved_without_cudnn(row: Any, xp: Any, size: Size, rehearsed: bool) -> None:
    row.expect("a batch of 4 GB and more in parts by cuDNN, one image of that size by cuBLAS; corners as float64 has them")
    side = size(32768, 24)
    for batch, channels in ((3, 1), (1, 3)):
        if not rehearsed and xp.cuda.runtime.memGetInfo()[0] < 5 * 2 * batch * channels * side * side:
            row.observe("too little memory for it", f"{batch} x {channels}")
            continue
        x = xp.zeros((batch, channels, side, side), np.float16)
        corner = normal((channels, 8, 8), "float16")
        x[-1, :, -8:, -8:] = xp.asarray(corner)
        weight = normal((1, channels, 3, 3), "float16", seed=3)
        found = F.conv2d(x, xp.asarray(weight))[-1, 0, -6:, -6:]
        used = backline.explain().chosen.key
        windows = np.lib.stride_tricks.sliding_window_view(wide(corner), (3, 3), (1, 2))
        far = error(found, np.einsum("cijuv,cuv->ij", windows, wide(weight[0])))
        row.observe(far, f"{batch} x {channels} x {side} x {side}: {used}")
        assert far < 5e-3 and (rehearsed or (used.startswith("cudnn") == (batch > 1)))
        del x, found
        gc.collect()
        if not rehearsed:
            xp.get_default_memory_pool().free_all_blocks()


@pytest.mark.gpu(row="ARR-3")
def test_no_room_for_a_result(row: Any, xp: Any, rehearsed: bool) -> None:
    row.expect("OutOfMemory, which names bytes wanted and free; nothing stays allocated, and the next call works")
    a = xp.asarray(normal((64, 64)))
    expected = wide(a) @ wide(a)
    backline.matmul(a, a)
    pool = xp.get_default_memory_pool()
    if rehearsed:
        row.observe("a device's memory cannot be filled here", "")
        return
    pool.free_all_blocks()
    free = xp.cuda.runtime.memGetInfo()[0]
    taken = xp.empty(max(free - (256 << 20), 1 << 20), np.uint8)
    try:
        wide_rows = xp.zeros((1 << 16, 1), np.float32)
        used = pool.used_bytes()
        with pytest.raises(OutOfMemory) as caught:
            backline.matmul(wide_rows, wide_rows.T)
        text = str(caught.value)
        del caught
        gc.collect()
        row.observe(text, f"{pool.used_bytes() - used} bytes more in use afterwards")
        assert "17,179,869,184" in text and "bytes are free" in text
        assert pool.used_bytes() == used
        assert error(backline.matmul(a, a), expected) < FINE
    finally:
        del taken
        pool.free_all_blocks()


@pytest.mark.gpu(row="ARR-4")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("library", ["cublas", "cublaslt"])
def test_nan_through_relu(row: Any, xp: Any, dtype: str, library: str) -> None:
    row.expect("a NaN in the input or the bias is one in the result")
    hosts = [normal(shape, dtype) for shape in ((48, 64), (32, 64), (32,))]
    hosts[0][5, 7] = hosts[2][3] = np.nan
    x, weight, bias = map(xp.asarray, hosts)
    with switches.scope({"cuda.preferred_blas_library": library}):
        found = wide(F.linear(x, weight, bias, activation="relu"))
        used = backline.explain().chosen.key
    row.observe(int(np.isnan(found).sum()), used)
    expected = np.zeros((48, 32), bool)
    expected[5], expected[:, 3] = True, True
    assert (np.isnan(found) == expected).all() and not (found < 0).any()
