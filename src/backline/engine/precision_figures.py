"""The precision of algorithms as measured: what is kept of each, and the shipped table of it.

The table was made by ``benchmarks/make_precision.py`` on the machines that its provenance names. What an algorithm's arithmetic
loses is much the same on all processors, for it is the order of its sums and the formats it passes through that decide; kernels
of other instruction sets sum in another order. So a figure of one processor counts on all others, and where several were
measured, the worst counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..libraries.base import Algorithm
from ..problems import Problem, short

__all__ = ["BOUNDS", "FILE", "Figure", "estimate", "figure", "figures", "merged", "provenance", "refusal", "text_of"]

FILE = os.path.join(os.path.dirname(__file__), "precision_figures.json")

# Bits that an algorithm may lose with ordinary operands against the best of its operation and dtype, by family; BOUND in those
# not named. Shapes differ by a part of a bit, so what loses almost as much in the shapes that were measured is refused, too.
BOUND = 2.0
BOUNDS: Mapping[str, float] = {}
MARGIN = 0.25


class Figure(NamedTuple):
    """The precision of one algorithm for one operation and dtype.

    Attributes
    ----------
    bits : float
        Equivalent mantissa bits of its arithmetic: in sums of one term, or of ordinary operands where there is no such case.
    ordinary : float
        Bits of ordinary operands, the least of several shapes.
    terms : int
        Terms of the sums in that shape.
    error : float
        Relative error there.
    worst : float
        Least bits of all cases.
    case : str
        The case in which it has those.
    loss : float
        Most bits lost in an ordinary case against the best algorithm of this dtype's arithmetic.
    against : str
        That algorithm.
    lost_in : str
        The case.
    """

    bits: float
    ordinary: float
    terms: int
    error: float
    worst: float
    case: str
    loss: float = 0.0
    against: str = ""
    lost_in: str = ""

    def __str__(self) -> str:
        sums = self.ordinary < self.bits - 0.05 and self.terms > 1
        inner = f", {self.ordinary:.1f} in sums of {self.terms} terms" if sums else ""
        return f"{self.bits:.1f} bits measured{inner} (worst {self.worst:.1f}: {self.case})"


Figures = dict[str, dict[str, dict[str, Figure]]]  # by operation, dtype and algorithm


def merged(one: Figure, other: Figure) -> Figure:
    """Returns the worse of two figures, part by part."""
    least = min(one, other, key=lambda f: f.ordinary)
    worst = min(one, other, key=lambda f: f.worst)
    lost = max(one, other, key=lambda f: f.loss)
    return least._replace(
        bits=min(one.bits, other.bits), worst=worst.worst, case=worst.case, loss=lost.loss, against=lost.against,
        lost_in=lost.lost_in,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    import json

    with open(FILE, encoding="utf-8") as stream:
        content: dict[str, Any] = json.load(stream)
    return content


def provenance() -> dict[str, Any]:
    """Returns where the shipped figures come from: for each class of processors the date, the command and the libraries."""
    made: dict[str, Any] = _content()["provenance"]
    return made


def figures() -> Figures:
    """Returns all shipped figures."""
    return {
        op: {dtype: {name: Figure(*row) for name, row in rows.items()} for dtype, rows in dtypes.items()}
        for op, dtypes in _content()["figures"].items()
    }


def figure(problem: Problem, algorithm: Algorithm) -> Figure | None:
    """Returns the shipped figure of an algorithm for a Problem's operation and dtype, or None."""
    library, name = algorithm.library, algorithm.name
    known = _content()["figures"].get(problem.op, {}).get(short(problem.dtype), {})
    # A batch divided among threads: each item is computed as it would be alone.
    row = known.get(f"{library}.{name}") or known.get(f"{library}.{name.removesuffix('_items')}")
    return Figure(*row) if row else None


def text_of(problem: Problem, algorithm: Algorithm | None) -> str:
    """Returns the figure of an algorithm in words, empty where there is none."""
    found = None if algorithm is None or problem.device != "cpu" else figure(problem, algorithm)
    return "" if found is None else str(found)


def estimate(problem: Problem, algorithm: Algorithm) -> float | None:
    """Returns the relative error that ordinary operands of a Problem have, from the shipped figure; None where there is none.

    Errors of sums of random terms grow with the root of their number; those of shorter sums than were measured are taken to be
    as large as measured ones, so that the estimate is an upper one.
    """
    found = figure(problem, algorithm) if problem.device == "cpu" else None
    if found is None:
        return None
    return found.error * math.sqrt(max(problem.summands / max(found.terms, 1), 1.0))


def refusal(problem: Problem, algorithm: Algorithm) -> str:
    """Returns the reason why an algorithm is below the precision of its family, or an empty string."""
    found = figure(problem, algorithm) if problem.device == "cpu" else None
    family, allowed = problem.family, BOUNDS.get(problem.family, BOUND)
    if found is None or found.loss <= allowed - MARGIN:
        return ""
    lost = f"loses {found.loss:.1f} bits against {found.against} ({found.lost_in})"
    return f"{lost}, {family} may lose {allowed:g}: it runs where it is preferred"
