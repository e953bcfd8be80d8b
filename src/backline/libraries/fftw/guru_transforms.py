"""Fourier, cosine and sine transforms by FFTW's guru interface, which takes arrays of any strides as they are.

A plan for addresses that are multiples of 16 is up to three times faster than one for any. How arrays lie is known when a plan
is made, but not where they begin: each transform has both plans, and the compiled core takes the one that fits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from math import prod, sqrt
from typing import Any, NamedTuple

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Pointer, shift
from ...problems import Operand
from ...problems.fft_problem import FftProblem
from .. import fixed_order
from ..base import Algorithm, Refusal
from ..fft_steps import (
    SMALL_FLOPS,
    Lay,
    Steps,
    batches,
    empty_plan,
    in_double,
    in_pieces,
    merge,
    on_threads,
    pieces,
    thread_counts,
    unfit,
)  # fmt: skip
from ..reference.reference_fft import AFTER, BEFORE
from .planner import PLANNING, Planner, Request

__all__ = ["fftw_algorithms", "prepare_fftw"]

LARGEST = 31  # prime factor whose transform loses few digits in float32
INTO_DOUBLE = f"float32 computed in float64: {in_double(LARGEST)}"
ALIGNED = 4  # transforms after which an array is at a multiple of 16 bytes again
PLAN_BYTES = 24  # of what `transform_run` reads: the function that runs a plan, the plan, and the one for other addresses
LONG_SCALING = 1 << 20  # bytes of a result from which on threads divide the multiplication by a number


class Calls(NamedTuple):
    """Calls that threads share: what the planner is asked for, how often it runs, and bytes of both sides between two calls."""

    requests: tuple[tuple[Request, int], ...]
    steps: tuple[int, int] = (0, 0)


class FftwSteps(Steps):
    """Writes down transforms of FFTW.

    `planning` is "estimate", "measure" or "patient"; `seconds` are for measuring each transform. A batch is divided among our
    threads, each of which runs plans for one. FFTW's own are for few transforms or one, and for plans that it measured: by
    estimate it starts them anew for every row of real transforms of some odd lengths (3.3.10: 600 of 75 points take 16 times as
    long).
    """

    def __init__(
        self, planner: Planner, problem: FftProblem, threads: int, planning: str, seconds: float, thread_guard: Any,
        divided: bool = False,
    ) -> None:  # fmt: skip
        shared = threads > 1 and planning == "estimate"
        super().__init__(problem, threads, wide=problem.needs_double(LARGEST), divided=divided or shared)
        self.planner, self.planning, self.seconds, self.thread_guard = planner, planning, seconds, thread_guard
        self.fixed = divided
        self.guarded = False  # whether FFTW's own threads take part

    def takes(self, lay: Lay, axes: tuple[int, ...]) -> bool:
        # The planner of 3.3.10 crashes on real transforms of several axes that lie backwards.
        return super().takes(lay, axes) and all(s >= 0 or n == 1 for s, n in zip(lay.strides, lay.shape, strict=True))

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: float,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        self.run(self.calls_for(kind, sign, source, target, axes, lengths, spare), source, target)
        if scale != 1.0:
            self.multiply(target, scale)

    def calls_for(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], spare: bool
    ) -> Calls:
        """Returns what the planner is asked for: one transform, or one for pieces of its batch and one for what is left."""
        dims = batches(source, target, axes)
        widest = max(range(len(dims)), key=lambda i: dims[i][0], default=-1)
        few = not self.fixed and bool(dims) and -(-dims[widest][0] // ALIGNED) < max((self.threads + 1) // 2, 2)
        if not self.divided or not dims or few:
            whole = request_for(kind, sign, source, target, axes, lengths, 1 if self.fixed else self.threads, spare)
            return Calls(((whole, 1),))
        whole = request_for(kind, sign, source, target, axes, lengths, 1, spare)
        n, s, t = dims.pop(widest)
        rest = whole.batch[:widest] + whole.batch[widest + 1 :]
        _, here, there = whole.batch[widest]
        # Calls of the other axes would be many and short: they stay in the plan, and the widest one is divided.
        parts = pieces(n, 1, prod(lengths) * prod(d[0] for d in dims), 1 if self.fixed else ALIGNED)
        requests = tuple((replace(whole, batch=((size, here, there), *rest)), number) for size, number, _ in parts)
        return Calls(requests, (parts[0][0] * s, parts[0][0] * t))

    def run(self, calls: Calls, source: Lay, target: Lay) -> None:
        """Write down the calls, each with its plan."""
        planner, table = self.planner, b""
        for request, number in calls.requests:
            # For arrays that do not begin where they should an estimate has to do: they are few.
            other = planner.plan(request, "estimate", aligned=False)
            first = other
            if planner.aligned and not fixed_order.asked("fft"):  # else the bits would depend on where an array begins
                first = planner.plan(request, self.planning, aligned=True, seconds=self.seconds)
            self.b.keep += [first, other]
            self.guarded |= request.threads > 1
            table += number * struct.pack("<qqq", planner.execute(request.kind), first.address, other.address)
        count = len(table) // PLAN_BYTES
        buffer, start, _ = self.b.constant(table)
        here, there = ((lay.at[0], lay.at[1], step) for lay, step in zip((source, target), calls.steps, strict=True))
        self.b.each()
        self.b.call(_kernels.addresses["transform_run"], [(buffer, start, PLAN_BYTES), here, there])
        self.b.each(count, min(self.threads, count) if self.divided else 1)

    def multiply(self, target: Lay, factor: float) -> None:
        """Multiply every element by a number."""
        item = target.dtype.itemsize // (2 if target.dtype.kind == "c" else 1)
        dims = [(n, s, s) for n, s in zip(target.shape, target.strides, strict=True)]
        if target.dtype.kind == "c":
            dims.append((2, item, item))
        merged = merge(dims)
        merged = [(1, 0, 0)] * (3 - len(merged)) + merged
        outer, (a, b, c) = merged[:-3], merged[-3:]
        at: Pointer = target.at
        count = threads = 1
        if outer:
            from ..fft_steps import offsets

            table = offsets(outer, 1)
            at, count, threads = (at[0], at[1], table), len(table), self.threads
        elif self.threads > 1 and _bytes(target) >= LONG_SCALING:
            sizes = [a[0], b[0], c[0]]
            widest = max(range(3), key=lambda i: sizes[i])
            if sizes[widest] % self.threads == 0:
                parts = [list(d) for d in (a, b, c)]
                parts[widest][0] //= self.threads
                at = (at[0], at[1], parts[widest][0] * parts[widest][1])
                a, b, c = ((d[0], d[1], d[2]) for d in parts)
                count = threads = self.threads
        what = self.b.constant(struct.pack("<dqqqqqqq", factor, item, a[0], b[0], c[0], a[1], b[1], c[1]))
        self.b.each()
        self.b.call(_kernels.addresses["transform_scale"], [what, at])
        self.b.each(count, min(threads, count))

    def r2r(self, x: Lay, y: Lay, aligned: bool) -> None:
        """Cosine and sine transforms; of complex numbers both parts."""
        p = self.problem
        kind, ortho = str(p.parameter("kind")), bool(p.parameter("ortho"))
        before, after = (ends.get(kind, ()) if ortho else () for ends in (BEFORE, AFTER))
        source = self.ready(x, aligned)
        if before:
            if source.at[0] == x.at[0]:
                copy = self.work(source.shape, source.dtype)
                self.copy(source, copy)
                source = copy
            self.ends(source, before, sqrt(2.0))
        here, there = (_parts(lay) for lay in (source, y))
        self.by_axes(kind, 0, here, there, p.axes, p.lengths, p.scale, spare=source.at[0] != x.at[0])
        if after:
            self.ends(y, after, sqrt(0.5))

    def ends(self, lay: Lay, which: tuple[int, ...], factor: float) -> None:
        """Multiply the first or last elements along each axis that is transformed."""
        for axis in self.problem.axes:
            for end in which:
                shape = tuple(1 if i == axis else n for i, n in enumerate(lay.shape))
                at = shift(lay.at, (lay.shape[axis] - 1) * lay.strides[axis] if end else 0)
                self.multiply(replace(lay, at=at, shape=shape), factor)

    def plan(self) -> Any:
        """The finished plan."""
        result = self.write()
        thread_guard = self.thread_guard if self.guarded else None
        return self.b.plan(
            result,
            thread_guard=thread_guard,
            guard_threads=self.threads if thread_guard else 0,
            release_gil=self.problem.flops > SMALL_FLOPS,
        )


def request_for(
    kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], threads: int, spare: bool
) -> Request:
    """Returns the planner request for one transform."""
    here, there = source.dtype.itemsize, target.dtype.itemsize
    dims = tuple((n, source.elements(a), target.elements(a)) for a, n in zip(axes, lengths, strict=True))
    batch = tuple((n, s // here, t // there) for n, s, t in batches(source, target, axes))
    spans = tuple(Operand("", lay.dtype, lay.shape, lay.strides).extent() for lay in (source, target))
    return Request(kind, sign, dims, batch, (spans[0], spans[1]), threads, spare)


def _parts(lay: Lay) -> Lay:
    """Complex numbers as pairs of real ones, along an axis of their own."""
    if lay.dtype.kind != "c":
        return lay
    half = lay.dtype.itemsize // 2
    return Lay(lay.at, (*lay.shape, 2), (*lay.strides, half), lay.dtype.type(0).real.dtype)


def _bytes(lay: Lay) -> int:
    return Operand("", lay.dtype, lay.shape, lay.strides).nbytes


def fftw_algorithms(
    planner: Planner, problem: FftProblem, threads: int, planning: str, pool: str
) -> Iterator[Algorithm | Refusal]:
    """Lists FFTW's algorithms for a Problem, or the reason why there are none."""
    if problem.empty:
        yield Algorithm(library="fftw", name="empty", level="threads", basis="construction", note="nothing to compute")
        return
    reason = unfit(problem)
    if not reason and problem.parameter("kind") == "dct1" and min(problem.lengths) < 2:
        reason = "a cosine transform of type 1 has 2 points or more"
    if reason:
        yield Refusal("fftw", "", reason)
        return
    ways = ["estimate"]
    if planning != "estimate":
        ways.insert(0, planning)
    counts = thread_counts(problem, threads) if planner.threaded is not None else (1,)
    if planner.wise and planning == "estimate":
        ways = [w for w in ("patient", "measure") if any(_known(planner, problem, n, w) for n in counts)] + ways
    precision = "f64" if problem.needs_double(LARGEST) else ""
    for way in ways:
        timed = "" if way == "estimate" else "planned by timing, so another process may take another way"
        note = "; ".join(filter(None, [INTO_DOUBLE if precision else "", timed]))
        for count in counts:
            if way != planning and way != "estimate" and not _known(planner, problem, count, way):
                continue
            if way != "estimate":
                yield Algorithm(
                    library="fftw", name=way, threads=count, scaled=count > 1, precision=precision, level="off",
                    pool=pool if count > 1 else "", note=note,
                )  # fmt: skip
            else:
                yield on_threads("fftw", way, count, pool=pool, precision=precision, note=note)
    team = thread_team.name()  # which runs one-thread plans, whatever threads FFTW was built for
    yield from in_pieces(
        "fftw", "estimate", problem, threads, pool=team, precision=precision, note=INTO_DOUBLE if precision else ""
    )


def _known(planner: Planner, problem: FftProblem, threads: int, planning: str) -> bool:
    """Tells whether wisdom has all plans of a Problem."""
    asked = _Asked(planner, problem, threads, planning, -1.0, None)
    asked.write()
    return all(planner.knows(request, planning) for request in asked.requests)


class _Asked(FftwSteps):
    """Collector of the planner requests of a Problem, without making plans."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requests: list[Request] = []

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: float,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        self.requests.append(request_for(kind, sign, source, target, axes, lengths, self.threads, spare))


def prepare_fftw(planner: Planner, problem: FftProblem, algorithm: Algorithm, seconds: float, thread_guard: Any) -> Any:
    """The plan of an Algorithm that `fftw_algorithms` listed."""
    if algorithm.name == "empty":
        return empty_plan(problem)
    way = algorithm.name.removesuffix(fixed_order.SUFFIX)
    assert way in PLANNING
    threads = 1 if thread_team.forked() else algorithm.threads
    return FftwSteps(planner, problem, threads, way, seconds, thread_guard, divided=way != algorithm.name).plan()
