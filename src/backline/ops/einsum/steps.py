"""Steps of an einsum, and rough estimates of what other ways of taking them would cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ...engine.choice import Choice
from ...problems import Problem
from ...problems.contraction_planner import Path, contraction_path
from ...problems.einsum_problem import EinsumProblem, contraction_flops
from ...problems.symbolic_sizes import rough
from .layout import ITEM, STEP, Term, axes_in_order

__all__ = ["Step", "StepWriter", "cost_later", "kept_labels", "looping"]

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


class StepWriter:
    """Writes down the steps of a contraction: a program of functions and the slots that they read, and a `Step` for each.

    The first slots hold the operands, the others what the functions make, one after the other; `path` and `steps` are as an
    `EinsumChoice` shows them. `make` gives the Plan of a step's Problem, or something that has its Choice.
    """

    home: str  # library that makes views
    direct: Any = None  # Plan of the whole sum, if it is one product of the arrays of the call
    single: Problem | None = None  # the same as a Problem, its operands in the order of the call, whichever is the left one

    def __init__(self, problem: EinsumProblem, make: Callable[[Problem], Any], slots: int) -> None:
        self.problem, self.make, self.first = problem, make, slots
        self.path: Path = ()
        self.steps: list[Step] = []
        self.program: list[tuple[Any, tuple[int, ...]]] = []
        self.sizes = {label: n for label, n in problem.sizes.items() if n != 1}
        self.output = tuple(label for label in problem.output if label in self.sizes)
        self.dtype = problem.dtype
        self.result = -1

    def _add(self, function: Any, *sources: int) -> int:
        """Appends a function; returns the slot of what it makes."""
        self.program.append((function, sources))
        return self.first + len(self.program) - 1

    def _equation(self, *terms: Term, to: tuple[str, ...]) -> str:
        return f"{','.join(''.join(t.labels) for t in terms)}->{''.join(to)}"

    def _size(self, labels: tuple[str, ...]) -> int:
        return prod(self.sizes[label] for label in labels)

    def _find_path(self, terms: Sequence[Term]) -> None:
        shapes = tuple(tuple(self.sizes[label] for label in t.labels) for t in terms)
        limit = self.problem.parameter("memory_limit")
        self.path = contraction_path(self._equation(*terms, to=self.output), shapes, limit)

    def _note(self, kind: str, choice: Choice | None, terms: tuple[Term, ...], to: tuple[str, ...]) -> None:
        labels = {label: self.sizes[label] for t in terms for label in t.labels}
        flops = 0.0
        if kind in ("product", "multiply", "sum", "einsum"):
            flops = contraction_flops(labels, len(terms), len(labels) > len(to), self.dtype.kind == "c")
        self.steps.append(Step(self._equation(*terms, to=to), kind, choice, flops, self._size(to)))


def kept_labels(now: Sequence[tuple[int, Term]], kept: frozenset[str]) -> tuple[str, ...]:
    """Returns the labels of a new result, in the order in which they lie in the operands."""
    return tuple(dict.fromkeys(label for _, t in now for label in axes_in_order(t.labels, t.steps) if label in kept))


def looping(x: Term, y: Term, sizes: dict[str, int], dtype: np.dtype[Any]) -> float:
    """Returns the seconds that NumPy's einsum takes for a pair, roughly; its innermost loop runs where strides are smallest."""
    steps = {label: min(abs(rough(t.steps[label])) for t in (x, y) if label in t.steps) for label in (*x.labels, *y.labels)}
    terms = float(np.prod([rough(sizes[label]) for label in steps], dtype=float))
    inner = max((rough(sizes[label]) for label, step in steps.items() if step <= dtype.itemsize), default=1)
    return LOOPS + terms * TERM * (4 if dtype.kind == "c" else 1) + terms / inner * ROW


def cost_later(
    path: Sequence[tuple[int, ...]], rest: Sequence[tuple[str, ...]], output: tuple[str, ...],
    size: Callable[[tuple[str, ...]], int],
) -> Callable[[tuple[str, ...]], float]:  # fmt: skip
    """Returns an estimate of what an order of a result's axes costs in the step that reads it.

    Axes that are summed over there and lie apart cost a copy. So do those that only this result has, or else a product for each
    index of all but the largest part of them. `path` has the steps to come, `rest` the labels of what is left beside the result,
    which comes after them; `size` counts the elements of an array with some labels.
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
