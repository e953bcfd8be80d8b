"""The Problem of a norm along axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from . import Problem

__all__ = ["NormProblem"]


@dataclass(frozen=True)
class NormProblem(Problem):
    """One array in (role ``x``), norms of its parts out: real numbers, of the array's precision.

    Parameters are those of the call: ``ord``, a number, or "fro" for matrices; ``dim``, the axes, which are not negative; and
    ``keepdim``. With ``linalg.matrix_norm`` and 1, -1, inf or -inf for ``ord`` they are norms of matrices, else of vectors.
    ``trace``, which has none, is the sum of a matrix' diagonal.

    Parameters
    ----------
    result
        Shape of the result.
    """

    result: tuple[int, ...] = ()

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes that have no part in the result."""
        found: tuple[int, ...] = self.parameter("dim", (0,))
        return found

    @cached_property
    def summands(self) -> int:
        return max(prod(self.operands[0].shape[axis] for axis in self.axes), 1)

    @cached_property
    def flops(self) -> float:
        return 2.0 * prod(self.operands[0].shape)
