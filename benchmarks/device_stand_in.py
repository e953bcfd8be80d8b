"""CuPy's own arrays and the true bindings without a device, for timing what surrounds the device's work. Nothing is computed."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from itertools import count, repeat
from pathlib import Path
from typing import Any

import numpy as np

H100 = {
    "name": b"NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "multiProcessorCount": 132, "l2CacheSize": 52428800,
    "totalGlobalMem": 85028765696,
}  # fmt: skip
LIBRARIES = {"cublas": "12", "cublasLt": "12", "cufft": "11"}  # by binding; the number is only part of the stand-in's name
ROOM = 1 << 24


def stand_in() -> tuple[Callable[..., Any], Any]:
    """Put CuPy over memory of the host, and the bindings over empty libraries; gives a maker of arrays, and that CuPy."""
    folder = Path(tempfile.mkdtemp(prefix="backline-stand-in-"))
    kept = [_library(folder, "libcuda.so.1", [], "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }")]
    internal = Path(import_module("nvmath.bindings._internal").__path__[0])
    for name, number in LIBRARIES.items():
        (binding,) = internal.glob(f"{name}.*.so")
        names = re.findall(rb"(?<![A-Za-z_])" + name.encode() + rb"[A-Z][A-Za-z0-9_]+", binding.read_bytes())
        kept.append(_library(folder, f"lib{name}.so.{number}", sorted({found.decode() for found in names}), ""))
    cupy = import_module("cupy")
    memory = np.zeros(ROOM, np.uint8)
    whole = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ctypes.data, ROOM, (memory, kept), 0), 0)
    last = whole + ROOM // 2  # what calls allocate; nothing is written
    cupy.cuda.set_allocator(lambda nbytes: last)
    places = count(0, 1 << 19)

    def array(*shape: int, dtype: Any = np.float32) -> Any:
        return cupy.ndarray(shape, dtype, whole + next(places) % (ROOM // 2))

    from backline.libraries.cuda.common import bindings

    bindings.inserted["cupy"] = used = _Over(cupy, cuda=_cuda(cupy, last))
    for name in LIBRARIES:
        bindings.inserted[name] = import_module(f"nvmath.bindings.{name}")
    return array, used


def _library(folder: Path, name: str, functions: list[str], more: str) -> Any:
    """A loaded library of that name whose functions do nothing and report success."""
    source = folder / "functions.c"
    source.write_text("\n".join([*(f"int {each}(void) {{ return 0; }}" for each in functions), more]))
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", f"-Wl,-soname,{name}", str(source), "-o", str(folder / name)], check=True)
    return ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)


class _Over:
    """A module with some names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        self.__dict__[name] = found
        return found


class _Device:
    id = 0

    def __init__(self, index: int = 0) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Event:
    done = True

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass


def _cuda(cupy: Any, memory: Any) -> Any:
    """``cupy.cuda`` with stand-ins, as cheap as can be, for what asks the driver."""
    runtime = _Over(
        cupy.cuda.runtime, getDevice=repeat(0).__next__, getDeviceProperties=lambda index: H100, deviceSynchronize=lambda: None
    )
    stream = repeat(cupy.cuda.Stream.null).__next__
    return _Over(cupy.cuda, runtime=runtime, get_current_stream=stream, Device=_Device, Event=_Event, alloc=lambda nbytes: memory)


if __name__ == "__main__":
    sys.exit("this is part of device_calls.py")
