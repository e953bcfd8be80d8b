"""The Choice of an Algorithm for a Problem under the switches, in the one order that holds everywhere.

1. libraries that are switched off or not there are refused; 2. what a library cannot do, or a switch forbids, is refused;
3. algorithms coarser than `fp32_precision` permits, that lose more digits than their family may, or whose error is above
`max_error`, are refused; 4. those below the determinism asked for are refused;
5. preferences reorder; 6. a valid tuning record, else a measurement if `benchmark` is on, else the shipped ranking decides
among equals; 7. nothing left is `NoKernel`, and a preference that was not kept is the `fallback` switch's business.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from .. import _core, libraries, switches
from ..errors import DeviceLost, FallbackRefused, NoKernel, NotDeterministic
from ..libraries import capability, fixed_order
from ..libraries.array_kinds import measured_by
from ..libraries.base import Algorithm, RefusedForNow, planner_for
from ..native import thread_team
from ..problems import Problem
from ..switches.scope_state import process, states
from . import (
    candidate_order,
    effective_precision,
    eligibility,
    fft_plan_caches,
    first_sights,
    plan_caches,
    policy,
    problem_class,
    processor_share,
    ranking,
    refusals,
    verbose_scopes,
)
from .choice import Candidate, Choice
from .device_leader import device_leader
from .early_plan import EarlyPlan
from .leader import Leader, leader, threads_of
from .tuning import coverage, deciding_record, learned, record_store

__all__ = ["choice_of", "choose", "eligible", "plan_for", "planner", "prepared", "renewed"]


def choose(
    problem: Problem, *, measure: bool = True, without: Mapping[str, str] = MappingProxyType({}), load: bool = True,
    snapshot: Any = None,
) -> Choice:  # fmt: skip
    """The Choice for a Problem under the switches that hold here.

    Parameters
    ----------
    problem
        What is asked.
    measure
        Whether a measurement may be made where `benchmark` asks for one.
    without
        Keys of algorithms that turned out not to work, and what they said.
    load
        Whether every library is loaded to be asked. If not, those that could not come before what is chosen are left alone.
    snapshot
        The switches to choose by, where the caller has read them already: another thread may have written one since.

    Raises
    ------
    NoKernel
        Nothing can run it.
    NotDeterministic
        Nothing can run it as reproducibly as asked.
    FallbackRefused
        A preference cannot be kept and `fallback` is "error".
    """
    libraries.ready()  # before the snapshot: plug-ins declare switches
    snapshot = switches.current() if snapshot is None else snapshot
    if not load and not without:
        quick = _by_ranking(problem, snapshot)
        if quick is not None:
            return quick
    waiting = set() if load else _not_loaded(problem, snapshot)
    while waiting:
        try:
            choice = _choose(problem, snapshot, measure, without, waiting)
        except (NoKernel, NotDeterministic, FallbackRefused):
            waiting = set()  # what is not loaded yet may help
            continue
        assert choice.chosen is not None
        preferred = choice.library in policy.preferred(problem, snapshot)[0]
        first = "" if preferred else _worth_loading(problem, choice, waiting, snapshot)
        if not first:
            return choice
        waiting.discard(first)
    return _choose(problem, snapshot, measure, without, waiting)


def _by_ranking(problem: Problem, snapshot: Any) -> Choice | None:
    """The Choice where the shipped ranking, or on devices the order of the libraries, decides; None where more has a say."""
    if not record_store.empty() and deciding_record.find(problem, threads_of(snapshot)) is not None:
        return None
    found = (leader if problem.device == "cpu" else device_leader)(problem, snapshot, planner)
    return None if found is None else choice_of(problem, found, snapshot)


def choice_of(problem: Problem, leader: Leader, snapshot: Any) -> Choice:
    """The Choice of what `leader` found; the other candidates are found when somebody reads them."""
    chosen, kind, threads, passed = leader
    refused, matter = kind.told()

    def complete(choice: Choice) -> None:
        switches.current()  # now there is a base
        context = contextvars.copy_context()
        context.run(states.set, _core.ScopeState((), process.base, snapshot, None))  # the switches read as they did
        whole = context.run(_choose, problem, snapshot, False, {}, _not_loaded(problem, snapshot), chosen, refused)
        choice.candidates, choice.basis = whole.candidates, whole.basis
        for c in whole.candidates if passed else ():
            after = passed.get(c.library) or (passed.get(c.detail.key) if c.detail is not None else None)
            if after:
                c.reason = f"tried after {after} calls of one shape: shapes keep changing here"

    choice = Choice(problem, chosen, [], threads=threads, switches=dict(matter))
    choice.requested, choice.effective = kind.wish, kind.spelled(chosen)
    return choice.complete_later(complete)


def _not_loaded(problem: Problem, snapshot: Any) -> set[str]:
    """Libraries that would have to be loaded to be asked, and that nobody asked for."""
    if policy.benchmarks(problem, snapshot)[0] or policy.determinism_level(problem, snapshot) == "threads":
        return set()  # everything is to be compared, or the choice must not depend on what was loaded on one thread
    wanted = (*(snapshot["only"] or ()), *policy.preferred(problem, snapshot)[0])
    asked = problem_class.of(problem, snapshot).names
    return {name for name in asked if name not in wanted and not libraries.is_loaded(name)}


def _worth_loading(problem: Problem, choice: Choice, waiting: set[str], snapshot: Any) -> str:
    """The library among those `waiting` that would come first, if it may come before what is chosen; else an empty string."""
    assert choice.chosen is not None
    record = deciding_record.find(effective_precision.as_asked(problem, snapshot), choice.threads)
    if record is not None and choice.determinism == "off":
        return record_store.sooner(record, choice.chosen.key, waiting)
    reduced = effective_precision.requested(problem, snapshot) in effective_precision.FINENESS
    return ranking.sooner(problem, choice.chosen, waiting, reduced)


def _choose(
    problem: Problem, snapshot: Any, measure: bool, without: Mapping[str, str], waiting: Collection[str],
    taken: Algorithm | None = None, told: Mapping[str, Candidate] | None = None,
) -> Choice:  # fmt: skip
    """Asks every library; for the reasons alone where an Algorithm is `taken`, and `told` is what switches refused then."""
    threads = threads_of(snapshot)
    level = policy.determinism_level(problem, snapshot)
    asked = effective_precision.as_asked(problem, snapshot)
    record = deciding_record.find(asked, threads) if taken is None else None
    refused: list[Candidate] = []
    could = eligibility.able(problem, threads, snapshot, refused, planner, without, waiting, told)
    could = eligibility.precise(could, problem, snapshot, refused)
    timed, limit = policy.benchmarks(problem, snapshot)
    measured = measure and timed and (problem.device == "cpu" or measured_by(problem.device) is not None)
    could = eligibility.accurate(could, problem, record, snapshot, refused, estimated=not measured or level != "off")
    conforming = eligibility.conforming(could, problem, level, snapshot, refused)
    if could and not conforming:
        refusals.not_deterministic(problem, level, snapshot, refused)
        conforming = could
    if taken is not None:
        conforming = [taken, *(a for a in conforming if a.key != taken.key)]
    if not conforming:
        raise refusals.no_kernel(problem, refused)
    own = level == "off"  # what was measured here may decide
    prefer, prefers = policy.preferred(problem, snapshot)
    order = ranking.sort(problem, conforming, own=own)
    home = next((a.pool for a in order if a.pool not in ("", "numpy")), "")
    compared = ranking.sort(problem, conforming)[: limit or None] if measured else []
    # What the project ships keeps nothing from being measured here.
    mine = record_store.find(asked, threads) if measured else None
    if level == "off" and measured and len(conforming) > 1 and coverage.untried(asked, threads, mine, compared):
        from .tuning.benchmark import measure_once

        under = coverage.restrictions(refused, snapshot, len(compared) < len(conforming))
        try:
            record = measure_once(asked, compared, threads, under, planner)
        except MemoryError:
            known = coverage.describe(record, conforming) if record is not None else ranking.describe(problem)
            basis = f"{known}; there is not enough memory to measure it"
        else:
            conforming = eligibility.accurate(conforming, problem, record, snapshot, refused)
            if not conforming:
                raise refusals.no_kernel(problem, refused)
            busy = f", on a busy machine: {record.disturbed}" if record.disturbed else ""
            basis = f"measured now, on {threads} thread{'s' if threads > 1 else ''}{busy}"
    elif record is not None and level == "off":
        basis = coverage.describe(record, conforming) + deciding_record.origin(record)
    else:
        basis = ranking.describe(problem, own)
        if timed and not measured and measure:
            basis += "; nothing is measured on this device"
    if level == "off" and (unused := deciding_record.refused(asked, threads)):
        basis += f"; {unused}"
    if prefer or measured:  # which algorithms conform may have changed since
        order = ranking.sort(problem, conforming, prefer, own)
    if level == "off" and record is not None:
        order = record_store.arrange(order, record, home)
    candidate_order.put_first(order, prefer, snapshot)
    if level == "threads":
        alone, shared = (_conforming_on(n, problem, level, record, snapshot, without) for n in (1, fixed_order.ANY_THREADS))
        order = candidate_order.for_any_threads(order, problem, alone, shared, prefer, snapshot)
    learns, why = policy.learns(problem, snapshot)
    learner = learned.find(problem, threads, snapshot) if learns else None
    if learner is not None:
        order.sort(key=lambda a: a.key != learner.choice)
        basis = f"{learner.reason()}; before: {basis}"
    elif why:
        basis += f"; {why}"
    if taken is not None:
        order = [taken, *(a for a in order if a is not taken)]
    chosen, kind = order[0], problem_class.of(problem, snapshot)
    if record is None:
        basis += ranking.made_with(chosen.library)
    choice = Choice(problem, chosen, [], basis, threads, level, dict(kind.told()[1]))
    choice.requested, choice.effective = kind.wish, kind.spelled(chosen)
    for a in order:
        note = "; ".join(filter(None, [a.note, capability.too_late(a.library)]))
        c = Candidate(a.library, a.name, "chosen" if a is chosen else "next", note, detail=a)
        if record is not None:
            c.seconds, c.error = record.seconds(a.key), record.error(a.key)
        if learner is not None:
            c.seconds = learner.seconds(a.key) or c.seconds
        if a.pool not in ("", home) and a is not chosen:
            c.reason = "; ".join(filter(None, [c.reason, f"a second thread pool beside {home}" if home else ""]))
        choice.candidates.append(c)
    choice.candidates += refusals.once(refused)
    if prefer and chosen.library not in prefer:
        refusals.preference_not_kept(choice, prefer, prefers, snapshot)
    return choice


def _conforming_on(
    threads: int, problem: Problem, level: str, record: Any, snapshot: Any, without: Mapping[str, str]
) -> list[Algorithm]:  # fmt: skip
    """Lists what may run on so many threads at a determinism level."""
    able = [a for a in eligibility.allowed_by(problem, threads, snapshot, planner) if a.reaches(level) and a.key not in without]
    return eligibility.accurate(able, problem, record, snapshot, [])


def eligible(problem: Problem, threads: int, refused: list[Candidate] | None = None) -> list[Algorithm]:
    """Every algorithm that the switches allow and that can run a Problem, whatever has been measured.

    The others go to `refused`, where that is given.
    """
    libraries.ready()  # before the snapshot: plug-ins declare switches
    return eligibility.allowed_by(problem, threads, switches.current(), planner, refused)


def plan_for(problem: Problem, outgrown: bool | None = None) -> Any:
    """The Plan for a Problem under the switches that hold here.

    An algorithm that cannot be prepared makes room for the next. Those who keep Plans of their own say whether one for few calls
    is `outgrown`.
    """
    if thread_team.forked():
        refusals.warn_once(("fork",), "this is a forked child: libraries run on one thread here (spawn has more)")
    libraries.ready()  # before the snapshot: plug-ins declare switches
    snapshot: Any = switches.current()
    concerned = outgrown is not None or first_sights.concerns(problem.family, problem.op, problem.device)
    early = _at_first_sight(problem, snapshot, bool(outgrown)) if concerned else None
    if early is not None:
        return early
    failed: dict[str, str] = {}
    while True:
        choice = choose(problem, without=failed, load=False, snapshot=snapshot)
        algorithm = choice.chosen
        assert algorithm is not None
        if snapshot["nn.attention.WARN_FOR_UNFUSED_KERNELS"] and "math" in algorithm.traits:
            refusals.warn_unfused(choice)
        try:
            plan = prepared(problem, algorithm, snapshot)
        except RuntimeError as error:
            if algorithm.key in failed or isinstance(error, DeviceLost | RefusedForNow):
                raise
            refusals.failed(choice, error, snapshot)
            failed[algorithm.key] = str(error)
            continue
        plan.choice = choice
        choice.planned = fft_plan_caches.seconds_of(plan)
        return verbose_scopes.around(plan, libraries.get(algorithm.library), snapshot)


def renewed(plan: Any) -> Any:
    """Returns the Plan, or where it has run as often as it lasts, the one that takes its place; for those who keep Plans."""
    outgrown = isinstance(plan, _core.PreparedCall) and 0 < plan.lasts <= plan.runs
    return plan_for(plan.choice.problem, outgrown) if outgrown else plan


def _at_first_sight(problem: Problem, snapshot: Any, outgrown: bool) -> Any:
    """The Plan for a shape that may never come again, if there is one that is made sooner than the best; else None.

    After so many calls that the best is worth its time, the engine is asked again; for a Plan in Python at each call until then.
    """
    found = first_sights.at_first_sight(problem, snapshot, planner, outgrown)
    if found is None:
        return None
    try:
        plan = prepared(problem, found.algorithm, snapshot)
    except RuntimeError:
        return None  # whoever asks without haste is told why
    if isinstance(plan, _core.PreparedCall):
        plan.lasts = min(found.passed.values())
        if not problem.packed:
            first_sights.counts_itself(problem, snapshot)
    elif problem.packed:
        return None  # its layer would keep it
    plan.choice = choice_of(problem, found, snapshot)
    plan = verbose_scopes.around(plan, libraries.get(found.algorithm.library), snapshot)
    if problem.device == "cpu":
        return plan
    return EarlyPlan(plan, min(found.passed.values()), partial(_best, problem, snapshot))


def _best(problem: Problem, snapshot: Any) -> Any:
    """The Plan for a shape that has come so often that it is worth any time."""
    first_sights.counts_itself(problem, snapshot)
    return plan_for(problem, True)


def prepared(problem: Problem, algorithm: Algorithm, snapshot: Any) -> Any:
    """Returns the Plan of an algorithm under the switches that hold here: from its cache, or prepared now."""
    library = libraries.get(algorithm.library)

    def make() -> Any:
        if verbose_scopes.speaks(library, snapshot):
            return verbose_scopes.prepare(library, problem, algorithm, snapshot, planner)
        return library.prepare(problem, algorithm, *planner_for(library, planner))

    if problem.packed:  # its plan keeps weights and is the caller's own: another object's weights may look the same
        return make()
    cache = (fft_plan_caches if problem.family == "fft" else plan_caches).cache(library.name)
    return cache.get((problem, algorithm, snapshot, library), make)


class _EnginePlanner:
    """The Planner that libraries are given."""

    def chosen(self, problem: Problem) -> Choice:
        # On a device one order decides, mostly, and the reasons of what was not chosen are found when they are read.
        return choose(problem, measure=False, load=problem.device == "cpu")

    def plan(self, problem: Problem) -> Any:
        return plan_for(problem)

    def cufft_plan(self, device: int, key: Hashable, make: Callable[[], Any]) -> Any:
        from .cufft_plan_caches import cufft_plans

        return cufft_plans(device).get(key, make)

    def timed_plan(self, library: str, key: str) -> tuple[str, int]:
        from .tuning import vendor_plans

        return vendor_plans.find(library, key)

    def keep_timed_plan(self, library: str, key: str, plan: str, seconds: float, searched: int) -> None:
        from .tuning import vendor_plans

        vendor_plans.keep(library, key, plan, seconds, searched)


planner = _EnginePlanner()
processor_share.begin()  # from here on calls on several threads make room for others
