"""OpenBLAS, loaded directly: free, fast, and installed with backline.

The copy inside NumPy is another one; NumPy's routines use that whatever is set here.
"""

from __future__ import annotations

from ..switches.switch_module import PlanCache
from . import _module_factory

__all__ = ["enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]

enabled: bool
plan_cache: PlanCache
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags

_module_factory.install(__name__, plans="openblas")
