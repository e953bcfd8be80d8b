"""Edges: conditions on Problems under which vendor kernels are known to fail, as named pure functions.

A row of the errata table names one of them. A predicate is given Problems of its row's operations only, and looks at sizes and
parameters, never at data. The first line of its docstring is the condition in words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..problems import Problem

__all__ = ["EDGES", "edge"]

EDGES: dict[str, Callable[[Problem], bool]] = {}
_P = TypeVar("_P", bound=Problem)


def edge(predicate: Callable[[_P], bool]) -> Callable[[_P], bool]:
    """Register a predicate under the name of its function, with hyphens."""
    EDGES[predicate.__name__.strip("_").replace("_", "-")] = predicate  # type: ignore[assignment]
    return predicate
