"""Steps around the Fourier transforms of every library: copies, cuts, zero-padding, conversions and mirrored halves.

A library has complex transforms, real ones that keep the first half of the result, and their inverses, of arrays that lie in any
way it can describe. `Steps` makes of these what an `FftProblem` asks: a subclass writes down one transform.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .. import _kernels
from ..native.plan_builder import Builder, Pointer, shift
from ..problems.fft_problem import FftProblem
from ..problems.memory_layout import contiguous_strides
from . import fixed_order
from .base import Algorithm, PythonPlan

__all__ = [
    "DTYPES", "PLANNED_AFTER", "SMALL_FLOPS", "THREAD_FLOPS", "Dim", "Lay", "Steps", "batches", "empty_plan",
    "in_double", "in_pieces", "offsets", "on_threads", "packed", "pieces", "thread_counts", "unfit",
]  # fmt: skip

DTYPES = ("float32", "float64", "complex64", "complex128")
SMALL_FLOPS = 2e5  # below this the GIL is kept
THREAD_FLOPS = 4e5  # below this pieces are not made, and a team of many threads costs more than it brings;
SHARE_FLOPS = 5e4  # a team of few does below so much for each
PLANNED_AFTER = 32  # calls of one shape, where shapes keep changing: a plan takes as long as some dozen short transforms
SPLIT_BYTES = 1 << 20  # copies of so much are divided among threads
MIRRORED_AXES = 3  # a mirrored result of more axes falls into too many parts: its input is widened instead
MOST_OFFSETS = 1 << 20  # entries of a table of offsets
PIECES, PIECE_POINTS = 16, 4096  # into which a batch is divided at least, where each then has so many points

Dim = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Lay:
    """An array inside a plan: where it begins, its shape, strides in bytes, and dtype."""

    at: Pointer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def cut(self, axes: tuple[int, ...], lengths: tuple[int, ...]) -> Lay:
        """The same with at most that many elements along each of `axes`."""
        shape = list(self.shape)
        for axis, n in zip(axes, lengths, strict=True):
            shape[axis] = min(shape[axis], n)
        return replace(self, shape=tuple(shape))

    def elements(self, axis: int) -> int:
        """Its stride along an axis in elements; that of an axis of one element says nothing."""
        return self.strides[axis] // self.dtype.itemsize if self.shape[axis] > 1 else 1


def packed(at: Pointer, shape: tuple[int, ...], dtype: np.dtype[Any], last: tuple[int, ...] = ()) -> Lay:
    """An array that lies in order, without gaps; the axes in `last` lie closest together."""
    order = [*(axis for axis in range(len(shape)) if axis not in last), *last]
    return Lay(at, shape, contiguous_strides(shape, dtype.itemsize, order), dtype)


def merge(dims: list[Dim]) -> list[Dim]:
    """Axes as (size, stride here, stride there), the widest strides first; what can be walked in one go becomes one axis."""
    merged: list[Dim] = []
    for n, s, t in sorted((d for d in dims if d[0] != 1), key=lambda d: (-abs(d[2]), -abs(d[1]))):
        if merged and merged[-1][1] == s * n and merged[-1][2] == t * n:
            merged[-1] = (merged[-1][0] * n, s, t)
        else:
            merged.append((n, s, t))
    return merged


def batches(source: Lay, target: Lay, axes: tuple[int, ...]) -> list[Dim]:
    """The axes that are not transformed, merged; strides in bytes."""
    return merge([d for i, d in enumerate(zip(target.shape, source.strides, target.strides, strict=True)) if i not in axes])


def offsets(dims: list[Dim], which: int) -> tuple[int, ...]:
    """Returns the offsets of the items of these axes, in order; `which` is 1 or 2, for the first or second stride of each."""
    if prod(d[0] for d in dims) > MOST_OFFSETS:
        raise RuntimeError(f"more than {MOST_OFFSETS} places to list for an array that lies like this")
    found = np.zeros(1, np.int64)
    for d in dims:
        found = np.add.outer(found, np.arange(d[0], dtype=np.int64) * d[which]).ravel()
    return tuple(found.tolist())


def in_double(largest: int) -> str:
    """Returns why a library that transforms prime factors above `largest` by a convolution computes float32 in float64."""
    return f"lengths with prime factors above {largest} lose digits in float32"


def unfit(problem: FftProblem) -> str:
    """Returns the reason why no compiled library takes a Problem, or an empty string."""
    if problem.dtype.name not in DTYPES:
        return f"the transforms are for {', '.join(DTYPES)}, not {problem.dtype.name}"
    if not problem.axes:
        return "there is no axis to transform"
    return ""


def on_threads(library: str, name: str, threads: int, *, pool: str, precision: str = "", note: str = "") -> Algorithm:
    """An Algorithm for transforms on all threads, or on one, whose results then depend on nothing else."""
    if threads > 1:
        return Algorithm(
            library=library, name=name, threads=threads, scaled=True, precision=precision, pool=pool, note=note
        )  # fmt: skip
    return Algorithm(library=library, name=name, precision=precision, level="threads", basis="construction", note=note)


def thread_counts(problem: FftProblem, threads: int) -> tuple[int, ...]:
    """Returns the numbers of threads to list an algorithm for, one being the last."""
    worth = threads > 1 and problem.flops >= min(SHARE_FLOPS * threads, THREAD_FLOPS)
    return (threads, 1) if worth else (1,)


def in_pieces(
    library: str, name: str, problem: FftProblem, threads: int, *, pool: str, precision: str = "", note: str = ""
) -> Iterator[Algorithm]:  # fmt: skip
    """Lists an algorithm for several transforms of one axis, of which each piece of a fixed size runs on one thread."""
    several = len(problem.axes) > 1 or prod(problem.result) > prod(problem.lengths)
    if fixed_order.asked("fft") and several and problem.flops >= THREAD_FLOPS:
        note = "; ".join(filter(None, [note, "axis by axis, in pieces of a fixed size"]))
        yield from fixed_order.listed(name, threads, partial(Algorithm, library=library, precision=precision), note, pool)


def pieces(n: int, others: int, points: int, step: int = 1) -> list[tuple[int, int, int]]:
    """Divides n transforms into pieces of a size that follows from the numbers alone: (size, how many, the first transform).

    Parameters
    ----------
    n, others
        Transforms that one call may do, and how many such calls there are beside.
    points
        Of a transform.
    step
        What the size is a multiple of, but for the piece that is left.

    Examples
    --------
    >>> pieces(1000, 1, 1024), pieces(3, 100, 64), pieces(6, 2, 1 << 20), pieces(9, 1, 1 << 20, step=4)
    ([(62, 16, 0), (8, 1, 992)], [(3, 1, 0)], [(1, 6, 0)], [(4, 2, 0), (1, 1, 8)])
    """
    size = max(n * others // PIECES // others, -(-PIECE_POINTS // points), 1)
    size = min(n, -(-size // step) * step)
    whole, rest = divmod(n, size)
    return [(size, whole, 0), *([(rest, 1, whole * size)] if rest else [])]


def empty_plan(problem: FftProblem) -> PythonPlan:
    """The plan where nothing is to be computed."""
    out = problem.index("out")
    return PythonPlan(lambda *arrays: np.empty(problem.result, problem.result_dtype) if out is None else arrays[out])


class Steps:
    """Writes down the steps of one plan; copies may use so many threads.

    `wide`: whether float32 is computed in float64: the input is converted before, the result after the transforms. `divided`:
    whether transforms run on one thread each, in pieces of a fixed size, which the threads share.
    """

    def __init__(self, problem: FftProblem, threads: int, *, wide: bool = False, divided: bool = False) -> None:
        self.problem, self.threads, self.wide, self.divided = problem, threads, wide, divided
        self.real = np.dtype(np.float64) if wide else problem.real
        self.complex = np.dtype(np.complex128) if wide else problem.complex
        self.b = Builder(problem)

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: Any,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        """Write down one transform: "c2c", "r2c" (sign -1), "c2r" (sign +1). A `spare` source may be destroyed."""
        raise NotImplementedError

    def by_axes(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: Any,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        """Write down one transform: one axis after the other where pieces of a batch would be too few for the threads."""
        batch = prod(n for i, n in enumerate(target.shape) if i not in axes)
        if not self.divided or len(axes) == 1 or batch >= PIECES:
            self.transform(kind, sign, source, target, axes, lengths, scale, spare=spare)
            return
        here, first = source, True
        for i, axis in reversed(list(enumerate(axes))):
            last = i == 0
            there = target if last else self.work(target.shape, target.dtype)
            what = kind if first or kind != "r2c" else "c2c"
            self.transform(what, sign, here, there, (axis,), lengths[i : i + 1], scale if last else 1.0, spare=spare or not first)
            here, first = there, False

    def takes(self, lay: Lay, axes: tuple[int, ...]) -> bool:
        """Tells whether the library can read or write an array of this layout; strides are whole elements."""
        return all(lay.strides[a] != 0 or lay.shape[a] == 1 for a in axes)

    # the whole ----------------------------------------------------------------------------------------------------------

    def write(self) -> Pointer:
        """Write down everything; the pointer is that of the result."""
        p, b = self.problem, self.b
        o, out = p.get("input"), p.get("out")
        assert o is not None
        x = Lay(b.argument("input"), o.shape, o.strides, o.dtype)
        if out is None:
            y = packed(b.result(p.result_dtype, p.result), p.result, p.result_dtype)
        else:
            y = Lay(b.argument("out"), out.shape, out.strides, out.dtype)
        result = y
        if self.wide or (out is not None and not (out.aligned and whole(y) and self.takes(y, p.axes))):
            y = self.work(y.shape, self.complex if y.dtype.kind == "c" else self.real)
        getattr(self, p.op.removeprefix("fft."))(x, y, o.aligned)
        if y is not result:
            self.copy(y, result)
        return result.at

    def c2c(self, x: Lay, y: Lay, aligned: bool) -> None:
        p = self.problem
        if x.dtype.kind == "c":
            self.by_axes("c2c", p.sign, self.ready(x, aligned), y, p.axes, p.lengths, p.scale)
        elif len(p.axes) <= MIRRORED_AXES:
            half = y.cut(p.axes[-1:], (p.lengths[-1] // 2 + 1,))
            self.by_axes("r2c", -1, self.ready(x, aligned), half, p.axes, p.lengths, p.scale)
            if p.sign > 0:
                self.copy(half, half, conj=True)
            self.mirror(y)
        else:
            self.by_axes("c2c", p.sign, self.ready(x, aligned, self.complex), y, p.axes, p.lengths, p.scale, spare=True)

    def r2c(self, x: Lay, y: Lay, aligned: bool) -> None:
        p = self.problem
        self.by_axes("r2c", -1, self.ready(x, aligned), y, p.axes, p.lengths, p.scale)
        if p.sign > 0:
            self.copy(y, y, conj=True)

    def c2r(self, x: Lay, y: Lay, aligned: bool) -> None:
        p = self.problem
        source = self.ready(x, aligned, self.complex, conj=p.sign < 0)
        spare = source.at[0] != x.at[0]
        if len(p.axes) > 1:
            # Not in one: only the last axis is taken to be half of a mirror image, whatever the input holds along the others.
            there = self.work(source.shape, self.complex)
            self.by_axes("c2c", 1, source, there, p.axes[:-1], p.lengths[:-1], p.scale, spare=spare)
            source, spare = there, True
        scale = p.scale if len(p.axes) == 1 else 1.0
        self.transform("c2r", 1, source, y, p.axes[-1:], p.lengths[-1:], scale, spare=spare)

    # parts --------------------------------------------------------------------------------------------------------------

    def work(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Lay:
        """Workspace, in order."""
        return packed(self.b.work(prod(shape) * dtype.itemsize, shared=True), shape, dtype)

    def ready(self, x: Lay, aligned: bool, dtype: np.dtype[Any] | None = None, *, conj: bool = False) -> Lay:
        """The input as the transform takes it: as it lies where that can be, else a copy, cut, filled up, widened."""
        p = self.problem
        dtype = dtype or (self.complex if x.dtype.kind == "c" else self.real)
        x = x.cut(p.axes, p.taken)
        shape = list(x.shape)
        for axis, n in zip(p.axes, p.taken, strict=True):
            shape[axis] = n
        if tuple(shape) == x.shape and dtype == x.dtype and not conj and aligned and whole(x) and self.takes(x, p.axes):
            return x
        copy = self.work(tuple(shape), dtype)
        self.copy(x, copy, conj=conj, aligned=aligned)
        if x.dtype.kind != dtype.kind:
            imaginary = Lay(shift(copy.at, dtype.itemsize // 2), x.shape, copy.strides, self.real)
            self.fill(imaginary)
        limit = list(shape)
        for axis in reversed(p.axes):  # a border along each axis; corners belong to the first one
            if x.shape[axis] < shape[axis]:
                border = list(limit)
                border[axis] = shape[axis] - x.shape[axis]
                at = shift(copy.at, x.shape[axis] * copy.strides[axis])
                self.fill(Lay(at, tuple(border), copy.strides, dtype))
                limit[axis] = x.shape[axis]
        return copy

    def mirror(self, y: Lay) -> None:
        """Fill the second half along the last axis with the conjugates of the first, mirrored along all of them."""
        axes, lengths = self.problem.axes, self.problem.lengths
        n = lengths[-1]
        missing = (n - 1) // 2
        for parts in product((False, True), repeat=len(axes) - 1):  # along the others: element 0, or the elements after it
            shape, back = list(y.shape), list(y.strides)
            source, target = 0, (n - missing) * y.strides[axes[-1]]
            shape[axes[-1]] = missing
            source += missing * y.strides[axes[-1]]
            back[axes[-1]] = -y.strides[axes[-1]]
            for axis, m, after in zip(axes, lengths, parts, strict=False):
                shape[axis] = m - 1 if after else 1
                if after:
                    source += (m - 1) * y.strides[axis]
                    target += y.strides[axis]
                    back[axis] = -y.strides[axis]
            self.box(tuple(shape), shift(y.at, source), tuple(back), shift(y.at, target), y.strides, ("mirror", y.dtype.itemsize))

    def copy(self, source: Lay, target: Lay, *, conj: bool = False, aligned: bool = True) -> None:
        """Copy as much as `source` has, in the precision of `target`; with `conj` the conjugate of complex numbers."""
        size = source.dtype.itemsize
        parts = 2 if source.dtype.kind == "c" else 1
        widens = single(target.dtype) < single(source.dtype)
        if widens or single(target.dtype) > single(source.dtype):
            conversion = ("convert", int(widens), parts, int(conj and parts == 2))
            self.box(source.shape, source.at, source.strides, target.at, target.strides, conversion)
            return
        element = ("mirror" if aligned else "conj", size) if conj and source.dtype.kind == "c" else size
        self.box(source.shape, source.at, source.strides, target.at, target.strides, element)

    def fill(self, target: Lay) -> None:
        """Write zeros."""
        zero = self.b.constant(bytes(16))
        self.box(target.shape, zero, (0,) * len(target.shape), target.at, target.strides, target.dtype.itemsize)

    def box(
        self, shape: tuple[int, ...], source: Pointer, back: tuple[int, ...], target: Pointer, forth: tuple[int, ...],
        element: Any,
    ) -> None:  # fmt: skip
        """Copy elements between strided places of one shape."""
        if 0 in shape:
            return
        dims = merge(list(zip(shape, back, forth, strict=True)))
        cols = dims.pop() if dims else (1, 0, 0)
        rows = dims.pop(max(range(len(dims)), key=lambda i: dims[i][0])) if dims else (1, 0, 0)
        threads = self.threads if prod(shape) * 8 >= SPLIT_BYTES else 1
        rest = 0
        if threads > 1 and not dims:
            if rows[0] == 1 and cols[0] % threads == 0:
                rows = (threads, cols[1] * (cols[0] // threads), cols[2] * (cols[0] // threads))
                cols = (cols[0] // threads, cols[1], cols[2])
            part, rest = divmod(rows[0], threads)
            if part:
                dims, rows = [(threads, rows[1] * part, rows[2] * part)], (part, rows[1], rows[2])
        count = prod(d[0] for d in dims)
        here: Pointer = (source[0], source[1], offsets(dims, 1)) if dims else source
        there: Pointer = (target[0], target[1], offsets(dims, 2)) if dims else target
        self.lines(rows, cols, here, there, element)
        self.b.each(count, min(threads, count))
        if rest and dims:
            done = rows[0] * threads
            self.lines((rest, *rows[1:]), cols, shift(source, done * rows[1]), shift(target, done * rows[2]), element)
            self.b.each()

    def lines(self, rows: Dim, cols: Dim, source: Pointer, target: Pointer, element: Any) -> None:
        """One matrix of a copy, as a step of a new group."""
        self.b.each()
        if isinstance(element, tuple) and element[0] == "convert":
            what = self.b.packed("<9q", *element[1:], rows[0], cols[0], rows[1], cols[1], rows[2], cols[2])
            self.b.call(_kernels.addresses["transform_convert"], [what, source, target])
        elif isinstance(element, tuple) and element[0] == "mirror":  # four times faster, for aligned numbers
            what = self.b.packed("<7q", element[1], rows[0], cols[0], rows[1], cols[1], rows[2], cols[2])
            self.b.call(_kernels.addresses["transform_mirror"], [what, source, target])
        else:
            self.b.copy((rows[0], cols[0]), source, (rows[1], cols[1]), target, (rows[2], cols[2]), element)


def single(dtype: np.dtype[Any]) -> bool:
    """Tells whether a dtype is float32 or complex64."""
    return dtype.itemsize == (8 if dtype.kind == "c" else 4)


def whole(lay: Lay) -> bool:
    """Tells whether strides are whole numbers of elements."""
    return all(s % lay.dtype.itemsize == 0 for s, n in zip(lay.strides, lay.shape, strict=True) if n > 1)
