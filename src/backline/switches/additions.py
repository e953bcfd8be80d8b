"""A switch that adds names to those of another one, for scopes that may be entered where others are open."""

from __future__ import annotations

from collections.abc import Mapping

from .switch import DerivedSwitch, Value

__all__ = ["Addition"]


class Addition(DerivedSwitch):
    """Names that come to those of its node. They are read when it is written, or when its scope is entered.

    Examples
    --------
    >>> more = Addition("kernels.also_off", tuple, (), doc="Further kernels to leave out.", nodes=("kernels.off",))
    >>> more.write(("b", "a"), {"kernels.off": ("a",)})
    {'kernels.off': ('a', 'b')}
    """

    def resolve(self, values: Mapping[str, Value]) -> Value:
        return values[self.nodes[0]]

    def write(self, value: Value, values: Mapping[str, Value]) -> dict[str, Value]:
        held = values[self.nodes[0]]
        assert isinstance(held, tuple) and isinstance(value, tuple)
        return {self.nodes[0]: tuple(dict.fromkeys((*held, *value)))}
