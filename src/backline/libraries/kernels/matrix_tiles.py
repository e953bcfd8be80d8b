"""Steps of products of matrices by AMX tiles: of bfloat16, and of int8 with sums of int32.

The rows of the first matrix are packed once, by all threads. An item is a block of the result: it packs its columns of the second
matrix, and finishes 32 rows and columns of sums at a time while they are in the nearest cache. A sum is added up in the same
order however the result is divided, and so the bits do not depend on the number of threads.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from .conv_steps import uniform
from .int8_products import up_to
from .vector_level import vector_level

__all__ = ["BFLOAT16", "INT8", "NO_TILES", "THREADED", "Matrices", "TileProduct", "blocks", "has_tiles", "parts", "permitted"]

NO_TILES = "the processor has no AMX for {}, or its use is not permitted"
# Rows and columns whose sums are computed together, and bytes of the rows of a tile, as matrix_tiles.cpp has them.
PANEL, TILE_ROW = 32, 64
THREADED = 1 << 23  # operations below which a thread team costs more than it brings
COLUMN_BYTES = 1 << 20  # of the packed columns of an item, at most about so many: they stay in the second cache
LEAST_COLUMNS, MOST_BYTES = 64, 1 << 9  # columns of an item at least, bytes of a row of the second matrix at most,
LEAST_ROWS = 256  # and rows at least, where there are so many: each block of rows packs the columns again
ITEMS = 4  # for each thread
BFLOAT16, INT8 = 2, 1  # bytes of an element


@cache
def permitted(size: int) -> bool:
    """Tells whether the processor multiplies tiles of such elements, and the system lets it."""
    if "multiply_tiles" not in _kernels.addresses:
        return False
    return bool(_kernels.bfloat16_tiles_permitted() if size == BFLOAT16 else _kernels.tiles_permitted())


def has_tiles(size: int) -> bool:
    """Tells whether loops of tiles of elements of 2 bytes, bfloat16, or of one, int8, may run here and now."""
    return vector_level() == 2 and permitted(size)


class Matrices(NamedTuple):
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


Part = tuple[int, int]  # the first row or column, and how many


class TileProduct:
    """Writes the steps of a product, or of a batch of them.

    Parameters
    ----------
    b
        Writes them.
    size
        Bytes of an element of the operands.
    m, n, k, items
        Sizes of the product, and of the batch.
    threads
        Those of the plan.
    """

    def __init__(self, b: Builder, size: int, m: int, n: int, k: int, items: int, threads: int) -> None:
        self.b, self.size, self.m, self.n, self.k, self.items, self.threads = b, size, m, n, k, items, threads
        self.row = -(-k * size // TILE_ROW) * TILE_ROW  # bytes of a packed row

    def write(
        self, a: Matrices, second: Matrices, target: Matrices, added: Matrices | None = None, bias: Pointer | None = None,
        activation: int = 0,
    ) -> int:  # fmt: skip
        """Writes the steps; returns the number of items of the last group.

        Parameters
        ----------
        a, second, target
            The operands, of which elements of rows or of columns are neighbours, and the result, of which those of rows are.
        added, bias, activation
            Of bfloat16: matrices, and a row of float32, that are added to the sums, and the number of an activation.
        """
        b, by_columns = self.b, second.stride1 != self.size
        words = (
            self.size == BFLOAT16, self.k, by_columns, second.stride1 if by_columns else second.stride0, target.stride0,
            added.stride0 if added is not None else 0, added is not None, bias is not None, activation,
        )  # fmt: skip
        rows, columns = blocks(self.m, self.n, self.k, self.items, self.size, self.threads)
        items = [(item, *down, *across) for item in range(self.items) for down in rows for across in columns]
        places = [(item, row, column) for item, row, _, column, _ in items]
        biases = Matrices(bias, 0, 0, 4) if bias is not None else target
        whole = up_to(self.m, PANEL) * self.row
        if a.starts and len(items) == self.items:  # no two of them read the same rows
            packed = b.work(whole)
            b.each()
            self._pack(a, [self.m] * self.items, a.at(places), packed)
        else:
            packed = self._packed(a, whole).at(places)
            b.each()
        arguments = [
            b.packed(f"<{len(words)}q", *words), [count for _, _, count, _, _ in items], [count for *_, count in items],
            packed, second.at([(item, 0, column) for item, _, column in places]), (added or target).at(places),
            biases.at(places), b.work(up_to(columns[0][1], PANEL) * self.row), target.at(places),
        ]  # fmt: skip
        b.call(_kernels.addresses["multiply_tiles"], arguments)
        return len(items)

    def _packed(self, given: Matrices, whole: int) -> Matrices:
        """Packs the rows of the first matrix, in a group of its own; a batch that repeats it has it once."""
        b, items = self.b, self.items if given.starts else 1
        packed = Matrices(b.work(items * whole, shared=True), whole if given.starts else 0, self.row, 0)
        divided = [(item, *part) for item in range(items) for part in parts(self.m, -(-ITEMS * self.threads // items))]
        places = [(item, first, 0) for item, first, _ in divided]
        b.each()
        self._pack(given, [count for *_, count in divided], given.at(places), packed.at(places))
        b.each(len(divided), self.threads if len(divided) > 1 else 1)
        return packed

    def _pack(self, given: Matrices, counts: list[int], rows: Pointer, packed: Pointer) -> None:
        by_rows = given.stride1 == self.size
        pack = "pack_tile_rows" if by_rows else f"pack_tile_columns_{self.size}"
        step = given.stride0 if by_rows else given.stride1
        self.b.call(_kernels.addresses[pack], [self.k * self.size, step, counts, rows, packed])


def blocks(m: int, n: int, k: int, items: int, size: int, threads: int) -> tuple[list[Part], list[Part]]:
    """Returns the parts of the rows and of the columns; those of both are one thread's at a time.

    Rows are divided first, and columns only as the cache wants it: a block reads all its rows again for every few columns.
    Parameters are those of `TileProduct`.
    """
    wanted = -(-ITEMS * threads // items) if threads > 1 else 1
    most = min(max(COLUMN_BYTES // (size * k) // PANEL * PANEL, LEAST_COLUMNS), MOST_BYTES // size)
    across = -(-n // most)
    down = min(-(-wanted // across), -(-m // LEAST_ROWS))
    across = max(across, min(-(-wanted // down), n // LEAST_COLUMNS))
    return parts(m, down), parts(n, across)


def parts(size: int, most: int) -> list[Part]:
    """Returns at most so many parts of some rows or columns, whole panels but for the last one.

    >>> parts(100, 3), parts(5, 3)
    ([(0, 64), (64, 36)], [(0, 5)])
    """
    panels = -(-size // PANEL)
    each = -(-panels // most)
    count, share = range(-(-panels // each)), each * PANEL
    return [(i * share, share) for i in count[:-1]] + [(count[-1] * share, size - count[-1] * share)]
