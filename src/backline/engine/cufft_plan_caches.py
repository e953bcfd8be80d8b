"""The cuFFT plans of each device: one cache for the whole process, bounded by a switch.

The bound is the device's own switch, ``cuda.cufft_plan_cache.device0.max_size``, or what ``cuda.cufft_plan_cache.max_size`` says
for all devices while that one is not set. Both are switches like any other, so a scope may hold another bound; the plans
themselves belong to the process, and a call under a lower bound drops plans for all. A plan that is dropped
destroys its handle as soon as no call holds it and what it was last used for is done.
"""

from __future__ import annotations

from typing import cast

from .. import switches
from ..native.bounded_cache import BoundedCache
from ..switches import AtLeast
from ..switches.per_device import DeviceBound
from . import plan_caches

__all__ = ["DevicePlans", "cufft_plans", "max_size_of", "switch_of"]


def switch_of(index: int) -> str:
    """Returns the name of the switch that bounds the cache of a device; it is declared when it is first asked for."""
    name = f"cuda.cufft_plan_cache.device{index}.max_size"
    if name not in switches.derived_switches():
        doc = f"Most cuFFT plans kept for device {index}."
        switches.declare(DeviceBound(name, int, 4096, AtLeast(0), doc, ("fft",), index=index))
    return name


def max_size_of(index: int) -> int:
    """Returns the most plans that a device may keep, as the switch reads here."""
    return cast(int, switches.get(switch_of(index)))


class DevicePlans(BoundedCache):
    """The plans of one device. A bound of 0 makes a plan for each call.

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
        super().__init__(lambda: max_size_of(index))
        self.index = index
        switch_of(index)  # declared now, and not while the lock is held

    @property
    def max_size(self) -> int:
        """Most plans kept, as the switch reads here."""
        return max_size_of(self.index)

    @max_size.setter
    def max_size(self, value: int) -> None:
        self.bound(value, depth=2)

    def bound(self, value: object, depth: int = 1) -> None:
        """Sets the switch for the user whose line is `depth` frames up, and drops at once what is too much."""
        switches.assign(switch_of(self.index), value, depth + 1)
        self.trim()

    def __repr__(self) -> str:
        return f"<DevicePlans cufft on cuda:{self.index}: {self.size} of {self.max_size}>"


def cufft_plans(index: int) -> DevicePlans:
    """Returns the cache of a device, the same one for all threads."""
    return plan_caches.named(f"cufft on cuda:{index}", lambda: DevicePlans(index))
