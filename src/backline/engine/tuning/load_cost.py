"""The libraries that are worth loading for a script: one must save more time than it takes to load."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from .record import TuningRecord

__all__ = ["not_worth_loading"]


def not_worth_loading(
    measured: Sequence[tuple[TuningRecord, int]], loading: Mapping[str, float], needed: Collection[str]
) -> dict[str, str]:
    """The libraries that cost a script more than they save it, each with the figures.

    Parameters
    ----------
    measured
        Records of the script's Problems, and how often it solves each. Of a Problem that was timed on a busy machine, a library
        is taken to save all of the time that the others need.
    loading
        Seconds it takes to load each library; those that are not in it are there anyway.
    needed
        Libraries that will be loaded whatever the records say.

    Examples
    --------
    >>> record = TuningRecord("matmul f32 8x8 8x8", 1, medians={"numpy.matmul@1": 3e-3, "mkl.gemm@1": 1e-3})
    >>> not_worth_loading([(record, 4)], {"mkl": 0.02}, ())
    {'mkl': 'takes 20 ms to load, and saves the script 8 ms'}
    >>> not_worth_loading([(record, 40)], {"mkl": 0.02}, ())
    {}
    """
    used = set(loading)
    found: dict[str, str] = {}
    doubtful = any(record.disturbed for record, _ in measured)
    while True:
        saved = {name: _saved(measured, name, used, loading) for name in sorted(used.difference(needed))}
        worst = min(saved, key=lambda name: saved[name] - loading[name], default="")
        if not worst or saved[worst] >= loading[worst]:
            return found
        used.discard(worst)
        most = "at most " if doubtful else ""
        found[worst] = f"takes {loading[worst] * 1e3:.0f} ms to load, and saves the script {most}{saved[worst] * 1e3:.0f} ms"


def _saved(measured: Sequence[tuple[TuningRecord, int]], name: str, used: Collection[str], loading: Mapping[str, float]) -> float:
    """Seconds that a library saves a script beside the others in `used`, its loading not counted.

    By the times of a busy machine it may seem to save nothing: of those, it is taken to save all that the others need.
    """
    total = 0.0
    for record, count in measured:
        times = {key: seconds for key, seconds in record.medians.items() if key not in record.rejected}
        own = [seconds for key, seconds in times.items() if key.partition(".")[0] == name]
        if own:
            there = {key.partition(".")[0] for key in times} - (loading.keys() - used) - {name}
            without = min((seconds for key, seconds in times.items() if key.partition(".")[0] in there), default=math.inf)
            total += count * (without if record.disturbed else max(without - min(own), 0.0))
    return total
