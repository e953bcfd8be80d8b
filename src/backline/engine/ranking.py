"""The order of algorithms that were not measured for a Problem: by the times that are predicted for them.

What no measurement names comes after, in the order of the libraries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..libraries.base import BORROWED, Algorithm
from ..problems import Problem
from ..problems.op_registry import composites
from .effective_precision import FINENESS

__all__ = ["LARGE", "compiles", "describe", "fineness", "may_lead", "order_of", "place", "report", "sooner", "sort"]

# Without an entry: what is made for the operation before what makes a product of it, and NumPy last.
LARGE = 1e6  # floating-point operations from which what uses all threads comes before what uses one
PACKED_FLOPS = 2e5  # of a product with packed weights that it is worth calling oneDNN for
# Algorithms that the shipped rankings do not name -> those in whose place they stand.
STAND_INS = {
    "mkl.dfti_double@1": "mkl.dfti@1", "mkl.dfti_double@n": "mkl.dfti@n",
    # A plan that was timed, or is asked to be, comes where FFTW's estimate would come: just before it, as FFTW lists them.
    **{f"fftw.{way}@{count}": f"fftw.estimate@{count}" for way in ("measure", "patient") for count in "1n"},
}  # fmt: skip
LIBRARIES = ("onednn", "kernels", "openblas", "mkl", "blis", "nnpack", "xnnpack", "fftw", "scipy", "numpy")


def order_of(problem: Problem, own: bool = True) -> tuple[str, ...]:
    """Returns the keys of algorithms by their predicted times, the least first; empty where nothing like it was measured."""
    from . import predicted_times  # not needed before something is chosen

    if problem.device != "cpu":
        return ()
    # What a library computes as a whole is ranked as the first of its parts is.
    place = problem.place()
    return predicted_times.order_of(place._replace(op=next(iter(composites.get(place.op, ())), place.op)), own)


def sort(problem: Problem, algorithms: list[Algorithm], prefer: Collection[str] = (), own: bool = True) -> list[Algorithm]:
    """Sorts algorithms by predicted time.

    Parameters
    ----------
    problem, algorithms
        What is asked, and the candidates.
    prefer
        Libraries that are preferred, whatever their algorithms change meanwhile.
    own
        Whether measurements of this machine count, beside the shipped ones.
    """
    order, large, packs = order_of(problem, own), problem.flops >= LARGE, _packs(problem)
    return sorted(algorithms, key=lambda a: (BORROWED in a.traits and a.library not in prefer, place(a, order, large, packs)))


def place(a: Algorithm, order: Sequence[str], large: bool, packs: str = "") -> tuple[int, bool, int]:
    """Returns the place of an algorithm in an order, of a large Problem or not; that of the library that packs weights is -1."""
    key = STAND_INS.get(a.key, a.key)
    # Attention in half precision is permitted by a switch that nobody sets but to have it; which kernel it is decides before.
    # Kernels compiled for the shape exist on some processors only, where little comes near them: first where none was measured.
    leads = a.library == packs or "half math" in a.traits or (a.name == "jit" and key not in order)
    known = -1 if leads else order.index(key) if key in order else len(order)
    return known, not a.scaled and large, _place(a.library)


def may_lead(library: str, order: Sequence[str], left_out: Collection[str], compiles: bool) -> tuple[int, bool, int]:
    """Returns the least place that an algorithm of a library may have, if none of those `left_out` is a candidate.

    What a library has is not known before it is asked: one that the order does not name is taken to have what comes first of all
    that is not named.
    """
    named = next((i for i, key in enumerate(order) if key.partition(".")[0] == library and key not in left_out), len(order))
    return -1 if compiles and library == "mkl" else named, False, _place(library)


def _place(library: str) -> int:
    return LIBRARIES.index(library) if library in LIBRARIES else len(LIBRARIES)


def sooner(problem: Problem, chosen: Algorithm, names: Collection[str], reduced: bool = False) -> str:
    """The first of some libraries that may have what comes before `chosen`, or an empty string.

    Algorithms that reduce the precision of their inputs count only where that is permitted: `reduced`.
    """
    order, packs = order_of(problem), _packs(problem)
    left_out = () if reduced else [key for key in order if fineness(key) < 2]
    compiles_here = chosen.name != "jit" and compiles(problem, order)

    def best(name: str) -> tuple[int, bool, int]:
        return (-1, False, _place(name)) if name == packs else may_lead(name, order, left_out, compiles_here)

    first = min(names, key=best)
    taken = place(chosen, order, problem.flops >= LARGE, packs)
    return first if BORROWED in chosen.traits or best(first) < taken else ""


def fineness(key: str) -> int:
    """Returns how finely an algorithm computes, as far as its name tells; by the scale of `effective_precision.FINENESS`.

    Examples
    --------
    >>> fineness("onednn.nhwc_bf16@n"), fineness("emulated.tf32@1"), fineness("mkl.gemm@1")
    (0, 1, 2)
    """
    return min(FINENESS.get(word, 2) for word in key.partition("@")[0].replace(".", "_").split("_"))


def _packs(problem: Problem) -> str:
    """The library to which packed weights are worth the most: in products with several rows that are not small, oneDNN.

    Weights of int8 are packed for oneDNN only; whoever else runs such a layer takes them as they were given.
    """
    if problem.family == "quantized":
        return "onednn" if problem.get("form") is not None else ""
    rows = getattr(problem, "m", 0)
    packs = problem.packed and rows > 1 and problem.dtype.name in ("float32", "bfloat16", "float16")
    return "onednn" if packs and problem.flops >= PACKED_FLOPS else ""


def compiles(problem: Any, order: Sequence[str]) -> bool:
    """Tells if MKL may compile a kernel for the shape, and none was measured: the only reason to load it for small products."""
    from .ranking_files import here

    small = problem.op == "matmul" and problem.m <= 64 and problem.n <= 64 and problem.k <= 64
    return small and "mkl.jit@1" not in order and here().maker == "intel"


def describe(problem: Problem, own: bool = True) -> str:
    """Returns the origin of the order that `sort` makes, in words."""
    from . import ranking_files
    from .tuning import record_store

    processors, entries, mine = None, list[dict[str, Any]](), 0
    machine, place = ranking_files.here(), problem.place()
    if problem.device == "cpu":
        mine = record_store.count(*place[:3]) if own else 0
        processors, entries = ranking_files.entries(machine, *place[:3])
    here = f"{mine} problem{'' if mine == 1 else 's'} like it measured on this machine"
    if processors is None:
        return here if mine else "order of the libraries (the shipped ranking has no entry for this operation)"
    nearest = min(entries, key=lambda e: abs(e["size"] - place.work))["example"]
    cpu = ranking_files.provenance(processors)["cpu"]
    text = f"shipped ranking {processors}, nearest entry {nearest} (measured on another machine: {cpu})"
    if mine:
        return f"{here}; for the rest the {text}"
    return text if processors == machine else f"{text}; none was made for {machine}, this machine"


def report() -> dict[str, Any]:
    """Returns which shipped ranking holds here, for `backline info`."""
    from . import ranking_files
    from .tuning import record_store

    found = ranking_files.shipped()
    return {
        "class": str(ranking_files.here()), "shipped for": str(found.processors), "measured on": found.provenance["cpu"],
        "cores": found.provenance["cores"], "date": found.provenance["date"], "entries": len(found.entries),
        "measured here": sum(bool(r.place) for r in record_store.every()),
    }  # fmt: skip
