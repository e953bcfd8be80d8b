"""Sets of legal values that are larger than a list: bounds, and names that are known only at run time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..records import Record
from .switch import Value, nearest

__all__ = ["AtLeast", "Between", "EachOf", "Fraction", "Pairs", "Strategies", "installed_strategies"]


class AtLeast(Record):
    """Numbers not below `bound`; not-a-number is refused.

    Examples
    --------
    >>> AtLeast(0)(3), AtLeast(0)(-1)
    (True, False)
    """

    bound: int | float

    def __call__(self, value: Value) -> bool:
        return isinstance(value, (int, float)) and value >= self.bound

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to `value` first."""
        number = "an integer" if kind is int else "a number"
        return f"{self.bound} (the nearest), or {number} above it" + (", inf too" if kind is float else "")


class Fraction(Record):
    """Numbers from 0 to 1.

    Examples
    --------
    >>> Fraction()(0.03), Fraction()(3.0)
    (True, False)
    """

    def __call__(self, value: Value) -> bool:
        return isinstance(value, (int, float)) and 0.0 <= value <= 1.0

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to `value` first."""
        if isinstance(value, (int, float)) and value > 1.0:
            return "1.0 (the nearest), or a number below it, from 0.0"
        return "0.0 (the nearest), or a number above it, up to 1.0"


class Between(Record):
    """Integers from `low` to `high`.

    Examples
    --------
    >>> Between(1, 8)(8), Between(1, 8)(9)
    (True, False)
    """

    low: int
    high: int

    def __call__(self, value: Value) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to `value` first."""
        above = value > self.high if isinstance(value, int) else str(value).strip().isdigit() and len(str(value)) > 1
        if above:
            return f"{self.high} (the nearest), or an integer below it, from {self.low}"
        return f"{self.low} (the nearest), or an integer above it, up to {self.high}"


class EachOf(Record):
    """Tuples whose every item is one of the names that `names()` returns at that moment."""

    names: Callable[[], Iterable[str]]
    noun: str = "names"

    def __call__(self, value: Value) -> bool:
        if value == ():
            return True  # without asking for the names, which may look for plug-ins
        known = set(self.names())
        return isinstance(value, tuple) and all(item in known for item in value)

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to the first illegal item of `value` first."""
        known = list(self.names())
        items = value if isinstance(value, (tuple, list)) else (value,)
        wrong = next((item for item in items if isinstance(item, str) and item not in known), "")
        return f"{self.noun}: " + ", ".join(repr(name) for name in nearest(wrong, known))


class Pairs(Record):
    """Tuples of texts such as "1=100": the index of a device and its number.

    Examples
    --------
    >>> Pairs()(("0=10", "1=100")), Pairs()(("one",))
    (True, False)
    """

    def __call__(self, value: Value) -> bool:
        return isinstance(value, tuple) and all(re.fullmatch(r"[0-9]+=[0-9]+", item) for item in value)

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text."""
        return "texts of a device's index and a number, such as ('1=100',)"


STRATEGIES: Final = (
    "auto", "greedy", "optimal", "auto-hq", "branch-1", "branch-2", "branch-all", "dp", "dynamic-programming", "eager",
    "opportunistic", "random-greedy", "random-greedy-128",
)  # fmt: skip
"""Those of opt_einsum 3.4, the least version that Backline takes."""


def installed_strategies() -> tuple[str, ...]:
    """Returns the names of all strategies, also those that were registered with opt_einsum, which is imported for this.

    Examples
    --------
    >>> {"auto", "dp", "random-greedy"} <= set(installed_strategies())
    True
    """
    try:
        from opt_einsum import paths
    except ImportError:
        return STRATEGIES
    there: Mapping[str, object] = paths._PATH_OPTIONS
    return tuple(name for name in STRATEGIES if name in there) + tuple(sorted(set(there) - {*STRATEGIES}))


class Strategies(Record):
    """The names of `installed_strategies`. The package is imported only for a name that is not known without it."""

    def __call__(self, value: Value) -> bool:
        return value in STRATEGIES or value in installed_strategies()

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to `value` first."""
        return ", ".join(repr(name) for name in nearest(str(value), dict.fromkeys(installed_strategies())))
