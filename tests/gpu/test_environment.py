"""The environment that the check runs in: versions that agree however they are asked for, a device that is what Backline takes it for, no PyTorch."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cudnn import graphs
from backline.libraries.presence import presence
from gpu.arrays import described

# Library -> the binding that tells the same in another way.
TOLD_BY = {"cublas": "cublas", "cublaslt": "cublasLt", "cusolver": "cusolver", "cufft": "cufft", "cusparselt": "cusparseLt"}
DISTRIBUTIONS = (
    "numpy",
    "ml",
    "cupy",
    "nvmath",
    "nvidia",
    "cuda",
    "triton",
    "jax",
    "torch",
    "pytest",
)  # first words of their names
OTHERS = ("torch", "cupy", "nvmath", "cudnn", "triton", "jax")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.gpu(row="ENV-1", needs=(of,))) for name, of in TOLD_BY.items()]
)
def test_a_library_and_its_binding_tell_one_version(row: Any, name: str) -> None:
    row.expect("each library's file and its binding tell the same version")
    library = presence(name)
    binding = getattr(bindings, TOLD_BY[name])()
    told = tuple(int(binding.get_property(part)) for part in range(3))
    row.results.versions[name] = {"version": str(library.version()), "read by": "ctypes", "path": library.path}
    row.observe(f"{library.title} {'.'.join(map(str, told))}", f"{library.path}")
    expected = 1000 * told[0] + 100 * told[1] + told[2] if name == "cusparselt" else ".".join(map(str, told))
    assert not library.reason() and library.version() == expected, library.reason()


@pytest.mark.gpu(row="ENV-1", needs=("cublas", "cublasLt", "cusolverDn", "cufft"))
def test_handles_of_every_binding(row: Any, xp: Any) -> None:
    row.expect("every binding makes a handle on the device")
    blas, solver, fft = bindings.cublas(), bindings.cusolverDn(), bindings.cufft()
    handle = blas.create()
    blas.destroy(handle)
    handle = solver.create()
    solver.destroy(handle)
    lt = bindings.cublasLt()
    lt.destroy(lt.create())
    fft.destroy(fft.create())
    text = f"nvmath {_installed('nvmath-python', 'nvmath')} works with cuda-core {_installed('cuda-core')} and cuda-bindings {_installed('cuda-bindings')}"
    row.observe(text)
    row.finding(3, text)


@pytest.mark.gpu(row="ENV-1", needs=("cudnn",))
def test_cudnn_and_its_frontend(row: Any) -> None:
    row.expect("cuDNN is 9.8 or newer; its frontend makes a handle")
    module, library = bindings.cudnn(), presence("cudnn")
    row.results.versions["cudnn"] = {"version": str(library.version()), "read by": "ctypes", "path": library.path}
    row.results.versions["cudnn frontend"] = {"version": str(getattr(module, "__version__", None)), "read by": "its module"}
    row.observe(f"cuDNN {library.version()}, frontend {getattr(module, '__version__', None)}", str(library.path))
    assert int(module.backend_version()) == library.version() >= 90800
    assert graphs.handle_for(module, 0) is not None


@pytest.mark.gpu(row="ENV-1")
def test_packages(row: Any, request: pytest.FixtureRequest) -> None:
    row.expect("versions of packages are taken down, and how the compiled parts came here")
    for found in importlib.metadata.distributions():
        name = str(found.metadata["Name"]).lower().replace("-", "_")  # metadata spell it either way
        if name.partition("_")[0] in DISTRIBUTIONS:
            row.results.versions[f"package {name}"] = {"version": found.version, "read by": "metadata"}
    notes = request.config.pluginmanager.getplugin("gpu-check").machine.notes
    built = next((note for note in notes if "compiled parts" in note), "")
    row.observe("; ".join(notes))
    row.finding(13, built)
    assert {"package numpy", "package ml_dtypes"} <= {*row.results.versions}
    assert importlib.import_module("backline._core") and importlib.import_module("backline._kernels")


@pytest.mark.gpu(row="ENV-2", needs=("cudnn",))
def test_the_device(row: Any, xp: Any, device: Any, request: pytest.FixtureRequest) -> None:
    row.expect("the device as cuDNN describes it is the one of DeviceInfo; the description is kept as a file")
    description = described(bindings.cudnn().create_device_properties(0).serialize())
    path = request.config.pluginmanager.getplugin("gpu-check").fixture()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(description, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    row.observe(f"{device.name}, {device.multiprocessors} multiprocessors, {device.memory_bytes >> 20} MiB", path.name)
    row.results.machine["description"] = description
    number = int(description["deviceVer"])
    told = (number // 100, number % 100 // 10), description["multiProcessorCount"], description["l2CacheSize"], description["totalGlobalMem"]
    assert told == (device.capability, device.multiprocessors, device.l2_bytes, device.memory_bytes)
    assert description["deviceName"] == device.name


@pytest.mark.gpu(row="ENV-2")
def test_the_driver_and_cupy_tell_one_device(row: Any, xp: Any, device: Any) -> None:
    from backline.libraries import devices

    row.expect(
        "the driver, asked without CuPy, tells the same compute capability; the runtime tells the same memory, to a sixteenth"
    )
    told = devices.capability(0)
    free, total = map(int, xp.cuda.runtime.memGetInfo())
    row.observe(f"compute capability {device.capability}, {total >> 20} MiB, of which {free >> 20} are free", f"driver {told}")
    assert told == device.capability
    assert 0 < free <= total and abs(total - device.memory_bytes) <= device.memory_bytes // 16


PROGRAM = """
import sys
import numpy, backline
from backline.nn import functional as F
from backline.nn import grad
made = xp.asarray(numpy.ones((2, 4, 8, 8), numpy.float32))
flat = made.reshape(8, 64)
for call in calls:
    eval(call)
