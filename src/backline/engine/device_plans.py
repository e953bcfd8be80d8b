"""The cuFFT plans of each device: one cache for the whole process, bounded by a switch.

The bound is the device's own switch, ``cuda.cufft_plan_cache.device0.max_size``, or what ``cuda.cufft_plan_cache.max_size`` says
for all devices while that one is not set. Both are switches like any other, so a scope may hold another bound; the plans
themselves belong to the process, and whoever uses the cache under a lower bound drops plans for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, cast

from .. import _core, switches
from ..switches import AtLeast
from ..switches.per_device import DeviceBound
from . import plans

__all__ = ["DevicePlans", "cufft_plans", "max_size_of", "switch_of"]


def switch_of(index: int) -> str:
    """Name of the switch that bounds the cache of a device; it is declared when it is first asked for."""
    name = f"cuda.cufft_plan_cache.device{index}.max_size"
    if name not in switches.views():
        doc = f"Most cuFFT plans kept for device {index}."
        switches.declare(DeviceBound(name, int, 4096, AtLeast(0), doc, ("fft",), index=index))
    return name


def max_size_of(index: int) -> int:
    """Most plans that a device may keep, as it reads here."""
    return cast(int, switches.get(switch_of(index)))


class DevicePlans(plans.PlanCache):
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
            self._trim()
            return len(self._plans)

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
        if dropped:
            _core.memo_clear()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The plan for a key, made if it is not there."""
        with self._lock:
            self._trim()
        return super().get(key, make)

    def _trim(self) -> bool:  # type: ignore[override]
        largest, before = max_size_of(self.index), len(self._plans)
        while len(self._plans) > largest:
            self._plans.popitem(last=False)
        return len(self._plans) < before

    def __repr__(self) -> str:
        return f"<DevicePlans {self.library}: {self.size} of {self.max_size}>"


_made: dict[int, DevicePlans] = {}


def cufft_plans(index: int) -> DevicePlans:
    """The cache of a device, the same one for all threads."""
    found = _made.get(index)
    if found is None:
        found = _made.setdefault(index, DevicePlans(index))
        plans._caches[found.library] = found  # so that clearing all plans, and forking, know of it
    return found
