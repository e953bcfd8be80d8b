"""CallSampler: which calls are handed over, who listens to the others, and what becomes of calls made meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, switches
from backline.nn import functional
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

X = np.eye(3)


@pytest.fixture
def traced() -> Iterator[Callable[[Any], None]]:
    """Sets the tracer of the context; undone after the test, as that of the process."""
    before = switches.tracer()
    yield switches.set_tracer
    switches.set_tracer(before)
    _core.set_tracer(None)


class Handed:
    """Takes calls, and runs them as they would have run."""

    def __init__(self, every: int = 0) -> None:
        self.calls: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = []
        self.every = every

    def __call__(self, sampler: Any, operation: Any, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append((operation, plan, args, kwargs))
        if self.every:
            sampler.after(self.every)
        return operation(*args, **kwargs)


def test_calls_are_counted(traced: Callable[[Any], None]) -> None:
    handed = Handed(every=3)
    sampler = _core.CallSampler(handed, 2)
    traced(sampler)
    due = []
    for _ in range(9):
        before = len(handed.calls)
        assert np.array_equal(backline.matmul(X, X), X)
        due.append(len(handed.calls) > before)
    assert due == [False, True, False, False, True, False, False, True, False]
    sampler.after(0)  # no less than the next one
    backline.matmul(X, X)
    assert len(handed.calls) == 4


def test_what_is_handed_over(traced: Callable[[Any], None]) -> None:
    handed = Handed()
    traced(_core.CallSampler(handed, 0))
    out = np.zeros((3, 3))
    assert backline.matmul(X, other=2 * X, out=out) is out and out[0, 0] == 2
    operation, plan, args, kwargs = handed.calls[0]
    assert operation is backline.matmul and plan.choice.problem.op == "matmul"
    assert args == (X,) and kwargs["out"] is out and list(kwargs) == ["other", "out"]
    assert len(handed.calls) == 1  # the call that is made meanwhile is not handed over again
    x = np.ones(8, np.float32)
    backline.manual_seed(1)
    functional.dropout(x)  # its seed is drawn: made again, it would have another
    assert len(handed.calls) == 1
    functional.relu(x)
    assert len(handed.calls) == 2


def test_others_listen(traced: Callable[[Any], None]) -> None:
    whole: list[str] = []
    _core.set_tracer(lambda op, plan, spent: whole.append(op))
    events: list[str] = []
    inner, outer = Handed(every=2), Handed(every=3)
    listens = _core.CallSampler(outer, 3, lambda op, plan, spent: events.append(op))
    traced(_core.CallSampler(inner, 2, listens))
    for _ in range(6):
        backline.matmul(X, X)
    # A call that the inner one makes is one for the outer one, too: each of the six is.
    assert events == whole == ["matmul"] * 6 and len(inner.calls) == 3 and len(outer.calls) == 2
    traced(_core.CallSampler(inner, 0))
    backline.matmul(X, X)
    assert len(whole) == 7 and len(events) == 6


def test_a_listener_that_comes_later(traced: Callable[[Any], None]) -> None:
    handed, further, early = Handed(), Handed(every=2), list[str]()
    traced(_core.CallSampler(handed, 0, _core.CallSampler(further, 2, lambda op, plan, spent: early.append(op))))
    with backline.trace() as events:
        for _ in range(4):
            backline.matmul(X, X)
    assert len(events) == len(early) == len(handed.calls) == 4 and len(further.calls) == 2
    backline.matmul(X, X)
    assert len(events) == 4 and len(early) == len(handed.calls) == 5


def test_one_of_the_process(traced: Callable[[Any], None]) -> None:
    handed = Handed()
    _core.set_tracer(_core.CallSampler(handed, 0))
    backline.matmul(X, X)
    with backline.trace() as events:
        backline.matmul(X, X)
    thread = threading.Thread(target=backline.matmul, args=(X, X))
    thread.start()
    thread.join()
    assert len(handed.calls) == 3 and [event.op for event in events] == ["matmul"]
    _core.set_tracer(None)
    backline.matmul(X, X)
    assert len(handed.calls) == 3


def test_errors_are_the_callers(traced: Callable[[Any], None]) -> None:
    def fails(*given: Any) -> Any:
        raise ArithmeticError("planted")

    traced(_core.CallSampler(fails, 1))
    with pytest.raises(ArithmeticError, match="planted"):
        backline.matmul(X, X)
    assert np.array_equal(backline.matmul(X, X), X)
    with pytest.raises(ValueError, match="the first call"):
        _core.CallSampler(fails, -1)


def test_it_goes_with_its_cycles() -> None:
    class Owner:
        def run(self, *given: Any) -> Any: ...

    owner: Any = Owner()
    owner.sampler = _core.CallSampler(owner.run, 5, None)
    assert owner.sampler.outer is None
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_the_plan_that_ran_last_is_the_calls(traced: Callable[[Any], None]) -> None:
    def compares(sampler: Any, operation: Any, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = operation(*args, **kwargs)
        backline.linalg.inv(X)
        return result

    traced(_core.CallSampler(compares, 0))
    backline.matmul(X, X)
    assert backline.explain().problem.op == "matmul"
