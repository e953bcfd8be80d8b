"""Finds switches and libraries by name, those of plug-ins included."""

from __future__ import annotations

from ..errors import UnknownName
from . import plugins
from .switch import Switch, nearest, show
from .switch_registry import all_switches, known_libraries

__all__ = ["library_names", "lookup"]


def library_names() -> list[str]:
    """Returns the names of the libraries that may be preferred, or be the only ones allowed."""
    plugins.discover()
    return known_libraries()


def lookup(name: str) -> Switch:
    """Returns the switch called `name`, or raises `UnknownName` with the nearest names."""
    table = all_switches()
    try:
        return table[name]
    except (KeyError, TypeError):
        plugins.discover(str(name))
        if isinstance(name, str) and name in table:
            return table[name]
        near = ", ".join(nearest(str(name), table)[:3])
        raise UnknownName(f"there is no switch {show(name)}.", remedy=f"the nearest names: {near}") from None
