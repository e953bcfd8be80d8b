"""The peaks of this machine: the most floating-point operations and bytes a second that were measured on it.

They are measured once, in about two seconds, and kept as tuning records beside those of calibration: the rate of a large product
on the fastest library for each type of number, and that of copying arrays which no cache holds, on all threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from .. import switches
from ..errors import BacklineError
from ..libraries.base import Algorithm
from ..native import machine
from ..problems import Problem, short
from . import ranking
from .choose import eligible, prepared
from .effective_precision import FINENESS
from .tuning import machine_load, record_store, sample_operands, team_speedup
from .tuning.record import TuningRecord
from .tuning.stamp import stamped_key

__all__ = ["Peaks", "known", "measure", "unit_of"]

UNITS = ("f64", "f32", "bf16", "f16")
SMALL, LARGE = 256, 1024  # sizes of the products: the large one where it does not take long
LONG = 0.15  # seconds that a large product may take
SECONDS = 0.25  # for each unit, after which no other algorithm is tried
EACH = 0.04  # seconds for each algorithm
CANDIDATES = 4
COPIED = 128 << 20  # bytes of the arrays that are copied, at most
FEWEST, REPEATS = 3, 5  # products of an algorithm, and copies
COPY = "numpy.copy@n"


@dataclass(frozen=True, slots=True)
class Peaks:
    """Measured peaks.

    Attributes
    ----------
    gflops
        10^9 floating-point operations a second, by type of number: "f64", "f32", "bf16", "f16". Complex numbers count as the
        real ones that they are made of.
    gigabytes
        10^9 bytes read and written a second; None if it was not measured.
    by
        The algorithm of each.
    threads
        Threads that were allowed; 0 if nothing was measured.
    created
        When, in UTC.
    disturbed
        What else kept the machine busy meanwhile.
    """

    gflops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    gigabytes: float | None = None
    by: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    threads: int = 0
    created: str = ""
    disturbed: str = ""

    def __bool__(self) -> bool:
        return bool(self.gflops)

    def as_dict(self) -> dict[str, Any]:
        """Returns the peaks as JSON takes them; None where nothing was measured."""
        return {
            "gflops": dict(self.gflops) or None, "gigabytes": self.gigabytes, "by": dict(self.by), "threads": self.threads,
            "created": self.created, "disturbed": self.disturbed,
        }  # fmt: skip


def unit_of(dtype: np.dtype[Any], effective: str = "") -> str:
    """Returns the type of number whose peak counts for a dtype, where float32 may be computed in less.

    >>> unit_of(np.dtype(np.complex64)), unit_of(np.dtype(np.float32), "bf16"), unit_of(np.dtype(np.int8))
    ('f32', 'bf16', 'i8')
    """
    if effective == "bf16":
        return "bf16"
    return {"c64": "f32", "c128": "f64"}.get(short(dtype), short(dtype))


def _key(unit: str) -> str:
    return f"peak {unit} of 1e9"


_read: tuple[int, Peaks] | None = None


def known() -> Peaks:
    """Returns the peaks that are kept for this machine, those on the most threads; empty if they were not measured."""
    global _read
    now = record_store.generation()
    if _read is None or _read[0] != now:
        _read = now, _of_records([r for r in record_store.every() if r.key.startswith("peak ")])
    return _read[1]


def _of_records(records: list[TuningRecord]) -> Peaks:
    most = max((r.threads for r in records), default=0)
    gflops, by, gigabytes = {}, {}, None
    chosen = [r for r in records if r.threads == most and r.minima]
    for record in chosen:
        unit = record.key.split()[1]
        best = min(record.minima, key=record.minima.__getitem__)
        if best == COPY:
            gigabytes = 1 / record.minima[best]
        else:
            gflops[unit] = 1 / record.minima[best]
        by[unit] = best
    created = max((r.created for r in chosen), default="")
    return Peaks(gflops, gigabytes, by, most, created, next((r.disturbed for r in chosen if r.disturbed), ""))


def measure(step: Callable[[str], None] = lambda text: None, *, again: bool = False) -> Peaks:
    """Measures the peaks on all threads, and keeps them; those that are known and were measured on a quiet machine stay.

    Parameters
    ----------
    step
        Told that measuring begins.
    again
        Measure them anew.

    Returns
    -------
    Peaks
    """
    threads: Any = switches.get("num_threads")
    found = known()
    if found and found.threads == threads and not found.disturbed and not again:
        return found
    step("the machine's peak")
    # Libraries that a program is not to use have a part in what the machine can do, and so have algorithms of any determinism.
    with switches.scope({"only": (), "deterministic": False}):
        before = replace(machine_load.read(), speedup=team_speedup.measured(threads))
        times = {unit: _products(unit, threads) for unit in UNITS}
        times["copy"] = {COPY: _copies(threads)}
        # Threads of one measurement interrupt each other.
        after = replace(machine_load.read(), switches=None, speedup=team_speedup.measured(threads))
        disturbed = machine_load.between(before, after, threads).disturbed
    records = [
        stamped_key(
            _key(unit), threads, {key.partition(".")[0] for key in each}, medians=each, minima=each,
            runs=dict.fromkeys(each, FEWEST), disturbed=disturbed,
        )
        for unit, each in times.items()
        if each
    ]  # fmt: skip
    record_store.keep_all(records, choices=False)
    return known()


def _products(unit: str, threads: int) -> dict[str, float]:
    """Returns seconds for 10^9 operations by algorithm: the least of some products."""
    found: dict[str, float] = {}
    end = math.inf
    for size in (SMALL, LARGE):
        problem = Problem.parse(f"matmul {unit} {size}x{size} {size}x{size}")
        able = [a for a in eligible(problem, threads) if FINENESS.get(a.precision, 2) == 2 or a.precision == unit]
        end = min(end, time.perf_counter() + SECONDS)  # libraries are loaded by now
        for algorithm in ranking.sort(problem, able)[:CANDIDATES]:
            if (found and time.perf_counter() > end) or found.get(algorithm.key, 0.0) * problem.flops * 1e-9 > LONG:
                continue
            seconds = _least(problem, algorithm)
            if seconds is not None:
                rate = seconds / problem.flops * 1e9
                found[algorithm.key] = min(rate, found.get(algorithm.key, rate))
    return found


def _least(problem: Problem, algorithm: Algorithm) -> float | None:
    """Returns the least time of a product; None where the library fails."""
    arrays = sample_operands.arrays_for(problem, 0)
    least = None
    try:
        plan = prepared(problem, algorithm, switches.current())
        end = time.perf_counter() + EACH
        number = 0
        while number < FEWEST or time.perf_counter() < end:
            begin = time.perf_counter()
            plan(*arrays)
            spent = time.perf_counter() - begin
            number, least = number + 1, min(least or spent, spent)
    except (BacklineError, MemoryError, RuntimeError):
        return None
    return least


def _copies(threads: int) -> float:
    """Returns seconds for 10^9 bytes, read and written: copies by as many threads of Python, which NumPy does not hold up."""
    here = machine.machine()
    size = min(COPIED, max(4 * (here.l3 or 0), 64 << 20), (here.memory or COPIED) // 16) // 8 // threads * threads
    source, target = np.ones(size), np.empty(size)
    parts = [slice(i * size // threads, (i + 1) * size // threads) for i in range(threads)]

    def copy(part: slice) -> None:
        target[part] = source[part]

    least = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(REPEATS):
            begin = time.perf_counter()
            list(pool.map(copy, parts))
            least = min(least, time.perf_counter() - begin)
    return least / (16 * size) * 1e9
