"""A device that is not there, under the true CuPy: what of CUDA is replaced so that it starts, and how its kernels run on the host.

CuPy's `runtime` module has NVIDIA's runtime inside it and hands its functions to CuPy's other modules as capsules; `begin` puts those
of ``cuda.c`` there before any other module is imported. The driver is ``cuda.c`` as well. NVRTC is the true one: it compiles every
kernel for an H100, and what it refuses is refused here; g++ then compiles the same source for the host, where the driver runs it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path
from typing import Any

from fakes.host_kernels import host_library

__all__ = ["begin", "compile_c"]

HERE = Path(__file__).parent
H100 = {
    "name": b"NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "multiProcessorCount": 132, "l2CacheSize": 52428800,
    "totalGlobalMem": 85028765696, "maxThreadsPerBlock": 1024, "warpSize": 32, "sharedMemPerBlock": 49152,
    "maxGridSize": (2147483647, 65535, 65535), "maxThreadsDim": (1024, 1024, 64),
}  # fmt: skip
_TYPES = {
    "int": ctypes.c_int, "intptr_t": ctypes.c_ssize_t, "size_t": ctypes.c_size_t, "unsigned int": ctypes.c_uint, "float": ctypes.c_float,
    "PyObject *": ctypes.py_object, "struct __pyx_obj_13cupy_backends_4cuda_3api_7runtime_PointerAttributes *": ctypes.py_object,
}  # fmt: skip
_KERNEL = re.compile(r'extern "C"\s+__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?void\s+(\w+)\s*\(')


def begin(folder: Path, *sources: str, run_kernels: bool = True) -> Any:
    """Put the device in place; CuPy must not have been imported.

    Parameters
    ----------
    folder
        Where libraries go, and what CuPy compiles.
    sources
        Files of C that are part of the driver.
    run_kernels
        Whether the host runs kernels; if not, they are compiled for an H100 and their launches do nothing.

    Returns
    -------
    ctypes.PyDLL
        ``cuda.c``, with what tests ask and set: `hollow_launches`, `hollow_waits`, `hollow_used`, `hollow_fail`.
    """
    assert not any(name.startswith(("cupy.", "cupy_backends.")) for name in sys.modules), "CuPy is in use already"
    # CUB's reductions are compiled with NVIDIA's runtime inside them, which finds no driver that it takes for one.
    kept = os.environ.get("BACKLINE_TEST_CUPY_CACHE")  # a folder for what was compiled, so that the next run finds it
    made_by = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in ("cuda.c", "host.hpp", "device.py"))).hexdigest()[:16]
    os.environ |= {"CUPY_ACCELERATORS": "", "CUPY_CACHE_DIR": str((Path(kept) if kept else folder) / f"kernels-{made_by}")}
    made = compile_c(HERE / "cuda.c", folder / "libcuda.so.1", *sources, f"-I{sysconfig.get_path('include')}", "-ldl", "-lpthread")
    library = ctypes.PyDLL(str(made), mode=ctypes.RTLD_GLOBAL)
    runtime = import_module("cupy_backends.cuda.api.runtime")
    _replace(runtime, library)
    if run_kernels:
        _run_kernels_here()
    _import_nvmath()
    return library


def compile_c(source: Path, target: Path, *options: str) -> Path:
    """A library of a C file, known to the loader by the name of its file."""
    command = ["cc", "-shared", "-fPIC", "-O2", "-std=gnu11", f"-Wl,-soname,{target.name}", str(source), "-o", str(target), *options]
    subprocess.run(command, check=True)
    return target


def _import_nvmath() -> None:
    """Imports nvmath as where NVIDIA's cuBLAS is not installed.

    Where it is, nvmath would look up its functions at once, for there is a driver, and keep them; `machine.true_cublas` could not
    put others in their place, and these find no device.
    """
    from cuda import pathfinder

    found = pathfinder.load_nvidia_dynamic_lib

    def load(name: str) -> Any:
        if name == "cublas":
            raise pathfinder.DynamicLibNotFoundError(f"{name} is hidden until there is one that computes on the host")
        return found(name)

    pathfinder.load_nvidia_dynamic_lib = load
    try:
        import_module("nvmath.bindings")
    finally:
        pathfinder.load_nvidia_dynamic_lib = found


def _replace(runtime: Any, library: Any) -> None:
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetPointer.argtypes = [ctypes.py_object, ctypes.c_void_p]
    capsules = runtime.__pyx_capi__
    properties = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_int)(lambda index: dict(H100))
    attributes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_ssize_t, ctypes.c_int)(
        lambda p, index: runtime.PointerAttributes(index, p, p, 2 if index >= 0 else 0)
    )
    library.kept = properties, attributes
    check = capsules["check_status"]
    library.hollow_begin(ctypes.c_void_p(api.PyCapsule_GetPointer(check, api.PyCapsule_GetName(check))), properties, attributes)
    for name, capsule in capsules.items():
        function = getattr(library, f"hollow_{name}", None)
        if function is None:
            continue  # who calls it is told that there is no driver
        address = ctypes.cast(function, ctypes.c_void_p)
        result, _, arguments = api.PyCapsule_GetName(capsule).decode().partition("(")
        api.PyCapsule_SetPointer(capsule, address)
        if arguments != "void)":
            setattr(runtime, name, _for_python(address.value, result.strip(), arguments.removesuffix(")")))


def _for_python(address: int | None, result: str, arguments: str) -> Any:
    """The function that Python code gets by the name; what Cython adds to the arguments comes last and is 0."""
    kinds = [each.strip().partition(" __pyx_skip")[0] for each in arguments.split(",")]
    types = [_TYPES.get(kind, ctypes.c_void_p) for kind in kinds]
    function = ctypes.PYFUNCTYPE(_TYPES[result], *types)(address)

    def call(*args: Any) -> Any:
        return function(*args, *(0 for _ in types[len(args) :]))

    return call


def _run_kernels_here() -> None:
    from cupy.cuda import compiler

    class Program(compiler._NVRTCProgram):  # type: ignore[misc, name-defined]  # CuPy's own, without stubs
        def compile(self, options: tuple[str, ...] = (), log_stream: Any = None) -> Any:
            code, names = super().compile(options, log_stream)
            kernels = [*dict.fromkeys(_KERNEL.findall(self.src))]
            if not kernels:
                return code, names
            made = host_library(self.src, kernels, Path(os.environ["CUPY_CACHE_DIR"]), options)
            return f"hollow:{made}\0".encode(), names

    compiler._NVRTCProgram = Program


