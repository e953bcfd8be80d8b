"""MIOpen: convolution and recurrent networks on AMD's GPUs.
"""

from __future__ import annotations

from . import _uniform

__all__ = ["enabled", "flags", "immediate", "is_available", "is_enabled", "set_flags", "version"]

immediate: bool
"""Whether MIOpen takes its first solution for a convolution instead of searching for the fastest."""

enabled: bool
"""Whether MIOpen may run calls. Off is a prohibition: no fallback passes over it."""

is_available: _uniform.IsTrue
is_enabled: _uniform.IsTrue
version: _uniform.Version
flags: _uniform.Flags
set_flags: _uniform.SetFlags

_uniform.install(__name__, model=("immediate",))
