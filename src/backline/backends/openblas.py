"""OpenBLAS, loaded directly: free, fast, and installed with backline.

The copy inside NumPy is another one; NumPy's routines use that whatever is set here.
"""

from __future__ import annotations

from .. import switches as _switches
from ..switches.module import PlanCache as _PlanCache
from ..switches.module import install as _install
from . import _uniform

__all__ = ["enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
"""Whether OpenBLAS may run calls. Off is a prohibition: no fallback passes over it."""

plan_cache: _PlanCache
"""Its prepared executions: ``size``, ``max_size`` (may be set) and ``clear()``. Read-only."""


def is_available() -> bool:
    """Tell whether OpenBLAS is found and can be loaded now. Never raises; the answer is kept."""
    return _uniform.available("openblas")


def version() -> str | None:
    """Version of OpenBLAS, or None if it is absent."""
    return _uniform.version("openblas")


def is_enabled() -> bool:
    """Tell whether OpenBLAS is both enabled here and available."""
    return bool(_switches.get("openblas.enabled")) and is_available()


def flags(enabled: bool | None = None) -> _switches.Scope:
    """Return a scope for the switches of this module; None keeps what holds.

    Examples
    --------
    >>> from backline.backends import openblas
    >>> with openblas.flags(enabled=False):
    ...     openblas.enabled
    False
    >>> openblas.enabled
    True
    """
    return _switches.make_scope("openblas.flags", {"openblas.enabled": enabled}, depth=2)


def set_flags(_enabled: bool | None = None) -> tuple[bool]:
    """Assign the switches of this module and return their old values; None keeps.

    Inside a scope the assignment ends with the scope.
    """
    return _uniform.swap({"openblas.enabled": _enabled})


_install(
    __name__,
    "openblas",
    {"plan_cache": (lambda: _uniform.plan_cache("openblas"), "openblas.plan_cache.max_size")},
)
