"""The measurements of the doctor: in this process where they change nothing, else in one of their own.

A figure is the least of several runs in turn, so that another program's work disturbs it little.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Products", "Shipped", "amx_refused", "files_that_flush", "first_touch", "flushes_subnormals", "products", "run_products",
    "shipped", "stolen", "subnormal_cost",
]  # fmt: skip

SIZE = 256  # of the matrices that are multiplied: short enough to be done between two interruptions
LIBRARIES = ("mkl", "openblas", "blis")
ROUNDS = 5
SECONDS = 0.5  # after which no further round is begun
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
LIMIT = 60.0  # seconds after which the process is given up
LARGE = 20.0  # log2 of the operations from which entries of a ranking are compared
TOUCHED = 32 << 20  # bytes
WATCHED = 0.3  # seconds for which the hypervisor's share is watched
LARGEST_FILE = 1 << 30
# The start-up code of GCC's -ffast-math: the control word of SSE is stored, its bits 15 and 6 are set, and it is loaded again.
_SETS_FLUSHING = re.compile(rb"\x0f\xae\x5c\x24.(?s:.{0,12}?)\x40\x80\x00\x00(?s:.{0,12}?)\x0f\xae\x54\x24")
_ASKS_FOR_AMX = (
    "import ctypes,os; libc=ctypes.CDLL(None,use_errno=True); "
    "status=libc.syscall(ctypes.c_long(158),ctypes.c_long(0x1023),ctypes.c_long(18)); "
    "print(os.strerror(ctypes.get_errno()) if status else 'granted')"
)  # fmt: skip


class Products(NamedTuple):
    """Times of one product.

    Attributes
    ----------
    seconds : dict
        By dtype: "numpy" and the libraries -> seconds.
    libraries : tuple of str
        The libraries that are there.
    problem : str
        Why nothing was measured; empty if it was.
    disturbed : str
        What else kept the machine busy meanwhile; empty if it was quiet.
    """

    seconds: Mapping[str, Mapping[str, float]]
    libraries: tuple[str, ...] = ()
    problem: str = ""
    disturbed: str = ""


class Shipped(NamedTuple):
    """Entry of a shipped ranking for a library that is not there: its gain over the best of those that are."""

    gain: float
    entries: int
    processors: str
    cpu: str
    date: str


# Products of matrices ---------------------------------------------------------------------------------------------------


def products() -> Products:
    """Returns the times of a product by NumPy and by each library, measured in a process of its own, which keeps nothing."""
    with tempfile.TemporaryDirectory(prefix="backline-doctor-") as folder:
        # It must not leave anything: what libraries are found out to be goes into a cache, which is this folder's.
        own = {"BACKLINE_TUNING": "", "BACKLINE_BENCHMARK": "off", "XDG_CACHE_HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        # On one thread: pools of several libraries would disturb each other, and other programs disturb several threads the most.
        own |= dict.fromkeys((*THREADS, "BACKLINE_NUM_THREADS"), "1")
        path = os.path.join(folder, "products.json")
        command = [sys.executable, "-P", "-c", f"from {__name__} import run_products; run_products()", path]
        try:
            done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return Products({}, problem=f"the process that measures took more than {LIMIT:.0f} s")
        try:
            with open(path, encoding="utf-8") as stream:
                content = json.load(stream)
        except (OSError, ValueError):
            last = " ".join(done.stderr.strip().splitlines()[-1:])
            return Products({}, problem=f"the process that measures ended with status {done.returncode}: {last[:200]}")
    return Products(content["seconds"], tuple(content["libraries"]), disturbed=content["disturbed"])


def run_products() -> None:
    """Measures, and writes the times to the file that the command line names: the program of that process."""
    from .. import libraries, switches
    from ..engine.tuning import machine_load
    from ..errors import NoKernel
    from ..ops.matrix_products import matmul

    there = tuple(name for name in LIBRARIES if name in libraries.names() and libraries.get(name).available())
    before = machine_load.read()
    found: dict[str, dict[str, float]] = {}
    for dtype in (np.float64, np.float32):
        a = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(dtype)

        def by(name: str, a: Any = a) -> Any:
            with switches.scope({"only": (name,), "share_processors": False}):
                return matmul(a, a)

        ways: dict[str, Callable[[], Any]] = {"numpy": partial(np.matmul, a, a)}
        for name in there:
            with suppress(NoKernel):  # an erratum or a switch keeps it from this dtype
                by(name)
                ways[name] = partial(by, name)
        found[np.dtype(dtype).name] = _least(ways)
    busy = machine_load.between(before, machine_load.read(), 1).disturbed
    with open(sys.argv[1], "w", encoding="utf-8") as stream:
        json.dump({"seconds": found, "libraries": there, "disturbed": busy}, stream)


def _least(ways: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The shortest time of each, in turn; the first run of each does not count."""
    for way in ways.values():
        way()
    best = dict.fromkeys(ways, math.inf)
    end = time.perf_counter() + SECONDS
    for number in range(ROUNDS * 4):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - begin)
        if time.perf_counter() >= end and number + 1 >= min(ROUNDS, 3):
            break
    return best


