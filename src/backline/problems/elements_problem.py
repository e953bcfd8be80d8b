"""The Problem of an operation on the elements of one or two arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from . import Problem

__all__ = ["ElementsProblem"]


@dataclass(frozen=True)
class ElementsProblem(Problem):
    """Products and sums of products that are no matrix products: ``kron``, ``linalg.vecdot``, ``cross`` and ``vander``.

    Operands are those of the call, of any layout, and broadcast as the operation says. Parameters are those of the call: ``dim``,
    an axis that is counted from 0, ``N``, the number of powers, and ``increasing``.

    Parameters
    ----------
    result
        Shape of the result.
    """

    result: tuple[int, ...] = ()

    @cached_property
    def elements(self) -> int:
        """Elements of the result or of the largest operand, whichever are more."""
        return max(prod(shape) for shape in (self.result, *(o.shape for o in self.operands)))

    @cached_property
    def summands(self) -> int:
        return max(self.elements // max(prod(self.result), 1), 1)

    @cached_property
    def flops(self) -> float:
        return 2.0 * self.elements
