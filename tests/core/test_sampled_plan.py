"""SampledPlan: which calls are timed, what they run, and what becomes of errors."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from backline import _core
from backline.libraries.base import PythonPlan

A = np.ones(3)


class Case:
    """An operation whose one plan is sampled; `seen` has what the sampler was told."""

    def __init__(self, calls: int = 3, repeatable: bool = True) -> None:
        self.ran: list[str] = []
        self.seen: list[tuple[str, int, int]] = []
        self.then: Any = lambda sampled: sampled.time_after(3)
        self.errors: dict[str, BaseException] = {}
        self.plans = {name: self.plan(name) for name in ("choice", "other")}
        self.sampled = _core.SampledPlan(self.plans["choice"], self.sampler, calls, repeatable)
        self.op = _core.Operation("op", ("a",), lambda args, kwargs: self.sampled, lambda a: "general")

    def plan(self, name: str) -> PythonPlan:
        def run(a: Any) -> str:
            self.ran.append(name)
            if name in self.errors:
                raise self.errors[name]
            return name

        return PythonPlan(run)

    def sampler(self, sampled: Any, plan: Any, calls: int, wall: int, cpu: int, interruptions: int) -> None:
        (name,) = (name for name, each in self.plans.items() if each is plan)
        self.seen.append((name, calls, wall))
        assert cpu >= 0 and interruptions >= 0
        self.then(sampled)


def test_one_call_in_some_is_timed() -> None:
    case = Case(calls=2)
    assert [case.op(A) for _ in range(9)] == ["choice"] * 9
    assert [calls for _, calls, _ in case.seen] == [2, 3, 3]  # the 2nd, 5th and 8th
    assert all(wall > 0 for _, _, wall in case.seen)


def test_the_timed_call_runs_what_is_next_and_the_others_the_plan() -> None:
    case = Case(calls=2)
    case.sampled.next = case.plans["other"]
    assert [case.op(A) for _ in range(6)] == ["choice", "other", "choice", "choice", "other", "choice"]
    case.sampled.plan, case.sampled.next = case.plans["other"], None
    assert case.sampled.next is None and case.op(A) == "other"


def test_timing_ends_with_nought() -> None:
    case = Case(calls=1)
    case.then = lambda sampled: sampled.time_after(0)
    for _ in range(100):
        case.op(A)
    assert len(case.seen) == 1


def test_a_trial_that_fails_is_run_again_by_the_choice() -> None:
    case = Case(calls=1)
    case.sampled.next, case.errors = case.plans["other"], {"other": RuntimeError("no")}
    assert case.op(A) == "choice" and case.ran == ["other", "choice"]
    assert case.seen == [("other", 1, -1)]


def test_an_error_of_both_is_the_one_of_the_choice() -> None:
    case = Case(calls=1)
    case.sampled.next, case.errors = case.plans["other"], {"other": RuntimeError("no"), "choice": ValueError("the operand")}
    with pytest.raises(ValueError, match="the operand"):
        case.op(A)
    assert not case.seen


@pytest.mark.parametrize(("repeatable", "error"), [(False, RuntimeError("no")), (True, KeyboardInterrupt())])
def test_what_may_not_run_twice_does_not(repeatable: bool, error: BaseException) -> None:
    case = Case(calls=1, repeatable=repeatable)
    case.sampled.next, case.errors = case.plans["other"], {"other": error}
    with pytest.raises(type(error)):
        case.op(A)
    assert case.ran == ["other"] and not case.seen
    case.errors = {}
    assert case.op(A) == "other"  # the next call is timed again


def test_an_error_of_the_sampler_spoils_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_type))
    case = Case(calls=1)

    def bad(sampled: Any) -> None:
        raise ZeroDivisionError

    case.then = bad
    for _ in range(50):
        assert case.op(A) == "choice"
    assert len(case.seen) == 1 and told == [ZeroDivisionError]


def test_last_plan_and_traces_see_the_plan_that_ran() -> None:
    case = Case(calls=1)
    case.sampled.next = case.plans["other"]
    told: list[Any] = []
    _core.set_tracer(lambda op, plan, spent: told.append(plan))
    try:
        case.op(A)
        assert _core.last_plan() is case.plans["other"]
        case.op(A)
    finally:
        _core.set_tracer(None)
    assert told == [case.plans["other"], case.plans["choice"]] and _core.last_plan() is case.plans["choice"]


def test_threads_share_the_count() -> None:
    case = Case(calls=5)
    case.then = lambda sampled: sampled.time_after(5)

    def work() -> None:
        for _ in range(1000):
            case.op(A)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert Counter(case.ran) == {"choice": 4000}
    assert sum(calls for _, calls, _ in case.seen) <= 4000


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="1st"):
        _core.SampledPlan(object(), object(), 0, True)
    case = Case()
    with pytest.raises(TypeError):
        del case.sampled.plan
    with pytest.raises(TypeError):
        case.sampled.plan = None
