"""The Choice of an Algorithm for a Problem under the switches, in the one order that holds everywhere.

1. libraries that are switched off or not there are refused; 2. what a library cannot do, or a switch forbids, is refused;
3. algorithms coarser than `fp32_precision` permits, or whose measured error is above what is allowed, are refused; 4. those
below the determinism asked for are refused;
5. preferences reorder; 6. a valid tuning record, else a measurement if `benchmark` is on, else the shipped ranking decides
among equals; 7. nothing left is `NoKernel`, and a preference that was not kept is the `fallback` switch's business.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from .. import libraries, switches
from ..errors import DeviceLost, FallbackRefused, NoKernel, NotDeterministic
from ..libraries.array_kinds import measured_by
from ..libraries.base import Algorithm, Library, Refusal, planner_for
from ..native import thread_team
from ..problems import Problem
from ..switches.provenance import steps_out
from . import effective_precision, fft_plan_caches, plan_caches, policy, ranking
from .choice import Candidate, Choice

__all__ = ["able", "algorithms_of", "choose", "eligible", "plan_for", "planner"]

_warned: set[tuple[str, ...]] = set()


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
    if snapshot is None:
        snapshot = switches.current()
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


def _not_loaded(problem: Problem, snapshot: Any) -> set[str]:
    """Libraries that would have to be loaded to be asked, and that nobody asked for."""
    if policy.benchmarks(problem, snapshot)[0] or (snapshot["deterministic"] and snapshot["determinism_level"] == "threads"):
        return set()  # everything is to be compared, or the choice must not depend on what was loaded on one thread
    wanted = (*(snapshot["only"] or ()), *policy.preferred(problem, snapshot)[0])
    return {name for name in libraries.names() if name not in wanted and not libraries.is_loaded(name)}


def _worth_loading(problem: Problem, choice: Choice, waiting: set[str], snapshot: Any) -> str:
    """The library among those `waiting` that would come first, if it may come before what is chosen; else an empty string."""
    from .tuning import record_store

    assert choice.chosen is not None
    record = record_store.find(effective_precision.as_asked(problem, snapshot), choice.threads)
    if record is not None and choice.determinism == "off":
        return record_store.sooner(record, choice.chosen.key, waiting)
    reduced = effective_precision.requested(problem, snapshot) in effective_precision.FINENESS
    return ranking.sooner(problem, choice.chosen, waiting, reduced)


def _choose(
    problem: Problem, snapshot: Any, measure: bool, without: Mapping[str, str], waiting: Collection[str]
) -> Choice:
    threads = 1 if thread_team.forked() else snapshot["num_threads"]
    level = snapshot["determinism_level"] if snapshot["deterministic"] else "off"
    from ..libraries import capability  # these three are much to import, and not needed before something is chosen
    from .tuning import coverage, record_store

    asked = effective_precision.as_asked(problem, snapshot)
    record = record_store.find(asked, threads)
    refused: list[Candidate] = []
    could = able(problem, threads, snapshot, refused, without, waiting)
    could = effective_precision.permitted(could, problem, snapshot, refused)
    could = _accurate(could, record, snapshot, refused)
    conforming = _conforming(could, problem, level, snapshot, refused)
    if could and not conforming:
        _not_deterministic(problem, level, snapshot, refused)
        conforming = could
    if not conforming:
        raise _no_kernel(problem, refused)
    own = level == "off"  # what was measured here may decide
    home = next((a.pool for a in ranking.sort(problem, conforming, own=own) if a.pool not in ("", "numpy")), "")
    timed, limit = policy.benchmarks(problem, snapshot)
    measured = measure and timed and (problem.device == "cpu" or measured_by(problem.device) is not None)
    compared = ranking.sort(problem, conforming)[: limit or None] if measured else []
    if level == "off" and measured and len(conforming) > 1 and coverage.untried(asked, threads, record, compared):
        from .tuning.benchmark import measure_once

        under = coverage.restrictions(refused, snapshot, len(compared) < len(conforming))
        try:
            record = measure_once(asked, compared, threads, under, planner)
        except MemoryError:
            known = coverage.describe(record, conforming) if record is not None else ranking.describe(problem)
            basis = f"{known}; there is not enough memory to measure it"
        else:
            conforming = _accurate(conforming, record, snapshot, refused)
            if not conforming:
                raise _no_kernel(problem, refused)
            busy = f", on a busy machine: {record.disturbed}" if record.disturbed else ""
            basis = f"measured now, on {threads} thread{'s' if threads > 1 else ''}{busy}"
    elif record is not None and level == "off":
        basis = coverage.describe(record, conforming)
    else:
        basis = ranking.describe(problem, own)
        if timed and not measured and measure:
            basis += "; nothing is measured on this device"
    prefer, prefers = policy.preferred(problem, snapshot)
    order = ranking.sort(problem, conforming, prefer, own)
    if level == "off" and record is not None:
        order = record_store.arrange(order, record, home)
    _put_first(order, prefer, snapshot)
    if level == "threads" and threads > 1:
        alone = [a for a in allowed_by(problem, 1, snapshot) if a.reaches(level) and a.key not in without]
        order = _for_any_threads(order, problem, _accurate(alone, record, snapshot, []), prefer, snapshot)
    chosen = order[0]
    choice = Choice(problem, chosen, [], basis, threads, level, _switches_that_matter(problem, snapshot))
    choice.requested = effective_precision.requested(problem, snapshot)
    choice.effective = effective_precision.spelled(chosen, problem)
    for a in order:
        note = "; ".join(filter(None, [a.note, capability.too_late(a.library)]))
        c = Candidate(a.library, a.name, "chosen" if a is chosen else "next", note, detail=a)
        if record is not None:
            c.seconds, c.error = record.seconds(a.key), record.error(a.key)
        if a.pool not in ("", home) and a is not chosen:
            c.reason = "; ".join(filter(None, [c.reason, f"a second thread pool beside {home}" if home else ""]))
        choice.candidates.append(c)
    choice.candidates += _once(refused)
    if prefer and chosen.library not in prefer:
        _preference_not_kept(choice, prefer, prefers, snapshot)
    return choice


def _put_first(order: list[Algorithm], prefer: tuple[str, ...], snapshot: Any) -> None:
    order.sort(key=lambda a: policy.priority(a, snapshot))
    if prefer:
        order.sort(key=lambda a: prefer.index(a.library) if a.library in prefer else len(prefer))


def _for_any_threads(
    order: list[Algorithm], problem: Problem, alone: list[Algorithm], prefer: tuple[str, ...], snapshot: Any
) -> list[Algorithm]:
    """Put first what would be chosen among those there are `alone` on one thread, on as many as it may have without other bits.

    Each candidate promises the same bits for any thread count; two of them do not promise the same bits as each other. So the
    thread count must not decide between them.
    """
    if not alone:
        return order
    alone = ranking.sort(problem, alone, own=False)
    _put_first(alone, prefer, snapshot)
    first = alone[0]
    base = first.name.removesuffix("_items")  # a batch divided: each item is computed as it would be alone
    same = [a for a in order if (a.library, a.name.removesuffix("_items")) == (first.library, base)] or [first]
    same.sort(key=lambda a: not a.scaled)
    return [*same, *(a for a in order if a not in same)]


def eligible(problem: Problem, threads: int, refused: list[Candidate] | None = None) -> list[Algorithm]:
    """Every algorithm that the switches allow and that can run a Problem, whatever has been measured.

    The others go to `refused`, where that is given.
    """
    libraries.ready()  # before the snapshot: plug-ins declare switches
    return allowed_by(problem, threads, switches.current(), refused)


def allowed_by(problem: Problem, threads: int, snapshot: Any, refused: list[Candidate] | None = None) -> list[Algorithm]:
    """The same under a Snapshot."""
    refused = [] if refused is None else refused
    return effective_precision.permitted(able(problem, threads, snapshot, refused, {}), problem, snapshot, refused)


def able(
    problem: Problem, threads: int, snapshot: Any, refused: list[Candidate], without: Mapping[str, str],
    waiting: Collection[str] = (),
) -> list[Algorithm]:  # fmt: skip
    """Lists what libraries have for a Problem and switches do not forbid; the rest goes to `refused`, with its reason.

    Libraries that are `waiting` are not asked.
    """
    only = snapshot["only"]
    kind = problem.device.partition(":")[0]
    found = []
    for name in libraries.names():
        row = libraries.info(name)
        if kind not in row.devices or (row.families and problem.family not in row.families):
            continue
        if not snapshot.get(row.switch, True):
            reason = f"disabled by {row.switch}, {switches.origin(row.switch)}"
            refused.append(Candidate(name, "", "refused", reason, row.switch))
        elif only and name not in only:
            refused.append(Candidate(name, "", "refused", f"not among only = {only}, {switches.origin('only')}", "only"))
        elif name in waiting:
            refused.append(Candidate(name, "", "next", "not loaded: it would come after what is chosen"))
        elif not (library := libraries.get(name)).available():
            refused.append(Candidate(name, "", "refused", f"not available: {library.reason()}"))
        else:
            allowed = 1 if library.openmp and not snapshot["openmp.enabled"] else threads
            found += _listed_by(library, problem, allowed, snapshot, refused, without)
    return found


def _listed_by(
    library: Library, problem: Problem, threads: int, snapshot: Any, refused: list[Candidate], without: Mapping[str, str]
) -> list[Algorithm]:
    from ..libraries import capability, errata

    able = []
    for found in algorithms_of(library, problem, threads):
        if isinstance(found, Refusal):
            refused.append(Candidate(library.name, found.name, "refused", found.reason, found.switch))
            continue
        reason, switch = policy.forbids(found, snapshot)
        if not reason and found.isa and not capability.allows(found.isa):
            reason, switch = f"needs {found.isa}, and the processor has, or may use, {capability.effective()}", "cpu.capability"
        if not reason:
            reason = errata.refusal(library, problem, found)
        if not reason and found.key in without:
            reason = f"failed when it was prepared: {without[found.key]}"
        if reason:
            refused.append(Candidate(library.name, found.name, "refused", reason, switch))
        else:
            able.append(found)
    return able


def algorithms_of(library: Library, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields what a library has for a Problem; one that fails to tell is refused."""
    try:
        yield from library.algorithms(problem, threads, *planner_for(library, planner))
    except Exception as error:  # a plug-in's mistake must not take the other libraries away
        yield Refusal(library.name, "", f"{type(library).__name__}.algorithms raised {type(error).__name__}: {error}")


