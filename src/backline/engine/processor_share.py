"""Processors shared with what else runs: calls use fewer threads while others keep processors busy.

The threads of one call wait for each other, so one of them that shares its processor with another program holds up all of them:
beside a busy program, a call on all processors takes several times as long as on those that are free. The compiled core asks
`watch` before a call on several threads, ten times a second at most, how many threads leave room for others. Where they are fewer
than the call may use, it runs under `num_threads` of that many, as if the program had opened that scope: the choice is made for
that number of threads.

Other programs are seen by the system's counters of processor time. Threads of this process that compute or wait by spinning, such
as those of NumPy's BLAS for a tenth of a second after each product, are seen by their own clocks.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from .. import _core, switches
from ..processors import cpu_quota, read_text, usable_cpus
from ..switches.snapshot import Scope, make_scope
from ..switches.starting_values import MOST_THREADS
from . import policy
from .tuning import machine_load
from .tuning.machine_load import Reading

__all__ = ["ThreadClocks", "Watch", "begin", "on_fewer", "room", "scope_here", "watch"]

INTERVAL = 0.1  # seconds between readings of the system's counters, which count in hundredths of a second
COST = 500  # as many times what a reading takes pass before the next: the counters of many processors are a long text
SETTLED = 0.5  # seconds for which there has been room for more threads before more are used
PART = 0.4  # of a processor that other programs may use without one being left to them
QUOTA = 2.0  # seconds between readings of the quota of the control group
ACTIVE = 1e-3  # seconds of processor time between two readings that make a thread of this process worth watching
GLANCES = 50  # as many times what a look at those threads takes pass before the next: short calls must not pay for it each time
WORKED = 0.5  # part of the time that this program has computed for, on one processor; where it was less, it has paused
CHECKS = 5  # how often it is looked again whether what ran after a pause still runs, before it is believed to run on
CHECK_INTERVAL = 1e-3  # seconds between these looks
GLANCE = 4e-6  # seconds in which a thread that runs is seen to run
FLOPS = 4e5  # operations from which what is written in Python may use threads


def room(processors: int, others: float, quota: float | None = None) -> int:
    """Returns the threads that leave room for others.

    Parameters
    ----------
    processors
        That this process may use.
    others
        How many of them other programs use, on average.
    quota
        Processors' worth of time that the control group grants; None without a limit.

    Examples
    --------
    >>> room(2, 1.0), room(2, 0.3), room(8, 1.9), room(2, 3.0), room(4, 0.0, quota=1.5)
    (1, 2, 6, 1, 1)
    """
    free = math.floor(processors - others + PART)
    return max(1, free if quota is None else min(free, int(quota)))


class ThreadClocks:
    """Tells which threads of this process run, by the clocks of their processor time.

    Parameters
    ----------
    earlier
        Identifiers of threads to watch, beside those of Python.
    read
        Returns the processor seconds of a thread; OSError where it has ended.
    waits
        Tells whether a thread that does not run waits for a processor.
    """

    def __init__(
        self, earlier: Iterable[int], read: Callable[[int], float], waits: Callable[[int], bool] = lambda thread: False
    ) -> None:
        self._earlier = set(earlier)
        self._read, self._waits = read, waits
        self._used: dict[int, float] = {}
        self.active: tuple[int, ...] = ()

    def note(self, team: Collection[int]) -> None:
        """Finds the threads that were active since this was called last, without those of the team."""
        used, active = {}, []
        for thread in self._earlier.union(t.native_id or 0 for t in threading.enumerate()).difference((0, *team)):
            try:
                used[thread] = self._read(thread)
            except OSError:
                self._earlier.discard(thread)
                continue
            if used[thread] - self._used.get(thread, used[thread]) > ACTIVE:
                active.append(thread)
        self._used, self.active = used, tuple(active)

    def watched(self) -> list[int]:
        """Returns the active threads, without the one that asks."""
        here = threading.get_native_id() if self.active else 0
        return [thread for thread in self.active if thread != here]

    def running(self) -> int:
        """Returns how many of the watched threads run now, or would."""
        before = {thread: self._clock(thread) for thread in self.watched()}
        end = time.perf_counter() + GLANCE
        while before and time.perf_counter() < end:
            pass
        return sum(self._clock(thread) > clock or self._waits(thread) for thread, clock in before.items())

    def _clock(self, thread: int) -> float:
        try:
            return self._read(thread)
        except OSError:
            return 0.0


class Watch:
    """Decides how many threads calls use, from readings of the load.

    Parameters
    ----------
    read
        Returns the counters of the system.
    processors, quota
        Return the processors that this process may use, and the quota of its control group.
    clocks
        Those of this process's threads.
    running
        Returns how many threads of the system run at this moment, with this one; None where that is not known.

    Attributes
    ----------
    threads
        The most threads that calls use now; `MOST_THREADS` where there is nothing to make room for.
    """

    def __init__(
        self, read: Callable[[], Reading], processors: Callable[[], Collection[int]], quota: Callable[[], float | None],
        clocks: ThreadClocks, running: Callable[[], int | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._read, self._processors, self._quota, self._clocks, self._running = read, processors, quota, clocks, running
        self._lock = threading.Lock()
        self._last: Reading | None = None
        self._quota_now: float | None = None
        self._quota_at = -math.inf
        self._next = -math.inf  # when to read the counters
        self._most = 0  # processors that there were to use, at most
        self._more: tuple[float, int] | None = None  # since when there is room for more threads, and for how many
        self._checks = 0  # that are left to tell whether what ran after a pause runs on
        self._check_at = -math.inf  # when the next of them is due
        self._alone = MOST_THREADS  # threads that there is room for where nobody else works
        self.threads = MOST_THREADS

    def look(self) -> tuple[int, float]:
        """Returns how many threads a call should use now, and after how many seconds to look again."""
        now = time.perf_counter()
        if now >= self._next and self._lock.acquire(blocking=False):
            try:
                self._settle(*self._wanted())
                self._clocks.note(_core.team_threads())
                after = time.perf_counter()
                self._next = after + max(INTERVAL, COST * (after - now))
                now = after
            finally:
                self._lock.release()
        elif self._checks and now >= self._check_at:
            self._check_at, self._checks = now + CHECK_INTERVAL, self._checks - 1
            if (self._running() or 0) <= 1:  # such as the program that woke this one, and waits for it since
                self.threads, self._checks = self._alone, 0
        if not self._clocks.watched() or self._most > _core.most_rolled:
            return self.threads, max((self._check_at if self._checks else self._next) - now, 0.0)
        # Few of many are left alone: a team that gets smaller and larger from call to call ends and starts threads each time.
        running = self._clocks.running()
        threads = max(1, min(self.threads, self._most) - running) if 2 * running >= self._most else self.threads
        return threads, GLANCES * (time.perf_counter() - now)

    def _wanted(self) -> tuple[int, float]:
        """The threads to use by what was read now, and since when that holds."""
        reading, processors = self._read(), len(self._processors())
        last, self._last = self._last, reading
        if reading.at - self._quota_at >= QUOTA:
            self._quota_now, self._quota_at = self._quota(), reading.at
        self._most = max(self._most, processors)
        others, self._checks = 0.0 if last is None else machine_load.used_by_others(last, reading), 0
        computed_little = last is not None and reading.own - last.own < WORKED * (reading.at - last.at)
        paused = computed_little or reading.at >= self._next + INTERVAL
        if others > PART and paused and (running := self._running()) is not None:
            # Others may have worked meanwhile, and ended: those that run now count.
            others, self._more = min(others, max(running - 1.0, 0.0)), None
            self._checks, self._check_at = CHECKS * (others > PART), time.perf_counter() + CHECK_INTERVAL
        self._alone = self._threads_beside(0.0, processors)
        return self._threads_beside(others, processors), (reading if last is None else last).at

    def _threads_beside(self, others: float, processors: int) -> int:
        threads = room(processors, others, self._quota_now)
        # A program that asks for more threads than there are processors gets them, where nobody else wants any.
        return MOST_THREADS if threads == self._most else threads

    def _settle(self, wanted: int, since: float) -> None:
        """Uses fewer threads at once, and more when there has been room for them for a while."""
        if wanted <= self.threads:
            self.threads, self._more = wanted, None
            return
        began, least = self._more or (since, wanted)
        self._more = began, min(least, wanted)
        assert self._last is not None
        if self._last.at - began >= SETTLED:
            self.threads, self._more = self._more[1], None


# --- calls on fewer threads -----------------------------------------------------------------------------------------------


class _Shared(Scope):
    """The scope of a call that leaves processors to others."""

    __slots__ = ()

    @property
    def where(self) -> str:
        return "processors are busy with other work, or limited by a quota"


@lru_cache(maxsize=64)
def _scope(threads: int, benchmarks: bool) -> Scope:
    # Beside other work nothing is measured.
    values = {"num_threads": threads, **({"benchmark": False} if benchmarks else {})}
    made = make_scope("share_processors", values)
    return _Shared(made.name, made._overlay, made._place)


def _shares(snapshot: Any, threads: int) -> bool:
    """Tells if the switches let a call run on fewer threads than they allow."""
    if not snapshot["share_processors"] or threads >= snapshot["num_threads"]:
        return False
    # Other threads may mean other bits; determinism_level="threads" is for algorithms of which that is not so.
    by_library = any(snapshot[switch] for switch, _ in policy.DETERMINISTIC.values())
    return not (by_library or (snapshot["deterministic"] and snapshot["determinism_level"] == "run"))


def on_fewer(operation: Any, plan: Any, threads: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a call again on fewer threads; NotImplemented where the switches want all of them, or the call is small."""
    snapshot: Any = switches.current()
    if _pool(plan) == "numpy":
        threads = watch.threads  # of this process's threads, those that work may be NumPy's, after its last call
    if not _shares(snapshot, threads):
        return NotImplemented
    if not isinstance(plan, _core.PreparedCall) and _flops(plan) < FLOPS:
        return NotImplemented
    with _scope(threads, bool(snapshot["benchmark"])):
        return operation(*args, **kwargs)


