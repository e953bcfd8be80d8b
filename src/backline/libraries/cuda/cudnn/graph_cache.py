"""cuDNN's plans that are kept: for the process, by what they are for; and what came out of timing them, for every process.

Which plan was the fastest is written down as its name, which says its engine and that engine's knobs, with the version of cuDNN
and the device. Where these are the same the plan of that name is taken, if filters leave it and it can be built; nothing else of
what is read has a say, and nothing that is read is handed to cuDNN.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from ....errors import LibraryFailed
from ....native.bounded_cache import BoundedCache
from ...base import Planner
from ..common.device_facts import DeviceInfo, device_info
from .conv_graphs import Graph, Search
from .graphs import Plans, handle_for

__all__ = ["GraphRun", "key_of", "named_in", "new_cache", "written"]

VARIABLE, MOST = "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT", 10_000


def most() -> int:
    """Most graphs kept: what the environment says, as PyTorch has it. A negative number keeps none, 0 sets no bound.

    >>> most() if VARIABLE not in os.environ else MOST
    10000
    """
    try:
        return int(os.environ.get(VARIABLE, ""))
    except ValueError:
        return MOST


def new_cache() -> BoundedCache:
    """Returns an empty cache of plans by what they are for; threads that ask for the same ones wait for them."""

    def bound() -> int:
        limit = most()
        return 0 if limit < 0 else limit or sys.maxsize

    return BoundedCache(bound, once=True)


_kept = new_cache()
_failed: set[tuple[str, str]] = set()  # keys and plans that were read and did not run


# --- plans that were timed -------------------------------------------------------------------------------------------


def key_of(graph: Graph, device: DeviceInfo) -> str:
    """Returns the key of a graph's fastest plan: one line with everything that determines which plans there are."""

    def spelled(numbers: tuple[int, ...]) -> str:
        return "x".join(map(str, numbers))

    tensors = [(name, of) for name, of in graph.inputs] + [(of.name, of) for of in graph.outputs]
    parts = [f"{name}={of.dtype}:{spelled(of.dims)}:{spelled(of.strides)}" for name, of in tensors]
    parts += [f"{name}={spelled(value) if isinstance(value, tuple) else value}" for name, value in graph.options]
    parts += [f"compute={graph.compute}", f"without={'+'.join(graph.without)}", f"modes={'+'.join(graph.modes)}"]
    return " ".join(["cudnn", graph.node, *parts, "on", _card(device)])


def _card(device: DeviceInfo) -> str:
    major, minor = device.capability
    name = "".join(c if c.isalnum() else "_" for c in device.name.encode("ascii", "replace").decode())
    return f"{name}_{major}.{minor}_{device.multiprocessors}"


def written(name: str, version: int, device: DeviceInfo) -> str:
    """A plan's name with what it holds for.

    >>> written("eng7_k2=1", 91900, DeviceInfo(0, (9, 0), 132, "NVIDIA H100", 0, 0))
    'eng7_k2=1 of 91900 on NVIDIA_H100_9.0_132'
    """
    return f"{name} of {version} on {_card(device)}"


def named_in(text: str, version: int, device: DeviceInfo) -> tuple[str, str]:
    """The name of the plan in what was written, and why it is not to be taken: one of the two is empty.

    >>> named_in("eng7 of 91900 on NVIDIA_H100_9.0_132", 92800, DeviceInfo(0, (9, 0), 132, "NVIDIA H100", 0, 0))
    ('', 'it was timed with cuDNN 91900; this is 92800')
    """
    parts = text.split(" ")
    if len(parts) != 5 or parts[1::2] != ["of", "on"]:
        return "", f"{text[:80]!r} names no plan"
    if parts[2] != str(version):
        return "", f"it was timed with cuDNN {parts[2]}; this is {version}"
    if parts[4] != _card(device):
        return "", f"it was timed on {parts[4]}; this is {_card(device)}"
    return parts[0], ""


# --- what calls use --------------------------------------------------------------------------------------------------


class GraphRun:
    """One graph on one device, which is current when it is made: its plans, one of them at least built, run by calls.

    Raises `NoKernel` where there is none.
    """

    def __init__(self, graph: Graph, search: Search, module: Any, device: int, planner: Planner) -> None:
        self.graph, self.search, self.module, self.planner = graph, search, module, planner
        self.device = device_info(device)
        self.plans = self._plans()

    def _plans(self) -> Plans:
        def make() -> Plans:
            made = Plans(self.module, self.graph, self.device.capability, handle_for(self.module, self.device.index))
            if self.search.tuned:
                self._take_tuned(made)
            made.first()
            return made

        plans: Plans = _kept.get((self.module, self.graph, self.search.on, self.search.tuned, self.device.index), make)
        return plans

    def _take_tuned(self, made: Plans) -> None:
        key = key_of(self.graph, self.device)
        text, searched = self.planner.timed_plan("cudnn", key)
        if not text:
            return
        name, reason = named_in(text, int(self.module.backend_version()), self.device)
        if name and (key, name) in _failed:
            reason = "it failed when it ran"
        elif name and not made.take(name, searched):
            reason = "there is no such plan here, or it is dropped, or cannot be built"
        if reason:
            made.refused[f"{name or 'the plan'} of the tuning record"] = reason

    def __call__(self, pointers: Mapping[int, int]) -> None:
        """Run it on CuPy's current stream; with a search that was not made yet, make it first."""
        if self.plans.failed:
            self.plans = self._plans()
        plans = self.plans
        try:
            self._run(plans, pointers)
        except LibraryFailed:
            if not plans.tuned:
                raise
            # What was read does not run here. The others may.
            _failed.add((key_of(self.graph, self.device), plans.tuned))
            plans.failed = True
            self.plans = self._plans()
            self._run(self.plans, pointers)

    def _run(self, plans: Plans, pointers: Mapping[int, int]) -> None:
        module, device, search = self.module, self.device, self.search
        handle = handle_for(module, device.index)
        with plans.lock:
            if search.on and not plans.covers(search.limit):
                plans.search(pointers, handle, search.limit, device.l2_bytes)
                if len(plans.times) > 1 and search.tuned:
                    name = plans.name(plans.ready[0])
                    text = written(name, int(module.backend_version()), device)
                    key = key_of(self.graph, device)
                    self.planner.keep_timed_plan("cudnn", key, text, plans.times[name] * 1e-3, plans.searched or 0)
            plans.run(pointers, handle)


def _forget() -> None:
    # CUDA does not live on in a forked child.
    global _kept
    _kept = new_cache()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
