"""Device properties that affect decisions, as values: decisions for a device can be computed without that device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ....problems import Problem
from ... import devices
from . import bindings

__all__ = ["DeviceInfo", "capability", "described", "device_info", "index_of", "lacks"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One GPU."""

    index: int  # CUDA's number of it
    capability: tuple[int, int]  # compute capability: (9, 0)
    multiprocessors: int  # how many it has
    name: str  # "NVIDIA H100 80GB HBM3"
    # l2_bytes, memory_bytes: sizes of its second-level cache and of its memory.
    l2_bytes: int
    memory_bytes: int


_known: dict[tuple[Any, int], DeviceInfo] = {}  # by the CuPy that told


def device_info(index: int) -> DeviceInfo:
    """A device, as CuPy tells; raises `BackendUnavailable` where that cannot be imported."""
    cupy = bindings.cupy()
    found = _known.get((cupy, index))
    if found is None:
        told = cupy.cuda.runtime.getDeviceProperties(index)
        name = told["name"]
        found = _known[cupy, index] = DeviceInfo(
            index, (int(told["major"]), int(told["minor"])), int(told["multiProcessorCount"]),
            name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name),
            int(told["l2CacheSize"]), int(told["totalGlobalMem"]),
        )  # fmt: skip
    return found


def described(index: int) -> DeviceInfo:
    """Returns what is known of a device without importing CuPy: its capability alone, or (0, 0), where nobody tells more."""
    import sys

    if "cupy" in bindings.inserted or "cupy" in sys.modules:
        return device_info(index)
    return DeviceInfo(index, devices.capability(index) or (0, 0), 0, "", 0, 0)


def capability(index: int) -> tuple[int, int]:
    """Compute capability of a device; CuPy is not imported for it. (0, 0) where nobody tells."""
    return described(index).capability


def index_of(problem: Problem) -> int:
    """Number of the device that a Problem's arrays are on.

    >>> index_of(Problem("matmul", (), device="cuda:1")), index_of(Problem("matmul", (), device="cuda"))
    (1, 0)
    """
    return int(problem.device.partition(":")[2] or 0)


def lacks(way_precision: str, least: tuple[int, int], having: tuple[int, int]) -> str:
    """Returns why the device or the environment does not support an algorithm; empty if they do."""
    if having < least:
        major, minor = least
        return f"{way_precision} takes compute capability {major}.{minor}; the device has {having[0]}.{having[1]}"
    if way_precision == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE", "").strip() == "0":
        return "NVIDIA_TF32_OVERRIDE=0 turns tf32 off inside NVIDIA's libraries"
    return ""
