"""Shapes that are met for the first time, where shapes keep changing.

Some libraries compile code for a shape, and that takes longer than many calls. Where a program brings one new shape after
the other, those are passed over (`one_shape` of a `Handler`) until a shape has come so many times. For families whose Plans
have templates, `plan_templates` does that.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

from ..libraries.base import Planner
from ..problems import Problem
from . import problem_class
from .leader import Leader, leader, threads_of
from .tuning import record_store

__all__ = ["CHANGING", "FAMILIES", "at_first_sight", "concern"]

FAMILIES = ("conv",)  # on CPUs
CHANGING = 8  # shapes of a class from which on they are taken to keep changing: as many as templates wait for
MOST = 4096  # shapes that are known, of all classes: about as many as the Memo has plans for

_lock = Lock()
_known: OrderedDict[Problem, None] = OrderedDict()
_shapes: dict[problem_class.ProblemClass, int] = {}


def concern(problem: Problem) -> bool:
    """Tells whether there is anything here to ask about a Problem."""
    return problem.device == "cpu" and problem.family in FAMILIES


def at_first_sight(problem: Problem, snapshot: Any, planner: Planner) -> Leader | None:
    """The best Algorithm whose Plan is made soon, for a shape that may never come again; None where it is the best of all."""
    if problem.packed or not _is_new(problem, problem_class.of(problem, snapshot)):
        return None
    if not record_store.empty() and record_store.find(problem, threads_of(snapshot)) is not None:
        return None
    found = leader(problem, snapshot, planner, changing=True)
    return found if found is not None and found.passed else None


def _is_new(problem: Problem, kind: problem_class.ProblemClass) -> bool:
    """Tells whether a Problem is met for the first time, after so many others of its class that one more may follow."""
    with _lock:
        if problem in _known:
            _known.move_to_end(problem)
            return False
        _known[problem] = None
        if len(_known) > MOST:
            _known.popitem(last=False)
        if len(_shapes) > MOST:
            _shapes.clear()
        _shapes[kind] = _shapes.get(kind, 0) + 1
        return _shapes[kind] > CHANGING
