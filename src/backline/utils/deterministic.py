"""Treatment of uninitialized memory under deterministic algorithms."""

from __future__ import annotations

from ..switches import Scope as _Scope
from ..switches import make_scope as _make_scope
from ..switches.switch_module import install as _install

__all__ = ["fill_uninitialized_memory", "flags"]

fill_uninitialized_memory: bool


def flags(fill_uninitialized_memory: bool | None = None) -> _Scope:
    """Return a scope for the switch; also a decorator. None keeps what holds.

    Raises
    ------
    BadType
        Not a bool.

    Examples
    --------
    >>> import backline
    >>> with backline.utils.deterministic.flags(fill_uninitialized_memory=False):
    ...     backline.utils.deterministic.fill_uninitialized_memory
    False
    """
    return _make_scope("utils.deterministic.flags", {f"utils.deterministic.{_NAME}": fill_uninitialized_memory}, depth=2)


_NAME = "fill_uninitialized_memory"

_install(__name__, "utils.deterministic")
