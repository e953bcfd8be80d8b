"""How much more the threads of the team do in a time than one does alone: now, and when that was the most.

Virtual processors are no cores. A hypervisor may let two of them share one core for seconds, and nothing that the system counts
tells so. Two threads then get no more done than one, so times on one and on all threads compare otherwise than they usually do.
"""

from __future__ import annotations

from ... import _core
from ...native import thread_team
from ...processors import usable_cpus

__all__ = ["available", "measured", "most"]

_last: dict[int, float] = {}  # by the number of threads
_most: dict[int, float] = {}


def available(threads: int) -> bool:
    """Tells whether there is a team of so many threads, and a processor for each of them."""
    return 1 < threads <= len(usable_cpus()) and not thread_team.forked() and bool(thread_team.name())


def measured(threads: int) -> float | None:
    """Returns the speed of so many threads together over that of one, which takes 0.2 ms; None where they are not available."""
    if not available(threads):
        return None
    try:
        found = _core.team_speedup(threads)
    except RuntimeError:  # the system does not let this process have so many threads
        return None
    # One reading may be too high: two in a row count.
    _most[threads] = max(most(threads), min(found, _last.get(threads, 1.0), float(threads)))
    _last[threads] = found
    return found


def most(threads: int) -> float:
    """Returns the most that `measured` has found of so many threads, twice in a row, in this process; 1 where it has not."""
    return _most.get(threads, 1.0)
