"""Arrays of other libraries: the same operations, told by the arrays where they run, with a stand-in for a device."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.errors import BadType, BadValue, NoKernel
from backline.libraries import array_kinds
from backline.libraries.array_kinds import ArrayKind, Described, meta_array
from backline.libraries.base import Algorithm, Library
from backline.problems import Problem
from device_arrays import ndarray
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean


class StandIn(Library):
    name = "standin"
    devices = ("cuda",)
    prepared = 0

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm]:
        if problem.op == "matmul":
            yield Algorithm(library=self.name, name="product")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        StandIn.prepared += 1

        class Plan:
            choice: Any = None

            def __call__(self, *arrays: ndarray) -> ndarray:
                return ndarray(np.matmul(*(a.values for a in arrays)))

        return Plan()


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    kind = ArrayKind(
        "StandIn", "standin", "ndarray", lambda a: a.values.dtype, lambda a: a.values.strides, lambda a: f"cuda:{a.device}"
    )
    array_kinds.register(kind)
    libraries.register(StandIn())
    StandIn.prepared = 0
    yield
    libraries.unregister("standin")
    array_kinds.unregister("standin")


A, B = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((4, 5), np.float32)


def test_an_operation_runs_where_its_arrays_are() -> None:
    with backline.trace() as trace:
        result = backline.matmul(ndarray(A), ndarray(B))
    assert type(result) is ndarray and np.array_equal(result.values, A @ B)
    (event,) = trace
    assert event.library == "standin"
    assert backline.explain().library == "standin" and backline.explain().problem.device == "cuda:0"


def test_explain_knows_only_the_libraries_of_the_device() -> None:
    choice = backline.explain(backline.matmul, ndarray(A), ndarray(B))
    assert choice.problem.key == "matmul f32 3x4 4x5 on cuda:0" and StandIn.prepared == 0
    assert choice.library == "standin"
    assert {c.library for c in choice.candidates}.isdisjoint(("numpy", "openblas", "mkl", "onednn"))
    assert "no entry" in choice.basis  # what was measured on a CPU says nothing here


def two_ways(self: StandIn, problem: Problem, threads: int) -> Iterator[Algorithm]:
    yield from (Algorithm(library=self.name, name="slow"), Algorithm(library=self.name, name="product"))


def test_where_nothing_can_be_measured_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandIn, "algorithms", two_ways)
    with backline.backends.flags(benchmark=True):
        result = backline.matmul(ndarray(A), ndarray(B))
        assert "nothing is measured on this device" in backline.explain().basis
    assert np.array_equal(result.values, A @ B)


def test_measuring_puts_arrays_on_the_device_and_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    kind = array_kinds.kind_of(ndarray(A)).replaced(
        kind="cuda", put=lambda a, device: ndarray(a), get=lambda a: a.values, wait=waited.append
    )
    array_kinds.register(kind)
    monkeypatch.setitem(sys.modules, "standin", sys)
    monkeypatch.setattr(StandIn, "algorithms", two_ways)
    prepare = StandIn.prepare

    def slow(self: StandIn, problem: Problem, algorithm: Algorithm) -> Any:
        plan = prepare(self, problem, algorithm)
        if algorithm.name == "product":
            return plan

        class Slow:
            choice: Any = None

            def __call__(self, *arrays: ndarray) -> ndarray:
                time.sleep(0.002)
                return plan(*arrays)

        return Slow()

    monkeypatch.setattr(StandIn, "prepare", slow)
    with backline.backends.flags(benchmark=True):
        result = backline.matmul(ndarray(A), ndarray(B))
        choice = backline.explain()
    assert choice.algorithm == "product" and choice.basis.startswith("measured now")
    assert {c.algorithm for c in choice.candidates if c.seconds} == {"slow", "product"}
    assert set(waited) == {"cuda:0"} and np.array_equal(result.values, A @ B)


def test_a_plan_is_made_once_for_arrays_that_are_alike() -> None:
    for _ in range(3):
        backline.matmul(ndarray(A), ndarray(B))
    assert StandIn.prepared == 1
    backline.matmul(ndarray(A), ndarray(np.asfortranarray(B)))
    backline.matmul(ndarray(A, 1), ndarray(B, 1))
    assert StandIn.prepared == 3
    with backline.num_threads(1):
        backline.matmul(ndarray(A), ndarray(B))
    assert StandIn.prepared == 4  # another Snapshot


def test_arrays_of_one_call_are_of_one_kind_on_one_device() -> None:
    with pytest.raises(BadType, match="operands are arrays of NumPy and StandIn"):
        backline.matmul(ndarray(A), B)
    with pytest.raises(BadValue, match="operands are on cuda:0 and cuda:1"):
        backline.matmul(ndarray(A), ndarray(B, 1))


def test_what_is_wrong_is_refused_as_for_numpy() -> None:
    with pytest.raises(BadValue, match="matmul"):
        backline.matmul(ndarray(A), ndarray(A))
    with pytest.raises(TypeError, match="unexpected keyword"):
        backline.matmul(ndarray(A), ndarray(B), nonsense=1)
    with pytest.raises(BadType):
        backline.matmul(ndarray(A), [1.0])


def test_an_operation_that_no_library_of_the_device_has() -> None:
    with pytest.raises(NoKernel, match="on cuda:0"):
        backline.linalg.inv(ndarray(np.eye(3)))


@pytest.mark.parametrize("made", [A, A.T, A[::-1, ::2], np.broadcast_to(B[:1], (4, 5)), np.zeros((0, 3)), np.float64(3)])
def test_a_likeness_is_laid_out_the_same(made: Any) -> None:
    array = np.asarray(made)
    found = meta_array(Described(array.dtype, array.shape, array.strides, "cuda:0"))
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert found.strides == array.strides or not array.size
