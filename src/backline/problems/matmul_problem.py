"""The Problem of the matrix product and its relatives.

All of matmul, mm, bmm, mv, dot, vdot, outer, addmm and baddbmm are ``beta * C + alpha * op(A) @ B`` over a batch,
with vectors as matrices of one row or column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from . import Problem
from .dtypes import HALVES
from .memory_layout import batch_offsets, matrix_layout
from .symbolic_sizes import rough

__all__ = ["MOST_ROWS", "MatmulProblem", "MatrixProblem", "ProductProblem", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """One operand as a batch of matrices: which array of the call, rows, columns, strides in bytes, where items lie."""

    argument: int
    rows: int
    cols: int
    stride0: int
    stride1: int
    items: int | tuple[int, ...]
    layout: str  # C, F or X
    ld: int


MOST_ROWS = 8  # of an operand beside a large matrix, for which there are loops of our own
TILE = 32  # 16-bit floats in a row of the processor's largest unit: some libraries copy matrices whose rows do not fill it


def product_class(m: int, n: int, k: int, items: int) -> str:
    """Returns the class of the shape of a matrix product.

    Examples
    --------
    >>> product_class(300, 200, 100, 1), product_class(300, 1, 300, 1), product_class(300, 10, 300, 1), product_class(9, 9, 9, 50)
    ('square', 'gemv', 'thin', 'batch')
    """
    if m == n == 1:
        return "dot"
    if m == 1 or n == 1:
        return "gemv"
    if items > 1:
        return "batch"
    sizes = (m, n, k)  # pairs of them rather than the least and the largest: fewer conditions where they are symbolic
    return "thin" if any(8 * small <= large for small in sizes for large in sizes) else "square"


@dataclass(frozen=True)
class MatrixProblem(Problem):
    """An operation on matrices of the sizes ``m``, ``n`` and ``k``, or on a batch of them."""

    m: int = 0
    n: int = 0
    k: int = 0
    batch: tuple[int, ...] = ()

    @cached_property
    def items(self) -> int:
        """Matrices of the batch."""
        return prod(self.batch)


class ProductProblem(MatrixProblem):
    """A product of matrices, whatever follows it."""

    @cached_property
    def summands(self) -> int:
        return max(self.k, 1)

    @cached_property
    def suits_loops(self) -> bool:
        """True where one operand has so few rows or columns that there may be a compiled loop for the product."""
        return self.m <= MOST_ROWS or self.n <= MOST_ROWS

    def shape_class(self) -> str:
        # Of symbolic sizes that of this call: the class only says which measurements are the nearest. But for "few" and "ragged",
        # on which much depends that changes from one size to the next.
        found = product_class(*map(rough, (self.m, self.n, self.k, self.items)))
        halves, added = self.dtype.name in HALVES, self.get("c") is not None and self.parameter("beta") != 0
        # Loops of our own lead there, and cannot be had beyond. Of plain products of wider floats libraries are about as fast.
        if found in ("square", "thin") and (halves or added or self.op != "matmul") and self.suits_loops:
            found = "few"
        ragged = halves and found in ("square", "thin", "few", "batch") and self.k % TILE != 0
        return found + " added" * added + " ragged" * ragged


@dataclass(frozen=True)
class MatmulProblem(ProductProblem):
    """``beta * C + alpha * A @ B``.

    ``m``, ``n``, ``k`` are the sizes, ``batch`` the broadcast batch shape, ``result`` the shape of the result. Operands
    are matrices or batches of them here: the operation has put axes of size 1 where the caller gave vectors.
    Parameters: ``alpha``, ``beta`` (numbers; beta 0 where there is no C) and ``conj`` (A is conjugated: vdot).
    """

    result: tuple[int, ...] = ()

    @cached_property
    def flops(self) -> float:
        real = 8.0 if self.dtype.kind == "c" else 2.0
        return real * self.m * self.n * self.k * self.items

    @cached_property
    def empty(self) -> bool:
        return 0 in (self.m, self.n, self.k, self.items)

    @cached_property
    def alpha(self) -> Any:
        return dict(self.parameters).get("alpha", 1)

    @cached_property
    def beta(self) -> Any:
        return dict(self.parameters).get("beta", 0)

    def view(self, role: str) -> View | None:
        """The operand with this role as a batch of matrices; C is broadcast to the result's shape."""
        return self.views.get(role)

    @cached_property
    def views(self) -> dict[str, View]:
        """Every operand as a batch of matrices, by role."""
        sizes = {"a": (self.m, self.k), "b": (self.k, self.n)}
        found = {}
        for i, o in enumerate(self.operands):
            rows, cols = sizes.get(o.role, (self.m, self.n))
            s0 = 0 if o.shape[-2] == 1 else o.strides[-2]
            s1 = 0 if o.shape[-1] == 1 else o.strides[-1]
            layout, ld = matrix_layout((rows, cols), (s0, s1), o.dtype.itemsize, o.aligned)
            items = batch_offsets(self.batch, o.shape[:-2], o.strides[:-2]) if self.batch else 0
            found[o.role] = View(i, rows, cols, s0, s1, items, layout, ld)
        return found
