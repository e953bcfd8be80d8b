"""The shipped ranking: which algorithm comes first on a machine that nobody has tuned.

It is data, made by ``benchmarks/make_ranking.py`` from measurements, with its provenance in it. A Problem takes the entry of
its operation and dtype whose size is nearest on a logarithmic scale; what an entry does not name comes after, in the order
of the libraries.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

from ..libraries.base import BORROWED, Algorithm
from ..problems import Problem, short
from ..problems.op_registry import composites
from .tuning.record import RENAMED, current_key

__all__ = ["describe", "sooner", "sort"]

FILE = os.path.join(os.path.dirname(__file__), "ranking.json")
# Without an entry: what is made for the operation before what makes a product of it, and NumPy last.
PACKED_FLOPS = 2e5  # of a product with packed weights that it is worth calling oneDNN for
# Algorithms that the shipped ranking does not name -> those in whose place they stand.
STAND_INS = {
    "mkl.dfti_double@1": "mkl.dfti@1", "mkl.dfti_double@n": "mkl.dfti@n",
    # A plan that was timed, or is asked to be, comes where FFTW's estimate would come: just before it, as FFTW lists them.
    **{f"fftw.{way}@{count}": f"fftw.estimate@{count}" for way in ("measure", "patient") for count in "1n"},
}  # fmt: skip
LIBRARIES = ("onednn", "kernels", "openblas", "mkl", "blis", "nnpack", "xnnpack", "fftw", "scipy", "numpy")


@lru_cache(maxsize=1)
def data() -> dict[str, Any]:
    """The shipped ranking, read once."""
    return read(FILE)


def read(file: str) -> dict[str, Any]:
    """Returns the content of a file that ``make_ranking.py`` wrote; algorithms of earlier versions have their names of now.

    Where several old names are one now, the first and fastest place stays.
    """
    import json

    with open(file, encoding="utf-8") as stream:
        text = stream.read()
    content: dict[str, Any] = json.loads(text)
    if any(f'"{old}@' in text for old in RENAMED):  # thousands of keys, and seldom one that has changed
        for entry in content["entries"]:
            times: dict[str, float] = {}
            for key, microseconds in zip(entry["order"], entry["microseconds"], strict=True):
                times.setdefault(current_key(key), microseconds)
            entry["order"], entry["microseconds"] = list(times), list(times.values())
    return content


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


@lru_cache(maxsize=512)
def _entry(op: str, dtype: str, kind: str, size: float) -> dict[str, Any] | None:
    entries = [e for e in data()["entries"] if e["op"] == op and e["class"] == kind]
    same = [e for e in entries if e["dtype"] == dtype] or entries
    return min(same, key=lambda e: abs(e["size"] - size), default=None)


def _find(problem: Problem) -> dict[str, Any] | None:
    if problem.device != "cpu":
        return None
    size = round(math.log2(max(problem.flops, 1.0)))
    # What a library computes as a whole is ranked as the first of its parts is.
    op = next(iter(composites.get(problem.op, ())), problem.op)
    return _entry(op, short(problem.dtype), shape_class(problem), float(size))


def sort(problem: Problem, algorithms: list[Algorithm], prefer: Collection[str] = ()) -> list[Algorithm]:
    """The algorithms in ranked order; `prefer` names libraries that are preferred whatever their algorithms change meanwhile."""
    order = _order(problem)
    return sorted(algorithms, key=lambda a: (BORROWED in a.traits and a.library not in prefer, _rank(a, order, problem)))


def _order(problem: Problem) -> list[str]:
    entry = _find(problem)
    return entry["order"] if entry else []


def _rank(a: Algorithm, order: list[str], problem: Problem) -> tuple[int, bool, int]:
    # Kernels compiled for the shape exist on some CPUs only, where nothing general comes near them: first wherever they are.
    # Attention in half precision is permitted by a switch that nobody sets but to have it; which kernel it is decides before.
    leads = a.name == "jit" or a.library == _packs(problem) or "half math" in a.traits
    key = STAND_INS.get(a.key, a.key)
    known = -1 if leads else order.index(key) if key in order else len(order)
    return known, not a.scaled and problem.flops >= 1e6, _place(a.library)


def _place(library: str) -> int:
    return LIBRARIES.index(library) if library in LIBRARIES else len(LIBRARIES)


def sooner(problem: Problem, chosen: Algorithm, names: Collection[str]) -> str:
    """The first of some libraries that may have what comes before `chosen`, or an empty string.

    What a library has is not known before it is asked: one that the entry does not name is taken to have what comes first of all
    that is not named.
    """
    order = _order(problem)
    compiled = "mkl" if chosen.name != "jit" and _compiles(problem) else ""
    packs = _packs(problem)

    def best(name: str) -> tuple[int, bool, int]:
        named = next((i for i, key in enumerate(order) if key.partition(".")[0] == name), len(order))
        return -1 if name in (compiled, packs) else named, False, _place(name)

    first = min(names, key=best)
    return first if BORROWED in chosen.traits or best(first) < _rank(chosen, order, problem) else ""


def _packs(problem: Problem) -> str:
    """The library to which packed weights are worth the most: in products with several rows that are not small, oneDNN.

    Weights of int8 are packed for oneDNN only; whoever else runs such a layer takes them as they were given.
    """
    if problem.family == "quantized":
        return "onednn" if problem.get("form") is not None else ""
    rows = getattr(problem, "m", 0)
    return "onednn" if problem.packed and rows > 1 and problem.dtype.name == "float32" and problem.flops >= PACKED_FLOPS else ""


@lru_cache(maxsize=1)
def _intel() -> bool:
    from ..native.machine import machine

    return machine().cpu.vendor == "GenuineIntel"


def _compiles(problem: Problem) -> bool:
    """Tells if MKL may compile a kernel for the shape: the only reason to load it for small products."""
    return problem.op == "matmul" and max(getattr(problem, side) for side in "mnk") <= 64 and _intel()


def describe(problem: Problem) -> str:
    """Returns the origin of the order, in words."""
    entry = _find(problem)
    if entry is None:
        return "order of the libraries (the shipped ranking has no entry for this operation)"
    return f"shipped ranking, nearest entry {entry['example']} (measured on {data()['provenance']['cpu']})"
