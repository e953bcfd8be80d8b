"""cuSPARSELt: products with operands of which two in four elements are zero, on NVIDIA GPUs.
"""

from __future__ import annotations

from . import _module_factory

__all__ = ["enabled", "flags", "get_max_alg_id", "is_available", "is_enabled", "set_flags", "version"]

enabled: bool
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def get_max_alg_id() -> int | None:
    """Returns the number of algorithms for a small product of float16, or None without the library. Others may have fewer.

    Examples
    --------
    >>> from backline.backends import cusparselt
    >>> cusparselt.get_max_alg_id() is None or cusparselt.is_available()
    True
    """
    from ..libraries import presence

    return presence.max_alg_id()


_module_factory.install(__name__)
