"""Convolutions of int8 by AMX tiles: every integer as the exact engine in NumPy has it, and the order that weights are packed in."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, _kernels, backends, quantized
from backline.backends import quantized as backend
from backline.engine import first_sights, plan_caches, ranking
from backline.libraries.kernels import matrix_tiles
from backline.libraries.kernels.vector_level import vector_level
from backline.libraries.onednn import int8_tiles
from backline.libraries.onednn import onednn_int8 as driven
from backline.problems import operand
from backline.problems.quantized_problem import QuantizedProblem
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
Array = Any
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
CASES = 24


@pytest.fixture
def engine() -> Any:
    """The engine of a oneDNN that multiplies tiles here, on a processor that does."""
    library = need("onednn")
    if library.engine_reason("onednn"):
        pytest.skip(library.engine_reason("onednn"))
    found = library.traits.engine
    if not (found.amx and matrix_tiles.permitted(1) and vector_level() == 2):
        pytest.skip("the processor has, or Backline may use, no tiles of int8")
    return found


def without_plans(engine: Any) -> None:
    """Nothing that was prepared or described before is taken again."""
    plan_caches.clear()
    _core.memo_clear()
    engine._described = None, None, {}


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    low, high = LIMITS[dtype]
    if rng.random() < 0.2:
        return rng.choice(np.array([low, high], dtype), shape)
    return rng.integers(low, high, shape, dtype, endpoint=True)


def case(rng: np.random.Generator, dtype: str) -> tuple[Any, Any, tuple[Any, ...], float, int]:
    """A random input, weight, the other arguments of `conv2d_prepack`, scale and zero point: one that tiles compute."""
    height, width = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    stride, padding = tuple(rng.integers(1, 3, 2).tolist()), tuple(rng.integers(0, 4, 2).tolist())
    if (height, width) == (1, 1):
        stride = (1, 1)
    points = int(rng.choice([14, 16, 28, 29, 32, 47]))
    across = (points - 1) * stride[1] + width - 2 * padding[1] + int(rng.integers(0, stride[1]))
    down = max(height - 2 * padding[0], 1) + int(rng.integers(0, 9))
    channels, outs = int(rng.choice([1, 3, 4, 16, 21, 40, 64, 70])), 16 * int(rng.choice([2, 3, 4, 5, 6, 17, 20]))
    channels = max(channels, -(-32 // width))
    if (height, width) == (1, 1):
        channels = min(channels, outs)
    x = integers(rng, (int(rng.integers(1, 4)), channels, down, across), dtype)
    if rng.random() < 0.6:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    zero, result_zero = (int(integers(rng, (), dtype)) for _ in range(2))
    scales = rng.uniform(0.001, 0.1, outs) if rng.random() < 0.6 else 2.0 ** rng.integers(-6, 2, outs)
    weight = quantized.QArray(integers(rng, (outs, channels, height, width), "int8"), scales, 0, 0)
    given = quantized.QArray(x, float(rng.uniform(0.01, 0.1)), 0 if rng.random() < 0.3 else zero)
    bias, most = rng.standard_normal(outs) * 10.0 ** rng.integers(-2, 6), 2.0**30 * given.scale * scales  # sums and it are int32
    bias = None if rng.random() < 0.3 else np.clip(bias, -most, most).astype(np.float32)
    scale = float(rng.uniform(0.05, 1) * scales.mean() * (channels * height * width) ** 0.5)
    return given, weight, (bias, stride, padding), scale, result_zero


def by_engine(engine: str, given: Any, weight: Any, others: Any, scale: float, zero: int) -> Array:
    with backend.flags(engine=engine):
        packed = quantized.conv2d_prepack(weight, *others)
    return quantized.conv2d(given, packed, scale, zero).int_repr


def note() -> str:
    return " ".join(str(c.reason) for c in backline.explain().candidates if (c.library, c.algorithm) == ("onednn", "int8"))


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_the_exact_engine(engine: Any, dtype: str, threads: int) -> None:
    rng = np.random.default_rng([SEED, threads, dtype == "int8"])
    for n in range(CASES):
        given = case(rng, dtype)
        wanted = by_engine("reference", *given)
        with backends.flags(num_threads=threads, only=("onednn",)):
            found = by_engine("onednn", *given)
        assert "tiles by AMX" in note(), n
        assert found.strides == wanted.strides or 1 in found.shape, n
        np.testing.assert_array_equal(found, wanted, str(n))


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("name", ["onednn", "fbgemm", "qnnpack"])
def test_results_are_those_of_primitives(engine: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rng = np.random.default_rng([SEED, 7])
    given = [case(rng, "uint8") for _ in range(6)]
    given = [(x, quantized.QArray(w.int_repr, 0.02, 0), others, 0.1 * w.shape[1], zero) for x, w, others, _, zero in given]
    tiles = [by_engine(name, *each) for each in given]
    assert "tiles by AMX" in note()
    monkeypatch.setattr(driven, "in_tiles", lambda engine, p: False)
    without_plans(engine)
    for each, wanted in zip(given, tiles, strict=True):
        np.testing.assert_array_equal(by_engine(name, *each), wanted)
        assert "tiles by AMX" not in note()
    without_plans(engine)


@pytest.mark.cpu_kernel
def test_shapes_that_keep_changing_are_computed_by_tiles_at_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tuple(f"{key}@{count}" for key in ("onednn.int8", "onednn.int8_gemm") for count in "n1")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: keys)
    first_sights.clear()
    without_plans(engine)
    rng = np.random.default_rng(SEED)
    weight = quantized.quantize_weights(rng.standard_normal((32, 12, 3, 3), np.float32))
    with backend.flags(engine="onednn"):
        layer = quantized.conv2d_prepack(weight)
    for n in range(first_sights.CHANGING + 4):
        quantized.conv2d(quantized.QArray(integers(rng, (1, 12, 5 + n, 18), "uint8"), 0.1, 3), layer, 0.5, 0)
        assert backline.explain().algorithm == "int8", n
    first_sights.clear()
    without_plans(engine)


def problem(weight: tuple[int, ...], points: int = 16, dilation: int = 1, groups: int = 1) -> QuantizedProblem:
    x = np.zeros((1, weight[1] * groups, weight[2], points + dilation * (weight[3] - 1)), np.uint8)
    operands = operand("input", x), operand("weight", np.zeros(weight, np.int8))
    sizes = ("dilation", (dilation, dilation)), ("groups", groups), ("padding", (0, 0)), ("stride", (1, 1))
    return QuantizedProblem("quantized.conv2d", operands, sizes, "quantized", result=(1, weight[0], 1, points))


class Processor:
    """An engine as far as it says what the processor has."""

    def __init__(self, amx: bool) -> None:
        self.amx = amx


def test_which_convolutions_are_computed_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_tiles, "permitted", lambda size: True)
    monkeypatch.setattr(int8_tiles, "vector_level", lambda: 2)
    here: Any = Processor(True)
    assert int8_tiles.in_tiles(here, problem((32, 12, 3, 3)))
    assert not int8_tiles.in_tiles(Processor(False), problem((32, 12, 3, 3)))  # type: ignore[arg-type]  # it is asked nothing else
    assert not int8_tiles.in_tiles(here, problem((24, 12, 3, 3))), "outputs fill tiles"
    assert not int8_tiles.in_tiles(here, problem((32, 12, 3, 3), points=17)), "most points of a row are the result's"
    assert int8_tiles.packs_tiles(here, problem((32, 12, 3, 3), points=17)), "weights serve images of all sizes"
    assert not int8_tiles.in_tiles(here, problem((16, 12, 3, 3))), "tiles come in pairs"
    assert not int8_tiles.in_tiles(here, problem((32, 10, 3, 3))), "runs of bytes fill half a tile"
    assert int8_tiles.in_tiles(here, problem((32, 32, 1, 1)))
    assert not int8_tiles.in_tiles(here, problem((32, 64, 1, 1))), "copies cost more than they serve"
    assert not int8_tiles.in_tiles(here, problem((32, 12, 3, 3), dilation=2))
    assert not int8_tiles.packs_tiles(here, problem((32, 12, 3, 3), groups=2))
    monkeypatch.setattr(int8_tiles, "vector_level", lambda: 1)
    assert not int8_tiles.in_tiles(here, problem((32, 12, 3, 3))), "a cap on vector instructions holds for tiles as well"


@pytest.mark.parametrize("shape", [(16, 3, 2, 3), (48, 40, 3, 2), (32, 64, 1, 1)])
def test_weights_in_tiles_multiply_runs_of_bytes(shape: tuple[int, ...]) -> None:
    """The sums that the instruction makes of a tile, step by step: on any processor."""
    rng = np.random.default_rng(SEED)
    outs, channels, height, width = shape
    weight, p = integers(rng, shape, "int8"), problem(shape)
    packed = int8_tiles.packed_tiles(p, weight)
    assert packed.nbytes == int8_tiles.tile_bytes(p)
    window = rng.integers(0, 255, (height, width, channels), np.uint8)
    runs = window.reshape(height, -1).astype(np.int64)
    tiles = packed.reshape(outs // 16, height, -1, 16, 16, 4).astype(np.int64)
    sums = np.zeros(outs, np.int64)
    for n, y, piece in np.ndindex(*tiles.shape[:3]):
        found = np.full(64, 77)  # what lies behind a run counts nothing
        part = runs[y, 64 * piece : 64 * piece + 64]
        found[: len(part)] = part
        sums[16 * n : 16 * n + 16] += np.einsum("kof,kf->o", tiles[n, y, piece], found.reshape(16, 4))
    np.testing.assert_array_equal(sums, np.einsum("oiyx,yxi->o", weight.astype(np.int64), window.astype(np.int64)))


def test_quantizing_finds_nan_wherever_it_is() -> None:
    rng = np.random.default_rng(SEED)
    for level in range(_kernels.instruction_level + 1):
        for scale in (0.05, 2.0**-110):
            for size in (1, 15, 64, 257, 1000):
                x = rng.standard_normal(size).astype(np.float32)
                x[0] = np.inf
                made = np.empty(size, np.uint8)
                assert _kernels.quantize(x, made, scale, 3, level, 2)
                x[rng.integers(size)] = np.nan
                assert not _kernels.quantize(x, made, scale, 3, level, 2)
