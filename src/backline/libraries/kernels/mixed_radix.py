"""Fourier transforms by compiled loops that take as many lines at a time as a vector has lanes.

A length is a product of radices, each of which is a pass (T. G. Stockham, "High-speed convolution and correlation", AFIPS
Spring Joint Computer Conference, 1966). Prime factors above 13 are summed up by definition, large ones convolved
(`radix_tables`). A long line is divided into shorter ones, which are transformed along one side of a matrix and then along the
other (W. M. Gentleman and G. Sande, "Fast Fourier transforms: for fun and profit", AFIPS Fall Joint Computer Conference, 1966).
Every line takes the same steps on any number of threads, and so the bits do not depend on it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Pointer
from ...problems.fft_problem import FftProblem
from ..base import Algorithm, Refusal
from ..fft_steps import SMALL_FLOPS, Dim, Lay, Steps, batches, empty_plan, offsets, packed, pieces, thread_counts, unfit
from .radix_tables import Convolution, circle, convolution, convolutions, passes, radices, sides, table, turns
from .vector_level import vector_level

__all__ = ["MIXED_RADIX", "mixed_radix_algorithms", "prepare_mixed_radix"]

MIXED_RADIX = "mixed_radix"
POINTS = 4096  # of a line that is not divided: so many lie in a cache
MOST_SIDE = 2 * POINTS  # of the lines that one is divided into
LANES = 16  # lines of a vector, of the widest
FEW, DIVIDED = LANES // 2, 256  # of fewer lines each is divided, if it has at least so many points
VECTOR_BYTES = 64
MOST_PASSES = 16  # kMostPasses of radix_passes.hpp
MOST_POINTS = 1 << 20  # of a complex line that is divided: its plan keeps a number for each
MOST_ITEMS = 1 << 16  # of places that lines begin in, beside those of one axis
SIDES = ("c2c", "r2c", "c2r")  # in the order of mixed_radix.cpp, where an odd number of points has two more
PAIRS = 1 << 12  # results of a long real line that are made at a time
PLANES, PLANE_BYTES = 8, 1 << 19  # of planes that are transformed along both axes at a time


def mixed_radix_algorithms(p: FftProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loops on all threads and on one, or the reason why there are none."""
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", MIXED_RADIX, reason)
    elif p.empty:
        yield Algorithm(library="kernels", name="empty", level="threads", basis="construction", note="nothing to compute")
    else:
        for count in thread_counts(p, threads):
            yield Algorithm(
                library="kernels", name=MIXED_RADIX, threads=count, scaled=count > 1, level="threads", basis="construction",
                pool=thread_team.name() if count > 1 else "", note="several lines at a time",
            )  # fmt: skip


