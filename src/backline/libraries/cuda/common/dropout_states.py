"""The state of cuDNN's dropout: random numbers on the device, seeded once and used by its recurrent networks.

Needs cuDNN, and CuPy for the memory. `Session` holds the few functions of cuDNN that make it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ....errors import BackendUnavailable
from ...presence import presence, unavailable

__all__ = ["make"]


def make(p: float, seed: int) -> Any:
    """Return the states of dropout with probability `p` as an array of bytes on the current device.

    Raises `BackendUnavailable` where cuDNN or CuPy is absent, or cuDNN refuses.
    """
    cudnn = presence("cudnn")
    if not cudnn.available() or cudnn.path is None:
        raise unavailable("cudnn", f"init_dropout_state(dropout={p})")
    library, cupy = _library(cudnn.path), _cupy(p)
    with Session(library) as session:
        states = cupy.empty(session.states_size(), dtype="uint8")
        session.fill(p, int(states.data.ptr), int(states.size), seed)
        cupy.cuda.runtime.deviceSynchronize()  # the handle ends here, its work must not
    return states


def _library(path: str) -> Any:
    return ctypes.CDLL(path)


def _cupy(p: float) -> Any:
    try:
        import cupy
    except ImportError as error:
        text = f"init_dropout_state(dropout={p}) needs CuPy, which cannot be imported."
        raise BackendUnavailable(text, cause=str(error), remedy="pip install cupy-cuda13x") from None
    return cupy


class Session:
    """A handle of cuDNN and a descriptor of dropout, given back at the end of the block."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle, self._descriptor = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self) -> Session:
        self._call("cudnnCreate", ctypes.byref(self._handle))
        try:
            self._call("cudnnCreateDropoutDescriptor", ctypes.byref(self._descriptor))
        except BackendUnavailable:
            self._library.cudnnDestroy(self._handle)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._library.cudnnDestroyDropoutDescriptor(self._descriptor)
        self._library.cudnnDestroy(self._handle)

    def states_size(self) -> int:
        """Bytes that the states need on this device."""
        size = ctypes.c_size_t()
        self._call("cudnnDropoutGetStatesSize", self._handle, ctypes.byref(size))
        return size.value

    def fill(self, p: float, address: int, size: int, seed: int) -> None:
        """Seed the states in that memory."""
        self._call(
            "cudnnSetDropoutDescriptor", self._descriptor, self._handle, ctypes.c_float(p), ctypes.c_void_p(address),
            ctypes.c_size_t(size), ctypes.c_ulonglong(seed),
        )  # fmt: skip

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise BackendUnavailable(f"cuDNN refuses {name}: status {status}")
