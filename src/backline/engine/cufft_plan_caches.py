"""The cuFFT plans of each device: one cache for the whole process, bounded by a switch.

The bound is the device's own switch, ``cuda.cufft_plan_cache.device0.max_size``, or what ``cuda.cufft_plan_cache.max_size`` says
for all devices while that one is not set. Both are switches like any other, so a scope may hold another bound; the plans
themselves belong to the process, and whoever uses the cache under a lower bound drops plans for everybody. A plan that is dropped
destroys its handle as soon as no call holds it and what it was last used for is done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, cast

from .. import switches
from ..switches import AtLeast
from ..switches.per_device import DeviceBound
from . import plan_caches

__all__ = ["DevicePlans", "cufft_plans", "max_size_of", "switch_of"]


def switch_of(index: int) -> str:
    """Name of the switch that bounds the cache of a device; it is declared when it is first asked for."""
    name = f"cuda.cufft_plan_cache.device{index}.max_size"
    if name not in switches.derived_switches():
        doc = f"Most cuFFT plans kept for device {index}."
        switches.declare(DeviceBound(name, int, 4096, AtLeast(0), doc, ("fft",), index=index))
    return name


def max_size_of(index: int) -> int:
    """Most plans that a device may keep, as it reads here."""
    return cast(int, switches.get(switch_of(index)))


class DevicePlans(plan_caches.PlanCache):
    """The plans of one device. Thread-safe; the least recently used goes first; a bound of 0 makes a plan for each call.

    Parameters
    ----------
    index
        The device.

    Examples
    --------
    >>> cache = DevicePlans(0)
    >>> with switches.scope({switch_of(0): 1}):
    ...     made = [cache.get(key, object) for key in "aba"]
    ...     made[0] is made[2], cache.size
    (False, 1)
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"cufft on cuda:{index}")
        self.index = index
        switch_of(index)  # declared now, and not while the lock is held

    @property
    def size(self) -> int:
        """Plans in it now, never more than `max_size`."""
        with self._lock:
            dropped = self._trim()
            number = len(self._plans)
        del dropped
        return number

    @property
    def max_size(self) -> int:
        """Most plans kept, as it reads here."""
        return max_size_of(self.index)

    @max_size.setter
    def max_size(self, value: int) -> None:
        self.bound(value, depth=2)

    def bound(self, value: object, depth: int = 1) -> None:
        """Set the switch for the user whose line is `depth` frames up, and drop at once what is too much."""
        switches.assign(switch_of(self.index), value, depth + 1)
        with self._lock:
            dropped = self._trim()
        del dropped  # here and below plans are freed without the lock

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The plan for a key, made if it is not there."""
        with self._lock:
            dropped = self._trim()
            plan = self._held(key)
            if plan is None:
                self.misses += 1
            else:
                self.hits += 1
        del dropped
        if plan is not None:
            return plan
        plan = make()  # without the lock: it may take a while
        with self._lock:
            other = self._held(key)  # another thread may have been quicker
            failed = self._plans.pop(key, None) if other is None else None
            if other is None:
                self._plans[key] = plan
            dropped = [failed, *self._trim()]
        del dropped, failed
        return plan if other is None else other

    def clear(self) -> None:
        """Drop every plan."""
        with self._lock:
            dropped = list(self._plans.values())
            self._plans.clear()
        del dropped

    def _held(self, key: Hashable) -> Any:
        plan = self._plans.get(key)
        if plan is None or getattr(plan, "failed", False):
            return None
        self._plans.move_to_end(key)
        return plan

    def _trim(self) -> list[Any]:  # type: ignore[override]  # callers of either class know which it is
        largest, dropped = max_size_of(self.index), []
        while len(self._plans) > largest:
            dropped.append(self._plans.popitem(last=False)[1])
        return dropped

    def __repr__(self) -> str:
        return f"<DevicePlans {self.library}: {self.size} of {self.max_size}>"


_made: dict[int, DevicePlans] = {}


def cufft_plans(index: int) -> DevicePlans:
    """The cache of a device, the same one for all threads."""
    found = _made.get(index)
    if found is None:
        found = _made.setdefault(index, DevicePlans(index))
        plan_caches._caches[found.library] = found  # so that clearing all plans, and forking, know of it
    return found
