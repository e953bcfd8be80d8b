"""opt_einsum: the order in which a contraction of three or more operands is done.

``enabled`` reads False while the package is absent, and cannot be set to True then.
"""

from __future__ import annotations

from types import ModuleType

from . import _module_factory

__all__ = ["enabled", "flags", "get_opt_einsum", "is_available", "is_enabled", "set_flags", "strategy", "version"]

enabled: bool
strategy: str
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def get_opt_einsum() -> ModuleType | None:
    """Returns the package opt_einsum, or None if it is absent.

    Examples
    --------
    >>> from backline.backends import opt_einsum
    >>> opt_einsum.get_opt_einsum().__name__
    'opt_einsum'
    """
    if not _module_factory.available("opt_einsum"):
        return None
    import opt_einsum as package

    module: ModuleType = package
    return module


_module_factory.install(__name__)
