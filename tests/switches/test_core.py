"""The compiled core reads the same switches: a plan is kept for the snapshot under which it was made."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading

import numpy as np
import pytest

from backline import _core, backends, switches
from backline.switches import store


@pytest.fixture
def operation():
    """An operation whose plans answer with the `fallback` they were made under; `made` lists the makings."""
    made: list[object] = []

    def resolve(args, kwargs):
        value = switches.get("fallback")
        made.append(value)
        return lambda array: value

    array = np.zeros(3)
    call = _core.Operation("answer", ("array",), resolve, resolve)
    _core.memo_clear()
    yield (lambda: call(array)), made
    _core.memo_clear()


def test_the_first_call_starts_the_switches(operation, monkeypatch):
    call, made = operation
    monkeypatch.setenv("BACKLINE_FALLBACK", "error")
    store._restart()
    assert call() == "error"
    assert made == ["error"]


def test_a_plan_is_made_once_for_each_set_of_values(operation):
    call, made = operation
    for _ in range(3):
        assert call() == "allow"
        with backends.flags(fallback="warn"):
            assert call() == "warn"
            with backends.flags(fallback="error"):
                assert call() == "error"
            assert call() == "warn"
        backends.set_flags(_fallback="error")
        assert call() == "error"
        backends.set_flags(_fallback="allow")
    assert made == ["allow", "warn", "error"]


def test_an_open_scope_follows_a_write_of_the_base(operation):
    call, made = operation
    with backends.flags(benchmark_limit=4):
        assert call() == "allow"
        contextvars.Context().run(switches.assign, "fallback", "warn")
        assert call() == "warn"  # the core finds the merged values out of date and asks for new ones
        assert call() == "warn"
    assert call() == "warn"
    assert made == ["allow", "warn", "warn"]


def test_an_assignment_inside_a_scope_is_seen_at_once(operation):
    call, _ = operation
    with backends.mkl.flags(enabled=False):
        assert call() == "allow"
        backends.fallback = "error"
        assert call() == "error"
    assert call() == "allow"


def test_scopes_left_out_of_order(operation):
    call, _ = operation
    a, b = backends.flags(fallback="warn"), backends.flags(fallback="error")
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert call() == "error"
    b.__exit__(None, None, None)
    assert call() == "allow"


def test_threads_and_tasks_have_their_own(operation):
    call, _ = operation
    seen: list[object] = []
    with backends.flags(fallback="warn"):
        thread = threading.Thread(target=lambda: seen.append(call()))
        thread.start()
        thread.join()

        async def work(value: str) -> object:
            with backends.flags(fallback=value):
                await asyncio.sleep(0)
                return call()

        async def main() -> list[object]:
            return [*await asyncio.gather(work("error"), work("allow")), call()]

        seen += asyncio.run(main())
    assert seen == ["allow", "error", "allow", "warn"]


def test_a_switch_declared_later_makes_new_plans(operation):
    call, made = operation
    assert call() == "allow"
    switches.declare(switches.Switch("test.extra", bool, True, doc="An example."))
    try:
        assert call() == "allow"
        with switches.scope({"test.extra": False}):
            assert call() == "allow"
        assert len(made) == 3
    finally:
        sys.modules["backline.switches.switch_registry"].remove("test.extra")


def test_the_tracer_of_a_context_is_told_of_its_calls_only(operation):
    call, _ = operation
    told: list[object] = []
    switches.set_tracer(lambda name, plan, nanoseconds: told.append(name))
    try:
        with backends.flags(fallback="warn"):
            call()
        contextvars.Context().run(call)
        call()
    finally:
        switches.set_tracer(None)
    call()
    assert told == ["answer", "answer"]
