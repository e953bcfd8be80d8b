"""The Problem of a dense linear-algebra operation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .matmul_problem import MatrixProblem
from .memory_layout import batch_offsets
from .op_registry import operations

__all__ = ["LinalgProblem"]

SMALL, MANY = 16, 8  # rows and columns, and matrices of a batch


@dataclass(frozen=True)
class LinalgProblem(MatrixProblem):
    """An operation on an m x n matrix (or a batch of them), with k right-hand sides where it has any.

    Roles: ``a`` the matrix, ``b`` right-hand sides, ``p`` pivots, ``t`` factors of reflectors, ``out`` (or ``out0``,
    ``out1``, ...) given outputs.
    """

    @cached_property
    def summands(self) -> int:
        return 16 * max(self.m, self.n, 1)

    @cached_property
    def flops(self) -> float:
        m, n = max(self.m, self.n), min(self.m, self.n)
        return (4.0 if self.dtype.kind == "c" else 1.0) * operations[self.op].flops(m, n, self.k) * self.items

    @cached_property
    def empty(self) -> bool:
        return 0 in (self.m, self.n, self.items) or ("b" in [o.role for o in self.operands] and self.k == 0)

    @cached_property
    def suits_loops(self) -> bool:
        """True for a batch of small real matrices, whose elements fill vectors better than one matrix does."""
        return max(self.m, self.n) <= SMALL and self.items >= MANY and self.dtype.name in ("float32", "float64")

    def where(self, role: str, core: int = 2) -> int | tuple[int, ...]:
        """Returns where the items of an operand lie: a stride or offsets in bytes, over the broadcast batch."""
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


def not_definite(order: object) -> str:
    """The text of an error: a matrix without a Cholesky factor, as the leading minor of that order shows."""
    return f"the leading minor of order {order} is not positive-definite"


def not_finite(op: str) -> str:
    """The text of an error: NaN or infinity among the numbers."""
    if op == "linalg.lstsq":
        return "A or B holds NaN or infinity"
    if op in ("linalg.eig", "linalg.eigvals"):
        return "input tensor should not contain infs or NaNs: the matrix holds NaN or infinity"
    return "the input matrix contained non-finite values: it holds NaN or infinity"
