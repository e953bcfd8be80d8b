"""Products of groups on CUDA arrays: one call of cuBLAS for all groups, and what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.errors import BadValue
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cublas import grouped_gemm
from backline.nn.functional import grouped_mm
from backline.problems.grouped_problem import GroupedProblem
from backline.problems.op_registry import operations
from fakes.computing import Blas, Lt
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.insert import inserted
from grouped import ACCURACY, agree
from support import clean, dtype_of, rng, seed

real = pytest.importorskip("nvmath.bindings.cublas")
real_lt = pytest.importorskip("nvmath.bindings.cublasLt")
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures

# form -> shapes of the operands, of three groups; every row is a multiple of 16 bytes.
SHAPES = {"rows": ((40, 16), (3, 16, 24)), "columns": ((3, 8, 16), (16, 40)), "terms": ((16, 40), (40, 24))}
ENDS = [[8, 16, 40], [0, 40, 40], [0, 0, 0], [8, 8, 24], [40, 40, 40]]


class Machine:
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.cupy, self.cublas = CuPy(H100, log=self.log), Blas(real, log=self.log)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    # What a process allocates lies at multiples of 16 bytes.
    with inserted(cupy=made.cupy, cublas=made.cublas, cublasLt=Lt(real_lt, log=made.log)):
        yield made


def check(form: str, a: Any, b: Any, ends: list[int]) -> str:
    """The algorithm that computed it."""
    result = grouped_mm(ndarray(a), ndarray(b), offs=ndarray(np.array(ends, np.int32)))
    assert type(result) is ndarray
    agree(result.host, form, a, b, ends)
    return str(backline.explain().algorithm)


@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("form", SHAPES)
def test_groups_agree_with_float64(machine: Machine, form: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for ends in ENDS:
        a, b = (rng.standard_normal(shape).astype(kind) for shape in SHAPES[form])
        turned = np.ascontiguousarray(np.swapaxes(b, -1, -2)).swapaxes(-1, -2)
        for right in (b, turned, b[..., ::-1], np.repeat(b, 2, -1)[..., ::2]):
            machine.log.clear()
            assert check(form, a, right, ends) == "gemm_grouped"
            calls = machine.cublas.calls("gemm_grouped_batched_ex")
            assert len(calls) == (1 if any(end > start for start, end in zip([0, *ends], ends, strict=False)) else 0)
            assert not machine.cublas.calls("gemm_ex")


def test_operands_are_read_where_they_lie(machine: Machine, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in SHAPES["rows"])
    check("rows", a, np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2), [8, 8, 40])
    (call,) = machine.cublas.calls("gemm_grouped_batched_ex")
    assert call["group_count"] == 2 and list(call["group_size"]) == [1, 1]
    assert list(call["transa_array"]) == [real.Operation.T] * 2 and list(call["transb_array"]) == [real.Operation.N] * 2
    assert (list(call["m_array"]), list(call["n_array"]), list(call["k_array"])) == ([24, 24], [8, 32], [16, 16])
    assert list(call["lda_array"]) == [16, 16] and list(call["ldc_array"]) == [24, 24] and call["compute_type"] == 68


@pytest.mark.parametrize("ends", [[1, 3, 40], [4, 5, 9]])
def test_parts_that_are_not_aligned_are_computed_one_by_one(machine: Machine, ends: list[int], rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((16, 40)).astype(np.float32), rng.standard_normal((40, 24)).astype(np.float32)
    check("terms", a, b, ends)
    assert not machine.cublas.calls("gemm_grouped_batched_ex") and machine.cublas.calls("gemm_ex")
    odd = rng.standard_normal((9, 3)).astype(np.float32)
    check("rows", odd, rng.standard_normal((2, 3, 5)).astype(np.float32), [4, 9])


def test_tf32_is_a_permission(machine: Machine, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in SHAPES["rows"])
    with switches.scope({"cuda.matmul.fp32_precision": "tf32"}):
        grouped_mm(ndarray(a), ndarray(b), offs=ndarray(np.array([8, 16, 40], np.int32)))
        assert backline.explain().algorithm == "gemm_grouped_tf32"
    assert machine.cublas.calls("gemm_grouped_batched_ex")[-1]["compute_type"] == real.ComputeType.COMPUTE_32F_FAST_TF32
    check("rows", a, b, [8, 16, 40])
    assert machine.cublas.calls("gemm_grouped_batched_ex")[-1]["compute_type"] == real.ComputeType.COMPUTE_32F


def test_offsets_that_do_not_fit_are_refused(machine: Machine) -> None:
    a, b = np.ones((40, 16), np.float32), np.ones((2, 16, 24), np.float32)
    for ends in ([9, 8], [8, 41], [-8, 8]):
        with pytest.raises(BadValue, match="offs"):
            grouped_mm(ndarray(a), ndarray(b), offs=ndarray(np.array(ends, np.int32)))


@pytest.mark.parametrize(("version", "listed"), [("12.4.5", False), ("12.5.3", True), ("13.1.0", True), (None, True)])
def test_older_versions_have_no_such_routine(version: Any, listed: bool) -> None:
    made = operations["nn.functional.grouped_mm"].build(np.ones((8, 4)), np.ones((2, 4, 4)), offs=np.array([4, 8]))
    assert isinstance(made, GroupedProblem)
    found = list(grouped_gemm.listed(replace(made, device="cuda:0"), (9, 0), version))
    assert all(isinstance(each, Algorithm if listed else Refusal) for each in found) and len(found) == 1
