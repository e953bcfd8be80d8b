"""The shipped rankings: which algorithm comes first on a machine that nobody has tuned.

They are data, a file for each class of processors in ``rankings/``, made by ``benchmarks/make_ranking.py`` from measurements,
with their provenance. The file of the nearest class holds (`processor_class.nearest`). From the times in it, those of a Problem
are interpolated for each algorithm among the entries of its operation, dtype and shape class, on logarithmic scales of work and
time; the algorithm with the least predicted time comes first. What no entry names comes after, in the order of the libraries.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..libraries.base import BORROWED, Algorithm
from ..native.processor_class import ProcessorClass, nearest_first, this_class
from ..problems import Problem, short
from .effective_precision import FINENESS
from .tuning.record import RENAMED, current_key

__all__ = ["Ranking", "describe", "file_name", "report", "shipped", "sooner", "sort"]

FOLDER = os.path.join(os.path.dirname(__file__), "rankings")
# Without an entry: what is made for the operation before what makes a product of it, and NumPy last.
PACKED_FLOPS = 2e5  # of a product with packed weights that it is worth calling oneDNN for
# Algorithms that the shipped rankings do not name -> those in whose place they stand.
STAND_INS = {
    "mkl.dfti_double@1": "mkl.dfti@1", "mkl.dfti_double@n": "mkl.dfti@n",
    # A plan that was timed, or is asked to be, comes where FFTW's estimate would come: just before it, as FFTW lists them.
    **{f"fftw.{way}@{count}": f"fftw.estimate@{count}" for way in ("measure", "patient") for count in "1n"},
}  # fmt: skip
LIBRARIES = ("onednn", "kernels", "openblas", "mkl", "blis", "nnpack", "xnnpack", "fftw", "scipy", "numpy")
# Time on a processor of another maker over that on one of Intel's, beside libraries that take the same kernels on both: MKL and
# BLIS 0.9 keep to AVX2 there. Medians over what both shipped files measured; used only where a file of the same maker is missing.
AWAY_FROM_INTEL = {"mkl": 1.8, "blis": 2.5}


class Ranking(NamedTuple):
    """Measured times on one machine.

    Attributes
    ----------
    processors : ProcessorClass
        The class of its processor.
    provenance : dict
        Processor, cores, date, command and versions of the libraries.
    entries : list of dict
        Operation, dtype, shape class, size (log2 of the floating-point operations), example; keys of algorithms, the fastest
        first, and their times in microseconds.
    """

    processors: ProcessorClass
    provenance: dict[str, Any]
    entries: list[dict[str, Any]]


def file_name(processors: ProcessorClass) -> str:
    """Returns the path of the ranking of a class, whether it exists or not."""
    return os.path.join(FOLDER, f"{processors}.json")


@lru_cache(maxsize=1)
def _classes() -> tuple[ProcessorClass, ...]:
    names = (name.removesuffix(".json") for name in sorted(os.listdir(FOLDER)) if name.endswith(".json"))
    return tuple(found for name in names if (found := ProcessorClass.parse(name)))


def here() -> ProcessorClass:
    """Returns the class of this processor, under the cap on its instructions that holds here."""
    from ..libraries import capability  # much to import, and not needed before something is chosen

    return this_class(capability.effective().lower())


@lru_cache(maxsize=4)
def _read(processors: ProcessorClass) -> Ranking:
    import json

    with open(file_name(processors), encoding="utf-8") as stream:
        text = stream.read()
    content = json.loads(text)
    if any(f'"{old}@' in text for old in RENAMED):  # thousands of keys, and seldom one that has changed
        for entry in content["entries"]:
            _rename(entry)
    return Ranking(processors, content["provenance"], content["entries"])


def _rename(entry: dict[str, Any]) -> None:
    """Gives algorithms of earlier versions their names of now; where several old names are one now, the fastest stays."""
    times: dict[str, float] = {}
    for key, microseconds in zip(entry["order"], entry["microseconds"], strict=True):
        times.setdefault(current_key(key), microseconds)
    entry["order"], entry["microseconds"] = list(times), list(times.values())


@lru_cache(maxsize=4)
def _nearest(processors: ProcessorClass) -> tuple[ProcessorClass, ...]:
    return tuple(nearest_first(processors, _classes()))


def shipped() -> Ranking:
    """Returns the ranking that holds here: that of the nearest class of processors."""
    return _read(_nearest(here())[0])


def shape_class(problem: Problem) -> str:
    """Returns the class of a Problem beyond its size: vectors, batches, thin matrices, kernels of one point."""
    describe = CLASSES.get(type(problem).__name__)
    return describe(problem) if describe else "batch" if getattr(problem, "items", 1) > 1 else ""


def _product(p: Any) -> str:
    if p.m == p.n == 1:
        return "dot"
    if p.m == 1 or p.n == 1:
        return "gemv"
    if p.items > 1:
        return "batch"
    return "thin" if min(p.m, p.n, p.k) * 8 <= max(p.m, p.n, p.k) else "square"


def _convolution(p: Any) -> str:
    points = math.prod(p.kernel)
    size = "1" if points == 1 else "3" if max(p.kernel) <= 3 else "5"
    groups = "" if p.groups == 1 else "depthwise " if p.groups == p.channels else "groups "
    return f"{groups}{size} {'one' if p.batch == 1 else 'many'}{' last' if p.last else ''}"


def _transform(p: Any) -> str:
    rest = p.points
    for factor in (2, 3, 5, 7, 11, 13):
        while rest > 1 and rest % factor == 0:
            rest //= factor
    axes = min(len(p.axes), 2)
    return f"{axes}d{' batch' if p.items > 1 else ''}{' prime' if rest > 1 else ''}"


CLASSES: dict[str, Callable[[Any], str]] = {
    "MatmulProblem": _product,
    "LinearProblem": _product,
    "ConvProblem": _convolution,
    "RnnProblem": lambda p: "one" if p.batch == 1 else "many",
    "AttentionProblem": lambda p: "causal" if p.is_causal else "",
    "FftProblem": _transform,
}


def _entries(here: ProcessorClass, op: str, dtype: str, kind: str) -> tuple[ProcessorClass | None, list[dict[str, Any]]]:
    """Returns the entries for an operation, dtype and shape class, and whose they are.

    They come from the nearest class that measured the dtype; where none did, other dtypes of the nearest class stand in.
    """
    for processors in _nearest(here):
        if found := [e for e in _read(processors).entries if (e["op"], e["class"], e["dtype"]) == (op, kind, dtype)]:
            return processors, found
    for processors in _nearest(here):
        if found := [e for e in _read(processors).entries if (e["op"], e["class"]) == (op, kind)]:
            return processors, found
    return None, []


@lru_cache(maxsize=512)
def _curves(here: ProcessorClass, op: str, dtype: str, kind: str) -> dict[str, list[tuple[float, float]]]:
    """Returns, for each algorithm, its points in order of size: log2 of the work, log2 of the microseconds expected here."""
    processors, entries = _entries(here, op, dtype, kind)
    points: dict[str, dict[float, list[float]]] = {}
    for entry in entries:
        for key, time in zip(entry["order"], entry["microseconds"], strict=True):
            log = math.log2(max(time, 0.01)) + _away(key, processors, here)
            points.setdefault(key, {}).setdefault(entry["size"], []).append(log)
    # Entries of one size are other shapes of one class: their mean.
    return {key: sorted((size, sum(logs) / len(logs)) for size, logs in at.items()) for key, at in points.items()}


def _away(key: str, measured: ProcessorClass | None, here: ProcessorClass) -> float:
    """Returns log2 of how much longer an algorithm takes here than where it was measured, for the maker's sake."""
    away_from_intel = (here.maker != "intel") - (measured is not None and measured.maker != "intel")
    return away_from_intel * math.log2(AWAY_FROM_INTEL.get(key.partition(".")[0], 1.0))