def _accurate(able: list[Algorithm], record: Any, snapshot: Any, refused: list[Candidate]) -> list[Algorithm]:
    allowed = snapshot["max_error"]
    if record is None or (math.isinf(allowed) and not record.rejected):
        return able
    kept = []
    for a in able:
        error = record.error(a.key)
        if a.key in record.rejected:
            refused.append(Candidate(a.library, a.name, "refused", record.rejected[a.key], error=error))
        elif error is not None and error > allowed:
            reason = f"measured error {error:.1e} is above max_error = {allowed:.1e}"
            refused.append(Candidate(a.library, a.name, "refused", reason, "max_error", error=error))
        else:
            kept.append(a)
    return kept


def _conforming(
    able: list[Algorithm], problem: Problem, level: str, snapshot: Any, refused: list[Candidate]
) -> list[Algorithm]:
    kept = []
    for a in able:
        asked, switch = policy.determinism(a, problem, level, snapshot)
        if a.reaches(asked):
            kept.append(a)
        else:
            reason = f"reaches determinism level {a.level!r}, {asked!r} is asked for"
            if a.level == "off" and a.note:
                reason += f" ({a.note})"
            refused.append(Candidate(a.library, a.name, "refused", reason, switch))
    return kept


def _switches_that_matter(problem: Problem, snapshot: Any) -> dict[str, tuple[str, str]]:
    found, kind = {}, problem.device.partition(":")[0]
    for name, switch in switches.declared().items():
        # One about arrays of another device, or a library that nothing drives, decides nothing here.
        absent = switch.allows and switch.allows not in libraries.names()
        if problem.family in switch.governs and policy.device_of(switch) in ("", kind) and not absent:
            said = switches.history(name)[0]
            if said.origin.kind != "default":
                found[name] = (repr(snapshot[name]), str(said.origin))
    return found


