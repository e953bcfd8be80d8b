"""NumPy's own routines: the library that is always there, and the reference for the others.

Turning it off leaves calls that no other library can run without one; they raise ``NoKernel``.
"""

from __future__ import annotations

from ..switches.switch_module import FftPlanCache, PlanCache
from . import _module_factory

__all__ = ["enabled", "fft_plan_cache", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
plan_cache: PlanCache
fft_plan_cache: FftPlanCache
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags

_module_factory.install(__name__, plans="numpy", transforms="numpy")
