"""Caches of Plans, one for each library: bounded, the least recently used goes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .. import _core
from ..errors import BadType, BadValue
from ..native.bounded_cache import BoundedCache

__all__ = ["PlanCache", "cache", "clear", "named"]

DEFAULT_SIZE = 1024


class PlanCache(BoundedCache):
    """Plans of one library.

    A size of 0 keeps none: every call that the Memo does not know prepares anew.

    Examples
    --------
    >>> plans = PlanCache("example", max_size=2)
    >>> [plans.get(key, lambda: object()) is not None for key in "aab"], plans.size
    ([True, True, True], 2)
    >>> plans.clear(); plans.size
    0
    """

    attribute = "plan_cache"
    """Its name in the library's module of `backends`."""

    def __init__(self, library: str, max_size: int = DEFAULT_SIZE, **bounds: Any) -> None:
        super().__init__(max_size, **bounds)
        self.library = library

    @property
    def max_size(self) -> int:
        """Most plans kept; lowering it drops the least recently used."""
        return self._bound()

    @max_size.setter
    def max_size(self, value: int) -> None:
        self._set_bound("max_size", value)

    def _set_bound(self, name: str, value: object) -> None:
        where = f"{self.library}.{self.attribute}.{name}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadType(f"{where} takes an int, not {type(value).__name__}: {value!r}")
        if value < 0:
            raise BadValue(f"{where} = {value}", remedy="0 or more; 0 keeps no plan")
        with self._lock:
            setattr(self, f"_{name}", value)
            dropped = self._trim()
        _core.memo_clear()  # it leads to plans that were dropped, and with a bound of 0 must not keep any
        del dropped

    def clear(self) -> None:
        """Drops every plan, and with them what the Memo leads to."""
        super().clear()
        _core.memo_clear()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.library}: {self.size} of {self.max_size}>"


_caches: dict[str, BoundedCache] = {}
AnyCache = TypeVar("AnyCache", bound=BoundedCache)


def named(name: str, make: Callable[[], AnyCache]) -> AnyCache:
    """Returns the cache of this name, the same one for all threads, made if it is not there; `clear` knows of it."""
    found: Any = _caches.get(name)
    # Each name belongs to one `make`, and so to one class of caches, which a dict of all of them does not say.
    return found if found is not None else _caches.setdefault(name, make())  # type: ignore[return-value]


def cache(library: str) -> PlanCache:
    """Returns the cache of a library."""
    return named(library, lambda: PlanCache(library))


def clear() -> None:
    """Drops the Plans of every library."""
    for each in list(_caches.values()):
        each.clear()
    _core.memo_clear()
