"""The library of each routine, and the size from which on it is exchanged, by what was measured on this machine.

One library takes the place of the packages' own for most routines, because two pools of threads that alternate wait for each
other; the packages' own then has one thread. That is part of the comparison: it is made with the times of the calls that were
recorded, all together, and nothing is exchanged unless that saves 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from ... import switches
from ...engine.tuning import record_store
from ...engine.tuning.record import TuningRecord
from ...errors import BacklineError
from . import choices, exchange_state, layouts, loaded_objects, signatures, targets
from .choices import ORIGINAL, Choice
from .loaded_objects import Module
from .routines import Symbol

__all__ = ["Sample", "Tuned", "TunedRoutine", "choose", "homes", "layer", "records", "samples", "tuned"]

PREFIX = "exchanged "
COMPLETE = ("dgesv", "dgesdd", "dgemm")  # what a library must have that takes the place of the packages' own


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured times of one call, by library.

    Attributes
    ----------
    routine : str
        Its name.
    work : int
        Product of its sizes, rounded down to a power of two: they stand for their class.
    calls : int
        How often it was called.
    stock, stock_on_one : float
        Seconds of the package's own library on all threads, and on one.
    others : mapping
        Seconds of other libraries that may be used.
    unusable : frozenset of str
        Libraries that failed, or that proved slower in a program.
    """

    routine: str
    work: int
    calls: int
    stock: float
    stock_on_one: float
    others: Mapping[str, float]
    unusable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TunedRoutine:
    """The library of a routine.

    Attributes
    ----------
    routine, library : str
        "numpy" is what NumPy and SciPy brought along.
    threshold : int
        The product of sizes from which on that library runs it.
    stock, tuned : float
        Seconds of all recorded calls: before, and as they are expected to be.
    """

    routine: str
    library: str
    threshold: int
    stock: float
    tuned: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """All routines; `home` is the library that takes the place of the packages' own, "" where nothing is exchanged."""

    home: str
    routines: tuple[TunedRoutine, ...]

    @property
    def choice(self) -> Choice | None:
        """The choice for an exchange; None where nothing is exchanged."""
        if not self.home:
            return None
        # As patterns: a package for which the library has no such routine keeps its own, and that is no error.
        rows = [(f"[{r.routine[0]}]{r.routine[1:]}", r.library) for r in self.routines]
        small = tuple((r.routine, r.threshold) for r in self.routines if r.library != ORIGINAL)
        return Choice((*rows, ("*", self.home)), small, title="tuned")


def records() -> list[TuningRecord]:
    """Returns the tuning records of exchanged routines that hold for this machine and number of threads."""
    threads = targets.threads()
    held = (record_store.find_key(r.key, r.threads) for r in record_store.every() if r.key.startswith(PREFIX))
    return [r for r in held if r is not None and r.threads == threads]


def samples(found: Iterable[TuningRecord]) -> list[Sample]:
    """Returns what records say, without those that this version cannot read."""
    return [sample for record in found if (sample := _sample(record)) is not None]


def _sample(record: TuningRecord) -> Sample | None:
    package, _, rest = record.key.removeprefix(PREFIX).partition(".")
    routine, *words = rest.split()
    named = dict(word.partition("=")[::2] for word in words if "=" in word)
    work = 1
    for name in signatures.work_names(routine):
        if not named.get(name, "").isdecimal():
            return None
        work *= int(named[name])
    # Of a class of sizes one was measured, and the others of the class go with it.
    work = 1 << max(work.bit_length() - 1, 0)
    times = {key.partition(".")[0]: seconds for key, seconds in record.medians.items()}
    stock = record.medians.get(f"{package}.{routine}@n")
    if stock is None:
        return None
    on_one = record.medians.get(f"{package}.{routine}@1", stock)
    margin = record_store.BUSY_MARGIN / record_store.MARGIN if record.disturbed else 1.0
    others = {name: seconds / margin for name, seconds in times.items() if name != package}
    most = cast(float, switches.get("max_error"))
    inexact = [key for key, error in record.errors.items() if error > most]
    unusable = frozenset(key.partition(".")[0] for key in [*record.rejected, *inexact])
    return Sample(routine, work, max(record.calls, 1), stock, on_one, others, unusable)


