"""The further algorithms that cuBLASLt's heuristics name: listed while `benchmark` is on, and timed like any other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.errors import LibraryFailed
from backline.libraries import array_kinds
from backline.libraries.base import Algorithm
from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cublaslt import library as cublaslt
from fakes.computing import Blas, Lt
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.device_memory import placed
from fakes.insert import inserted
from support import clean

real = pytest.importorskip("nvmath.bindings.cublas")
real_lt = pytest.importorskip("nvmath.bindings.cublasLt")
pytestmark = pytest.mark.usefixtures("clean")
assert clean


@pytest.fixture
def lt() -> Iterator[Lt]:
    made = Lt(real_lt)
    made.works = 3
    with inserted(cupy=CuPy(H100), cublas=Blas(real), cublasLt=made):
        yield made


def operands(by: int = 0) -> tuple[ndarray, ndarray]:
    """Two matrices, the second of which begins so many bytes after where CuPy's memory would."""
    return ndarray(placed(np.arange(12, dtype=np.float32).reshape(3, 4))), ndarray(placed(np.ones((4, 5), np.float32), by))


def named(problem: Any) -> list[str]:
    found = libraries.get("cublaslt").algorithms(problem, 1)
    return [a.name for a in found if isinstance(a, Algorithm)]


def test_they_are_listed_while_algorithms_are_timed(lt: Lt) -> None:
    problem = backline.explain(backline.matmul, *operands()).problem
    few = named(problem)
    with switches.scope({"benchmark": True}):
        many = named(problem)
    assert few == ["matmul_tf32", "matmul"] and many[: len(few)] == few
    assert many[len(few) :] == [f"{name}_proposal{i}" for i in range(2, 2 + cublaslt.FURTHER) for name in few]


@pytest.mark.parametrize("by", [0, 16])
@pytest.mark.parametrize(("name", "number"), [("matmul", 0), ("matmul_proposal2", 1), ("matmul_proposal3", 2)])
def test_each_is_another_algorithm_of_the_library(lt: Lt, name: str, number: int, by: int) -> None:
    lt.refuses = [15]  # the first that is named does not work
    x, y = operands(by)
    problem = backline.explain(backline.matmul, x, y).problem
    plan = libraries.get("cublaslt").prepare(problem, Algorithm(library="cublaslt", name=name))
    assert np.array_equal(plan(x, y).host, x.host @ y.host)
    algorithm = np.frombuffer(computing_memory(lt.calls("matmul")[-1]["algo"]), np.uint64)[0]
    assert algorithm == (2 if by else 2 + number), "what is less aligned runs what is recommended for it"


def computing_memory(address: int) -> Any:
    from fakes.computing import memory

    return memory(address, 8)


def test_what_the_heuristics_do_not_name_cannot_be_prepared(lt: Lt) -> None:
    x, y = operands()
    problem = backline.explain(backline.matmul, x, y).problem
    with pytest.raises(LibraryFailed, match="no algorithm") as caught:
        libraries.get("cublaslt").prepare(problem, Algorithm(library="cublaslt", name="matmul_proposal4"))
    assert "3 of which work; number 4 was asked for" in caught.value.cause


@pytest.fixture
def measurable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Arrays to measure with are made as the stand-in has them."""
    kind = array_kinds._KINDS["cupy"]
    monkeypatch.setitem(sys.modules, "cupy", bindings.cupy())
    array_kinds.register(kind.replaced(put=lambda array, device: ndarray(array), get=lambda a: a.host, wait=lambda device: None))
    yield
    array_kinds.register(kind)


def test_they_are_measured(lt: Lt, measurable: None) -> None:
    x, y = operands()
    with switches.scope({"benchmark": True, "benchmark_limit": 0}):
        result = backline.matmul(x, y)
        choice = backline.explain()
    assert np.allclose(result.host, x.host @ y.host)
    timed = {c.algorithm for c in choice.candidates if c.seconds is not None}
    assert {"matmul", "matmul_proposal2", "matmul_proposal3"} <= timed and "matmul_proposal4" not in timed
