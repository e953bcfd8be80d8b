"""Products of float8 and int8 on CUDA arrays: what cuBLASLt is asked, what it is not, what the recorded calls compute."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import libraries, quantized
from backline.errors import BadValue
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cublas import widened_products
from backline.libraries.cuda.cublaslt import eight_bit
from backline.nn.functional import scaled_mm
from backline.problems.op_registry import operations
from backline.problems.scaled_problem import ScaledProblem
from fakes.computing import Blas, Lt
from fakes.cupy_standin import A100, H100, CuPy, ndarray
from fakes.insert import inserted
from support import LAYOUTS, clean, rng, seed

real = pytest.importorskip("nvmath.bindings.cublas")
real_lt = pytest.importorskip("nvmath.bindings.cublasLt")
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures

E4M3, E5M2, BF16 = (np.dtype(each) for each in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16))
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
SM90, SM89, SM80 = (9, 0), (8, 9), (8, 0)
ALIGNED = 64


class Machine:
    """An H100 and an A100 whose cuBLAS and cuBLASLt compute."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.cupy = CuPy(H100, A100, log=self.log)
        self.cublas, self.lt = Blas(real, log=self.log), Lt(real_lt, log=self.log)

    def array(self, host: Any, device: int = 0) -> ndarray:
        """The array as it lies, at an address as CuPy's pool has them."""
        return ndarray(aligned(host), device)


def aligned(host: Any) -> Any:
    if not host.flags.c_contiguous and not host.T.flags.c_contiguous:
        return host
    room = np.empty(host.nbytes + ALIGNED, np.uint8)
    first = -room.ctypes.data % ALIGNED
    turned = not host.flags.c_contiguous
    made = room[first : first + host.nbytes].view(host.dtype).reshape(host.shape[::-1] if turned else host.shape)
    made = made.T if turned else made
    made[...] = host
    return made


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cublas=made.cublas, cublasLt=made.lt):
        yield made


def operands(rng: np.random.Generator, m: int, k: int, n: int, kinds: Any = (E4M3, E4M3)) -> tuple[Any, Any]:
    """mat_a by rows and mat_b by columns, as tensor cores take them."""
    a = rng.standard_normal((m, k)).astype(np.float32).astype(kinds[0])
    b = rng.standard_normal((n, k)).astype(np.float32).astype(kinds[1]).T
    return a, b


def agree(result: Any, hosts: tuple[Any, Any], scales: Any, bias: Any, output: str) -> None:
    x, y = (h.astype(np.float64) for h in hosts)
    factor = scales[0].astype(np.float64).reshape(-1, 1) * scales[1].astype(np.float64).reshape(1, -1)
    added = 0.0 if bias is None else bias.astype(np.float64)
    wanted, size = x @ y * factor + added, np.abs(x) @ np.abs(y) * factor + np.abs(added)
    assert type(result) is ndarray and result.dtype.name == output and result.shape == wanted.shape
    bound = UNIT[output] * np.abs(wanted) + (x.shape[1] + 4) * 2.0**-23 * size + 2.0**-24
    assert (np.abs(result.host.astype(np.float64) - wanted) <= bound).all()


def run(machine: Machine, hosts: tuple[Any, Any], recipes: Any, scales: Any, bias: Any, output: str, **more: Any) -> Any:
    a, b = map(machine.array, hosts)
    one, two = (machine.array(s) for s in scales)
    added = None if bias is None else machine.array(bias)
    return scaled_mm(a, b, one, recipes[0], two, recipes[1], bias=added, output_dtype=output, **more)


@pytest.mark.parametrize("output", UNIT)
@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_scaled_products(machine: Machine, kinds: Any, recipe: str, output: str, rng: np.random.Generator) -> None:
    for m, k, n in ((5, 32, 16), (1, 16, 48), (17, 48, 7), (6, 20, 16), (3, 16, 1)):
        hosts = operands(rng, m, k, n, kinds)
        shapes = ((m, 1), (1, n)) if recipe == "RowWise" else ((1,), ())
        scales = [rng.random(shape).astype(np.float32) + np.float32(0.1) for shape in shapes]
        for bias in (None, rng.standard_normal(n).astype(BF16 if output == "bfloat16" else output)):
            result = run(machine, hosts, (recipe, recipe), scales, bias, output)
            agree(result, hosts, scales, bias, output)
            direct = k % 16 == n % 16 == 0 and kinds != (E5M2, E5M2) and not (bias is not None and output == "float32")
            choice = backline.explain()
            assert (choice.library, choice.algorithm) == (("cublaslt", "matmul") if direct else ("cublas", "gemm_widened"))


