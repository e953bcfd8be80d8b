"""Predicted times of algorithms for a Problem, from measured times of other shapes.

They are predicted for each algorithm from the measured Problems of the same operation, dtype and shape class, the nearer in size
the more, on logarithmic scales of work and time. The shipped rankings have the measurements; what was measured on this machine
corrects them: an algorithm by its own times, one that was not measured here by the median difference of the others of its class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from ..native.processor_class import ProcessorClass
from ..problems import Place
from ..problems.symbolic_sizes import WORK_STEPS
from . import ranking_files
from .tuning import record_store

__all__ = ["order_of", "predicted"]

Points = list[tuple[float, float]]  # log2 of the work, log2 of the microseconds; in order of work
SHIPPED_ONLY = -1  # in the place of a generation of records

# How much longer a library takes, beside those that take the same kernels everywhere, on a processor that is not Intel's than on
# one that is, and the reverse: MKL and BLIS 0.9 keep to AVX2 there. Medians over what both shipped files measured; they are used
# only where a file of the same maker is missing. Of BLIS the reverse does not hold for its small vectors, so it is not assumed.
AWAY_FROM_INTEL = {"mkl": 1.8, "blis": 2.5}
TO_INTEL = {"mkl": 1 / 1.8}
WIDTH = 2.0  # doublings of the work within which a measurement counts
GROWTH = 2 / 3  # of the logarithm of a time with that of the work


def order_of(place: Place, own: bool = True) -> tuple[str, ...]:
    """Returns the keys of algorithms by their predicted times, the least first; empty where nothing like it was measured.

    Parameters
    ----------
    place
        Operation, dtype, shape class and work of the Problem.
    own
        Whether what was measured on this machine counts beside the shipped rankings.
    """
    generation = record_store.generation() if own else SHIPPED_ONLY
    # Within a step times differ by less than a fifth, and a program's shapes share the answers.
    return _ordered(ranking_files.here(), place._replace(work=round(WORK_STEPS * place.work) / WORK_STEPS), generation)


@lru_cache(maxsize=2048)
def _ordered(here: ProcessorClass, place: Place, generation: int) -> tuple[str, ...]:
    curves = _curves(here, *place[:3], generation)
    times = {key: predicted(curve, place.work, key.endswith("@n")) for key, curve in curves.items()}
    return tuple(sorted(times, key=times.__getitem__))


@lru_cache(maxsize=512)
def _curves(here: ProcessorClass, op: str, dtype: str, kind: str, generation: int) -> Mapping[str, Points]:
    """Returns the points of each algorithm."""
    processors, entries = ranking_files.entries(here, op, dtype, kind)
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in entries:
        for key, time in zip(entry["order"], entry["microseconds"], strict=True):
            points.setdefault(key, []).append((entry["size"], math.log2(max(time, 0.01)) + _away(key, processors, here)))
    curves = {key: averaged(found) for key, found in points.items()}
    own = {} if generation == SHIPPED_ONLY else record_store.points(op, dtype, kind)
    return corrected(curves, {key: averaged(found) for key, found in own.items()}) if own else curves


def averaged(points: Points) -> Points:
    """Sorts points by size; several of one size, which are other shapes of one class, become their mean.

    Examples
    --------
    >>> averaged([(12.0, 3.0), (10.0, 1.0), (12.0, 5.0)])
    [(10.0, 1.0), (12.0, 4.0)]
    """
    sizes: dict[float, list[float]] = {}
    for size, log in points:
        sizes.setdefault(size, []).append(log)
    return sorted((size, sum(logs) / len(logs)) for size, logs in sizes.items())


def corrected(curves: Mapping[str, Points], own: Mapping[str, Points]) -> dict[str, Points]:
    """Returns the points of a ranking, corrected by points that were measured on this machine, which join them.

    Examples
    --------
    >>> corrected({"a": [(10.0, 1.0)], "b": [(10.0, 2.0)]}, {"a": [(13.0, 5.0)]})
    {'a': [(10.0, 3.0), (13.0, 5.0)], 'b': [(10.0, 4.0)]}
    """
    offsets = {
        key: [(size, log - predicted(curves[key], size)) for size, log in points] for key, points in own.items() if key in curves
    }
    every = sorted(offset for points in offsets.values() for _, offset in points)
    usual = every[len(every) // 2] if every else 0.0
    result = {key: points for key, points in own.items() if key not in curves}
    for key, curve in curves.items():
        mine = dict(own.get(key, ()))
        by = offsets.get(key) or [(0.0, usual)]
        shifted = [(size, log + _nearest(by, size)) for size, log in curve if size not in mine]
        result[key] = sorted([*shifted, *mine.items()])
    return result


def _nearest(points: Points, size: float) -> float:
    """Returns the value of the point that is nearest to a size."""
    return min(points, key=lambda point: abs(point[0] - size))[1]


def _away(key: str, measured: ProcessorClass | None, here: ProcessorClass) -> float:
    """Returns log2 of the expected ratio of an algorithm's time here to that where it was measured, by the processors' makers."""
    if measured is None or (here.maker == "intel") == (measured.maker == "intel"):
        return 0.0
    factors = TO_INTEL if here.maker == "intel" else AWAY_FROM_INTEL
    return math.log2(factors.get(key.partition(".")[0], 1.0))


def predicted(points: Points, size: float, threaded: bool = False) -> float:
    """Returns log2 of the microseconds at a size: the mean of what each point tells, the nearer ones counting more.

    A point tells its own time, grown with two thirds of the work: small problems grow more slowly than the work, and what matters
    is the order of algorithms, which all grow alike. Of interpolation, the nearest point and this mean, the mean had the
    least regret on shapes that were not measured (benchmarks/ranking_regret.py).

    Parameters
    ----------
    points
        Of one algorithm, in order of size.
    size
        log2 of the work.
    threaded
        Whether it runs on all threads: below its points its time stays, for threads have their cost, and an algorithm that was
        not measured on small problems may not even be there for them.

    Examples
    --------
    >>> predicted([(10.0, 0.0)], 13.0), predicted([(10.0, 0.0)], 7.0), predicted([(10.0, 0.0)], 7.0, threaded=True)
    (2.0, -2.0, 0.0)
    >>> round(predicted([(10.0, 0.0), (20.0, 5.0)], 15.0), 6)
    2.5
    """
    total = weights = 0.0
    for at, log in points:
        weight = math.exp(-abs(at - size) / WIDTH)
        total += weight * (log + GROWTH * (size - at))
        weights += weight
    least = points[0][1] if threaded and size < points[0][0] else -math.inf
    return max(total / weights, least)
