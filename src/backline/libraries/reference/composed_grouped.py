"""Products of groups, one after the other, as the row of the operation has it."""

from __future__ import annotations

from collections.abc import Iterator

from ...problems.grouped_problem import GroupedProblem
from ..base import Algorithm, Refusal

__all__ = ["grouped_algorithms"]


def grouped_algorithms(p: GroupedProblem, library: str) -> Iterator[Algorithm | Refusal]:
    """Lists the one way: a product for each group."""
    note = "a product for each group, by the library that is chosen for its size"
    yield Algorithm(library=library, name="composed", level="threads", basis="construction", note=note)