def test_the_matrices_are_read_where_they_lie(machine: Machine, rng: np.random.Generator) -> None:
    a, b = map(machine.array, operands(rng, 8, 32, 16))
    one = machine.array(np.ones(1, np.float32))
    result = scaled_mm(a, b, one, "TensorWise", one, "TensorWise")
    (call,) = machine.lt.calls("matmul")
    assert (call["a"], call["b"], call["d"]) == (b.data.ptr, a.data.ptr, result.data.ptr)


def test_the_attributes_that_are_set(machine: Machine, rng: np.random.Generator) -> None:
    hosts = operands(rng, 8, 32, 16, (E5M2, E4M3))
    scales = [np.ones((8, 1), np.float32), np.ones((1, 16), np.float32)]
    run(machine, hosts, ("RowWise", "RowWise"), scales, np.ones(16, BF16), "bfloat16", use_fast_accum=True)
    name = real_lt.MatmulDescAttribute
    told = next(thing for thing in machine.lt.things.values() if "compute_type" in thing["made"])
    assert told["made"] == {"compute_type": real.ComputeType.COMPUTE_32F, "scale_type": 0}
    assert {key: told[name[key]] for key in ("TRANSA", "EPILOGUE", "A_SCALE_MODE", "B_SCALE_MODE", "FAST_ACCUM", "BIAS_DATA_TYPE")} == {
        "TRANSA": real.Operation.T, "EPILOGUE": real_lt.Epilogue.BIAS, "A_SCALE_MODE": 3, "B_SCALE_MODE": 3, "FAST_ACCUM": 1,
        "BIAS_DATA_TYPE": 14,
    }  # fmt: skip
    layouts = [thing["made"] for thing in machine.lt.things.values() if "ld" in thing["made"]]
    assert [(each["type"], each["rows"], each["cols"], each["ld"]) for each in layouts] == [
        (28, 32, 16, 32),
        (29, 32, 8, 32),
        (14, 16, 8, 16),
    ]
    assert backline.explain().effective_precision == "tensor-core accumulation" or "tensor-core" in str(backline.explain())


@pytest.mark.parametrize("lay", [name for name in LAYOUTS if name != "misaligned"])
def test_what_lies_otherwise_is_copied(machine: Machine, lay: str, rng: np.random.Generator) -> None:
    hosts = tuple(LAYOUTS[lay](x) for x in operands(rng, 8, 32, 16))
    scales = [
        LAYOUTS[lay](np.abs(rng.standard_normal((8, 1))).astype(np.float32)),
        np.abs(rng.standard_normal((1, 16))).astype(np.float32),
    ]
    bias = LAYOUTS[lay](rng.standard_normal(16).astype(np.float16))
    agree(run(machine, hosts, ("RowWise", "RowWise"), scales, bias, "float16"), hosts, scales, bias, "float16")
    assert backline.explain().library == "cublaslt"


def test_addresses_that_are_not_aligned_are_copied(machine: Machine, rng: np.random.Generator) -> None:
    room = machine.array(np.zeros(4096, np.uint8)).host
    for start in (0, 1, 3, 8):
        a = room[start : start + 256].view(E4M3).reshape(8, 32)
        b = room[1024 + start : 1024 + start + 512].view(E4M3).reshape(16, 32).T
        a[...], b[...] = operands(rng, 8, 32, 16)
        scales = [np.full(1, 2, np.float32), np.ones(1, np.float32)]
        one, two = (ndarray(s) for s in scales)
        result = scaled_mm(ndarray(a), ndarray(b), one, "TensorWise", two, "TensorWise", output_dtype="float32")
        agree(result, (a, b), scales, None, "float32")
    assert backline.explain().library == "cublaslt"


def test_threads_that_share_a_plan_do_not_mix_up_their_scales(machine: Machine, rng: np.random.Generator) -> None:
    a, b = map(machine.array, operands(rng, 8, 32, 16))
    one = machine.array(np.ones(1, np.float32))
    base = scaled_mm(a, b, one, "TensorWise", one, "TensorWise", output_dtype="float32").host
    wrong: list[float] = []

    def work(value: float) -> None:
        scale = machine.array(np.full(1, value, np.float32))
        for _ in range(40):
            result = scaled_mm(a, b, scale, "TensorWise", one, "TensorWise", output_dtype="float32")
            if not np.allclose(result.host, base * value, rtol=1e-5, atol=1e-5):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- int8 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5, 8, 4), (1, 4, 12), (17, 2048, 8), (6, 9, 4), (3, 3000, 5), (2, 4, 3)])
