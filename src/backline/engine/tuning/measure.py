"""Measuring the algorithms of one Problem, fairly and in bounded time.

The result of every candidate is compared once with a more precise one, then it is timed in rounds whose order is shuffled.
Operands that do not fit in the cores' own caches are pushed out of these before every run, since a program seldom finds them
there, and so are those from the last cache that do not fit in it. Others stay in that: how much of it is theirs depends on the
programs beside, and times with it. What counts is the median of the ratios, round by round. A measurement that other programs
disturbed is made again, once.
"""

from __future__ import annotations

import gc
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import repeat
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from ... import _core, libraries
from ...errors import DeviceLost
from ...libraries import array_kinds
from ...libraries.base import NULL_PLANNER, Algorithm, Planner, RefusedForNow, planner_for
from ...native import machine, thread_team
from ...problems import Problem
from .. import accuracy
from . import coverage, machine_load, record_store, sample_operands, team_speedup
from .record import TuningRecord
from .stamp import stamped

__all__ = ["measure_problem", "one_at_a_time"]

RUNS = 100  # of a candidate at most,
SECONDS = 0.030  # or until they took that long,
ROUNDS = 3  # but in no fewer rounds than these
BLOCKS = 10  # runs of small Problems are spread over about this many rounds
SLOWER = 2.0  # a candidate so many times slower than the best is dropped after the first rounds
HOPELESS = 5.0  # and after its check run already,
LONG = 0.25  # if that took so many seconds
SAMPLE = 20e-6  # calls are timed in batches of this length, so that the clock's own cost does not show
SPIN = 0.030  # seconds after which the waiting threads of a pool have stopped spinning,
NUMPY_SPIN = 0.150  # and those of the OpenBLAS inside NumPy, which wait for 2^28 cycles: 0.11 s at 2.4 GHz
THREADED = 1e6  # floating-point operations below which no library uses threads
MAX_FLUSH = 32 << 20  # bytes written to empty caches: twice their size, but at most so many, which memory has room for
MAX_POOL = 32 << 20  # bytes of freed blocks kept for the next run, beside as many as the operands have
TRIES = 2  # to find the machine quiet
PAUSE = 0.2  # seconds before trying again

_NOTHING: Mapping[str, str] = MappingProxyType({})

one_at_a_time = threading.RLock()


@dataclass(slots=True)
class _Candidate:
    algorithm: Algorithm
    plan: Any
    pool: str
    calls: int = 1
    first: float = 0.0
    spent: float = 0.0
    times: list[float] = field(default_factory=list)
    by_round: list[float] = field(default_factory=list)  # the median of each

    @property
    def rounds(self) -> int:
        return len(self.by_round)

    def forget(self) -> None:
        self.spent = 0.0
        self.times, self.by_round = [], []

    def enough(self) -> bool:
        return self.rounds >= ROUNDS and (len(self.times) >= RUNS or self.spent >= SECONDS)


def measure_problem(
    problem: Problem,
    algorithms: list[Algorithm],
    threads: int,
    *,
    budget: float = 1.0,
    limit: float = math.inf,
    timing: bool = True,
    seed: int | None = None,
    progress: Callable[[str, int], None] | None = None,
    under: Mapping[str, str] = _NOTHING,
    tries: int = TRIES,
    planner: Planner = NULL_PLANNER,
) -> TuningRecord:
    """Check and time algorithms on random operands.

    Parameters
    ----------
    problem
        What is asked.
    algorithms
        Candidates in ranked order; the first stays the choice unless another is clearly faster.
    threads
        Threads allowed, for the record.
    budget
        Seconds to spend on the timing, beyond what three rounds and the checks take.
    limit
        Seconds after which nothing new is begun, checks and rounds included.
    timing
        False checks only.
    seed
        Of operands and order; by default a new one, which the record holds.
    progress
        Called with an algorithm's key and its runs so far.
    under
        Switches that keep other candidates away, for the record.
    tries
        How often to time at most, if other programs keep the machine busy.
    planner
        Given to the libraries that prepare the algorithms.

    Returns
    -------
    TuningRecord
        Not kept yet. A single candidate is checked, not timed. Candidates that fail, or whose error is past rounding, are
        listed as rejected. What was timed on a busy machine is not covered by the record.

    Raises
    ------
    MemoryError
        There is not enough memory for the operands, or for any candidate.
    DeviceLost
        A candidate ended what this process can do on the device.
    KeyboardInterrupt
        Passed on; what was timed in three rounds or more is kept first.
    """
    start = time.perf_counter()
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    with one_at_a_time:
        run = _Run(problem, algorithms, threads, seed, start + limit, progress)
        run.under, run.planner = under, planner
        pooled = _core.pool_info()["limit_bytes"]
        # Candidates take turns: what each leaves in the pool of blocks would add up.
        _core.pool_limit(min(pooled, problem.bytes + MAX_POOL))
        try:
            run.check()
            if timing and len(run.candidates) > 1:
                run.time_quietly(budget, tries)
        except KeyboardInterrupt:
            if sum(c.rounds >= ROUNDS for c in run.candidates) > 1:
                made = run.record(time.perf_counter() - start)
                record_store.keep(coverage.merged(record_store.find(problem, threads), made, algorithms))
            raise
        finally:
            _core.pool_limit(pooled)
        return run.record(time.perf_counter() - start)


