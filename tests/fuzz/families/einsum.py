"""Random contractions of one to five operands, with repeated axes, diagonals, sums and an ellipsis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import Array, Draw, wide
from ..call import Call, generates
from .products import DTYPES, finished

LETTERS = "abcdefgXYm"


def _equation(draw: Draw) -> tuple[list[str], str, dict[str, int]]:
    count = draw.choice((1, 1, 2, 2, 2, 2, 3, 3, 4, 5))
    letters = list(LETTERS)
    draw.random.shuffle(letters)
    letters = letters[: draw.whole(1, 4 if count < 3 else 5)]
    most = 17 if count < 3 else 5
    sizes = {x: draw.size(most, 0.01) for x in letters}
    terms = []
    for _ in range(count):
        rank = draw.whole(0 if draw.chance(0.1) else 1, 3 if count > 2 else 4)
        term = [draw.choice(letters) for _ in range(rank)]
        if not draw.chance(0.15):  # mostly every axis once
            term = list(dict.fromkeys(term))
        terms.append("".join(term))
    used = sorted(set("".join(terms)))
    draw.random.shuffle(used)
    kept = "".join(used[: draw.whole(0, min(len(used), 4))])
    return terms, kept, sizes


def _contract(equation: str, arrays: list[Array]) -> Array:
    """The contraction by NumPy; without it where an operand is empty, which its einsum is not relied on for."""
    if "." in equation or all(a.size for a in arrays):
        return np.asarray(np.einsum(equation, *arrays))
    terms, arrow, kept = equation.partition("->")
    sizes = dict.fromkeys(terms, 1)
    for term, a in zip(terms.split(","), arrays, strict=True):
        for x, n in zip(term, a.shape, strict=True):
            if n != 1:
                sizes[x] = n
    if not arrow:
        kept = "".join(sorted(x for x in set(terms) - {","} if terms.count(x) == 1))
    return np.zeros([sizes[x] for x in kept], arrays[0].dtype)


@generates("einsum", "einsum", weight=8)
def einsum(draw: Draw, op: str) -> Call:
    terms, kept, sizes = _equation(draw)
    while math.prod(sizes[x] for x in set("".join(terms))) > 20000:
        for x in sizes:
            sizes[x] = min(sizes[x], max(sizes[x] * 2 // 3, 1))
    if len(terms) > 2 and draw.values in ("huge", "tiny", "special"):
        draw.values = "normal"  # intermediate results leave the range that the result has
    dtype = draw.choice(DTYPES) if draw.chance(0.9) else draw.choice(("int32", "int64"))
    dots = draw.chance(0.12)
    batch = tuple(draw.size(3, 0) for _ in range(draw.whole(1, 2))) if dots else ()
    arrays, written = [], []
    for term in terms:
        lead: tuple[int, ...] = ()
        if dots and draw.chance(0.7):
            lead = batch[draw.whole(0, len(batch)) :]
            lead = tuple(1 if draw.chance(0.2) else n for n in lead)
            term = "..." + term
        arrays.append(draw.array((*lead, *(1 if len(terms) > 1 and draw.chance(0.02) and sizes[x] else sizes[x] for x in term.replace("...", ""))), dtype))
        written.append(term)
    dots = any("." in t for t in written)
    equation = ",".join(written)
    if draw.chance(0.85) or dots:
        equation += "->" + ("..." if dots else "") + kept
    wides = [wide(a) for a in arrays]
    try:
        with np.errstate(all="ignore"):
            reference = _contract(equation, wides)
            size = _contract(equation, [np.abs(w) for w in wides])
    except ValueError:  # an axis of size one that repeats, which NumPy refuses
        arrays = [draw.array(tuple(sizes[x] for x in t), dtype) for t in terms]
        equation = ",".join(terms)
        wides = [wide(a) for a in arrays]
        with np.errstate(all="ignore"):
            reference = _contract(equation, wides)
            size = _contract(equation, [np.abs(w) for w in wides])
    terms_summed = math.prod(sizes.values())
    args: tuple[Any, ...] = (equation, *arrays)
    steps = max(len(arrays) - 1, 1) + (len(arrays) == 1)
    return finished(draw, op, args, {}, reference, size, terms_summed, arrays[0].dtype, steps, out=reference.ndim > 0 and draw.chance(0.5))


