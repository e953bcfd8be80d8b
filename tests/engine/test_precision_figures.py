"""The shipped figures of precision, and what they decide: bounds of families, `max_error` where nothing was measured, `explain`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries
from backline.engine import precision_cases, precision_figures, problem_class
from backline.engine.choose import choose, eligible
from backline.engine.precision_figures import BOUND, MARGIN, Figure, estimate, figures, merged, provenance, text_of
from backline.errors import NoKernel
from backline.libraries.base import Algorithm
from backline.native.processor_class import ProcessorClass
from backline.problems import Problem, short
from backline.problems.op_registry import import_operations

PROBLEM = "matmul f32 64x64 64x64"
GOOD = Figure(23.5, 21.0, 256, 1e-7, 19.0, "cancellation")


@pytest.fixture
def with_figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Figure]], None]]:
    """Puts figures of float32 products in the place of the shipped ones."""

    def put(rows: dict[str, Figure]) -> None:
        content = {"provenance": {}, "figures": {"matmul": {"f32": {name: list(figure) for name, figure in rows.items()}}}}
        monkeypatch.setattr(precision_figures, "_content", lambda: content)
        problem_class._known.clear()
        _core.memo_clear()

    yield put
    monkeypatch.undo()
    problem_class._known.clear()
    _core.memo_clear()


def candidates(problem: Problem) -> list[Algorithm]:
    return eligible(problem, backline.get_num_threads())


# The shipped table -------------------------------------------------------------------------------------------------------


def test_the_shipped_figures_are_what_they_say() -> None:
    made = provenance()
    assert made and all(ProcessorClass.parse(name) for name in made)
    for machine in made.values():
        assert machine["cpu"] and re.fullmatch(r"\d{4}-\d\d-\d\d", machine["date"]) and machine["libraries"]["numpy"]
    import_operations()
    names = set(libraries.names())
    for op, dtypes in figures().items():
        for dtype, rows in dtypes.items():
            for name, f in rows.items():
                assert name.partition(".")[0] in names, (op, name)
                assert 0 <= f.worst <= f.ordinary <= 54 and f.worst <= f.bits <= 54 and f.error < 1, (op, dtype, name)
                assert f.terms >= 1 and f.loss >= 0 and bool(f.against) == bool(f.loss)


def test_whatever_precision_is_measured_of_has_figures() -> None:
    """`max_error` refuses nothing that has none."""
    shipped = figures()
    lacking = set()
    for case in precision_cases.cases():
        problem = Problem.parse(case.text)
        if not shipped.get(problem.op, {}).get(short(problem.dtype)):
            lacking.add((problem.op, short(problem.dtype)))
    assert not lacking, f"python benchmarks/make_precision.py --merge {' '.join(sorted({op for op, _ in lacking}))}"


def test_shipped_products_have_the_bits_of_their_format() -> None:
    shipped = figures()["matmul"]
    for dtype, least, most in (("f32", 23, 24), ("f64", 52, 53), ("f16", 10, 11), ("bf16", 7, 8)):
        for name, f in shipped[dtype].items():
            library, _, algorithm = name.partition(".")
            if algorithm in ("tf32", "bf16"):
                assert abs(f.bits - {"tf32": 10, "bf16": 7}[algorithm]) <= 0.5, (library, f)
            elif f.terms <= 1024:  # the others are for long sums alone
                assert least <= f.bits <= most, (name, f)


# Figures -----------------------------------------------------------------------------------------------------------------


def test_figures_in_words_and_put_together() -> None:
    assert str(GOOD) == "23.5 bits measured, 21.0 in sums of 256 terms (worst 19.0: cancellation)"
    assert str(GOOD._replace(bits=21.0)) == "21.0 bits measured (worst 19.0: cancellation)"
    other = GOOD._replace(bits=23.0, ordinary=22.0, terms=9, worst=18.0, case="graded", loss=1.0, against="a.b", lost_in="c")
    assert merged(GOOD, other) == merged(other, GOOD) == Figure(23.0, 21.0, 256, 1e-7, 18.0, "graded", 1.0, "a.b", "c")


def test_an_estimate_grows_with_the_terms_and_never_falls_below_what_was_measured(with_figures: Any) -> None:
    with_figures({"openblas.gemm": GOOD})
    gemm = Algorithm(library="openblas", name="gemm")
    for terms, factor in ((1024, 2.0), (256, 1.0), (4, 1.0)):
        found = estimate(Problem.parse(f"matmul f32 8x{terms} {terms}x8"), gemm)
        assert found is not None and math.isclose(found, 1e-7 * factor)
    problem = Problem.parse(PROBLEM)
    assert estimate(problem, replace(gemm, name="gemm_items")) == 1e-7, "a batch divided has the figure of the whole"
    assert estimate(problem, replace(gemm, name="other")) is None
    assert text_of(problem, None) == "" and text_of(replace(problem, device="cuda:0"), gemm) == ""


# Choices -----------------------------------------------------------------------------------------------------------------


def test_what_loses_more_than_its_family_may_is_refused_with_the_reason(with_figures: Any) -> None:
    problem = Problem.parse(PROBLEM)
    first = choose(problem).chosen
    assert first is not None
    name = f"{first.library}.{first.name}"
    with_figures({name: GOOD._replace(loss=BOUND + 1.1, against="other.gemm", lost_in="sums of 256 terms")})
    choice = choose(problem)
    assert choice.chosen is not None and f"{choice.library}.{choice.algorithm}" != name
    quick = choose(problem, load=False)
    assert quick.chosen is not None and f"{quick.library}.{quick.algorithm}" != name
    refused = [c for c in choice.candidates if c.switch == "prefer" and (c.library, c.algorithm) == (first.library, first.name)]
    assert refused and all(c.verdict == "refused" for c in refused)
    for part in ("3.1 bits", "other.gemm", "sums of 256 terms", "matmul may lose 2"):
        assert part in refused[0].reason
    assert all(a.library != first.library or a.name != first.name for a in candidates(problem)), "nor is it tuned"
    with backline.use(first.library):
        assert choose(problem).library == first.library, "what the user names runs"


def test_what_loses_as_much_as_it_may_is_chosen(with_figures: Any) -> None:
    problem = Problem.parse(PROBLEM)
    first = choose(problem).chosen
    assert first is not None
    with_figures({f"{first.library}.{first.name}": GOOD._replace(loss=BOUND - MARGIN, against="other.gemm", lost_in="ordinary")})
    again = choose(problem).chosen
    assert again is not None and again.key == first.key


def test_the_bound_leaves_nothing_without_an_algorithm(with_figures: Any) -> None:
    problem = Problem.parse(PROBLEM)
    bad = GOOD._replace(loss=9.0, against="none.other", lost_in="ordinary")
    with_figures({f"{a.library}.{a.name}": bad for a in candidates(problem)})
    assert choose(problem).chosen is not None
    a = np.ones((64, 64), np.float32)
    assert (backline.matmul(a, a) == 64).all()


def test_max_error_goes_by_the_shipped_figures_where_nothing_was_measured(with_figures: Any) -> None:
    problem = Problem.parse(PROBLEM)
    first = choose(problem).chosen
    assert first is not None
    others = {f"{a.library}.{a.name}": GOOD for a in candidates(problem) if a.name != first.name or a.library != first.library}
    with_figures({**others, f"{first.library}.{first.name}": GOOD._replace(error=1e-4)})
    assert choose(problem).library == first.library, "without a limit it makes no difference"
    with backline.backends.flags(max_error=1e-6):
        choice = choose(problem)
        assert (choice.library, choice.algorithm) != (first.library, first.name)
        refused = [c for c in choice.candidates if c.switch == "max_error"]
        assert {(c.library, c.algorithm) for c in refused} == {(first.library, first.name)}
        assert "1.0e-04 is above max_error = 1.0e-06" in refused[0].reason and refused[0].error == 1e-4
        a = np.ones((64, 64), np.float32)
        backline.matmul(a, a)
        ran = backline.explain()
        assert (ran.library, ran.algorithm) != (first.library, first.name)
    with backline.backends.flags(max_error=1e-9), pytest.raises(NoKernel, match="max_error"):
        choose(Problem.parse("matmul f32 64x4096 4096x64"), without={})


def test_explain_quotes_the_figures(with_figures: Any) -> None:
    problem = Problem.parse(PROBLEM)
    with_figures({f"{a.library}.{a.name}": GOOD for a in candidates(problem)})
    choice = choose(problem)
    quoted = [row for row in choice.rows() if row[0] in ("chosen", "next") and row[2]]
    assert quoted and all("23.5 bits measured, 21.0 in sums of 256 terms (worst 19.0: cancellation)" in row[4] for row in quoted)
    assert "23.5 bits measured" in str(choice)
