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
    with backline.trace() as events:
        linalg.det(A)
        linalg.matrix_power(A, 5)
        linalg.pinv(A)
    assert [e.op for e in events] == ["lu_factor_ex", "matmul", "matmul", "matmul", "svd", "matmul"]


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
