"""The choice for a new shape on a device: the same as with a verdict on every algorithm, which is found when somebody reads it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline import fft, libraries, linalg, switches
from backline.engine import choose as engine
from backline.engine.device_leader import device_leader
from backline.libraries import errata, errata_table
from backline.libraries.base import Algorithm
from backline.libraries.edges import EDGES
from backline.libraries.erratum import Erratum
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems import Problem
from fakes.cupy_standin import ndarray
from support import clean

pytest.importorskip("cudnn")
pytest.importorskip("nvmath")
from fakes.gpu_machine import GpuMachine

pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean


@pytest.fixture(autouse=True)
def shipped_errata() -> Iterator[None]:
    """A test adds rows; the next one begins with those that are shipped."""
    errata.clear()
    yield
    errata.clear()


def zeros(*shape: int, dtype: Any = np.float32) -> ndarray:
    return ndarray(np.zeros(shape, dtype))


def half(*shape: int) -> ndarray:
    return zeros(*shape, dtype=np.float16)


CALLS: dict[str, Callable[[], Problem]] = {
    "matmul": lambda: problem(backline.matmul, zeros(20, 30), zeros(30, 40)),
    "matmul of halves": lambda: problem(backline.matmul, half(200, 300), half(300, 400)),
    "matmul of stacks": lambda: problem(backline.matmul, zeros(4, 1, 20, 30), zeros(1, 5, 30, 40)),
    "linear": lambda: problem(F.linear, zeros(20, 30), zeros(40, 30), zeros(40)),
    "conv": lambda: problem(F.conv2d, zeros(2, 4, 9, 9), zeros(8, 4, 3, 3)),
    "conv of halves": lambda: problem(F.conv2d, half(2, 64, 9, 9), half(64, 1, 3, 3), groups=64),
    "conv of longdouble": lambda: problem(F.conv2d, zeros(2, 4, 9, 9, dtype=np.complex64), zeros(8, 4, 3, 3, dtype=np.complex64)),
    "conv transposed": lambda: problem(F.conv_transpose2d, zeros(2, 4, 9, 9), zeros(4, 8, 3, 3), dilation=2),
    "conv_grad_weight": lambda: problem(G.conv2d_weight, zeros(2, 4, 9, 9), (8, 4, 3, 3), zeros(2, 8, 7, 7)),
    "attention": lambda: problem(F.scaled_dot_product_attention, *(half(2, 8, 128, 64) for _ in "qkv")),
    "attention of floats": lambda: problem(F.scaled_dot_product_attention, *(zeros(2, 8, 100, 48) for _ in "qkv"), is_causal=True),
    "fft": lambda: problem(fft.fft, zeros(8, 60, dtype=np.complex64)),
    "rfft": lambda: problem(fft.rfft, zeros(8, 61)),
    "solve": lambda: problem(linalg.solve, zeros(9, 9), zeros(9, 2)),
    "svd": lambda: problem(linalg.svd, zeros(9, 9)),
    "softmax": lambda: problem(F.softmax, zeros(9, 9), -1),
    "empty": lambda: problem(backline.matmul, zeros(0, 30), zeros(30, 40)),
}  # fmt: skip
SCOPES: list[dict[str, Any]] = [
    {}, {"fp32_precision": "ieee"}, {"fp32_precision": "tf32"}, {"cudnn.enabled": False}, {"cudnn.deterministic": True},
    {"only": ("cublas",)}, {"only": ("mkl", "cufft")}, {"cuda.cudnn_sdp": False}, {"cuda.flash_sdp": False, "cuda.cudnn_sdp": False},
    {"sdp_priority": ("math",)}, {"cudnn.conv.fp32_precision": "ieee"}, {"benchmark": "online"},
    {"cuda.matmul.allow_fp16_reduced_precision_reduction": False},
]  # fmt: skip


def problem(operation: Any, *args: Any, **kwargs: Any) -> Problem:
    found: Problem = backline.explain(operation, *args, **kwargs).problem
    return found


@pytest.mark.parametrize("name", CALLS)
def test_the_choice_is_the_same_as_with_a_verdict_on_everything(name: str) -> None:
    asked = CALLS[name]()
    told = 0
    for values in SCOPES:
        with switches.scope(values):
            try:
                wanted = engine._choose(asked, switches.current(), False, {}, ())
            except backline.errors.BacklineError as error:
                with pytest.raises(type(error)):
                    engine.choose(asked, load=False)
                continue
            found = engine.choose(asked, load=False)
            told += found._complete is not None
            assert found == wanted and str(found) == str(wanted), values
    assert told > len(SCOPES) // 2, "verdicts wait until somebody reads them"


@pytest.mark.parametrize(
    "values",
    [{"prefer": ("cublas",)}, {"deterministic": True}, {"max_error": 1e-3}, {"cuda.preferred_blas_library": "cublas"}, {"benchmark": True},
     {"emulate": True}],
)  # fmt: skip
def test_where_more_than_the_order_decides_it_is_not_asked(values: dict[str, Any]) -> None:
    asked = CALLS["matmul"]()
    with switches.scope(values):
        assert device_leader(asked, switches.current(), engine.planner) is None


def test_errata_and_refusals_are_asked_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shapes of one class that follow each other, one alone has the defect."""
    asked = CALLS["conv"]()
    monkeypatch.setitem(EDGES, "toy", lambda problem: problem.batch == 3)
    row = Erratum(id="toy-1", library="cudnn", operations=("conv",), edge="toy", condition="three images", evidence="e")
    monkeypatch.setattr(errata_table, "TABLE", (row,))
    errata.clear()
    taken = {}
    for batch in (2, 3, 4):
        made = problem(F.conv2d, zeros(batch, 4, 9, 9), zeros(8, 4, 3, 3))
        taken[batch] = engine.choose(made, load=False)
    assert [choice.library for choice in taken.values()] == ["cudnn", "cublas", "cudnn"]
    assert any("three images" in c.reason for c in taken[3].candidates if c.library == "cudnn")
    lists, seen = libraries.get("cudnn").algorithms, []

    def only_small(given: Any, *rest: Any) -> Iterator[Any]:
        seen.append(given.batch)
        return iter(()) if given.batch > 5 else lists(given, *rest)

    monkeypatch.setattr(libraries.get("cudnn"), "algorithms", only_small)
    for batch, library in ((4, "cudnn"), (6, "cublas"), (5, "cudnn")):
        assert engine.choose(replace(asked, batch=batch), load=False).library == library
    assert seen == [4, 6, 5]