def shipped(there: Collection[str]) -> dict[str, Shipped]:
    """Returns what the nearest shipped ranking says of BLAS libraries that are not there, beside the best of those that are.

    Examples
    --------
    >>> shipped(LIBRARIES)
    {}
    """
    from ..engine import ranking_files

    processors = ranking_files.nearest_classes(ranking_files.here())[0]
    source = ranking_files.provenance(processors)
    found = {}
    for name in LIBRARIES:
        ratios = [] if name in there else _ratios(ranking_files.measured(processors, "matmul"), name, there)
        if ratios:
            gain = math.exp(sum(map(math.log, ratios)) / len(ratios))
            found[name] = Shipped(gain, len(ratios), str(processors), str(source["cpu"]), str(source["date"])[:10])
    return found


def _ratios(entries: Collection[Any], name: str, there: Collection[str]) -> list[float]:
    ratios = []
    for entry in entries:
        if entry.place.work < LARGE or entry.place.dtype not in ("f32", "f64"):
            continue
        own = [t for key, t in entry.times.items() if key.partition(".")[0] == name]
        others = [t for key, t in entry.times.items() if key.partition(".")[0] in there]
        if own and others:
            ratios.append(min(others) / min(own))
    return ratios


# Numbers and memory -----------------------------------------------------------------------------------------------------


def flushes_subnormals() -> bool:
    """Tells whether this thread takes subnormal numbers for zero, read or written."""
    least = np.array([np.finfo(np.float64).tiny])
    with np.errstate(all="ignore"):
        half = least * 0.5  # flushed where it is written
        return bool(half.view(np.int64)[0] == 0 or (np.array([1], np.int64).view(np.float64) * 1.0).view(np.int64)[0] == 0)


def files_that_flush() -> list[str]:
    """Returns the files in this process that have such code as a compiler puts into a library for -ffast-math."""
    from ..native.process_map import mapped_files

    found = []
    for file in mapped_files():
        if ".so" not in file.name or file.deleted:
            continue
        try:
            if os.path.getsize(file.path) > LARGEST_FILE:
                continue
            with open(file.path, "rb") as stream:
                if _SETS_FLUSHING.search(stream.read()):
                    found.append(file.path)
        except OSError:
            continue
    return found


def subnormal_cost() -> float:
    """Returns how many times as long a multiplication takes on subnormal numbers."""
    usual, low = np.full(1 << 14, 1.5), np.full(1 << 14, 1.5e-310)
    out = np.empty_like(usual)
    with np.errstate(all="ignore"):
        best = _least({"usual": lambda: np.multiply(usual, 0.75, out=out), "low": lambda: np.multiply(low, 0.75, out=out)})
    return best["low"] / max(best["usual"], 1e-9)


def first_touch() -> float:
    """Returns how many times as long the first writing of memory takes as the second."""
    import mmap

    first = second = math.inf
    for _ in range(3):
        with mmap.mmap(-1, TOUCHED) as memory:
            view = np.frombuffer(memory, np.uint8)
            begin = time.perf_counter()
            view.fill(1)
            middle = time.perf_counter()
            view.fill(2)
            end = time.perf_counter()
            first, second = min(first, middle - begin), min(second, end - middle)
            del view
    return first / max(second, 1e-9)


# The machine ------------------------------------------------------------------------------------------------------------


def amx_refused() -> str:
    """Returns the kernel's reason not to grant AMX to a process such as this one; empty if it does, or nothing can be asked."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return ""
    try:
        command = [sys.executable, "-I", "-S", "-c", _ASKS_FOR_AMX]
        said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if said == "granted" else said


def stolen(read: Callable[[], str]) -> tuple[float, str]:
    """Returns the part of the processors' time that the hypervisor took: while watched, or since the start if that is more.

    Examples
    --------
    >>> stolen(lambda: "cpu 50 0 20 20 0 0 0 10 0 0")
    (0.1, 'since the machine was started')
    """
    first = _times(read())
    if not first:
        return 0.0, ""
    time.sleep(WATCHED)
    last = _times(read())
    ever = last[7] / max(sum(last[:8]), 1)
    spent = sum(last[:8]) - sum(first[:8])
    now = (last[7] - first[7]) / spent if spent > 0 else 0.0
    return (now, f"in {WATCHED:g} s") if now > ever else (ever, "since the machine was started")


def _times(text: str) -> list[int]:
    words = text.split("\n", 1)[0].split()
    numbers = [int(word) for word in words[1:] if word.isdecimal()]
    return numbers if words[:1] == ["cpu"] and len(numbers) >= 8 else []
