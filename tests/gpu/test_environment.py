"""What the check runs on: versions that agree however they are asked for, a device that is what Backline takes it for, no PyTorch."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cudnn import graphs
from backline.libraries.presence import presence

# Library -> the binding that tells the same in another way.
TOLD_BY = {"cublas": "cublas", "cublaslt": "cublasLt", "cusolver": "cusolver", "cufft": "cufft", "cusparselt": "cusparseLt"}
DISTRIBUTIONS = (
    "numpy", "ml_dtypes", "cupy-cuda13x", "nvmath-python", "nvidia-cudnn-frontend", "cuda-bindings", "cuda-core", "cuda-pathfinder",
    "triton", "jax", "torch", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cufft", "nvidia-cusolver", "nvidia-cusparse",
    "nvidia-cusparselt-cu13", "nvidia-cuda-nvrtc", "pytest",
)  # fmt: skip


@pytest.mark.gpu(row="ENV-1")
@pytest.mark.parametrize("name", TOLD_BY)
def test_a_library_and_its_binding_tell_one_version(row: Any, name: str) -> None:
    row.expect("each library's file and its binding tell the same version")
    library = presence(name)
    binding = getattr(bindings, TOLD_BY[name])()
    told = tuple(int(binding.get_property(part)) for part in range(3))
    row.results.versions[name] = {"version": str(library.version()), "read by": "ctypes", "path": library.path}
    row.observe(f"{library.title} {'.'.join(map(str, told))}", f"{library.path}")
    expected = 1000 * told[0] + 100 * told[1] + told[2] if name == "cusparselt" else ".".join(map(str, told))
    assert not library.reason() and library.version() == expected, library.reason()


@pytest.mark.gpu(row="ENV-1")
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


@pytest.mark.gpu(row="ENV-1")
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
    row.expect("versions of packages are taken down, and how the compiled core came here")
    for name in DISTRIBUTIONS:
        row.results.versions[f"package {name}"] = {"version": _installed(name), "read by": "metadata"}
    notes = request.config.pluginmanager.getplugin("gpu-check").machine.notes
    built = next((note for note in notes if "core" in note), "")
    row.observe("; ".join(notes))
    row.finding(13, built)
    assert importlib.import_module("backline._core")


@pytest.mark.gpu(row="ENV-2")
def test_the_device(row: Any, xp: Any, device: Any, request: pytest.FixtureRequest) -> None:
    row.expect("the device as cuDNN describes it is the one of DeviceInfo; the description is kept as a file")
    description = json.loads(bindings.cudnn().create_device_properties(0).serialize())
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

    row.expect("the driver, asked without CuPy, tells the same compute capability")
    told = devices.capability(0)
    row.observe(f"compute capability {device.capability}", f"driver {told}")
    assert told == device.capability
    assert device.memory_bytes >= xp.cuda.runtime.memGetInfo()[1] > 0 or device.memory_bytes > 0


@pytest.mark.gpu(row="ENV-3")
def test_no_torch_here(row: Any) -> None:
    row.expect("PyTorch cannot be imported in this process, and nothing has")
    assert sys.modules["torch"] is None
    with pytest.raises(ImportError):
        importlib.import_module("torch")
    loaded = [name for name in sys.modules if name.startswith(("torch.", "torchvision"))]
    row.observe(f"blocked; {len(loaded)} of its modules are imported")
    assert not loaded


@pytest.mark.gpu(row="ENV-3")
def test_backline_imports_no_other_package(row: Any) -> None:
    row.expect("importing Backline imports no CUDA package and no PyTorch")
    where = str(Path(sys.modules["backline"].__file__ or "").parents[1])
    code = (
        f"import sys; sys.path.insert(0, {where!r}); import numpy, backline; "
        "print([n for n in ('torch', 'cupy', 'nvmath', 'cudnn', 'triton', 'jax') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    row.observe(done.stdout.strip())
    assert done.stdout.strip() == "[]"


def _installed(name: str, module: str = "") -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get(module or name.replace("-", "_")), "__version__", None)
