"""An operation is one row, one builder and a handler: a toy one is typed, explained, sampled, checked and measured without more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.cli import bench
from backline.engine import accuracy
from backline.engine.tuning import sample_operands
from backline.libraries.base import Algorithm, Library, PythonPlan
from backline.ops.linalg_checks import matrix
from backline.ops.operation import operation
from backline.ops.problem_text import parse
from backline.problems import Problem, operand
from backline.problems.op_registry import operations

Array = np.ndarray[Any, Any]


def even(rng: np.random.Generator, array: Array, problem: Problem) -> None:
    array *= 2


def relative(problem: Problem, arrays: list[Array], results: tuple[Array, ...]) -> float:
    return float(np.max(np.abs(results[0] - arrays[0].sum(-1))))


class Toy(Library):
    """The handler."""

    name = title = "toy"

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm]:
        if problem.op == "row_sums":
            yield Algorithm(library=self.name, name="sums")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> PythonPlan:
        return PythonPlan(lambda a: a.sum(-1))


@pytest.fixture
def row_sums() -> Iterator[Any]:
    libraries.register(Toy())

    @operation("row_sums", family="toy", sample=even, check=relative, sizes="{n}x{n}", bench=True)
    def row_sums(A: Array) -> Problem:
        """Sum of every row.

        Parameters
        ----------
        {rectangular}
        """
        return Problem("row_sums", (operand("a", matrix("row_sums", "A", A)),), (), "toy")

    yield row_sums
    del operations["row_sums"]
    libraries.unregister("toy")


def test_it_runs_and_is_explained(row_sums: Any) -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert row_sums(a).tolist() == [3.0, 12.0]
    with switches.scope({"promote": "numpy"}):
        assert row_sums(a.astype(np.int64)).tolist() == [3.0, 12.0]
    choice = backline.explain("row_sums", a)
    assert (choice.library, choice.algorithm) == ("toy", "sums")
    assert "A\n            Shape (..., m, n)." in row_sums.__doc__


def test_its_text_its_sample_and_its_check(row_sums: Any) -> None:
    problem = parse("row_sums f64 5x7")
    assert str(problem) == "row_sums f64 5x7"
    (a,) = arrays = sample_operands.arrays_for(problem, 1)
    plain = sample_operands.arrays_for(Problem("anything", problem.operands), 1)
    assert np.array_equal(a, 2 * plain[0])
    assert accuracy.error(problem, arrays, a.sum(-1)) == 0.0
    assert accuracy.error(problem, arrays, a.sum(-1) + 1) == pytest.approx(1.0)


def test_it_is_measured(row_sums: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert "row_sums" in bench._default() and "row_sums" in bench._operations("row")
    bench.bench(["row_sums"], library=None, dtype=["f64"], size=[8], threads=None, budget=0.01, total=5.0, every=False, json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found["problem"] == "row_sums f64 8x8" and found["library"] == "toy"
    assert found["seconds"] > 0 and found["error"] == 0.0
