"""Plans of cuFFT: made once for a layout, kept by the planner for each device, destroyed when nothing uses them any more.

A plan takes its work area from CuPy's memory for each run, so plans that rest hold none. A run sets the plan's stream and work
area: threads that share a plan take turns in that, not in computing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ...base import Planner
from ..common import bindings
from .transform_steps import PlanKey

__all__ = ["CufftPlan", "destroy_unused", "plan"]

# Of CUDA's library types: the real one, the complex one.
HALF_TYPES = (2, 6)
PER_THREAD = 2
MOST_STREAMS = 8  # whose last use is remembered before those that are done are forgotten


def plan(key: PlanKey, device: int, planner: Planner) -> CufftPlan:
    """Returns the plan for a key on a device, which is current."""
    plan: CufftPlan = planner.cufft_plan(device, key, lambda: CufftPlan(key, device))
    return plan


class CufftPlan:
    """One plan, by what it is for, made on the current device and freed with its last use."""

    __slots__ = ("_cuda", "_events", "_execute", "_handle", "_lock", "_module", "_process", "device", "failed", "key", "nbytes")

    def __init__(self, key: PlanKey, device: int) -> None:
        self._handle: int | None = None
        self.failed = False  # whether a run failed; it is not used again then
        destroy_unused()
        module = self._module = bindings.cufft()
        self._cuda = bindings.cupy().cuda
        self.key, self.device, self._process = key, device, os.getpid()
        self._events: dict[tuple[int, int], Any] = {}  # by stream: when it was last used there
        self._lock = threading.Lock()
        handle = module.create()
        try:
            module.set_auto_allocation(handle, 0)
            self.nbytes = int(_made(module, handle, key))  # size of its work area
        except BaseException:
            module.destroy(handle)
            raise
        self._execute = _executor(module, key)
        self._handle = handle

    def run(self, source: int, target: int, direction: int, offsets: tuple[tuple[int, int], ...]) -> None:
        """Enqueue it on CuPy's current stream for each pair of offsets from two addresses."""
        module, cuda, handle = self._module, self._cuda, self._handle
        assert handle is not None
        stream = cuda.get_current_stream()
        # On this stream the memory is not given to others before the work that uses it is done.
        area = cuda.alloc(self.nbytes)
        with self._lock:
            try:
                module.set_stream(handle, stream.ptr)
                module.set_work_area(handle, area.ptr)  # no address, where it wants nothing: but it must be said
                for here, there in offsets:
                    self._execute(handle, source + here, target + there, direction)
            except BaseException:
                self.failed = True
                raise
            finally:
                self._event(cuda, stream).record(stream)

    def _event(self, cuda: Any, stream: Any) -> Any:
        # One address stands for the stream of each thread that has its own default one.
        where = stream.ptr, threading.get_ident() if stream.ptr == PER_THREAD else 0
        event = self._events.get(where)
        if event is None:
            if len(self._events) >= MOST_STREAMS:
                self._events = {known: e for known, e in self._events.items() if not e.done}
            event = self._events[where] = cuda.Event(disable_timing=True)
        return event

    # When the interpreter ends, the names of modules are gone.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._handle is not None and not finalizing():
            events = tuple(self._events.values())
            _unused.append(_Unused(self._process, self.device, self._module, self._cuda, self._handle, events))
            destroy_unused()


class _Unused(NamedTuple):
    """A handle that nothing holds any more."""

    process: int
    device: int
    module: Any
    cuda: Any
    handle: int
    events: tuple[Any, ...]


_unused: deque[_Unused] = deque()


def destroy_unused() -> None:
    """Destroy the plans that nothing holds any more and whose work is done; none is waited for."""
    for _ in range(len(_unused)):
        try:
            each = _unused.popleft()
        except IndexError:  # another thread took it
            return
        if each.process != os.getpid():  # of the parent: CUDA does not live on in a forked child
            continue
        try:
            if all(event.done for event in each.events):
                with each.cuda.Device(each.device):
                    each.module.destroy(each.handle)
            else:
                _unused.append(each)
        except (RuntimeError, each.module.cuFFTError):
            continue  # the device was lost, and the plan with it; whoever comes by here is told of that by a call of its own


def _made(module: Any, handle: int, key: PlanKey) -> int:
    """Make a plan for an empty handle; the size of its work area."""
    of, to = key.source, key.target
    sizes, here, there = list(key.sizes), (list(of.embed), of.stride, of.dist), (list(to.embed), to.stride, to.dist)
    if key.value == "f16":
        real, paired = HALF_TYPES
        types = (real if key.kind == "R2C" else paired, real if key.kind == "C2R" else paired)
        return int(module.xt_make_plan_many(handle, len(sizes), sizes, *here, types[0], *there, types[1], key.batch, paired))
    return int(module.make_plan_many64(handle, len(sizes), sizes, *here, *there, int(_type(module, key)), key.batch))


def _type(module: Any, key: PlanKey) -> Any:
    doubles = {"C2C": module.Type.Z2Z, "R2C": module.Type.D2Z, "C2R": module.Type.Z2D}
    return doubles[key.kind] if key.value == "f64" else getattr(module.Type, key.kind)


def _executor(module: Any, key: PlanKey) -> Callable[[int, int, int, int], None]:
    """The function that runs a plan, of handle, addresses and direction."""
    if key.value == "f16":
        run: Callable[[int, int, int, int], None] = module.xt_exec
        return run
    name = _type(module, key).name.lower()
    execute: Any = getattr(module, f"exec_{name}")
    if key.kind == "C2C":
        return lambda handle, source, target, direction: execute(handle, source, target, direction)
    return lambda handle, source, target, direction: execute(handle, source, target)
