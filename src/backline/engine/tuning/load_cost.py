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
        Records of the script's Problems, and how often it solves each.
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
    while True:
        now = _seconds(measured, used, loading)
        saved = {name: _seconds(measured, used - {name}, loading) - now for name in sorted(used.difference(needed))}
        worst = min(saved, key=lambda name: saved[name] - loading[name], default="")
        if not worst or saved[worst] >= loading[worst]:
            return found
        used.discard(worst)
        found[worst] = f"takes {loading[worst] * 1e3:.0f} ms to load, and saves the script {saved[worst] * 1e3:.0f} ms"


def _seconds(measured: Sequence[tuple[TuningRecord, int]], used: Collection[str], loading: Mapping[str, float]) -> float:
    """Seconds the script's operations take if only the libraries in `used` are loaded, without their loading."""
    total = 0.0
    for record, count in measured:
        if not record.medians:
            continue
        times = [
            seconds
            for key, seconds in record.medians.items()
            if key not in record.rejected and ((name := key.partition(".")[0]) in used or name not in loading)
        ]
        total += count * min(times, default=math.inf)
    return total
