"""Expected times of algorithms on this class of processors, from measurements of another one.

Libraries take other kernels on another maker's processors, all threads bring more on some than on others, and what an earlier
version measured lacks algorithms of now. Times that were measured elsewhere are brought to what is expected here, and to the
scale of nearer sources by the ratios of what both measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..native.processor_class import ProcessorClass
from ..problems import Place
from ..problems.length_factors import UNIT
from . import ranking_files
from .algorithm_keys import DIVIDED, on_one_thread
from .effective_precision import fineness
from .ranking_files import Measured

__all__ = ["UNLISTED", "Times", "expected_here", "kind_of", "over_best"]

Times = Mapping[str, float]  # key of an algorithm -> log2 of its time over that of the fastest

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
    here: ProcessorClass, processors: ProcessorClass, op: str, listed: Sequence[Measured], known: Mapping[str, Times]
) -> Iterator[Times]:
    """Yields what the algorithms of each measurement of a class are expected to take here.

    Parameters
    ----------
    here, processors
        This class, and the one that measured.
    op
        The operation.
    listed
        Measurements of the operation.
    known
        Key of a Problem -> its times, from nearer sources.
    """
    logs_of = {m.key: over_best(m.times) for m in listed}
    ratio = _ratios(listed, logs_of, known, _Away(here, processors))
    gains = _Gains(processors, op) if processors != here else None
    lacks_chirps = op.startswith("fft.") and not any(BY_CHIRPS in key for m in listed for key in m.times)
    for m in listed:
        logs: Times = logs_of[m.key]
        if gains:
            logs = gains.moderated(m, logs)
        elif lacks_chirps:  # measured by a version without them
            logs = {**logs, **_by_chirps(logs, m.place)}
        if known or processors != here:
            many = processors != here and m.place.work >= MANY
            logs = {key: log + ratio(m.place, key) - _sooner(key, op) * many for key, log in logs.items()}
        if m.place.dtype == "bf16" and here.instructions == "amx" != processors.instructions:
            logs = {key: log - TILES * key.startswith("onednn.") for key, log in logs.items()}
        if here.wide != processors.wide and kind_of(m.place.shape_class) == "batch":
            more = BATCHES * (processors.wide - here.wide)
            logs = {key: log + more * key.startswith("onednn.") for key, log in logs.items()}
        yield logs


def over_best(times: Times) -> dict[str, float]:
    """Returns log2 of times over the least of those that do not reduce the precision of their inputs."""
    least = min((t for key, t in times.items() if fineness(key) == 2), default=0.0) or min(times.values())
    return {key: math.log2(max(t, 1e-9) / max(least, 1e-9)) for key, t in times.items()}


def kind_of(shape_class: str) -> str:
    """Returns the first word of a class of shapes."""
    return shape_class.partition(" ")[0]


class _Gains:
    """Gains of all threads on another class of processors, as far as they are to be expected here, too.

    What they brought in a single measurement says little of another machine: in part it is taken to be what they brought to the
    library in this operation as a rule.
    """

    def __init__(self, processors: ProcessorClass, op: str) -> None:
        found: dict[str, list[float]] = {}
        threaded: set[str] = set()
        self._twins: dict[str, Mapping[str, float]] = {}
        self._float16: set[str] = set()
        for m in ranking_files.measured(processors, op):
            if m.place.dtype == "f16":
                self._float16.update(m.times)
            elif m.place.dtype == "bf16":
                self._twins[m.key.replace(" bf16 ", " f16 ")] = m.times
            threaded.update(key for key in m.times if key.endswith("@n"))
            for key, gain in _gains(over_best(m.times)):
                found.setdefault(key.partition(".")[0], []).append(gain)
        self._usual = {library: sorted(gains)[len(gains) // 2] for library, gains in found.items()}
        self._threaded = {key: on_one_thread(key) for key in threaded}

    def moderated(self, m: Measured, logs: Times) -> Times:
        """Returns times in which the gain of each algorithm is nearer to the usual one of its library.

        Where threads were not asked for, it is none. A transform that was refused there, and computed in a wider format
        instead, is expected to take half the time here. What processors of that class cannot compute in float16 is expected to
        take what it took in bfloat16.
        """
        unlisted = {key: logs[one] + UNLISTED for key, one in self._threaded.items() if key not in logs and one in logs}
        if (twin := self._twins.get(m.key)) and kind_of(m.place.shape_class) not in VECTORS:  # which memory bounds
            known = next(iter(logs))
            least = math.log2(m.times[known]) - logs[known]
            unlisted |= {key: math.log2(time) - least for key, time in twin.items() if key not in self._float16}
        unlisted |= _plain(logs) | _by_chirps(logs, m.place)
        more = {key: (1 - KEPT_GAIN) * (gain - self._usual[key.partition(".")[0]]) for key, gain in _gains(logs)}
        return {key: log + more.get(key, 0.0) for key, log in logs.items()} | unlisted


def _plain(logs: Times) -> dict[str, float]:
    """Returns what MKL's own transforms are expected to take that were refused, and computed in a wider format."""
    return {plain: log - NARROWER for key, log in logs.items() if (plain := key.replace(WIDER, PLAIN)) not in logs}


