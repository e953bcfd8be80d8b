"""XNNPACK: linear layers and convolution on the CPU, in float32.

``enabled`` reads False while the library is absent, and cannot be set to True then.
"""

from __future__ import annotations

from . import _module_factory

__all__ = ["enabled", "flags", "is_available", "is_enabled", "set_flags", "version"]

enabled: bool
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags

_module_factory.install(__name__)
