"""Sums of elements, sums of products of elements, such products alone, cross products and powers by compiled loops.

An item is some rows of the result, or a part of the elements where there is one result of many: computed by one thread in one
order. Sums are kept in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems import Operand
from ...problems.dtypes import HALVES
from ...problems.einsum_problem import EinsumProblem
from ...problems.elements_problem import ElementsProblem
from ...problems.memory_layout import contiguous_strides
from ..base import Algorithm, Refusal
from .compiled_loops import COMPILED
from .vector_level import vector_level

__all__ = ["Axis", "element_algorithms", "merged", "prepare_elements"]

AXES = 4  # kept, and as many that are summed over, that the loops have
DTYPES = (*HALVES, "float32", "float64", "complex64", "complex128")
PART = 1 << 14  # elements of one result that an item takes, where threads are worth while
SHARE = 1 << 12  # elements of an item of several results
COLUMNS, BLOCK = 4, 128  # neighbouring results that are worth summing up at once, and the most of them
# Below so many elements, threads and the release of the GIL cost more than they bring.
THREADED, SMALL_ELEMENTS = 1 << 17, 1 << 14
PRODUCTS, CROSS, POWERS, ROWS, COLUMN_WISE, PARTS = (
    "multiply", "cross_products", "powers", "sum_rows", "sum_columns", "sum_part",
)  # fmt: skip


class Axis(NamedTuple):
    """Size of an axis, and its strides in the operands and the result, in bytes."""

    size: int
    x: int
    y: int
    out: int


class Loop(NamedTuple):
    """A loop nest: the kernel, the axes of the result, and those that are summed over or belong to the operation."""

    way: str
    kept: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    operands: int


def element_algorithms(p: EinsumProblem | ElementsProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Lists the compiled loop where the layout has few axes, on one thread and on several."""
    why = ""
    if p.dtype.name not in DTYPES:
        why = f"the loops are of {', '.join(DTYPES)}, not {p.dtype.name}"
    elif any(0 in o.shape for o in p.operands) or 0 in p.result or not all(o.aligned for o in p.operands):
        why = "an array is empty, or its elements are out of line"
    elif p.dtype.name in HALVES and not all(_has_no_gaps(o) for o in p.operands):
        why = "an array of 16-bit floats has gaps"
    elif p.dtype.name in HALVES and p.get("out") is not None:
        why = "results of 16-bit floats are new arrays"
    else:
        loop = _loop(_widened(p))
        why = loop if isinstance(loop, str) else ""
    if why:
        yield Refusal("kernels", COMPILED, why)
        return
    note, size = "a loop compiled for this", _elements(p)
    if threads > 1 and size >= THREADED:
        yield Algorithm(
            library="kernels", name=COMPILED, threads=threads, scaled=True, level="threads", basis="construction",
            pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=COMPILED, level="threads", basis="construction", note=note)


