"""MLX on Apple silicon: the arrays of MLX, on Metal or on MLX's CPU stream."""

from __future__ import annotations

import platform as _platform

from . import _module_factory

__all__ = [
    "enabled", "flags", "get_core_count", "get_name", "is_available", "is_built", "is_enabled", "is_macos13_or_newer",
    "is_macos_or_newer", "set_flags", "version",
]  # fmt: skip

enabled: bool
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def is_available() -> bool:
    """Tells whether MLX has a Metal device; without one, arrays of MLX are computed on its CPU stream. The answer is kept."""
    from ..libraries import presence

    return bool(presence.presence("mps").available())


def is_built() -> bool:
    """Tells whether MLX can be imported."""
    from ..libraries import presence

    return bool(presence.mlx_importable())


def is_macos_or_newer(major: int, minor: int) -> bool:
    """Tells whether this is macOS of at least that version; False on other systems.

    Examples
    --------
    >>> import sys
    >>> from backline.backends import mps
    >>> mps.is_macos_or_newer(10, 0) == (sys.platform == "darwin")
    True
    """
    release = _platform.mac_ver()[0]
    return bool(release) and tuple(int(x) for x in f"{release}.0".split(".")[:2]) >= (major, minor)


def is_macos13_or_newer(minor: int = 0) -> bool:
    """Tells whether this is macOS 13 of at least that minor version, or newer."""
    return is_macos_or_newer(13, minor)


def get_name() -> str:
    """Returns the name of the Metal device.

    Raises
    ------
    BackendUnavailable
        There is none.
    """
    return str(_fact("name"))


def get_core_count() -> int:
    """Returns the number of GPU cores of the Metal device.

    Raises
    ------
    BackendUnavailable
        There is none.
    """
    return int(_fact("cores"))


def _fact(name: str) -> str | int:
    from ..libraries import presence

    if not is_available():
        raise _module_factory.unavailable("mps", f"the {name} of the Metal device")
    return presence.metal_facts()[name]


_module_factory.install(__name__)
