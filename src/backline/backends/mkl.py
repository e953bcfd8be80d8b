"""Intel's MKL: matrix products, also compiled for one small shape, and linear algebra.

Install it with the extra ``backline[mkl]``.
"""

from __future__ import annotations

from .. import switches as _switches
from ..switches.module import PlanCache as _PlanCache
from ..switches.module import install as _install
from . import _uniform

__all__ = ["enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
"""Whether MKL may run calls. Off is a prohibition: no fallback passes over it."""

plan_cache: _PlanCache
"""Its prepared executions: ``size``, ``max_size`` (may be set) and ``clear()``. Read-only."""


def is_available() -> bool:
    """Tell whether MKL is found and can be loaded now. Never raises; the answer is kept."""
    return _uniform.available("mkl")


def version() -> str | None:
    """Version of MKL, or None if it is absent."""
    return _uniform.version("mkl")


def is_enabled() -> bool:
    """Tell whether MKL is both enabled here and available."""
    return bool(_switches.get("mkl.enabled")) and is_available()


def flags(enabled: bool | None = None) -> _switches.Scope:
    """Return a scope for the switches of this module; None keeps what holds.

    Examples
    --------
    >>> from backline.backends import mkl
    >>> with mkl.flags(enabled=False):
    ...     mkl.enabled
    False
    >>> mkl.enabled
    True
    """
    return _switches.make_scope("mkl.flags", {"mkl.enabled": enabled}, depth=2)


def set_flags(_enabled: bool | None = None) -> tuple[bool]:
    """Assign the switches of this module and return their old values; None keeps.

    Inside a scope the assignment ends with the scope.
    """
    return _uniform.swap({"mkl.enabled": _enabled})


_install(
    __name__,
    "mkl",
    {"plan_cache": (lambda: _uniform.plan_cache("mkl"), "mkl.plan_cache.max_size")},
)
