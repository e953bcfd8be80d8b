"""Layers that own their weights: int8 layers against the host's bits, others against float64, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import quantized, switches
from backline.errors import BadValue
from backline.nn import functional as F
from gpu.arrays import error, normal, wide
from gpu.convolutions import CLOSE
from gpu.int8_layers import nasty, packed
from gpu.watch import watched

Size = Callable[[Any, Any], Any]
EXACT = {"fp32_precision": "ieee"}


@pytest.mark.gpu(row="PACK-1")
@pytest.mark.parametrize("engine", ["reference", "fbgemm", "qnnpack"])
def test_int8_layers_have_the_bits_of_the_host(row: Any, xp: Any, size: Size, engine: str) -> None:
    rng, wrong, tried = np.random.default_rng(7), 0, 0
    for shape, outs in size((((1, 4096), 1000), ((300, 768), 513), ((4, 50, 33), 7)), (((3, 40), 7), ((2, 3, 1030), 5))):
        for dtype in ("int8", "uint8") if engine == "reference" else ("int8",):
            layer = packed(rng, engine, outs, shape[-1], dtype=dtype)
            x = rng.standard_normal(shape).astype(np.float32)
            found, expected = quantized.linear_dynamic(xp.asarray(x), layer).get(), quantized.linear_dynamic(x, layer)
            wrong, tried = wrong + int((found.view(np.int32) != expected.view(np.int32)).sum()), tried + found.size
    layer = packed(rng, engine, 5, 12)
    for x in nasty(rng, (6, 12)):
        try:
            expected = quantized.linear_dynamic(x, layer)
        except BadValue:  # scales out of float32's range, which only the host looks for
            continue
        found = quantized.linear_dynamic(xp.asarray(x), layer).get()
        wrong, tried = wrong + int((found.view(np.int32) != expected.view(np.int32)).sum()), tried + found.size
    x[1, 1] = np.nan
    lost = int((~np.isnan(quantized.linear_dynamic(xp.asarray(x), layer).get())).sum())
    row.expect("all elements have the host's bits; with NaN in the input every result is NaN")
    row.observe(f"{engine}: {wrong} of {tried} elements differ, {lost} are numbers beside NaN", backline.explain().chosen.key)
    assert not wrong and not lost and backline.explain().chosen.key == "cupy.int8@1"


@pytest.mark.gpu(row="PACK-2")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_linear_layers_and_matrices(row: Any, xp: Any, size: Size, dtype: str) -> None:
    m, k, n = size((200, 512, 300), (5, 16, 12))
    w, b, x = normal((n, k), dtype), normal((n,), dtype, 1), normal((m, k), dtype, 2)
    with switches.scope(EXACT):
        given = xp.asarray(w)
        layer, matrix = F.prepack_linear(given, xp.asarray(b), activation="relu"), backline.prepack(given.T)
        given[...] = 0
        product = wide(x) @ wide(w).T
        worst = max(
            error(layer(xp.asarray(x)), np.maximum(product + wide(b), 0)), error(xp.asarray(x) @ matrix, product),
            error(F.prepack_linear(matrix.unpack().T)(xp.asarray(x)), product),
        )  # fmt: skip
    most = {"float16": 2.0**-9, "bfloat16": 2.0**-7, "float32": 1e-5, "float64": 1e-13}[dtype]
    row.expect(f"{dtype}: error below {most} with the weights that were given, which are 0 by now")
    row.observe(worst, backline.explain().chosen.key)
    assert worst < most


@pytest.mark.gpu(row="PACK-3")
@pytest.mark.parametrize("last", [False, True])
def test_convolutions_read_weights_where_they_lie(row: Any, xp: Any, size: Size, last: bool) -> None:
    n, c, o, s = size((8, 64, 96, 28), (2, 4, 8, 6))
    x, w = normal((n, c, s, s)), normal((o, c, 3, 3), seed=1)
    with switches.scope(EXACT):
        images = xp.asarray(x)
        if last:
            images = xp.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        layer = F.prepack_conv2d(xp.asarray(w), padding=1)
        layer(images)
        used = xp.get_default_memory_pool().used_bytes()
        result = layer(images)
        more = xp.get_default_memory_pool().used_bytes() - used - result.nbytes
        expected = F.conv2d(wide(x), wide(w), padding=1)
    found, orders = error(result, expected), len(layer._layer.copies)
    row.expect(
        f"error below {CLOSE}; a second call leaves nothing behind but its result; with channels last the weight is there twice"
    )
    row.observe(f"error {found}, {more} bytes more, {orders} orders", backline.explain().chosen.key)
    assert found < CLOSE and more < 1024 and orders == (2 if last else 1)


@pytest.mark.gpu(row="PACK-4")
def test_the_time_of_an_int8_layer(row: Any, xp: Any, size: Size, clock: Any) -> None:
    m, k, n = size((4096, 4096, 4096), (8, 64, 32))
    rng = np.random.default_rng(3)
    layer, x = packed(rng, "reference", n, k), xp.asarray(normal((m, k)))
    dense = F.prepack_linear(xp.asarray(normal((n, k), "float16")))
    half = x.astype("float16")
    with watched("cublas", "cublasLt", fresh=True) as calls:
        quantized.linear_dynamic(x, layer)
        names = calls.names()
    times = [float(np.median(clock(call))) for call in (lambda: quantized.linear_dynamic(x, layer), lambda: dense(half))]
    row.expect("microseconds of linear_dynamic, and of float16 beside it; one product of cuBLASLt")
    row.observe({"int8": times[0], "float16": times[1]}, str(names.count("matmul")))
    assert names.count("matmul") == 1
