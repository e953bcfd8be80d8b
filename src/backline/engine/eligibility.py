"""Algorithms that may run a Problem: those that libraries list, less those that a rule refuses, each with its reason.

The rules are the switches of libraries and algorithms, the errata, `fp32_precision` and the digits that a family may lose,
`max_error`, and the determinism asked for. Which of the rest is chosen, the module `choose` decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from .. import libraries
from ..libraries import errata
from ..libraries.base import Algorithm, Library, Planner, Refusal, planner_for
from ..problems import Problem
from . import effective_precision, policy, precision_figures, problem_class
from .choice import Candidate
from .leader import allowed_threads, forbids

__all__ = ["NOT_LOADED", "able", "accurate", "algorithms_of", "allowed_by", "conforming", "precise"]

NOT_LOADED = "not loaded"  # begins the reason of a library that was not asked
_NONE: Mapping[str, str] = MappingProxyType({})


def allowed_by(
    problem: Problem, threads: int, snapshot: Any, planner: Planner, refused: list[Candidate] | None = None
) -> list[Algorithm]:  # fmt: skip
    """Returns every algorithm that can run a Problem and that a Snapshot allows, whatever has been measured."""
    refused = [] if refused is None else refused
    return precise(able(problem, threads, snapshot, refused, planner), problem, snapshot, refused)


def precise(could: list[Algorithm], problem: Problem, snapshot: Any, refused: list[Candidate]) -> list[Algorithm]:
    """Drops what is coarser than the switches permit, then what loses more digits than its family may."""
    kept = effective_precision.permitted(could, problem, snapshot, refused)
    return problem_class.of(problem, snapshot).precise(kept, refused)


def able(
    problem: Problem, threads: int, snapshot: Any, refused: list[Candidate], planner: Planner,
    without: Mapping[str, str] = _NONE, waiting: Collection[str] = (), told: Mapping[str, Candidate] | None = None,
) -> list[Algorithm]:  # fmt: skip
    """Lists what libraries have for a Problem and switches do not forbid; the rest goes to `refused`, with its reason.

    Parameters
    ----------
    problem, threads, snapshot
        What is asked, on how many threads, under which switches.
    refused
        Is given the refused candidates.
    planner
        Plans the steps of libraries that compose others.
    without
        Keys of algorithms that turned out not to work, and what they said.
    waiting
        Libraries that are not asked.
    told
        What switches refused, where the caller has it.
    """
    kind, found = problem_class.of(problem, snapshot), []
    off = kind.told()[0] if told is None else told
    for name in kind.names:
        if name in off:
            refused.append(off[name])
        elif name in waiting:
            refused.append(Candidate(name, "", "next", f"{NOT_LOADED}: it would come after what is chosen"))
        elif not (library := libraries.get(name)).available():
            refused.append(Candidate(name, "", "refused", f"not available: {library.reason()}"))
        elif library.concerns(type(problem), problem.op, problem.device):
            allowed = allowed_threads(library, threads, snapshot)
            found += _listed_by(library, problem, allowed, snapshot, refused, planner, without)
        elif library.handlers:
            refused.append(Candidate(name, "", "refused", f"{library.title} has no {problem.op}", lacks=True))
    return found


def _listed_by(
    library: Library, problem: Problem, threads: int, snapshot: Any, refused: list[Candidate], planner: Planner,
    without: Mapping[str, str],
) -> list[Algorithm]:  # fmt: skip
    able = []
    for found in algorithms_of(library, problem, threads, planner):
        if isinstance(found, Refusal):
            refused.append(Candidate(library.name, found.name, "refused", found.reason, found.switch, lacks=found.lacks))
            continue
        reason, switch = forbids(found, snapshot)
        if not reason:
            reason = errata.refusal(library, problem, found)
        if not reason and found.key in without:
            reason = f"failed when it was prepared: {without[found.key]}"
        if reason:
            refused.append(Candidate(library.name, found.name, "refused", reason, switch))
        else:
            able.append(found)
    return able


def algorithms_of(library: Library, problem: Problem, threads: int, planner: Planner) -> Iterator[Algorithm | Refusal]:
    """Yields what a library has for a Problem; one that fails to tell is refused."""
    try:
        yield from library.algorithms(problem, threads, *planner_for(library, planner))
    except Exception as error:  # a plug-in's mistake must not take the other libraries away
        yield Refusal(library.name, "", f"{type(library).__name__}.algorithms raised {type(error).__name__}: {error}")


def accurate(
    able: list[Algorithm], problem: Problem, record: Any, snapshot: Any, refused: list[Candidate], estimated: bool = True
) -> list[Algorithm]:
    """Drops what is less accurate than `max_error` allows: by the record, else if `estimated` by the shipped figures."""
    allowed = snapshot["max_error"]
    rejected = record.rejected if record is not None else {}
    if math.isinf(allowed) and not rejected:
        return able
    kept = []
    for a in able:
        error, origin = record.error(a.key) if record is not None else None, "measured error"
        if a.key in rejected:
            refused.append(Candidate(a.library, a.name, "refused", rejected[a.key], error=error))
            continue
        if error is None and estimated and not math.isinf(allowed):
            error, origin = precision_figures.estimate(problem, a), "error by the shipped figures"
        if error is not None and error > allowed:
            reason = f"{origin} {error:.1e} is above max_error = {allowed:.1e}"
            refused.append(Candidate(a.library, a.name, "refused", reason, "max_error", error=error))
        else:
            kept.append(a)
    return kept


def conforming(able: list[Algorithm], problem: Problem, level: str, snapshot: Any, refused: list[Candidate]) -> list[Algorithm]:
    """Drops what does not repeat its results as the determinism level asks."""
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
