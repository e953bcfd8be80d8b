"""XNNPACK: linear layers and convolution on the CPU, in float32.

``enabled`` reads False while the library is absent, and cannot be set to True then.
"""

from __future__ import annotations

from . import _uniform

__all__ = ["enabled", "flags", "is_available", "is_enabled", "set_flags", "version"]

enabled: bool
"""Whether XNNPACK may run calls. Off is a prohibition: no fallback passes over it."""

is_available: _uniform.IsTrue
is_enabled: _uniform.IsTrue
version: _uniform.Version
flags: _uniform.Flags
set_flags: _uniform.SetFlags

_uniform.install(__name__)
