"""A bounded cache that drops the least recently used: the one that plans of every kind are kept in.

It is safe in threads, and in a forked child, which gets new locks: another thread of the parent may have held one, and does not
exist in the child to let go of it.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

__all__ = ["BoundedCache"]


@dataclass(slots=True)
class _Entry:
    """A value, and the statistics of it."""

    value: Any
    nbytes: int
    seconds: float
    lookups: int = 1
    last_run: int = 0  # its `used` when it was last read


AT_ONCE = 64  # a full cache drops one in so many at once


class BoundedCache:
    """Values by key, bounded in number and in memory; the least recently used is dropped first.

    A value whose attribute `failed` is true is made again. Values are made, and freed, without the lock: both may take a while.

    Parameters
    ----------
    max_size
        Most values, or a function that returns it, for a bound that depends on where it is read. 0 keeps none.
    max_bytes
        Most memory that `nbytes_of` the values may add up to; None for any. A value that alone is larger is not kept.
    counts_runs
        Values tell by `used` when they last ran, and by `runs` how often: those who have them need not look them up.
    once
        Threads that ask for a key while its value is made wait for that one.

    Examples
    --------
    >>> cache = BoundedCache(2)
    >>> values = [cache.get(key, object) for key in "abac"]
    >>> values[0] is values[2], cache.size, cache.hits, cache.misses
    (True, 2, 1, 3)
    """

    def __init__(
        self, max_size: int | Callable[[], int], max_bytes: int | None = None, *, counts_runs: bool = False, once: bool = False
    ) -> None:
        self._max_size, self._max_bytes = max_size, max_bytes
        self._counts_runs, self._once = counts_runs, once
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._nbytes = 0  # of all of them
        self._hits = 0  # of values that are not kept any more
        self.misses = 0
        """Number of times that a value was made."""
        self._new_locks()
        _all.add(self)

    def _new_locks(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[Hashable, Any] = {}

    def nbytes_of(self, value: Any) -> int:
        """Returns the memory that a value holds, about."""
        return 0

    def _bound(self) -> int:
        return self._max_size if isinstance(self._max_size, int) else self._max_size()

    @property
    def size(self) -> int:
        """Values in it now, never more than its bound."""
        return self.trim()

    def trim(self) -> int:
        """Drops what exceeds the bounds, which may be others by now; returns the number of values left."""
        with self._lock:
            dropped = self._trim()
            number = len(self._entries)
        self._free(dropped)
        return number

    @property
    def nbytes(self) -> int:
        """Memory that the values kept now hold, about."""
        with self._lock:
            return self._nbytes

    @property
    def hits(self) -> int:
        """Number of times that a value was used again."""
        with self._lock:
            return self._hits + sum(map(self._uses_again, self._entries.values()))

    def contents(self) -> dict[Hashable, Any]:
        """Returns the values by key, the least recently used first."""
        with self._lock:
            return {key: e.value for key, e in self._entries.items()}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the value for a key, made if it is not there."""
        with self._lock:
            dropped, entry = self._trim(), self._look_up(key)
            turn: AbstractContextManager[Any] = nullcontext()
            if entry is None and self._once:
                turn = self._making.setdefault(key, threading.RLock())
        self._free(dropped)
        if entry is not None:
            return entry.value
        with turn:
            if self._once:
                with self._lock:
                    entry = self._look_up(key)
                if entry is not None:
                    return entry.value
            return self._make(key, make)

    def _make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            self.misses += 1
        begin = time.perf_counter()
        try:
            value = make()
            made = _Entry(value, self.nbytes_of(value), time.perf_counter() - begin)
        finally:
            if self._once:
                with self._lock:
                    self._making.pop(key, None)
        if self._bound() == 0 or (self._max_bytes is not None and made.nbytes > self._max_bytes):
            return value
        with self._lock:
            entry = self._look_up(key)  # another thread may have been quicker
            dropped = []
            if entry is None:
                dropped = [self._pop(key)] if key in self._entries else []  # one that failed
                dropped += self._trim(1, made.nbytes)
                self._entries[key] = made
                self._nbytes += made.nbytes
        self._free(dropped)
        return value if entry is None else entry.value

    def clear(self) -> None:
        """Drops every value."""
        with self._lock:
            dropped = [self._pop(key) for key in list(self._entries)]
        del dropped

    def entry(self, value: Any) -> _Entry | None:
        """Returns what is known of a value that is in it; None for another."""
        with self._lock:
            return next((e for e in reversed(self._entries.values()) if e.value is value), None)  # mostly the newest

    def _look_up(self, key: Hashable) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None or getattr(entry.value, "failed", False):
            return None
        self._entries.move_to_end(key)
        entry.lookups += 1
        return entry

    def _uses_again(self, entry: _Entry) -> int:
        return max(entry.lookups, getattr(entry.value, "runs", 0) if self._counts_runs else 0) - 1

    def _pop(self, key: Hashable) -> Any:
        entry = self._entries.pop(key)
        self._nbytes -= entry.nbytes
        self._hits += self._uses_again(entry)
        return entry.value

    def _order_by_runs(self) -> None:
        """Puts values that ran since the last time at the end, in the order in which they ran."""
        ran = []
        for key, entry in self._entries.items() if self._counts_runs else ():
            used = getattr(entry.value, "used", 0)
            if used != entry.last_run:
                entry.last_run = used
                ran.append((used, key))
        for _, key in sorted(ran, key=lambda pair: pair[0]):
            self._entries.move_to_end(key)

    def _trim(self, more: int = 0, nbytes: int = 0) -> list[Any]:
        """Takes out what exceeds the bounds if so much more is to be put in; the caller frees it without the lock."""
        most, dropped = self._bound() - more, []
        largest = math.inf if self._max_bytes is None else self._max_bytes - nbytes
        if len(self._entries) > most or self._nbytes > largest:  # several at once: to free them may take long
            most, largest = most - most // AT_ONCE, largest - (0 if math.isinf(largest) else largest // AT_ONCE)
        while self._entries and (len(self._entries) > most or self._nbytes > largest):
            key, entry = next(iter(self._entries.items()))
            if self._counts_runs and getattr(entry.value, "used", 0) != entry.last_run:
                self._order_by_runs()  # all of them at once, so that this is rare: an entry that has not run since is the oldest
                key = next(iter(self._entries))
            dropped.append(self._pop(key))
        return dropped

    def _free(self, dropped: list[Any]) -> None:
        """Called without the lock, with what was dropped to make room; it is freed when this returns."""


_all: weakref.WeakSet[BoundedCache] = weakref.WeakSet()


def _new_locks() -> None:
    for each in list(_all):
        each._new_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_locks)