def _by_chirps(logs: Times, place: Place) -> dict[str, float]:
    """Returns what convolutions with a chirp are expected to take where none was measured; nothing where there is none."""
    if not place.factors:
        return {}
    *beyond, odd, _ = place.factors
    kind = "complex" if place.op == "fft.c2c" else "odd" if odd else "even"
    largest = round(UNIT * 2 ** max(beyond))
    gain = next((log for above, log in CONVOLVED[kind].items() if largest > above), None)
    if gain is None:
        return {}
    own = {key: log for key, log in {**logs, **_plain(logs)}.items() if PLAIN in key}
    return {other: log - gain for key, log in own.items() if (other := key.replace(PLAIN, BY_CHIRPS)) not in logs}


def _gains(logs: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yields the keys of algorithms on all threads, each with log2 of how much sooner it ends than on one."""
    for key, log in logs.items():
        if key.endswith("@n"):
            alone = logs.get(on_one_thread(key))
            if alone is not None:
                yield key, alone - log


def _sooner(key: str, op: str) -> float:
    """Returns log2 of how much sooner an algorithm is expected to end than it did on another class of processors."""
    every = 0.0 if op.startswith(FACTORIZATIONS) else ALL_THREADS
    return (every + OWN_THREADS * (key[:-2].endswith(DIVIDED) or key.startswith("kernels."))) * key.endswith("@n")


Group = tuple[str, str, str]  # library, threads, and what bounds the speed


class _Away(NamedTuple):
    """The class of processors that times are expected for, and the one that measured them."""

    here: ProcessorClass
    there: ProcessorClass

    def log(self, bound: str, library: str) -> float:
        """Returns log2 of how much longer a library is expected to take here than there, beside the others."""
        wide, narrow = AWAY_FROM_INTEL[bound].get(library, (1.0, 1.0))
        here, there = (1.0 if c.maker == "intel" else wide if c.wide else narrow for c in self)
        return math.log2(here / there)


class _Ratios(NamedTuple):
    """log2 of the ratios by which the times of a source are to be multiplied, by library, threads, and what bounds the speed."""

    measured: dict[Group, list[float]]
    away: _Away

    def __call__(self, place: Place, key: str) -> float:
        library, _, bound = group = _group(place, key)
        ratios = self.measured.get(group, ())
        return (sum(ratios) + EXPECTED * self.away.log(bound, library)) / (len(ratios) + EXPECTED)


def _group(place: Place, key: str) -> Group:
    library, _, name = key.partition(".")
    family = "linalg" if place.op.startswith(FACTORIZATIONS) else place.op.partition(".")[0]
    bound = "memory" if name.startswith(MEMORY_BOUND) or kind_of(place.shape_class) in VECTORS else family
    return library, key[-2:], bound if bound in AWAY_FROM_INTEL else ""


def _ratios(listed: Sequence[Measured], times: Mapping[str, Times], known: Mapping[str, Times], away: _Away) -> _Ratios:
    """Returns the ratios that bring times to the scale of what nearer sources have of the same Problems."""
    found: dict[Group, list[float]] = {}
    for m in listed:
        here = known.get(m.key, {})
        for key, log in times[m.key].items():
            if key in here:
                found.setdefault(_group(m.place, key), []).append(here[key] - log)
    return _Ratios(found, away)
