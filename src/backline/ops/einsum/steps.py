"""Steps of an einsum, and rough estimates of what other ways of taking them would cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ...engine.choice import Choice
from .layout import ITEM, STEP, Term, axes_in_order

__all__ = ["Step", "cost_later", "kept_labels", "looping"]

LOOPS, TERM, ROW = 4e-6, 4e-10, 1e-8  # seconds of NumPy's einsum: of a call, a term of the sum, an innermost loop


@dataclass(frozen=True)
class Step:
    """One step of a contraction.

    Attributes
    ----------
    equation
        What it computes, in the labels of the equation.
    kind
        "product", "multiply", "sum", "einsum", "copy", "view" or "convert".
    choice
        Which library runs it and why; None where memory is only moved.
    flops
        Operations.
    elements
        Elements of its result.
    """

    equation: str
    kind: str
    choice: Choice | None
    flops: float
    elements: int


def kept_labels(now: Sequence[tuple[int, Term]], kept: frozenset[str]) -> tuple[str, ...]:
    """Labels of a new result, in the order in which they lie in the operands."""
    return tuple(dict.fromkeys(label for _, t in now for label in axes_in_order(t.labels, t.steps) if label in kept))


def looping(x: Term, y: Term, sizes: dict[str, int], dtype: np.dtype[Any]) -> float:
    """Seconds that NumPy's einsum takes for a pair, more or less; its innermost loop runs where strides are smallest."""
    steps = {label: min(abs(t.steps[label]) for t in (x, y) if label in t.steps) for label in (*x.labels, *y.labels)}
    terms = float(np.prod([sizes[label] for label in steps], dtype=float))
    inner = max((sizes[label] for label, step in steps.items() if step <= dtype.itemsize), default=1)
    return LOOPS + terms * TERM * (4 if dtype.kind == "c" else 1) + terms / inner * ROW


def cost_later(
    path: Sequence[tuple[int, ...]],
    rest: Sequence[tuple[str, ...]],
    output: tuple[str, ...],
    size: Callable[[tuple[str, ...]], int],
) -> Callable[[tuple[str, ...]], float]:
    """Estimates the cost of an order of a result's axes in the step that reads it.

    Axes that are summed over there and lie apart cost a copy. So do those that only this result has, or else a product for each
    index of all but the largest part of them.

    Parameters
    ----------
    path
        The steps to come.
    rest
        Labels of what is left beside the result, which comes after them.
    output
        Labels of the output.
    size
        Elements of an array with these labels.
    """
    terms: list[frozenset[str] | None] = [*map(frozenset, rest), None]  # None: the result
    for chosen in path:
        others = [term for i, term in enumerate(terms) if i not in chosen]
        kept = frozenset(output).union(*(term or () for term in others))
        among: frozenset[str] = frozenset().union(*(terms[i] or () for i in chosen))
        if any(terms[i] is None for i in chosen):
            break
        terms = [*others, among & kept]
    else:
        return lambda order: 0.0

    def cost(order: tuple[str, ...]) -> float:
        runs = [(group, size(tuple(labels))) for group, labels in groupby(order, lambda x: (x in among, x in kept))]
        copy = size(order) * STEP
        if sum(group == (True, False) for group, _ in runs) > 1:
            return copy
        own = sorted(n for group, n in runs if group == (False, True))
        return min(copy, prod(own[:-1]) * ITEM[2]) if len(own) > 1 else 0.0

    return cost
