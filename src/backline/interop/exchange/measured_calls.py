"""Measures what libraries take for a recorded call, fairly and in bounded time: a tuning record.

Every candidate runs once and its result is compared with that of the library which NumPy or SciPy brought along. Then they take
turns, in rounds of shuffled order. That library runs on all threads and on one: where most routines are exchanged it has one.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from ...engine.tuning import machine_load, measure, record_store
from ...engine.tuning.record import TuningRecord
from ...engine.tuning.stamp import stamped_key
from ...errors import BacklineError
from ...libraries.reference.numpy_threads import openblas_thread_count
from . import choices, loaded_objects, routines, targets
from .choices import ORIGINAL, Choice
from .recorded_calls import Recorded
from .sample_calls import Operands, Prepared
from .signatures import Call, work_names

__all__ = ["Candidate", "candidates", "is_faster", "measure_call", "original_key", "thread_counts"]

MOST_BYTES = 1 << 30  # of operands
SETTLE = {ORIGINAL: measure.NUMPY_SPIN}  # seconds until the waiting threads of a pool sleep; of others measure.SPIN


@dataclass(slots=True)
class Candidate:
    """One function that could run a routine.

    Attributes
    ----------
    key : str
        As in tuning records: ``mkl.dgemm@n``.
    pool : str
        The threads that it runs on; "numpy" for those of the package's own library.
    address : int
        The function.
    set_threads : callable or None
        Called before it runs.
    """

    key: str
    pool: str
    address: int
    set_threads: Callable[[], object] | None = None
    prepared: Prepared | None = None
    calls: int = 1
    first: float = 0.0
    spent: float = 0.0
    times: list[float] = field(default_factory=list)
    by_round: list[float] = field(default_factory=list)

    def forget(self) -> None:
        self.spent, self.times, self.by_round = 0.0, [], []

    def enough(self) -> bool:
        return len(self.by_round) >= measure.ROUNDS and (len(self.times) >= measure.RUNS or self.spent >= measure.SECONDS)


def original_key(package: str, routine: str, threads: str = "n") -> str:
    """Returns the key of a package's own library in a record."""
    return f"{package}.{routine}@{threads}"


def is_faster(record: TuningRecord, seconds: float, stock: float) -> bool:
    """Tells whether a time is so much shorter than that of the package's own library that it counts."""
    return seconds < (record_store.BUSY_MARGIN if record.disturbed else record_store.MARGIN) * stock


def candidates(row: Recorded, names: Iterable[str]) -> tuple[list[Candidate], dict[str, str]]:
    """Returns the functions that could run a recorded call, the package's own first, and why others cannot."""
    symbol = row.symbol
    slot, module = next(
        ((s, m) for m in loaded_objects.modules([row.package]) for s in m.slots if s.symbol == symbol and s.function),
        (None, None),
    )
    if slot is None or module is None:
        return [], {row.package: f"no module of {row.package} that is imported here calls {symbol.routine}"}
    file = loaded_objects.file_at(slot.function)
    found = [
        Candidate(original_key(row.package, symbol.routine), ORIGINAL, slot.function, _pool_setter(file, 0)),
        Candidate(original_key(row.package, symbol.routine, "1"), ORIGINAL, slot.function, _pool_setter(file, 1)),
    ]
    refused = {}
    level = routines.family(symbol)
    only = replace(module, slots=(slot,))
    for name in names:
        no_threshold = ((symbol.routine, 0),)
        try:
            (decision,) = choices.decide(Choice((("level1", ORIGINAL), ("*", name)), no_threshold), (only,))
        except BacklineError as error:
            refused[name] = error.cause or str(error)
            continue
        if decision.address and level != "level1":
            found.append(Candidate(f"{name}.{symbol.routine}@n", name, decision.address))
        else:
            refused[name] = decision.reason or "routines of level 1 are exchanged together"
    return found, refused


_pools: dict[str, int] = {}  # the number of threads that a file of a package's own library has outside of here


def _pool_setter(file: str, threads: int) -> Callable[[], object] | None:
    """Returns a function that sets the threads of a package's own library, 0 for what it had at first."""
    functions = openblas_thread_count(file)
    if functions is None:
        return None
    get, put = functions
    former = _pools.setdefault(file, get())
    return lambda: put(threads or former)


@contextlib.contextmanager
def thread_counts(names: Iterable[str]) -> Iterator[None]:
    """A scope in which libraries use the threads that they have in an exchange; packages' own have their former ones after it."""
    former = []
    for name in names:
        target = targets.load(name)
        former.append((target, target.get_threads() if target.get_threads else targets.threads()))
        target.set_threads(targets.threads())
    try:
        yield
    finally:
        for target, count in former:
            target.set_threads(count)
        for file, count in _pools.items():
            functions = openblas_thread_count(file)
            if functions is not None:
                functions[1](count)
        _pools.clear()


def measure_call(row: Recorded, functions: list[Candidate], *, budget: float = 1.0, seed: int | None = None) -> TuningRecord:
    """Checks and times functions on random operands of a recorded call, and returns the record, which is not kept yet.

    Raises
    ------
    MemoryError
        The operands are larger than is measured, or there is not enough memory for them.
    """
    call = row.call
    assert call is not None
    if Operands.bytes_of(call) > MOST_BYTES:
        raise MemoryError
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    begin = time.perf_counter()
    run = _Run(call, row.symbol.width, functions, seed)
    run.check()
    if len(run.candidates) > 1:
        run.time(begin + budget)
    return run.record(row, time.perf_counter() - begin)