print([name for name in others if name in sys.modules])
"""
# What needs nothing, and what the bindings are needed for.
CALLS = {
    "F.softmax(made, 1)": "", "F.relu(made)": "", "grad.gelu_input(made, made)": "", "F.max_pool2d(made, 2)": "",
    "backline.explain(F.relu, made)": "", "backline.matmul(flat, flat.T)": "cublas", "F.linear(flat, flat)": "cublas",
    "backline.einsum('ij,kj->ik', flat, flat)": "cublas", "F.conv2d(made, made)": "cublas", "backline.fft.rfft(flat)": "cufft",
    "backline.linalg.svd(flat)": "cusolverDn",
}  # fmt: skip


def imported(folder: Path, before: str, calls: list[str], others: tuple[str, ...]) -> str:
    """Returns which of some packages a process of its own has imported after some calls.

    Packages of these names lie in a folder that is searched first: an import is seen wherever it is asked for, whatever this
    machine has.
    """
    for name in others:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text("__version__ = '0'\n")
    paths = [str(folder), str(Path(sys.modules["backline"].__file__ or "").parents[1]), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    code = f"{before}\ncalls, others = {calls!r}, {others!r}\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.gpu(row="ENV-3")
def test_backline_imports_no_other_package(row: Any, tmp_path: Path) -> None:
    row.expect("importing Backline, and calling it with NumPy's arrays, imports no package for CUDA and not PyTorch")
    found = imported(tmp_path, "import numpy as xp", [call for call, need in CALLS.items() if not need], OTHERS)
    row.observe(found)
    assert found == "[]"


@pytest.mark.gpu(row="ENV-3")
def test_operations_on_cupy_arrays_do_not_ask_for_torch(row: Any, rehearsed: bool, _check: Any, tmp_path: Path) -> None:
    row.expect("calls with CuPy's arrays import neither PyTorch nor JAX")
    calls = [call for call, need in CALLS.items() if not need or not _check.lacks(need)]
    found = imported(tmp_path, f"import {'numpy' if rehearsed else 'cupy'} as xp", calls, ("torch", "jax"))
    row.observe(f"{found} after {len(calls)} calls")
    assert found == "[]"


def _installed(name: str, module: str = "") -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get(module or name.replace("-", "_")), "__version__", None)