def test_integers_are_exact(machine: Machine, sizes: tuple[int, int, int], rng: np.random.Generator) -> None:
    m, k, n = sizes
    a, b = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (k, n)).astype(np.int8)
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    for right in (b, np.asfortranarray(b)):
        result = quantized.int_mm(machine.array(a), machine.array(right))
        assert result.dtype == np.int32 and np.array_equal(result.host, wanted)
        assert backline.explain().library == ("cublaslt" if k % 4 == n % 4 == 0 else "cublas")
        for out in (np.zeros((m, n), np.int32), np.zeros((n, m), np.int32).T):
            there = machine.array(out)
            assert quantized.int_mm(machine.array(a), machine.array(right), out=there) is there and np.array_equal(
                there.host, wanted
            )


def test_the_largest_integers_are_exact_without_tensor_cores_of_integers(machine: Machine) -> None:
    a, b = np.full((2, 5001), -128, np.int8), np.full((5001, 3), -128, np.int8)
    assert (quantized.int_mm(machine.array(a), machine.array(b)).host == 128 * 128 * 5001).all()
    assert backline.explain().algorithm == "gemm_widened"
    assert {each["k"] for each in machine.cublas.calls("gemm_ex")} == {1024, 5001 % 1024}
    assert {(each["compute_type"], each["ctype"]) for each in machine.cublas.calls("gemm_ex")} == {(68, 0)}


def test_an_output_that_overlaps_is_refused(machine: Machine) -> None:
    out = machine.array(np.ones((4, 4), np.int32))
    part = ndarray(out.host.view(np.int8)[:, :4])
    with pytest.raises(BadValue):
        quantized.int_mm(part, machine.array(np.ones((4, 4), np.int8)), out=out)


# --- decisions -----------------------------------------------------------------------------------------------------------


def problem(
    m: int = 64, k: int = 64, n: int = 64, kinds: Any = (E4M3, E4M3), recipes: Any = ("TensorWise", "TensorWise"), **more: Any
) -> ScaledProblem:
    a, b = (np.zeros(s, t) for s, t in zip(((m, k), (k, n)), kinds, strict=True))
    scales = (np.ones(1 if r == "TensorWise" else s, np.float32) for r, s in zip(recipes, (m, n), strict=True))
    one, two = scales
    made = operations["nn.functional.scaled_mm"].build(a, b, one, recipes[0], two, recipes[1], **more)
    assert isinstance(made, ScaledProblem)
    return replace(made, device="cuda:0")


def whole(m: int = 64, k: int = 64, n: int = 64) -> ScaledProblem:
    made = operations["quantized.int_mm"].build(np.zeros((m, k), np.int8), np.zeros((k, n), np.int8))
    assert isinstance(made, ScaledProblem)
    return replace(made, device="cuda:0")


ROWS: list[tuple[Any, tuple[int, int], str, str]] = [
    (problem(), SM90, "13.1.0", ""),
    (problem(), SM89, "12.4.5", ""),
    (problem(), SM80, "13.1.0", "compute capability 8.9"),
    (problem(k=40), SM90, "13.1.0", "k = 40: it takes multiples of 16"),
    (problem(k=40, n=8), SM90, "13.1.0", "k = 40 and n = 8"),
    (problem(m=1), SM90, "13.1.0", ""),
    (problem(k=0), SM90, "13.1.0", "without terms"),
    (problem(kinds=(E5M2, E5M2)), SM90, "13.1.0", "two matrices of float8_e5m2"),
    (problem(kinds=(E5M2, E4M3)), SM90, "13.1.0", ""),
    (problem(recipes=("RowWise", "RowWise")), SM90, "12.9.1", ""),
    (problem(recipes=("RowWise", "RowWise")), SM90, "12.8.4", "takes cuBLASLt 12.9; this is 12.8.4"),
    (problem(recipes=("RowWise", "RowWise")), SM89, "13.1.0", "compute capability 9.0; the device has 8.9"),
    (problem(recipes=("RowWise", "TensorWise")), SM90, "13.1.0", "one scale for both"),
    (problem(bias=np.ones(64, np.float32), output_dtype="float32"), SM90, "13.1.0", "bias beside a result of float32"),
    (problem(bias=np.ones(64, np.float16), output_dtype="float16"), SM90, "13.1.0", ""),
    (whole(), (7, 5), "13.1.0", ""),
    (whole(), (7, 0), "13.1.0", "compute capability 7.5"),
    (whole(k=6), SM90, "13.1.0", "k = 6: it takes multiples of 4"),
    (whole(m=3, k=4, n=4), SM90, None, ""),
]


@pytest.mark.parametrize(("asked", "having", "version", "reason"), ROWS)
def test_what_cublaslt_takes(asked: Any, having: tuple[int, int], version: Any, reason: str) -> None:
    (found,) = eight_bit.listed(asked, having, version)
    if reason:
        assert isinstance(found, Refusal) and reason in found.reason
    else:
        assert isinstance(found, Algorithm) and found.name == "matmul" and found.reaches("threads")


