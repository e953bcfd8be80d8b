"""Products of two int8 matrices with sums of int32, for which the second one is packed in each call.

They are made by AMX tiles where the processor has them, and by the loop of int8_products.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.scaled_problem import ScaledProblem
from ..base import Algorithm, Refusal
from .bfloat16_tiles import TILES
from .conv_steps import cut, same, uniform
from .int8_products import LINE, OUTS, PRODUCT, TERMS, call_product, loop_algorithms, rows_together, up_to
from .int8_results import SMALL_FLOPS
from .int8_steps import LEAST_ITEMS, LEAST_POINTS
from .matrix_tiles import INT8, NO_TILES, THREADED, Matrices, TileProduct, has_tiles

__all__ = ["prepare_scaled", "scaled_algorithms"]

BLOCK_BYTES = 1 << 18  # of rows and sums that an item has
INT32 = np.dtype(np.int32)


def scaled_algorithms(p: ScaledProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loop on all threads and on one, or the reason why there is none."""
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", PRODUCT, reason)
        return
    if has_tiles(INT8):
        yield from _tile_algorithms(p, threads)
    else:
        yield Refusal("kernels", TILES, NO_TILES.format("int8"))
    yield from loop_algorithms(p.flops, threads, "exact sums of bytes; the second matrix packed by each call")


def _tile_algorithms(p: ScaledProblem, threads: int) -> Iterator[Algorithm]:
    """Yields the product by tiles on all threads and on one."""
    for count in (threads, 1) if threads > 1 and p.flops >= THREADED else (1,):
        yield Algorithm(
            library="kernels", name=TILES, threads=count, scaled=count > 1, level="threads", basis="construction",
            pool=thread_team.name() if count > 1 else "", note="exact sums of 32 rows and columns by AMX",
        )  # fmt: skip


def _refusal(p: ScaledProblem) -> str:
    """Returns the reason why the loop does not compute a product, or an empty string."""
    if not p.integer:
        return f"its loop is for int8, not {p.dtype.name}"
    if p.empty:
        return "an empty product needs no loop"
    for role in "ab":
        if _layout(p, role) is None:
            return f"elements of {role} are no neighbours in memory"
    out = p.get("out")
    if out is not None and (not out.aligned or not (_layout(p, "out") or _Layout(False, 0)).row_major):
        return "elements of a row of out are no neighbours in memory"
    return ""


class _Layout(NamedTuple):
    """Layout of a matrix: whether it is row-major, else column-major, and the bytes from one row, or column, to the next."""

    row_major: bool
    step: int


def _layout(p: ScaledProblem, role: str) -> _Layout | None:
    """Returns the layout of an operand; None where elements have no neighbours in memory."""
    o = p.get(role)
    assert o is not None
    (rows, columns), (down, along), item = o.shape, o.strides, o.dtype.itemsize
    if along == item or columns == 1:
        return _Layout(True, down if rows > 1 else columns * item)
    return _Layout(False, along) if down == item or rows == 1 else None


def prepare_scaled(p: ScaledProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `scaled_algorithms` listed."""
    b, threads, size = Builder(p), algorithm.threads, INT32.itemsize
    given = _layout(p, "out") if p.get("out") is not None else None
    result, step = (b.argument("out"), given.step // size) if given else (b.result(INT32, p.result), p.n)
    if algorithm.name == TILES:
        operands = _matrices(b, p, "a"), _matrices(b, p, "b")
        count = TileProduct(b, INT8, p.m, p.n, p.k, 1, threads).write(*operands, Matrices(result, 0, size * step, size))
        return b.plan(result, count=count, threads=threads, release_gil=p.flops >= SMALL_FLOPS)
    packed = _packed(b, p, threads)
    rows, row = _rows(b, p, threads)
    if threads > 1 and p.m < LEAST_POINTS:  # few rows are divided among the threads by columns
        items = [(0, p.m, begin, end) for begin, end in _columns(p.n, OUTS)]
    else:
        most = max(BLOCK_BYTES // (size * p.n + p.k), LEAST_POINTS)
        share = max(-(-p.m // LEAST_ITEMS), LEAST_POINTS // 2) if threads > 1 else p.m
        items = [(first, count, 0, p.n) for first, count in cut(p.m, min(most, share))]
    together, copied = rows_together(p.k, max(count for _, count, _, _ in items))
    x = *rows[:2], uniform([first * row for first, _, _, _ in items])
    weights = *packed[:2], uniform([begin * up_to(p.k, TERMS) for _, _, begin, _ in items])
    sums = *result[:2], uniform([size * (first * step + begin) for first, _, begin, _ in items])
    counts, outs = same([count for _, count, _, _ in items]), same([end - begin for _, _, begin, end in items])
    call_product(b, p.dtype, p.k, step, together, [x, row, weights, b.work(copied), sums, 0, counts, outs])
    if threads > 1:
        thread_team.items_run()
    return b.plan(result, count=len(items), threads=threads, release_gil=p.flops >= SMALL_FLOPS)


def _matrices(b: Builder, p: ScaledProblem, role: str) -> Matrices:
    """Returns an operand as it lies."""
    layout = _layout(p, role)
    assert layout is not None
    return Matrices(b.argument(role), 0, *((layout.step, 1) if layout.row_major else (1, layout.step)))


def _columns(n: int, multiple: int) -> list[tuple[int, int]]:
    """Returns first and last of the columns of each item, of which threads have some to share."""
    parts = -(-n // multiple)
    return [(i * multiple, min((i + count) * multiple, n)) for i, count in cut(parts, max(parts // LEAST_ITEMS, 1))]


def _packed(b: Builder, p: ScaledProblem, threads: int) -> Pointer:
    """Packs the second matrix; returns where it is."""
    layout = _layout(p, "b")
    assert layout is not None
    matrix, packed = b.argument("b"), b.work(up_to(p.n, OUTS) * up_to(p.k, TERMS), shared=True)
    items = _columns(p.n, LINE) if threads > 1 else [(0, p.n)]
    source = *matrix[:2], uniform([begin * (1 if layout.row_major else layout.step) for begin, _ in items])
    target = *packed[:2], uniform([begin * up_to(p.k, TERMS) for begin, _ in items])
    kernel = _kernels.addresses["pack_rows" if layout.row_major else "pack_columns"]
    b.call(kernel, [source, layout.step, target, same([end - begin for begin, end in items]), p.k])
    b.each(len(items), threads)
    return packed


def _rows(b: Builder, p: ScaledProblem, threads: int) -> tuple[Pointer, int]:
    """Returns where the rows of the first matrix are, and bytes from one to the next; those of a transposed one are copied."""
    layout = _layout(p, "a")
    assert layout is not None
    given = b.argument("a")
    if layout.row_major:
        return given, layout.step
    copy = b.work(p.m * p.k, shared=True)
    items = cut(p.m, max(-(-p.m // LEAST_ITEMS), LEAST_POINTS) if threads > 1 else p.m)
    source, target = (*given[:2], uniform([i for i, _ in items])), (*copy[:2], uniform([i * p.k for i, _ in items]))
    b.call(_kernels.addresses["turn_bytes"], [source, target, p.k, same([count for _, count in items]), layout.step, p.k])
    b.each(len(items), threads)
    return copy, p.k
