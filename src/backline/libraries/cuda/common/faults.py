"""Handling of errors that a call on a device raised: what caused them, and whether the device can still be used.

CUDA tells of a kernel's failure late: at the call that is made, or waited for, after it. And after some failures it answers
everything with the same error, until the process ends. So whoever is told of an error asks the device what is left of it.
"""

from __future__ import annotations

import re
from typing import Any

from ....errors import BacklineError, DeviceLost, LibraryFailed, LinAlgError, OutOfMemory
from . import bindings

__all__ = ["answer", "lost", "lost_by", "no_memory"]

# What libraries, the runtime and the driver call it. cuBLAS says NOT_INITIALIZED where there is no memory for a handle.
_NO_MEMORY = re.compile(r"ALLOC(ATION)?_FAILED|OUT_OF_MEMORY|MemoryAllocation|out of memory", re.IGNORECASE)
_PERHAPS = re.compile(r"NOT_INITIALIZED|SETUP_FAILED")
_CAPTURING = range(900, 910)  # errors of a call that a stream may not be asked while it records a graph
_USABLE = "the device can be used; the next call prepares everything anew"
_NEW_PROCESS = "start the process anew; with CUDA_LAUNCH_BLOCKING=1 in its environment the error names the call that is at fault"


def lost(device: int) -> str:
    """Returns CUDA's error for a device that can no longer be used; empty while it can be. Synchronizes the device.

    An error of earlier work is told once, and then forgotten; one that is told again stays.
    """
    cuda = bindings.cupy().cuda
    said = ""
    try:
        with cuda.Device(device):
            for _ in range(2):
                said = _told_by(cuda)
                if not said:
                    return ""
    except RuntimeError as error:  # the device cannot even be made the current one
        said = _line(error)
    return said


def _told_by(cuda: Any) -> str:
    try:
        cuda.runtime.deviceSynchronize()
    except RuntimeError as error:
        return "" if getattr(error, "status", 0) in _CAPTURING else _line(error)
    return ""


def lost_by(error: BaseException, device: int, what: str) -> DeviceLost | None:
    """The error to raise instead, if a device was lost when another error was raised; None if it can be used."""
    said = lost(device)
    if not said:
        return None
    return DeviceLost(
        f"{what} failed, and cuda:{device} is lost to this process.",
        cause=f"{_line(error)}; CUDA now answers everything with {said}. An earlier kernel, of other code, may be at fault",
        remedy=_NEW_PROCESS,
    )


def answer(plan: Any, error: Exception, arrays: tuple[Any, ...], scalars: dict[str, Any]) -> Any:
    """Handles an error that a Plan's call raised: returns the result if a retry succeeds after memory is freed, else raises.

    Raises `DeviceLost` where the device cannot be used any more, `OutOfMemory` where there is no memory for an array or the
    library, `LibraryFailed` where it failed for another reason; the DevicePlan is not used again after what is its libraries'
    fault. Other errors, which are not of libraries, are raised as they are.
    """
    if isinstance(error, MemoryError):
        if isinstance(error, BacklineError):
            raise error
        # CuPy has given back what its pool kept, and tried again, before it raised this.
        raise no_memory(plan.what, plan.device, _line(error)) from error
    if isinstance(error, LinAlgError):  # a RuntimeError too: the matrix is at fault, and no library
        raise error
    ours = isinstance(error, BacklineError)
    if (ours and not isinstance(error, LibraryFailed)) or not (ours or isinstance(error, plan.errors)):
        raise error
    if isinstance(error, DeviceLost):  # a step of this call found that out
        plan.failed = True
        raise error
    text = str(error)
    if not ours and (_NO_MEMORY.search(text) or _PERHAPS.search(text)):
        # Memory that a library asks CUDA for itself: CuPy's pool may hold it.
        bindings.cupy().get_default_memory_pool().free_all_blocks()
        try:
            with bindings.cupy().cuda.Device(plan.device):
                return plan.run(arrays, scalars)
        except Exception as again:
            if isinstance(again, MemoryError) and not isinstance(again, BacklineError):
                raise no_memory(plan.what, plan.device, _line(again)) from again
            if not isinstance(again, plan.errors) or isinstance(again, BacklineError):
                raise
            error, text = again, str(again)
    gone = lost_by(error, plan.device, plan.what)
    plan.failed = True
    if gone is not None:
        raise gone from error
    if ours:
        raise error
    if _NO_MEMORY.search(text):
        raise no_memory(plan.what, plan.device, f"{_line(error)}, also after CuPy's pool gave back what it kept") from error
    raise LibraryFailed(f"{plan.what} failed", cause=f"{_line(error)}; {_USABLE}") from error


def no_memory(what: str, device: int, said: str) -> OutOfMemory:
    """The error of a call that found no memory: what was said, which names the bytes wanted, and how many are free."""
    told = ""
    try:
        cupy = bindings.cupy()
        with cupy.cuda.Device(device):
            free, whole = cupy.cuda.runtime.memGetInfo()
        kept = cupy.get_default_memory_pool().free_bytes()
        told = f"; {free:,} of {whole:,} bytes are free on the device, and {kept:,} in CuPy's pool"
    except RuntimeError:  # the device does not answer
        pass
    return OutOfMemory(
        f"{what} found no memory on cuda:{device}",
        cause=said + told,
        remedy="smaller arrays or fewer at a time, a smaller workspace, or fewer programs on the device",
    )


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
