"""Handles of NVIDIA's libraries: one for each thread and device, set to CuPy's current stream by whoever uses it.

A handle is not destroyed, which would wait for the device: when its thread ends, another one gets it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from . import alignment, bindings

__all__ = ["Handles", "current_stream"]

MOST = 16  # handles of one thread: those of streams come and go


def current_stream() -> int:
    """Address of the stream that CuPy gives work of this thread to, on its current device."""
    return int(bindings.cupy().cuda.get_current_stream().ptr)


class Handles:
    """The handles of one library.

    `create` is given the binding's module; it makes one for the device that is current, and sets what holds for all calls.

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
        self._free: dict[Hashable, list[_Handle]] = {}
        _all.append(self)

    def get(self, module: Any, device: int, stream: int | None = None) -> int:
        """The handle of this thread for a device, which is current; or that for one stream of it.

        `stream` is the address of one that must not share a handle with others; None for the handle that all streams share.
        """
        return self._find(module, device, stream).number

    def ready(self, module: Any, device: int, workspace: int, own: bool = False) -> int:
        """The handle of this thread, set to CuPy's current stream, with a workspace of so many bytes.

        Both stay with the handle, which is told anew only if one of them is another than the last time. Work of one stream is
        done in order, so the next call may write to the workspace of the one before. It goes back to CuPy's pool, for later work
        of its stream, when the handle is given another one, or its thread ends. The stream is kept as well, so that no other
        one gets its address: packages wrap a stream of theirs anew for each call, and it counts as one. `own`: whether each
        stream has a handle of its own.
        """
        cuda = bindings.cupy().cuda
        stream = cuda.get_current_stream()
        found = self._find(module, device, int(stream.ptr) if own else None)
        if found.stream is None or found.stream.ptr != stream.ptr or found.nbytes != workspace:
            found.forget()  # so that nothing is taken for granted if this fails
            found.memory = memory = alignment.workspace(workspace)
            module.set_stream(found.number, stream.ptr)  # which takes the workspace away, so it comes first
            module.set_workspace(found.number, memory.ptr, workspace)
            found.stream, found.nbytes = stream, workspace
        return found.number

    def _find(self, module: Any, device: int, stream: int | None) -> _Handle:
        try:
            mine: _Held = self._local.held
        except AttributeError:
            mine = self._local.held = _Held(self._free)
        key = (module, device)
        found = mine.handles.get((key, stream))
        if found is None:
            free = self._free.get(key)
            try:
                found = free.pop() if free else _Handle(int(self._create(module)))
            except IndexError:  # another thread was quicker
                found = _Handle(int(self._create(module)))
            mine.handles[key, stream] = found
            while len(mine.handles) > MOST:
                mine.give_back(*mine.handles.popitem(last=False))
        elif stream is not None:
            mine.handles.move_to_end((key, stream))
        return found


class _Handle:
    """A handle, and what `Handles.ready` told it last."""

    __slots__ = ("memory", "nbytes", "number", "stream")

    def __init__(self, number: int) -> None:
        self.number = number
        self.forget()

    def forget(self) -> None:
        self.stream: Any = None
        self.memory: Any = None
        self.nbytes = -1


class _Held:
    """The handles of one thread; freed with it, and then given back."""

    def __init__(self, free: dict[Hashable, list[_Handle]]) -> None:
        self.handles: OrderedDict[tuple[Hashable, int | None], _Handle] = OrderedDict()
        self.free = free

    def give_back(self, key: tuple[Hashable, int | None], handle: _Handle) -> None:
        handle.forget()
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
