"""Products of bfloat16, and linear layers of them, on processors with AMX.

The rows of the first matrix are packed once, by all threads. An item is a block of the result: it packs its columns of the second
matrix, and rounds 32 rows and columns of sums at a time while they are in the nearest cache. A sum is added up in the same order
however the result is divided, and so the bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems import Operand
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MOST_ROWS, MatmulProblem
from ..base import Algorithm, Refusal
from .conv_steps import uniform
from .int8_products import up_to
from .pointwise_loops import KINDS
from .shares import vector
from .vector_level import vector_level

__all__ = ["TILES", "prepare_tiles", "tile_algorithms"]

TILES = "tiles"
DTYPE, SIZE = "bfloat16", 2
# Rows and columns whose sums are computed together, terms of a tile, and bytes of its rows, as bfloat16_tiles.cpp has them.
PANEL, TERMS, TILE_ROW = 32, 32, 64
THREADED = 1 << 23  # operations below which a thread team costs more than it brings
COLUMN_BYTES = 1 << 20  # of the packed columns of an item, at most about so many: they stay in the second cache
LEAST_COLUMNS, MOST_COLUMNS = 64, 256  # of an item,
LEAST_ROWS = 256  # and rows, where there are so many: each block of rows packs the columns again
ITEMS = 4  # for each thread
MOST_ITEMS = 1 << 10  # of a batch: what is said of each is kept with the plan


def tile_algorithms(p: MatmulProblem | LinearProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the product by tiles on all threads and on one, or the reason why there is none; nothing for other dtypes."""
    if p.dtype.name != DTYPE:
        return
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", TILES, reason)
        return
    note = "sums of 32 rows and columns by AMX, then rounded; subnormal numbers may count as 0"
    if threads > 1 and p.flops >= THREADED:
        yield Algorithm(
            library="kernels", name=TILES, threads=threads, scaled=True, level="threads", basis="construction",
            precision="f32 accumulation", pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(
        library="kernels", name=TILES, level="threads", basis="construction", precision="f32 accumulation", note=note
    )


@cache
def _permitted() -> bool:
    return "multiply_tiles" in _kernels.addresses and bool(_kernels.bfloat16_tiles_permitted())


def _refusal(p: MatmulProblem | LinearProblem) -> str:
    """Returns the reason why a product is not computed by tiles, or an empty string."""
    if vector_level() < 2 or not _permitted():
        return "the processor has no AMX for bfloat16, or its use is not permitted"
    if p.empty or p.items > MOST_ITEMS:
        return "an empty product needs no tiles" if p.empty else f"a batch of more than {MOST_ITEMS} products"
    if min(p.m, p.n) <= MOST_ROWS:
        return f"{MOST_ROWS} rows or columns, or fewer, fill no tiles"
    if any(o.dtype != p.dtype or not o.aligned for o in p.operands):
        return "an operand is not aligned, or of another dtype"
    product = p.given_product if isinstance(p, LinearProblem) else p
    if product.alpha != 1 or product.beta not in (0, 1):
        return "tiles are multiplied by no factor"
    for role, v in (("out", product.views.get("out")), ("what is added", product.views["c"] if product.beta else None)):
        if v is not None and v.stride1 != SIZE:
            return f"elements of a row of {role} are no neighbours in memory"
    return ""


_Part = tuple[int, int]  # the first row or column, and how many


class _Matrices(NamedTuple):
    """A batch of matrices in the memory of a plan: where each begins, and the strides of their elements in bytes."""

    pointer: Pointer
    starts: int | tuple[int, ...]
    stride0: int
    stride1: int

    def start(self, item: int) -> int:
        """Returns where the matrix of an item of the batch begins, in bytes."""
        return self.starts[item] if isinstance(self.starts, tuple) else self.starts * item

    def at(self, places: list[tuple[int, int, int]]) -> Pointer:
        """Returns the places of (item of the batch, row, column), one for each item of a group."""
        buffer, offset, _ = self.pointer
        return buffer, offset, uniform([self.start(i) + row * self.stride0 + column * self.stride1 for i, row, column in places])


def prepare_tiles(p: MatmulProblem | LinearProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `tile_algorithms` listed."""
    product = p.given_product if isinstance(p, LinearProblem) else p
    b, threads = Builder(product), algorithm.threads
    out = product.views.get("out")
    result = b.argument("out") if out is not None else b.result(p.dtype, p.result, "C")
    row = p.n * SIZE
    target = _Matrices(result, out.items, out.stride0, SIZE) if out is not None else _Matrices(result, p.m * row, row, SIZE)
    c = product.views["c"] if product.beta else None
    added = _Matrices(b.argument("c"), c.items, c.stride0, c.stride1) if c is not None else target
    bias: Operand | None = p.bias_row if isinstance(p, LinearProblem) else None
    biases = _Matrices(vector(b, bias, "bias", p.dtype, result), 0, 0, 4 if bias is not None else 0)
    packed = _packed_rows(b, product, threads)
    second = _lying(b, product, "b", p.k, p.n)
    by_columns = second.stride1 != SIZE
    activation = KINDS.index(p.parameter("activation") or "none")
    words = (
        p.k, by_columns, second.stride1 if by_columns else second.stride0, target.stride0, added.stride0, c is not None,
        bias is not None, activation,
    )  # fmt: skip
    rows, columns = _blocks(p, threads)
    blocks = [(item, *down, *across) for item in range(p.items) for down in rows for across in columns]
    places = [(item, row, column) for item, row, _, column, _ in blocks]
    arguments = [
        b.packed(f"<{len(words)}q", *words), [count for _, _, count, _, _ in blocks], [count for *_, count in blocks],
        packed.at(places), second.at([(item, 0, column) for item, _, column in places]), added.at(places), biases.at(places),
        b.work(up_to(columns[0][1], PANEL) * _pieces(p.k) * TILE_ROW), target.at(places),
    ]  # fmt: skip
    b.each()
    b.call(_kernels.addresses["multiply_tiles"], arguments)
    return b.plan(result, count=len(blocks), threads=threads, release_gil=True, same=("c",))


def _pieces(terms: int) -> int:
    """Returns the tiles of a row."""
    return -(-terms // TERMS)


def _packed_rows(b: Builder, p: MatmulProblem, threads: int) -> _Matrices:
    """Packs the rows of the first matrix; a batch that repeats it has it once."""
    given = _lying(b, p, "a", p.m, p.k)
    pack, step = ("pack_tile_rows", given.stride0) if given.stride1 == SIZE else ("pack_tile_columns", given.stride1)
    row = _pieces(p.k) * TILE_ROW
    items, whole = (p.items if given.starts else 1), up_to(p.m, PANEL) * row
    packed = _Matrices(b.work(items * whole, shared=True), whole if given.starts else 0, row, 0)
    parts = [(item, *part) for item in range(items) for part in _parts(p.m, -(-ITEMS * threads // items))]
    places, counts = [(item, first, 0) for item, first, _ in parts], [count for *_, count in parts]
    b.each()
    b.call(_kernels.addresses[pack], [p.k, step, counts, given.at(places), packed.at(places)])
    b.each(len(parts), threads if len(parts) > 1 else 1)
    return packed


def _lying(b: Builder, p: MatmulProblem, role: str, rows: int, columns: int) -> _Matrices:
    """Returns an operand whose elements of a row or of a column are neighbours in memory: copied where neither are."""
    v = p.views[role]
    given = _Matrices(b.argument(role), v.items, v.stride0 if rows > 1 else columns * SIZE, v.stride1 if columns > 1 else SIZE)
    return given if SIZE in (given.stride0, given.stride1) else _copied(b, p, given, rows, columns)


def _copied(b: Builder, p: MatmulProblem, given: _Matrices, rows: int, columns: int) -> _Matrices:
    """Returns a copy of matrices without gaps, row by row."""
    items, whole = p.items if given.starts else 1, rows * columns * SIZE
    made = _Matrices(b.work(items * whole, shared=True), whole if given.starts else 0, columns * SIZE, SIZE)
    places = [(item, 0, 0) for item in range(items)]
    b.each()
    b.copy((rows, columns), given.at(places), (given.stride0, given.stride1), made.at(places), (made.stride0, SIZE), SIZE)
    b.each(items)
    return made


def _blocks(p: MatmulProblem | LinearProblem, threads: int) -> tuple[list[_Part], list[_Part]]:
    """Returns the parts of the rows and of the columns; those of both are one thread's at a time.

    Rows are divided first, and columns only as the cache wants it: a block reads all its rows again for every few columns.
    """
    wanted = -(-ITEMS * threads // p.items) if threads > 1 else 1
    most = min(max(COLUMN_BYTES // (SIZE * p.k) // PANEL * PANEL, LEAST_COLUMNS), MOST_COLUMNS)
    across = -(-p.n // most)
    down = min(-(-wanted // across), -(-p.m // LEAST_ROWS))
    across = max(across, min(-(-wanted // down), p.n // LEAST_COLUMNS))
    return _parts(p.m, down), _parts(p.n, across)


def _parts(size: int, most: int) -> list[_Part]:
    """Returns at most so many parts of some rows or columns, whole panels but for the last one.

    >>> _parts(100, 3), _parts(5, 3)
    ([(0, 64), (64, 36)], [(0, 5)])
    """
    panels = -(-size // PANEL)
    each = -(-panels // most)
    count, share = range(-(-panels // each)), each * PANEL
    return [(i * share, share) for i in count[:-1]] + [(count[-1] * share, size - count[-1] * share)]
