"""The load of the machine while something was timed, from the counters that the system keeps.

Times taken beside other programs' work say nothing about an algorithm, and those of two algorithms taken at different load say
nothing about which of them is faster. The counters are read before and after; a measurement that was disturbed is made again,
and what is kept of one that was disturbed again is marked so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...processors import read_text, usable_cpus
from . import team_speedup

__all__ = ["Quietness", "Reading", "between", "in_turn", "read", "running", "spread", "used_by_others"]

TAKEN = 0.1  # part of the processors asked for that other programs and the hypervisor may take
STOLEN = 0.05  # part of the time of all processors that the hypervisor may take
SHORT = 0.1  # seconds below which counters of 10 ms say too little
SWITCHES = 50.0  # times a second that a thread may be interrupted,
FEW = 5  # where that happened more often than this
SPREAD = 2.0  # typical median of the samples, as a multiple of the least
SHARED = 0.7  # of the most that all threads have brought, below which some are taken to share a core


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment; None for what the system does not tell.

    Attributes
    ----------
    at
        Seconds by a clock that only goes forward.
    own
        Processor seconds of this process, and of its children that have ended.
    busy, stolen
        Processor seconds, over the processors this process may use, of all programs and of the hypervisor.
    switches
        How often this thread had to leave its processor to another.
    load
        Load average of the last minute.
    polite
        The part of `busy` of programs that have made way for others by their priority (nice); 0 where this one has, too.
    speedup
        How much more the threads of the team do in a time than one does: not a counter, but measured by `team_speedup`.
    """

    at: float
    own: float
    busy: float | None = None
    stolen: float | None = None
    switches: int | None = None
    load: float | None = None
    polite: float | None = None
    speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Quietness:
    """The load of the machine during one measurement; None for what is not known.

    Attributes
    ----------
    seconds
        How long it took.
    threads, processors
        Threads that were measured, and processors this process may use.
    others
        Processors that other programs used, on average.
    stolen
        Part of the time of all processors that the hypervisor took.
    switches
        How often the measuring thread was interrupted.
    load
        Load average of the last minute, at the end.
    spread
        Typical median of the samples, as a multiple of the least; 1 where there are none.
    speedup, most
        How much more the threads did in a time than one, and the most that they have done.

    Examples
    --------
    >>> Quietness(1.0, threads=2, processors=4, others=1.9).disturbed
    ''
    >>> Quietness(1.0, threads=2, processors=2, others=1.3, spread=3.4).disturbed
    'other programs took 1.3 of 2 processors, samples spread over a factor of 3.4'
    """

    seconds: float
    threads: int
    processors: int
    others: float | None = None
    stolen: float | None = None
    switches: int | None = None
    load: float | None = None
    spread: float = 1.0
    speedup: float | None = None
    most: float = 1.0

    @property
    def crowded(self) -> bool:
        """True if the threads get much less done than they have, as where two of them share a core."""
        return self.speedup is not None and self.speedup < SHARED * self.most

    @property
    def disturbed(self) -> str:
        """Reason not to trust times taken then; empty if there is none."""
        reasons = []
        counted = self.seconds >= SHORT and self.others is not None
        if counted and self.others is not None:
            lacking = self.threads - (self.processors - self.others)
            if lacking > TAKEN * self.threads:
                reasons.append(f"other programs took {self.others:.1f} of {_processors(self.processors)}")
        # The load average counts this process too, and lags behind by a minute: it is asked where nothing better is known.
        elif self.load is not None and self.load - self.threads >= self.processors:
            reasons.append(f"the load average was {self.load:.1f} on {_processors(self.processors)}")
        if self.seconds >= SHORT and self.stolen is not None and self.stolen > STOLEN:
            reasons.append(f"the hypervisor took {100 * self.stolen:.0f} % of the time")
        if self.switches is not None and self.switches > max(FEW, SWITCHES * self.seconds):
            reasons.append(f"the measuring thread was interrupted {self.switches / self.seconds:.0f} times a second")
        if self.crowded:
            reasons.append(f"{self.threads} threads were {self.speedup:.1f} times as fast as one, not {self.most:.1f} times")
        if self.spread > SPREAD:
            reasons.append(f"samples spread over a factor of {self.spread:.1f}")
        return ", ".join(reasons)


def _processors(count: int) -> str:
    return f"{count} processor{'' if count == 1 else 's'}"


def read() -> Reading:
    """Returns the counters as they are now."""
    ended = os.times()
    busy, stolen, polite = _of_processors(read_text("/proc/stat"), usable_cpus())
    load = read_text("/proc/loadavg").partition(" ")[0]
    return Reading(
        time.perf_counter(), time.process_time() + ended.children_user + ended.children_system, busy, stolen, _switches(),
        float(load) if load else None, 0.0 if _polite() else polite,
    )  # fmt: skip


