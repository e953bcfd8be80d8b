"""Layouts of einsum steps: axes of two operands as those of a matrix product, copied as little as strides allow.

Labels of a pair fall into four groups: those of both operands that the result has (the batch) or has not (summed over), and those
of one operand alone (rows, columns). A group whose axes lie one in the other in memory is one axis of a matrix. One that is not
needs a copy of an operand, or a product for each index of what is left over: a rough estimate of the time decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from ...problems import Operand
from ...problems.matmul_problem import MatmulProblem
from ...problems.memory_layout import contiguous_strides, is_contiguous, matrix_layout
from ...problems.symbolic_sizes import rough

__all__ = ["Axis", "Pair", "Term", "axes_in_order", "dense", "merged", "pair", "two_dimensions"]

Steps = dict[str, int]

# Rough costs in seconds; only their proportions matter.
CALL, STEP = 5e-7, 1e-9  # of a step, of moving one element across memory
ITEM = (2e-8, 6e-8, 2e-7)  # of an item of a batch: a product of two vectors, with one vector, with none
RATE = 3e10  # real operations per second
COPIES = tuple((bool(n & 1), bool(n & 2), bool(n & 4)) for n in (0, 1, 2, 4, 3, 5, 6, 7))  # of left, right, result
MAX_ITEMS = 200_000  # a batch has a table of where its items are


@dataclass(frozen=True)
class Term:
    """An array of a contraction: which label each of its axes has (axes of size 1 have none), and how it lies in memory."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True

    @cached_property
    def steps(self) -> Steps:
        """Stride of each label, in bytes; that of a diagonal is the sum of its axes'."""
        found: Steps = {}
        for label, stride in zip(self.axes, self.strides, strict=True):
            if label:
                found[label] = found.get(label, 0) + stride
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.steps)


class Axis(NamedTuple):
    """Axes merged into one: its labels, their size together, and the stride in each array."""

    labels: tuple[str, ...]
    size: int
    strides: tuple[int, ...]


def dense(order: tuple[str, ...], sizes: dict[str, int], item: int) -> Steps:
    """Strides of a new array with these axes."""
    return dict(zip(order, contiguous_strides([sizes[label] for label in order], item), strict=True))


def axes_in_order(labels: tuple[str, ...], steps: Steps) -> tuple[str, ...]:
    """From the outermost in memory to the innermost."""
    return tuple(sorted(labels, key=lambda label: -abs(steps[label])))


def merged(labels: tuple[str, ...], sizes: dict[str, int], *arrays: Steps) -> list[Axis]:
    """The fewest axes that these labels are in every array, the outermost of the first array first.

    >>> merged(("i", "j"), {"i": 2, "j": 3}, {"i": 24, "j": 8}, {"i": 96, "j": 32})
    [Axis(labels=('i', 'j'), size=6, strides=(8, 32))]
    """
    best: list[Axis] | None = None
    for steps in arrays:
        found: list[Axis] = []
        for label in axes_in_order(labels, steps):
            here = tuple(each[label] for each in arrays)
            if found and all(outer == inner * sizes[label] for outer, inner in zip(found[-1].strides, here, strict=True)):
                found[-1] = Axis((*found[-1].labels, label), found[-1].size * sizes[label], here)
            else:
                found.append(Axis((label,), sizes[label], here))
        if best is None or len(found) < len(best):
            best = found
    best = best or []
    best.sort(key=lambda axis: -abs(axis.strides[0]))
    return best


