"""Attention by the compiled kernel: how it is divided into items, and what the kernel has to know of it.

One item is a block of query rows of one head: scores, softmax, product with the values. The kernel "flash" goes over the keys in
tiles, with a running maximum and sum, so that nothing grows with queries x keys; "math" takes all keys at once. Each item is
computed by one thread in one order, whatever the number of threads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems import Operand
from ...problems.attention_problem import AttentionLSE, AttentionProblem
from ...problems.dtypes import HALVES, compute_dtype
from ..base import PythonPlan
from .vector_level import vector_level

__all__ = ["BY_ROWS", "BY_TILES", "FLASH", "MATH", "Products", "Shape", "described", "of_nothing", "too_much", "write_attention"]

FLASH, MATH = "flash", "math"
ROWS, FEWEST_ROWS = 128, 32  # query rows of an item
ITEMS = 16  # items are made smaller to have so many
TILE_BYTES = 2048  # of flash, in a row: with ROWS of them, and the tile's keys and values, it stays in an L2 of 1 MiB
SCORES_BYTES = 16 << 20  # of math, in an item: of very many keys it takes fewer rows
AS_COMPUTED, FLOAT16, BFLOAT16, FLOAT32 = range(4)
STORED = {"float16": FLOAT16, "bfloat16": BFLOAT16}
NO_MASK, TAKEN, ADDED = range(3)


def too_much(p: AttentionProblem) -> str:
    """Returns the reason why the compiled kernel does not support an attention, or an empty string."""
    if p.get("grad") is not None:
        return "the compiled kernel has no gradients"
    if p.dropout:
        return f"the compiled kernel has no dropout, and it is {p.dropout}"
    if p.dtype.name not in (*HALVES, "float32", "float64"):
        return f"the compiled kernel has no products of {p.dtype.name}"
    if max(map(len, p.shapes)) > 4:
        return f"the compiled kernel has a batch axis and one of heads; query, key and value have {p.shapes}"
    if p.returns_lse and any(0 in shape for shape in p.shapes):
        return "the log-sum-exp of an empty array needs no kernel"
    return "" if p.dims[0] else "a head dim of 0 needs no kernel"


class Shape:
    """Sizes of an attention whose operands have all four axes, batch and heads broadcast, and how it is divided into items."""

    def __init__(self, p: AttentionProblem, name: str) -> None:
        self.compute = compute_dtype(p.dtype)
        self.queries, self.keys = p.lengths[:2]
        self.dim, self.out_dim = p.dims[1:]
        four = [(1,) * (4 - len(shape)) + shape for shape in p.shapes]
        self.batch = np.broadcast_shapes(*(shape[:1] for shape in four))[0]
        self.heads = p.heads[0] if p.enable_gqa else np.broadcast_shapes(*(shape[1:2] for shape in four))[0]
        lead = np.broadcast_shapes(*(shape[:-2] for shape in p.shapes)) if not p.enable_gqa else (self.batch, self.heads)
        rank = max(map(len, p.shapes)) - 2
        self.result = (*lead[len(lead) - rank :], self.queries, self.out_dim)
        item = self.compute.itemsize
        # They follow from the Problem alone: the number of threads must not change the bits.
        self.rows = ROWS
        while self.rows > FEWEST_ROWS and self.batch * self.heads * -(-self.queries // self.rows) < ITEMS:
            self.rows //= 2
        self.tile = self.keys
        if name == FLASH:
            self.tile = min(self.keys, TILE_BYTES // item)
        else:
            self.rows = max(min(self.rows, SCORES_BYTES // (item * max(self.keys, 1))), 1)
        self.rows = max(min(self.rows, self.queries), 1)
        self.items = self.batch * self.heads * -(-self.queries // self.rows)


@dataclass(frozen=True, slots=True)
class _View:
    """An operand over all four axes: strides, how many query heads share a head, whether BLAS can read its matrices."""

    strides: tuple[int, ...]
    shared: int
    direct: bool


class Products(NamedTuple):
    """Addresses of cblas_?gemm and cblas_?gemv, and the largest integer that they take."""

    gemm: int
    gemv: int
    largest: int


BY_TILES, BY_ROWS = Products(0, 0, 0), Products(0, 1, 0)  # loops, in the order of attention.hpp


def _view(o: Operand, s: Shape, gqa: bool, limit: int) -> _View:
    lead = tuple(0 if n == 1 else step for n, step in zip(o.shape[:-2], o.strides[:-2], strict=True))
    strides = (0,) * (2 - len(lead)) + lead + o.strides[-2:]
    heads = o.shape[-3] if len(o.shape) > 2 else 1
    item = s.compute.itemsize
    step, across = o.strides[-2:]
    # Rows one after the other, at whole elements.
    direct = o.dtype == s.compute and o.aligned and across == item
    direct = direct and step % item == 0 and step >= o.shape[-1] * item and step // item <= limit
    return _View(strides, s.heads // heads if gqa else 1, direct)


def described(p: AttentionProblem, s: Shape, out: tuple[int, int, int], products: Products) -> bytes:
    """Returns what the compiled kernel has to know.

    Parameters
    ----------
    p, s
        The Problem, and how it is divided.
    out
        Strides of the result in bytes along batch, heads and rows.
    products
        Those of a BLAS library, or loops.
    """
    item = s.compute.itemsize
    views = [_view(o, s, p.enable_gqa, products.largest) for o in p.qkv]
    kind, stored_mask, mask_strides = _mask(p, s.compute)
    integers = [
        products.gemm, products.gemv, item, STORED.get(p.dtype.name, AS_COMPUTED), stored_mask, vector_level(),
        s.rows, s.tile, s.heads, s.queries, s.keys, s.dim, s.out_dim,
        views[1].shared, views[2].shared,
        *(v.direct for v in views), *(step for v in views for step in v.strides),
        *out,
        kind, *mask_strides, p.is_causal,
    ]  # fmt: skip
    return struct.pack(f"<{len(integers)}qd", *integers, p.scale)


def write_attention(b: Builder, p: AttentionProblem, s: Shape, products: Products) -> tuple[tuple[Pointer, ...], Any]:
    """Writes the call for all items; returns the results, and what makes of them what is returned."""
    row = s.out_dim * p.dtype.itemsize
    description = described(p, s, (s.heads * s.queries * row, s.queries * row, row), products)
    out = b.result(p.dtype, s.result)
    lse = b.result(s.compute, s.result[:-1]) if p.returns_lse else None
    arguments = [b.argument(role) for role in ("query", "key", "value")]
    mask = b.argument("mask") if p.mask is not None else 0
    work = b.work(_kernels.attention_workspace(description))
    given = [*arguments, mask, out, 0 if lse is None else lse, work]
    b.call(_kernels.addresses["attention"], [b.constant(description), list(range(s.items)), *given])
    return ((out,), None) if lse is None else ((out, lse), AttentionLSE)


def of_nothing(p: AttentionProblem, s: Shape) -> PythonPlan | None:
    """Returns the plan where there is no key, as where none takes part: zeros; None where there are some."""
    return PythonPlan(lambda *arrays: np.zeros(s.result, p.dtype)) if 0 in (*s.result, s.keys) else None


def _mask(p: AttentionProblem, compute: np.dtype[Any]) -> tuple[int, int, tuple[int, ...]]:
    """Kind of the mask, how it is stored, and its strides over batch, heads, queries and keys."""
    m = p.mask
    if m is None:
        return NO_MASK, AS_COMPUTED, (0, 0, 0, 0)
    strides = tuple(0 if n == 1 else step for n, step in zip(m.shape, m.strides, strict=True))
    strides = (0,) * (4 - len(strides)) + strides
    if m.dtype.kind == "b":
        return TAKEN, AS_COMPUTED, strides
    stored = AS_COMPUTED if m.dtype == compute else FLOAT32 if m.dtype == np.float32 else STORED[m.dtype.name]
    return ADDED, stored, strides
