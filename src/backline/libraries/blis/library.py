"""BLIS: matrix products only; it has no LAPACK."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from ...native import thread_team
from ...native.shared_library import NativeLibrary
from ..blas.blas_library import BlasLibrary
from ..blas.cblas import BlasTraits

__all__ = ["BLIS"]


class BLIS(BlasLibrary):
    """libblis of the system, such as Debian's libblis4-openmp."""

    has_lapack = False

    def trial(self) -> dict[str, Any]:
        return {"mode": getattr(os, "RTLD_DEEPBIND", 0), "setup": [], "set threads": "bli_thread_set_num_threads"}

    def open(self, path: str) -> BlasTraits:
        thread_team.bind()  # its libgomp is then the one we know
        # Its cblas_sgemm calls sgemm_ by name: without RTLD_DEEPBIND that may be another library's by now.
        native = NativeLibrary(path, mode=getattr(os, "RTLD_DEEPBIND", 0))
        thread_guard = thread_team.thread_guard(native.address("bli_thread_set_num_threads"), thread_team.PROCESS64)
        text = native.call(native.address("bli_info_get_version_str"), restype=ctypes.c_char_p)
        self.facts = {"config": text.decode(errors="replace") if text else ""}
        openmp = "openmp" in path or bool(native.address("GOMP_parallel"))
        pool = thread_team.name() if openmp else f"blis {os.path.basename(path)}"
        return BlasTraits(self.name, native, thread_guard, pool, always_guarded=True)

    def version(self) -> str | None:
        return (self.facts.get("config") or None) if self.available() else None
