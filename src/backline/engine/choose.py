"""From a Problem and the switches to a Choice, in the one order that holds everywhere.

1. libraries that are switched off or not there are refused; 2. what a library cannot do is refused; 3. algorithms whose
measured error is above what is allowed are refused; 4. those below the determinism asked for are refused;
5. preferences reorder; 6. a valid tuning record, else a measurement if `benchmark` is on, else the shipped ranking decides
among equals; 7. nothing left is `NoKernel`, and a preference that was not kept is the `fallback` switch's business.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from .. import libraries, switches
from ..errors import FallbackRefused, NoKernel, NotDeterministic
from ..libraries import team
from ..libraries.base import Algorithm, Refusal
from ..problems import Problem
from . import plans, ranking, records
from .choice import Candidate, Choice

__all__ = ["choose", "eligible", "plan_for"]

_warned: set[tuple[str, ...]] = set()


def choose(problem: Problem, *, measure: bool = True, without: frozenset[str] = frozenset()) -> Choice:
    """The Choice for a Problem under the switches that hold here.

    Parameters
    ----------
    problem
        What is asked.
    measure
        Whether a measurement may be made where `benchmark` asks for one.
    without
        Keys of algorithms that turned out not to work.

    Raises
    ------
    NoKernel
        Nothing can run it.
    NotDeterministic
        Nothing can run it as reproducibly as asked.
    FallbackRefused
        A preference cannot be kept and `fallback` is "error".
    """
    snapshot: Any = switches.current()
    threads = 1 if team.forked() else snapshot["num_threads"]
    level = snapshot["determinism_level"] if snapshot["deterministic"] else "off"
    record = records.find(problem, threads)
    refused: list[Candidate] = []
    able = _able(problem, threads, snapshot, refused, without)
    able = _accurate(able, record, snapshot, refused)
    conforming = _conforming(able, level, refused)
    if able and not conforming:
        _not_deterministic(problem, level, snapshot, refused)
        conforming = able
    if not conforming:
        raise _no_kernel(problem, refused)
    home = next((a.pool for a in ranking.sort(problem, conforming) if a.pool not in ("", "numpy")), "")
    if level == "off" and record is None and measure and snapshot["benchmark"] and len(conforming) > 1:
        from .measure import measure_once

        limit = snapshot["benchmark_limit"] or len(conforming)
        record = measure_once(problem, ranking.sort(problem, conforming)[:limit], threads)
        conforming = _accurate(conforming, record, snapshot, refused)
        if not conforming:
            raise _no_kernel(problem, refused)
        basis = f"measured now, on {threads} thread{'s' if threads > 1 else ''}"
    elif record is not None and level == "off":
        basis = record.describe()
    else:
        basis = ranking.describe(problem)
    order = ranking.sort(problem, conforming)
    if level == "off" and record is not None:
        order = records.arrange(order, record, home)
    prefer = snapshot["prefer"]
    if prefer:
        order.sort(key=lambda a: prefer.index(a.library) if a.library in prefer else len(prefer))
    chosen = order[0]
    choice = Choice(problem, chosen, [], basis, threads, level, _switches_that_matter(snapshot))
    for a in order:
        c = Candidate(a.library, a.name, "chosen" if a is chosen else "next", a.note, detail=a)
        if record is not None:
            c.seconds, c.error = record.seconds(a.key), record.error(a.key)
        if a.pool not in ("", home) and a is not chosen:
            c.reason = "; ".join(filter(None, [c.reason, f"a second thread pool beside {home}" if home else ""]))
        choice.candidates.append(c)
    choice.candidates += refused
    if prefer and chosen.library not in prefer:
        _preference_not_kept(choice, prefer, snapshot)
    return choice


def eligible(problem: Problem, threads: int) -> list[Algorithm]:
    """Every algorithm that the switches allow and that can run a Problem, whatever has been measured."""
    return _able(problem, threads, switches.current(), [], frozenset())


def _able(
    problem: Problem, threads: int, snapshot: Any, refused: list[Candidate], without: frozenset[str]
) -> list[Algorithm]:
    only = snapshot["only"]
    able = []
    for library in libraries.all_libraries():
        name = library.name
        switch = f"{name}.enabled"
        if not snapshot.get(switch, True):
            refused.append(Candidate(name, "", "refused", f"disabled by {switch}, {switches.origin(switch)}", switch))
        elif only and name not in only:
            refused.append(Candidate(name, "", "refused", f"not among only = {only}, {switches.origin('only')}", "only"))
        elif not library.available():
            refused.append(Candidate(name, "", "refused", f"not available: {library.reason()}"))
        else:
            for found in library.algorithms(problem, threads):
                if isinstance(found, Refusal):
                    refused.append(Candidate(name, found.name, "refused", found.reason, found.switch))
                elif found.key in without:
                    refused.append(Candidate(name, found.name, "refused", "failed when it was prepared"))
                else:
                    able.append(found)
    return able


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


def _conforming(able: list[Algorithm], level: str, refused: list[Candidate]) -> list[Algorithm]:
    if level == "off":
        return able
    kept = []
    for a in able:
        if a.reaches(level):
            kept.append(a)
        else:
            reason = f"reaches determinism level {a.level!r}, {level!r} is asked for"
            refused.append(Candidate(a.library, a.name, "refused", reason, "determinism_level"))
    return kept


def _switches_that_matter(snapshot: Any) -> dict[str, tuple[str, str]]:
    found = {}
    for name, switch in switches.declared().items():
        origin = switches.origin(name)
        if origin.kind != "default" and (switch.governs or "." not in name):
            found[name] = (repr(snapshot[name]), str(origin))
    return found


def _listed(candidates: list[Candidate]) -> str:
    return "".join(f"\n    {c.library}{' ' + c.algorithm if c.algorithm else ''}: {c.reason}" for c in candidates)


def _no_kernel(problem: Problem, refused: list[Candidate]) -> NoKernel:
    by_switch = sorted({c.switch for c in refused if c.switch})
    remedy = f"change {', '.join(by_switch)}" if by_switch else "install a library that can (`backline info` lists them)"
    return NoKernel(f"nothing can run {problem.key}", cause=_listed(refused), remedy=remedy)


def _not_deterministic(problem: Problem, level: str, snapshot: Any, refused: list[Candidate]) -> None:
    text = f"nothing runs {problem.key} with determinism level {level!r}"
    if not snapshot["warn_only"]:
        raise NotDeterministic(text, cause=_listed(refused), remedy="a lower determinism_level, or warn_only")
    _warn_once(("determinism", problem.op, level), text)


def _preference_not_kept(choice: Choice, prefer: tuple[str, ...], snapshot: Any) -> None:
    for name in prefer:
        reasons = [c.reason for c in choice.candidates if c.library == name and c.verdict == "refused"]
        why = "; ".join(dict.fromkeys(reasons)) or "it has no algorithm for this"
        choice.fallbacks.append(f"{name} was preferred: {why}")
    policy = snapshot["fallback"]
    if policy == "error":
        raise FallbackRefused(
            f"{choice.problem.op} cannot run on {' or '.join(prefer)}, which is preferred",
            cause="; ".join(choice.fallbacks),
            remedy="another preference, or fallback = 'allow'",
        )
    if policy == "warn":
        for name, text in zip(prefer, choice.fallbacks, strict=True):
            _warn_once((choice.problem.op, name, text), f"{choice.problem.op} runs on {choice.library}: {text}")


def _warn_once(key: tuple[str, ...], text: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def plan_for(problem: Problem) -> Any:
    """The Plan for a Problem under the switches that hold here; an algorithm that cannot be prepared makes room for the next."""
    if team.forked():
        _warn_once(("fork",), "this is a forked child: libraries run on one thread here (use the spawn start method for more)")
    snapshot: Any = switches.current()
    failed: set[str] = set()
    while True:
        choice = choose(problem, without=frozenset(failed))
        algorithm = choice.chosen
        assert algorithm is not None
        library = libraries.get(algorithm.library)

        def make(library: Any = library, algorithm: Any = algorithm) -> Any:
            return library.prepare(problem, algorithm)

        try:
            plan = plans.cache(library.name).get((problem, algorithm, snapshot), make)
        except RuntimeError:
            if algorithm.key in failed:
                raise
            failed.add(algorithm.key)
            continue
        plan.choice = choice
        return plan
