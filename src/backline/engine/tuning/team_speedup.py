"""How much more the threads of the team do in a time than one does alone: now, and when that was the most.

Virtual processors are no cores. A hypervisor may let two of them share one core for seconds, and nothing that the system counts
tells so. Two threads then get no more done than one, so times on one and on all threads compare otherwise than they usually do.
"""

from __future__ import annotations

from ... import _core
from ...native import thread_team

__all__ = ["measured", "most"]

_most: dict[int, float] = {}  # by the number of threads


def measured(threads: int) -> float | None:
    """Returns the speed of so many threads together over that of one, measured in 0.2 ms; None where there is no team of them."""
    if threads < 2 or thread_team.forked() or not thread_team.name():
        return None
    found = _core.team_speedup(threads)
    _most[threads] = max(min(found, float(threads)), most(threads))
    return found


def most(threads: int) -> float:
    """Returns the most that `measured` has found of so many threads in this process; 1 where it has not."""
    return _most.get(threads, 1.0)
