"""The Problems that are learned while running: what a choice looks up. What they are, `learned_records` says."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ...problems import Problem

__all__ = ["find", "table"]

table: OrderedDict[tuple[Problem, int, Any], Any] = OrderedDict()


def find(problem: Problem, threads: int, snapshot: Any) -> Any:
    """Returns the Learner of a Problem on so many threads under a Snapshot; None if there is none."""
    known = table.get((problem, threads, snapshot))
    return None if known is None else known.learner
