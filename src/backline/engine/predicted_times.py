"""Predicted times of algorithms for a Problem, from measured times of other shapes.

There are several sources: this machine, the ranking of its class of processors, those of other classes. A source is brought to
the scale of the nearer ones by the ratios of what both measured. What this machine measured of a Problem stands in the place of
what the ranking of its class has of it, and the rest of that ranking counts as much as it does. So a class without a ranking,
one whose ranking has nothing near a Problem, and a machine that was calibrated for a minute are one case. What counts of a
measurement is how much longer each algorithm took than the fastest beside it; it counts the more the nearer its sizes are. The
order of algorithms is all that is asked for: `benchmarks/ranking_regret.py` tells how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..native.processor_class import ProcessorClass
from ..problems import Place
from ..problems.symbolic_sizes import SIZE_STEPS, WORK_STEPS
from . import ranking_files
from .algorithm_keys import on_one_thread
from .effective_precision import fineness
from .other_classes import UNLISTED, expected_here, kind_of
from .ranking_files import Measured
from .times_table import TimesTable
from .tuning import record_store

__all__ = ["nearest", "order_of", "times_of"]

SHIPPED_ONLY = -1  # in the place of a generation of records

# Distances are in doublings. These weights had about the least regret on random shapes and on entries of both shipped files that
# were left out, one by one and class by class, of those between half and twice each: `benchmarks/ranking_regret.py` judges them.
WIDTH = 0.7  # within which a measurement counts
SIZES = 0.4  # the part that the sizes have in a distance, beside the work
FACTORS = 1.6, 1.6, 3.0, 0.25  # the parts that factors of a transform's lengths have: of the last, of others, its parity, twos
FACTOR_STEPS = 2  # to a doubling of a factor
OTHER_LENGTH = 3.0  # what arrays of other dimensions add
OTHER_SHAPE = 5.0  # what another class of shapes adds,
LIKE_SHAPE = 3.5  # one whose first word is the same,
OTHER_SOURCE = 2.0  # and a source that is not the nearest one
NEAR = 3.0  # beyond which measurements of the next class of processors are asked for
POWER = 0.5  # of ratios in their mean
NUMPY = 0.3  # log2 of how much longer than expected NumPy is taken to run: its times differ the most between shapes
ABSENT = 1.0  # log2 of how much longer than the fastest on as many threads one takes that was not worth measuring
# Family of operations -> algorithms that some rankings were made without: they are expected to take beside the others what they
# took on another class.
NEWER = {
    "fft": ("kernels.mixed_radix@1", "kernels.mixed_radix@n"),
    "matmul": ("kernels.small_products@1", "kernels.small_products@n"),
}
# They are refused at some lengths, MKL's by no rule: where one was not measured, that says nothing.
REFUSED_AT_SOME_LENGTHS = ("mkl.dfti@1", "mkl.dfti@n", *NEWER["fft"])
SMALL = 17.0  # log2 of the operations up to which converting them to float32 may be the fastest


def order_of(place: Place, own: bool = True) -> tuple[str, ...]:
    """Returns the keys of algorithms by their predicted times, the least first; empty where nothing like it was measured.

    Parameters
    ----------
    place
        Operation, dtype, shape class, work, sizes and factors of the Problem.
    own
        Whether what was measured on this machine counts beside the shipped rankings.
    """
    generation = record_store.generation() if own else SHIPPED_ONLY
    # Within a step times differ by less than a fifth, and a program's shapes share the answers.
    op, dtype, shape_class, work, sizes, factors = place
    sizes = tuple(round(SIZE_STEPS * s) / SIZE_STEPS for s in sizes)
    factors = tuple(round(FACTOR_STEPS * f) / FACTOR_STEPS for f in factors)
    rounded = Place(op, dtype, shape_class, round(WORK_STEPS * work) / WORK_STEPS, sizes, factors)
    return _ordered(ranking_files.here(), rounded, generation)


def times_of(place: Place) -> Mapping[str, float]:
    """Returns the times that are predicted for algorithms, in proportion to each other."""
    points, distances = _near(ranking_files.here(), place, record_store.generation())
    return {} if points is None else dict(zip(points.keys, (2.0 ** points.predicted(distances)).tolist(), strict=True))


@lru_cache(maxsize=4096)
def _ordered(here: ProcessorClass, place: Place, generation: int) -> tuple[str, ...]:
    points, distances = _near(here, place, generation)
    if points is None:
        return ()
    return _same(tuple(map(points.keys.__getitem__, points.predicted(distances).argsort(kind="stable").tolist())))


@lru_cache(maxsize=1024)
def _same(order: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the one tuple that stands for all equal ones: what is known of an order is looked up by its identity."""
    return order


