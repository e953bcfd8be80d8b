"""The machine that the check runs on: what has to be put in place before a row can run, what rows need that it has not, and the clock.

Everything comes from the machine and from this tree: nothing is installed, no network is needed, and what is made lies in a
temporary folder.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Machine", "NotReady"]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "backline"
# As CMakeLists.txt has them.
MODULES: dict[str, tuple[str, ...]] = {"_core": (), "_kernels": ("_core/copy.cpp", "_core/transpose.cpp"), "_exchange": ()}
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-math-errno"]
DEFINES = ["-DNPY_TARGET_VERSION=NPY_2_0_API_VERSION"]
UNFUSED = "requantize", "requantize_float32", "quantize", "norms", "element_sums", "short_time", "transforms"
SPECIAL = {f"{name}.cpp": ["-ffp-contract=off"] for name in UNFUSED}
PACKAGES = ("numpy", "ml_dtypes", "opt_einsum", "platformdirs")  # that rows cannot do without, CuPy aside
GET_CUPY = "pip install 'cupy-cuda13x[ctk]' for NVIDIA's driver 580 and newer, 'cupy-cuda12x[ctk]' for older ones"
PRELOADED = (
    "nvrtc",
    "cublasLt",
    "cudnn",
)  # in this order: cuDNN ends the process that loads it first, and looks for NVRTC loaded
# Read by Backline or by NVIDIA's libraries: what they set is what rows set, or compare with.
UNSET = ("NVIDIA_TF32_OVERRIDE", "CUBLASLT_WORKSPACE_SIZE")
VARIABLES = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1"}


class NotReady(Exception):
    """The check cannot begin: no row can be proved here."""


class Machine:
    """One NVIDIA GPU and what is installed beside it.

    Attributes
    ----------
    rehearsed
        False: the numbers come from a device.
    notes
        What was done to make the machine ready.
    """

    rehearsed = False

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="backline-gpu-"))
        self._scratch: Any = None

    # --- making ready -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make everything importable and find the device.

        Raises
        ------
        NotReady
            Something is missing; the message says what, and what to do.
        """
        self.settle_variables()
        self.unpack(ROOT / "wheelhouse")
        self.look_for_packages()
        self.build()
        self.find_device()
        self.preload()

    def settle_variables(self) -> None:
        """Set the environment variables of the check, and remove those that would change what rows see."""
        for name in [name for name in os.environ if name in UNSET or name.startswith("TORCH_")]:
            self.notes.append(f"{name}={os.environ.pop(name)} was set, and is not for the check")
        os.environ |= VARIABLES
        for name in ("TRITON_CACHE_DIR", "CUPY_CACHE_DIR"):
            os.environ[name] = str(self.folder / name.lower())

    def close(self) -> None:
        """Remove what was made."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def first_on_path(self, folder: Path) -> None:
        """Have this process, and those it starts, look for modules in a folder first."""
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(folder), os.environ.get("PYTHONPATH", "")) if p)
        importlib.invalidate_caches()

    def unpack(self, wheelhouse: Path) -> None:
        """Unpack the wheels whose packages are not installed."""
        target = self.folder / "wheels"
        for wheel in sorted(wheelhouse.glob("*.whl")):
            python, _, system = wheel.stem.split("-")[-3:]
            if f"cp{sys.version_info.major}{sys.version_info.minor}" not in python.split(".") and not python.startswith("py3"):
                self.notes.append(f"{wheel.name} is for another Python")
                continue
            if system != "any" and platform.machine() not in system:
                self.notes.append(f"{wheel.name} is for another machine")
                continue
            with zipfile.ZipFile(wheel) as archive:
                names = {name.split("/")[0].removesuffix(".py") for name in archive.namelist() if _is_module(name)}
                absent = sorted(name for name in names if not _installed(name))
                if absent:
                    archive.extractall(target)
                    self.notes.append(f"unpacked {wheel.name}: {', '.join(absent)} was not installed")
        if target.is_dir():
            self.first_on_path(target)

    def look_for_packages(self) -> None:
        """Look whether the packages are there that no row can do without; the message names all that are not."""
        absent = [name for name in PACKAGES if not _installed(name)]
        if absent:
            raise NotReady(f"packages are missing: {sys.executable} -m pip install {' '.join(absent)}")
        if not _installed("cupy"):
            raise NotReady(f"CuPy is not installed in {sys.executable}: {GET_CUPY}")

    def build(self) -> None:
        """Make `backline` of this tree importable: its compiled parts are built where they are not there yet."""
        why = _importable()
        if not why:
            self.notes.append("the compiled parts were there")
            return
        for name in [name for name in sys.modules if name.partition(".")[0] == "backline"]:
            del sys.modules[name]  # half imported
        folder = self.folder / "package"
        shutil.copytree(SOURCES, folder / "backline", ignore=shutil.ignore_patterns("*.so", "__pycache__", *MODULES))
        begun = time.monotonic()
        compile_parts(folder / "backline", self.folder / "objects")
        self.first_on_path(folder)
        self.notes.append(f"built the compiled parts in {time.monotonic() - begun:.0f} s ({why})")
        why = _importable(folder)
        if why:
            raise NotReady(f"the package cannot be imported although its compiled parts were built: {why}")

    def preload(self) -> None:
        """Load NVIDIA's libraries that others have to find loaded, as far as they are there."""
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib
        except ImportError as error:
            self.notes.append(f"no library is loaded before the others: {error}")
            return
        for name in PRELOADED:
            try:
                self.notes.append(f"{name}: {load_nvidia_dynamic_lib(name).abs_path}")
            except (OSError, RuntimeError) as error:
                self.notes.append(f"{name} is not loaded: {' '.join(str(error).split())[:300]}")

    def find_device(self) -> None:
        """Look whether there is a device."""
        try:
            cupy = self.cupy()
        except Exception as error:
            raise NotReady(f"CuPy cannot be imported: {type(error).__name__}: {error} ({GET_CUPY})") from error
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:  # whatever CuPy finds wrong with the driver
            raise NotReady(f"there is no GPU: CuPy says {type(error).__name__}: {error}") from error
        if count < 1:
            raise NotReady("there is no GPU: CuPy counts no device")

    # --- what it is ---------------------------------------------------------------------------------------------------

    def cupy(self) -> Any:
        """The module."""
        from backline.libraries.cuda.common import bindings

        return bindings.cupy()

    def device(self) -> Any:
        """The `DeviceInfo` of device 0."""
        from backline.libraries.cuda.common.device_facts import device_info

        return device_info(0)

    def missing(self, need: str) -> str:
        """Returns why something that rows need is not here, and how to get it; "" where it is here.

        "cusolver >= 11.7.2" is a version of a library, "capability >= 8.0" the device's compute capability.
        """
        from backline.libraries.cuda.attention import kernel_compiler
        from backline.libraries.cuda.common import bindings
        from backline.libraries.presence import presence

        name, _, least = need.partition(" >= ")
        if least:
            return self._below(name, least)
        if need == "triton":
            return kernel_compiler.reason()
        if need == "jax":
            return "" if _installed("jax") else "JAX is not installed (pip install jax)"
        if need == "two devices":
            count = int(self.cupy().cuda.runtime.getDeviceCount())
            return "" if count > 1 else "there is one device"
        if need == "no MAGMA":
            return "" if presence("magma").reason() else "there is a MAGMA, and the row is about a machine without"
        return bindings.reason(need)

    def _below(self, name: str, least: str) -> str:
        """Returns why a version, or the compute capability, is not enough. One that nobody tells is: libraries decide likewise."""
        from backline.libraries.presence import presence

        capability = name == "capability"
        having = ".".join(map(str, self.device().capability)) if capability else presence(name).version()
        if having is None or _numbers(having) >= _numbers(least):
            return ""
        return f"{'compute capability' if capability else presence(name).title} {least} or later is needed, and this is {having}"

    def lost(self) -> str:
        """Returns the error that the device answers everything with; "" while it can be used."""
        from backline.libraries.cuda.common import faults

        return faults.lost(0)

    def description(self) -> dict[str, Any]:
        """Returns what the file of results says of it."""
        runtime, device = self.cupy().cuda.runtime, self.device()
        return {
            "card": device.name, "compute_capability": list(device.capability), "multiprocessors": device.multiprocessors,
            "l2_bytes": device.l2_bytes, "memory_bytes": device.memory_bytes, "driver": runtime.driverGetVersion(),
            "driver_release": _driver_release(), "cuda_runtime": runtime.runtimeGetVersion(), "cpu": _cpu_model(),
            "python": platform.python_version(), "rehearsed": self.rehearsed,
        }  # fmt: skip

    def clock(self, function: Callable[[], Any], runs: int = 10, warm: int = 3, flush: bool = True) -> list[float]:
        """Microseconds that each run took on the device, by events; before each, twice the size of its cache is written."""
        cuda = self.cupy().cuda
        for _ in range(warm):
            function()
        if flush and self._scratch is None:
            self._scratch = self.cupy().empty(max(2 * self.device().l2_bytes, 1), "uint8")
        begin, end = cuda.Event(), cuda.Event()
        times = []
        for _ in range(runs):
            if flush:
                self._scratch.fill(1)
            begin.record(cuda.get_current_stream())
            function()
            end.record(cuda.get_current_stream())
            end.synchronize()
            times.append(1000.0 * cuda.get_elapsed_time(begin, end))
        return times

    def peers(self, sections: list[str], seconds: float) -> dict[str, Any]:
        """Time Backline, PyTorch and CuPy in turn, in a process that may import PyTorch; what each section found."""
        from gpu import peers

        out = self.folder / "peers.json"
        command = [sys.executable, str(Path(peers.__file__)), str(out), *sections]
        paths = [str(Path(__file__).parents[1]), str(Path(sys.modules["backline"].__file__ or "").parents[1]), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            return peers.read(out, "", f"the timings did not end within {seconds:g} s")
        return peers.read(out, done.stdout + done.stderr)


def _numbers(version: object) -> tuple[int, ...]:
    """(11, 7, 2) of "11.7.2", (91501,) of 91501."""
    return tuple(map(int, re.findall("[0-9]+", str(version))))


def _is_module(name: str) -> bool:
    parts = name.split("/")
    return (len(parts) == 2 and parts[1] == "__init__.py") or (len(parts) == 1 and name.endswith(".py"))


def _installed(name: str) -> bool:
    """Tells whether a package is there; a folder of its name, such as one of tests, is none."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _importable(folder: Path = SOURCES.parent) -> str:
    """Returns why this tree's package cannot be imported with its compiled parts, or "". Another tree's does not count."""
    try:
        found = importlib.import_module("backline")
        for name in MODULES:
            importlib.import_module(f"backline.{name}")
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    where = Path(found.__file__ or "").resolve()
    return "" if where.is_relative_to(folder.resolve()) else f"the backline that is installed is another: {where.parent}"


def compile_parts(package: Path, objects: Path) -> list[Path]:
    """Compile the `MODULES` of `backline` into a folder, all files at once, the longest first.

    Raises
    ------
    NotReady
        There is no compiler, or it refuses.
    """
    import numpy as np

    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise NotReady(f"the compiled parts cannot be built: there is no {compiler} (CXX names another)")
    includes = [f"-I{sysconfig.get_paths()['include']}", f"-I{np.get_include()}"]
    text = f'-DBACKLINE_CXX_FLAGS="{compiler} {" ".join(FLAGS)}"'
    wanted = {
        (name, source): objects / name / f"{source.stem}.o"
        for name, shared in MODULES.items()
        for source in (*(SOURCES / name).glob("*.cpp"), *(SOURCES / each for each in shared))
    }

    def one(source: Path, made: Path) -> None:
        made.parent.mkdir(parents=True, exist_ok=True)
        _run([compiler, *FLAGS, *SPECIAL.get(source.name, []), *DEFINES, text, *includes, "-c", str(source), "-o", str(made)])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        longest = sorted(wanted.items(), key=lambda item: -item[0][1].stat().st_size)
        for done in [pool.submit(one, source, made) for (_, source), made in longest]:
            done.result()
    libraries = []
    for name in MODULES:
        library = package / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        mine = [str(made) for (of, _), made in sorted(wanted.items()) if of == name]
        _run([compiler, "-shared", "-o", str(library), *mine, "-lpthread", "-ldl"])
        libraries.append(library)
    return libraries


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        headers = "the headers of Python are missing (python3-dev): " if "Python.h" in done.stderr else ""
        raise NotReady(f"the compiled parts cannot be built: {headers}{' '.join(command)}\n{done.stderr[-4000:]}")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _driver_release() -> str:
    """"580.65.06", as the driver's kernel module tells."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    return next((word for word in text.split() if word.count(".") >= 1 and word[0].isdigit()), "")
