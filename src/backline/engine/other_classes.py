"""Expected times of algorithms on this class of processors, from measurements of another one.

Libraries take other kernels on another maker's processors, all threads bring more on some than on others, and what an earlier
version measured lacks algorithms of now. Times that were measured elsewhere are brought to what is expected here, and to the
scale of nearer sources by the ratios of what both measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..native.processor_class import ProcessorClass
from ..problems import Place
from ..problems.length_factors import UNIT
from . import ranking_files
from .algorithm_keys import divided, on_one_thread
from .ranking_files import Measured
from .times_table import Column, TimesTable

__all__ = ["UNLISTED", "expected_here", "kind_of"]

ALL_THREADS = 0.2  # log2 of how much sooner all threads are expected to end, beside one, than they did on another class,
MANY = 18.0  # from so many operations on, as log2; not in the factorizations, whose own threads bring little and may cost much
OWN_THREADS = 0.3  # and the same of those that Backline divides the work among: how well libraries do so differs the most
UNLISTED = 0.02  # and of how much longer they take than one where one alone was measured: nobody asked whether they help
PLAIN, WIDER, BY_CHIRPS = ".dfti@", ".dfti_double@", ".dfti_chirp@"
NARROWER = 1.0  # log2 of how much longer a transform takes in a wider format
# log2 of how much longer it takes by MKL's own way than by convolution with a chirp, where the largest prime factor is above a
# number; of real numbers also by whether the last length is odd: near the medians of AMD's entries.
CONVOLVED = {
    "complex": {300: 0.1, 100: 0.0, 47: -0.2},
    "odd": {300: 0.9, 100: 1.0, 47: 0.8},
    "even": {300: -0.5, 100: -0.4, 47: -0.8},
}
FACTORIZATIONS = ("linalg.", "cholesky_")  # how names of operations begin
TILES = 0.3  # log2 of how much sooner oneDNN is expected to end in bfloat16 with AMX than on a class without it
BATCHES = 1.0  # log2 of how much longer oneDNN is expected to take, beside the others, for a batch of products without AVX-512
# log2 of how much longer loops of our own are expected to take, beside the others, without AVX-512: for real numbers, and for
# complex ones. With it libraries have kernels for small real products that they lack without. About the medians of two machines.
WITHOUT_AVX512: Mapping[str, tuple[float, float]] = {"kernels.mixed_radix": (0.25, 0.25), "kernels.small_products": (-0.7, 0.4)}
# How much longer a library takes, beside those that take the same kernels everywhere, on a processor that is not Intel's than on
# one that is: where it has AVX-512, and where not. MKL and BLIS 0.9 keep to AVX2 there, which costs more in the first case. That
# matters less in transforms, and where memory bounds the speed: in products with vectors, and in reductions of matrices to
# simpler ones, half of which are such. About the medians over what shipped files measured, but for BLIS with AVX-512: its median
# is near 4, and with that more is chosen wrongly. They count as much as so many measured ratios.
AWAY_FROM_INTEL: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "": {"mkl": (2.1, 1.5), "blis": (2.5, 0.8)},
    "linalg": {"mkl": (2.1, 2.1), "blis": (2.5, 2.1)},
    "fft": {"mkl": (1.4, 1.4)},
    "memory": {"mkl": (1.3, 1.3), "blis": (1.1, 1.0)},
}
MEMORY_BOUND = ("gemv", "dot", "syev", "geev", "gesvd", "gesdd", "gelsy")  # how names of algorithms begin
VECTORS = ("gemv", "one")  # classes of shapes that are such products, those of recurrent layers with a batch of one included
EXPECTED = 6.0
KEPT_GAIN = 0.4  # part that a single measurement has in what all threads are expected to bring on another class


def expected_here(
    here: ProcessorClass, processors: ProcessorClass, listed: Sequence[Measured], known: TimesTable | None
) -> TimesTable:
    """Returns what the algorithms of each measurement of a class are expected to take here, over the fastest.

    Parameters
    ----------
    here, processors
        This class, and the one that measured.
    listed
        Measurements of an operation and dtype.
    known
        What is expected of Problems by nearer sources; None for the nearest one.
    """
    op, dtype = listed[0].place[:2]
    rows = _Rows([m.place for m in listed])
    times = TimesTable.of([m.key for m in listed], [m.times for m in listed])
    table = times.over(times.least())
    ratios = _Ratios(table, rows, known, _Away(here, processors))
    if processors != here:
        gains = _Gains(ranking_files.table(processors, op))
        twins = gains.twins(times, rows) if dtype == "f16" else {}
        table = gains.moderated(table, rows, twins)
    more = BATCHES * (processors.wide - here.wide) * (rows.kinds == "batch")
    if dtype == "bf16" and here.instructions == "amx" != processors.instructions:
        more = more - TILES
    many = (rows.work >= MANY) * (processors != here)
    columns: dict[str, Column] = {}
    for key, log in table.columns.items():
        ratio = ratios.column(key) - _sooner(key, op) * many if known is not None or processors != here else 0.0
        fewer = WITHOUT_AVX512.get(key.partition("@")[0], (0.0, 0.0))[dtype.startswith("c")] * (processors.wide - here.wide)
        columns[key] = log + ratio + fewer + more * key.startswith("onednn.")
    return table._replace(columns=columns)


def kind_of(shape_class: str) -> str:
    """Returns the first word of a class of shapes."""
    return shape_class.partition(" ")[0]


class _Rows:
    """The Problems of a table, as far as expectations differ between them."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        self.op = places[0].op
        self.work = np.array([place.work for place in places])
        self.kinds = np.array([kind_of(place.shape_class) for place in places])
        self.vectors = np.isin(self.kinds, VECTORS)


