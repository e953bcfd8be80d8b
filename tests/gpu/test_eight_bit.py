"""Products of 8-bit matrices and of groups, gelu after a product, and timing over cuBLASLt's heuristics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import quantized, switches
from backline.libraries.cuda.common.device_facts import capability
from backline.nn.functional import grouped_mm, linear, scaled_mm
from gpu.arrays import error, normal, wide
from gpu.watch import watched

Size = Callable[[Any, Any], Any]


@pytest.mark.gpu(row="LT-1")
@pytest.mark.parametrize("multiple", [True, False])
def test_products_of_int8_are_exact(row: Any, xp: Any, size: Size, multiple: bool) -> None:
    m, k, n = size((300, 2048, 512), (17, 1040, 16)) if multiple else size((300, 2047, 511), (17, 1041, 15))
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (n, k)))
    result = quantized.int_mm(xp.asarray(a), xp.asarray(b).T)
    chosen = backline.explain().chosen.key
    row.expect("equal to the product in int64; by cuBLASLt where sizes are multiples of 4, else by float16 widened")
    wrong = int((result.get() != a.astype(np.int64) @ b.astype(np.int64).T).sum())
    row.observe(f"{wrong} elements differ", chosen)
    assert not wrong and chosen.startswith("cublaslt" if multiple else "cublas.gemm_widened")


@pytest.mark.gpu(row="LT-2")
@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
@pytest.mark.parametrize("fast", [False, True])
def test_products_of_float8(row: Any, xp: Any, size: Size, recipe: str, fast: bool) -> None:
    m, k, n = size((256, 1024, 512), (16, 64, 32))
    a, b = (normal(shape, seed=i).astype(ml_dtypes.float8_e4m3fn) for i, shape in enumerate(((m, k), (n, k))))
    shapes = ((m, 1), (1, n)) if recipe == "RowWise" else ((1,), (1,))
    scales = [np.abs(normal(shape, seed=5)).astype(np.float32) + np.float32(0.5) for shape in shapes]
    one, two = map(xp.asarray, scales)
    x, y = (xp.asarray(each.view(np.uint8)).view(each.dtype) for each in (a, b))
    result = scaled_mm(x, y.T, one, recipe, two, recipe, output_dtype="float32", use_fast_accum=fast)
    expected = wide(a) @ wide(b).T * wide(scales[0]).reshape(-1, 1) * wide(scales[1]).reshape(1, -1)
    # The tensor cores of 9.0 keep some 13 bits of a sum, and without fast accumulation the kernels add up sums of a few terms in float32.
    found, most = error(result, expected), 1e-2 if fast else 5e-4
    row.expect(f"{recipe}, fast accumulation {fast}: error below {most}; by cuBLASLt from 8.9 (rows: 9.0) on, else widened")
    row.observe(found, f"{backline.explain().chosen.key} on {capability(0)}")
    assert found < most


@pytest.mark.gpu(row="LT-3")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gelu_after_a_product(row: Any, xp: Any, size: Size, dtype: str) -> None:
    m, k, n = size((512, 256, 512), (32, 16, 48))
    x, weight, bias = normal((m, k), dtype, 1), normal((n, k), dtype, 2), normal((n,), dtype, 3)
    scaled = (wide(weight) / np.sqrt(k)).astype(weight.dtype)
    given = wide(x) @ wide(scaled).T + wide(bias)
    expected = 0.5 * given * (1 + np.tanh(np.sqrt(2 / np.pi) * (given + 0.044715 * given**3)))
    exact = error(linear(xp.asarray(x), xp.asarray(scaled), xp.asarray(bias), activation="gelu_tanh"), expected)
    chosen = backline.explain().chosen
    most = {"float16": 2.0**-9, "bfloat16": 2.0**-7}[dtype]
    row.expect(f"{dtype}: by cuBLASLt, error of the tanh formula below {most}")
    row.observe(exact, chosen.key)
    assert chosen.library == "cublaslt" and exact < most


@pytest.mark.gpu(row="LT-4")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_groups_in_one_call(row: Any, xp: Any, size: Size, dtype: str) -> None:
    m, k, n, groups = size((1024, 256, 512, 8), (64, 16, 32, 4))
    a, b = normal((m, k), dtype, 1), normal((groups, k, n), dtype, 2)
    ends = np.sort(np.random.default_rng(6).integers(0, m // 8, groups) * 8).astype(np.int32)
    ends[-1] = m
    with watched("cublas", fresh=True) as calls:
        result = grouped_mm(xp.asarray(a), xp.asarray(b), offs=xp.asarray(ends))
        names = calls.names()
    expected = np.zeros((m, n))
    for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        expected[start:end] = wide(a[start:end]) @ wide(b[i])
    found, most = error(result, expected), {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2e-6}[dtype]
    row.expect(f"{dtype}: one call of gemm_grouped_batched_ex, error below {most}")
    row.observe(found, backline.explain().chosen.key)
    assert found < most and names.count("gemm_grouped_batched_ex") == 1


@pytest.mark.gpu(row="LT-5")
def test_further_algorithms_of_the_heuristics_are_timed(row: Any, xp: Any, size: Size, rehearsed: bool) -> None:
    n = size(2048, 128)
    a, b = (xp.asarray(normal((n, n), "bfloat16", seed)) for seed in (1, 2))
    with switches.scope({"benchmark": True, "benchmark_limit": 0}):
        result = backline.matmul(a, b)
        choice = backline.explain()
    timed = [c for c in choice.candidates if "_proposal" in c.algorithm and c.seconds]
    found = error(result, wide(a) @ wide(b))
    row.expect("some of cuBLASLt's further algorithms have times; the result is as exact as that of any")
    row.observe(f"{len(timed)} timed, error {found}", choice.chosen.key)
    assert found < 2.0**-7 and (timed or rehearsed), "stand-ins name one algorithm"
