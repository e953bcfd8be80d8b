"""Equivalent mantissa bits as they are measured: of formats that are known, of results made with so many bits, of libraries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.engine import precision_cases
from backline.engine.check_precision import check_precision, measure
from backline.engine.choose import eligible
from backline.engine.mantissa_bits import MantissaBits, rounded
from backline.engine.precision_cases import FORMATS, cases
from backline.engine.tuning.sample_operands import arrays_for
from backline.errors import BadValue
from backline.libraries.base import Algorithm, Handler, Library, PythonPlan
from backline.problems import Problem
from backline.problems.matmul_problem import MatmulProblem
from support import BFLOAT16, new_seed

Array = Any
TEXTS = (
    "matmul {d} 40x90 90x30", "linear {d} 40x90 30x90", "conv {d} 1x8x9x9 12x8x3x3", "linalg.solve {d} 30x30 30x4",
    "linalg.cholesky {d} 30x30", "linalg.qr {d} 40x30",
    "fft.rfft {d} 8x240",
)  # fmt: skip


def numpy_in_float64(problem: Problem, arrays: list[Array]) -> Array:
    from backline.engine.accuracy_wide import computed

    return computed(problem, arrays)


# The measure -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_result_of_operands_of_so_many_bits_has_so_many(text: str, dtype: str) -> None:
    problem = Problem.parse(text.format(d=dtype))
    arrays = arrays_for(problem, new_seed())
    bits = MantissaBits(problem, arrays)
    for stored in (8, 13, 17):
        made = numpy_in_float64(problem, [rounded(x, stored) for x in arrays])
        # The largest error of some hundred elements: it is not the same multiple of the rounding for each number of bits.
        assert abs(bits.of(bits.error(made)) - stored) < 1.5


def test_rounding_to_bits_is_that_of_the_formats() -> None:
    rng = np.random.default_rng(new_seed())
    x = rng.standard_normal(1000) * 2.0 ** rng.integers(-10, 10, 1000)
    assert (rounded(x, 23) == x.astype(np.float32)).all()
    assert (rounded(x, 7) == x.astype(np.float32).astype(BFLOAT16).astype(np.float64)).mean() > 0.99, "ties alone may differ"
    half = x.astype(np.float16)
    assert (rounded(half, 10) == half).all() and rounded(half, 4).dtype == np.float16
    z = (x + 1j * x[::-1]).astype(np.complex64)
    assert (rounded(z, 10).real == rounded(z.real, 10)).all() and (rounded(z, 10).imag == rounded(z.imag, 10)).all()


def test_exact_and_wrong_results() -> None:
    problem = Problem.parse("matmul f32 8x8 8x8")
    arrays = arrays_for(problem, new_seed())
    bits = MantissaBits(problem, arrays)
    assert bits.measurable and bits.of(0.0) == 24.0
    assert bits.of(bits.error(np.full((8, 8), np.nan, np.float32))) == 0.0
    assert bits.of(bits.error(np.full((8, 8), 1e9, np.float32))) == 0.0
    exact = Problem.parse("relu f32 8")
    zeros = [np.zeros(8, np.float32)]
    assert not MantissaBits(exact, zeros).measurable, "rounding changes nothing there"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_good_solution_of_a_bad_system_is_good(dtype: Any) -> None:
    """By its backward error; its difference from the true solution is that of the data."""
    rng = np.random.default_rng(new_seed())
    q, _ = np.linalg.qr(rng.standard_normal((40, 40)))
    stored = FORMATS["f32" if dtype == np.float32 else "f64"].stored
    a = ((q * np.geomspace(1, 2.0 ** -(stored - 4), 40)) @ np.linalg.qr(rng.standard_normal((40, 40)))[0]).astype(dtype)
    b = rng.standard_normal((40, 3)).astype(dtype)
    from backline.problems.op_registry import operations

    problem = operations["linalg.solve"].build(a, b)
    bits = MantissaBits(problem, [a, b])
    found = bits.of(
        bits.error(np.linalg.solve(a.astype(np.float64), b).astype(dtype) if dtype == np.float32 else np.linalg.solve(a, b))
    )
    assert found > stored - 8  # elimination lost up to 5.1 bits with 1,500 seeds; by the other measure all but a few are lost
    assert bits.of(bits.error(np.zeros_like(b))) < 3


# Formats -----------------------------------------------------------------------------------------------------------------

STORED = {
    "f16": (10.0, 11.0),
    "bf16": (7.0, 8.0),
    "f32": (23.0, 24.0),
    "f64": (52.0, 53.0),
    "c64": (22.0, 24.0),
    "c128": (51.0, 53.0),
}


@pytest.mark.parametrize("dtype", STORED)
def test_products_have_the_bits_of_their_format(dtype: str) -> None:
    report = check_precision("matmul", dtype=dtype, quick=True, seed=new_seed())
    least, most = STORED[dtype]
    assert not report.failures and report.rows
    for row in report.rows:
        f = row.figure
        if row.precision in ("tf32", "bf16"):
            assert abs(f.bits - {"tf32": 10, "bf16": 7}[row.precision]) <= 0.5, row
        elif row.precision.startswith(("tf32", "bf16")):  # (emulated)
            assert abs(f.bits - {"tf32": 10, "bf16": 7}[row.precision[:4]]) <= 0.5, row
        else:
            luck = 0.5 if row.algorithm == "dot" else 0.0  # of sixteen results
            assert least - luck <= f.bits <= most, row
        assert f.worst <= f.ordinary + 1e-9 and f.worst <= f.bits and f.error < 1e-1


def test_emulation_is_measured_though_no_switch_permits_it() -> None:
    with backline.backends.flags(fp32_precision="ieee", emulate=False):
        rows = {row.algorithm: row for row in check_precision("matmul", library="emulated", dtype="float32", quick=True).rows}
    assert set(rows) == {"tf32", "bf16"}
    for name, stored in (("tf32", 10), ("bf16", 7)):
        assert rows[name].precision == f"{name} (emulated)" and abs(rows[name].figure.bits - stored) <= 0.5


# Reports -----------------------------------------------------------------------------------------------------------------


class Coarse(Library):
    """Products that are rounded to float16 on the way."""

    name, title = "coarse", "Coarse"
    handlers = {  # noqa: RUF012  # as libraries declare it
        MatmulProblem: Handler(
            lambda library, p, threads: iter([Algorithm(library="coarse", name="halves", level="threads", basis="construction")]),
            lambda library, p, a: PythonPlan(lambda x, y: np.matmul(x.astype(np.float16), y.astype(np.float16)).astype(x.dtype)),
        )
    }

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1"


@pytest.fixture
def coarse() -> Iterator[None]:
    libraries.register(Coarse())
    try:
        yield
    finally:
        libraries.unregister("coarse")


def test_what_loses_bits_shows(coarse: None) -> None:
    problem = Problem.parse("matmul f32 48x32 32x48")
    made = measure(problem, eligible(problem, 1), seed=new_seed())
    (sample,) = [s for s in made.samples if s.algorithm.library == "coarse"]
    assert 6 < sample.bits < 11 and made.loss(sample) > 10
    best = made.best()
    assert best is not None and best.algorithm.library != "coarse" and made.loss(best) == 0


def test_words_and_limits() -> None:
    with pytest.raises(BadValue, match="no case of the check"):
        check_precision("nothing")
    assert cases(("linalg.*",), "f32", True) == cases(("linalg.",), "f32", True) != []
    for op, dtype, remedy in (("nothing", "", "a family"), ("linalg.qr", "bfloat16", "one of: f16")):
        with pytest.raises(BadValue, match="no case of the check") as caught:
            check_precision(op, dtype=dtype)
        assert caught.value.remedy.startswith(remedy)
    with pytest.raises(BadValue, match="is not measured"):
        check_precision("matmul", dtype="int8")
    with pytest.raises(BadValue, match="no library"):
        check_precision("matmul", library="nothing")
    report = check_precision("matmul", dtype="f32", quick=True, seconds=-1.0)
    assert not report.rows and report.unreached == len(cases(("matmul",), "f32", True))
    report = check_precision("linalg.solve", library="numpy", dtype="float64", quick=True)
    assert {row.library for row in report.rows} == {"numpy"} and {row.dtype for row in report.rows} == {"f64"}
    assert "numpy" in str(report) and "<table>" in report._repr_html_()
    assert report.as_dict()["rows"][0]["bits"] == report.rows[0].figure.bits


def test_cases_are_problems_of_every_family_and_kind() -> None:
    found = cases()
    problems = {case.text: Problem.parse(case.text) for case in found}
    assert {p.family for p in problems.values()} == set(precision_cases.FAMILIES) - {"linear"}
    names = {case.name for case in found}
    for word in (
        "cancellation",
        "graded magnitudes",
        "ill conditioned",
        "near overflow",
        "near underflow",
        "length 100003, a prime",
    ):
        assert word in names
    assert all(math.isfinite(p.flops) for p in problems.values())
