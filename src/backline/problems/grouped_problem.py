"""The Problem of products of groups of rows, columns or terms, whose sizes are data of the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import BadValue
from .matmul_problem import ProductProblem

__all__ = ["COLUMNS", "ROWS", "TERMS", "GroupedProblem", "group_bounds"]

ROWS, COLUMNS, TERMS = "rows", "columns", "terms"


@dataclass(frozen=True)
class GroupedProblem(ProductProblem):
    """Products of one group after the other, along the axis that the parameter ``grouped`` names.

    Roles: ``a``, ``b``; ``offs`` (groups), int32 or int64, the end of each group. ``grouped``: "rows" of ``a`` (m, k), each group
    with its own matrix of ``b`` (groups, k, n), result (m, n); "columns" of ``b`` (k, n), with ``a`` (groups, m, k), result
    (m, n); "terms" of ``a`` (m, k) and ``b`` (k, n), result (groups, m, n). A Plan serves every division into groups.

    Parameters
    ----------
    m, n, k, batch, result
        As in `MatmulProblem`: sizes of all groups together; there is no batch.
    groups
        Number of groups.
    """

    result: tuple[int, ...] = ()
    groups: int = 0

    @property
    def grouped(self) -> str:
        return str(self.parameter("grouped"))

    @cached_property
    def length(self) -> int:
        """Size of the axis that is divided into groups."""
        return {ROWS: self.m, COLUMNS: self.n, TERMS: self.k}[self.grouped]

    @cached_property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k


def group_bounds(offs: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Returns start and end of each group.

    Raises
    ------
    BadValue
        Offsets that decrease, or lie outside of the axis.

    Examples
    --------
    >>> group_bounds([2, 2, 5], 6)
    [(0, 2), (2, 2), (2, 5)]
    """
    bounds, start = [], 0
    for i, end in enumerate(offs):
        if not start <= end <= length:
            raise BadValue(
                f"grouped_mm: offs[{i}] = {end}, after {start}", cause=f"offsets do not decrease, and are at most {length}",
                remedy="np.cumsum of the sizes of the groups",
            )  # fmt: skip
        bounds.append((start, end))
        start = end
    return bounds