class _Groups(NamedTuple):
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    inner: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A product of two terms, in the form of matrices.

    Attributes
    ----------
    cost
        Estimate of the time.
    left, right, target
        Labels in the order in which an operand is copied before, or the result written before it is copied to where it belongs;
        None where nothing is copied.
    order, steps
        Labels and strides of the array that the product writes.
    batch, m, n, k
        Axes; strides of the batch's are in the order left, right, result (None where an array has no such axis).
    """

    cost: float
    left: tuple[str, ...] | None
    right: tuple[str, ...] | None
    target: tuple[str, ...] | None
    order: tuple[str, ...]
    steps: Steps
    batch: tuple[tuple[int, tuple[int | None, int | None, int]], ...]
    m: tuple[int, int, int]  # size, stride in left, in the result
    n: tuple[int, int, int]  # size, stride in right, in the result
    k: tuple[int, int, int]  # size, stride in left, in right

    @property
    def items(self) -> int:
        return math.prod(n for n, _ in self.batch)

    def writes(self, item: int) -> str:
        """Returns the order of a result that the plan allocates: "left right" or "right left" as the factors; else empty."""
        sizes = [size for size, _ in self.batch]
        steps = [strides[2] for _, strides in self.batch]

        def is_dense(*axes: tuple[int, int]) -> bool:
            return is_contiguous([*sizes, *(n for n, _ in axes)], [*steps, *(s for _, s in axes)], item)

        rows, columns = (self.m[0], self.m[2]), (self.n[0], self.n[2])
        return "left right" if is_dense(rows, columns) else "right left" if is_dense(columns, rows) else ""

    def problem(
        self, dtype: np.dtype[np.generic], aligned: tuple[bool, bool, bool], *, swapped: bool, out: bool, result: tuple[int, ...]
    ) -> MatmulProblem:
        """The Problem; `aligned` is of left, right and output."""

        def matrix(role: str, which: int, *axes: tuple[int, int]) -> Operand:
            found = [(1, 0) if strides[which] is None else (size, strides[which]) for size, strides in self.batch]
            shape = tuple(size for size, _ in (*found, *axes))
            return Operand(role, dtype, shape, tuple(step or 0 for _, step in (*found, *axes)), aligned[which])

        m, n = (self.m[0], self.n[0])
        rows, columns, inner = self.m, self.n, self.k
        left = matrix("a", 0, (m, rows[1]), (inner[0], inner[1]))
        right = matrix("b", 1, (inner[0], inner[2]), (n, columns[1]))
        target = matrix("out", 2, (m, rows[2]), (n, columns[2]))
        if swapped:
            left, right = _turned("a", right), _turned("b", left)
            target, m, n = _turned("out", target), n, m
        operands = (left, right, target) if out else (left, right)
        batch = tuple(size for size, _ in self.batch)
        shape = (*batch, m, n) if out else result
        return MatmulProblem("matmul", operands, (), "matmul", m=m, n=n, k=inner[0], batch=batch, result=shape)


def _turned(role: str, o: Operand) -> Operand:
    """The transposed matrices."""
    shape, strides = o.shape, o.strides
    turned = (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    return Operand(role, o.dtype, *turned, o.aligned)


def pair(
    left: Term, right: Term, sizes: dict[str, int], item: int, kept: frozenset[str], *, target: Steps | None = None,
    later: Callable[[tuple[str, ...]], float] = lambda order: 0.0,
) -> Pair | None:  # fmt: skip
    """Returns the cheapest way found to multiply two terms; None if there are too many items for a batch.

    Labels of the terms are in the other one or `kept`, which the result has; `item` is the size of an element. `target` has the
    strides of the result if they are given; else its axes may be in any order, and `later` is what an order costs later.
    """
    x, y = left.steps, right.steps
    both = tuple(label for label in x if label in y)
    groups = _Groups(
        tuple(label for label in both if label in kept),
        tuple(label for label in x if label not in y),
        tuple(label for label in y if label not in x),
        tuple(label for label in both if label not in kept),
    )
    search = _Search(groups, x, y, sizes, item)
    orders = [None] if target is not None else list(search.orders())
    best: Pair | None = None
    for copies in COPIES:
        if target is None and copies[2]:
            continue  # nothing is given that it would have to be copied to
        for order in orders:
            extra = later(order) if order is not None else 0.0
            found = search.lay(copies, target, order, extra)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
                if not any(copies) and search.perfect and not extra:
                    return best
    return best


class _Search:
    def __init__(self, groups: _Groups, x: Steps, y: Steps, sizes: dict[str, int], item: int) -> None:
        self.groups, self.x, self.y, self.sizes, self.item = groups, x, y, sizes, item
        self.perfect = False  # whether the last one found needs neither copies nor a product for each index left over

    def size(self, labels: tuple[str, ...]) -> int:
        return math.prod(self.sizes[label] for label in labels)

    def orders(self) -> Iterator[tuple[str, ...]]:
        """Orders of a new result's axes: the batch outside, rows and columns as they lie in the operands, and others."""
        g = self.groups
        outer = axes_in_order(g.batch, self.x)
        for rows in _few(axes_in_order(g.rows, self.x)):
            for columns in _few(axes_in_order(g.columns, self.y)):
                yield (*outer, *rows, *columns)
                if rows and columns:
                    yield (*outer, *columns, *rows)

    def lay(
        self, copies: tuple[bool, bool, bool], target: Steps | None, order: tuple[str, ...] | None, extra: float
    ) -> Pair | None:
        g, x, y = self.groups, self.x, self.y
        cost = CALL + extra
        if order is not None:
            final = dense(order, self.sizes, self.item)
        else:
            assert target is not None
            final = target
        written = None
        if copies[2]:
            written = (*axes_in_order(g.batch, final), *axes_in_order(g.rows, x), *axes_in_order(g.columns, y))
            cost += self.moving(written)
            final = dense(written, self.sizes, self.item)
        elif target is not None:
            order = axes_in_order((*g.batch, *g.rows, *g.columns), final)
        left: tuple[str, ...] | None = None
        right: tuple[str, ...] | None = None
        if copies[0]:
            inner = axes_in_order(g.inner, x if copies[1] else y)
            left = (*axes_in_order(g.batch, final), *axes_in_order(g.rows, final), *inner)
            cost += self.moving(left)
            x = dense(left, self.sizes, self.item)
        if copies[1]:
            right = (*axes_in_order(g.batch, final), *axes_in_order(g.inner, x), *axes_in_order(g.columns, final))
            cost += self.moving(right)
            y = dense(right, self.sizes, self.item)
        inner_axes = merged(g.inner, self.sizes, x, y)
        if len(inner_axes) > 1:
            return None  # its parts would have to be added up
        k = (1, 0, 0)
        if inner_axes:
            k = (inner_axes[0].size, inner_axes[0].strides[0], inner_axes[0].strides[1])
        batch = [(a.size, (a.strides[1], a.strides[2], a.strides[0])) for a in merged(g.batch, self.sizes, final, x, y)]
        rows, columns = merged(g.rows, self.sizes, final, x), merged(g.columns, self.sizes, final, y)
        best: Pair | None = None
        for i, j in product(range(max(len(rows), 1)), range(max(len(columns), 1))):
            more: list[tuple[int, tuple[int | None, int | None, int]]] = [*batch]
            more += [(a.size, (a.strides[1], None, a.strides[0])) for at, a in enumerate(rows) if at != i]
            more += [(a.size, (None, a.strides[1], a.strides[0])) for at, a in enumerate(columns) if at != j]
            more.sort(key=lambda axis: -abs(axis[1][2]))
            m = (rows[i].size, rows[i].strides[1], rows[i].strides[0]) if rows else (1, 0, 0)
            n = (columns[j].size, columns[j].strides[1], columns[j].strides[0]) if columns else (1, 0, 0)
            items = math.prod(size for size, _ in more)
            if items > MAX_ITEMS and (len(more) > 1 or items > 5 * MAX_ITEMS):
                continue
            spent = cost + self.products(items, m, n, k)
            if best is None or spent < best.cost:
                best = Pair(spent, left, right, written, written or order or (), final, tuple(more), m, n, k)
        self.perfect = max(len(rows), len(columns)) <= 1
        return best

    def moving(self, labels: tuple[str, ...]) -> float:
        elements: int = rough(self.size(labels))
        return CALL + elements * STEP

    def products(self, items: int, m: tuple[int, ...], n: tuple[int, ...], k: tuple[int, ...]) -> float:
        """Time of all products: full speed needs sizes of some tens and rows that are not short pieces of memory far apart.

        A matrix that BLAS cannot read as it is is copied.
        """
        m, n, k = (tuple(map(rough, axis)) for axis in (m, n, k))
        flops = 2.0 * m[0] * n[0] * k[0]
        speed = RATE * m[0] / (m[0] + 4) * n[0] / (n[0] + 4) * k[0] / (k[0] + 2)
        moved = 0.0
        matrices = ((m[0], k[0], m[1], k[1]), (k[0], n[0], k[2], n[1]), (m[0], n[0], m[2], n[2]))
        for rows, columns, down, across in matrices:
            layout = matrix_layout((rows, columns), (down, across), self.item)[0]
            if min(rows, columns) > 1 and layout == "X":
                moved += rows * columns
            length, step = (columns, down) if layout == "C" else (rows, across)
            if abs(step) > length * self.item:
                moved += 2 * rows * columns / length  # a line of the cache for each row, at least
        seconds: float = rough(items) * (ITEM[(m[0] > 1) + (n[0] > 1)] + flops / speed + moved * STEP)
        return seconds


def _few(labels: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every order of a few labels; of many, as they are and the other way round."""
    if len(labels) <= 3:
        yield from permutations(labels)
    else:
        yield labels
        yield labels[::-1]


def two_dimensions(labels: tuple[str, ...], sizes: dict[str, int], source: Steps, target: Steps) -> tuple[list[Axis], list[Axis]]:
    """A copy as one of matrices: the axes of the items, and two axes of a matrix; strides are target, source."""
    axes = merged(labels, sizes, target, source)
    if not axes:
        axes = [Axis((), 1, (0, 0))]
    last = min(range(len(axes)), key=lambda i: (abs(axes[i].strides[0]), i))
    others = [i for i in range(len(axes)) if i != last]
    if not others:
        return [], [Axis((), 1, (0, 0)), axes[last]]
    first = min(others, key=lambda i: abs(axes[i].strides[1]))  # the source runs along it, unless it runs along the last
    return [axes[i] for i in others if i != first], [axes[first], axes[last]]
