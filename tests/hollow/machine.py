"""The machine of the rehearsal with the true CuPy in it; the vendor's libraries, but for cuBLAS, are the fakes that compute."""

from __future__ import annotations

import ctypes
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from backline.libraries.cuda.attention.kernel_launcher import SCALARS
from backline.libraries.cuda.attention.launch_sequence import parameters
from fakes import triton_kernels
from fakes.gpu_machine import GpuMachine
from hollow.device import HERE, compile_c

__all__ = ["Hollow", "true_cublas"]

COMPUTED = ("cublasCreate_v2", "cublasGetProperty", "cublasGemmEx", "cublasGemmStridedBatchedEx", "cublasGemmGroupedBatchedEx")
_kept: list[Any] = []


class _Seen(NamedTuple):
    """The parts of CuPy that a played kernel looks at."""

    written: list[Any]
    cuda: Any


class Hollow(GpuMachine):
    """Fakes that share one log, and CuPy."""

    def __init__(self, folder: Path, device: Any) -> None:
        super().__init__(folder)
        self.device, self.codes = device, []
        cupy._folder = folder
        self.cupy = cupy
        text, integer, unsigned = ctypes.c_char_p, ctypes.c_int, ctypes.c_uint
        plays = ctypes.CFUNCTYPE(integer, integer, text, unsigned, unsigned, unsigned, integer, ctypes.POINTER(ctypes.c_void_p))
        self.kept = ctypes.CFUNCTYPE(integer, text)(self._read), plays(self._play)
        device.hollow_play(*self.kept)

    @contextmanager
    def without_libraries(self) -> Iterator[None]:
        true = cupy.RawModule
        with super().without_libraries():
            cupy.RawModule = true  # the driver plays what it loads from files
            yield

    def _read(self, path: bytes) -> int:
        try:
            self.codes.append(triton_kernels._described(Path(path.decode()).read_bytes()))
        except (OSError, RuntimeError):
            return 0
        return len(self.codes)

    def _play(self, file: int, name: bytes, grid: int, block: int, shared: int, allowed: int, given: Any) -> int:
        """A launch of a kernel that Triton would have compiled, by what it was compiled for."""
        try:
            played = triton_kernels._Function(_Seen(self.log, cupy.cuda), f"{name.decode()}.cubin", name.decode())
            played.told, played.allowed = self.codes[file - 1], allowed
            kinds = [kind for _, kind, _ in parameters(self.codes[file - 1][0])]
            types = [np.dtype(np.uint64 if kind.startswith("*") else SCALARS[kind]) for kind in kinds] + [np.dtype(np.uint64)] * 2
            values = [np.frombuffer(ctypes.string_at(given[i], t.itemsize), t)[0] for i, t in enumerate(types)]
            played((grid,), (block,), tuple(values), shared_mem=shared)
        except Exception:  # the launch fails, as on a device
            traceback.print_exc(file=sys.stderr)
            return 719
        return 0


def true_cublas(folder: Path) -> Any:
    """nvmath's own binding of cuBLAS over ``blas.c``; CuPy finds that one too."""
    found: set[bytes] = set()
    for module in ("nvmath.bindings._internal.cublas", "cupy_backends.cuda.libs.cublas"):
        package, _, name = module.rpartition(".")
        (path,) = Path(import_module(package).__path__[0]).glob(f"{name}.*.so")
        found |= set(re.findall(rb"(?<![A-Za-z_])cublas[A-Z][A-Za-z0-9_]+", path.read_bytes()))
    names = " ".join(f"NOTHING({name})" for name in sorted(each.decode() for each in found) if name not in COMPUTED)
    version = folder / "version.map"
    version.write_text("libcublas.so.13 { global: *; };")
    options = (f"-DNAMES={names}", f"-Wl,--version-script={version}", "-lm")
    made = compile_c(HERE / "blas.c", folder / "libcublas.so.13", *options)
    (folder / "nothing.c").write_text("int cublasLtCreate(void **handle) { *handle = (void *)0x1000; return 0; }")
    for path in (made, compile_c(folder / "nothing.c", folder / "libcublasLt.so.13")):
        _kept.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
    return import_module("nvmath.bindings.cublas")
