"""Caches of Plans, one for each library: bounded, the least recently used goes first."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from .. import _core
from ..errors import BadType, BadValue

__all__ = ["PlanCache", "cache", "clear"]

DEFAULT_SIZE = 1024


class PlanCache:
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

    def __init__(self, library: str, max_size: int = DEFAULT_SIZE) -> None:
        self.library = library
        self._max_size = max_size
        self._plans: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = self.misses = 0

    @property
    def size(self) -> int:
        """Plans in it now."""
        return len(self._plans)

    @property
    def max_size(self) -> int:
        """Most plans kept; lowering it drops the least recently used."""
        return self._max_size

    @max_size.setter
    def max_size(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadType(f"{self.library}.plan_cache.max_size takes an int, not {type(value).__name__}: {value!r}")
        if value < 0:
            raise BadValue(f"{self.library}.plan_cache.max_size = {value}", remedy="0 or more; 0 keeps no plan")
        with self._lock:
            self._max_size = value
            self._trim()
        _core.memo_clear()

    def _trim(self) -> None:
        while len(self._plans) > self._max_size:
            self._plans.popitem(last=False)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The plan for a key, made if it is not there."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None and not getattr(plan, "failed", False):
                self._plans.move_to_end(key)
                self.hits += 1
                return plan
            self.misses += 1
        plan = make()  # without the lock: it may take a while, and a second one made meanwhile does no harm
        with self._lock:
            self._plans[key] = plan
            self._trim()
        return plan

    def clear(self) -> None:
        """Drop every plan, and with them what the Memo leads to."""
        with self._lock:
            self._plans.clear()
        _core.memo_clear()

    def __repr__(self) -> str:
        return f"<PlanCache {self.library}: {self.size} of {self.max_size}>"


_caches: dict[str, PlanCache] = {}


def _new_locks() -> None:
    # Another thread of the parent may have held one, and does not exist in the child to let go.
    for each in _caches.values():
        each._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_locks)


def cache(library: str) -> PlanCache:
    """The cache of a library."""
    return _caches.setdefault(library, PlanCache(library))


def clear() -> None:
    """Drop the Plans of every library."""
    for each in _caches.values():
        each.clear()
    _core.memo_clear()
