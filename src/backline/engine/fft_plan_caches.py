"""Caches of Plans of Fourier transforms, one for each library: bounded in number and memory, the least recently used goes first.

These plans hold tables of the library's own, and making one can take seconds. Calls that the Memo knows look nothing up, so the
plans themselves tell which were used last.
"""

from __future__ import annotations

from typing import Any

from .. import _core
from . import plan_caches

__all__ = ["FftPlanCache", "cache", "for_memo", "seconds_of"]

DEFAULT_BYTES = 256 << 20
OWN_BYTES = 1024  # of any plan, beside what its library holds for it


class FftPlanCache(plan_caches.PlanCache):
    """The plans of one library. A size or a memory bound of 0 makes a plan for every call.

    Attributes
    ----------
    hits
        How often a plan was used again, calls that the Memo led to it included.
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

    attribute = "fft_plan_cache"

    def __init__(self, library: str, max_size: int = plan_caches.DEFAULT_SIZE, max_bytes: int = DEFAULT_BYTES) -> None:
        super().__init__(library, max_size, max_bytes=max_bytes, counts_runs=True)

    @property
    def max_bytes(self) -> int:
        """Most memory that plans may hold together, about. 0: a plan for every call."""
        return self._max_bytes or 0

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        self._set_bound("max_bytes", value)

    def nbytes_of(self, value: Any) -> int:
        """Returns the memory that a plan holds, about: what its objects tell, and a little of its own."""
        return OWN_BYTES + sum(getattr(kept, "nbytes", 0) for kept in getattr(value, "keep", None) or ())

    def keeps(self, plan: Any) -> bool:
        """Tells if a plan is in it."""
        return self.entry(plan) is not None

    def seconds(self, plan: Any) -> float | None:
        """Returns the time that it took to make a plan that is in it; None for another."""
        entry = self.entry(plan)
        return None if entry is None else entry.seconds

    def _free(self, dropped: list[Any]) -> None:
        if dropped:
            _core.memo_forget(dropped)  # it leads to them, and with them to memory of the library

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.nbytes} of {self.max_bytes} bytes>"


def cache(library: str) -> FftPlanCache:
    """Returns the cache of a library."""
    return plan_caches.named(f"{library}, Fourier transforms", lambda: FftPlanCache(library))


def _cache_of(plan: Any) -> FftPlanCache | None:
    choice = getattr(plan, "choice", None)
    return None if choice is None or choice.problem.family != "fft" or choice.library is None else cache(choice.library)


def for_memo(plan: Any) -> Any:
    """Returns the plan as an operation gives it to the Memo: in a tuple, for one that is not to be kept, if its cache did not."""
    kept = _cache_of(plan)
    return plan if kept is None or kept.keeps(plan) else (plan,)


def seconds_of(plan: Any) -> float | None:
    """Returns the time that it took to make the plan of a transform, for explanations; None if it is not known."""
    kept = _cache_of(plan)
    return None if kept is None else kept.seconds(plan)
