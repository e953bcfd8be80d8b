"""SciPy's own Fourier transforms: DUCC or pocketfft, as its release has it.

The module is not SciPy; it only holds what a user may set about it.
"""

from __future__ import annotations

from ..switches.switch_module import FftPlanCache
from . import _module_factory

__all__ = ["enabled", "fft_plan_cache", "flags", "is_available", "is_enabled", "set_flags", "version"]

enabled: bool
fft_plan_cache: FftPlanCache
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags

_module_factory.install(__name__, transforms="scipy")
