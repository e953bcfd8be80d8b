"""The Problem of a dense linear-algebra operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from . import Problem
from .memory_layout import batch_offsets

__all__ = ["FLOPS", "LinalgProblem"]

# Real operations of the usual algorithm for an m x n matrix, m >= n, and k right-hand sides; leading terms of
# Golub and Van Loan, Matrix Computations, and LAPACK Working Note 41.
FLOPS: dict[str, Callable[[int, int, int], float]] = {
    "linalg.cholesky": lambda m, n, k: n**3 / 3,
    "linalg.lu_factor": lambda m, n, k: m * n**2 - n**3 / 3,
    "linalg.inv": lambda m, n, k: 2 * n**3,
    "linalg.solve": lambda m, n, k: 2 * n**3 / 3 + 2 * n**2 * k,
    "linalg.lu_solve": lambda m, n, k: 2 * n**2 * k,
    "linalg.solve_triangular": lambda m, n, k: n**2 * k,
    "cholesky_solve": lambda m, n, k: 2 * n**2 * k,
    "cholesky_inverse": lambda m, n, k: 2 * n**3 / 3,
    "linalg.ldl_factor": lambda m, n, k: n**3 / 3,
    "linalg.ldl_solve": lambda m, n, k: 2 * n**2 * k,
    "linalg.householder_product": lambda m, n, k: 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3,
    "linalg.qr": lambda m, n, k: 4 * m * n**2 - 4 * n**3 / 3,
    "linalg.eigh": lambda m, n, k: 9 * n**3,
    "linalg.eigvalsh": lambda m, n, k: 4 * n**3 / 3,
    "linalg.eig": lambda m, n, k: 25 * n**3,
    "linalg.eigvals": lambda m, n, k: 10 * n**3,
    "linalg.svd": lambda m, n, k: 14 * m * n**2 + 8 * n**3,
    "linalg.svdvals": lambda m, n, k: 4 * m * n**2 - 4 * n**3 / 3,
    "linalg.lstsq": lambda m, n, k: 2 * m * n**2 - 2 * n**3 / 3 + 4 * m * n * k,
}


@dataclass(frozen=True)
class LinalgProblem(Problem):
    """An operation on an m x n matrix (or a batch of them), with k right-hand sides where it has any.

    Roles: ``a`` the matrix, ``b`` right-hand sides, ``p`` pivots, ``t`` factors of reflectors, ``out`` (or ``out0``,
    ``out1``, ...) given outputs.
    """

    m: int = 0
    n: int = 0
    k: int = 0
    batch: tuple[int, ...] = ()

    @cached_property
    def items(self) -> int:
        n = 1
        for size in self.batch:
            n *= size
        return n

    @cached_property
    def summands(self) -> int:
        return 16 * max(self.m, self.n, 1)

    @cached_property
    def flops(self) -> float:
        m, n = max(self.m, self.n), min(self.m, self.n)
        return (4.0 if self.dtype.kind == "c" else 1.0) * FLOPS[self.op](m, n, self.k) * self.items

    @cached_property
    def empty(self) -> bool:
        return 0 in (self.m, self.n, self.items) or ("b" in [o.role for o in self.operands] and self.k == 0)

    def where(self, role: str, core: int = 2) -> int | tuple[int, ...]:
        """Where the items of an operand lie: a stride or offsets in bytes, over the broadcast batch."""
        o = self.get(role)
        assert o is not None
        last = len(o.shape) - core
        return batch_offsets(self.batch, o.shape[:last], o.strides[:last])


def singular(op: str, element: int) -> str:
    """The text of an error: an element of the diagonal of U, counted from 1, is zero."""
    text = f"the input matrix is singular (element {element} of the diagonal of U is zero)"
    if op == "linalg.lu_factor":
        text += f": U[{element},{element}] is zero and using it on lu_solve would result in a division by zero"
    return text


def not_finite(op: str) -> str:
    """The text of an error: NaN or infinity among the numbers."""
    if op == "linalg.lstsq":
        return "A or B holds NaN or infinity"
    if op in ("linalg.eig", "linalg.eigvals"):
        return "input tensor should not contain infs or NaNs: the matrix holds NaN or infinity"
    return "the input matrix contained non-finite values: it holds NaN or infinity"
