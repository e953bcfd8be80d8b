"""Finds switches and libraries by name, those of plug-ins included."""

from __future__ import annotations

from ..errors import UnknownName
from .switch import Switch, nearest, show
from .switch_registry import all_switches, find, find_more, known_libraries

__all__ = ["library_names", "lookup"]


def library_names() -> list[str]:
    """Returns the names of the libraries that may be preferred, or be the only ones allowed."""
    find_more()
    return known_libraries()


def lookup(name: str) -> Switch:
    """Returns the switch called `name`, or raises `UnknownName` with the nearest names."""
    switch = find(name) if isinstance(name, str) else None
    if switch is None:
        find_more(str(name))
        switch = find(name) if isinstance(name, str) else None
    if switch is None:
        near = ", ".join(nearest(str(name), all_switches())[:3])
        raise UnknownName(f"there is no switch {show(name)}.", remedy=f"the nearest names: {near}")
    return switch