def choose(found: Iterable[Sample], homes: Iterable[str]) -> Tuned:
    """Returns the choice that is expected to take the least time for all recorded calls.

    Parameters
    ----------
    found : iterable of Sample
        What was measured.
    homes : iterable of str
        Libraries that may take the place of the packages' own.

    Examples
    --------
    >>> one = Sample("dgemm", 8**3, 10, 1e-6, 1e-6, {"mkl": 2e-6})
    >>> two = Sample("dgemm", 512**3, 10, 4e-3, 8e-3, {"mkl": 2e-3})
    >>> [(r.routine, r.library, r.threshold) for r in choose([one, two], ["mkl"]).routines]
    [('dgemm', 'mkl', 134217728)]
    >>> choose([one], ["mkl"]).home
    ''
    """
    by_routine: dict[str, list[Sample]] = {}
    for sample in sorted(found, key=lambda s: s.work):
        by_routine.setdefault(sample.routine, []).append(sample)
    stock = {name: sum(s.calls * s.stock for s in group) for name, group in by_routine.items()}
    best = Tuned("", tuple(TunedRoutine(name, ORIGINAL, 0, seconds, seconds) for name, seconds in stock.items()))
    least = record_store.MARGIN * sum(stock.values())
    for home in homes:
        rows = tuple(_routine(name, group, home) for name, group in by_routine.items())
        total = sum(row.tuned for row in rows)
        if total < least and any(row.library != ORIGINAL for row in rows):
            best, least = Tuned(home, rows), total
    return replace(best, routines=tuple(sorted(best.routines, key=lambda r: -r.stock)))


def _routine(name: str, group: list[Sample], home: str) -> TunedRoutine:
    """Returns the best library and threshold of one routine beside a library that has the place of the packages' own."""
    unusable = frozenset[str]().union(*(s.unusable for s in group))
    classes = sorted({s.work for s in group})  # a threshold does not tell calls of one class apart
    own = _seconds_by_class(group, lambda s: s.stock_on_one)
    best = TunedRoutine(name, ORIGINAL, 0, sum(s.calls * s.stock for s in group), sum(own.values()))
    for library in sorted({library for s in group for library in s.others} - unusable, key=lambda other: other != home):
        factor = 1.0 if library == home else record_store.SECOND_POOL
        other = _seconds_by_class(group, partial(_elsewhere, library=library, factor=factor))
        for first, work in enumerate(classes):
            moved = sum(other[w] for w in classes[first:])
            total = sum(own[w] for w in classes[:first]) + moved
            kept = sum(own[w] for w in classes[first:])
            # Both the smallest class and all together have to gain.
            if other[work] < record_store.MARGIN * own[work] and moved < record_store.MARGIN * kept and total < best.tuned:
                best = replace(best, library=library, threshold=work if work > 1 else 0, tuned=total)
    return best


def _elsewhere(sample: Sample, library: str, factor: float) -> float:
    """Seconds of one call in a library; a package for which it has no such routine keeps its own."""
    return factor * sample.others[library] if library in sample.others else sample.stock_on_one


def _seconds_by_class(group: Iterable[Sample], seconds: Callable[[Sample], float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for sample in group:
        found[sample.work] = found.get(sample.work, 0.0) + sample.calls * seconds(sample)
    return found


def homes(names: Iterable[str] = targets.NAMES) -> list[str]:
    """Returns the libraries that have what programs need of BLAS and LAPACK, for every package that is imported."""
    modules = loaded_objects.modules()
    needed: dict[tuple[str, Symbol], Module] = {}
    for module in modules:
        for slot in module.slots:
            if slot.symbol.routine in COMPLETE and slot.function:
                needed.setdefault((module.package, slot.symbol), replace(module, slots=(slot,)))
    found = []
    for name in names:
        try:
            decided = choices.decide(Choice((("*", name),)), tuple(needed.values()))
        except BacklineError:
            continue
        if all(d.address for d in decided):
            found.append(name)
    return found


def tuned() -> Tuned:
    """Returns what the tuning records of this machine say now."""
    layouts.require_system()
    return choose(samples(records()), homes())


def layer() -> exchange_state.Layer | None:
    """Returns the exchange that the tuning records of this machine ask for; None where they ask for none."""
    choice = tuned().choice
    return None if choice is None else exchange_state.Layer(choice, one_pool=True)
