"""Thread pools of the library pthreadpool, which XNNPACK and NNPACK run on: one for each thread count, made when first needed.

One call at a time uses a pool; others wait inside the library. A forked child has none of its parent's threads: it runs
everything on one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from typing import Any

from ..native import thread_team
from ..native.shared_library import NativeLibrary
from .probing.probe_cache import usable_threads

__all__ = ["Pools"]


class Pools:
    """The pools of one library, which exports pthreadpool's functions, or needs one that does.

    `name` is for reports: "pthreadpool", and the file it is in where that is not pthreadpool's own. Empty where there is none.
    """

    def __init__(self, native: NativeLibrary) -> None:
        self._create = native.address("pthreadpool_create")
        self._count = native.address("pthreadpool_get_threads_count")
        self._made: dict[int, int] = {}
        self._lock = threading.Lock()
        self.name = ""
        if self._create and self._count:
            file = os.path.basename(_file_of(self._create))
            self.name = "pthreadpool" if not file or file.startswith("libpthreadpool") else f"pthreadpool in {file}"
        # What is forked while another thread holds a pool would wait for it for ever.
        thread_team.watch_forks()

    def counts(self) -> Iterable[int]:
        """Thread counts that a library is checked on: one, and all where there is a pool."""
        return dict.fromkeys((1, usable_threads() if self.name else 1))

    def get(self, threads: int) -> int:
        """Address of the pool of so many threads, the caller among them; 0, which is the caller alone, for one.

        Raises `RuntimeError` where it cannot be made.
        """
        if threads <= 1 or not self.name or thread_team.forked():
            return 0
        pool = self._made.get(threads, 0)
        if not pool:
            with self._lock:
                pool = self._made.get(threads, 0) or self._make(threads)
                self._made[threads] = pool
        return pool

    def _make(self, threads: int) -> int:
        made: Any = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(self._create)(threads)
        count = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(self._count)(made) if made else 0
        if count != threads:
            raise RuntimeError(f"pthreadpool has made no pool of {threads} threads")
        return int(made)


class _Where(ctypes.Structure):
    _fields_ = (("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p))


def _file_of(address: int) -> str:
    """The file that a loaded function is in; empty where the system does not tell."""
    where, ask = _Where(), getattr(ctypes.CDLL(None), "dladdr", None)
    if ask is None or not ask(ctypes.c_void_p(address), ctypes.byref(where)):
        return ""
    return os.fsdecode(where.file or b"")
