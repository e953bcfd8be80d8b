"""NumPy's own routines: the library that is always there, and the reference for the others.

Turning it off leaves calls that no other library can run without one; they raise ``NoKernel``.
"""

from __future__ import annotations

from .. import switches as _switches
from ..switches.module import PlanCache as _PlanCache
from ..switches.module import install as _install
from . import _uniform

__all__ = ["enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
"""Whether NumPy may run calls. Off is a prohibition: no fallback passes over it."""

plan_cache: _PlanCache
"""Its prepared executions: ``size``, ``max_size`` (may be set) and ``clear()``. Read-only."""


def is_available() -> bool:
    """Tell whether NumPy is found and can be loaded now. Never raises; the answer is kept."""
    return _uniform.available("numpy")


def version() -> str | None:
    """Version of NumPy, or None if it is absent."""
    return _uniform.version("numpy")


def is_enabled() -> bool:
    """Tell whether NumPy is both enabled here and available."""
    return bool(_switches.get("numpy.enabled")) and is_available()


def flags(enabled: bool | None = None) -> _switches.Scope:
    """Return a scope for the switches of this module; None keeps what holds.

    Examples
    --------
    >>> from backline.backends import numpy
    >>> with numpy.flags(enabled=False):
    ...     numpy.enabled
    False
    >>> numpy.enabled
    True
    """
    return _switches.make_scope("numpy.flags", {"numpy.enabled": enabled}, depth=2)


def set_flags(_enabled: bool | None = None) -> tuple[bool]:
    """Assign the switches of this module and return their old values; None keeps.

    Inside a scope the assignment ends with the scope.
    """
    return _uniform.swap({"numpy.enabled": _enabled})


_install(
    __name__,
    "numpy",
    {"plan_cache": (lambda: _uniform.plan_cache("numpy"), "numpy.plan_cache.max_size")},
)
