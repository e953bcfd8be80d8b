"""The order of algorithms that were not measured for a Problem: by the times that are predicted for them.

What no measurement names comes after, in the order of the libraries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from .. import libraries
from ..libraries import fixed_order
from ..libraries.base import BORROWED, LEADS, Algorithm
from ..native.processor_class import this_class
from ..problems import Place, Problem
from ..problems.op_registry import composites
from .algorithm_keys import on_one_thread
from .effective_precision import fineness

__all__ = [
    "LARGE", "by_intel", "describe", "fineness", "first_places", "leader", "made_with", "may_lead", "named", "order_of", "packs",
    "place", "report", "sooner", "sort", "times_of",
]  # fmt: skip

# Without an entry: what is made for the operation before what makes a product of it, and NumPy last.
LARGE = 5e6  # floating-point operations from which what uses all threads comes before what uses one
PACKED_FLOPS = 2e5  # of a product with packed weights that it is worth calling oneDNN for
# Algorithms -> those in whose place they stand where the order does not name them.
STAND_INS = {
    # Hermitian matrices take what symmetric ones take.
    **{f"{name}.he{routine}{way}@{count}": f"{name}.sy{routine}{way}@{count}"
       for name in ("mkl", "openblas") for routine in ("trf", "trs") for way in ("", "_items") for count in "1n"},
    # A dot product in parts is listed before the whole one, and comes before it where threads bring something.
    **{f"{name}.dot_split@{count}": f"{name}.dot@1" for name in ("mkl", "openblas", "blis") for count in "1n"},
    # LU on all threads, which some rankings were made without: where it is large enough to be listed, they help.
    **{f"mkl.{name}@n": f"mkl.{name}@1" for name in ("getrf", "getrs", "getri", "gesv")},
    # OpenBLAS runs LU on a pool of its own, so on one thread only; what is divided among the team's is sooner.
    **{f"openblas.{name}_split@n": f"openblas.{name}@1" for name in ("getrf", "getrs")},
    # Listed before the whole solution, and so before it where nothing was measured of either but one.
    **{f"{name}.potrs_split@n": f"{name}.potrs@n" for name in ("mkl", "openblas", "blis")},
    # The same transforms without NumPy's Python around them.
    "numpy.loops@1": "numpy.fft@1",
    # Small products of 16-bit floats, of which nothing was measured, take what those of float32 take.
    **{f"{name}.gemm_f32@1": f"{name}.gemm@1" for name in ("mkl", "openblas", "blis")},
    **{f"mkl.{name}@{count}": f"mkl.dfti@{count}" for name in ("dfti_double", "dfti_chirp") for count in "1n"},
    # A plan that was timed, or is asked to be, comes where FFTW's estimate would come: just before it, as FFTW lists them.
    **{f"fftw.{way}@{count}": f"fftw.estimate@{count}" for way in ("measure", "patient") for count in "1n"},
}  # fmt: skip
GENERAL = ("numpy",)  # comes after all others there, for it runs what it has on what threads it likes
# What is made for the operation, or compiled for the shape, exists for few, where little comes near it: where a ranking names
# none of it, it comes first. What is compiled runs on one thread, so not for large Problems.
MADE_FOR_THE_OPERATION = "kernels"
COMPILED = "jit"  # an algorithm of MKL's
# Small products with few rows are no such case, but of 16-bit floats, which others convert.
FEW_ROWS = "few_rows"
# Nor are transforms and batches of small products, which every library has: where nothing of ours was measured they come last.
AFTER_OTHERS = "mixed_radix", "small_products"
LIBRARIES = ("onednn", "kernels", "openblas", "mkl", "blis", "nnpack", "xnnpack", "fftw", "scipy", "libmvec", "numpy")
FIRST_ON_INTEL, SECOND_ON_INTEL = "mkl", "openblas"  # the first of them has its best kernels for Intel's processors


def order_of(problem: Problem, own: bool = True) -> tuple[str, ...]:
    """Returns the keys of algorithms by their predicted times, the least first; empty where nothing like it was measured."""
    from . import predicted_times  # not needed before something is chosen

    if problem.device != "cpu":
        return ()
    return predicted_times.order_of(_part(problem.place()), own)


def _part(place: Place) -> Place:
    """Returns the place by which a Problem is ranked: what a library computes as a whole as the first of its parts is."""
    return place._replace(op=next(iter(composites.get(place.op, ())), place.op))


def times_of(problem: Problem) -> Mapping[str, float]:
    """Returns the times that are predicted for algorithms, in proportion to each other."""
    from . import predicted_times

    return predicted_times.times_of(_part(problem.place())) if problem.device == "cpu" else {}


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
    order, large, packer = order_of(problem, own), problem.flops >= LARGE, packs(problem)
    return sorted(algorithms, key=lambda a: (BORROWED in a.traits and a.library not in prefer, place(a, order, large, packer)))


def place(a: Algorithm, order: Sequence[str], large: bool, packer: str = "") -> tuple[int, int, int]:
    """Returns the place of an algorithm in an order, of a large Problem or not; that of the library that packs weights is -1."""
    key = named(a.key, order)
    # Attention in half precision is permitted by a switch that nobody sets but to have it; which kernel it is decides before.
    leads = a.library == packer or "half math" in a.traits or (a.name == COMPILED and not large and key not in order)
    leads = leads or LEADS in a.traits or (
        a.library == MADE_FOR_THE_OPERATION and a.name not in AFTER_OTHERS and (a.name != FEW_ROWS or large or bool(a.precision))
        and not _names(tuple(order), MADE_FOR_THE_OPERATION)
    )  # fmt: skip
    known = -1 if leads else order.index(key) if key in order else len(order)
    return known, 2 if a.library in GENERAL else int(not a.scaled and large), _place(a.library)


def named(key: str, known: Collection[str]) -> str:
    """Returns the key of an algorithm, or where that is not among those known, of the one in whose place it stands."""
    if key in known:
        return key
    whole = key.replace(fixed_order.SUFFIX, "")  # parts of a fixed size: about as fast as what the library divides by itself
    if whole in known:
        return whole
    found = STAND_INS.get(whole, whole)
    # On all threads it is listed where they may help: there it is about as fast as on one, which was measured.
    alone = on_one_thread(found)
    return alone if found not in known and alone in known else found


@lru_cache(maxsize=1024)
def _names(order: tuple[str, ...], library: str) -> bool:
    """Tells if an order names an algorithm of a library."""
    return any(key.startswith(f"{library}.") for key in order)


def first_places(order: Sequence[str], left_out: Collection[str]) -> dict[str, int]:
    """Returns for each library the place of its first algorithm in an order, those `left_out` aside."""
    places: dict[str, int] = {}
    for place, key in enumerate(order):
        if key not in left_out:
            places.setdefault(key.partition(".")[0], place)
    return places


def may_lead(library: str, places: Mapping[str, int], last: int, leaders: Collection[str]) -> tuple[int, int, int]:
    """Returns the least place that an algorithm of a library may have, from its place of `first_places`.

    What a library has is not known before it is asked: one that is not named there is taken to have what comes first of all
    that is not named, at the place `last`. The `leaders` are what `leader` and `packs` returned.
    """
    named = -1 if library in leaders else places.get(library, last)
    return named, 2 if library in GENERAL else 0, _place(library)


def _place(library: str) -> int:
    """Returns the place of a library among all where nothing was measured."""
    places = _places(LIBRARIES, by_intel())
    return places.get(library, len(places))


@lru_cache(maxsize=1)
def by_intel() -> bool:
    """Tells whether the processor is one of Intel's."""
    return this_class("default").maker == "intel"


