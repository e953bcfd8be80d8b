"""Threads and tasks by the hundred, each in nested scopes of its own: none ever sees another's value.

Every value that a worker sets carries the worker's number; what the writer of the base sets is below all of these.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from backline import backends, switches
from backline.switches.scope_state import states
from support import clean, new_seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean

SECONDS = 8.0  # with starting and joining, some ten in all
THREADS, TASKS, LOOPS = 64, 200, 4
SPAN = 1000  # values of worker w lie in [SPAN * w, SPAN * (w + 1)); those of the base below SPAN
NUMBERS = ("fftw.plan_time_limit", "benchmark_limit", "cudnn.benchmark_limit")
WORDS: dict[str, tuple[Any, ...]] = {  # what stands in the base comes last, and the writer leaves it alone
    "fp32_precision": ("ieee", "tf32", "bf16", "none"),
    "mkldnn.fp32_precision": ("ieee", "tf32", "bf16", "none"),
    "fallback": ("warn", "error", "allow"),
    "mkl.enabled": (False, True),
}
STOP_AT_FAILURES = 20


class Worker:
    """One thread or task: opens scopes, writes in them, leaves them in any order, and looks all the time."""

    def __init__(self, number: int, seed: int, failures: list[str], shared: list[tuple[Any, dict[str, Any]]]) -> None:
        self.number, self.failures, self.shared = number, failures, shared
        self.below: dict[str, Any] = {}  # what a scope around it sets
        self.random = random.Random(f"{seed} {number}")
        self.open: list[tuple[Any, dict[str, Any]]] = []
        self.rounds = 0

    def values(self) -> dict[str, Any]:
        names = self.random.sample(NUMBERS, self.random.randint(1, 3))
        found: dict[str, Any] = {name: SPAN * self.number + self.random.randrange(SPAN) for name in names}
        for name in self.random.sample([*WORDS], self.random.randint(0, 2)):
            found[name] = self.random.choice(WORDS[name])
        return found

    def step(self) -> None:
        kind = self.random.random()
        if not self.open or (kind < 0.35 and len(self.open) < 5):
            values = self.values()
            scope, kept = switches.scope(values), dict(values)
            if self.random.random() < 0.1:  # one object that many threads and tasks have open at the same time
                scope, values = self.random.choice(self.shared)
                kept = dict(values)
            scope.__enter__()
            self.open.append((scope, kept))
        elif kind < 0.6:
            name = self.random.choice(NUMBERS)
            value = SPAN * self.number + self.random.randrange(SPAN)
            switches.assign(name, value)
            self.open[-1] = (self.open[-1][0], {**self.open[-1][1], name: value})
        else:
            at = self.random.randrange(len(self.open))  # any of them: out of order more often than not
            scope = self.open[at][0]
            at = max(index for index, (each, _) in enumerate(self.open) if each is scope)
            scope.__exit__(None, None, None)
            del self.open[at]
        self.look()

    def own(self, name: str) -> Any:
        """Returns what its own scopes give a switch; None for what the writer of the base has in hand."""
        under = self.below.get(name, WORDS[name][-1] if name in WORDS else None)
        return next((values[name] for _, values in reversed(self.open) if name in values), under)

    def reading(self, name: str, mine: Any) -> Any:
        return self.own("fp32_precision") if name == "mkldnn.fp32_precision" and mine == "none" else mine

    def look(self) -> None:
        snapshot = switches.current()
        for name in (*NUMBERS, *WORDS):
            mine, seen = self.own(name), snapshot[name]
            if mine is None:
                if not (isinstance(seen, (int, float)) and seen < SPAN):
                    self.failures.append(f"worker {self.number}: {name} = {seen} is neither its own nor the base's")
            elif seen != mine or switches.get(name) != self.reading(name, mine):
                self.failures.append(f"worker {self.number}: {name} = {seen}, read as {switches.get(name)}; it set {mine}")
        self.rounds += 1

    def finish(self) -> None:
        self.random.shuffle(self.open)
        while self.open:
            scope = self.open[0][0]
            at = max(index for index, (each, _) in enumerate(self.open) if each is scope)
            scope.__exit__(None, None, None)
            del self.open[at]
        self.look()
        frame = states.get(None)
        if frame is not None and len(frame.layers) != bool(self.below):
            self.failures.append(f"worker {self.number}: {frame.layers} are still open")


@pytest.mark.slow
def test_no_thread_or_task_ever_sees_the_value_of_another() -> None:
    seed = new_seed()
    failures: list[str] = []
    stop = threading.Event()
    shared = [(switches.scope(values), values) for values in ({"fallback": "error"}, {"mkl.enabled": False, "fp32_precision": "ieee"})]
    workers = [Worker(number + 1, seed, failures, shared) for number in range(THREADS + TASKS)]
    loops = [workers[THREADS + i :: LOOPS] for i in range(LOOPS)]
    assert sum(map(len, loops)) == TASKS
    raised: list[BaseException] = []
    around = {"benchmark_limit": 7}

    def going() -> bool:
        return not stop.is_set() and len(failures) < STOP_AT_FAILURES

    def in_a_thread(worker: Worker) -> None:
        while going():
            worker.step()
            time.sleep(0)
        worker.finish()

    async def in_a_task(worker: Worker) -> None:
        while going():
            worker.step()
            await asyncio.sleep(0)  # the other tasks of this thread run now, in the midst of the scopes of this one
            worker.look()
        worker.finish()

    async def all_of(group: list[Worker]) -> None:
        with switches.scope(around):  # the tasks start inside it, so it stays under their own
            await asyncio.gather(*(in_a_task(worker) for worker in group))
        frame = states.get(None)
        assert frame is not None and not frame.layers

    written = {name: int(switches.current()[name]) for name in NUMBERS}  # type: ignore[call-overload]  # they are numbers
    writes = 0

    def writer() -> None:
        nonlocal writes
        choose = random.Random(seed)
        while going():
            name = choose.choice(NUMBERS)
            written[name] = choose.randint(1, SPAN - 1)
            switches.assign(name, written[name])
            writes += 1
            seen = {name: switches.current()[name] for name in NUMBERS}
            if seen != written:
                failures.append(f"the base reads {seen}, not {written}")
            time.sleep(0.001)

    def guarded(target: Callable[..., Any], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*args)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    for worker in workers[THREADS:]:
        worker.below = around
    threads = [guarded(in_a_thread, worker) for worker in workers[:THREADS]]
    threads += [guarded(lambda group: asyncio.run(all_of(group)), group) for group in loops]
    threads.append(guarded(writer))
    stop.wait(SECONDS)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not raised, raised
    assert not failures, failures
    assert all(worker.rounds > 3 for worker in workers), "each had its turn"
    assert writes > 10
    assert {name: switches.current()[name] for name in NUMBERS} == written, "scopes and their exits left the base alone"
    assert (backends.fallback, backends.mkl.enabled, backends.fp32_precision) == ("allow", True, "none")
