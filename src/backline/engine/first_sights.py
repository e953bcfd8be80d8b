"""Shapes that are met for the first time, where shapes keep changing.

Some libraries compile code for a shape, and that takes longer than many calls. Where a program brings one new shape after
the other, those are passed over (`one_shape` of a `Handler`) until a shape has come so many times. For families whose Plans
have templates, `plan_templates` does that; here are the operations that have none.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

from .. import switches
from ..libraries.base import Planner
from ..problems import Problem
from . import device_leader, problem_class
from .leader import Leader, leader, threads_of
from .tuning import record_store

__all__ = ["CHANGING", "CHANGING_ON_DEVICES", "CONCERNED", "at_first_sight", "clear", "concerns", "counts_itself", "passing"]

CONCERNED = {
    "conv", "rnn", "max_pool", "avg_pool", "layer_norm_grad", "batch_norm_train_grad", "quantized.conv2d", "quantized.linear",
    "quantized.linear_dynamic",
}  # families and operations; and all that packed layers do
ON_DEVICES = {"attention"}  # the same of arrays that are on a device
CHANGING = 8  # shapes of a class from which on they are taken to keep changing: as many as templates wait for
CHANGING_ON_DEVICES = 2  # the same there, where a Plan that is compiled takes as long as hundreds on the host
MOST = 4096  # shapes that are known, of all classes: about as many as the Memo has plans for

DONE = 1 << 30  # calls of a shape that is not counted any more

_lock = Lock()
_known: OrderedDict[int, int] = OrderedDict()  # calls that came by here, by `_sight`
_shapes: dict[problem_class.ProblemClass, int] = {}


def at_first_sight(problem: Problem, snapshot: Any, planner: Planner, outgrown: bool = False) -> Leader | None:
    """The best Algorithm whose Plan is made soon, for a shape that may never come again; None where it is the best of all.

    A Plan that was made so may be `outgrown`. Those of packed layers each count their own calls, and nobody else does: many
    layers of a network are alike.
    """
    here = problem.device == "cpu"
    if not here and (problem.packed or not device_leader.waits(problem, snapshot)):
        return None
    most = CHANGING if here else CHANGING_ON_DEVICES
    calls = _count(_sight(problem, snapshot), problem_class.of(problem, snapshot), most)
    if calls >= DONE or outgrown:
        return None
    found = None
    if record_store.empty() or record_store.find(problem, threads_of(snapshot)) is None:
        found = (leader if here else device_leader.device_leader)(problem, snapshot, planner, changing=True)
    if found is not None and (0 if problem.packed else calls) < min(found.passed.values(), default=0):
        return found
    counts_itself(problem, snapshot)
    return None


def counts_itself(problem: Problem, snapshot: Any) -> None:
    """Notes that the Plan of a Problem counts its calls, or that they need not be counted."""
    sight = _sight(problem, snapshot)
    with _lock:
        if sight in _known:
            _known[sight] = DONE


def concerns(family: str, op: str, device: str) -> bool:
    """Tells whether shapes of an operation are counted."""
    among = CONCERNED if device == "cpu" else ON_DEVICES
    return family in among or op in among


def passing(problem: Problem) -> bool:
    """Tells whether the calls of a Problem are counted here: its Plan is not to be kept, as another one takes its place soon.

    On devices the Plan counts them (`EarlyPlan`), and is kept.
    """
    return problem.device == "cpu" and 0 < _known.get(_sight(problem, switches.current()), 0) < DONE


def clear() -> None:
    """Forgets every shape."""
    with _lock:
        _known.clear()
        _shapes.clear()


def _sight(problem: Problem, snapshot: Any) -> int:
    """Returns what a Problem is known by, without keeping it: two that are taken for one only count together.

    On a busy machine a call has fewer threads, so other switches, and a Plan of its own.
    """
    return hash((problem, snapshot))


def _count(sight: int, kind: problem_class.ProblemClass, most: int) -> int:
    """Counts a call; returns how many came before, `DONE` unless more than `most` shapes of its class have come."""
    with _lock:
        before = _known.pop(sight, None)
        if before is None:
            if len(_shapes) > MOST:
                _shapes.clear()
            _shapes[kind] = _shapes.get(kind, 0) + 1
            before = 0 if _shapes[kind] > most else DONE
        _known[sight] = min(before + 1, DONE)
        if len(_known) > MOST:
            _known.popitem(last=False)
        return before
