"""BLIS: matrix products, from the system's own package.

It has no linear algebra beyond the products.
"""

from __future__ import annotations

from ..switches.module import PlanCache
from . import _uniform

__all__ = ["enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
"""Whether BLIS may run calls. Off is a prohibition: no fallback passes over it."""

plan_cache: PlanCache
"""Its prepared executions: ``size``, ``max_size`` (may be set) and ``clear()``. Read-only."""

is_available: _uniform.IsTrue
is_enabled: _uniform.IsTrue
version: _uniform.Version
flags: _uniform.Flags
set_flags: _uniform.SetFlags

_uniform.install(__name__, plans="blis")
