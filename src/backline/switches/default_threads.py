"""How many threads a library gets unless told otherwise: the physical cores this process may really use.

Read when a switch is first needed, never at import. What may be missing (no /sys, no control groups, another
system) is skipped; the answer is then the number of CPUs the system reports.
"""

from __future__ import annotations

import os
import sys

from .. import _core

__all__ = ["MOST_THREADS", "starting_threads", "usable_cores"]

MOST_THREADS: int = _core.most_threads
"""No call may use more: OpenBLAS, MKL and BLIS keep tables of their threads, and with 5,000 or more they hang or crash."""


def starting_threads() -> tuple[int, str]:
    """Return the thread count to start with, and where it came from.

    The larger of OMP_NUM_THREADS and MKL_NUM_THREADS where either holds a number, else `usable_cores`; MOST_THREADS where that is
    more.
    """
    asked = {name: _first_number(os.environ.get(name, "")) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    name = max(asked, key=asked.__getitem__)
    if asked[name]:
        return min(asked[name], MOST_THREADS), name
    return min(usable_cores(), MOST_THREADS), "usable physical cores"


def _first_number(text: str) -> int:
    # OpenMP allows a list, one number per nesting level: "8,2". The first is the outermost.
    word = text.split(",")[0].strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else 0


def usable_cores() -> int:
    """Count the physical cores in this process's affinity mask, within the CPU quota of its control group.

    Examples
    --------
    >>> usable_cores() >= 1
    True
    """
    cpus = _allowed_cpus()
    cores = _physical(cpus) if cpus else _physical_elsewhere()
    quota = _quota()
    return max(1, min(cores, int(quota)) if quota else cores)


def _allowed_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return []


def _physical(cpus: list[int]) -> int:
    # Two CPUs are threads of one core exactly if the kernel lists the same siblings for both.
    cores = set()
    for cpu in cpus:
        text = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        if not text:
            return _physical_from_cpuinfo(cpus)
        cores.add(text)
    return len(cores)


def _physical_from_cpuinfo(cpus: list[int]) -> int:
    allowed = set(cpus)
    cores = set()
    for block in _read("/proc/cpuinfo").split("\n\n"):
        fields = {}
        for line in block.splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        number = fields.get("processor", "")
        if number.isdigit() and int(number) in allowed and "core id" in fields:
            cores.add((fields.get("physical id", "0"), fields["core id"]))
    return len(cores) or len(cpus)


def _physical_elsewhere() -> int:
    if sys.platform == "darwin":
        import ctypes

        count, size = ctypes.c_int(0), ctypes.c_size_t(4)
        libc = ctypes.CDLL(None)
        if libc.sysctlbyname(b"hw.physicalcpu", ctypes.byref(count), ctypes.byref(size), None, 0) == 0:
            return count.value
    return os.cpu_count() or 1


def _quota() -> float:
    """CPUs granted by the tightest control group above this process; 0 if there is no limit."""
    limits = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        names: tuple[str, ...]
        if controllers == "":  # version 2: one tree
            root, names = "/sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in controllers.split(","):
            root, names = "/sys/fs/cgroup/cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        folder = path.rstrip("/")
        while True:
            words = " ".join(_read(f"{root}{folder}/{name}") for name in names).split()
            if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
                limits.append(int(words[0]) / int(words[1]))  # "max" and -1 mean no limit and are no digits
            if not folder:
                break
            folder = folder.rpartition("/")[0]
    return min(limits, default=0.0)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
