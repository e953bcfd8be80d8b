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

__all__ = ["UNFUSED_FLOPS", "device_leader", "waits"]

# Operations of the largest attention that products and a softmax may run in the place of a kernel: their intermediate results
# have an element for each query and key. With heads of 64 these are 40 million.
UNFUSED_FLOPS = 1e10


def device_leader(problem: Problem, snapshot: Any, planner: Planner, changing: bool = False) -> Leader | None:
    """The Algorithm that `choose` takes for a Problem on a device; None where more than the order of the libraries decides.

    Where shapes keep `changing`, those are passed over whose plans are for one, if another library has anything; unless calls are
    to give the same bits again.
    """
    kind = problem_class.of(problem, snapshot)
    device = problem.device.partition(":")[0]
    if not kind.listed or problem.packed or overrides.registered(problem.op, overrides.KEYS.get(device, "")):
        return None
    threads, large = threads_of(snapshot), problem.flops >= ranking.LARGE
    changing = changing and not kind.repeats
    # By whether it is to be passed over: place and Algorithm. Of two at one place, the one that was listed first.
    best: dict[bool, tuple[tuple[Any, ...], Algorithm]] = {}
    for i, name in enumerate(kind.allowed):
        library = libraries.get(name)
        if not library.available() or not library.concerns(type(problem), problem.op, problem.device):
            continue
        try:
            late = changing and _waits(name, problem)
            for found in library.algorithms(problem, allowed_threads(library, threads, snapshot), *planner_for(library, planner)):
                if isinstance(found, Refusal):
                    continue
                place = (policy.priority(found, snapshot), BORROWED in found.traits, ranking.place(found, (), large), i)
                if (late in best and place >= best[late][0]) or not kind.conforms(found) or forbids(found, snapshot)[0]:
                    continue
                if not errata.refusal(library, problem, found):
                    best[late] = place, found
        except Exception:  # which `algorithms_of` makes a refusal of
            return None
    if not best:
        return None
    first, chosen = min(best.values(), key=lambda each: each[0])
    if len(best) < 2 or first == best[False][0]:
        return Leader(chosen, kind, threads)
    early = best[False][1]
    if "math" in early.traits and problem.flops > UNFUSED_FLOPS:
        return Leader(chosen, kind, threads)
    return Leader(early, kind, threads, {chosen.library: _calls(chosen.library, problem)})


def waits(problem: Problem, snapshot: Any) -> bool:
    """Tells whether any library on a device is passed over for a Problem where shapes keep changing."""
    return any(_waits(name, problem) for name in problem_class.of(problem, snapshot).allowed)


def _waits(name: str, problem: Problem) -> bool:
    handler = libraries.get(name).handlers.get(type(problem))
    return handler is not None and handler.waits(problem)


def _calls(name: str, problem: Problem) -> int:
    return libraries.get(name).handlers[type(problem)].calls(problem)
