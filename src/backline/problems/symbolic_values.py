"""Values that follow from sizes and are no sums of products: the factor 1 over a size, and bounds."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

from .symbolic_sizes import Untraceable, is_symbolic, rough

__all__ = ["SymbolicFactor", "reciprocal", "upper_bound"]

BOUNDED = 256  # beyond, as much as the next power of two needs would be too much


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


def upper_bound(size: Any) -> int:
    """Returns the next power of two up to `BOUNDED`, and larger sizes as they are: as much as a range of sizes needs.

    Examples
    --------
    >>> [upper_bound(n) for n in (0, 1, 5, 256, 257)]
    [0, 1, 8, 256, 257]
    """
    value = rough(size)
    bound = 1 << (value - 1).bit_length() if 0 < value <= BOUNDED else value
    if is_symbolic(size) and not (bound <= BOUNDED and bound // 2 < size <= bound):
        raise Untraceable("a size is its own bound")
    return int(bound)
