"""The module that users reach as ``backline.backends.strassen``.

Without one, Backline makes a module with the switches and the usual functions. This one adds `halvings`.
"""

from __future__ import annotations

from typing import Any

from backline import libraries, switches
from backline.switches import plugins
from backline.switches.switch_module import install

__all__ = ["cutoff", "enabled", "flags", "halvings", "is_available", "is_enabled", "set_flags", "version"]

plugins.discover()  # so that the switches are there if somebody imports this module by its own name first

enabled: bool
"""Whether it may run calls. Off is a prohibition: no fallback passes over it."""

cutoff: int
"""Matrices are halved while all of their sizes are above this."""


def is_available() -> bool:
    """Tell whether it can be used now. Never raises."""
    return libraries.get("strassen").available()


def version() -> str | None:
    """Version of the algorithm."""
    return libraries.get("strassen").version()


def is_enabled() -> bool:
    """Tell whether it is both enabled here and available."""
    return bool(switches.get("strassen.enabled")) and is_available()


def flags(enabled: bool | None = None, cutoff: int | None = None) -> switches.Scope:
    """Return a scope for the switches of this module; None keeps what holds."""
    return switches.make_scope("strassen.flags", {"strassen.enabled": enabled, "strassen.cutoff": cutoff}, depth=2)


def set_flags(_enabled: bool | None = None, _cutoff: int | None = None) -> tuple[Any, ...]:
    """Assign the switches of this module and return their old values; None keeps."""
    values = {"strassen.enabled": _enabled, "strassen.cutoff": _cutoff}
    old = tuple(switches.get(name) for name in values)
    switches.assign_many({name: value for name, value in values.items() if value is not None}, depth=2)
    return old


def halvings(m: int, n: int, k: int) -> int:
    """Tell how often matrices of these sizes would be halved here."""
    from .strassen import levels

    return levels(m, n, k, switches.get("strassen.cutoff"))


install(__name__, "strassen")
