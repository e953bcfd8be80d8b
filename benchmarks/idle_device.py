"""A device that does nothing, at once: what is left of a call on CUDA arrays is the host's part of it.

CuPy is the true one over the hollow driver of the tests, whose launches return at once here. cuBLAS, cuFFT and cuSOLVER are the
true bindings over functions that do nothing. cuDNN is the true one under its true frontend: heuristics, plans and variant packs
are those for an H100 that is described to it; only the call that would run a plan returns at once. cuBLASLt is taken for absent:
the true one, which cuDNN needs, is in the process, and works for nobody without a device. It takes a C compiler.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
# By binding; numbers are parts of the names of files that the bindings look for.
BINDINGS = {"cublas": "13", "cufft": "12", "cusolverDn": "12", "cusolver": "12"}
FILES = {"cublas": "cublas", "cufft": "cufft", "cusolverDn": "cusolver", "cusolver": "cusolver"}
VERSIONS = {"cublas": "13.1.0", "cusolver": "12.0.1", "cufft": "12.0.0"}

# Beside the hollow driver: files of kernels load and their launches do nothing; what cuDNN looks for finds no device.
DRIVER = """
#include <stddef.h>
int idle_read(const char *path) { return 1; }
int idle_play(int file, const char *name, unsigned grid, unsigned block, unsigned shared, int allowed, void **given) { return 0; }
"""
# Code that cuDNN compiles for attention loads, so that its plans are built; nothing launches it.
LOADING = """
int cuLibraryLoadData(void **made, ...) { *made = (void *)1; return 0; }
int cuLibraryGetKernel(void **made, ...) { *made = (void *)1; return 0; }
int cuKernelGetFunction(void **made, ...) { *made = (void *)1; return 0; }
int cuKernelGetAttribute(int *value, ...) { *value = 0; return 0; }
int cuKernelSetAttribute(int name, ...) { return 0; }
int cuLibraryUnload(void *made) { return 0; }
"""
# Functions that give more than a status: no plan of a transform takes memory.
GIVING = {
    "cufft": """
typedef long long I;
int cufftMakePlanMany64(int p, int r, I *n, I *i, I is, I id, I *o, I os, I od, int t, I b, unsigned long *bytes) {
    *bytes = 0;
    return 0;
}
""",
}


def begin() -> tuple[Callable[..., Any], Any, Any]:
    """Put the device in place; gives a maker of arrays, CuPy, and the hollow driver. Nothing may have imported CuPy before."""
    sys.path.insert(0, str(TESTS))
    from hollow import device

    folder = Path(tempfile.mkdtemp(prefix="backline-idle-"))
    kept: list[Any] = []  # before CuPy, which would load the true ones
    for binding, number in BINDINGS.items():
        (path,) = Path(import_module("nvmath.bindings._internal").__path__[0]).glob(f"{binding}.*.so")
        stem = FILES[binding]
        names = {
            each.decode() for each in re.findall(rb"(?<![A-Za-z_])" + stem.encode() + rb"[A-Z][A-Za-z0-9_]+", path.read_bytes())
        }
        text = GIVING.get(binding, "")
        text += "\n".join(f"int {each}(void) {{ return 0; }}" for each in sorted(names) if f" {each}(" not in text)
        kept.append(_library(folder / f"lib{stem}.so.{number}", text))
    more = folder / "more.c"
    more.write_text(DRIVER + _missing())
    driver = device.begin(folder, str(more), run_kernels=False)
    driver.hollow_play(ctypes.cast(driver.idle_read, ctypes.c_void_p), ctypes.cast(driver.idle_play, ctypes.c_void_p))
    driver.idle_kept = kept
    cupy = import_module("cupy")
    _present(cupy, _cudnn(folder, kept))
    rng = np.random.default_rng(1)

    def array(*shape: int, dtype: Any = np.float32) -> Any:
        return cupy.asarray(rng.standard_normal(shape).astype(dtype))

    return array, cupy, driver


def _missing() -> str:
    """Functions of the driver that cuDNN asks for and the hollow one lacks: each says that there is no device."""
    from fakes.described_cards import FUNCTIONS, NO_DEVICE

    there = set(re.findall(r"^int (cu\w+)\(", (TESTS / "hollow" / "cuda.c").read_text() + LOADING, re.M))
    return LOADING + "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in FUNCTIONS if name not in there)


def _library(path: Path, text: str, *options: str) -> Any:
    source = path.with_suffix(".c")
    source.write_text(text)
    command = ["cc", "-shared", "-fPIC", "-O2", "-w", f"-Wl,-soname,{path.name}", str(source), "-o", str(path), *options]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _cudnn(folder: Path, kept: list[Any]) -> Any:
    """The frontend over cuDNN without the functions that take a device; graphs are for an H100."""
    from fakes.described_cards import DESCRIPTION
    from fakes.idle_cudnn import idle

    nvidia = Path(next(iter(import_module("nvidia").__path__)))
    # cuDNN ends a process that has it without this one.
    kept += [ctypes.CDLL(str(path)) for path in nvidia.glob("*/lib/libcublasLt.so.*")]
    cudnn = import_module("cudnn")
    kept.append(idle(folder, cudnn))
    described = cudnn.create_device_properties(json.dumps(DESCRIPTION))

    class Module:
        """The frontend, whose graphs take the description of a device in the place of a handle."""

        def __getattr__(self, name: str) -> Any:
            found = self.__dict__[name] = getattr(cudnn, name)
            return found

        @staticmethod
        def pygraph(**given: Any) -> Any:
            given.pop("handle", None)
            return cudnn.pygraph(device_property=described, **given)

        class _pybind_module:
            class backend_graph(cudnn._pybind_module.backend_graph):  # type: ignore[name-defined, misc]  # an untyped class
                def __init__(self, **given: Any) -> None:
                    given.pop("handle", None)
                    super().__init__(device_property=described, **given)

        def create_handle(self) -> Any:
            return cudnn.Handle(0x1000, 0, 0)

    made = Module()
    _plan(made)
    return made


def _plan(cudnn: Any) -> None:
    """Have cuDNN load what it loads when it first plans."""
    kinds = cudnn.data_type
    graph = cudnn.pygraph(
        io_data_type=kinds.FLOAT, intermediate_data_type=kinds.FLOAT, compute_data_type=kinds.FLOAT, sm_version=90
    )
    x, w = (graph.tensor(name=name, dim=[8, 8, 8, 8], stride=[512, 64, 8, 1], data_type=kinds.FLOAT) for name in "xw")
    graph.conv_fprop(image=x, weight=w, padding=[4, 4], stride=[1, 1], dilation=[1, 1]).set_output(True)
    graph.build([cudnn.heur_mode.A])


def _present(cupy: Any, cudnn: Any) -> None:
    """Have Backline find all of it."""
    from backline.libraries import devices, presence
    from backline.libraries.cuda.common import bindings

    versions = {**VERSIONS, "cudnn": int(cudnn.backend_version())}
    for name, version in versions.items():
        presence.presence(name)._found = presence.Found("", (), f"/idle/{name}.so", {"version": version})
    presence.presence("cublaslt")._found = presence.Found("the true one works for nobody without a device", ())
    presence.presence("cuda")._found = presence.Found("", (), "/idle/libcuda.so.1", {"version": 13000, "devices": 2})
    devices._capabilities = lambda path: ((9, 0), (9, 0))  # type: ignore[assignment]  # a stand-in for a cached function
    bindings.inserted |= {"cupy": cupy, "cudnn": cudnn}
    bindings.inserted |= {name: import_module(f"nvmath.bindings.{name}") for name in BINDINGS}
