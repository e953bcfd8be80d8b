"""State that threads share: calls go on while others empty the Memo, write switches, and exchange tracers and locks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

ROUNDS = 100


class Foreign:
    """An array type of another package, as far as the Memo is concerned."""


def lookups(x: Any) -> None:
    for n in range(1, 9):
        assert backline.matmul(x[:n], x)[0, 0] == 8.0


def plans(x: Any, plan: Any, locks: list[Any]) -> None:
    plan.rwlock = locks[threading.get_ident() % 2]
    plan.failed = not plan.failed
    assert plan(x) is x and plan.runs > 0 and plan.used > 0
    plan.rwlock.acquire_read()
    plan.rwlock.release_read()


def emptied() -> None:
    _core.memo_clear()
    _core.memo_max_size(16)
    assert _core.memo_info()["size"] <= 16
    _core.register_array_type(Foreign, (("shape",),))
    _core.forget_array_types()


def switched(x: Any) -> None:
    with backline.num_threads(1):
        assert backline.matmul(x, x)[0, 0] == 8.0
    _core.set_tracer(lambda name, plan, spent: None)
    _core.set_tracer(None)


def test_calls_go_on_while_state_is_exchanged() -> None:
    x = np.ones((8, 8))
    triangle = ("triangle", 0, 8, 8, 64, 8, 8, 0, (0, 0, 0))
    ones = np.tril(np.ones((8, 8)))
    plan = _core.PreparedCall(1, [("argument", 0)], [(1, 1, [triangle])], [0], [], release_gil=True)
    locks = [_core.ReadWriteLock() for _ in range(2)]
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def repeated(run: Callable[[], None]) -> None:
        try:
            start.wait()
            for _ in range(ROUNDS):
                run()
        except BaseException as error:
            failures.append(error)

    def written() -> None:
        for lock in locks:
            lock.acquire_write()
            lock.release_write()

    runs: list[Callable[[], None]] = [
        lambda: lookups(x), lambda: lookups(x), lambda: plans(ones, plan, locks), lambda: switched(x), emptied, written,
    ]  # fmt: skip
    before = _core.memo_info()["max_size"]
    threads = [threading.Thread(target=repeated, args=(run,)) for run in runs]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        _core.memo_max_size(before)
    assert not failures and not any(thread.is_alive() for thread in threads)
    assert all(lock.readers == 0 and not lock.write_locked for lock in locks)
    assert plan.runs == ROUNDS