def _pool(plan: Any) -> str:
    """Returns the name of the threads that a plan runs on; "" where there is one thread."""
    choice = getattr(plan, "choice", None)
    return choice.chosen.pool if choice is not None and choice.chosen else ""


def _flops(plan: Any) -> float:
    choice = getattr(plan, "choice", None)
    return math.inf if choice is None else choice.problem.flops


def scope_here() -> AbstractContextManager[object]:
    """Returns the scope in which a call on several threads would run now; one without effect where it may use all threads."""
    snapshot: Any = switches.current()
    threads = watch.threads
    return _scope(threads, bool(snapshot["benchmark"])) if _shares(snapshot, threads) else nullcontext()


# --- this process ---------------------------------------------------------------------------------------------------------


def _threads_here() -> list[int]:
    """Identifiers of the threads of this process; empty where the system does not list them."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def _processor_seconds(thread: int) -> float:
    # The clock of another thread, as the kernel numbers it (MAKE_THREAD_CPUCLOCK with CPUCLOCK_SCHED).
    return time.clock_gettime(~thread << 3 | 6)


def _waits(thread: int) -> bool:
    # A thread that spins by giving up its processor again and again, as OpenBLAS's do, may just have done so.
    return read_text(f"/proc/self/task/{thread}/stat").rpartition(")")[2].lstrip().startswith("R")


def _counters() -> Reading:
    return machine_load.read()


# Pools that exist by now belong to others, such as NumPy's BLAS. What Backline's libraries start comes later, and is not watched.
watch = Watch(_counters, usable_cpus, cpu_quota, ThreadClocks(_threads_here(), _processor_seconds, _waits), machine_load.running)


def begin() -> None:
    """Has calls on several threads make room for others, on Linux."""
    if sys.platform == "linux":
        _core.share_processors(watch.look, on_fewer)
