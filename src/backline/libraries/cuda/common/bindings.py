"""The modules through which NVIDIA's libraries are called, imported when one is first needed; tests put others in their place.

Nothing else in this folder imports them. Before a binding is imported its library is loaded from the file that the search found,
so that the binding, which looks by itself, finds that one in the process.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple

from ....errors import BackendUnavailable
from ... import python_packages
from ...availability import keep_remedy
from ...presence import presence
from .driver_versions import driver_refuses, two_cudas

__all__ = [
    "cublas", "cublasLt", "cudnn", "cudnn_file", "cufft", "cupy", "cusolver", "cusolverDn", "cusparseLt", "inserted", "reason",
]  # fmt: skip


class _Module(NamedTuple):
    path: str  # what is imported
    package: str  # which is in this distribution
    libraries: tuple[str, ...] = ()  # loaded before, in this order
    how_to_get: str = "pip install 'backline[cuda13]'"
    helpful: tuple[str, ...] = ()  # loaded before them where they are there


_MODULES = {
    "cupy": _Module("cupy", "cupy"),
    "cublas": _Module("nvmath.bindings.cublas", "nvmath", ("cublaslt", "cublas")),
    "cublasLt": _Module("nvmath.bindings.cublasLt", "nvmath", ("cublaslt",)),
    "cusolverDn": _Module("nvmath.bindings.cusolverDn", "nvmath", ("cublaslt", "cublas", "cusolver")),
    "cusolver": _Module("nvmath.bindings.cusolver", "nvmath", ("cublaslt", "cublas", "cusolver")),
    "cufft": _Module("nvmath.bindings.cufft", "nvmath", ("cufft",)),
    "cusparseLt": _Module("nvmath.bindings.cusparseLt", "nvmath", ("cusparselt",), "pip install 'backline[sparse]'"),
    # cuDNN ends the process that loads it before cuBLASLt. Of 9.19 it is known that without NVRTC, which it looks for by its name
    # alone, it has no plans for attention.
    "cudnn": _Module("cudnn", "cudnn", ("cublaslt", "cublas", "cudnn"), "pip install 'backline[cudnn]'", ("nvrtc",)),
}

inserted: dict[str, Any] = {}
"""Modules in the place of the real ones, by the names of the functions here. For tests."""

_imported: dict[str, Any] = {}
_loaded: dict[str, Any] = {}  # kept, so that the files stay loaded
_lock = Lock()


def reason(*names: str) -> str:
    """Returns why modules cannot be used, or an empty string, without importing or loading anything.

    Names are those of functions here, "cublas": each takes its package, its libraries and a device.

    Examples
    --------
    >>> inserted["cufft"] = object()
    >>> reason("cufft")
    ''
    >>> del inserted["cufft"]
    """
    return keep_remedy(*_refusal(names))


def _refusal(names: tuple[str, ...]) -> tuple[str, str]:
    for name in names:
        if name in inserted:
            continue
        module = _MODULES[name]
        absent = python_packages.find(module.package)[2]
        if absent:
            return f"{absent} ({module.how_to_get})", module.how_to_get
        for library in (*module.libraries, "cuda"):
            wanted = presence(library)
            if wanted.reason():
                return f"{wanted.title}: {wanted.reason()}", wanted.remedy()
        refused = driver_refuses(*module.libraries)
        if not refused[0] and name == "cudnn":
            refused = two_cudas()
        if refused[0]:
            return refused
    return "", ""


def _get(name: str) -> Any:
    found = inserted.get(name) or _imported.get(name)
    return found if found is not None else _import(name)


def _import(name: str) -> Any:
    module = _MODULES[name]
    try:
        with _lock:
            for library in (*module.helpful, *module.libraries):
                path = presence(library).path
                if path is not None and library not in _loaded:
                    _loaded[library] = ctypes.CDLL(path, mode=getattr(os, "RTLD_NOW", 2) | ctypes.RTLD_GLOBAL)
        made = import_module(module.path)
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            f"{module.path} cannot be imported.", cause=f"{type(error).__name__}: {error}", remedy=module.how_to_get
        ) from error
    return _imported.setdefault(name, made)


# What is imported by each raises `BackendUnavailable` where it cannot be.
cupy = partial(_get, "cupy")  # arrays, memory, streams, events
cublas, cublasLt = partial(_get, "cublas"), partial(_get, "cublasLt")
cusolverDn = partial(_get, "cusolverDn")  # cuSOLVER for dense matrices
cusolver = partial(_get, "cusolver")  # what cuSOLVER's modules share, their exception included
cufft, cusparseLt, cudnn = partial(_get, "cufft"), partial(_get, "cusparseLt"), partial(_get, "cudnn")


def cudnn_file() -> Any:
    """Returns cuDNN's library as ctypes has loaded it for the frontend: for functions that the frontend does not have."""
    found = inserted.get("cudnn_file")
    if found is None:
        cudnn()
        found = _loaded.get("cudnn")
    if found is None:
        text = "cuDNN's C interface cannot be called."
        cause = "its library file was not found; the frontend brought its own"
        raise BackendUnavailable(text, cause=cause, remedy=_MODULES["cudnn"].how_to_get)
    return found
