"""The Algorithm that comes first for a Problem on a device, found without a reason for each of the others.

No ranking is shipped for devices, so the order there is that of the libraries, and of what each of them lists. Every library is
asked for every Problem, for what it lists and refuses depends on the shape, and so do errata; but a verdict on each of its
algorithms is only found where somebody reads the Choice. A program whose shapes keep changing pays for the choice each time.
"""

from __future__ import annotations

from typing import Any

from .. import libraries
from ..libraries import errata, overrides
from ..libraries.base import BORROWED, Algorithm, Planner, Refusal, planner_for
from ..problems import Problem
from . import policy, problem_class, ranking
from .leader import Leader, allowed_threads, forbids, threads_of

__all__ = ["device_leader"]


def device_leader(problem: Problem, snapshot: Any, planner: Planner) -> Leader | None:
    """The Algorithm that `choose` takes for a Problem on a device; None where more than the order of the libraries decides."""
    kind = problem_class.of(problem, snapshot)
    device = problem.device.partition(":")[0]
    if not kind.listed or problem.packed or overrides.registered(problem.op, overrides.KEYS.get(device, "")):
        return None
    threads, large = threads_of(snapshot), problem.flops >= ranking.LARGE
    chosen: Algorithm | None = None
    best: tuple[Any, ...] = ()
    for name in kind.allowed:
        library = libraries.get(name)
        if not library.available() or not library.concerns(type(problem), problem.op, problem.device):
            continue
        try:
            for found in library.algorithms(problem, allowed_threads(library, threads, snapshot), *planner_for(library, planner)):
                if isinstance(found, Refusal):
                    continue
                place = (policy.priority(found, snapshot), BORROWED in found.traits, ranking.place(found, (), large))
                # Of two at one place, the one that was listed first.
                if (chosen is not None and place >= best) or not kind.conforms(found) or forbids(found, snapshot)[0]:
                    continue
                if not errata.refusal(library, problem, found):
                    chosen, best = found, place
        except Exception:  # which `algorithms_of` makes a refusal of
            return None
    return None if chosen is None else Leader(chosen, kind, threads)
