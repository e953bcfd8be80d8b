"""Caches of Plans of Fourier transforms, one for each library: bounded in number and memory, the least recently used goes first.

These plans hold tables of the library's own, and making one can take seconds. Calls that the Memo knows do not come by here, so
what was used last is read off the plans themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import BadType, BadValue
from . import plan_caches

__all__ = ["FftPlanCache", "cache", "for_memo", "seconds_of"]

DEFAULT_BYTES = 256 << 20
OWN_BYTES = 1024  # of any plan, beside what its library holds for it


@dataclass(slots=True)
class _Entry:
    """What is known of a plan that is kept."""

    nbytes: int
    seconds: float
    lookups: int = 1
    seen: int = 0  # its `used` when it was last looked at


class FftPlanCache(plan_caches.PlanCache):
    """The plans of one library. Thread-safe. A size or a memory bound of 0 makes a plan for every call.

    Attributes
    ----------
    misses
        How often a plan was made.

    Examples
    --------
    >>> kept = FftPlanCache("example", max_size=2)
    >>> made = [kept.get(key, object) for key in "abac"]
    >>> kept.size, kept.hits, kept.misses
    (2, 1, 3)
    >>> made[0] is kept.get("a", object), made[1] is kept.get("b", object)
    (True, False)
    """

    def __init__(self, library: str, max_size: int = plan_caches.DEFAULT_SIZE, max_bytes: int = DEFAULT_BYTES) -> None:
        super().__init__(library, max_size)
        self._max_bytes = max_bytes
        self._entries: dict[Hashable, _Entry] = {}
        self._hits = 0  # of plans that are not kept any more
        self._misses = 0

    # what is shown ------------------------------------------------------------------------------------------------------

    @property
    def max_size(self) -> int:
        """Most plans kept; lowering it drops the least recently used. 0: a plan for every call."""
        return self._max_size

    @max_size.setter
    def max_size(self, value: int) -> None:
        self._max_size = _checked(f"{self.library}.fft_plan_cache.max_size", value)
        self._shrink()

    @property
    def max_bytes(self) -> int:
        """Most memory that plans may hold together, about. 0: a plan for every call."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        self._max_bytes = _checked(f"{self.library}.fft_plan_cache.max_bytes", value)
        self._shrink()

    @property
    def nbytes(self) -> int:
        """Memory that the plans kept now hold, about."""
        with self._lock:
            return sum(e.nbytes for e in self._entries.values())

    @property
    def hits(self) -> int:
        """How often a plan was used again, calls that the Memo led to it included."""
        with self._lock:
            return self._hits + sum(_again(self._plans[key], e) for key, e in self._entries.items())

    @hits.setter
    def hits(self, value: int) -> None:
        self._hits = value

    @property
    def misses(self) -> int:
        """How often a plan was made."""
        return self._misses

    @misses.setter
    def misses(self, value: int) -> None:
        self._misses = value

    # what is done -------------------------------------------------------------------------------------------------------

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The plan for a key, made if it is not there."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None and not getattr(plan, "failed", False):
                self._plans.move_to_end(key)
                self._entries[key].lookups += 1
                return plan
            self._misses += 1
        begin = time.perf_counter()
        plan = make()  # without the lock: it may take a while, and a second one made meanwhile does no harm
        entry = _Entry(nbytes_of(plan), time.perf_counter() - begin)
        if self._max_size == 0 or entry.nbytes > self._max_bytes:
            return plan
        with self._lock:
            dropped = [self._plans.pop(key)] if key in self._plans else []
            if dropped:
                self._hits += _again(dropped[0], self._entries.pop(key))
            self._refresh()
            self._plans[key], self._entries[key] = plan, entry
            dropped += self._dropped()
        if dropped:
            _core.memo_clear()  # it leads to them, and with them to memory of the library
        return plan

    def keeps(self, plan: Any) -> bool:
        """Whether a plan is in it."""
        with self._lock:
            return any(kept is plan for kept in self._plans.values())

    def seconds(self, plan: Any) -> float | None:
        """What it took to make a plan that is in it; None for another."""
        with self._lock:
            return next((self._entries[key].seconds for key, kept in self._plans.items() if kept is plan), None)

    def clear(self) -> None:
        """Drop every plan, and with them what the Memo leads to."""
        with self._lock:
            self._hits += sum(_again(self._plans[key], e) for key, e in self._entries.items())
            dropped = list(self._plans.values())
            self._plans.clear()
            self._entries.clear()
        _core.memo_clear()
        del dropped  # freed without the lock

    def _shrink(self) -> None:
        with self._lock:
            self._refresh()
            dropped = self._dropped()
        _core.memo_clear()  # with a bound of 0 the Memo must not keep any
        del dropped

    def _refresh(self) -> None:
        """Put those that ran since the last time at the end, in the order in which they ran."""
        ran = []
        for key, entry in self._entries.items():
            used = getattr(self._plans[key], "used", 0)
            if used != entry.seen:
                entry.seen = used
                ran.append((used, key))
        for _, key in sorted(ran, key=lambda pair: pair[0]):
            self._plans.move_to_end(key)

    def _dropped(self) -> list[Any]:
        """Take out what is too much; the plans, to be freed without the lock."""
        dropped = []
        total = sum(e.nbytes for e in self._entries.values())
        while self._plans and (len(self._plans) > self._max_size or total > self._max_bytes):
            key, plan = self._plans.popitem(last=False)
            entry = self._entries.pop(key)
            total -= entry.nbytes
            self._hits += _again(plan, entry)
            dropped.append(plan)
        return dropped

    def _trim(self) -> None:
        self._dropped()

    def __repr__(self) -> str:
        return f"<FftPlanCache {self.library}: {self.size} of {self.max_size}, {self.nbytes} of {self.max_bytes} bytes>"


def _again(plan: Any, entry: _Entry) -> int:
    return max(entry.lookups, getattr(plan, "runs", 0)) - 1


def _checked(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadType(f"{name} takes an int, not {type(value).__name__}: {value!r}")
    if value < 0:
        raise BadValue(f"{name} = {value}", remedy="0 or more; 0 keeps no plan")
    return value


def nbytes_of(plan: Any) -> int:
    """Memory that a plan holds, about: what its library told or reckons of the objects it lives with, and a little of its own."""
    return OWN_BYTES + sum(getattr(kept, "nbytes", 0) for kept in getattr(plan, "keep", None) or ())


_made: dict[str, FftPlanCache] = {}


def cache(library: str) -> FftPlanCache:
    """The cache of a library."""
    found = _made.get(library)
    if found is None:
        found = _made.setdefault(library, FftPlanCache(library))
        plan_caches._caches[f"{library}, Fourier transforms"] = found  # so that clearing all plans, and forking, know of it
    return found


def for_memo(plan: Any) -> Any:
    """The plan as an operation gives it to the Memo: in a tuple, which says that it is not to be kept, if its cache did not."""
    choice = getattr(plan, "choice", None)
    if choice is None or choice.problem.family != "fft" or choice.library is None or cache(choice.library).keeps(plan):
        return plan
    return (plan,)


def seconds_of(plan: Any) -> float | None:
    """What it took to make the plan of a transform, for explanations; None if it is not known."""
    choice = getattr(plan, "choice", None)
    if choice is None or choice.problem.family != "fft" or choice.library is None:
        return None
    return cache(choice.library).seconds(plan)
