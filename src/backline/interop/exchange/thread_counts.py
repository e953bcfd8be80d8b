"""The thread counts of the libraries that NumPy's and SciPy's calls were exchanged for.

They follow Backline's number of threads of the process, and threadpoolctl's limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ...native import thread_team
from ...switches.scope_state import on_base
from . import targets

__all__ = ["hold", "set_threads", "threads"]

_in_place: dict[str, tuple[targets.Target, int]] = {}  # libraries in NumPy's place, and the thread counts they had before


def hold(names: Iterable[str]) -> None:
    """Gives these libraries Backline's number of threads, and those that are not named any more what they had."""
    names = set(names)
    for name in [name for name in _in_place if name not in names]:
        target, former = _in_place.pop(name)
        target.set_threads(former)
    for name in names - set(_in_place):
        target = targets.load(name)
        _in_place[name] = target, target.get_threads() if target.get_threads else targets.threads()
    set_threads(targets.threads())


def threads() -> int:
    """Threads that the libraries in NumPy's place may use; 0 where there is none."""
    counts = [target.get_threads() if target.get_threads else targets.threads() for target, _ in _in_place.values()]
    return max(counts, default=0)


def set_threads(count: int) -> None:
    """Sets the thread count of the libraries in NumPy's place."""
    for target, _ in _in_place.values():
        target.set_threads(count)


def _base_changed(snapshot: Any) -> None:
    if _in_place:
        set_threads(1 if thread_team.forked() else snapshot["num_threads"])


on_base.append(_base_changed)


def _forked() -> None:
    for target, _ in _in_place.values():
        if target.openmp:  # its team is a list of threads that do not exist here
            target.set_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