@lru_cache(maxsize=4)
def _places(libraries: tuple[str, ...], intel: bool) -> Mapping[str, int]:
    order = list(libraries)
    if intel and {FIRST_ON_INTEL, SECOND_ON_INTEL} <= set(order):
        order.remove(FIRST_ON_INTEL)
        order.insert(order.index(SECOND_ON_INTEL), FIRST_ON_INTEL)
    return {library: place for place, library in enumerate(order)}


def sooner(problem: Problem, chosen: Algorithm, names: Collection[str], reduced: bool = False) -> str:
    """The first of some libraries that may have what comes before `chosen`, or an empty string.

    Algorithms that reduce the precision of their inputs count only where that is permitted: `reduced`.
    """
    order, packer = order_of(problem), packs(problem)
    places = first_places(order, () if reduced else [key for key in order if fineness(key) < 2])
    ahead = packer, "" if chosen.name == COMPILED else leader(problem, order)

    def best(name: str) -> tuple[int, int, int]:
        return may_lead(name, places, len(order), ahead)

    first = min(names, key=best)
    taken = place(chosen, order, problem.flops >= LARGE, packer)
    return first if BORROWED in chosen.traits or best(first) < taken else ""


def packs(problem: Problem) -> str:
    """The library to which packed weights are worth the most: in products with several rows that are not small, oneDNN.

    Those of int8 are packed for oneDNN where it has instructions for them. Where they are packed for a loop of ours, oneDNN has
    refused the layer.
    """
    if problem.family == "quantized":
        return "onednn" if problem.get("form") is not None else ""
    rows = getattr(problem, "m", 0)
    packs = problem.packed and rows > 1 and problem.dtype.name in ("float32", "bfloat16", "float16")
    return "onednn" if packs and problem.flops >= PACKED_FLOPS else ""