def running(samples: int = 5, apart: float = 1e-4) -> int | None:
    """Returns how many threads of the system run or wait for a processor, with the one that asks; None where it is not known.

    It is the least of some samples, so that a thread that runs for a moment does not count. Where the first shows no other
    thread, there are no more.
    """
    least = None
    for sample in range(samples):
        if sample:
            time.sleep(apart)
        fields = read_text("/proc/loadavg").split()
        count = fields[3].partition("/")[0] if len(fields) > 3 else ""
        if not count.isdigit():
            return None
        least = int(count) if least is None else min(least, int(count))
        if least <= 1:
            break
    return least


def between(before: Reading, after: Reading, threads: int, spread: float = 1.0) -> Quietness:
    """Returns how quiet it was from one reading to a later one.

    Parameters
    ----------
    before, after
        Readings of one process; `switches` of both are those of one thread.
    threads
        Threads that were measured.
    spread
        Of the samples, as `spread` gives it.

    Examples
    --------
    >>> between(Reading(0.0, 0.0, busy=10.0), Reading(2.0, 1.0, busy=13.0), 1).others
    1.0
    """
    seconds = max(after.at - before.at, 1e-9)
    processors = len(usable_cpus())
    others = stolen = switches = None
    if before.busy is not None and after.busy is not None:
        others = max(after.busy - before.busy - (after.own - before.own), 0.0) / seconds
    if before.stolen is not None and after.stolen is not None:
        stolen = max(after.stolen - before.stolen, 0.0) / seconds / processors
    if before.switches is not None and after.switches is not None:
        switches = max(after.switches - before.switches, 0)
    speedup = min((r.speedup for r in (before, after) if r.speedup is not None), default=None)
    most = 1.0 if speedup is None else team_speedup.most(threads)
    return Quietness(seconds, threads, processors, others, stolen, switches, after.load, spread, speedup, most)


def used_by_others(before: Reading, after: Reading) -> float:
    """Returns the processors that other programs of this priority used between two readings; 0 where that is not known.

    Examples
    --------
    >>> used_by_others(Reading(0.0, 0.0, busy=10.0, polite=1.0), Reading(2.0, 1.0, busy=14.0, polite=2.0))
    1.0
    """
    if before.busy is None or after.busy is None:
        return 0.0
    polite = (after.polite or 0.0) - (before.polite or 0.0)
    used = after.busy - before.busy - polite - (after.own - before.own)
    return max(used, 0.0) / max(after.at - before.at, 1e-9)


def spread(samples: Collection[Sequence[float]]) -> float:
    """Returns the median, over candidates, of what the median of its samples is of the least of them.

    >>> spread([[1.0, 1.1, 1.2], [2.0, 2.0, 9.0], [1.0, 5.0, 6.0]])
    1.1
    """
    from statistics import median  # calls read the counters, and need none of this

    found = [median(times) / min(times) for times in samples if len(times) > 1 and min(times) > 0]
    return median(found) if found else 1.0


def in_turn(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the time of each candidate as if all had been timed at one load.

    Candidates ran in turn, round by round, and some in fewer rounds than others. What each took is compared with what one of
    them took in the same round: that whose three rounds or more differ least, since one of many threads may take a thousand times
    as long beside another program. The median of these ratios counts, so that load that comes or goes between rounds changes no
    order.

    Parameters
    ----------
    rounds
        Seconds in each round, from the first on.

    Examples
    --------
    The machine gets four times as slow after the third round, when "b" is out already.

    >>> in_turn({"a": [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0], "b": [2.0, 2.0, 2.0]})
    {'a': 1.0, 'b': 2.0}
    """
    from statistics import median

    if not rounds:
        return {}
    base = max(rounds.values(), key=lambda times: (min(len(times), 3), min(times) / max(times)))
    middle = median(base)
    return {name: middle * median(t / b for t, b in zip(times, base, strict=False)) for name, times in rounds.items()}


# Reading --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _tick() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK")


def _of_processors(text: str, usable: Collection[int]) -> tuple[float | None, float | None, float | None]:
    """Seconds of all programs, of the hypervisor and of programs of lower priority from the text of /proc/stat."""
    busy = stolen = polite = None
    for line in text.splitlines():
        name, *numbers = line.split()
        if not name.startswith("cpu"):
            break  # these lines come first
        if not name[3:].isdigit() or int(name[3:]) not in usable or len(numbers) < 7:
            continue
        user, nice, system, _idle, _waiting, interrupts, soft = map(int, numbers[:7])
        busy = (busy or 0.0) + (user + nice + system + interrupts + soft) * _tick()
        stolen = (stolen or 0.0) + (int(numbers[7]) if len(numbers) > 7 else 0) * _tick()
        polite = (polite or 0.0) + nice * _tick()
    return busy, stolen, polite


def _switches() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if hasattr(resource, "RUSAGE_THREAD") else None


def _polite() -> bool:
    """Tells if this process has made way for others by its priority."""
    return hasattr(os, "getpriority") and os.getpriority(os.PRIO_PROCESS, 0) > 0
