"""Trials on real calls: what the switch `benchmark` = "online" does with the Plans of an operation.

A call that the Memo knows runs its Plan in the compiled core and counts down; one in some comes here after it ran, timed. What it
took goes to the Problem's learner, which says what the next timed call runs: the choice, or a runner-up in its place. That is
prepared here, as any choice is, and its result is what the caller gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from .. import _core, libraries, switches
from ..errors import BacklineError
from ..libraries.base import BORROWED, Algorithm
from ..problems import Problem
from . import choose, effective_precision, eligibility, policy, ranking, verbose_scopes
from .choice import Candidate, Choice
from .tuning import learned_records, machine_load, record_store
from .tuning.measure import NUMPY_SPIN, SPIN, THREADED

__all__ = ["Trials", "watched"]

FIRST = 2  # the first call that is timed: the one before it does what is done once
IDLE = 0.1  # part of a call on one thread that this thread may not run,
LEAST = 2e-6  # or so many seconds of it
LOADING = 0.15  # seconds that are expected for loading the libraries that were not needed so far

clock = time.perf_counter


def watched(plan: Any, problem: Problem, begin: float, usable: Callable[[Any], bool] = lambda plan: True) -> Any:
    """Returns a Plan as the Memo is to keep it: one of which some calls are timed, where anything may be learned of the Problem.

    Parameters
    ----------
    plan, problem
        What was chosen, and for what.
    begin
        When the call began that it was chosen for.
    usable
        Tells whether the operation can run a Plan of the Problem.
    """
    choice, snapshot = getattr(plan, "choice", None), switches.current()
    if choice is None or learned_records.stopped() or not policy.learns(problem, snapshot)[0]:
        return plan
    if verbose_scopes.speaks(libraries.get(choice.library), snapshot):
        return plan  # it prints, which takes longer than most calls
    asked = effective_precision.as_asked(problem, snapshot)
    record = record_store.find(asked, choice.threads)
    if record is not None and record.winner == "default":  # set by hand: nothing is to be measured
        return plan
    known = learned_records.learned_of(problem, asked, choice.threads, snapshot, choice.chosen.key)
    known.learner.begin(clock() - begin)
    # One that is written to may be an input, too, and is not as it was after a run.
    repeatable = problem.get("out") is None
    return _core.SampledPlan(plan, Trials(problem, snapshot, known, choice, usable), FIRST, repeatable)


class Trials:
    """Told of every timed call of one Plan in the Memo; decides what runs next with the learner of the Problem."""

    def __init__(
        self, problem: Problem, snapshot: Any, known: learned_records.Learned, choice: Choice, usable: Callable[[Any], bool]
    ) -> None:  # fmt: skip
        self.problem, self.snapshot, self.known, self.choice, self.usable = problem, snapshot, known, choice, usable
        self.trial: tuple[str, Any] = "", None  # key and Plan of the candidate that is tried
        self.told = ""

    def __call__(self, sampled: Any, plan: Any, calls: int, wall: int, cpu: int, interruptions: int) -> None:
        learner = self.known.learner
        if learned_records.stopped():
            sampled.next = None
            sampled.time_after(0)
            return
        if not learner.lock.acquire(blocking=False):  # another thread decides: this call is not counted
            return
        begin, costs = clock(), learned_records.costs
        steps = costs.steps
        try:
            algorithm = plan.choice.chosen
            if wall < 0:
                learner.fails(algorithm.key)
            else:
                seconds = wall * 1e-9
                contended = _contended(algorithm, self.problem, seconds)
                disturbed = _disturbed(algorithm, seconds, cpu * 1e-9, interruptions)
                learner.note(algorithm.key, calls, seconds, disturbed=disturbed, contended=contended)
            if learner.lists():
                self._list()
            self._go_on(sampled)
        finally:
            if costs.steps == steps:  # nothing was listed or prepared, which is counted by itself
                costs.took("timing", clock() - begin)
            learner.lock.release()
        if learner.changed and learned_records.due() and costs.room(learner.overhead) >= costs.writing:
            begin = clock()
            learned_records.write()
            costs.took("writing", clock() - begin)

    def _go_on(self, sampled: Any) -> None:
        """Says what the next timed call runs, and when it comes."""
        learner = self.known.learner
        if self.choice.chosen is None or self.choice.chosen.key != learner.choice:
            try:
                sampled.plan = self._prepared(learner.choice, learner.reason())
            except (BacklineError, RuntimeError, MemoryError):
                learner.fails(learner.choice)
                learner.choice = self.choice.chosen.key  # type: ignore[union-attr]  # what runs was chosen
            else:
                self.choice = sampled.plan.choice
        elif learner.listed and learner.reason() != self.told:
            self.told = learner.reason()
            sampled.plan.choice = self.choice = self._choice(learner.choice, self.told)
        while True:
            key, after = learner.next()
            if key == learner.choice:
                sampled.next = None
                if not learner.trial:
                    self.trial = "", None
                break
            algorithm = self.known.algorithms[key]
            if self.trial[0] != key and (self._crowded(algorithm) or self._import_waits(algorithm)):
                learner.puts_off(key)
                continue
            try:
                if self.trial[0] != key:
                    self.trial = key, self._prepared(key, learner.reason(key))
                sampled.next = self.trial[1]
                break
            except (BacklineError, RuntimeError, MemoryError):
                learner.fails(key)
        sampled.time_after(after)

    def _crowded(self, algorithm: Algorithm) -> bool:
        """Tells whether other programs have had the processors lately: what uses several may take many times as long then."""
        if algorithm.threads == 1 or self.known.before is None:
            return False
        return bool(machine_load.between(self.known.before, machine_load.read(), algorithm.threads).disturbed)

    def _import_waits(self, algorithm: Algorithm) -> bool:
        """Tells whether a package would have to be imported for an algorithm, and learning may not take that long yet."""
        library = libraries.get(algorithm.library)
        return not library.imported() and learned_records.costs.room(self.known.learner.overhead) < LOADING

    def _prepared(self, key: str, reason: str) -> Any:
        """Returns the Plan of a candidate, prepared as any choice is; the time for it is a cost of learning."""
        begin = clock()
        try:
            plan = choose.prepared(self.problem, self.known.algorithms[key], self.snapshot)
            if not self.usable(plan):
                raise RuntimeError(f"the operation cannot run the plan of {key}")
        finally:
            if key not in self.known.learner.prepared:
                self.known.learner.prepared.add(key)
                learned_records.costs.took("preparing", clock() - begin)
        plan.choice = self._choice(key, reason)
        return plan

    def _choice(self, key: str, reason: str) -> Choice:
        """The Choice that a timed Plan carries: the one that the switches gave, with another algorithm taken, and why."""
        taken = self.known.algorithms[key]
        learner, candidates = self.known.learner, []
        for c in self.choice.candidates:
            if c.detail is not None and c.verdict != "refused":
                verdict = "chosen" if c.detail.key == key else "next"
                c = replace(c, verdict=verdict, seconds=learner.seconds(c.detail.key) or c.seconds)
            candidates.append(c)
        candidates.sort(key=lambda c: c.verdict != "chosen")
        before = self.choice.basis.partition("; before: ")[2] or self.choice.basis
        return replace(self.choice, chosen=taken, candidates=candidates, basis=f"{reason}; before: {before}")

    def _list(self) -> None:
        """Finds the candidates: what might be chosen under the same switches, as precise as the choice, and reached as it is."""
        begin = clock()
        learner = self.known.learner
        choice, more = self.choice, 0.0
        if any(c.detail is None and c.reason.startswith(eligibility.NOT_LOADED) for c in choice.candidates):
            more = LOADING
            if learned_records.costs.room(learner.overhead) >= LOADING:
                choice, more = choose.choose(self.problem, measure=False, snapshot=self.snapshot), 0.0
        rivals = _rivals(choice.candidates, self.choice.chosen, self.snapshot)
        limit = self.snapshot["benchmark_limit"]
        own = self.choice.chosen
        assert own is not None
        rivals = [own, *(a for a in rivals if a.key != own.key)][: limit or None]
        self.known.algorithms = {a.key: a for a in (*rivals, *self.known.algorithms.values())}
        expected = self._expected()
        self.choice = replace(self.choice, candidates=choice.candidates)
        self.known.before = machine_load.read()
        learner.compare(expected, more)
        learned_records.costs.took("listing", clock() - begin)

    def _expected(self) -> dict[str, float | None]:
        """Returns the times that are expected of the candidates, in one unit: measured ones, and predicted ones in proportion."""
        record, predicted = record_store.find(self.known.problem, self.known.threads), ranking.times_of(self.problem)
        told = {key: predicted.get(ranking.named(key, predicted)) for key in self.known.algorithms}
        if record is None or not record.medians:
            return told
        ratios = [seconds / time for key, seconds in record.medians.items() if (time := told.get(key))]
        scale = median(ratios) if ratios else 0.0
        return {key: record.seconds(key) or (scale * time if time else 0.0) or None for key, time in told.items()}


def _rivals(candidates: list[Candidate], chosen: Algorithm | None, snapshot: Any) -> list[Algorithm]:
    """The algorithms that only their times put behind the one that was chosen.

    What NumPy computes on its own threads is left out beside a choice that it does not compute: they spin for a tenth of a second
    after each call, and calls of other Problems, which are tried meanwhile, would seem to be faster on one thread.
    """
    assert chosen is not None
    able = [c.detail for c in candidates if c.detail is not None and c.verdict in ("chosen", "next")]
    prefer = snapshot["prefer"]

    def rank(a: Algorithm) -> tuple[Any, ...]:
        preferred = prefer.index(a.library) if a.library in prefer else len(prefer)
        return a.precision, policy.priority(a, snapshot), preferred, BORROWED in a.traits

    return [a for a in able if rank(a) == rank(chosen) and (a.pool != "numpy" or chosen.pool == "numpy")]


# Disturbed calls ------------------------------------------------------------------------------------------------------------

_ran: dict[str, float] = {}  # thread pool -> when a timed call of it ended


def _disturbed(algorithm: Algorithm, seconds: float, cpu: float, interruptions: int) -> bool:
    """Tells whether something else had the processor during a call.

    A thread that waits for others of a pool does not run either: on several threads its own time tells nothing.
    """
    if interruptions > machine_load.SWITCHES * seconds:
        return True
    return algorithm.threads == 1 and seconds - cpu > max(IDLE * seconds, LEAST)


def _contended(algorithm: Algorithm, problem: Problem, seconds: float) -> bool:
    """Tells whether the threads of another pool, which ran a timed call just before, still waited on the processors for work."""
    pool = algorithm.pool if algorithm.threads > 1 and problem.flops >= THREADED else ""
    now = clock()
    others = any(now - seconds - at < (NUMPY_SPIN if name == "numpy" else SPIN) for name, at in _ran.items() if name != pool)
    if pool:
        _ran[pool] = now
        return others
    return False
