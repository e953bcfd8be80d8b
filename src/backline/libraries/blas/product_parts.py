"""One product in parts of a fixed size: tiles of the result, or of its inner size, whose products are added up in one order.

Each part is a call of the BLAS on one thread. The parts follow from the sizes alone, so the bits do not depend on how many
threads share them; they are other ones than those of the whole product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product as every
from typing import Any

import numpy as np

from ...native import thread_team
from ...native.plan_builder import Pointer
from ...problems.matmul_problem import MatmulProblem
from .. import fixed_order
from ..base import Algorithm
from ..kernels.conv_steps import cut, same
from .blas_product import BlasProduct
from .blas_traits import COLUMN, PLAIN, ROW, TRANSPOSED, BlasTraits
from .dot_in_parts import can_be_divided

__all__ = ["PARTS", "ProductParts", "parts_algorithms"]

PARTS = ("gemm_parts", "gemm_f32_parts", "gemv_parts")
LEAST_FLOPS = 1e6  # of a product that is divided
TILE, LEAST_TILE, ROUND = 512, 96, 16  # rows and columns of a tile at most, about the least, and what they are multiples of
TILES, TILE_FLOPS = 16, 2e6  # tiles that there are at least where each then has so many operations
DEPTH, PARTIAL = 1024, 1 << 22  # inner size of a part at least, and elements of all partial products at most
LENGTH = 64  # elements of a vector's part at least
BATCH = 16  # items of a batch from which on they are shared as they are


def parts_algorithms(blas: BlasTraits, p: MatmulProblem, threads: int, half: bool, vector: bool) -> Iterator[Algorithm]:
    """Lists what this module has for a product that BLAS can compute."""
    if not fixed_order.asked() or p.parameter("conj"):
        return
    if vector and p.m == p.n == 1 and p.alpha == 1 and p.beta == 0:
        if can_be_divided(p):
            for found in fixed_order.listed("dot", threads, partial(Algorithm, library=blas.name), "parts of the sum", blas.pool):
                yield replace(found, name="dot_split")
        return
    if p.flops < LEAST_FLOPS:
        return
    if vector and p.items > 1:
        if threads > 1 and blas.pool:
            yield Algorithm(
                library=blas.name, name="gemv_items", threads=thread_team.items_threads(threads), scaled=True, level="threads",
                basis="construction", pool=blas.pool, note="items of the batch divided among the threads",
            )  # fmt: skip
        return
    if p.items > 1 and (half or any(v.layout == "X" for v in p.views.values())):
        return
    make = partial(Algorithm, library=blas.name, precision="f32 accumulation" if half else "")
    name = "gemv" if vector else "gemm_f32" if half else "gemm"
    note = "parts of the vector" if vector else "tiles of the result, or of the sums"
    yield from fixed_order.listed(name, threads, make, f"{note}, of a fixed size", blas.pool)


def tiles_of(m: int, n: int, k: int, items: int) -> tuple[int, int]:
    """Returns how many rows and columns a tile has.

    Examples
    --------
    >>> tiles_of(2048, 2048, 2048, 1), tiles_of(1000, 1000, 1000, 1), tiles_of(300, 200, 100, 1)
    ((512, 512), (256, 256), (160, 112))
    """
    rows, cols = min(m, TILE), min(n, TILE)
    while max(rows, cols) > LEAST_TILE and rows * cols * k >= TILE_FLOPS:
        if items * -(-m // rows) * -(-n // cols) >= TILES:
            break
        if rows >= cols:
            rows = _half(rows)
        else:
            cols = _half(cols)
    return rows, cols


def _half(size: int) -> int:
    return -(-size // (2 * ROUND)) * ROUND


def _cut(total: int, size: int) -> list[tuple[int, int]]:
    """Returns (first, count) of parts of exactly that size, but for the last one."""
    return [(first, min(size, total - first)) for first in range(0, total, size)]


class ProductParts(BlasProduct):
    """Writes the steps of one product in parts down."""

    def work(self, nbytes: int) -> Pointer:
        return self.b.work(nbytes, shared=True)  # every thread reads what one has copied

    # matrices

    def gemm_parts(self, threads: int) -> int:
        """Returns the number of items of the last group."""
        p = self.p
        a, _, a_layout, lda = self.operand("a")
        b, _, b_layout, ldb = self.operand("b")
        rows, cols = tiles_of(p.m, p.n, p.k, p.items)
        tiles = list(every(_cut(p.m, rows), _cut(p.n, cols)))
        depth = min(BATCH, p.k // DEPTH, PARTIAL // (p.m * p.n)) if p.items == 1 and len(tiles) < TILES // 2 else 0
        if depth > 1:
            return self._over_sums(depth, (a, a_layout, lda), (b, b_layout, ldb), threads)
        c, layout, ldc = self.target()
        self.load(c, layout, ldc)
        self.b.each(p.items, threads)
        item = self.compute.itemsize

        def step(order: str, ld: int, axis: int) -> int:
            return (ld if (order == "C") == (axis == 0) else 1) * item

        at = [(r * step(a_layout, lda, 0), c * step(b_layout, ldb, 1)) for (r, _), (c, _) in tiles]
        to = [r * step(layout, ldc, 0) + c * step(layout, ldc, 1) for (r, _), (c, _) in tiles]
        heights, widths = ([t[i][1] for t in tiles] * p.items for i in (0, 1))
        head = [ROW if layout == "C" else COLUMN, *(PLAIN if x == layout else TRANSPOSED for x in (a_layout, b_layout))]
        alpha, beta = self.scalars(p.alpha, p.beta)
        places = (
            fixed_order.places(pointer, p.items, offsets)
            for pointer, offsets in ((a, [x for x, _ in at]), (b, [x for _, x in at]), (c, to))
        )
        pa, pb, pc = places
        sizes = [same(heights), same(widths), p.k]
        self.b.call(self.function("gemm"), [*head, *sizes, alpha, pa, lda, pb, ldb, beta, pc, ldc])
        count = len(tiles) * p.items
        if c == self.result:
            return count
        self.b.each(count, threads)
        self.store(c)
        return 1

    gemm_f32_parts = gemm_parts

    def _over_sums(self, parts: int, a: tuple[Pointer, str, int], b: tuple[Pointer, str, int], threads: int) -> int:
        """Products of parts of the inner size, which one thread adds up in order."""
        p, item = self.p, self.compute.itemsize
        (pa, a_layout, lda), (pb, b_layout, ldb) = a, b
        size = p.m * p.n * item
        partial_products = self.work(parts * size)
        some = cut(p.k, -(-p.k // parts))
        self.b.each()
        ka, kb = (1 if a_layout == "C" else lda) * item, (ldb if b_layout == "C" else 1) * item
        trans = [PLAIN if x == "C" else TRANSPOSED for x in (a_layout, b_layout)]
        alpha, zero = self.scalars(p.alpha, 0)
        self.b.call(
            self.function("gemm"),
            [ROW, *trans, p.m, p.n, same([n for _, n in some]), alpha, fixed_order.places(pa, 1, [f * ka for f, _ in some]), lda,
             fixed_order.places(pb, 1, [f * kb for f, _ in some]), ldb, zero, (partial_products[0], 0, size), p.n],
        )  # fmt: skip
        self.b.each(len(some), threads)
        c, layout, ldc = self.target()
        packed = layout == "C" and (ldc == p.n or p.m == 1)
        sums = c if packed else self.work(size)
        self.load(sums, "C", p.n)
        self.add_up(len(some), p.m * p.n, partial_products, sums, 1)
        if not packed:
            strides = (ldc * item, item) if layout == "C" else (item, ldc * item)
            self.copy((p.m, p.n), sums, (p.n * item, item), c, strides, item)
        self.store(c)
        return 1

    def add_up(self, count: int, length: int, parts: Pointer, result: Pointer, step: int) -> None:
        """Adds vectors that lie one after the other to beta times the result: a product with ones."""
        ones = self.b.constant(np.ones(count, self.compute).tobytes())
        one, beta = self.scalars(1, self.p.beta)
        self.b.call(self.function("gemv"), [COLUMN, PLAIN, length, count, one, parts, length, ones, 1, beta, result, step])

    # vectors

    def gemv_parts(self, threads: int) -> int:
        """Returns the number of items of the last group."""
        p, item = self.p, self.size
        vectors = self.vector_operands()
        m, x, y = vectors.matrix, vectors.x, vectors.y
        length, depth = (m.rows, m.cols) if vectors.column else (m.cols, m.rows)
        by_row, by_col = (vectors.ld * item, item) if vectors.layout == "C" else (item, vectors.ld * item)
        out_step, sum_step = (by_row, by_col) if vectors.column else (by_col, by_row)
        head = [ROW if vectors.layout == "C" else COLUMN, PLAIN if vectors.column else TRANSPOSED]
        alpha, beta = self.scalars(p.alpha, p.beta)
        self.b.each()
        if length >= TILES * LENGTH // 4 or depth < 2 * DEPTH:
            some = _cut(length, max(-(-length // (TILES * ROUND)) * ROUND, LENGTH))
            sizes: list[Any] = [same([n for _, n in some]), depth]
            pm, px, py = (
                fixed_order.places(pointer, 1, [f * step for f, _ in some])
                for pointer, step in ((vectors.at, out_step), (x, 0), (y, vectors.incy * item))
            )
            to, add = (py, vectors.incy), beta
        else:
            some = cut(depth, max(DEPTH, -(-depth // TILES)))
            sizes = [length, same([n for _, n in some])]
            parts = self.work(len(some) * length * item)
            pm, px = (
                fixed_order.places(pointer, 1, [f * step for f, _ in some])
                for pointer, step in ((vectors.at, sum_step), (x, vectors.incx * item))
            )
            to, add = ((parts[0], 0, length * item), 1), self.scalars(0)[0]
        shape = sizes if vectors.column else sizes[::-1]
        self.b.call(self.function("gemv"), [*head, *shape, alpha, pm, vectors.ld, px, vectors.incx, add, *to])
        self.b.each(len(some), threads)
        if to[0][0] != y[0]:
            self.add_up(len(some), length, (to[0][0], 0, 0), y, vectors.incy)
        self.store_vector(vectors)
        return 1
