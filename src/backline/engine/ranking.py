"""The shipped ranking: which algorithm comes first on a machine that nobody has tuned.

It is data, made by ``benchmarks/make_ranking.py`` from measurements, with its provenance in it. A Problem takes the entry of
its operation and dtype whose size is nearest on a logarithmic scale; what an entry does not name comes after, in the order
of the libraries.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from typing import Any

from ..libraries.base import Algorithm
from ..problems import Problem, short

__all__ = ["describe", "sort"]

FILE = os.path.join(os.path.dirname(__file__), "ranking.json")
# Without an entry: what is made for the operation before what makes a product of it, and NumPy last.
LIBRARIES = ("onednn", "openblas", "mkl", "blis", "numpy")


@lru_cache(maxsize=1)
def data() -> dict[str, Any]:
    """The file, read once."""
    import json

    with open(FILE, encoding="utf-8") as stream:
        content: dict[str, Any] = json.load(stream)
    return content


def shape_class(problem: Problem) -> str:
    """What distinguishes Problems of one operation beyond their size: vectors, batches, thin matrices."""
    if problem.op == "matmul":
        m, n, k, items = (getattr(problem, x) for x in ("m", "n", "k", "items"))
        if m == n == 1:
            return "dot"
        if m == 1 or n == 1:
            return "gemv"
        if items > 1:
            return "batch"
        if min(m, n, k) * 8 <= max(m, n, k):
            return "thin"
        return "square"
    return "batch" if getattr(problem, "items", 1) > 1 else ""


@lru_cache(maxsize=512)
def _entry(op: str, dtype: str, kind: str, size: float) -> dict[str, Any] | None:
    entries = [e for e in data()["entries"] if e["op"] == op and e["class"] == kind]
    same = [e for e in entries if e["dtype"] == dtype] or entries
    return min(same, key=lambda e: abs(e["size"] - size), default=None)


def _find(problem: Problem) -> dict[str, Any] | None:
    size = round(math.log2(max(problem.flops, 1.0)))
    return _entry(problem.op, short(problem.dtype), shape_class(problem), float(size))


def sort(problem: Problem, algorithms: list[Algorithm]) -> list[Algorithm]:
    """The algorithms in ranked order."""
    entry = _find(problem)
    order = entry["order"] if entry else []

    def rank(a: Algorithm) -> tuple[int, bool, int]:
        # Kernels compiled for the shape exist on some CPUs only, where nothing general comes near them: first wherever they are.
        known = -1 if a.name == "jit" else order.index(a.key) if a.key in order else len(order)
        library = LIBRARIES.index(a.library) if a.library in LIBRARIES else len(LIBRARIES)
        return known, not a.scaled and problem.flops >= 1e6, library

    return sorted(algorithms, key=rank)


def describe(problem: Problem) -> str:
    """Where the order comes from, in words."""
    entry = _find(problem)
    if entry is None:
        return "order of the libraries (the shipped ranking has no entry for this operation)"
    return f"shipped ranking, nearest entry {entry['example']} (measured on {data()['provenance']['cpu']})"