@lru_cache(maxsize=1)
def _caches() -> tuple[int, int]:
    """Bytes of the second caches of all cores together, and of the last one."""
    here = machine.machine()
    return (here.l2 or (1 << 20)) * max(here.physical_cores, 1), here.l3 or here.l2 or (8 << 20)


class _Run:
    def __init__(
        self, problem: Problem, algorithms: list[Algorithm], threads: int, seed: int, limit: float, progress: Any
    ) -> None:
        self.limit = limit
        self.problem, self.algorithms, self.threads, self.seed = problem, algorithms, threads, seed
        self.progress = progress
        self.host = sample_operands.arrays_for(problem, seed)
        self.kind = array_kinds.measured_by(problem.device) if problem.device != "cpu" else None
        put = self.kind.put if self.kind else None
        self.arrays = self.host if put is None else [put(array, problem.device) for array in self.host]
        self.candidates: list[_Candidate] = []
        self.errors: dict[str, float] = {}
        self.rejected: dict[str, str] = {}
        self.hopeless: list[str] = []
        self.disturbed = ""
        self.under: Mapping[str, str] = _NOTHING
        self.planner: Planner = NULL_PLANNER
        self.last_pool = ""
        l2, l3 = _caches()
        too_small = 0 if problem.bytes <= l2 else max(l2, l3) if problem.bytes > l3 else l2
        self.flush = min(2 * too_small, MAX_FLUSH)

    def wait(self) -> None:
        """On a device a call returns before it has computed: wait for that."""
        if self.kind is not None and self.kind.wait is not None:
            self.kind.wait(self.problem.device)

    def back(self, result: Any) -> Any:
        """The result as NumPy has it."""
        get = self.kind.get if self.kind else None
        if get is None:
            return result
        return tuple(get(part) for part in result) if isinstance(result, tuple) else get(result)

    def settle(self, pool: str) -> None:
        """Before another pool gets to work, let the threads of the last one stop waiting for it."""
        if pool != self.last_pool:
            if self.last_pool:
                time.sleep(NUMPY_SPIN if self.last_pool == "numpy" else SPIN)
            self.last_pool = pool

    # checking -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """One run of each: does it work, is it right; it warms the candidate up too."""
        held = accuracy.Reference(self.problem, self.host)
        overwritten = self.problem.parameter("overwrite", False)
        best = math.inf
        best_of: dict[tuple[str, str], float] = {}
        short: MemoryError | None = None
        for a in self.algorithms:
            if len(self.candidates) > 1 and time.perf_counter() > self.limit:
                break
            if not a.scaled and (best_of.get((a.library, a.name), 0.0) > max(HOPELESS * best, LONG)):
                self.hopeless.append(a.key)  # on all threads it was already
                continue
            if self.progress:
                self.progress(a.key, 0)
            pool = a.pool if self.problem.flops >= THREADED else ""
            if overwritten:  # by the last candidate
                self.refill(held.arrays)
            try:
                library = libraries.get(a.library)
                plan = library.prepare(self.problem, a, *planner_for(library, self.planner))
                if self.problem.scalars:
                    plan = partial(plan, **dict.fromkeys(self.problem.scalars, 0))
                self.settle(pool)
                begin = time.perf_counter()
                result = plan(*self.arrays)
                self.wait()
                spent = time.perf_counter() - begin
            except MemoryError as error:
                short = error  # no fault of the candidate, and there may be memory another time: nothing is noted
                continue
            except RefusedForNow:
                raise
            except (RuntimeError, ValueError, ArithmeticError, OSError) as error:
                self.refuse_lost(error, a)
                self.rejected[a.key] = f"it failed: {_line(error)}"
                continue
            found = held.error(self.back(result))
            most = accuracy.bound(self.problem, a.precision)
            del result
            self.errors[a.key] = found
            if not found <= most:
                self.rejected[a.key] = f"wrong result: relative error {found:.1e}, rounding explains {most:.1e}"
                continue
            self.candidates.append(_Candidate(a, plan, pool, first=spent))
            best = min(best, spent)
            best_of[a.library, a.name] = spent
        if short is not None and not self.candidates:
            raise short
        self.last_pool = "numpy"  # the reference and its comparison ran there
        for c in self.candidates:
            if len(self.candidates) > 1 and c.first > LONG and c.first > HOPELESS * best:
                if time.perf_counter() < self.limit:  # the first run also started threads, and may have been disturbed
                    self.settle(c.pool)
                    c.first = min(c.first, self.once(c))
                if c.first > HOPELESS * best:
                    c.times.append(c.first)

    def refill(self, arrays: list[Any]) -> None:
        """Give the operands the values they had at first."""
        for i, array in enumerate(arrays):
            self.host[i][...] = array
        if self.arrays is not self.host:
            assert self.kind is not None and self.kind.put is not None
            self.arrays = [self.kind.put(array, self.problem.device) for array in self.host]

    def refuse_lost(self, error: Exception, algorithm: Algorithm) -> None:
        """Raise where a device was lost: whatever else would be tried there fails as well, and none of it may go on record."""
        if self.problem.device.startswith("cuda"):
            from ...libraries.cuda.common import faults

            index = int(self.problem.device.partition(":")[2] or 0)
            gone = error if isinstance(error, DeviceLost) else faults.lost_by(error, index, algorithm.key)
            if gone is not None:
                raise gone from error

    def works(self, c: _Candidate, run: Callable[[_Candidate], Any]) -> bool:
        """Run a candidate; without the memory for it, it is out, and others may need less."""
        try:
            run(c)
        except MemoryError:
            self.candidates = [other for other in self.candidates if other is not c]
            return False
        except RuntimeError as error:
            self.refuse_lost(error, c.algorithm)
            raise
        return True

    # timing -------------------------------------------------------------------------------------------------------------

    def time_quietly(self, budget: float, tries: int) -> None:
        """Time until the machine was quiet meanwhile, or that was tried often enough."""
        given_up = [c for c in self.candidates if c.times]
        while True:
            tries -= 1
            speedup = self.speedup()
            begin, before = time.perf_counter(), replace(machine_load.read(), speedup=speedup)
            try:
                self.time(begin + budget)
            finally:
                after = machine_load.read()  # before anything sleeps: only what was timed counts
                spread = machine_load.spread([c.times for c in self.candidates if c.rounds])
                self.disturbed = machine_load.between(before, after, self.threads, spread).disturbed
            after = replace(after, speedup=self.speedup())
            self.disturbed = machine_load.between(before, after, self.threads, spread).disturbed
            now = time.perf_counter()
            if not self.disturbed or not tries or 2 * now - begin + PAUSE > self.limit:
                return
            time.sleep(PAUSE)
            for c in self.candidates:
                if all(c is not other for other in given_up):
                    c.forget()

    def speedup(self) -> float | None:
        """Returns what the threads of the team bring now, where candidates use several; None where none does."""
        several = self.kind is None and self.problem.flops >= THREADED and any(c.algorithm.threads > 1 for c in self.candidates)
        if not several or not team_speedup.available(self.threads):
            return None
        self.settle(thread_team.name())
        return team_speedup.measured(self.threads)

    def time(self, deadline: float) -> None:
        """Rounds over the candidates that are still in the running."""
        order = random.Random(self.seed)
        running = [c for c in self.candidates if not c.times]
        for c in running:
            self.settle(c.pool)
            self.works(c, self.batch)
        running = [c for c in running if any(c is other for other in self.candidates)]
        number = 0
        while running and len(self.candidates) > 1:
            number += 1
            order.shuffle(running)
            for c in running:
                if time.perf_counter() > self.limit and number > 1:
                    return
                before = len(c.times)
                if not self.works(c, self.block):
                    continue
                c.by_round.append(median(c.times[before:]))
                if self.progress:
                    self.progress(c.algorithm.key, len(c.times))
            running = [c for c in running if c.rounds == number]
            if number < ROUNDS:
                continue
            if time.perf_counter() >= deadline:
                break
            middle = {id(c): median(c.times) for c in running}
            best = min((median(c.times) for c in self.candidates if c.times), default=0.0)
            running = [c for c in running if not c.enough() and middle[id(c)] <= SLOWER * best]

    def once(self, c: _Candidate) -> float:
        begin = time.perf_counter()
        c.plan(*self.arrays)
        self.wait()
        return time.perf_counter() - begin

    def batch(self, c: _Candidate) -> None:
        """Find how many calls make a sample long enough for the clock."""
        once = self.once(c)
        if once > SAMPLE or self.flush:
            return
        begin = time.perf_counter()
        for _ in repeat(None, 10):
            c.plan(*self.arrays)
        self.wait()
        once = max((time.perf_counter() - begin) / 10, 1e-8)
        c.calls = max(math.ceil(SAMPLE / once), 1)

    def block(self, c: _Candidate) -> None:
        """A candidate's part of one round: one run of what takes long, several of what does not."""
        plan, arrays, calls, flush = c.plan, self.arrays, c.calls, self.flush
        self.settle(c.pool)
        # By the threads that the candidate uses, whose caches it is: then they are awake, too, as in a program that goes from one
        # operation to the next. Those of another pool than the team cannot be asked, and the team's would be in their way.
        filling = c.algorithm.threads if c.pool and c.pool == thread_team.name() else 1
        if not flush:
            plan(*arrays)  # wakes its threads; not counted
        clock = time.perf_counter_ns
        collecting = gc.isenabled()
        gc.disable()
        spent = 0
        try:
            for _ in repeat(None, RUNS // BLOCKS):
                if flush:  # memory is given back: it must not stand beside the workspace of a run
                    _core.fill_shares(np.empty(flush, np.uint8), filling)
                begin = clock()
                for _ in repeat(None, calls):
                    plan(*arrays)
                if self.kind is not None:
                    self.wait()
                taken = clock() - begin
                c.times.append(taken * 1e-9 / calls)
                spent += taken
                if spent * 1e-9 * BLOCKS >= SECONDS:
                    break
        finally:
            c.spent += spent * 1e-9
            if collecting:
                gc.enable()

    # result -------------------------------------------------------------------------------------------------------------

    def record(self, spent: float) -> TuningRecord:
        timed = [c for c in self.candidates if c.times]
        medians = {c.algorithm.key: median(c.times) for c in timed}
        medians |= machine_load.in_turn({c.algorithm.key: c.by_round for c in timed if c.rounds})
        minima = {c.algorithm.key: min(*c.times, medians[c.algorithm.key]) for c in timed}
        # Where time ran out before three rounds, short runs tell too little.
        enough = [c.algorithm.key for c in timed if c.rounds >= ROUNDS or sum(c.times) >= LONG]
        sound = [] if self.disturbed else [*enough, *self.hopeless]
        made = stamped(
            self.problem,
            self.threads,
            (a.library for a in self.algorithms),
            medians=medians,
            minima=minima,
            runs={c.algorithm.key: len(c.times) * c.calls for c in timed},
            errors=self.errors,
            rejected=self.rejected,
            covered=tuple(sorted({*self.rejected, *sound})),
            under=dict(self.under),
            disturbed=self.disturbed,
            seed=self.seed,
            spent=round(spent, 6),
        )
        return replace(made, winner=record_store.winner(made, self.algorithms))


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).encode("ascii", "replace").decode()[:300]
