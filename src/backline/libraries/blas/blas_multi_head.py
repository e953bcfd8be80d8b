"""Multi-head attention with the products of a BLAS: projections, the core's attention, projection, in one prepared call.

Where query, key and value are one array, one product projects it for all three. The attention reads the heads where that product
put them, and writes its own next to each other: nothing is copied in between.

The other way, operations one by one, is in `reference.composed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems import Operand
from ...problems.memory_layout import matrix_layout
from ...problems.multi_head_problem import MultiHeadProblem
from .. import fixed_order
from ..attention_constraints import facts_of, refusal
from ..base import Algorithm, Refusal
from ..kernels.attention_items import FLASH, Shape, described
from .blas_attention import products_of
from .cblas import LETTER, PLAIN, ROW, THREAD_FLOPS, TRANSPOSED, BlasTraits

__all__ = ["fused_algorithms", "prepare_fused"]

FUSED = "fused"
TRAITS = ("fused", "flash_attention")
TYPES = ("float32", "float64")


# In one call --------------------------------------------------------------------------------------------------------------


def fused_algorithms(blas: BlasTraits, p: MultiHeadProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The prepared call, or why it cannot be."""
    reason = _refusal(p) or refusal("flash_attention", p.inner, facts_of(p.device))
    if reason:
        yield Refusal(blas.name, FUSED, reason)
        return
    if blas.pool and blas.thread_guard is None:
        yield Refusal(blas.name, FUSED, "it takes no thread count for one call, and this needs products on one thread each")
        return
    if threads > 1 and p.flops >= THREAD_FLOPS and blas.pool:
        note = "rows of the projections and blocks of queries divided among the threads"
        shared = thread_team.items_threads(threads)
        yield Algorithm(
            library=blas.name, name=FUSED, threads=shared, scaled=True, basis="construction", pool=blas.pool, note=note,
            traits=TRAITS,
        )  # fmt: skip
    yield Algorithm(library=blas.name, name=FUSED, level="threads", basis="construction", traits=TRAITS)
    if p.flops >= THREAD_FLOPS and fixed_order.asked():
        note = "blocks of rows and of queries, as many for any number of threads"
        make = partial(Algorithm, library=blas.name, traits=TRAITS)
        yield from fixed_order.listed(FUSED, threads, make, note, blas.pool)


