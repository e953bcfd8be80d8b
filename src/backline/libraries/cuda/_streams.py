"""Handles of NVIDIA's libraries: one for each thread and device, set to CuPy's current stream by whoever uses it.

A handle is not destroyed, which would wait for the device: when its thread ends, another one gets it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from . import _bindings

__all__ = ["Handles", "current_stream"]

MOST = 16  # handles of one thread: those of streams come and go


def current_stream() -> int:
    """Address of the stream that CuPy gives work of this thread to, on its current device."""
    return int(_bindings.cupy().cuda.get_current_stream().ptr)


class Handles:
    """The handles of one library.

    Parameters
    ----------
    create
        Makes one for the device that is current, and sets what holds for all calls. It is given the binding's module.

    Examples
    --------
    >>> handles = Handles(lambda module: module.create())
    >>> class Module:
    ...     create = staticmethod(iter((17, 18, 19)).__next__)
    >>> handles.get(Module, 0), handles.get(Module, 1), handles.get(Module, 0)
    (17, 18, 17)
    """

    def __init__(self, create: Callable[[Any], int]) -> None:
        self._create = create
        self._local = threading.local()
        self._free: dict[Hashable, list[int]] = {}
        _all.append(self)

    def get(self, module: Any, device: int, stream: int | None = None) -> int:
        """The handle of this thread for a device, which is current; or that for one stream of it.

        Parameters
        ----------
        module
            The binding's module.
        device
            Index of the device.
        stream
            Address of a stream that must not share a handle with others; None for the handle that all streams share.
        """
        mine = getattr(self._local, "held", None)
        if mine is None:
            mine = self._local.held = _Held(self._free)
        key = (module, device)
        found = mine.handles.get((key, stream))
        if found is None:
            free = self._free.get(key)
            try:
                found = free.pop() if free else self._create(module)
            except IndexError:  # another thread was quicker
                found = self._create(module)
            mine.handles[key, stream] = found
            while len(mine.handles) > MOST:
                mine.give_back(*mine.handles.popitem(last=False))
        elif stream is not None:
            mine.handles.move_to_end((key, stream))
        return int(found)


class _Held:
    """The handles of one thread; freed with it, and then given back."""

    def __init__(self, free: dict[Hashable, list[int]]) -> None:
        self.handles: OrderedDict[tuple[Hashable, int | None], int] = OrderedDict()
        self.free = free

    def give_back(self, key: tuple[Hashable, int | None], handle: int) -> None:
        self.free.setdefault(key[0], []).append(handle)

    def __del__(self) -> None:
        for key, handle in self.handles.items():
            self.give_back(key, handle)


_all: list[Handles] = []


def _forget() -> None:
    # CUDA does not live on in a forked child: its handles are worth nothing there.
    for each in _all:
        each._local = threading.local()
        each._free = {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
