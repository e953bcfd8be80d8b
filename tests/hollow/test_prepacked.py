"""Layers that own their weights, under the true CuPy: int8 layers against the host's bits, the others against the host's results.

NVRTC compiles each kernel for an H100; the numbers are of the same source, compiled by g++, with threads that wait for each other.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import backline
from backline import quantized, switches
from backline.engine import plan_caches
from backline.errors import BadType, BadValue
from backline.libraries.cuda.cupy import int8_layers
from backline.libraries.cuda.cupy.int8_source import QUANTIZE, RANGE, SHIFT
from backline.libraries.cuda.cupy.row_kernels import compiled
from backline.libraries.reference.reference_requantize import input_integers, input_parameters, to_integers
from backline.nn import functional as F
from backline.ops.prepacked_on_device import LayerPlan
from backline.quantized.observers import parameters_of_one
from gpu.int8_layers import ENGINES, nasty, packed, sizes
from hollow.test_hollow import agree, numbers, there

pytestmark = pytest.mark.cupy
Array = Any
FAR = 3.3e38


def drawn(*key: int) -> np.random.Generator:
    return np.random.default_rng([int(os.environ.get("BACKLINE_TEST_SEED", "0")), *key])


def same(here: Any, x: Array, layer: Any) -> None:
    found, expected = quantized.linear_dynamic(there(x), layer), quantized.linear_dynamic(x, layer)
    assert type(found) is here.xp.ndarray and found.dtype == np.float32 and found.shape == expected.shape
    assert np.array_equal(found.get().view(np.int32), np.ascontiguousarray(expected).view(np.int32))


def engine_here(engine: str) -> str:
    if engine not in backline.backends.quantized.supported_engines:
        pytest.skip(f"no engine {engine!r} here")
    return engine


@pytest.mark.parametrize(("engine", "dtype"), [*((name, "int8") for name in ENGINES), ("reference", "uint8")])
def test_int8_layers_have_the_bits_of_the_host(here: Any, engine: str, dtype: str) -> None:
    rng = drawn(1)
    for number, (shape, outs) in enumerate(sizes()):
        layer = packed(rng, engine_here(engine), outs, shape[-1], bias=number % 2 == 0, dtype=dtype)
        same(here, rng.standard_normal(shape).astype(np.float32), layer)
    layer = packed(rng, engine, 5, 12, dtype=dtype)
    for x in nasty(rng, (6, 12)):
        try:
            quantized.linear_dynamic(x, layer)
        except BadValue:  # scales out of float32's range, which only the host looks for
            continue
        same(here, x, layer)
    x = rng.standard_normal((6, 24)).astype(np.float32)
    for view in (x[:, ::2], x[::-1, 12:], x.T.copy().T[:, :12], x[:, 5:17]):
        same(here, view, layer)
    x[2, 3] = np.nan
    assert np.isnan(quantized.linear_dynamic(there(x[:, :12].copy()), layer).get()).all()


@pytest.mark.parametrize("rounded", [False, True])
def test_integers_of_every_kind_of_input(here: Any, rounded: bool) -> None:
    """The quantization alone, on numbers around the middles between integers, for many ranges."""
    xp, rng = here.xp, drawn(2)
    text = f"#define LANES 32\n#define SUMS 1\n#define ROUNDED {int(rounded)}\n" + QUANTIZE
    kernel = compiled(text, "quantize_rows")
    find = compiled(RANGE, "value_range")
    for high in (*10.0 ** rng.uniform(-6, 6, 12), 1.0, 255.0, 1e-30, 3e38):
        low = -high * rng.choice([0.0, 0.3, 1.0, 5.0]) if high < 1e38 else -high
        least, most = ((0, 127), (0, 255))[int(rng.integers(2))]
        bounds = float(np.float32(low)), float(np.float32(high))
        step, zero = (input_parameters if rounded else parameters_of_one)(*bounds, least, most)
        middles = (np.arange(-256, 256) + 0.5) * step.astype(np.float64)
        near = np.clip(middles, -FAR, FAR).astype(np.float32)
        x = np.concatenate([near, *(np.nextafter(near, np.float32(to)) for to in (-1e38, 1e38))])
        x = np.clip(np.concatenate([x, rng.uniform(low, high, 200).astype(np.float32)]), *bounds).astype(np.float32)
        x = np.append(x, np.float32(bounds)).astype(np.float32)[None]
        n, width = x.shape[1], -(-x.shape[1] // 16) * 16
        given, q, sums, chosen, parts = (
            xp.asarray(x),
            xp.empty((1, width), "i1"),
            xp.empty(1, "i4"),
            xp.empty(2, "f4"),
            xp.empty(4, "f4"),
        )
        find((2,), (256,), (given, np.int64(n), parts))
        sizes = tuple(np.int64(v) for v in (1, n, width))
        kernel((1,), (32, 8), (given, parts, np.int32(2), q, sums, chosen, *sizes, np.int32(least), np.int32(most)))
        assert chosen.get().tolist() == [step.item(), zero.item()], bounds
        with np.errstate(all="ignore"):
            wanted = input_integers(x, step, zero) if rounded else to_integers(x, step, zero, np.dtype(np.uint8))
        found = q.get().astype(int)[:, :n] + SHIFT
        assert np.array_equal(found, wanted) and not q.get()[:, n:].any() and sums.get()[0] == (found - SHIFT).sum()


def test_many_blocks_find_the_range(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More blocks than a block has threads hand on what they found."""
    monkeypatch.setattr(int8_layers, "READ", 1)
    x, layer = drawn(5).standard_normal((300, 250)).astype(np.float32), packed(drawn(6), "reference", 3, 250)
    for at in ((0, 0), (299, 249), (150, 7)):
        x[at] = 50 * (1 + at[0])
        same(here, x, layer)
    assert int8_layers.launches(300, 250, 3, 132).find == 293


