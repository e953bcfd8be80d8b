"""The state that every read of a switch starts from: the base Snapshot of the process, and the open scopes of the context.

Only state is kept here, so that the modules which declare switches, read files and open scopes can share it. Snapshots and
scopes are handed in as arguments.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

from .. import _core
from .provenance import Place

__all__ = ["ForkSafeLock", "Layer", "lock", "on_base", "process", "set_base", "state_over", "states"]


class ForkSafeLock:
    """Holds a re-entrant lock, and another one in a forked child: a thread that does not exist there may have held the first.

    It is re-entrant because a signal handler may use switches while its thread holds the lock. Write ``with lock.now:``.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.now = threading.RLock()


class _Process:
    """The base of the process, which is replaced and never changed."""

    __slots__ = ("bare", "base")

    def __init__(self) -> None:
        self.base: Any = None
        """Snapshot of the values that hold outside of scopes. None before the first read, and after a declaration."""
        self.bare: _core.ScopeState | None = None
        """State without scopes over the base: that of every context that has closed its last scope."""


Layer: TypeAlias = tuple[Any, Any, Mapping[str, Place] | None]
"""One open scope: the Scope, the Overlay of its values, and the places of the assignments made inside of it."""

lock = ForkSafeLock()
"""Guards the declared switches and the process-wide values."""

process = _Process()

on_base: list[Callable[[Any], object]] = []
"""Functions that are called with each new base: of what drives settings of the process beside Backline's own calls."""

states: ContextVar[_core.ScopeState] = ContextVar("backline_switches")


def set_base(snapshot: Any) -> None:
    """Makes `snapshot` the base. With None, the next read makes a base from what is declared, read and assigned then."""
    with lock.now:
        process.bare = None if snapshot is None else _core.ScopeState((), snapshot, snapshot, None)
        process.base = snapshot
        _core.set_base(snapshot)
        if snapshot is not None:
            for changed in on_base:
                changed(snapshot)


def state_over(layers: tuple[Layer, ...], base: Any, tracer: object) -> _core.ScopeState:
    """Merges `layers` over `base`, the last one on top."""
    snapshot = base
    for layer in layers:
        snapshot = layer[1].over(snapshot)
    return _core.ScopeState(layers, base, snapshot, tracer)
