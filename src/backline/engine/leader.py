"""The Algorithm that the shipped ranking puts first for a Problem, where it alone decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from .. import libraries
from ..libraries import capability, errata, overrides
from ..libraries.base import ANY_SHAPE, BORROWED, COMPILED_AFTER, ONE_SHAPE, Algorithm, Library, Planner, Refusal, planner_for
from ..native import thread_team
from ..problems import Problem, short
from . import policy, problem_class, ranking
from .tuning import learned

__all__ = ["Leader", "allowed_threads", "forbids", "leader", "threads_of"]


class Leader(NamedTuple):
    """The Algorithm that the ranking puts first, the class of its Problem, the threads allowed, and what was passed over.

    `passed` has the calls of one shape from which on each is worth its time, by the key of an algorithm or by a library.
    """

    algorithm: Algorithm
    kind: problem_class.ProblemClass
    threads: int
    passed: Mapping[str, int] = MappingProxyType({})


def threads_of(snapshot: Any) -> int:
    """The threads that a call may use."""
    return 1 if thread_team.forked() else int(snapshot["num_threads"])


def leader(problem: Problem, snapshot: Any, planner: Planner, changing: bool = False) -> Leader | None:
    """The Algorithm that the shipped ranking puts first where it alone decides and there is no tuning record; else None.

    Libraries are asked in the order of the least place that any of their algorithms may have, until what was found comes before
    that: the same Algorithm is chosen as if all of them had been asked, and the others are asked when somebody wants to know.
    Where shapes keep `changing`, those are passed over whose plans are for one; unless calls are to give the same bits again.
    """
    kind = problem_class.find(problem.family, problem.op, problem.dtype, problem.device, snapshot)
    if not kind.ranked or overrides.registered(problem.op, overrides.KEYS["cpu"]):
        return None
    threads = threads_of(snapshot)
    if kind.learns and (changing or learned.find(problem, threads, snapshot) is not None):
        return None
    changing = changing and not kind.repeats
    packs = ranking.packs(problem) if problem.packed or problem.family == "quantized" else ""
    keys, large = ranking.order_of(problem), problem.flops >= ranking.LARGE
    chosen, best, dtype = None, None, short(problem.dtype)
    passed: dict[str, int] = {}
    listed: Iterable[Algorithm | Refusal]
    for least, name in kind.order(keys, (packs, ranking.leader(problem, keys))):
        bound = (0, *least)  # before the place stands what switches say of attention kernels: which is tried first
        if best is not None and best < bound:
            break
        library = libraries.get(name)
        if not library.concerns(type(problem), problem.op, problem.device) or not library.available():
            continue
        try:
            handler = library.handlers.get(type(problem))
            many = allowed_threads(library, threads, snapshot)
            if changing and handler is not None and handler.waits(problem):
                listed = list(handler.soon(library.context(planner), problem, many)) if handler.soon is not None else []
                if handler.soon is None or listed:
                    passed[name] = handler.calls(problem)
            else:
                listed = library.algorithms(problem, many, *planner_for(library, planner))
            for found in listed:
                if isinstance(found, Refusal) or not kind.conforms(found) or forbids(found, snapshot)[0]:
                    continue
                if errata.concerning(library, problem.op, dtype, found.name) and errata.refusal(library, problem, found):
                    continue
                first = policy.priority(found, snapshot) if found.traits else 0
                if first < 0:
                    return None
                if changing and ONE_SHAPE in found.traits:
                    passed[found.key] = COMPILED_AFTER
                    continue
                place = (first, BORROWED in found.traits, *ranking.place(found, keys, large, packs), bound[-1])
                if best is None or place < best:
                    chosen, best = found, place
                    if place[:3] <= bound[:3] and place[2] < len(keys):
                        break  # it has nothing that comes before
        except Exception:  # which `algorithms_of` makes a refusal of
            return None
    if chosen is not None and ANY_SHAPE in chosen.traits:
        passed.pop(chosen.library, None)  # its library has nothing better for later calls
    return None if chosen is None else Leader(chosen, kind, threads, passed)


def allowed_threads(library: Library, threads: int, snapshot: Any) -> int:
    """The threads that a library may use of those."""
    return 1 if library.openmp and not snapshot["openmp.enabled"] else threads


def forbids(found: Algorithm, snapshot: Any) -> tuple[str, str]:
    """Returns the reason that a switch forbids an algorithm, and the switch; two empty strings if none does."""
    reason, switch = policy.forbids(found, snapshot)
    if not reason and found.isa and not capability.allows(found.isa):
        reason, switch = f"needs {found.isa}, and the processor has, or may use, {capability.effective()}", "cpu.capability"
    return reason, switch
