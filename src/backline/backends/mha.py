"""Multi-head attention: permission to run it as one fused operation."""

from __future__ import annotations

from typing import cast

from .. import switches as _switches
from . import _module_factory

__all__ = ["flags", "get_fastpath_enabled", "set_fastpath_enabled", "set_flags"]

flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def get_fastpath_enabled() -> bool:
    """Tells whether multi-head attention and encoder layers may run as one fused operation.

    Examples
    --------
    >>> from backline.backends import mha
    >>> with mha.flags(fastpath=False):
    ...     mha.get_fastpath_enabled()
    False
    """
    return cast(bool, _switches.get("mha.fastpath"))


def set_fastpath_enabled(value: bool) -> None:
    """Allows or forbids the fused operation; forbidden, products and softmax run one by one.

    Raises
    ------
    BadType
        Not a bool.
    """
    _switches.assign("mha.fastpath", value, depth=2)


_module_factory.install(__name__, present=False)