def _refusal(p: FftProblem) -> str:
    """Returns the reason why the loops do not compute transforms, or an empty string."""
    if p.op == "fft.r2r":
        return "its loops are for Fourier transforms, not for those of cosines and sines"
    reason = unfit(p)
    if reason or p.empty:
        return reason
    real = p.op != "fft.c2c" or p.dtype.kind != "c"
    last = p.axes[-1]
    shape = [p.lengths[-1] // 2 + 1 if real and i == last else m for i, m in enumerate(p.result)]
    for axis, n in zip(p.axes, p.lengths, strict=True):
        others = [m for i, m in enumerate(shape) if i != axis]
        lines = prod(others)
        if lines // max(others, default=1) > MOST_ITEMS:
            return f"lines in more than {MOST_ITEMS} places are no work for lanes"
        if not _is_divided(n, lines):
            if lines < FEW:
                return f"fewer than {FEW} lines, too short to be divided, are no work for lanes"
            continue
        halved = real and axis == last
        if halved and n % 2:
            return f"real lines of {n} points, an odd number, are not divided"
        points = n // 2 if halved else n
        if points > MOST_POINTS:
            return f"a plan for lines of {points} points keeps as many numbers: at most {MOST_POINTS} are divided"
        one, other = sides(points)
        if not FEW <= one <= other <= MOST_SIDE:
            return f"{points} points are no product of two numbers from {FEW} to {MOST_SIDE}"
        if convolutions(one, other, p.single) is None:
            return f"convolutions of {one} and of {other} points, one after the other, lose too many digits in float32"
    return ""


def _is_divided(points: int, lines: int) -> bool:
    return points > POINTS or (lines < FEW and points >= DIVIDED)


class MixedRadixSteps(Steps):
    """Writes down transforms, one axis after the other, or two of them while what they work on is in a cache."""

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: float,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        left = list(zip(axes, lengths, strict=True))
        here, what = source, kind
        if len(left) > 1 and self.are_planes(target, left[-2:]):
            self.planes(what, sign, here, target, left[-2:], 1.0 if len(left) > 2 else scale)
            here, what, left = target, "c2c", left[:-2]
        while left:
            axis, points = left.pop()
            self.along(what, sign, here, target, axis, points, 1.0 if left else scale)
            here, what = target, "c2c"

    def are_planes(self, target: Lay, two: list[tuple[int, int]]) -> bool:
        """Tells whether threads have enough planes of two axes, which fill vectors and fit into a cache."""
        axes, lengths = zip(*two, strict=True)
        planes = prod(n for i, n in enumerate(target.shape) if i not in axes)
        small = prod(lengths) * self.complex.itemsize <= PLANE_BYTES
        return small and min(lengths) >= FEW and max(lengths) <= POINTS and PLANES <= planes <= MOST_ITEMS

    def planes(self, kind: str, sign: int, source: Lay, target: Lay, two: list[tuple[int, int]], scale: float) -> None:
        """Write down the transforms of two axes, plane by plane."""
        (one, points), (other, last) = two
        sides = [(n, source.strides[i], target.strides[i]) for i, n in enumerate(target.shape) if i not in (one, other)]
        here, there = offsets(sides, 1), offsets(sides, 2)
        self.b.each()
        steps = (source.strides[other], target.strides[other], source.strides[one], target.strides[one])
        self.call(kind, sign, last, target.shape[one], steps, (*source.at[:2], here), (*target.at[:2], there), 1.0)
        down, across = target.strides[one], target.strides[other]
        at = (*target.at[:2], there)
        self.call("c2c", sign, points, target.shape[other], (down, down, across, across), at, at, scale)
        self.b.each(len(here), self.threads)

    def along(self, kind: str, sign: int, source: Lay, target: Lay, axis: int, points: int, scale: float) -> None:
        """Write down the transforms of one axis."""
        dims = batches(source, target, (axis,))
        here, there = source.strides[axis], target.strides[axis]
        if not _is_divided(points, prod(d[0] for d in dims)):
            lanes = dims.pop(_side_by_side(dims, source, target)) if dims else (1, 0, 0)
            self.shares(kind, sign, points, lanes, (here, there), dims, source.at, target.at, scale)
            return
        if kind == "c2c":
            self.as_matrix(sign, points, (here, there), dims, source.at, target.at, scale)
            return
        # Two real numbers that are neighbours are one complex number.
        near, result = self.beside(source, axis), self.beside(target, axis)
        if near is not source:
            self.copy(source, near)
        points //= 2
        item = self.complex.itemsize
        work, first, last = self.between(batches(near, result, (axis,)), points * item)
        if kind == "r2c":
            self.as_matrix(sign, points, (item, item), first, near.at, work, 1.0)
            self.pairs(points, last, work, result.at, scale, unfolds=True)
        else:
            self.pairs(points, first, near.at, work, 1.0, unfolds=False)
            self.as_matrix(sign, points, (item, item), last, work, result.at, scale)
        if result is not target:
            self.copy(result, target)

    def beside(self, lay: Lay, axis: int) -> Lay:
        """Returns an array like another one, whose elements along an axis are neighbours: itself, or a place for a copy."""
        if lay.elements(axis) == 1:
            return lay
        return packed(self.b.work(prod(lay.shape) * lay.dtype.itemsize, shared=True), lay.shape, lay.dtype, (axis,))

    def between(self, dims: list[Dim], line: int) -> tuple[Pointer, list[Dim], list[Dim]]:
        """Returns workspace for lines of so many bytes, and how items lie on the way to it and from it."""
        sizes, first, last = [d[0] for d in dims], list[Dim](), list[Dim]()
        for i, (n, s, t) in enumerate(dims):
            step = prod(sizes[i + 1 :]) * line
            first.append((n, s, step))
            last.append((n, step, t))
        return self.b.work(prod(sizes) * line, shared=True), first, last

    def as_matrix(
        self, sign: int, points: int, steps: tuple[int, int], dims: list[Dim], source: Pointer, target: Pointer, scale: float
    ) -> None:
        """Write down complex lines as matrices, whose columns are transformed and then their rows."""
        (here, there), item = steps, self.complex.itemsize
        one, other = sides(points)
        work, first, last = self.between(dims, points * item)
        factors = turns(one, other, sign, self.complex)
        self.b.keep.append(factors)
        ways = convolutions(one, other, item == 8)
        assert ways is not None
        # Numbers j * other + k become results i of lines k, and those the results i + one * j of the whole.
        lanes = (other, here, item)
        self.shares("c2c", sign, one, lanes, (other * here, other * item), first, source, work, 1.0, ways[0], factors)
        lanes = (one, other * item, there)
        self.shares("c2c", sign, other, lanes, (item, one * there), last, work, target, scale, ways[1])

    def pairs(
        self, points: int, dims: list[Dim], source: Pointer, target: Pointer, scale: float, *, unfolds: bool
    ) -> None:
        """Write down how long real lines are made of complex ones of half as many points, or those of them."""
        b, size = self.b, self.real.itemsize
        factors = circle(np.arange(points // 2 + 1), 2 * points, self.complex)
        b.keep.append(factors)
        count = points // 2 + 1
        firsts = range(0, count, PAIRS)
        items = prod(d[0] for d in dims)
        here, there = (
            (*at[:2], tuple(offset for offset in offsets(dims, side) for _ in firsts)) for side, at in ((1, source), (2, target))
        )
        what = b.constant(struct.pack("<4qd", vector_level(), int(size == 8), int(unfolds), points, scale))
        counts = [min(PAIRS, count - first) for first in firsts]
        b.each()
        b.call(
            _kernels.addresses["real_line"], [what, [*firsts] * items, counts * items, here, there, factors.ctypes.data]
        )  # fmt: skip
        b.each(len(counts) * items, self.threads)

    def shares(
        self, kind: str, sign: int, points: int, lanes: Dim, steps: tuple[int, int], dims: list[Dim], source: Pointer,
        target: Pointer, scale: float, convolved: Convolution | None = None, factors: Any = None,
    ) -> None:  # fmt: skip
        """Write down the lines of each item of `dims`, so many at a time as are worth a call."""
        items = prod(d[0] for d in dims)
        share = pieces(lanes[0], items, points, LANES)
        each, number, _ = share[0]
        counts = [each] * number + [n for n, _, _ in share[1:]]
        calls = [*dims, (len(counts), each * lanes[1], each * lanes[2])]
        here, there = (*source[:2], offsets(calls, 1)), (*target[:2], offsets(calls, 2))
        at: Any = 0
        if factors is not None:
            places = [factors.ctypes.data + i * each * 2 * self.real.itemsize for i in range(len(counts))]
            at = places * items
        self.b.each()
        self.call(kind, sign, points, counts * items, (*steps, *lanes[1:]), here, there, scale, convolved, at, lanes[0])
        self.b.each(len(counts) * items, self.threads)

    def call(
        self, kind: str, sign: int, points: int, lines: Any, steps: tuple[int, int, int, int], source: Pointer, target: Pointer,
        scale: float, convolved: Convolution | None = None, factors: Any = 0, turn_step: int = 0,
    ) -> None:  # fmt: skip
        """Write down one call; `steps` are bytes from point to point in both arrays, and from line to line."""
        b, size = self.b, self.real.itemsize
        (from_point, to_point, from_line, to_line), side, halves = steps, SIDES.index(kind), kind != "c2c" and points % 2 == 0
        from_part = to_part = size
        if halves:
            points //= 2
            if kind == "r2c":
                from_point, from_part = 2 * from_point, from_point
            else:
                to_point, to_part = 2 * to_point, to_point
        elif kind != "c2c":
            side += 2
        convolved = convolution(points) if convolved is None else convolved
        numbers, begin, last = table(points, self.complex, halves, convolved)
        words = (
            from_point, from_part, from_line, to_point, to_part, to_line, turn_step, *_counted(passes(points, convolved)),
            convolved.prime, 2 * (last - begin), convolved.points,
            *_counted(radices(convolved.points) if convolved.prime else ()),
        )  # fmt: skip
        head = struct.pack("<5qd", vector_level(), int(size == 8), points, side, int(sign > 0), scale)
        what = b.constant(head + struct.pack(f"<{len(words)}q", *words))
        b.keep.append(numbers)
        work = b.work(2 * (points + 1 + convolved.points) * 2 * VECTOR_BYTES)
        at = numbers.ctypes.data + 2 * begin * size
        b.call(_kernels.addresses["transform_lines"], [what, lines, source, target, at, factors, work])

    def plan(self) -> Any:
        """The finished plan."""
        return self.b.plan(self.write(), release_gil=self.problem.flops > SMALL_FLOPS)


def _counted(radices: tuple[int, ...]) -> tuple[int, ...]:
    return len(radices), *radices, *[0] * (MOST_PASSES - len(radices))


def _side_by_side(dims: list[Dim], source: Lay, target: Lay) -> int:
    """Returns along which axis lines share vectors: one that fills them, whose elements are neighbours if that can be."""

    def worth(i: int) -> tuple[bool, bool, int]:
        n, s, t = dims[i]
        return n >= LANES, (s, t) == (source.dtype.itemsize, target.dtype.itemsize), n

    return max(range(len(dims)), key=worth)


def prepare_mixed_radix(p: FftProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `mixed_radix_algorithms` listed."""
    if algorithm.name == "empty":
        return empty_plan(p)
    return MixedRadixSteps(p, 1 if thread_team.forked() else algorithm.threads).plan()