def test_other_cards_run_it_by_widened_elements(machine: Machine, rng: np.random.Generator) -> None:
    hosts = operands(rng, 8, 32, 16)
    a, b, one = (machine.array(x, device=1) for x in (*hosts, np.ones(1, np.float32)))
    result = scaled_mm(a, b, one, "TensorWise", one, "TensorWise", output_dtype="float32")
    assert backline.explain().algorithm == "gemm_widened" and result.device.id == 1
    agree(result, hosts, [np.ones(1, np.float32)] * 2, None, "float32")
    assert any("compute capability 8.9" in c.reason for c in backline.explain().candidates)


def test_where_it_has_no_algorithm_widened_elements_take_over(machine: Machine, rng: np.random.Generator) -> None:
    machine.lt.refuses = None
    hosts = operands(rng, 8, 32, 16)
    scales = [np.ones(1, np.float32)] * 2
    agree(run(machine, hosts, ("TensorWise",) * 2, scales, None, "bfloat16"), hosts, scales, None, "bfloat16")
    assert backline.explain().algorithm == "gemm_widened" and not machine.lt.things
    assert any("no algorithm" in c.reason for c in backline.explain().candidates)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_float16_has_every_element(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name)) if name != "int8" else np.dtype(np.int8)
    every = np.arange(256, dtype=np.uint8).view(kind)
    assert np.array_equal(every.astype(np.float64), every.astype(np.float16).astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("kinds", [(E4M3, E5M2), (E5M2, E5M2)], ids=str)
def test_values_that_are_no_numbers_show(machine: Machine, kinds: Any) -> None:
    a = np.array([[1.0, 2.0], [np.nan, 1.0]]).astype(kinds[0])
    b = np.array([[np.inf, 1.0], [1.0, 1.0]]).astype(kinds[1])
    result = run(machine, (a, b), ("TensorWise",) * 2, [np.ones(1, np.float32)] * 2, None, "float32").host
    assert result[0, 0] == np.inf and result[0, 1] == 3 and np.isnan(result[1]).all()


@pytest.mark.parametrize("sizes", [(0, 16, 16), (5, 16, 0), (5, 0, 16)])
def test_products_without_terms(machine: Machine, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    bias = np.full(n, 2, np.float32)
    result = run(
        machine,
        (np.ones((m, k), E4M3), np.ones((k, n), E4M3)),
        ("TensorWise",) * 2,
        [np.ones(1, np.float32)] * 2,
        bias,
        "float32",
    )
    assert result.shape == (m, n) and (result.host == 2).all()
    assert not quantized.int_mm(machine.array(np.ones((m, k), np.int8)), machine.array(np.ones((k, n), np.int8))).host.any()


def test_parts_of_a_long_sum_of_integers() -> None:
    assert [(p.start, p.stop) for p in widened_products.parts(whole(k=2050))] == [(0, 1024), (1024, 2048), (2048, 2050)]
    assert [(p.start, p.stop) for p in widened_products.parts(problem(k=5000))] == [(0, 5000)]


def test_the_numbers_written_here_are_those_of_the_bindings() -> None:
    kind, data = real.ComputeType, pytest.importorskip("nvmath").CudaDataType
    assert (eight_bit.IN_F32, eight_bit.IN_I32) == (kind.COMPUTE_32F, kind.COMPUTE_32I)
    assert (eight_bit.PLAIN, eight_bit.BIAS) == (real_lt.Epilogue.DEFAULT, real_lt.Epilogue.BIAS)
    scale = real_lt.MatmulMatrixScale
    assert (eight_bit.ONE_SCALE, eight_bit.OUTER_VECTORS) == (scale.SCALAR_32F, scale.OUTER_VEC_32F)
    names = {
        "float8_e4m3fn": "CUDA_R_8F_E4M3", "float8_e5m2": "CUDA_R_8F_E5M2", "int8": "CUDA_R_8I", "int32": "CUDA_R_32I",
        "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float32": "CUDA_R_32F",
    }  # fmt: skip
    assert {name: int(data[of]) for name, of in names.items()} == eight_bit.TYPES


def test_plans_free_their_descriptions(machine: Machine, rng: np.random.Generator) -> None:
    import gc

    a, b = map(machine.array, operands(rng, 8, 32, 16))
    one = machine.array(np.ones(1, np.float32))
    asked = backline.explain(scaled_mm, a, b, one, "TensorWise", one, "TensorWise").problem
    plan = libraries.get("cublaslt").prepare(asked, Algorithm(library="cublaslt", name="matmul"))
    assert len(machine.lt.things) == 4
    del plan
    gc.collect()
    assert not machine.lt.things
