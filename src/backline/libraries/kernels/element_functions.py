"""Functions of one array, element by element, by a function of a library for so many neighbours in memory.

Shares of the array are the same on any number of threads. Elements with gaps are copied side by side and back, some at a time:
the bits are those of an array without gaps. 16-bit floats are widened to float32 and rounded once.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES
from ...problems.memory_layout import contiguous_strides
from ...problems.neural_problem import NeuralProblem
from .element_loops import Axis, merged
from .shares import Share, dense, even_share, in_shares, memory_order, placed

__all__ = ["SMALL_ELEMENTS", "ElementFunction", "layout_refusal", "on_threads", "wide_name", "write_elements"]

# Bytes, as they are computed, below which threads cost more than they bring; elements below which the release of the GIL does.
THREADED, SMALL_ELEMENTS = 1 << 16, 1 << 13
SHARE, LINE = 1 << 14, 64  # elements of an item without gaps, and of the lines of the cache that it begins with
AXES = 4  # that lie apart in memory: so many the loop has
WIDTH = 1 << 11  # elements of an item with gaps: the loop has memory for so many


class ElementFunction(NamedTuple):
    """What computes neighbours in memory.

    Attributes
    ----------
    address
        Of a ufunc's loop, or of MKL's function of vectors.
    data
        What the loop of a ufunc is given.
    mode
        The mode of MKL's function; 0 for the loop of a ufunc.
    """

    address: int
    data: int = 0
    mode: int = 0


def wide_name(p: NeuralProblem) -> str:
    """Returns the name of the dtype that a Problem is computed in."""
    return "float32" if p.dtype.name in HALVES else str(p.dtype.name)


def on_threads(p: NeuralProblem) -> bool:
    """Tells whether an array is large enough for several threads."""
    return bool(prod(p.result) * np.dtype(wide_name(p)).itemsize >= THREADED)


def layout_refusal(p: NeuralProblem) -> str:
    """Returns the reason why arrays that lie like this are not taken, or an empty string."""
    if p.empty:
        return "there is nothing to compute"
    if not all(o.aligned for o in p.operands):
        return "an array is not aligned"
    if _is_dense(p):
        return ""
    if p.dtype.name in HALVES:
        return "there are gaps between 16-bit floats, or arrays lie in different orders"
    return "" if len(_axes(p)) <= AXES else f"more than {AXES} axes lie apart in memory"


def write_elements(b: Builder, p: NeuralProblem, function: ElementFunction, threads: int) -> tuple[Pointer, int]:
    """Writes calls of a function down; returns the result, and the number of items of the last group."""
    source = b.argument("input")
    out = b.argument("out") if p.get("out") is not None else placed(b, p, p.operands[0])
    count = (_write_dense if _is_dense(p) else _write_lines)(b, p, function, threads, source, out)
    return out, count


def _is_dense(p: NeuralProblem) -> bool:
    order = memory_order(p.operands[0])
    return all(dense(o, order) for o in p.operands)


def _axes(p: NeuralProblem) -> tuple[Axis, ...]:
    """The axes of the input and the result, those taken together that are one in both; last the innermost of the result."""
    given, out = p.operands[0], p.get("out")
    to = out.strides if out else contiguous_strides(p.result, p.dtype.itemsize, memory_order(given))
    axes = [Axis(n, x, 0, y) for n, x, y in zip(p.result, given.strides, to, strict=True)]
    return merged(sorted(axes, key=lambda axis: -abs(axis.out)))


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
    b: Builder, p: NeuralProblem, function: ElementFunction, threads: int, source: Pointer, out: Pointer
) -> int:  # fmt: skip
    axes = _axes(p)
    length = axes[-1].size
    width = min(WIDTH, length)
    rows = prod(axis.size for axis in axes[:-1]) * -(-length // width)
    share = max(WIDTH // width, 1)
    count: int = -(-rows // share)
    _write(b, function, p.dtype.itemsize, axes, (width, share, rows), list(range(count)), (source, out))
    return count


def _write(
    b: Builder, function: ElementFunction, itemsize: int, axes: tuple[Axis, ...], parts: tuple[Any, int, int], item: Any,
    here: tuple[Pointer, Pointer],
) -> None:  # fmt: skip
    *outer, last = ((Axis(1, 0, 0, 0),) * (AXES - len(axes)) + axes)[-AXES:]
    by_axis = [*(a.size for a in outer), *(a.x for a in outer), *(a.out for a in outer)]
    fields = [*function, itemsize, last.size, *parts, last.x, last.out, *by_axis]
    b.call(_kernels.addresses["element_function"], [b.packed(f"<{len(fields)}q", *fields), item, *here])
