"""NumPy's own routines: the library that is always there, and the reference for the others.

Turning it off leaves calls that no other library can run without one; they raise ``NoKernel``.
"""

from __future__ import annotations

from ..switches.switch_module import FftPlanCache, PlanCache
from . import _module_factory

__all__ = ["enabled", "fft_plan_cache", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
"""Whether NumPy may run calls. Off is a prohibition: no fallback passes over it."""

plan_cache: PlanCache
"""Its prepared executions: ``size``, ``max_size`` (may be set) and ``clear()``. Read-only."""

fft_plan_cache: FftPlanCache
"""Its plans of Fourier transforms: ``size``, ``nbytes``, ``max_size`` and ``max_bytes`` (may be set), ``hits``, ``misses`` and
``clear()``. Read-only."""

is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags

_module_factory.install(__name__, plans="numpy", transforms="numpy")