def leader(problem: Any, order: Sequence[str]) -> str:
    """Returns the library that may have an algorithm that leads though no ranking names it, or an empty string.

    It is "mkl", which compiles kernels for small products and is loaded for nothing else of them; or "kernels", which of linear
    algebra has batches of small systems alone, and of products those with few rows.
    """
    from .ranking_files import here

    small = problem.op == "matmul" and problem.m <= 64 and problem.n <= 64 and problem.k <= 64 and problem.flops < LARGE
    if small and "mkl.jit@1" not in order and here().maker == "intel":
        return "mkl"
    if problem.family == "fft" or _names(tuple(order), MADE_FOR_THE_OPERATION) or not getattr(problem, "suits_loops", True):
        return ""
    if problem.family == "matmul" and problem.flops < LARGE and problem.dtype.itemsize > 2:
        return ""
    return MADE_FOR_THE_OPERATION


def describe(problem: Problem, own: bool = True) -> str:
    """Returns the origin of the order that `sort` makes, in words."""
    from . import predicted_times, ranking_files
    from .tuning import record_store

    if problem.device != "cpu":
        return "order of the libraries (the shipped ranking has no entry for this operation)"
    machine, place = ranking_files.here(), problem.place()
    mine = record_store.count(*place[:3]) if own else 0
    here = f"{mine} problem{'' if mine == 1 else 's'} like it measured on this machine"
    found = predicted_times.nearest(_part(place))
    if found is None:
        return here if mine else "order of the libraries (the shipped ranking has no entry for this operation)"
    processors, nearest = found
    cpu = ranking_files.provenance(processors)["cpu"]
    text = f"shipped ranking {processors}, nearest entry {nearest} (measured on another machine: {cpu})"
    if mine:
        return f"{here}; for the rest the {text}"
    return text if processors == machine else f"{text}; none was made for {machine}, this machine"


def made_with(library: str) -> str:
    """Returns words that say with which release of a library the ranking was made; empty if with the one that is here."""
    from . import ranking_files

    here, measured = libraries.get(library).version(), ranking_files.shipped().provenance.get("libraries", {}).get(library)
    return f"; made with {library} {measured}, and {here} is here" if here and measured and here != measured else ""


def report() -> dict[str, Any]:
    """Returns which shipped ranking holds here, for `backline info`."""
    from . import ranking_files
    from .tuning import record_store

    found = ranking_files.shipped()
    mine = [r for r in record_store.every() if r.place]
    return {
        "class": str(ranking_files.here()), "shipped for": str(found.processors), "measured on": found.provenance["cpu"],
        "cores": found.provenance["cores"], "date": found.provenance["date"], "entries": len(found.rows),
        "measured here": sum(not r.disturbed for r in mine), "measured on a busy machine": sum(bool(r.disturbed) for r in mine),
    }  # fmt: skip
