"""Functions of one array, element by element, by a function of a library for so many neighbours in memory.

Shares of the array are the same on any number of threads. Elements with gaps are copied side by side and back, some at a time:
the bits are those of an array without gaps. 16-bit floats are widened to float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES
from ...problems.memory_layout import contiguous_strides
from ...problems.names import name_of
from ...problems.neural_problem import NeuralProblem
from ..base import Algorithm
from .element_loops import Axis, merged
from .shares import Share, dense, even_share, in_shares, memory_order, placed

__all__ = ["ElementFunction", "element_plan", "element_ways", "layout_refusal", "wide_name"]

# Bytes, as they are computed, below which threads cost more than they bring; elements below which the release of the GIL does.
THREADED, SMALL_ELEMENTS = 1 << 16, 1 << 13
SHARE, LINE = 1 << 14, 64  # elements of an item without gaps, and of the lines of the cache that it begins with
AXES = 16  # that lie apart in memory: so many the loop has
WIDTH = 1 << 11  # elements of an item with gaps: the loop has memory for so many


class ElementFunction(NamedTuple):
    """A function that computes neighbours in memory, and how it is called.

    Attributes
    ----------
    address
        Of a ufunc's loop, or of a function of neighbours in memory, such as MKL's; 0 copies.
    data
        What the loop of a ufunc is given.
    mode
        The last argument of a function of neighbours, such as MKL's mode; 0 for the loop of a ufunc.
    """

    address: int
    data: int = 0
    mode: int = 0


def wide_name(p: NeuralProblem) -> str:
    """Returns the name of the dtype that a Problem is computed in."""
    return "float32" if p.dtype.name in HALVES else str(p.dtype.name)


def layout_refusal(p: NeuralProblem) -> str:
    """Returns the reason why arrays that lie like this are not taken, or an empty string."""
    if p.empty or not p.result:
        return "an array without elements, or without axes, needs no loop"
    axes = sum(size > 1 for size in p.result)
    return "" if axes <= AXES else f"more than {AXES} axes may lie apart in memory"


def element_ways(p: NeuralProblem, threads: int, **fields: Any) -> Iterator[Algorithm]:
    """Yields a library's algorithm for elementary functions: on all threads, where the array is large enough, and on one."""
    way = partial(Algorithm, precision="f32, rounded once" if name_of(p.dtype) in HALVES else "", level="threads", **fields)
    if threads > 1 and prod(p.result) * np.dtype(wide_name(p)).itemsize >= THREADED:
        yield way(threads=threads, scaled=True, pool=thread_team.name())
    yield way()


def element_plan(p: NeuralProblem, function: ElementFunction, threads: int, **guard: Any) -> Any:
    """Returns the PreparedCall of a function of one array, with the guards of the library's threads that `Builder.plan` takes."""
    b = Builder(p)
    out, count = _write_elements(b, p, function, threads)
    big = prod(p.result) >= SMALL_ELEMENTS
    return b.plan(out, count=count, threads=threads, release_gil=big, same=("input",), **guard)


def _write_elements(b: Builder, p: NeuralProblem, function: ElementFunction, threads: int) -> tuple[Pointer, int]:
    """Writes calls of a function down; returns the result, and the number of items of the last group."""
    given, target, source = p.operands[0], p.get("out"), b.argument("input")
    out = b.argument("out") if target is not None else placed(b, p, given)
    order = memory_order(given if target is None else target)
    if all(dense(o, order) for o in p.operands):
        return out, _write_dense(b, p, function, threads, source, out)
    item = p.dtype.itemsize
    without_gaps = contiguous_strides(p.result, item, order)
    to = without_gaps if target is None else target.strides
    if p.dtype.name not in HALVES:
        return out, _write_lines(b, function, item, _axes(p.result, given.strides, to), (source, out))
    # 16-bit floats are copied side by side first.
    direct = target is None or dense(target, order)
    stage = out if direct else b.work(item * prod(p.result), shared=True)
    copied = _write_lines(b, ElementFunction(0), item, _axes(p.result, given.strides, without_gaps), (source, stage))
    b.each(copied, threads if copied > 1 else 1)
    count = _write_dense(b, p, function, threads, stage, stage)
    if direct:
        return out, count
    b.each(count, threads if count > 1 else 1)
    return out, _write_lines(b, ElementFunction(0), item, _axes(p.result, without_gaps, to), (stage, out))


def _axes(shape: tuple[int, ...], given: tuple[int, ...], to: tuple[int, ...]) -> tuple[Axis, ...]:
    """The axes of the input and the result, those taken together that are one in both; last the innermost of the result."""
    axes = [Axis(n, x, 0, y) for n, x, y in zip(shape, given, to, strict=True)]
    return merged(sorted(axes, key=lambda axis: -abs(axis.out))) or (Axis(1, 0, 0, 0),)


def _write_dense(
    b: Builder, p: NeuralProblem, function: ElementFunction, threads: int, source: Pointer, out: Pointer
) -> int:  # fmt: skip
    size, item = prod(p.result), np.dtype(wide_name(p)).itemsize
    share = even_share(size, 1, SHARE, LINE)
    halves = p.dtype.name in HALVES
    work = b.work(4 * share) if halves else out

    def write(at: Share) -> None:
        here = at.load(source, p.dtype, 1, work), work if halves else at.place(out, item)
        _write(b, function, item, (Axis(at.units, item, 0, item),), (at.units, 1, 1), 0, here)
        at.store(work, out, p.dtype, 1)

    return in_shares(b, size, share, threads, write)


def _write_lines(
    b: Builder, function: ElementFunction, item: int, axes: tuple[Axis, ...], here: tuple[Pointer, Pointer]
) -> int:  # fmt: skip
    length = axes[-1].size
    width = min(WIDTH, length)
    rows = prod(axis.size for axis in axes[:-1]) * -(-length // width)
    share = max(WIDTH // width, 1)
    count: int = -(-rows // share)
    _write(b, function, item, axes, (width, share, rows), list(range(count)), here)
    return count


def _write(
    b: Builder, function: ElementFunction, itemsize: int, axes: tuple[Axis, ...], parts: tuple[Any, int, int], item: Any,
    here: tuple[Pointer, Pointer],
) -> None:  # fmt: skip
    *outer, last = ((Axis(1, 0, 0, 0),) * (AXES - len(axes)) + axes)[-AXES:]
    by_axis = [*(a.size for a in outer), *(a.x for a in outer), *(a.out for a in outer)]
    fields = [*function, itemsize, last.size, *parts, last.x, last.out, *by_axis]
    b.call(_kernels.addresses["element_function"], [b.packed(f"<{len(fields)}q", *fields), item, *here])
