"""Linear layers with int8 weights on MLX's arrays, against the exact one on NumPy's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import backline
from backline import quantized
from backline.errors import BadType, BadValue
from backline.libraries.mlx import mlx_quantized
from support import clean, rng, seed

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed


def layer(rng: np.random.Generator, outs: int, width: int, bias: bool, dtype: str = "int8", axis: int | None = 0) -> Any:
    limits = np.iinfo(dtype)
    integers = rng.integers(limits.min, limits.max, (outs, width), dtype, endpoint=True)
    count = (outs,) if axis == 0 else ()
    zeros = rng.integers(limits.min, limits.max, count, endpoint=True) if dtype == "uint8" else 0
    weight = quantized.QArray(integers, rng.uniform(0.001, 0.1, count), zeros, axis)
    return quantized.linear_prepack(weight, rng.standard_normal(outs).astype(np.float32) if bias else None)


@pytest.mark.parametrize(("shape", "outs"), [((64,), 8), ((5, 33), 3), ((2, 3, 1), 1), ((0, 7), 4), ((17, 300), 65), ((3, 4), 0)])
@pytest.mark.parametrize(
    ("engine", "dtype", "axis"),
    [
        ("reference", "uint8", 0), ("reference", "uint8", None), ("reference", "int8", 0),
        pytest.param("onednn", "int8", 0, marks=pytest.mark.cpu_kernel),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_layer_of_numpys_arrays(
    shape: tuple[int, ...], outs: int, engine: str, dtype: str, axis: int | None, bias: bool, rng: np.random.Generator
) -> None:
    if engine not in backline.backends.quantized.supported_engines:
        pytest.skip(f"no engine {engine!r} here")
    with backline.backends.quantized.flags(engine=engine):
        packed = layer(rng, outs, shape[-1], bias, dtype, axis)
    x = (rng.standard_normal(shape) * rng.choice([1e-3, 1, 1e3])).astype(np.float32)
    found = quantized.linear_dynamic(mx.array(x), packed)
    assert isinstance(found, mx.array) and found.shape == (*shape[:-1], outs) and found.dtype == mx.float32
    expected = quantized.linear_dynamic(x, packed) if x.size else np.zeros(found.shape, np.float32)
    weight = np.abs(quantized.dequantize(packed.weight)).astype(np.float64)
    step = (max(float(x.max(initial=0)), 0) - min(float(x.min(initial=0)), 0)) / 255 if x.size else 0.0
    # An element half-way between two integers may become the other one: seldom, so that two in a row of the sum are not expected.
    error = np.abs(np.array(found) - expected)
    assert error.max(initial=0) <= 2 * step * weight.max(initial=0) + 1e-4 * np.abs(expected).max(initial=0) + 1e-6
    if error.size:
        assert np.median(error) <= 1e-5 * (np.abs(x).max() * weight.sum(-1).max() + 1)


def test_what_ran_is_told(rng: np.random.Generator) -> None:
    packed, x = layer(rng, 4, 40, True), mx.array(np.ones((2, 40), np.float32))
    quantized.linear_dynamic(x, packed)
    last = backline.explain()
    assert last.library == "mlx" and last.algorithm == "quantized_matmul_cpu"
    assert backline.explain(quantized.linear_dynamic, x, packed).algorithm == last.algorithm


def test_the_weight_is_made_once_and_anew_after_a_copy(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    pack = mlx_quantized.pack
    monkeypatch.setattr(mlx_quantized, "pack", lambda *parts: made.append(parts) or pack(*parts))
    packed, x = layer(rng, 4, 40, True), mx.array(rng.standard_normal((2, 40)).astype(np.float32))
    first = np.array(quantized.linear_dynamic(x, packed))
    assert np.array_equal(first, np.array(quantized.linear_dynamic(x, packed))) and len(made) == 1
    assert np.array_equal(first, np.array(quantized.linear_dynamic(x, copy.deepcopy(packed)))) and len(made) == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_number_is_in_every_result(value: float, rng: np.random.Generator) -> None:
    x = np.ones((3, 40), np.float32)
    x[1, 2] = value
    assert np.isnan(np.array(quantized.linear_dynamic(mx.array(x), layer(rng, 4, 40, True)))).all()


def test_bad_input(rng: np.random.Generator) -> None:
    packed = layer(rng, 4, 40, True)
    with pytest.raises(BadType, match="float16"):
        quantized.linear_dynamic(mx.zeros((2, 40), mx.float16), packed)
    with pytest.raises(BadValue, match="do not fit"):
        quantized.linear_dynamic(mx.zeros((2, 41)), packed)
    with pytest.raises(BadType, match="packed must be"):
        quantized.linear_dynamic(mx.zeros((2, 40)), None)
    with pytest.raises(BadType):
        quantized.linear(mx.zeros((2, 40)), packed, 1.0, 0)
