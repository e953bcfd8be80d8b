"""Search strategies for contraction paths: those of the opt_einsum that is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..records import Record
from .switch import Value, nearest

__all__ = ["COMMON", "Strategies", "installed"]

COMMON: Final = (
    "auto", "greedy", "optimal", "auto-hq", "branch-1", "branch-2", "branch-all", "dp", "dynamic-programming", "eager",
    "opportunistic", "random-greedy", "random-greedy-128",
)  # fmt: skip
"""Those of opt_einsum 3.4, the least version that Backline takes."""


def installed() -> tuple[str, ...]:
    """Returns the names of all strategies, also those that were registered with opt_einsum, which is imported for this.

    Examples
    --------
    >>> {"auto", "dp", "random-greedy"} <= set(installed())
    True
    """
    try:
        from opt_einsum import paths
    except ImportError:
        return COMMON
    there: Mapping[str, object] = paths._PATH_OPTIONS
    return tuple(name for name in COMMON if name in there) + tuple(sorted(set(there) - {*COMMON}))


class Strategies(Record):
    """The names of `installed`. The package is imported only for a name that is not known without it."""

    def __call__(self, value: Value) -> bool:
        return value in COMMON or value in installed()

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to `value` first."""
        return ", ".join(repr(name) for name in nearest(str(value), dict.fromkeys(installed())))
