"""Processors, cores, CPU time and memory that this process may use: affinity masks and Linux control groups.

This is the one reader of them. It imports nothing of Backline, for switches need a thread count before anything else is there.
Functions of texts take `read`, which gives the text of a file or nothing, so that other machines can be tested. What may be
missing (no /sys, no control groups, another system) is skipped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial

__all__ = [
    "count_cores", "cpu_quota", "memory", "memory_of", "parse_cpu_list", "physical_cores", "quota_of", "read_text",
    "siblings", "throttling_of", "usable_cores", "usable_cpus",
]  # fmt: skip

SYSTEM_CPUS = "/sys/devices/system/cpu"
Read = Callable[[str], "str | None"]


def read_text(path: str) -> str:
    """Returns the text of a small file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# --- processors and cores -------------------------------------------------------------------------------------------------


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parses a list of processors as the kernel writes it.

    Examples
    --------
    >>> parse_cpu_list("0-2,8\\n")
    (0, 1, 2, 8)
    """
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() if dash else True):
            cpus += range(int(first), int(last if dash else first) + 1)
    return tuple(cpus)


def siblings(cpu: int, read: Read, folder: str = SYSTEM_CPUS) -> tuple[int, ...]:
    """Returns the hardware threads of a processor's core, itself included; empty where the kernel does not tell."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        members = parse_cpu_list(read(f"{folder}/cpu{cpu}/topology/{name}") or "")
        if cpu in members:
            return members
    return ()


def count_cores(cpus: Iterable[int], read: Read) -> int:
    """Counts the physical cores among processors: by the kernel's folders, else by /proc/cpuinfo, else one for each."""
    cores: set[object] = set()
    listed: dict[int, tuple[str, str]] | None = None
    for cpu in cpus:
        members = siblings(cpu, read)
        if not members and listed is None:
            listed = _cores_of_cpuinfo(read("/proc/cpuinfo") or "")
        cores.add(min(members) if members else (listed or {}).get(cpu, cpu))
    return len(cores)


def _cores_of_cpuinfo(text: str) -> dict[int, tuple[str, str]]:
    """Socket and core of each processor."""
    found = {}
    for block in text.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if fields.get("processor", "").isdecimal() and "core id" in fields:
            found[int(fields["processor"])] = fields.get("physical id", "0"), fields["core id"]
    return found


def usable_cpus() -> tuple[int, ...]:
    """Returns the processors that this process may run on now: its affinity, else all there are."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Counts the physical cores among the processors that may be used."""
    if sys.platform == "darwin":
        import ctypes

        count, size = ctypes.c_int(0), ctypes.c_size_t(4)
        by_name = getattr(ctypes.CDLL(None), "sysctlbyname", None)
        if by_name is not None and by_name(b"hw.physicalcpu", ctypes.byref(count), ctypes.byref(size), None, 0) == 0:
            return count.value
    return count_cores(usable_cpus(), read_text)


def usable_cores() -> int:
    """Counts the physical cores that may be used, within the CPU quota of the control group; at least 1.

    Examples
    --------
    >>> usable_cores() >= 1
    True
    """
    quota = cpu_quota()
    return max(1, physical_cores() if quota is None else min(physical_cores(), int(quota)))


# --- control groups -------------------------------------------------------------------------------------------------------


def _group_folders(groups: str, controller: str) -> list[str]:
    """Returns the folders of this process's control group and its ancestors, innermost first; of versions 2 and 1."""
    folders = []
    for line in groups.splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        names = fields[1].split(",")
        if fields[1] == "":
            bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        elif controller in names:
            bases = [f"/sys/fs/cgroup/{fields[1]}", f"/sys/fs/cgroup/{controller}"]
        else:
            continue
        path = fields[2].rstrip("/")
        while True:
            # A limit on any ancestor binds too. In a container the path may name what only the host sees:
            # then the innermost folders are missing and the root, which is always tried, holds the limits.
            folders += [base + path for base in bases]
            if not path.strip("/"):
                break
            path = path.rpartition("/")[0]
    return list(dict.fromkeys(folders))


def _group_files(groups: str, controller: str, read: Read) -> Iterator[Callable[[str], str]]:
    """Yields, for each control group that binds this process, a function from a file's name to its text; "" without the file."""
    for folder in _group_folders(groups, controller):
        yield partial(_text, read, folder)


def _text(read: Read, folder: str, name: str) -> str:
    return (read(f"{folder}/{name}") or "").strip()


def quota_of(groups: str, read: Read) -> float | None:
    """Returns the processors' worth of time granted by control groups; the tightest limit counts.

    Parameters
    ----------
    groups : str
        The text of `/proc/self/cgroup`.
    read : callable
        Text of a file, or None.

    Examples
    --------
    >>> quota_of("0::/job\\n", {"/sys/fs/cgroup/job/cpu.max": "150000 100000\\n"}.get)
    1.5
    """
    limits = []
    for told in _group_files(groups, "cpu", read):
        pair = told("cpu.max").split() or [told("cpu.cfs_quota_us"), told("cpu.cfs_period_us")]
        # "max", and -1 in version 1, mean no limit.
        if len(pair) == 2 and pair[0].isdecimal() and pair[1].isdecimal() and int(pair[1]):
            limits.append(int(pair[0]) / int(pair[1]))
    return min(limits, default=None)


def cpu_quota() -> float | None:
    """Returns the processors' worth of time that the container grants; None without a limit."""
    return quota_of(read_text("/proc/self/cgroup"), read_text)


def throttling_of(groups: str, read: Read) -> tuple[int, int, float] | None:
    """Returns how often the innermost control group that tells it had used its processor time up.

    These are the periods that there were, those in which its threads were stopped, and for how many seconds in all.

    Parameters
    ----------
    groups : str
        The text of `/proc/self/cgroup`.
    read : callable
        Text of a file, or None.

    Examples
    --------
    >>> throttling_of("0::/\\n", {"/sys/fs/cgroup/cpu.stat": "nr_periods 4\\nnr_throttled 1\\nthrottled_usec 500000\\n"}.get)
    (4, 1, 0.5)
    """
    for told in _group_files(groups, "cpu", read):
        pairs = (line.split() for line in told("cpu.stat").splitlines())
        known = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
        if "nr_periods" in known:
            # Version 1 counts nanoseconds, under another name.
            seconds = known.get("throttled_usec", 0) * 1e-6 + known.get("throttled_time", 0) * 1e-9
            return known["nr_periods"], known.get("nr_throttled", 0), seconds
    return None


def memory_of(meminfo: str, groups: str, read: Read) -> int | None:
    """Returns the bytes of memory: the machine's, or the tightest limit of the control groups if that is less."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    amounts = [int(match[1]) << 10] if match else []
    for told in _group_files(groups, "memory", read):
        limits = told("memory.max"), told("memory.limit_in_bytes")
        amounts += [int(text) for text in limits if text.isdecimal()]
    return min(amounts, default=None)


def memory() -> int | None:
    """Returns the bytes of memory that this process may use; None if the system does not tell."""
    return memory_of(read_text("/proc/meminfo"), read_text("/proc/self/cgroup"), read_text)
