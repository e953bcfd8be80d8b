"""Kernels in CUDA C++, compiled by g++ for the host, where ``hollow/host.hpp`` has what CUDA's C++ has beyond it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["HEADER", "HostKernel", "host_library", "kept"]

HEADER = Path(__file__).parents[1] / "hollow" / "host.hpp"
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(\w+)\s+(\w+)\[\]")
_loaded: dict[Path, Any] = {}
_one_kernel = threading.Lock()  # a library has one set of threads


def kept() -> Path:
    """The folder of libraries that are kept between processes, for there are many kernels and each takes a while."""
    folder = Path(tempfile.gettempdir()) / f"backline-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def host_library(source: str, kernels: list[str], folder: Path, options: tuple[str, ...] = ()) -> Path:
    """Compile a source: the library has ``hollow_NAME(grid, block, pointers to the arguments)`` for each kernel.

    `options` are those that CuPy gives NVRTC; folders of headers are taken from them.
    """
    barriers = "true" if "__syncthreads" in source or "_sync(" in source else "false"
    ends = [
        f'extern "C" void hollow_{name}(dim3 grid, dim3 threads, void **given) {{ hollow::launch<{name}, {barriers}>(grid, threads, given); }}'
        for name in kernels
    ]
    text = "\n".join([_DYNAMIC.sub(r"static \1 \2[1 << 16]", source), *ends, ""])
    target = folder / f"{hashlib.sha256((HEADER.read_text() + Path(__file__).read_text() + text).encode()).hexdigest()[:32]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        written = target.with_suffix(f".{os.getpid()}.cpp")
        written.write_text(text)
        includes = [option for option in options if option.startswith("-I")]
        # CuPy's headers take CUDA's own type of halves, which works on the host as well, from this compiler on.
        # Shared memory inside a template would else be one for all libraries of the process, whatever its size in each.
        flags = ["-w", "-std=c++17", "-O1", "-shared", "-fPIC", "-fno-gnu-unique", "-D__CUDACC_VER_MAJOR__=13", "-include", str(HEADER), *includes]
        made = written.with_suffix(".so")
        subprocess.run(["g++", *flags, str(written), "-o", str(made)], check=True)
        made.rename(target)
        written.unlink()
    return target


class _Size(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]


def _three(sizes: tuple[int, ...]) -> _Size:
    return _Size(*sizes, *[1] * (3 - len(sizes)))


class HostKernel:
    """A kernel as ``cupy.RawKernel`` makes it: arguments are arrays of the stand-in, NumPy's scalars, and its arrays for structures."""

    def __init__(self, source: str, name: str, log: list[Any]) -> None:
        path = host_library(source, [name], kept())
        if path not in _loaded:
            _loaded[path] = ctypes.CDLL(str(path))
        self.name, self.log, self.launch = name, log, _loaded[path][f"hollow_{name}"]

    def compile(self) -> None:
        """It is."""

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0) -> None:
        assert shared_mem <= 48 * 1024 and np.prod(block) <= 1024 and min(*grid, *block) > 0
        assert all(n < 1 << 16 for n in grid[1:])
        self.log.append((self.name, {"grid": grid, "block": block}))
        values = [a.tobytes() if isinstance(a, (np.generic, np.ndarray)) else a.data.ptr.to_bytes(8, "little") for a in args]
        held = [ctypes.create_string_buffer(value, max(len(value), 8)) for value in values]
        with _one_kernel:
            self.launch(_three(grid), _three(block), (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held)))