def _refusal(p: MultiHeadProblem) -> str:
    if p.dtype.name not in TYPES:
        return f"the fused kernel has {' and '.join(TYPES)}, not {p.dtype.name}"
    if p.parameter("need_weights"):
        return "need_weights: the fused kernel never has the weights of a row together"
    if p.parameter("dropout_p"):
        return f"the fused kernel has no dropout, and it is {p.parameter('dropout_p')}"
    for role in ("bias_k", "static_k", "static_v"):
        if p.get(role) is not None:
            return f"{role}: the fused kernel takes keys and values as it projects them"
    if p.parameter("add_zero_attn"):
        return "add_zero_attn: the fused kernel takes keys and values as it projects them"
    if 0 in (*p.query.shape, *p.sources[1].shape, *p.sources[2].shape):
        return "an empty array needs no library"
    for o in p.operands:
        if o.role in ("query", "key", "value") and _rows(o) is None:
            return f"the rows of {o.role} do not lie at even steps"
        if o.role.endswith("weight") and matrix_layout(o.shape, o.strides, o.dtype.itemsize, o.aligned)[0] == "X":
            return f"BLAS cannot read {o.role} as it lies"
        if o.role.endswith("bias") and not o.aligned:
            return f"{o.role} is not aligned"
    return ""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an array (N, L, K) as those of one matrix: its leading dimension, and steps in rows along N and L."""

    count: int
    ld: int
    batch: int
    sequence: int


def _rows(o: Operand) -> _Rows | None:
    """The rows of an operand as those of one matrix; None unless they follow each other upwards in memory, at even steps."""
    (batch, length, width), (b, s, across), item = o.shape, o.strides, o.dtype.itemsize
    if not o.aligned or (across != item and width > 1):
        return None
    # Strides of axes of one element mean nothing, so they are not looked at.
    for outer, inner, step, steps in (
        ((batch, b), (length, s), s, (length, 1)),
        ((length, s), (batch, b), b, (1, batch)),
    ):
        if inner[0] == 1:
            step = outer[1] if outer[0] > 1 else width * item
        elif outer[0] > 1 and outer[1] != inner[0] * step:
            continue
        if step >= width * item and step % item == 0:
            return _Rows(batch * length, step // item, *steps)
    return None


class _Fused:
    """Writes the call down."""

    def __init__(self, blas: BlasTraits, p: MultiHeadProblem, threads: int, parts: int) -> None:
        self.blas, self.p, self.threads, self.parts = blas, p, threads, parts
        self.b, self.item = Builder(p), p.dtype.itemsize

    def plan(self) -> Any:
        p, b, size = self.p, self.b, self.p.embedding
        heads = self.projected()
        rows = _rows(p.query)
        assert rows is not None
        attended = b.work(rows.count * size * self.item, shared=True)
        self.attention(heads, rows, attended)
        weight = p.get("final_weight")
        assert weight is not None
        width = weight.shape[0]
        shape = (*p.query.shape[:2], width)
        step = width * self.item
        out = b.result(p.dtype, shape, (rows.batch * step, rows.sequence * step, self.item))
        source = _Source(attended, size, rows.count, size)
        self.product(source, "final_weight", 0, width, ("final_bias", 0) if p.get("final_bias") else None, out, width)
        return b.plan(out, guard_threads=1, **self.blas.guard(p.flops, vector=False))

    def projected(self) -> list[tuple[Pointer, int, _Rows]]:
        """Returns the projected query, key and value: for each, pointer, leading dimension and the rows of its source."""
        p, size = self.p, self.p.embedding
        roles = ["query", "key" if p.get("key") else "query"]
        roles.append("value" if p.get("value") else roles[1])
        found: list[tuple[Pointer, int, _Rows]] = []
        packed = p.get("weight") is not None
        while len(found) < 3:
            first = len(found)
            # As many at once as have one source.
            together = next((i for i in range(first + 1, 3) if roles[i] != roles[first]), 3) - first if packed else 1
            o = p.get(roles[first])
            assert o is not None
            rows = _rows(o)
            assert rows is not None
            width = together * size
            target = self.b.work(rows.count * width * self.item, shared=True)
            source = _Source(self.b.argument(roles[first]), rows.ld, rows.count, o.shape[-1])
            weight, start = ("weight", first * size) if packed else (("q_weight", "k_weight", "v_weight")[first], 0)
            bias = ("bias", first * size) if p.get("bias") else None
            self.product(source, weight, start, width, bias, target, width)
            found += [(shift(target, i * size * self.item), width, rows) for i in range(together)]
        return found

    def product(
        self, source: _Source, role: str, start: int, width: int, bias: tuple[str, int] | None, target: Pointer, ld: int
    ) -> None:
        """Rows times the transposed weights from row `start` on, plus a bias, its rows divided among the threads."""
        p, b, item = self.p, self.b, self.item
        o = p.get(role)
        assert o is not None
        layout, lead = matrix_layout(o.shape, o.strides, item)
        if bias is not None:
            given = p.get(bias[0])
            assert given is not None
            step = given.strides[0]
            b.copy((source.rows, width), shift(b.argument(bias[0]), bias[1] * step), (0, step), target, (ld * item, item), item)
            b.each()
        parts = max(min(self.parts, source.rows), 1)
        starts = [source.rows * i // parts for i in range(parts + 1)]
        sizes = [to - since for since, to in pairwise(starts)]
        x = (source.pointer[0], source.pointer[1], tuple(s * source.ld * item for s in starts[:-1]))
        y = (target[0], target[1], tuple(s * ld * item for s in starts[:-1]))
        weight = shift(b.argument(role), start * o.strides[0])
        one, beta = p.dtype.type(1), p.dtype.type(bias is not None)
        gemm = self.blas.native.cblas(LETTER[p.dtype.name] + "gemm")
        transposed = TRANSPOSED if layout == "C" else PLAIN
        b.call(gemm, [ROW, PLAIN, transposed, sizes, width, source.width, one, x, source.ld, weight, lead, beta, y, ld])
        b.each(parts, self.threads)

    def attention(self, heads: list[tuple[Pointer, int, _Rows]], rows: _Rows, out: Pointer) -> None:
        p, b, item = self.p, self.b, self.item
        dim = p.embedding // p.heads
        operands = []
        for o, (_, ld, r) in zip(p.inner.qkv, heads, strict=True):
            operands.append(replace(o, strides=(r.batch * ld * item, dim * item, r.sequence * ld * item, item)))
        mask = p.inner.mask
        inner = replace(p.inner, operands=(*operands, *([mask] if mask else [])))
        row = p.embedding * item
        shape = Shape(inner, FLASH)
        description = described(inner, shape, (rows.batch * row, dim * item, rows.sequence * row), products_of(self.blas, shape))
        work = b.work(_kernels.attention_workspace(description))
        given = b.argument("mask") if mask is not None else 0
        pointers = [pointer for pointer, _, _ in heads]
        items = list(range(shape.items))
        b.call(_kernels.addresses["attention"], [b.constant(description), items, *pointers, given, out, 0, work])
        b.each(shape.items, self.threads)


@dataclass(frozen=True, slots=True)
class _Source:
    """A matrix to be projected."""

    pointer: Pointer
    ld: int
    rows: int
    width: int


def prepare_fused(blas: BlasTraits, p: MultiHeadProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `fused_algorithms` listed."""
    if algorithm.scaled:
        thread_team.items_run()
    parts = fixed_order.ANY_THREADS if algorithm.name != FUSED else algorithm.threads
    return _Fused(blas, p, algorithm.threads, parts).plan()
