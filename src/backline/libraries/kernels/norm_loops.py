"""Norms along axes by loops compiled in the core: one reading of the memory, with sums that neither overflow nor vanish.

An item is a share of the results, or of the elements where there is one result of many: computed by one thread in one order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems.memory_layout import contiguous_strides
from ...problems.norm_problem import NormProblem
from ..base import Algorithm, Refusal
from .compiled_loops import COMPILED
from .vector_level import vector_level

__all__ = ["norm_algorithms", "prepare_norm"]

AXES = 3  # kept, and as many that are not, that the loop has
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
HALVES = ("float16", "bfloat16")
PART = 1 << 14  # elements of one result that an item takes, where threads are worth while
SHARE = 1 << 12  # elements of an item of several results
# Below so many elements, threads and the release of the GIL cost more than they bring.
THREADED, SMALL_ELEMENTS = 3 << 15, 1 << 14
COLUMNS, BLOCK = 4, 64  # results side by side that are worth computing at once, and those of an item
COUNT, SUM, SQUARES, LARGEST, SMALLEST, OTHER, CUBES, FOURTHS, TOTAL = range(9)  # in the order of norms.cpp
KINDS = {0.0: COUNT, 1.0: SUM, 2.0: SQUARES, math.inf: LARGEST, -math.inf: SMALLEST}

Ints = tuple[int, ...]
Axes = list[tuple[int, int]]  # size and stride of each
Stage = tuple[Ints, Ints, Ints, Ints]  # of a reduction: shape and strides, and the axes that are kept and that are not


def norm_algorithms(p: NormProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Lists the compiled loop where the layout has few axes, on one thread and on several."""
    x = p.operands[0]
    why = ""
    if x.dtype.name not in DTYPES:
        why = f"norms are of {', '.join(DTYPES)}, not {x.dtype.name}"
    elif 0 in x.shape or not x.aligned:
        why = "the array is empty" if x.aligned else "elements are out of line"
    elif x.dtype.name in HALVES and prod(x.shape) * x.dtype.itemsize != x.extent()[1] - x.extent()[0]:
        why = "the array has gaps"
    elif any(_axes(*stage) is None for stage in _stages(p)):
        why = f"the array has more than {AXES} axes on one side that lie apart in memory"
    if why:
        yield Refusal("kernels", COMPILED, why)
        return
    note = "a loop compiled for this"
    if threads > 1 and prod(x.shape) >= THREADED:
        yield Algorithm(
            library="kernels", name=COMPILED, threads=threads, scaled=True, level="threads", basis="construction",
            pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=COMPILED, level="threads", basis="construction", note=note)