def nearest(place: Place) -> tuple[ProcessorClass, str] | None:
    """Returns the shipped measurement that is nearest to a Problem: whose it is, and its Problem's key; None without any."""
    points, distances = _near(ranking_files.here(), place, SHIPPED_ONLY)
    return None if points is None else points.origins[int(distances.argmin())]


def _near(here: ProcessorClass, place: Place, generation: int) -> tuple[Points | None, Any]:
    """Returns measurements and their distances: those of so many classes of processors that something near is among them."""
    best: tuple[Points | None, Any] = None, None
    # Other dtypes stand in where nobody measured this one. For large Problems of 16-bit floats none does: few libraries have
    # kernels for those.
    halves = ("f32",) if place.work < SMALL else ()
    for dtype in (place.dtype, *(halves if place.dtype in ranking_files.HALVES else ("",))):
        for classes in range(1, len(ranking_files.nearest_classes(here)) + 1):
            points = _points(here, place.op, dtype, generation, classes)
            if points is not None:
                best = points, points.distances(place)
                if best[1].min() <= NEAR:
                    return best
        if best[0] is not None:
            return best
    return best


class Points:
    """Measurements of one operation and dtype, as arrays: every new shape of a program asks, so numbers of steps count."""

    counted: Any = None  # where `powers` has a time; None where it has all

    def __init__(self, table: TimesTable, places: list[Place], far: Any, origins: list[Any]) -> None:
        self.keys, self.origins, self.places, self.far = tuple(sorted(table.columns)), origins, places, far
        self.work = np.array([p.work for p in places])
        self.factors = np.array([p.factors for p in places]) * FACTORS if places[0].factors else None
        self.added = np.array([NUMPY * key.startswith("numpy.") for key in self.keys])
        powers = 2.0 ** (POWER * _filled(table, self.keys))
        self.counted = None if not np.isnan(powers).any() else (~np.isnan(powers)).astype(float)
        self.powers = np.nan_to_num(powers)
        self._known: dict[tuple[str, int], tuple[Any, Any, Any, Any]] = {}

    def _scales(self, shape_class: str, count: int) -> tuple[Any, Any, Any, Any]:
        """Returns, for Problems of a class with so many sizes: what is added, factors of work and of sizes, the sizes scaled."""
        alike = np.array([float(len(p.sizes) == count > 0) for p in self.places])
        other = np.array([_apart(p.shape_class, shape_class) for p in self.places])
        factors = (alike * SIZES / math.sqrt(max(count, 1)))[:, None]
        sizes = np.array([p.sizes if len(p.sizes) == count else (0.0,) * count for p in self.places])
        return self.far + other + (1 - alike) * SIZES * OTHER_LENGTH, 1 - alike * SIZES, factors, factors * sizes

    def distances(self, place: Place) -> Any:
        """Returns how far each measurement is from a Problem."""
        kind = place.shape_class, len(place.sizes)
        scales = self._known.get(kind)
        if scales is None:
            scales = self._known[kind] = self._scales(*kind)
        added, of_work, of_sizes, sizes = scales
        apart = added + of_work * np.abs(self.work - place.work) + np.abs(sizes - of_sizes * np.array(place.sizes)).sum(axis=1)
        if self.factors is None:
            return apart
        return apart + np.abs(self.factors - np.multiply(FACTORS, place.factors)).sum(axis=1)

    def predicted(self, distances: Any) -> Any:
        """Returns log2 of the time of each key over that of the fastest: a mean over all, the nearer counting more.

        It is between the mean of the logarithms and that of the ratios: what is very slow nearby should not be chosen.
        """
        weights = np.exp((distances.min() - distances) / WIDTH)
        # Not by `@`: a call of BLAS would be recorded as one of the program's, and would depend on the library that is exchanged.
        total = weights.sum() if self.counted is None else np.einsum("i,ij->j", weights, self.counted)
        means = np.einsum("i,ij->j", weights, self.powers) / total
        return np.log2(means) / POWER + self.added


def _filled(table: TimesTable, keys: tuple[str, ...]) -> Any:
    """Returns log2 of the times of all keys in all measurements: of what was not measured, the time that it is taken to need.

    On all threads that is about the time on one, where that was measured. Else it was not worth measuring, beside what is fastest
    on as many threads; of those in `REFUSED_AT_SOME_LENGTHS` it is not known, NaN.
    """
    threaded = {key: one for key in keys if key.endswith("@n") and (one := on_one_thread(key)) in table.columns}
    columns = dict(table.completed({key: table.columns[one] + UNLISTED for key, one in threaded.items()}).columns)
    for threads in ("@1", "@n"):
        full = [columns[key] for key in keys if key.endswith(threads) and fineness(key) == 2]
        least = np.fmin.reduce(full, axis=0, initial=math.inf) if full else np.full(len(table.problems), math.inf)
        absent = ABSENT + np.where(np.isinf(least), 0.0, np.fmax(least, 0.0))
        for key in keys:
            if key.endswith(threads) and key not in REFUSED_AT_SOME_LENGTHS:
                columns[key] = np.where(np.isnan(columns[key]), absent, columns[key])
    return np.column_stack([columns[key] for key in keys])


