"""One call of one operation, and the registry of generators: a generator makes a call from random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .arrays import Draw


@dataclass(slots=True)
class Call:
    """An operation with its arguments, and the check of a result."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    check: Callable[[Any], None]
    function: Any = None  # what is called, if it is not the operation of this name
    raises: tuple[type[BaseException], ...] = ()  # what it may raise as well, for these values
    out: Any = None  # what an algorithm writes to: filled with NaN before each call
    loose: float = 0.0  # what Winograd's and other transforming algorithms may be off by
    reduced: Any = None  # what products of numbers of 8 bits may be off by, where a scope allows them
    extra: Any = 0.0  # what is added to the bound now
    direct: bool = True  # whether every algorithm can be prepared from these arguments


Generator = Callable[[Draw], Call]
GENERATORS: dict[str, tuple[str, Generator, int]] = {}


def generates(family: str, *ops: str, weight: int = 1) -> Callable[[Callable[[Draw, str], Call]], Callable[[Draw, str], Call]]:
    """Decorator: the function makes calls of these operations."""

    def register(function: Callable[[Draw, str], Call]) -> Callable[[Draw, str], Call]:
        for op in ops:
            assert op not in GENERATORS, op
            GENERATORS[op] = (family, lambda draw, op=op: function(draw, op), weight)
        return function

    return register
