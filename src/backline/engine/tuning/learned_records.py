"""Learning while a process runs: the learners of its Problems, and the tuning records made of what they found.

Records are written at intervals and when the process ends. A forked child learns nothing and writes nothing: what it inherits
is its parent's, and its libraries run on one thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...libraries.base import Algorithm
from ...native import thread_team
from ...problems import Problem
from . import coverage, learned, machine_load, record_store
from .learning_costs import Account, Costs
from .online import MARGIN, Learner
from .record import TuningRecord, parse
from .stamp import stamped
from .tried import Pace

__all__ = ["Learned", "costs", "due", "every", "forget", "joined", "learned_of", "stopped", "write"]

MOST = 1024  # Problems that are learned at a time; beyond, the one that was looked up longest ago is forgotten
INTERVAL = 5.0  # seconds between two writes


@dataclass(slots=True)
class Learned:
    """One Problem that is learned.

    Attributes
    ----------
    problem, threads
        As its records have them.
    learner
        What was found out, and is tried.
    algorithms
        The candidates by key, in the order of the ranking; empty before they are listed.
    before
        Load of the machine when they were listed.
    """

    problem: Problem
    threads: int
    learner: Learner
    algorithms: dict[str, Algorithm] = field(default_factory=dict)
    before: machine_load.Reading | None = None

    def record(self) -> TuningRecord | None:
        """Returns the record of what was found; None if fewer than two algorithms have undisturbed times."""
        learner = self.learner
        found = {key: each for key, each in learner.tried.items() if each.measured is not None and key in self.algorithms}
        medians = {key: each.measured for key, each in found.items() if each.measured is not None}
        if len(found) < 2 or self.before is None:
            return None
        spread = machine_load.spread([(each.least, medians[key], medians[key]) for key, each in found.items()])
        quietness = machine_load.between(self.before, machine_load.read(), self.threads, spread)
        made = stamped(
            self.problem,
            self.threads,
            (key.partition(".")[0] for key in found),
            medians=medians,
            minima={key: each.least for key, each in found.items()},
            runs={key: each.runs for key, each in found.items()},
            covered=() if quietness.disturbed else tuple(sorted(filter(learner.judged, found))),
            disturbed=quietness.disturbed,
            spent=round(learner.account.cost, 6),
        )
        return replace(made, winner=learner.choice if learner.choice in found else "")


_lock = threading.Lock()
_waiting: dict[tuple[str, int], tuple[TuningRecord, list[Algorithm]]] = {}  # records of those that were forgotten
costs = Costs()
paces: dict[str, Pace] = {}  # by operation
_written = 0.0
_stopped = _registered = False


def stopped() -> bool:
    """Tells whether nothing is learned any more, in a forked child."""
    return _stopped or thread_team.forked()


def learned_of(problem: Problem, asked: Problem, threads: int, snapshot: Any, choice: str) -> Learned:
    """Returns what is learned of a Problem, begun with a choice if it was not before.

    Parameters
    ----------
    problem, threads, snapshot
        What it is found by.
    asked
        The Problem as records have it.
    choice
        Key of the algorithm that calls run now. If it is not the one that was learned, the choice rests on other grounds by
        now, and learning begins anew.
    """
    global _registered, _written
    with _lock:
        if not _registered:
            _registered, _written = True, time.monotonic()
            atexit.register(write)
        at = problem, threads, snapshot
        known: Learned | None = learned.table.get(at)
        if known is None or known.learner.choice != choice:
            pace = paces.setdefault(problem.op, Pace())
            known = learned.table[at] = Learned(asked, threads, Learner(choice, snapshot["benchmark_overhead"], costs, pace))
        learned.table.move_to_end(at)
        dropped = [learned.table.popitem(last=False)[1] for _ in range(len(learned.table) - MOST)]
    for one in dropped:
        if one.learner.changed and (record := one.record()) is not None:
            _waiting[record.key, record.threads] = record, list(one.algorithms.values())
    if len(_waiting) >= MOST:
        write()
    return known


def every() -> list[Learned]:
    """Returns all that is learned."""
    return list(learned.table.values())


def due() -> bool:
    """Tells whether it is time to write what was found since the last time, and learning may take the time for it."""
    return not stopped() and time.monotonic() - _written > INTERVAL


def write() -> int:
    """Writes what was found and no record has yet; returns the number of records. Called at exit, too."""
    global _written
    if stopped():
        return 0
    _written = time.monotonic()
    found = dict(_waiting)
    _waiting.clear()
    for one in every():
        learner = one.learner
        if not learner.changed or not learner.lock.acquire(timeout=0.1):  # another thread decides something: the next time
            continue
        try:
            learner.changed = False
            record = one.record()
        finally:
            learner.lock.release()
        if record is not None:
            found[record.key, record.threads] = record, list(one.algorithms.values())
    if not found:
        return 0
    made = {
        at: (joined(record_store.find_key(*at), record, algorithms), algorithms) for at, (record, algorithms) in found.items()
    }

    def merge(text: str, new: TuningRecord) -> TuningRecord:
        """With what another process wrote meanwhile."""
        try:
            old = parse(text)
        except ValueError:
            return new
        return joined(old, new, made[new.key, new.threads][1])

    record_store.keep_all([record for record, _ in made.values()], choices=False, merge=merge)
    return len(made)


def joined(old: TuningRecord | None, new: TuningRecord, algorithms: Sequence[Algorithm]) -> TuningRecord:
    """Returns one record of what was known and what was learned; of what both timed, undisturbed real calls count.

    Parameters
    ----------
    old
        What was known. What it says of other versions of the libraries does not count.
    new
        What was learned.
    algorithms
        The candidates, in the order of the ranking.
    """
    if old is None:
        return new
    if old.winner == "default":  # set by hand
        return old
    old = old.without(name for name, version in old.versions.items() if new.versions.get(name, version) != version)
    if not old.medians:
        return replace(new, errors={**old.errors, **new.errors}, rejected={**old.rejected, **new.rejected})
    made = coverage.merged(new, old, algorithms)
    best = min(made.medians, key=made.medians.__getitem__)
    winner = new.winner if best in new.medians or made.medians[best] > MARGIN * made.medians.get(new.winner, 0.0) else made.winner
    if new.disturbed and old.winner:
        winner = old.winner
    return replace(
        made, winner=winner, plan=old.plan, left=old.left, under=old.under, seed=old.seed, spent=max(old.spent, new.spent),
        versions={**old.versions, **new.versions}, created=new.created, machine=new.machine, backline=new.backline,
        place=new.place or old.place,
    )  # fmt: skip


def forget() -> None:
    """Forgets all that was learned and not written."""
    with _lock:
        learned.table.clear()
        _waiting.clear()
        paces.clear()
        costs.account, costs.trials, costs.planned = Account(), 0.0, 0.0


def _in_child() -> None:
    global _lock, _stopped
    _lock, _stopped = threading.Lock(), True
    costs.lock = threading.Lock()
    learned.table.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