def _once(refused: list[Candidate]) -> list[Candidate]:
    """The refusals without repetition: one that holds for all thread counts came with each of them."""
    return list({(c.library, c.algorithm, c.reason, c.switch): c for c in reversed(refused)}.values())[::-1]


def _listed(candidates: list[Candidate]) -> str:
    return "".join(f"\n    {c.library}{' ' + c.algorithm if c.algorithm else ''}: {c.reason}" for c in _once(candidates))


def _no_kernel(problem: Problem, refused: list[Candidate]) -> NoKernel:
    by_switch = sorted({c.switch for c in refused if c.switch})
    remedy = f"change {', '.join(by_switch)}" if by_switch else "install a library that can (`backline info` lists them)"
    if problem.device != "cpu" and refused and not by_switch:
        from ..libraries.presence import driving

        # What all of them lack: CuPy, a driver, a device.
        common = {driving(c.library)[1] for c in refused}
        remedy = common.pop() if len(common) == 1 and "" not in common else remedy
    what = f"nothing can run {problem.key}"
    if "scaled_dot_product_attention" in problem.key:  # torch's words, on devices and on CPU, which programs look for
        what += ". No available kernel. No viable backend for scaled_dot_product_attention was found"
    return NoKernel(what, cause=_listed(refused), remedy=remedy)


