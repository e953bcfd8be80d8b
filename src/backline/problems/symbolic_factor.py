"""Factors that are computed from sizes, such as the scale of a Fourier transform: 1 over a size, or over its square root."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

from .symbolic_sizes import is_symbolic

__all__ = ["SymbolicFactor", "reciprocal"]


class SymbolicFactor:
    """The factor of a call whose sizes are symbolic; `root` tells if it is 1 over the square root.

    Who computes with it must do so from the size: it is no number.
    """

    __slots__ = ("root", "size")

    def __init__(self, size: Any, root: bool) -> None:
        self.size, self.root = size, root

    def evaluated_by(self, evaluated: Callable[[Any], Any]) -> float:
        """Returns the factor where a function tells the number that a symbolic size is."""
        return float(reciprocal(evaluated(self.size), self.root))


def reciprocal(size: Any, root: bool = False) -> Any:
    """Returns 1 over a size, or over its square root; of a symbolic size a `SymbolicFactor`.

    Examples
    --------
    >>> reciprocal(4), reciprocal(4, root=True)
    (0.25, 0.5)
    """
    if is_symbolic(size):
        return SymbolicFactor(size, root)
    return 1.0 / (sqrt(size) if root else size)
