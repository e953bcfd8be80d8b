"""Traces: what ran, seen by the thread or task that asked."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

import backline
from backline import _core, linalg
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean
A = np.eye(4) * 2


def test_events_in_order_with_their_choices() -> None:
    need("openblas")
    with backline.use("openblas"), backline.trace() as events:
        backline.mm(A, A)
        backline.mm(A, A)
        linalg.inv(A)
    backline.mm(A, A)
    assert [e.op for e in events] == ["mm", "mm", "inv"]
    assert events[0].choice is events[1].choice and events[0].library == "openblas"
    assert all(e.seconds > 0 and e.bytes >= A.nbytes for e in events)
    assert events.by_library().keys() == {"openblas"} and len(str(events).splitlines()) == 3
    assert "openblas" in str(events[0]) and events[0].choice.problem.key in str(events[0])
    assert str(backline.trace()) == "no events"


def test_composites_show_what_they_are_made_of() -> None:
    large = np.ones((100, 100))
    with backline.trace() as events:
        linalg.pinv(A @ A.T, hermitian=True)
        linalg.matrix_power(large, 5)
    assert [e.op for e in events] == ["eigh", "matmul", "matmul", "matmul", "matmul"]
    with backline.trace() as events:
        linalg.det(A)
        linalg.matrix_power(A, 5)
        linalg.pinv(A)
    assert [e.op for e in events] == ["det", "matrix_power", "pinv"]


def test_nested_traces_both_see_and_failures_leave_none() -> None:
    with backline.trace() as outer:
        backline.mm(A, A)
        with backline.trace() as inner:
            backline.mv(A, A[0])
            with pytest.raises(linalg.LinAlgError):
                linalg.inv(np.zeros((2, 2)))
        backline.dot(A[0], A[0])
    assert [e.op for e in inner] == ["mv"] and [e.op for e in outer] == ["mm", "mv", "dot"]
    with pytest.raises(ZeroDivisionError), backline.trace() as events:
        backline.mm(A, A)
        raise ZeroDivisionError
    backline.mm(A, A)
    assert len(events) == 1


def test_a_trace_can_be_entered_again() -> None:
    events = backline.trace()
    for _ in range(2):
        with events:
            backline.mm(A, A)
    assert len(events) == 2


def test_traces_of_threads_are_their_own() -> None:
    counts: dict[int, int] = {}
    barrier = threading.Barrier(3)

    def work(n: int) -> None:
        with backline.trace() as events:
            barrier.wait()
            for _ in range(n):
                backline.mm(A, A)
        counts[n] = len(events)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10, 20, 30)]
    with backline.trace() as mine:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert counts == {10: 10, 20: 20, 30: 30} and not mine


def test_traces_of_tasks_are_their_own() -> None:
    async def work(n: int) -> int:
        with backline.trace() as events, backline.num_threads(1 + n % 2):
            for _ in range(n):
                backline.mm(A, A)
                await asyncio.sleep(0)
                assert backline.get_num_threads() == 1 + n % 2
        return len(events)

    async def main() -> list[int]:
        return list(await asyncio.gather(*(work(n) for n in (3, 8, 5))))

    assert asyncio.run(main()) == [3, 8, 5]


def test_a_process_wide_tracer_hears_what_a_trace_hears():
    heard = []
    _core.set_tracer(lambda op, plan, nanoseconds: heard.append(op))
    try:
        with backline.trace() as events:
            backline.matmul(np.eye(3), np.eye(3))
    finally:
        _core.set_tracer(None)
    assert [e.op for e in events] == heard == ["matmul"]


def test_a_trace_shows_in_a_line_as_a_table_and_in_a_notebook() -> None:
    with backline.trace() as events:
        for _ in range(3):
            backline.mm(A, A)
    assert repr(events).startswith("<Trace of 3 operations, ") and "\n" not in repr(events) and len(repr(events)) < 80
    assert repr(events[0]).startswith("<Event matmul f64 4x4 4x4: ") and len(repr(events[0])) < 120
    html = events._repr_html_()
    assert html.count("<tr>") == 4 and "matmul f64 4x4 4x4" in html and str(events[0].library) in html
    assert "no events" in backline.trace()._repr_html_() and repr(backline.trace()).startswith("<Trace of 0 operations")


def test_a_notebook_gets_not_too_many_events() -> None:
    with backline.trace() as events:
        backline.mm(A, A)
    many = type(events)()
    many.extend([events[0]] * 250)
    assert many._repr_html_().count("<tr>") == 202 and "and 50 more" in many._repr_html_()


def test_scopes_serve_async_with() -> None:
    async def inside() -> tuple[int, int, int]:
        async with backline.num_threads(1), backline.use("numpy"), backline.trace() as events:
            await asyncio.sleep(0)
            backline.mm(A, A)
            threads = backline.get_num_threads()
        async with backline.backends.flags(deterministic=True) as scope:
            assert scope.values == {"deterministic": True} and backline.backends.deterministic
        return threads, len(events), sum(event.library == "numpy" for event in events)

    assert asyncio.run(inside()) == (1, 1, 1)
    assert not backline.backends.deterministic and _core.last_plan() is not None


def test_async_scopes_of_two_tasks_are_apart_and_end_with_an_error() -> None:
    async def one(threads: int) -> int:
        async with backline.num_threads(threads):
            await asyncio.sleep(0.01)
            return backline.get_num_threads()

    async def both() -> list[int]:
        found = list(await asyncio.gather(one(1), one(2)))
        with pytest.raises(ZeroDivisionError):
            async with backline.num_threads(7):
                1 / 0  # noqa: B018  # raises on purpose
        return [*found, backline.get_num_threads() == 7]

    assert asyncio.run(both()) == [1, 2, False]
