"""Operations made of others, as their rows have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...problems import Problem
from ...problems.op_registry import operations
from ..base import Algorithm, Refusal

__all__ = ["composed_algorithms", "composed_function"]


def composed_algorithms(library: str, parts: str) -> Iterator[Algorithm | Refusal]:
    """Lists the one way: operations one after the other; which library runs each is decided for it alone."""
    note = f"{parts} one by one, each by the library that is chosen for it"
    yield Algorithm(library=library, name="composed", level="threads", basis="construction", note=note)


def composed_function(p: Problem) -> Callable[..., Any]:
    """Returns the function of the arrays of a call, by what the row of its operation says of the parts."""
    roles, compose = [o.role for o in p.operands], operations[p.op].compose
    assert compose is not None
    return lambda *arrays, **scalars: compose(p, dict(zip(roles, arrays, strict=True)), **scalars)