def test_the_float_layers(here: Any) -> None:
    shapes = (7, 6), (5, 6), (5,)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x, w, b = (numbers(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
        agree(here, lambda x, w, b: F.prepack_linear(w, b, activation="relu")(x), x, w, b)
        agree(here, lambda x, w: backline.prepack(w).product(x), x, w.T.copy())
        images, kernel = numbers(2, 4, 7, 7, dtype=dtype), numbers(6, 4, 3, 3, dtype=dtype, seed=1)
        agree(here, lambda x, w: F.prepack_conv2d(w, padding=1)(x), images, kernel)
        agree(here, lambda x, w: F.prepack_conv_transpose2d(w, stride=2)(x), images, numbers(4, 3, 3, 3, dtype=dtype, seed=2))
    behind = there(np.ascontiguousarray(numbers(2, 7, 7, 4)).transpose(0, 3, 1, 2))
    layer = F.prepack_conv2d(there(numbers(6, 4, 3, 3, seed=1)), padding=1)
    np.testing.assert_allclose(layer(behind).get(), F.conv2d(behind, layer.weight, padding=1).get(), rtol=1e-5, atol=1e-5)
    assert layer.nbytes == 2 * layer.weight.nbytes


def test_own_copies(here: Any) -> None:
    w, x = there(numbers(4, 6)), there(numbers(3, 6, seed=1))
    layer, matrix = F.prepack_linear(w), backline.prepack(w.T)
    wanted = layer(x).get()
    w[...] = 0
    layer.weight[...] = 0
    np.testing.assert_array_equal(layer(x).get(), wanted)
    np.testing.assert_allclose((x @ matrix).get(), wanted, atol=1e-5)  # CuPy leaves the product to the matrix
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(again(x).get(), wanted)
    used = here.xp.get_default_memory_pool().used_bytes()
    layer(x)
    assert here.xp.get_default_memory_pool().used_bytes() == used


def test_places(here: Any) -> None:
    w, x = numbers(4, 6), numbers(3, 6, seed=1)
    layer = F.prepack_linear(there(w, 1))
    assert layer(there(x, 1)).device.id == layer.weight.device.id == 1 and here.xp.cuda.runtime.getDevice() == 0
    with pytest.raises(BadValue, match="cuda:0, the layer's weights are on cuda:1"):
        layer(there(x))
    with pytest.raises(BadType, match="of NumPy, the layer's weights are of CuPy"):
        layer(x)
    int8 = packed(drawn(3), "reference", 4, 6)
    found = quantized.linear_dynamic(there(x, 1), int8)
    assert found.device.id == 1 and np.array_equal(found.get(), quantized.linear_dynamic(x, int8))


def test_nothing_waits_for_the_device(here: Any) -> None:
    layers = F.prepack_linear(there(numbers(4, 6))), packed(drawn(4), "fbgemm", 4, 6)
    x = there(numbers(3, 6))
    calls = (lambda: layers[0](x), lambda: quantized.linear_dynamic(x, layers[1]))
    for call in calls:
        call()
        waited, launched = here.device.hollow_waits(), here.device.hollow_launches()
        with here.xp.cuda.Stream(non_blocking=True):
            call()
        assert here.device.hollow_waits() == waited
    assert here.device.hollow_launches() - launched == 3, "of the int8 layer, beside the product"


def test_plans(here: Any) -> None:
    """One for each layout of the input, shared with the plain operation; the least recently used goes first."""
    w = there(numbers(4, 4))
    layer, other = F.prepack_linear(w, max_plans=2), F.prepack_linear(w)
    for rows in (1, 2, 3, 3, 2):
        layer(there(numbers(rows, 4)))
        assert 1 <= layer.plans <= 2
    x = there(numbers(3, 4))
    layer(x)
    other(x)
    assert all(type(plan) is LayerPlan for plan in layer.own_plans())
    (theirs,) = other.own_plans()
    assert any(mine.plan is theirs.plan for mine in layer.own_plans())
    for value in ("tf32", "ieee"):
        with switches.scope({"cuda.matmul.fp32_precision": value}):
            other(x)
    assert other.plans == 3 and F.prepack_linear(w).plans == 0


def test_plans_go_with_the_layer(here: Any) -> None:
    layer, x = F.prepack_linear(there(numbers(4, 4))), there(numbers(3, 4))
    layer(x)
    weight = weakref.ref(layer._layer.weight)
    backline.matmul(x, there(numbers(4, 4)))  # what the thread ran last
    del layer
    gc.collect()
    assert weight() is None


def test_a_plan_that_failed_is_not_used_again(here: Any) -> None:
    layer, x = F.prepack_linear(there(numbers(4, 4))), there(numbers(3, 4))
    wanted = layer(x).get()
    (plan,) = layer.own_plans()

    def fails(*arrays: Any) -> Any:
        raise RuntimeError("no kernel image")

    plan.plan.function = fails
    plan.plan.failed = True
    with pytest.raises(RuntimeError):
        layer(x)
    assert not layer.plans
    plan_caches.clear()
    np.testing.assert_array_equal(layer(x).get(), wanted)