def _threaded(call: Call) -> bool:
    """Tells whether a call is so large that libraries may use threads for it."""
    sizes = [call.integers[name] for name in work_names(call.signature.routine)]
    vectors = "x" in call.signature.arguments  # level 2: as many operations as elements
    return bool(sizes) and math.prod(sizes) ** (1.0 if vectors else 3 / len(sizes)) >= measure.THREADED


class _Run:
    def __init__(self, call: Call, width: int, functions: list[Candidate], seed: int) -> None:
        self.call, self.seed = call, seed
        self.operands = Operands(call, width, seed)
        self.threaded = _threaded(call)
        # Below what threads are used for, one thread and all are the same.
        self.candidates = [c for c in functions if self.threaded or c.pool != ORIGINAL or c.key.endswith("@n")]
        self.libraries = [c.key.partition(".")[0] for c in functions]
        self.errors: dict[str, float] = {}
        self.rejected: dict[str, str] = {}
        self.disturbed = ""
        self.last_pool = ""

    def settle(self, c: Candidate) -> None:
        """Before another pool gets to work, lets the threads of the last one stop waiting for it."""
        if self.threaded and c.pool != self.last_pool:
            if self.last_pool:
                time.sleep(SETTLE.get(self.last_pool, measure.SPIN))
            self.last_pool = c.pool
        if c.set_threads is not None:
            c.set_threads()

    def check(self) -> None:
        """One run of each: does it work, does its result agree with the first one's."""
        reference = None
        for c in list(self.candidates):
            self.operands.refill()
            self.settle(c)
            c.prepared = Prepared(c.address, self.operands)
            c.first = c.prepared.run()
            info = int(c.prepared.info)
            result = self.operands.result()
            reason = f"it answered {info}" if info else ""
            if result is not None and not reason:
                if reference is None:
                    reference = result
                error = _difference(result, reference)
                self.errors[c.key] = error
                if not error <= self.operands.bound():
                    reason = f"wrong result: relative difference {error:.1e}, rounding explains {self.operands.bound():.1e}"
            if reason and c is not self.candidates[0]:
                self.rejected[c.key] = reason
                self.candidates.remove(c)

    def time(self, deadline: float) -> None:
        before = machine_load.read()
        self.rounds(deadline)
        spread = machine_load.spread([c.times for c in self.candidates if c.times])
        self.disturbed = machine_load.between(before, machine_load.read(), targets.threads(), spread).disturbed

    def rounds(self, deadline: float) -> None:
        order = random.Random(self.seed)
        least = min(c.first for c in self.candidates)
        for c in self.candidates:
            if c.first < measure.LONG:
                self.settle(c)
                self.find_batch(c)
            elif c.first > measure.HOPELESS * least:
                c.times, c.by_round = [c.first], [c.first]  # the check tells enough
        running = [c for c in self.candidates if not c.times]
        while running:
            order.shuffle(running)
            for c in running:
                self.block(c)
            late = time.perf_counter() - deadline
            if len(running[0].by_round) < measure.ROUNDS and late < measure.LONG * 8:
                continue
            if late >= 0:
                break
            best = min(median(c.times) for c in self.candidates)
            running = [c for c in running if not c.enough() and median(c.times) <= measure.SLOWER * best]

    def find_batch(self, c: Candidate) -> None:
        """Finds how many calls make a sample long enough for the clock."""
        assert c.prepared is not None
        once = max(min(c.prepared.run(), c.prepared.run()), 1e-8)
        c.calls = min(max(math.ceil(measure.SAMPLE / once), 1), 1000)

    def block(self, c: Candidate) -> None:
        """A candidate's part of one round."""
        assert c.prepared is not None
        self.settle(c)
        if c.first < measure.LONG:
            c.prepared.run()  # wakes its threads; not counted
        first, spent = len(c.times), 0.0
        for _ in range(measure.RUNS // measure.BLOCKS):
            c.times.append(c.prepared.batch(c.calls))
            spent += c.times[-1] * c.calls
            if spent * measure.BLOCKS >= measure.SECONDS:
                break
        c.spent += spent
        c.by_round.append(median(c.times[first:]))

    def record(self, row: Recorded, spent: float) -> TuningRecord:
        timed = [c for c in self.candidates if c.times]
        medians = machine_load.in_turn({c.key: c.by_round for c in timed})
        made = stamped_key(
            row.key,
            targets.threads(),
            self.libraries,
            medians=medians,
            minima={c.key: min(*c.times, medians[c.key]) for c in timed},
            runs={c.key: len(c.times) * c.calls for c in timed},
            errors=self.errors,
            rejected=self.rejected,
            covered=tuple(sorted({*self.rejected, *(() if self.disturbed else medians)})),
            disturbed=self.disturbed,
            seed=self.seed,
            spent=round(spent, 6),
            calls=row.count,
        )
        stock = original_key(row.package, row.symbol.routine)
        others = [key for key in medians if not key.startswith(f"{row.package}.")]
        best = min(others, key=medians.__getitem__, default=stock)
        return replace(made, winner=best if best in others and is_faster(made, medians[best], medians[stock]) else stock)


def _difference(result: np.ndarray, reference: np.ndarray) -> float:
    scale = float(np.max(np.abs(reference), initial=0.0))
    error = float(np.max(np.abs(result - reference), initial=0.0))
    return error / scale if scale else error
