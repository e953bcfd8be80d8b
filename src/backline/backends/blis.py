"""BLIS: matrix products, from the system's own package.

It has no linear algebra beyond the products.
"""

from __future__ import annotations

from .. import switches as _switches
from ..switches.module import PlanCache as _PlanCache
from ..switches.module import install as _install
from . import _uniform

__all__ = ["enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
"""Whether BLIS may run calls. Off is a prohibition: no fallback passes over it."""

plan_cache: _PlanCache
"""Its prepared executions: ``size``, ``max_size`` (may be set) and ``clear()``. Read-only."""


def is_available() -> bool:
    """Tell whether BLIS is found and can be loaded now. Never raises; the answer is kept."""
    return _uniform.available("blis")


def version() -> str | None:
    """Version of BLIS, or None if it is absent."""
    return _uniform.version("blis")


def is_enabled() -> bool:
    """Tell whether BLIS is both enabled here and available."""
    return bool(_switches.get("blis.enabled")) and is_available()


def flags(enabled: bool | None = None) -> _switches.Scope:
    """Return a scope for the switches of this module; None keeps what holds.

    Examples
    --------
    >>> from backline.backends import blis
    >>> with blis.flags(enabled=False):
    ...     blis.enabled
    False
    >>> blis.enabled
    True
    """
    return _switches.make_scope("blis.flags", {"blis.enabled": enabled}, depth=2)


def set_flags(_enabled: bool | None = None) -> tuple[bool]:
    """Assign the switches of this module and return their old values; None keeps.

    Inside a scope the assignment ends with the scope.
    """
    return _uniform.swap({"blis.enabled": _enabled})


_install(
    __name__,
    "blis",
    {"plan_cache": (lambda: _uniform.plan_cache("blis"), "blis.plan_cache.max_size")},
)