def test_an_algorithm_that_does_more_of_the_work_comes_first_wherever_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = CALLS["matmul"]()
    last = libraries.get("cublaslt")

    def listed(*given: Any) -> Iterator[Algorithm]:
        yield Algorithm(library="cublaslt", name="plain")
        yield Algorithm(library="cublaslt", name="fused", traits=("epilogue",))

    monkeypatch.setattr(last, "algorithms", listed)
    assert engine.choose(asked, load=False).chosen.key == "cublaslt.fused@1"


def test_a_library_that_errs_is_told_by_the_whole_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    def errs(*given: Any) -> Iterator[Algorithm]:
        raise ValueError("this is wrong")
        yield

    monkeypatch.setattr(libraries.get("cudnn"), "algorithms", errs)
    choice = engine.choose(CALLS["conv"](), load=False)
    assert choice.library == "cublas" and choice._complete is None
    assert any("this is wrong" in c.reason for c in choice.candidates)


def test_libraries_of_the_host_have_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they are not loaded is no reason to choose again: they have nothing for a device."""
    asked, chosen = CALLS["matmul"](), []
    choose = engine._choose
    monkeypatch.setattr(libraries, "is_loaded", lambda name: False)
    monkeypatch.setattr(engine, "_choose", lambda *given: chosen.append(given[4]) or choose(*given))
    with switches.scope({"max_error": 1.0}):  # so that the whole choice is made
        engine.choose(asked, load=False)
    assert chosen and all("cuda" in libraries.info(name).devices for waiting in chosen for name in waiting)


def test_a_new_shape_takes_less_than_half_of_the_calls(made: GpuMachine) -> None:
    """Counted, for times depend on the machine."""

    def counted(shape: tuple[int, ...], whole: bool) -> int:
        asked, seen = problem(F.conv2d, zeros(*shape), zeros(8, 4, 3, 3)), 0

        def look(frame: Any, event: str, argument: Any) -> None:
            nonlocal seen
            seen += event == "call"

        snapshot = switches.current()
        sys.setprofile(look)
        try:
            engine._choose(asked, snapshot, True, {}, ()) if whole else engine.choose(asked, load=False, snapshot=snapshot)
        finally:
            sys.setprofile(None)
        return seen

    for whole in (True, False):  # what is found once
        counted((2, 4, 9, 9), whole)
    assert 2 * counted((3, 4, 9, 9), False) < counted((3, 4, 9, 9), True)


def test_what_is_made_of_products_finds_no_reasons_either() -> None:
    """Attention of products and a softmax asks which product it would be, for every shape."""
    asked = CALLS["matmul of stacks"]()
    found = engine.planner.chosen(asked)
    assert found._complete is not None and found.chosen == engine._choose(asked, switches.current(), False, {}, ()).chosen
