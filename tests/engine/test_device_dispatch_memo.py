"""Calls on arrays of other libraries that are like earlier ones: found by the compiled Memo, and given up when they must be."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries
from backline.errors import BadType, BadValue, NoKernel
from backline.libraries import array_kinds
from backline.libraries.array_kinds import ArrayKind
from backline.libraries.base import Algorithm, Library
from backline.ops import device_dispatch, operation
from backline.problems import Problem
from device_arrays import ndarray
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean


SLOW = ArrayKind("StandIn", "standin", "ndarray", lambda a: a.values.dtype, lambda a: a.values.strides, lambda a: f"cuda:{a.device}")
FAST = SLOW.replaced(reads=("values.dtype", "shape", "values.strides", "device"))


class Plan:
    choice: Any = None

    def __init__(self, problem: Problem | None = None) -> None:
        self.failed, self.problem = False, problem
        self.before: Callable[[], None] = lambda: None

    def __call__(self, *arrays: ndarray) -> ndarray:
        self.before()
        roles = ["a", "b", "out"] if self.problem is None else [o.role for o in self.problem.operands]
        given = dict(zip(roles, arrays, strict=False))
        made = np.matmul(given["a"].values, given["b"].values)
        if "out" not in given:
            return ndarray(made)
        given["out"].values[...] = made
        return given["out"]


class StandIn(Library):
    name = "standin"
    devices = ("cuda",)
    prepared: list[Plan]

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm]:
        if problem.op == "matmul":
            yield Algorithm(library=self.name, name="product")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        self.prepared.append(Plan(problem))
        return self.prepared[-1]


@pytest.fixture(params=["attributes", "a function"])
def library(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    made = StandIn()
    made.prepared = []
    array_kinds.register(FAST if request.param == "attributes" else SLOW)
    libraries.register(made)
    yield made
    libraries.unregister("standin")
    array_kinds.unregister("standin")


A, B = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((4, 5), np.float32)


def product(**given: Any) -> np.ndarray:
    found: np.ndarray = backline.matmul(ndarray(A), ndarray(B), **given).values
    return found


def test_python_decides_nothing_the_second_time(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    product()
    monkeypatch.setattr(device_dispatch, "problem_of", lambda *args: pytest.fail("asked again"))
    monkeypatch.setattr(operation, "_call_on_device", lambda *args: pytest.fail("asked again"))
    assert np.array_equal(product(), A @ B)
    with backline.trace() as trace:
        product()
    assert [event.library for event in trace] == ["standin"] and backline.explain().library == "standin"


def test_what_tells_arrays_apart(library: StandIn) -> None:
    product()
    others = [
        (ndarray(A.astype(np.float64)), ndarray(B.astype(np.float64))), (ndarray(A[:2]), ndarray(B)), (ndarray(A[::-1]), ndarray(B)),
        (ndarray(A, 1), ndarray(B, 1)), (ndarray(A.astype(complex)), ndarray(B.astype(complex))),
    ]  # fmt: skip
    for count, (a, b) in enumerate(others, 2):
        for _ in range(2):
            assert np.array_equal(backline.matmul(a, b).values, a.values @ b.values)
        assert len(library.prepared) == count


def test_outputs_by_name_and_their_order(library: StandIn) -> None:
    for _ in range(2):
        out = ndarray(np.zeros((3, 5), np.float32))
        assert backline.matmul(out=out, other=ndarray(B), input=ndarray(A)) is out and np.array_equal(out.values, A @ B)
        out = ndarray(np.zeros((3, 5), np.float32))
        assert backline.matmul(ndarray(A), ndarray(B), out=out) is out and np.array_equal(out.values, A @ B)


def test_a_plan_that_failed_is_not_used_again(library: StandIn) -> None:
    product()
    (plan,) = library.prepared

    def fail() -> None:
        plan.failed = True
        raise RuntimeError("the device said no")

    plan.before = fail
    with pytest.raises(RuntimeError, match="said no"):
        product()
    assert np.array_equal(product(), A @ B) and len(library.prepared) == 2
    gc.collect()
    assert weakref.getweakrefcount(plan) == 0


def test_an_error_that_is_not_the_plans_fault_leaves_it(library: StandIn) -> None:
    product()
    (plan,) = library.prepared

    def refuse() -> None:
        raise BadValue("not these")

    plan.before = refuse
    with pytest.raises(BadValue):
        product()
    plan.before = lambda: None
    product()
    assert len(library.prepared) == 1


def test_a_memo_that_is_emptied_while_a_plan_is_made_does_not_get_it(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    product()
    prepare = StandIn.prepare

    def clearing(self: StandIn, problem: Problem, algorithm: Algorithm) -> Any:
        made = prepare(self, problem, algorithm)
        _core.memo_clear()
        return made

    monkeypatch.setattr(StandIn, "prepare", clearing)
    backline.engine.plan_caches.clear()
    before = _core.memo_info()["size"]
    product()
    assert _core.memo_info()["size"] <= before


def test_switches_decide_anew(library: StandIn) -> None:
    product()
    with backline.num_threads(1):
        product()
    assert len(library.prepared) == 2
    product()
    assert len(library.prepared) == 2


def test_threads(library: StandIn) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(50):
            n = 2 + (seed + i) % 4
            a = np.full((n, 3), seed, np.float32)
            if not np.array_equal(backline.matmul(ndarray(a), ndarray(np.ones((3, 2), np.float32))).values, np.full((n, 2), 3 * seed)):
                wrong.append(seed)
            if i % 20 == seed:
                _core.memo_clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bytes_in_the_other_order_are_refused(library: StandIn) -> None:
    product()
    swapped = np.dtype(np.float32).newbyteorder()
    for _ in range(2):
        with pytest.raises(BadType, match="in the other order"):
            backline.matmul(ndarray(A.astype(swapped)), ndarray(B))


def test_telling_what_arrays_are_may_write_switches() -> None:
    made = StandIn()
    made.prepared = []
    libraries.register(made)
    threads = backline.get_num_threads()

    def strides(array: ndarray) -> tuple[int, ...]:
        backline.set_num_threads(1 if backline.get_num_threads() > 1 else 2)
        return array.values.strides

    array_kinds.register(SLOW.replaced(strides=strides))
    try:
        for _ in range(4):
            assert np.array_equal(product(), A @ B)
    finally:
        backline.set_num_threads(threads)
        libraries.unregister("standin")
        array_kinds.unregister("standin")


def test_what_cannot_be_told_is_raised() -> None:
    array_kinds.register(SLOW.replaced(strides=lambda a: 1 // 0))
    try:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                product()
    finally:
        array_kinds.unregister("standin")


def test_an_interrupt_is_not_lost() -> None:
    asked = iter(range(9))

    def strides(array: ndarray) -> tuple[int, ...]:
        if next(asked) > 0:
            raise KeyboardInterrupt
        return array.values.strides

    array_kinds.register(SLOW.replaced(strides=strides))
    try:
        with pytest.raises(KeyboardInterrupt):
            product()
    finally:
        array_kinds.unregister("standin")


def test_types_are_let_go() -> None:
    class ndarray:
        shape, dtype, strides, device = (2, 2), np.dtype(np.float32), (8, 4), "cuda:0"

    ndarray.__module__ = "passing.core"
    kind = ArrayKind("Passing", "passing", "ndarray", lambda a: a.dtype, lambda a: a.strides, lambda a: a.device)
    array_kinds.register(kind)
    with pytest.raises(NoKernel):
        backline.matmul(ndarray(), ndarray())
    array_kinds.unregister("passing")
    seen = weakref.ref(ndarray)
    del ndarray
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("how", [None, 3, ("shape",), (("shape", 1),), ((),)])
def test_how_arrays_are_told_apart_is_checked(how: Any) -> None:
    with pytest.raises(TypeError, match="a tuple of paths of attributes, or by a function"):
        _core.register_array_type(ndarray, how)


def test_the_last_plan_of_a_thread_goes_with_it() -> None:
    kept: list[Any] = []

    def work() -> None:
        plan = Plan()
        _core.run("example", plan, ndarray(A), ndarray(B))
        assert _core.last_plan() is plan
        kept.append(weakref.ref(plan))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert kept[0]() is None
