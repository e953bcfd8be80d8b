"""A loaded native library: addresses of its symbols, calls for setting up, the thread runtime under it.

Calls made here go through ctypes: they are for set-up (versions, workspace queries, probes), never for the work itself.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _core

__all__ = ["NativeLibrary"]

_rwlocks: dict[int, _core.ReadWriteLock] = {}


class NativeLibrary:
    """One shared object, opened, with the naming rules of its BLAS and LAPACK.

    Parameters
    ----------
    path
        Absolute path of the file.
    mode
        dlopen flags beside RTLD_NOW.
    prefix, suffix
        What its BLAS and LAPACK names carry: ``scipy_`` and ``64_`` in the OpenBLAS under NumPy's wheels (``dgetrf_64_``),
        ``_64`` in MKL (``dgetrf_64``).
    int_size
        Bytes of its integers by reference: 4 (LP64) or 8 (ILP64).
    """

    def __init__(self, path: str, mode: int = 0, *, prefix: str = "", suffix: str = "", int_size: int = 4) -> None:
        import os

        self.path = path
        self.prefix, self.suffix, self.int_size = prefix, suffix, int_size
        self.handle = ctypes.CDLL(path, mode=mode | os.RTLD_NOW)
        self._addresses: dict[str, int] = {}
        self._functions: dict[tuple[int, Any], Any] = {}  # by address and type of the result
        # Acquired for writing while one thread needs the library in a state of its own. It belongs to what is loaded: opening a
        # file again gives the same handle.
        self.rwlock = _rwlocks.setdefault(self.handle._handle, _core.ReadWriteLock())

    def address(self, name: str) -> int:
        """Address of an exported symbol, 0 if there is none."""
        found: int | None = self._addresses.get(name)
        if found is None:
            try:
                found = ctypes.cast(getattr(self.handle, name), ctypes.c_void_p).value or 0
            except AttributeError:
                found = 0
            self._addresses[name] = found
        return found

    def cblas(self, name: str) -> int:
        """Address of a CBLAS function, such as ``sgemm``."""
        return self.address(f"{self.prefix}cblas_{name}{self.suffix}")

    def lapack(self, name: str) -> int:
        """Address of a Fortran LAPACK function, such as ``sgetrf``."""
        return self.address(f"{self.prefix}{name}{self.suffix if self.suffix.startswith('_') else '_' + self.suffix}")

    def call(self, address: int, *args: Any, restype: Any = None) -> Any:
        """Call a C function while setting up; arguments are ctypes values."""
        function = self._functions.get((address, restype))
        if function is None:
            function = self._functions[address, restype] = ctypes.CFUNCTYPE(restype)(address)
        self.rwlock.acquire_read()
        try:
            return function(*args)
        finally:
            self.rwlock.release_read()

    def integer(self, value: int) -> Any:
        """An integer of this library's width, to be passed by reference."""
        return ctypes.c_int64(value) if self.int_size == 8 else ctypes.c_int32(value)

    @property
    def max_integer(self) -> int:
        return (1 << (8 * self.int_size - 1)) - 1
