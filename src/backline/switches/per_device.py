"""Bounds that each device may have of its own: one stored switch for all devices, and a switch derived from it for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .switch import DerivedSwitch, Value, show

__all__ = ["ALL_DEVICES", "BY_DEVICE", "DeviceBound"]

ALL_DEVICES: Final = "cuda.cufft_plan_cache.max_size"
BY_DEVICE: Final = "cuda.cufft_plan_cache.by_device"


class DeviceBound(DerivedSwitch):
    """The bound of one device: its own if it has one, else that of every device.

    Examples
    --------
    >>> bound = DeviceBound("cuda.cufft_plan_cache.device1.max_size", int, 0, doc="An example.", index=1)
    >>> bound.resolve({ALL_DEVICES: 4096, BY_DEVICE: ()}), bound.write(5, {BY_DEVICE: ("0=7",)})
    (4096, {'cuda.cufft_plan_cache.by_device': ('0=7', '1=5')})
    """

    nodes: tuple[str, ...] = (BY_DEVICE, ALL_DEVICES)
    in_flags: bool = False
    index: int = 0

    def resolve(self, values: Mapping[str, Value]) -> Value:
        return _own(values).get(self.index, values[ALL_DEVICES])

    def write(self, value: Value, values: Mapping[str, Value]) -> dict[str, Value]:
        assert isinstance(value, int)
        bounds = {**_own(values), self.index: value}
        return {BY_DEVICE: tuple(f"{index}={bound}" for index, bound in sorted(bounds.items()))}


def _own(values: Mapping[str, Value]) -> dict[int, int]:
    held = values[BY_DEVICE]
    assert isinstance(held, tuple), show(held)
    return {int(index): int(bound) for index, _, bound in (item.partition("=") for item in held)}