def prepare_norm(p: NormProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `norm_algorithms` listed."""
    x, b, threads = p.operands[0], Builder(p), algorithm.threads
    dtype, source = x.dtype, b.argument("x")
    if dtype.name in HALVES:  # computed in float32, and rounded once
        size = prod(x.shape)
        work = b.work(4 * size, shared=True)
        b.copy((1, size), shift(source, x.extent()[0]), (0, 2), work, (0, 4), (dtype.name, "float32"))
        b.each()
        source, dtype = shift(work, -2 * x.extent()[0]), np.dtype(np.float32)
    real = np.dtype(dtype.char.lower())
    out = b.result(x.dtype if x.dtype.name in HALVES else real, p.result)
    count = prod(p.result)
    target = b.work(4 * count, shared=True) if x.dtype.name in HALVES else out
    stages = _stages(p)
    order = float(2 if p.parameter("ord") in ("fro", None) else p.parameter("ord"))
    for i, stage in enumerate(stages):
        last = i == len(stages) - 1
        kind = _kind(p) if len(stages) == 1 else SUM if not last else LARGEST if order > 0 else SMALLEST
        shape, _, kept, _ = stage
        here = target if last else b.work(real.itemsize * prod(shape[axis] for axis in kept), shared=True)
        _reduce(b, real if i else dtype, stage, (kind, order), (source, here), threads)
        source = here
    if x.dtype.name in HALVES:
        b.copy((1, count), target, (0, 4), out, (0, 2), ("float32", x.dtype.name))
        b.each()
    return b.plan(out, threads=threads, release_gil=prod(x.shape) >= SMALL_ELEMENTS)


def _kind(p: NormProblem) -> int:
    order = p.parameter("ord")
    if p.op == "trace":
        return TOTAL
    if order in (3, 4):
        return CUBES if order == 3 else FOURTHS
    return KINDS.get(2.0 if order == "fro" else float(order), OTHER)


def _stages(p: NormProblem) -> list[Stage]:
    """The reductions, one after the other: norms of matrices by sums are extremes of sums."""
    x, order = p.operands[0], p.parameter("ord")
    rank = len(x.shape)
    if p.op == "trace":
        return [((min(x.shape),), (sum(x.strides),), (), (0,))]
    # 16-bit floats lie as they are, in float32.
    strides = tuple(2 * s for s in x.strides) if x.dtype.name in HALVES else x.strides
    if p.op != "linalg.matrix_norm" or order == "fro":
        return [(x.shape, strides, tuple(axis for axis in range(rank) if axis not in p.axes), p.axes)]
    summed, other = p.axes if abs(order) == 1 else p.axes[::-1]
    first = tuple(axis for axis in range(rank) if axis != summed)
    shape = tuple(x.shape[axis] for axis in first)
    left = tuple(i for i, axis in enumerate(first) if axis != other)
    real = np.dtype(x.dtype.char.lower()).itemsize if x.dtype.kind == "c" else max(x.dtype.itemsize, 4)
    return [
        (x.shape, strides, first, (summed,)), (shape, contiguous_strides(shape, real), left, (first.index(other),)),
    ]  # fmt: skip


def _merged(axes: Axes) -> Axes:
    """Axes, the outermost first, with those taken together that are one in memory."""
    found: Axes = []
    for size, stride in axes:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = found[-1][0] * size, stride
        else:
            found.append((size, stride))
    return found


def _axes(shape: Ints, strides: Ints, kept: Ints, summed: Ints) -> tuple[Axes, Axes, int] | None:
    """The merged axes of both sorts, and the offset of the element that comes first in memory; None where they are too many."""
    outer = _merged([(shape[axis], strides[axis]) for axis in kept])
    # The order of elements does not matter: that of memory is the fastest.
    offset = sum((shape[axis] - 1) * min(strides[axis], 0) for axis in summed)
    inner = _merged(sorted(((shape[axis], abs(strides[axis])) for axis in summed), key=lambda a: -a[1]))
    return None if max(len(outer), len(inner)) > AXES else (outer, inner, offset)


def _reduce(
    b: Builder, dtype: np.dtype[Any], stage: Stage, norm: tuple[int, float], where: tuple[Pointer, Pointer], threads: int
) -> None:
    """Write one reduction down."""
    found = _axes(*stage)
    assert found is not None
    kept, summed, offset = found
    kind, order = norm
    source, target = shift(where[0], offset), where[1]
    is_complex, item = dtype.kind == "c", dtype.itemsize
    results, elements = prod(size for size, _ in kept), prod(size for size, _ in summed)
    dense = len(summed) == 1 and summed[0][1] == item
    columns = bool(
        kept and kept[-1][1] == item and kept[-1][0] >= COLUMNS and not is_complex and kind != OTHER
        and summed and summed[-1][1] != item
    )  # fmt: skip
    parts = results == 1 and dense and elements >= THREADED and kind != OTHER and (kind == SQUARES or not is_complex)
    share = PART if parts else max(SHARE // elements, 1)

    def three(few: Axes) -> list[int]:
        return [n for axis in [(1, 0)] * (AXES - len(few)) + few for n in axis]

    fields = [item // 2 if is_complex else item, is_complex, vector_level(), kind, columns, share, results]
    description = b.packed(f"<{len(fields)}qd{4 * AXES}q", *fields, order, *three(kept), *three(summed or [(1, item)]))
    many = threads if results * elements >= THREADED else 1
    if parts:
        count = -(-elements // PART)
        sums = b.work(8 * count, shared=True)
        b.call(_kernels.addresses["norm_part"], [description, list(range(count)), source, sums])
        b.each(count, many)
        b.call(_kernels.addresses["norm_of_parts"], [description, count, source, sums, target])
        b.each()
        return
    count = results // kept[-1][0] * -(-kept[-1][0] // BLOCK) if columns else -(-results // share)
    b.call(_kernels.addresses["norm"], [description, list(range(count)), source, target])
    b.each(count, many)