def prepare_elements(p: EinsumProblem | ElementsProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `element_algorithms` listed."""
    wide = _widened(p)
    loop = _loop(wide)
    assert isinstance(loop, Loop)
    b, threads = Builder(p), algorithm.threads
    inputs = [_loaded(b, o) if p.dtype.name in HALVES else b.argument(o.role) for o in p.operands if o.role != "out"]
    out = b.argument("out") if p.get("out") is not None else b.result(p.dtype, p.result)
    target = out if wide is p else b.work(4 * prod(p.result), shared=True)
    # Powers that begin with the highest are written from the end.
    last = wide.dtype.itemsize * (p.result[-1] - 1) if p.parameter("increasing") is False else 0
    _write(b, wide.dtype, loop, (inputs[0], inputs[-1], shift(target, last)), threads)
    if wide is not p:
        count = prod(p.result)
        b.copy((1, count), target, (0, 4), out, (0, 2), ("float32", p.dtype.name))
        b.each()
    return b.plan(out, threads=threads, release_gil=_elements(p) >= SMALL_ELEMENTS)


def _widened(p: Any) -> Any:
    """The Problem as it is computed: 16-bit floats in float32, where they lie as they did."""
    if p.dtype.name not in HALVES:
        return p
    single = np.dtype(np.float32)
    operands = (Operand(o.role, single, o.shape, tuple(2 * s for s in o.strides), o.aligned) for o in p.operands)
    return replace(p, operands=tuple(operands))


def _has_no_gaps(o: Operand) -> bool:
    low, high = o.extent()
    return o.nbytes == high - low


def _loaded(b: Builder, o: Operand) -> Pointer:
    """An operand of 16-bit floats as float32; its first element is where that of the array would be."""
    first, size = o.extent()[0], prod(o.shape)
    work = b.work(4 * size, shared=True)
    b.copy((1, size), shift(b.argument(o.role), first), (0, 2), work, (0, 4), (o.dtype.name, "float32"))
    b.each()
    return shift(work, -2 * first)


def _elements(p: EinsumProblem | ElementsProblem) -> int:
    return prod(p.sizes.values()) if isinstance(p, EinsumProblem) else p.elements


# The axes of each operation --------------------------------------------------------------------------------------------


def _loop(p: EinsumProblem | ElementsProblem) -> Loop | str:
    """Returns the loop of a Problem, or the reason why there is none."""
    if isinstance(p, EinsumProblem):
        found = _einsum(p)
    else:
        found = OPERATIONS[p.op.removeprefix("linalg.")](p)
    if isinstance(found, str):
        return found
    way, kept, inner, operands = found
    kept = merged(sorted(kept, key=lambda a: -abs(a.out)))
    inner = inner if way in (CROSS, POWERS) else merged(_by_memory(inner))
    if max(len(kept), len(inner)) > AXES:
        return f"the arrays have more than {AXES} axes on one side that lie apart in memory"
    if way:
        return Loop(way, kept, inner, operands)
    return _sum(kept, inner, operands, p.dtype)


Found = tuple[str, tuple[Axis, ...], tuple[Axis, ...], int]


def _einsum(p: EinsumProblem) -> Found | str:
    if len(p.terms) > 2:
        return "the loops have one or two operands"
    if len(p.terms) == 2 and p.summed and p.dtype.kind == "c" and any(p.sizes[label] > 1 for label in p.summed):
        return "sums of complex products are those of a BLAS"
    steps = [_steps(term, o, p.sizes) for term, o in zip(p.terms, p.inputs, strict=True)]
    given = p.get("out")
    to = dict(zip(p.output, given.strides if given else contiguous_strides(p.result, p.dtype.itemsize), strict=True))

    def axis(label: str) -> Axis:
        return Axis(p.sizes[label], steps[0].get(label, 0), steps[-1].get(label, 0), to.get(label, 0))

    summed = tuple(axis(label) for label in p.summed if p.sizes[label] > 1)
    kept = tuple(axis(label) for label in p.output)
    return "" if summed or len(p.terms) == 1 else PRODUCTS, kept, summed, len(p.terms)


def _steps(term: str, o: Operand, sizes: dict[str, int]) -> dict[str, int]:
    """Stride of each label: that of a diagonal is the sum of its axes', that of what is repeated 0."""
    found: dict[str, int] = {}
    for label, n, stride in zip(term, o.shape, o.strides, strict=True):
        found[label] = found.get(label, 0) + (stride if n == sizes[label] else 0)
    return found


def _spread(o: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an operand that is broadcast."""
    steps = tuple(0 if n == 1 else step for n, step in zip(o.shape, o.strides, strict=True))
    return (0,) * (len(shape) - len(steps)) + steps


def _kron(p: ElementsProblem) -> Found:
    a, b = p.operands
    rank = len(p.result)
    sizes = [(1,) * (rank - len(o.shape)) + o.shape for o in (a, b)]
    kept = []
    steps = zip(_spread(a, p.result), _spread(b, p.result), contiguous_strides(p.result, p.dtype.itemsize), strict=True)
    for n, m, (x, y, out) in zip(*sizes, steps, strict=True):
        kept += [Axis(n, x, 0, m * out), Axis(m, 0, y, out)]
    return PRODUCTS, tuple(kept), (), 2


def _vecdot(p: ElementsProblem) -> Found:
    dim, shape = p.parameter("dim"), np.broadcast_shapes(*(o.shape for o in p.operands))
    x, y = (_spread(o, shape) for o in p.operands)
    to = [*contiguous_strides(p.result, p.dtype.itemsize)]
    to.insert(dim, 0)
    axes = [Axis(*four) for four in zip(shape, x, y, to, strict=True)]
    return "", tuple(axes[:dim] + axes[dim + 1 :]), (axes[dim],), 2


def _cross(p: ElementsProblem) -> Found:
    dim = p.parameter("dim")
    steps = (*(_spread(o, p.result) for o in p.operands), contiguous_strides(p.result, p.dtype.itemsize))
    axes = [Axis(*four) for four in zip(p.result, *steps, strict=True)]
    return CROSS, tuple(axes[:dim] + axes[dim + 1 :]), (axes[dim],), 2


def _vander(p: ElementsProblem) -> Found:
    (x,) = p.operands
    *to, power = contiguous_strides(p.result, p.dtype.itemsize)
    power *= 1 if p.parameter("increasing", True) else -1
    kept = [Axis(n, step, 0, there) for n, step, there in zip(x.shape, x.strides, to, strict=True)]
    return POWERS, tuple(kept), (Axis(p.result[-1], 0, 0, power),), 1


OPERATIONS = {"kron": _kron, "vecdot": _vecdot, "cross": _cross, "vander": _vander}


# From axes to a loop ---------------------------------------------------------------------------------------------------


def _by_memory(axes: tuple[Axis, ...]) -> list[Axis]:
    """Axes that are summed over, the outermost in memory first: in which order they are is all the same."""
    return sorted(axes, key=lambda a: (-abs(a.x), -abs(a.y)))


def merged(axes: list[Axis]) -> tuple[Axis, ...]:
    """Returns axes, the outermost first, with those taken together that are one in every array."""
    found: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if found and all(outer == axis.size * inner for outer, inner in zip(found[-1][1:], axis[1:], strict=True)):
            found[-1] = axis._replace(size=found[-1].size * axis.size)
        else:
            found.append(axis)
    return tuple(found)


def _sum(kept: tuple[Axis, ...], inner: tuple[Axis, ...], operands: int, dtype: np.dtype[Any]) -> Loop:
    item = dtype.itemsize
    inside = inner[-1] if inner else Axis(1, item, item, 0)
    dense = inside.x == item and (operands == 1 or inside.y == item)
    if not kept and len(inner) == 1 and inside.size >= THREADED:
        return Loop(PARTS, kept, inner, operands)
    if kept and not dense and kept[-1].out == item and kept[-1].size >= COLUMNS:
        along = (kept[-1].x, kept[-1].y)[:operands]
        if set(along) <= {0, item} and item in along:
            if dtype.kind != "c":
                return Loop(COLUMN_WISE, kept, inner, operands)
            if kept[-1].size * 2 >= COLUMNS:  # real and imaginary parts are columns of their own
                size, half = 2 * kept[-1].size, item // 2
                return Loop(COLUMN_WISE, (*kept[:-1], Axis(size, half, half, half)), inner, operands)
    return Loop(ROWS, kept, inner, operands)


def _write(b: Builder, dtype: np.dtype[Any], loop: Loop, where: tuple[Pointer, Pointer, Pointer], threads: int) -> None:
    """Write a loop down; its last group is left open."""
    way, kept, inner, operands = loop
    halved = dtype.kind == "c" and way != COLUMN_WISE
    item = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    last = kept[-1].size if kept else 1
    width = 1 if way == ROWS else min(BLOCK if way == COLUMN_WISE else SHARE, last)
    rows = prod(a.size for a in kept[:-1]) * -(-last // width)
    elements = width * prod(a.size for a in inner)
    share = PART if way == PARTS else max(SHARE // elements, 1)
    fields = [item, halved, vector_level(), operands, width, share, rows]
    unused = Axis(1, 0, 0, 0)
    axes = [n for some in (kept, inner) for axis in (*(unused,) * (AXES - len(some)), *some) for n in axis]
    description = b.packed(f"<{len(fields) + len(axes)}q", *fields, *axes)
    x, y, out = where
    if way == PARTS:
        count = -(-inner[0].size // PART)
        sums = b.work(16 * count, shared=True)
        b.call(_kernels.addresses[way], [description, list(range(count)), x, y, (*sums[:2], 0)])
        b.each(count, threads)
        b.call(_kernels.addresses["sum_of_parts"], [description, count, sums, out])
        b.each()
        return
    count = -(-rows // share)
    b.call(_kernels.addresses[way], [description, list(range(count)), x, y, out])
    b.each(count, threads)
