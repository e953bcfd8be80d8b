"""The facts of an environment that the doctor's checks look at, each read when it is first asked for.

Nothing is written, and no library is loaded into this process by asking. What needs either, the speed of libraries and the
permission of AMX, is asked of processes of their own.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from ..libraries import in_process
from ..libraries.in_process import LoadedLibrary
from ..native.machine import parse_cpuinfo
from ..processors import SYSTEM_CPUS, parse_cpu_list, quota_of, read_text, throttling_of, usable_cpus
from . import measurements

__all__ = ["Copy", "Facts", "Worker"]

_MATHS = re.compile(r"/lib(openblas|scipy_openblas|mkl_rt|mkl_core|blis|gomp|iomp5|omp)[-.\w]*\.so")
MOST_WORKERS = 256
COUNTS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


class Worker(NamedTuple):
    """A process that this one started and that has a maths library mapped."""

    process: int
    threads: int | None  # that its environment asks for


class Copy(NamedTuple):
    """A copy of a Python package that can be imported."""

    folder: str
    version: str


class Facts:
    """Facts of this process and machine.

    Parameters
    ----------
    root
        Folder that stands for the root of the file system where the kernel's files are read; empty for the real one.
    given
        Facts that are not to be read, by name.

    Examples
    --------
    >>> Facts(cpus=4, quota=2.0).available
    2.0
    """

    def __init__(self, root: str = "", **given: Any) -> None:
        self.root = root
        for name in given:
            if not isinstance(getattr(type(self), name, None), cached_property):
                raise TypeError(f"{name} is no fact")
        self.__dict__.update(given)

    def read(self, path: str) -> str:
        """Returns the text of one of the kernel's files; empty where there is none."""
        return read_text(self.root + path)

    # the environment ------------------------------------------------------------------------------------------------

    @cached_property
    def environ(self) -> Mapping[str, str]:
        """The environment variables as they are now."""
        return dict(os.environ)

    @cached_property
    def started_with(self) -> Mapping[str, str] | None:
        """The environment variables that the process was started with; None where the system does not tell."""
        return _environment_of("self")

    @cached_property
    def copies(self) -> Mapping[str, list[Copy]]:
        """Copies of packages that can be imported, by package, the one that an import takes first."""
        return {name: _copies(name) for name in ("numpy", "scipy")}

    @cached_property
    def imported(self) -> Mapping[str, Copy]:
        """The copies of those packages that this process has imported."""
        modules = {name: sys.modules.get(name) for name in ("numpy", "scipy")}
        return {
            name: Copy(os.path.dirname(os.path.realpath(module.__file__)), str(getattr(module, "__version__", "")))
            for name, module in modules.items()
            if module is not None and module.__file__
        }

    # the process ----------------------------------------------------------------------------------------------------

    @cached_property
    def mapped(self) -> tuple[LoadedLibrary, ...]:
        """The numerical libraries in this process."""
        return in_process.loaded()

    def families(self, *names: str) -> list[LoadedLibrary]:
        """Returns the libraries of some families in this process."""
        return [library for library in self.mapped if library.family in names]

    @cached_property
    def workers(self) -> list[Worker]:
        """Processes that this one started and that compute, too."""
        return _workers()

    @cached_property
    def flushes(self) -> bool:
        """True where this thread takes subnormal numbers for zero."""
        return measurements.flushes_subnormals()

    @cached_property
    def flushing_files(self) -> list[str]:
        """Files in this process with code that makes a thread flush subnormal numbers when they are loaded."""
        return measurements.files_that_flush()

    # the machine ----------------------------------------------------------------------------------------------------

    @cached_property
    def cpus(self) -> int:
        """Processors that this process may run on."""
        return len(usable_cpus())

    @cached_property
    def online(self) -> int:
        """Processors of the machine."""
        return len(parse_cpu_list(self.read(f"{SYSTEM_CPUS}/online"))) or self.cpus

    @cached_property
    def quota(self) -> float | None:
        """Processors' worth of time that the control group grants; None without a limit."""
        return quota_of(self.read("/proc/self/cgroup"), self.read)

    @cached_property
    def throttling(self) -> tuple[int, int, float] | None:
        """Number of times that the control group had used its time up; None where the system does not tell."""
        return throttling_of(self.read("/proc/self/cgroup"), self.read)

    @property
    def available(self) -> float:
        """Processors' worth of time that this process may use."""
        return min(float(self.cpus), self.quota or float(self.cpus))

    @cached_property
    def flags(self) -> frozenset[str]:
        """Features of the processor, as the kernel spells them."""
        return parse_cpuinfo(self.read("/proc/cpuinfo")).flags

    @cached_property
    def amx(self) -> str:
        """The reason for which the kernel does not grant AMX, where the processor has it; empty if it does."""
        return measurements.amx_refused() if "amx_tile" in self.flags else ""

    @cached_property
    def stolen(self) -> tuple[float, str]:
        """The part of the processors' time that the hypervisor took, and over which time."""
        return measurements.stolen(lambda: self.read("/proc/stat"))

    # Backline -------------------------------------------------------------------------------------------------------

    @cached_property
    def tuning(self) -> Mapping[str, Any]:
        """Facts about the tuning file and the shipped ranking."""
        from ..engine import ranking
        from ..engine.tuning import record_store

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what is wrong with the file becomes a finding
            return {**record_store.report(), **ranking.report()}

    # what is measured -----------------------------------------------------------------------------------------------

    @cached_property
    def products(self) -> measurements.Products:
        """Times of a product by NumPy and by each library that is there, from a process of its own."""
        return measurements.products()

    @cached_property
    def shipped(self) -> Mapping[str, measurements.Shipped]:
        """Gains that the shipped rankings give for libraries that are not there, beside those that are."""
        return measurements.shipped(self.products.libraries)

    @cached_property
    def subnormal_cost(self) -> float:
        """Time of arithmetic on subnormal numbers, as a multiple of that on others."""
        return measurements.subnormal_cost()

    @cached_property
    def first_touch(self) -> float:
        """Time of the first writing of memory, as a multiple of that of the second."""
        return measurements.first_touch()


def _environment_of(process: str) -> dict[str, str] | None:
    try:
        with open(f"/proc/{process}/environ", "rb") as stream:
            pairs = [entry.partition(b"=") for entry in stream.read().split(b"\0") if entry]
    except OSError:
        return None
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _copies(name: str) -> list[Copy]:
    """Copies of a package on the path of imports, each folder once."""
    from importlib.metadata import distributions

    versions: dict[str, str] = {}
    for distribution in distributions(name=name):
        folder = os.path.realpath(str(distribution.locate_file(name)))
        versions.setdefault(folder, distribution.version)
    found: dict[str, Copy] = {}
    for entry in sys.path:
        folder = os.path.realpath(os.path.join(entry or os.curdir, name))
        file = f"{folder}.py"
        if os.path.isfile(os.path.join(folder, "__init__.py")):
            found.setdefault(folder, Copy(folder, versions.get(folder, "")))
        elif os.path.isfile(file):
            found.setdefault(file, Copy(file, ""))
    return list(found.values())


def _workers() -> list[Worker]:
    children: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            children += map(int, read_text(f"/proc/self/task/{thread}/children").split())
    except OSError:
        return []
    found = []
    for child in children[:MOST_WORKERS]:
        if not _MATHS.search(read_text(f"/proc/{child}/maps")):
            continue
        environ = _environment_of(str(child)) or {}
        counts = [int(environ[name]) for name in COUNTS if environ.get(name, "").isdecimal()]
        found.append(Worker(child, max(counts, default=None)))
    return found
