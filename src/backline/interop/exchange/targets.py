"""The libraries that NumPy's and SciPy's calls can be given to: loaded and checked as Backline loads them for itself.

MKL and BLIS are the copies that Backline computes with. OpenBLAS is a copy of its own, because Backline's runs on Backline's
thread team and must be called under its guard, which calls from NumPy are not: the same file, mapped a second time from memory,
waits on threads of its own and is safe to call from any thread.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from ... import libraries, switches
from ...errors import BackendUnavailable, BadValue
from ...libraries import capability, registry
from ...native import thread_team
from ...native.shared_library import NativeLibrary
from .routines import Naming

__all__ = ["NAMES", "Target", "found", "load", "threads"]

NAMES = ("mkl", "openblas", "blis")
"""The libraries that can be exchanged for what NumPy and SciPy have; "numpy" stands for what they have."""


@dataclass
class Target:
    """A loaded library, with the names of its routines.

    Attributes
    ----------
    name, title, version : str
        The library's.
    native : NativeLibrary
        The loaded file.
    namings : dict
        How it spells its routines, by the bytes of their integers.
    set_threads : callable
        Sets its number of threads for the process.
    get_threads : callable or None
        Returns it, where the library tells.
    openmp : bool
        Whether its threads are those of an OpenMP runtime that Backline's handlers of forks do not know of.
    """

    name: str
    title: str
    version: str
    native: NativeLibrary
    namings: dict[int, Naming]
    set_threads: Callable[[int], object]
    get_threads: Callable[[], int] | None = None
    openmp: bool = False

    def address(self, interface: str, routine: str, width: int) -> int:
        """Address of a routine with integers of so many bytes, 0 if the library has none."""
        naming = self.namings.get(width)
        if naming is None:
            return 0
        return next(filter(None, (self.native.address(name) for name in naming.spelt(interface, routine))), 0)


def load(name: str) -> Target:
    """Loads a library, once, and returns it.

    Raises
    ------
    BadValue
        There is no library of this name, or none that could be exchanged.
    BackendUnavailable
        It is not there, does not work, or is switched off.
    """
    if name not in NAMES:
        known = f"backline has {name!r}, but it is no BLAS" if name in libraries.names() else "there is no library of this name"
        raise BadValue(
            f"{name!r} cannot take the place of NumPy's BLAS", cause=known, remedy=f"one of: {', '.join((*NAMES, 'numpy'))}"
        )
    return _LOADERS[name](found(name))


def found(name: str) -> Any:
    """Returns the library that is to take the place of what NumPy has.

    Raises
    ------
    BackendUnavailable
        It is not there, does not work, or is switched off.
    """
    row = registry.find(name)
    assert row is not None
    refused = f"{row.title} cannot take the place of NumPy's {'BLAS' if name in NAMES else 'transforms'}"
    if row.switch and not switches.get(row.switch):
        raise BackendUnavailable(
            refused, cause=f"it is disabled by {row.switch}, {switches.origin(row.switch)}",
            remedy=f"backline.backends.{row.switch} = True",
        )  # fmt: skip
    library = cast(Any, libraries.get(name))
    if reason := library.reason():
        remedy = f"to get it: {row.install}" if row.install else ""
        raise BackendUnavailable(refused, cause=f"it is not available: {reason}", remedy=remedy)
    return library


def _integer_function(native: NativeLibrary, name: str, kind: Any = ctypes.c_int, result: Any = None) -> Any:
    address = native.address(name)
    arguments = () if result is not None else (kind,)
    return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None


@lru_cache(maxsize=1)
def _mkl(library: Any) -> Target:
    native: NativeLibrary = library.blas.native
    # Calls from NumPy run on the count of the process; Backline's own set that of their thread.
    return Target(
        "mkl", "MKL", library.version() or "", native, {4: Naming(), 8: Naming("", "_64")},
        _integer_function(native, "MKL_Set_Num_Threads"), _integer_function(native, "MKL_Get_Max_Threads", result=ctypes.c_int),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _blis(library: Any) -> Target:
    native, guard = library.blas.native, library.blas.thread_guard

    def set_threads(count: int) -> None:
        guard.leave(guard.enter(count))  # through the guard: Backline's own calls then know it

    return Target(
        "blis", "BLIS", library.version() or "", native, {native.int_size: Naming(native.prefix, native.suffix)}, set_threads
    )


@lru_cache(maxsize=1)
def _openblas(library: Any) -> Target:
    path = library.blas.native.path
    if "numpy.libs" in path or "scipy.libs" in path:
        raise BackendUnavailable(
            "OpenBLAS cannot take the place of NumPy's BLAS", cause=f"the only one that was found is NumPy's: {path}",
            remedy="pip install scipy-openblas32",
        )  # fmt: skip
    prefix, suffix, width = library.blas.native.prefix, library.blas.native.suffix, library.blas.native.int_size
    native = _second_copy(path, prefix, suffix, width)
    control = f"{prefix}openblas_"
    set_threads = _integer_function(native, f"{control}set_num_threads{suffix}")
    get_threads = _integer_function(native, f"{control}get_num_threads{suffix}", result=ctypes.c_int)
    parallel = _integer_function(native, f"{control}get_parallel{suffix}", result=ctypes.c_int)
    return Target(
        "openblas", "OpenBLAS", library.version() or "", native, {width: Naming(prefix, suffix)}, set_threads, get_threads,
        openmp=parallel is not None and parallel() == 2,
    )  # fmt: skip


_held: list[int] = []


def _second_copy(path: str, prefix: str, suffix: str, width: int) -> NativeLibrary:
    """Maps a file once more, with state of its own: the loader knows files by device and inode, so it is given another one."""
    try:
        file = os.memfd_create("backline-exchange-openblas")
        with open(path, "rb") as source, os.fdopen(os.dup(file), "wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 24)
        with capability.cap_openblas():
            native = NativeLibrary(
                f"/proc/self/fd/{file}", mode=getattr(os, "RTLD_DEEPBIND", 0), prefix=prefix, suffix=suffix, int_size=width
            )
    except OSError as error:
        raise BackendUnavailable(
            "OpenBLAS cannot take the place of NumPy's BLAS", cause=f"a second copy cannot be mapped: {error}"
        ) from None
    _held.append(file)  # open for good: the loader would take another file of the same number for this one
    native.path = path
    return native


_LOADERS: dict[str, Callable[[Any], Target]] = {"mkl": _mkl, "openblas": _openblas, "blis": _blis}


def threads() -> int:
    """Threads that exchanged routines may use: as many as Backline's calls outside of scopes, for they belong to the process."""
    return 1 if thread_team.forked() else cast(int, Context().run(switches.get, "num_threads"))
