"""The order of a contraction: which operands are multiplied first.

With three operands or more the order decides how much work a contraction is. `backends.opt_einsum` says who looks for it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from .. import switches

__all__ = ["Path", "contraction_path"]

Path = tuple[tuple[int, ...], ...]
"""Positions of the operands of each step; a result is put at the end of those that are left."""


def contraction_path(equation: str, shapes: tuple[tuple[int, ...], ...]) -> Path:
    """Return the order in which to contract operands of these shapes, under the switches that hold here.

    Parameters
    ----------
    equation
        Explicit, with an arrow and without an ellipsis: ``"ij,jk,kl->il"``.
    shapes
        Shape of each operand; axes of one label are equal or 1.

    Notes
    -----
    From left to right for fewer than three operands, or while opt_einsum is not enabled; else opt_einsum searches, as
    ``opt_einsum.strategy`` says. What was found is kept.

    Examples
    --------
    >>> shapes = ((2, 1000), (1000, 2), (2, 1000))
    >>> contraction_path("ij,jk,kl->il", shapes)
    ((0, 1), (0, 1))
    >>> contraction_path("ij,jk,kl->il", ((1000, 2), (2, 1000), (1000, 2)))
    ((1, 2), (0, 1))
    >>> from backline.backends import opt_einsum
    >>> with opt_einsum.flags(enabled=False):
    ...     contraction_path("ij,jk,kl->il", ((1000, 2), (2, 1000), (1000, 2)))
    ((0, 1), (1, 0))
    """
    if len(shapes) < 3 or not switches.get("opt_einsum.enabled"):
        return _left_to_right(len(shapes))
    return _searched(equation, shapes, cast(str, switches.get("opt_einsum.strategy")))


def _left_to_right(count: int) -> Path:
    if count == 1:
        return ((0,),)
    # The result goes to the end: it is the last, and the next operand the first, of those that are left.
    return ((0, 1), *((left - 1, 0) for left in range(count - 1, 1, -1)))


@lru_cache(maxsize=512)
def _searched(equation: str, shapes: tuple[tuple[int, ...], ...], strategy: str) -> Path:
    import opt_einsum

    path, _ = opt_einsum.contract_path(equation, *shapes, optimize=strategy, shapes=True)
    return tuple(tuple(step) for step in path)