class _Gains:
    """Gains of all threads on another class of processors, as far as they are to be expected here, too.

    What they brought in a single measurement says little of another machine: in part it is taken to be what they brought to the
    library in this operation as a rule.
    """

    def __init__(self, every: TimesTable) -> None:
        self._every = every  # of all dtypes
        found: dict[str, list[Column]] = {}
        for key, gain in _gains(every.columns):
            found.setdefault(key.partition(".")[0], []).append(gain[~np.isnan(gain)])
        joined = {library: np.sort(np.concatenate(gains)) for library, gains in found.items()}
        self._usual = {library: gains[len(gains) // 2] for library, gains in joined.items() if len(gains)}
        self._threaded = {key: on_one_thread(key) for key in every.columns if key.endswith("@n")}

    def twins(self, times: TimesTable, rows: _Rows) -> dict[str, Column]:
        """Returns, of what that class cannot compute in float16, what it took in bfloat16; but for what memory bounds."""
        at = {problem.replace(" bf16 ", " f16 "): i for i, problem in enumerate(self._every.problems) if " bf16 " in problem}
        index = np.array([at.get(problem, -1) for problem in times.problems])
        there = (index >= 0) & ~rows.vectors
        least = times.least()
        more = {key: log[index] - least for key, log in self._every.columns.items() if key not in times.columns}
        return {key: np.where(there, log, np.nan) for key, log in more.items()}

    def moderated(self, table: TimesTable, rows: _Rows, twins: Mapping[str, Column]) -> TimesTable:
        """Returns times in which the gain of each algorithm is nearer to the usual one of its library.

        Where threads were not asked for, it is none. A transform that was refused there, and computed in a wider format
        instead, is expected to take half the time here.
        """
        logs = table.columns
        more = {key: (1 - KEPT_GAIN) * (gain - self._usual.get(key.partition(".")[0], 0.0)) for key, gain in _gains(logs)}
        kept = {key: log + np.nan_to_num(more[key]) if key in more else log for key, log in logs.items()}
        unlisted = {key: logs[one] + UNLISTED for key, one in self._threaded.items() if one in logs}
        made = table._replace(columns=kept)
        for others in (_by_chirps(logs, rows), _plain(logs), twins, unlisted):
            made = made.completed(others)
        return made


def _plain(logs: Mapping[str, Column]) -> dict[str, Column]:
    """Returns what MKL's own transforms are expected to take that were refused, and computed in a wider format."""
    return {key.replace(WIDER, PLAIN): log - NARROWER for key, log in logs.items() if WIDER in key}


def _by_chirps(logs: Mapping[str, Column], rows: _Rows) -> dict[str, Column]:
    """Returns what convolutions with a chirp are expected to take; NaN where there is none."""
    if not rows.op.startswith("fft."):
        return {}
    gains = np.array([_gain_of_chirps(place) for place in rows.places])
    own = TimesTable((), {key: log for key, log in logs.items() if PLAIN in key}).completed(_plain(logs))
    return {key.replace(PLAIN, BY_CHIRPS): log - gains for key, log in own.columns.items()}


def _gain_of_chirps(place: Place) -> float:
    if not place.factors:
        return math.nan
    *beyond, odd, _ = place.factors
    kind = "complex" if place.op == "fft.c2c" else "odd" if odd else "even"
    largest = round(UNIT * 2 ** max(beyond))
    return next((log for above, log in CONVOLVED[kind].items() if largest > above), math.nan)


def _gains(logs: Mapping[str, Column]) -> Iterator[tuple[str, Column]]:
    """Yields the keys of algorithms on all threads, each with log2 of how much sooner it ends than on one."""
    for key, log in logs.items():
        if key.endswith("@n") and (one := on_one_thread(key)) in logs:
            yield key, logs[one] - log


def _sooner(key: str, op: str) -> float:
    """Returns log2 of how much sooner an algorithm is expected to end than it did on another class of processors."""
    every = 0.0 if op.startswith(FACTORIZATIONS) else ALL_THREADS
    return (every + OWN_THREADS * divided(key)) * key.endswith("@n")


class _Away(NamedTuple):
    """The class of processors that times are expected for, and the one that measured them."""

    here: ProcessorClass
    there: ProcessorClass

    def log(self, bound: str, library: str) -> float:
        """Returns log2 of how much longer a library is expected to take here than there, beside the others."""
        wide, narrow = AWAY_FROM_INTEL[bound].get(library, (1.0, 1.0))
        here, there = (1.0 if c.maker == "intel" else wide if c.wide else narrow for c in self)
        return math.log2(here / there)


Group = tuple[str, str, str]  # library, threads, and what bounds the speed


class _Ratios:
    """log2 of the ratios that bring times to the scale of nearer sources, by what both have of the same Problems.

    There is one for each library, number of threads, and what bounds the speed.
    """

    def __init__(self, table: TimesTable, rows: _Rows, known: TimesTable | None, away: _Away) -> None:
        self._rows, self._away = rows, away
        self._sums: dict[Group, tuple[float, int]] = {}
        at = {problem: i for i, problem in enumerate(known.problems)} if known is not None else {}
        index = np.array([at.get(problem, -1) for problem in table.problems])
        both = index >= 0
        for key, log in table.columns.items() if known is not None and both.any() else ():
            nearer = known.columns.get(key) if known is not None else None
            if nearer is None:
                continue
            ratios = np.where(both, nearer[index] - log, np.nan)
            for vectors in (False, True):
                some = ratios[(rows.vectors == vectors) & ~np.isnan(ratios)]
                group = _group(key, rows.op, vectors)
                total, count = self._sums.get(group, (0.0, 0))
                self._sums[group] = total + float(some.sum()), count + len(some)

    def column(self, key: str) -> Column:
        """Returns the ratio for an algorithm, of each Problem."""
        return np.where(self._rows.vectors, self._ratio(key, True), self._ratio(key, False))

    def _ratio(self, key: str, vectors: bool) -> float:
        library, _, bound = group = _group(key, self._rows.op, vectors)
        total, count = self._sums.get(group, (0.0, 0))
        return (total + EXPECTED * self._away.log(bound, library)) / (count + EXPECTED)


def _group(key: str, op: str, vectors: bool) -> Group:
    library, _, name = key.partition(".")
    family = "linalg" if op.startswith(FACTORIZATIONS) else op.partition(".")[0]
    bound = "memory" if vectors or name.startswith(MEMORY_BOUND) else family
    return library, key[-2:], bound if bound in AWAY_FROM_INTEL else ""