def _not_deterministic(problem: Problem, level: str, snapshot: Any, refused: list[Candidate]) -> None:
    text = f"nothing runs {problem.key} with determinism level {level!r}"
    if not snapshot["warn_only"]:
        raise NotDeterministic(text, cause=_listed(refused), remedy="a lower determinism_level, or warn_only")
    _warn_once(("determinism", problem.op, level), text)


def _preference_not_kept(choice: Choice, prefer: tuple[str, ...], prefers: str, snapshot: Any) -> None:
    for name in prefer:
        reasons = [c.reason for c in choice.candidates if c.library == name and c.verdict == "refused"]
        why = "; ".join(dict.fromkeys(reasons)) or "it has no algorithm for this"
        choice.fallbacks.append(f"{name} was preferred: {why}")
    fallback = snapshot["fallback"]
    if fallback == "error":
        raise FallbackRefused(
            f"{choice.problem.op} cannot run on {' or '.join(prefer)}, which {prefers} puts first",
            cause="; ".join(choice.fallbacks),
            remedy="another preference, or fallback = 'allow'",
        )
    if fallback == "warn":
        for name, text in zip(prefer, choice.fallbacks, strict=True):
            _warn_once((choice.problem.op, name, text), f"{choice.problem.op} runs on {choice.library}: {text}")


def _failed(choice: Choice, error: Exception, snapshot: Any) -> None:
    """Applies `fallback` to a library that could not prepare an algorithm that it listed."""
    text = f"{choice.library} {choice.algorithm} failed: {error}"
    if snapshot["fallback"] == "error":
        raise FallbackRefused(
            f"{choice.problem.op} cannot run as chosen", cause=text, remedy="fallback = 'allow', or turn the library off"
        ) from error
    if snapshot["fallback"] == "warn":
        _warn_once((choice.problem.op, str(choice.library), text), f"{choice.problem.op}: {text}; the next library runs it")


def _warn_unfused(choice: Choice) -> None:
    fused = [c for c in choice.candidates if c.verdict == "refused" and not c.algorithm.startswith("math")]
    text = f"{choice.problem.op} runs on {choice.library} {choice.algorithm}, which is no fused kernel; others were refused:"
    warnings.warn(text + _listed(fused), UserWarning, stacklevel=steps_out())


def _warn_once(key: tuple[str, ...], text: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=steps_out())


def plan_for(problem: Problem) -> Any:
    """The Plan for a Problem under the switches that hold here; an algorithm that cannot be prepared makes room for the next."""
    if thread_team.forked():
        _warn_once(("fork",), "this is a forked child: libraries run on one thread here (use the spawn start method for more)")
    libraries.ready()  # before the snapshot: plug-ins declare switches
    from . import verbose_scopes

    snapshot: Any = switches.current()
    failed: dict[str, str] = {}
    while True:
        choice = choose(problem, without=failed, load=False, snapshot=snapshot)
        algorithm = choice.chosen
        assert algorithm is not None
        if snapshot["nn.attention.WARN_FOR_UNFUSED_KERNELS"] and "math" in algorithm.traits:
            _warn_unfused(choice)
        library = libraries.get(algorithm.library)

        def make(library: Any = library, algorithm: Any = algorithm) -> Any:
            return verbose_scopes.prepare(library, problem, algorithm, snapshot, planner)

        try:
            # A plan that keeps packed weights is the caller's own: another object's weights may look the same.
            cache = (fft_plan_caches if problem.family == "fft" else plan_caches).cache(library.name)
            plan = make() if problem.packed else cache.get((problem, algorithm, snapshot, library), make)
        except RuntimeError as error:
            if algorithm.key in failed or isinstance(error, DeviceLost):
                raise
            _failed(choice, error, snapshot)
            failed[algorithm.key] = str(error)
            continue
        plan.choice = choice
        choice.planned = fft_plan_caches.seconds_of(plan)
        return verbose_scopes.around(plan, library, snapshot)


class _EnginePlanner:
    """The Planner that libraries are given."""

    def chosen(self, problem: Problem) -> Choice:
        return choose(problem, measure=False)

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
