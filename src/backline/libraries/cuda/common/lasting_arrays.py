"""Arrays on a device that outlast a call: weights that a layer owns, and what is made of them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import bindings
from .alignment import misaligned, put
from .device_plan import new_images, refuse_capture

__all__ = ["lasting", "owned"]


def lasting(device: int, make: Callable[[], Any], what: str) -> Any:
    """Returns what `make` returns while a device is the current one: arrays that calls on every stream may read.

    It waits for the device, once, so that no later call has to. A stream that records a CUDA graph is refused; `what` is the name
    that the error has for it.
    """
    refuse_capture(device, what)
    cuda = bindings.cupy().cuda
    with cuda.Device(device):
        found = make()
        cuda.get_current_stream().synchronize()
    return found


def owned(array: Any, what: str, last: bool = False) -> Any:
    """Returns a copy of an array on its device, without gaps: in C order, or that of weights of images with channels last."""

    def copy() -> Any:
        made = new_images(tuple(array.shape), array.dtype, last)
        if misaligned(array):
            put(array, made)
        else:
            made[...] = array
        return made

    return lasting(int(array.device.id), copy, what)