def predicted(curve: list[tuple[float, float]], size: float) -> float:
    """Returns log2 of the microseconds at a size: interpolated between points, extrapolated beyond them.

    Beyond its points a curve goes on as between the last two, but never falls and never grows faster than the work.
    A single point is taken to grow with two thirds of the work, as small problems do.

    Examples
    --------
    >>> predicted([(10.0, 0.0), (20.0, 5.0)], 14.0), predicted([(10.0, 0.0), (20.0, 5.0)], 30.0), predicted([(10.0, 0.0)], 13.0)
    (2.0, 10.0, 2.0)
    """
    if len(curve) == 1:
        return curve[0][1] + (size - curve[0][0]) * 2 / 3
    after = next((i for i, point in enumerate(curve) if point[0] >= size), len(curve))
    i = min(max(after, 1), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[i - 1], curve[i]
    slope = (y1 - y0) / (x1 - x0)
    if not x0 <= size <= x1:
        slope = min(max(slope, 0.0), 1.0)
    return y0 + slope * (size - x0) if size <= x1 else y1 + slope * (size - x1)


def _size(problem: Problem) -> float:
    return math.log2(max(problem.flops, 1.0))


@lru_cache(maxsize=2048)
def _ordered(here: ProcessorClass, op: str, dtype: str, kind: str, size: float) -> tuple[str, ...]:
    times = {key: predicted(curve, size) for key, curve in _curves(here, op, dtype, kind).items()}
    return tuple(sorted(times, key=times.__getitem__))


def _order(problem: Problem) -> tuple[str, ...]:
    if problem.device != "cpu":
        return ()
    # Quarters of a doubling: times differ by less than a fifth within one, and a program's shapes share the answers.
    size = round(4 * _size(problem)) / 4
    return _ordered(here(), problem.op, short(problem.dtype), shape_class(problem), size)


def sort(problem: Problem, algorithms: list[Algorithm], prefer: Collection[str] = ()) -> list[Algorithm]:
    """The algorithms in ranked order; `prefer` names libraries that are preferred whatever their algorithms change meanwhile."""
    order = _order(problem)
    return sorted(algorithms, key=lambda a: (BORROWED in a.traits and a.library not in prefer, _rank(a, order, problem)))


def _rank(a: Algorithm, order: Sequence[str], problem: Problem) -> tuple[int, bool, int]:
    key = STAND_INS.get(a.key, a.key)
    # Attention in half precision is permitted by a switch that nobody sets but to have it; which kernel it is decides before.
    # Kernels compiled for the shape exist on some processors only, where little comes near them: first where none was measured.
    leads = a.library == _packs(problem) or "half math" in a.traits or (a.name == "jit" and key not in order)
    known = -1 if leads else order.index(key) if key in order else len(order)
    return known, not a.scaled and problem.flops >= 1e6, _place(a.library)


def _place(library: str) -> int:
    return LIBRARIES.index(library) if library in LIBRARIES else len(LIBRARIES)


def sooner(problem: Problem, chosen: Algorithm, names: Collection[str], reduced: bool = False) -> str:
    """The first of some libraries that may have what comes before `chosen`, or an empty string.

    Algorithms that reduce the precision of their inputs count only where that is permitted: `reduced`.

    What a library has is not known before it is asked: one that the entry does not name is taken to have what comes first of all
    that is not named.
    """
    order = [key for key in _order(problem) if reduced or not _reduces(key)]
    compiles = chosen.name != "jit" and "mkl.jit@1" not in order and _compiles(problem)
    first_of_all = ("mkl" if compiles else "", _packs(problem))

    def best(name: str) -> tuple[int, bool, int]:
        named = next((i for i, key in enumerate(order) if key.partition(".")[0] == name), len(order))
        return -1 if name in first_of_all else named, False, _place(name)

    first = min(names, key=best)
    return first if BORROWED in chosen.traits or best(first) < _rank(chosen, order, problem) else ""


def _reduces(key: str) -> bool:
    return any(word in FINENESS for word in key.partition("@")[0].replace(".", "_").split("_"))


def _packs(problem: Problem) -> str:
    """The library to which packed weights are worth the most: in products with several rows that are not small, oneDNN.

    Weights of int8 are packed for oneDNN only; whoever else runs such a layer takes them as they were given.
    """
    if problem.family == "quantized":
        return "onednn" if problem.get("form") is not None else ""
    rows = getattr(problem, "m", 0)
    return "onednn" if problem.packed and rows > 1 and problem.dtype.name == "float32" and problem.flops >= PACKED_FLOPS else ""


def _compiles(problem: Problem) -> bool:
    """Tells if MKL may compile a kernel for the shape: the only reason to load it for small products."""
    return problem.op == "matmul" and max(getattr(problem, side) for side in "mnk") <= 64 and here().maker == "intel"


def describe(problem: Problem) -> str:
    """Returns the origin of the order, in words."""
    machine = here()
    processors, entries = None, list[dict[str, Any]]()
    if problem.device == "cpu":
        processors, entries = _entries(machine, problem.op, short(problem.dtype), shape_class(problem))
    if processors is None:
        return "order of the libraries (the shipped ranking has no entry for this operation)"
    nearest = min(entries, key=lambda e: abs(e["size"] - _size(problem)))["example"]
    cpu = _read(processors).provenance["cpu"]
    text = f"shipped ranking {processors}, nearest entry {nearest} (measured on another machine: {cpu})"
    return text if processors == machine else f"{text}; none was made for {machine}, this machine"


def report() -> dict[str, Any]:
    """Returns which shipped ranking holds here, for `backline info`."""
    found = shipped()
    return {
        "class": str(here()), "shipped for": str(found.processors), "measured on": found.provenance["cpu"],
        "cores": found.provenance["cores"], "date": found.provenance["date"], "entries": len(found.entries),
    }  # fmt: skip