def _apart(one: str, other: str) -> float:
    """Returns the part that classes of shapes have in a distance."""
    return 0.0 if one == other else LIKE_SHAPE if kind_of(one) == kind_of(other) else OTHER_SHAPE


@lru_cache(maxsize=512)
def _points(here: ProcessorClass, op: str, dtype: str, generation: int, classes: int) -> Points | None:
    """Returns what is known of an operation: records of this machine, and the rankings of so many classes; None without any."""
    own = [] if generation == SHIPPED_ONLY else [Measured(*m) for m in record_store.measured(op, dtype)]
    if not own and generation != SHIPPED_ONLY:  # no record of another operation changes this
        return _points(here, op, dtype, SHIPPED_ONLY, classes)
    tables: list[TimesTable] = []
    places: list[Place] = []
    far: list[float] = []
    origins: list[Any] = []  # whose each is, and its Problem's key; None of this machine's
    if own:
        shipped = _points(here, op, dtype, SHIPPED_ONLY, classes)
        measured = TimesTable.of([m.key for m in own], [m.times for m in own])
        places += [m.place for m in own]
        tables.append(_expected(measured.over(measured.least()), places, shipped))
        far += [0.0] * len(own)
        origins += [None] * len(own)
    mine = {m.key for m in own}
    nearest = ranking_files.nearest_classes(here, dtype)
    for processors in nearest[:classes]:
        listed = ranking_files.measured(processors, op, dtype)
        if not listed:
            continue
        table = expected_here(here, processors, listed, TimesTable.joined(tables) if tables else None)
        table = _with_newer(here, op, dtype, table)
        # What this machine measured stands in the place of what its class's ranking has of the same Problems alone. The rest
        # counts as much, so that few measurements change no order far from them.
        kept = [i for i, m in enumerate(listed) if processors != here or m.key not in mine]
        places += [listed[i].place for i in kept]
        far += [OTHER_SOURCE if tables and not (own and processors == here) else 0.0] * len(kept)
        origins += [(processors, listed[i].key) for i in kept]
        tables.append(table.rows(kept))
    return Points(TimesTable.joined(tables), places, np.array(far), origins) if tables else None


def _expected(measured: TimesTable, places: list[Place], shipped: Points | None) -> TimesTable:
    """Returns the times of records with those of the algorithms that they lack, as the rankings predict them."""
    if shipped is None:
        return measured
    predicted = np.array([shipped.predicted(shipped.distances(place)) for place in places]).T
    return _completed(measured, dict(zip(shipped.keys, predicted, strict=True)))


def _with_newer(here: ProcessorClass, op: str, dtype: str, table: TimesTable) -> TimesTable:
    """Returns the times of a class with those of algorithms that its ranking lacks, from the next class that has them."""
    newer = NEWER.get(op.partition(".")[0], ())
    if not newer or any(key in table.columns for key in newer):
        return table
    for other in ranking_files.nearest_classes(here, dtype):
        listed = ranking_files.measured(other, op, dtype)
        if any(key in m.times for m in listed for key in newer):
            # Not by ratios of libraries to `table`, whose times are over a fastest one that may be another one there.
            there = expected_here(here, other, listed, None)
            at = {problem: i for i, problem in enumerate(there.problems)}
            index = np.array([at.get(problem, -1) for problem in table.problems])
            lent = {key: np.where(index >= 0, column[index], np.nan) for key, column in there.columns.items()}
            return _completed(table, lent, newer)
    return table


def _completed(table: TimesTable, expected: Mapping[str, Any], only: Collection[str] | None = None) -> TimesTable:
    """Returns the table with expected times where it has none, of all algorithms or some, brought to its scale row by row."""
    apart = [column - expected[key] for key, column in table.columns.items() if key in expected]
    shift = _upper_median(apart, len(table.problems))
    return table.completed({key: column + shift for key, column in expected.items() if only is None or key in only})


def _upper_median(columns: list[Any], rows: int) -> Any:
    """Returns in each row the upper median of what is known there, 0 where nothing is."""
    ordered = np.sort(np.array([np.full(rows, np.nan), *columns]), axis=0)  # what is not known comes last
    middle = np.take_along_axis(ordered, (~np.isnan(ordered)).sum(axis=0)[None] // 2, axis=0)[0]
    return np.nan_to_num(middle)
