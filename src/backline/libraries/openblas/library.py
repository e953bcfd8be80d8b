"""OpenBLAS, loaded directly: a copy of our own, on our thread team.

The wheel's copy is taken before a copy that NumPy or SciPy has mapped: those have thread pools of their own, and a setting
made for one call would be theirs too. If there is no other, NumPy's copy serves (64-bit integers, NumPy's pool).
"""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from ...native import loading, thread_team
from ...native.shared_library import NativeLibrary
from .. import capability
from ..blas.blas_library import ATTENTION, BlasLibrary
from ..blas.cblas import BlasTraits
from ..probing.probe_cache import Proof

__all__ = ["OpenBLAS", "least_item"]

NAMES = (("scipy_", ""), ("scipy_", "64_"), ("", ""), ("", "64_"))
FASTER_TRIANGLE = {"f": "U", "d": "L"}  # eigenvalues of 150x150 and larger: 2 to 9 % faster on AVX2 and AVX-512
LOCK_FLOPS = 5e3  # from so many operations on, threads that compute products gain more than they wait for each other
SPIN = 21  # threads of its own pool spin for 2 to the power of so many cycles after a call, a millisecond at the most, then sleep


class OpenBLAS(BlasLibrary):
    """libopenblas from the wheel scipy-openblas32 or -64, the system, or NumPy."""

    handlers: ClassVar = {**BlasLibrary.handlers, **ATTENTION}

    def instruction_sets(self) -> tuple[str, ...] | None:
        return capability.openblas_kernels(self.facts.get("core", "")) if self.available() else None

    def _proof(self, path: str) -> Proof:
        with capability.cap_openblas():  # the child reads the variable as well
            return super()._proof(path)

    def trial(self) -> dict[str, Any]:
        return {"mode": getattr(os, "RTLD_DEEPBIND", 0), "setup": [], "set threads": "{prefix}openblas_set_num_threads{suffix}"}

    def open(self, path: str) -> BlasTraits:
        with capability.cap_openblas(), _waiting_briefly():
            native = NativeLibrary(path, mode=getattr(os, "RTLD_DEEPBIND", 0))
        for prefix, suffix in NAMES:
            native.prefix, native.suffix = prefix, suffix
            if native.cblas("sgemm"):
                break
        self.control = f"{native.prefix}openblas_"
        config = self._text(native, "get_config")
        native.int_size = 8 if native.suffix == "64_" or "USE64BITINT" in config else 4
        self.facts = {"config": config, "core": self._text(native, "get_corename")}
        capped = capability.loaded_openblas(self.facts["core"])
        if capped:
            self.facts["instructions"] = capped
        if os.environ.get("OPENBLAS_CORETYPE"):
            self.facts["core set by"] = f"OPENBLAS_CORETYPE={os.environ['OPENBLAS_CORETYPE']}"
        shared_with_numpy = "numpy.libs" in path or "scipy.libs" in path
        pool = f"openblas {os.path.basename(path)}"
        callback = native.address(f"{self.control}set_threads_callback_function{native.suffix}")
        parallel = native.call(native.address(f"{self.control}get_parallel{native.suffix}"), restype=ctypes.c_int)
        if parallel == 2:
            pool = thread_team.name() or pool
        elif parallel == 1 and callback and not shared_with_numpy and thread_team.bind():
            from ... import _core

            native.call(callback, ctypes.c_void_p(_core.jobs_callback_address()))
            pool = thread_team.name()
            thread_team.driven.add(os.path.realpath(path))
        if shared_with_numpy:  # its thread count is NumPy's: left as it is
            return BlasTraits(self.name, native, None, "numpy" if parallel else "")
        setter = native.address(f"{self.control}set_num_threads{native.suffix}")
        thread_guard = thread_team.thread_guard(setter, thread_team.PROCESS) if parallel else None
        traits = BlasTraits(self.name, native, thread_guard, pool if parallel else "")
        traits.faster_triangle = FASTER_TRIANGLE
        traits.least_item, traits.divides_batches = least_item(self.facts["core"]), False
        if parallel == 1:
            traits.lu_pool = "openblas"  # its LU queues work on its own threads whatever the callback says
        return traits

    def _text(self, native: NativeLibrary, function: str) -> str:
        address = native.address(f"{self.control}{function}{native.suffix}")
        value = native.call(address, restype=ctypes.c_char_p) if address else None
        return value.decode(errors="replace").strip() if value else ""

    def version(self) -> str | None:
        config = self.facts.get("config", "") if self.available() else ""
        words = config.split()
        return words[1] if len(words) > 1 else None


def least_item(core: str) -> dict[str, float]:
    """Returns how many operations products must have that several threads compute at the same time, by letter of the type.

    Each takes a buffer under a lock, except small real ones where the kernels are for AVX-512.

    Examples
    --------
    >>> least_item("Haswell"), least_item("SkylakeX")
    ({'s': 5000.0, 'd': 5000.0, 'c': 5000.0, 'z': 5000.0}, {'c': 5000.0, 'z': 5000.0})
    """
    kernels = capability.openblas_kernels(core)
    return dict.fromkeys("cz" if kernels is None or "avx512" in kernels else "sdcz", LOCK_FLOPS)


def _waiting_briefly() -> AbstractContextManager[None]:
    """Has a copy that is loaded inside of the block let its own threads spin for `SPIN`, unless the user has said how long.

    It is 2^26 or 2^28 cycles otherwise, up to a tenth of a second in which no other pool gets their processors; the number is
    read as the copy is loaded, from a variable, and nothing changes it later.
    """
    name = "OPENBLAS_THREAD_TIMEOUT"
    return nullcontext() if os.environ.get(name) else loading.variable(name, str(SPIN))
