"""Calibration: this machine's times of the problems that stand for many others, measured in bounded time.

What was measured is kept as ordinary tuning records, from which the times of other shapes are predicted. A run goes on where the
last one ended: all parts in turn, of each operation a few sizes first, then those between. Three things make times implausible:
other programs at work meanwhile, what was measured of the same algorithm beside it, and an order far from that of the shipped
ranking. Such times are measured again, in a part of the time that is kept for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .. import switches
from ..libraries.base import Algorithm
from ..problems import Place, Problem
from . import ranking
from .choose import eligible, planner
from .tuning import designed_problems, record_store
from .tuning.measure import measure_problem
from .tuning.record import TuningRecord

__all__ = ["Calibration", "calibrate", "implausible", "least"]

CANDIDATES = 8  # at most; those that come after these have little chance
BUDGET = 0.03  # seconds of timing for a problem, beside its three rounds
LIMIT = 1.0  # seconds after which nothing new of a problem is begun
KEEP = 2.0  # seconds after which what was measured is written
WORK = 5e6  # floating-point operations of the largest problem, for each second that is given
SHARES = {"products": 3, "algebra": 2, "layers": 2, "transforms": 1, "halves": 1}  # of the problems measured in turn
COMPLEX_LATER = 2  # turns by which complex dtypes come after real ones
ALONE = 2.5  # times that all threads may take of what one takes, where the work is worth several
FIRST = 0.8  # part of the time after which what makes no sense is measured again, before anything new is
SURPRISING = 1.3  # times the least time that what the shipped ranking puts first may take, before that is measured again
SMALLER = 4.0  # times that a problem may take of what one of four times its work takes
ALIKE = 0.5  # doublings by which factors of transforms may differ whose times are compared
THREADED = 1e6  # floating-point operations that are worth several threads


@dataclass(slots=True)
class Calibration:
    """The measurements of a run of `calibrate`.

    Attributes
    ----------
    records : dict
        Part -> the records made, by key.
    known : int
        Problems that were measured before.
    left : int
        Problems for which there was no time.
    repeated : int
        Problems that were measured again, for their times were implausible.
    gains : dict
        Part -> by key of the problem, the time of what the shipped ranking puts first over the least.
    spent : float
        Seconds.
    """

    records: dict[str, dict[str, TuningRecord]] = field(default_factory=dict)
    known: int = 0
    left: int = 0
    repeated: int = 0
    gains: dict[str, dict[str, float]] = field(default_factory=dict)
    spent: float = 0.0

    @property
    def measured(self) -> int:
        """Problems that were measured."""
        return sum(map(len, self.records.values()))

    @property
    def disturbed(self) -> list[TuningRecord]:
        """Records that were made on a busy machine."""
        return [r for part in self.records.values() for r in part.values() if r.disturbed]


def calibrate(
    seconds: float = 60.0, *, again: bool = False, progress: Callable[[int, int, str], None] | None = None
) -> Calibration:
    """Measure this machine for about so many seconds; larger problems are left out where the time is short.

    Parameters
    ----------
    seconds
        To spend. The problem that is being measured at the end is finished.
    again
        Measure what was measured before, too.
    progress
        Called with the problems done, their number, and the one at work.

    Returns
    -------
    Calibration

    Raises
    ------
    KeyboardInterrupt
        Passed on; what was measured is kept.
    """
    begin = time.perf_counter()
    end = begin + seconds
    snapshot: Any = switches.current()
    threads = snapshot["num_threads"]
    done = Calibration()
    wanted = []
    for part, problem in _in_turn(seconds * WORK):
        if not again and _is_known(problem, threads):
            done.known += 1
        else:
            wanted.append((part, problem))
    run = _Run(done, threads)
    try:
        number = 0
        for until in (begin + FIRST * seconds, end):
            first = number
            while number < len(wanted) and time.perf_counter() < until:
                part, problem = wanted[number]
                if progress:
                    progress(number, len(wanted), problem.key)
                run.measure(part, problem)
                number += 1
            run.repeat(wanted[first:number], end)
        done.left = len(wanted) - number
    finally:
        run.keep()
        done.spent = time.perf_counter() - begin
    return done


class _Run:
    """Measures problems, and writes the records every few seconds."""

    def __init__(self, done: Calibration, threads: int) -> None:
        self.done, self.threads = done, threads
        self.waiting: list[TuningRecord] = []
        self.kept = time.perf_counter()

    def measure(self, part: str, problem: Problem, least_with: TuningRecord | None = None) -> None:
        candidates = ranking.sort(problem, eligible(problem, self.threads))[:CANDIDATES]
        if len(candidates) < 2:
            return
        try:
            record = measure_problem(problem, candidates, self.threads, budget=BUDGET, limit=LIMIT, planner=planner)
        except MemoryError:
            return  # the problem is too large for this machine now
        if least_with is not None:
            record = least(record, least_with, candidates)
        known = record_store.find(problem, self.threads)
        record = replace(record, calibrated=known is None or known.calibrated)  # what a program was tuned with stays that
        self.done.records.setdefault(part, {})[problem.key] = record
        shipped = ranking.sort(problem, candidates, own=False)[0].key
        if record.medians and shipped in record.medians:
            self.done.gains.setdefault(part, {})[problem.key] = record.medians[shipped] / min(record.medians.values())
        self.waiting.append(record)
        if time.perf_counter() - self.kept > KEEP:
            self.keep()

    def repeat(self, measured: list[tuple[str, Problem]], end: float) -> None:
        """Measures again what makes no sense, until the time is over."""
        for part, problem in measured:
            if time.perf_counter() >= end:
                return
            record = self.done.records.get(part, {}).get(problem.key)
            if record is None:
                continue
            surprising = self.done.gains.get(part, {}).get(problem.key, 1.0) > SURPRISING
            if surprising or implausible(problem, record, self.done.records[part].values()):
                self.done.repeated += 1
                self.measure(part, problem, least_with=record)

    def keep(self) -> None:
        record_store.keep_all(self.waiting)
        self.waiting, self.kept = [], time.perf_counter()


def _is_known(problem: Problem, threads: int) -> bool:
    record = record_store.find(problem, threads)
    return record is not None and bool(record.place) and not record.disturbed


def _in_turn(most: float) -> Iterator[tuple[str, Problem]]:
    """Yields the problems up to an amount of work: the parts in turn by their shares, each from coarse to fine."""
    waiting = {part: _coarse_first([p for p in designed_problems.problems(part) if p.flops <= most])[::-1] for part in SHARES}
    while any(waiting.values()):
        for part, share in SHARES.items():
            for _ in range(min(share, len(waiting[part]))):
                yield part, waiting[part].pop()


def _coarse_first(problems: list[Problem]) -> list[Problem]:
    """Sorts problems so that however many are measured, they are spread over all operations, dtypes and sizes.

    Of each operation and dtype the middle size comes first, then the middles of both halves, and so on.
    """
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in sorted(problems, key=lambda p: p.flops):
        groups.setdefault(problem.place()[:2], []).append(problem)
    turn: dict[str, int] = {}
    for group in groups.values():
        later = COMPLEX_LATER if group[0].dtype.kind == "c" else 0
        halves = [(0, len(group))]
        for number, (low, high) in enumerate(halves):  # which grows meanwhile
            middle = (low + high) // 2
            turn[group[middle].key] = number + later
            halves += [half for half in ((low, middle), (middle + 1, high)) if half[0] < half[1]]
    return sorted(problems, key=lambda p: (turn[p.key], p.flops))


def implausible(problem: Problem, record: TuningRecord, others: Iterable[TuningRecord]) -> bool:
    """Tells whether a time makes no sense: on a busy machine, slower on all threads than on one, or than four times the work.

    Parameters
    ----------
    problem, record
        What was measured, and the times.
    others
        Records of other problems; those of the same place but for the work are compared.
    """
    if record.disturbed:
        return True
    times = record.medians
    together = [key for key in times if key.endswith("@n")] if problem.flops >= THREADED else []
    if any(times[key] > ALONE * times.get(f"{key[:-2]}@1", math.inf) for key in together):
        return True
    where, _, work = record.place.rpartition("|")
    for other in others:
        there, _, more = other.place.rpartition("|")
        larger = there == where and float(more) >= float(work) + 2.0
        slower = larger and any(times[key] > SMALLER * other.medians[key] for key in times.keys() & other.medians.keys())
        if slower and _like_factors(record, other):
            return True
    return False


def _like_factors(*records: TuningRecord) -> bool:
    """Tells if the lengths of transforms have factors alike; True of all other operations."""
    one, other = (Place.parse(record.place).sized_as(record.key).factors for record in records)
    return all(abs(a - b) <= ALIKE for a, b in zip(one, other, strict=True))


def least(new: TuningRecord, old: TuningRecord, candidates: list[Algorithm]) -> TuningRecord:
    """Returns the new record with the lesser of both times; if one of both was made on a quiet machine, that one."""
    if bool(old.disturbed) != bool(new.disturbed):
        return old if new.disturbed else new
    gone = new.rejected.keys()
    medians, minima = (
        {key: min(mine.get(key, t), his.get(key, t)) for key, t in {**his, **mine}.items() if key not in gone}
        for mine, his in ((new.medians, old.medians), (new.minima, old.minima))
    )
    made = replace(new, medians=medians, minima=minima, winner="")
    return replace(made, winner=record_store.winner(made, candidates))
