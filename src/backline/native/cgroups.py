"""What a container grants: processor time and memory, from the texts of Linux control groups.

Both versions of control groups are understood. Everything here is a function of texts; `read` gives the text
of a file, or None, so that the limits of other machines can be tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["memory_of", "quota_of"]


def _group_folders(groups: str, controller: str) -> list[str]:
    """The folders of this process's control group and its ancestors, innermost first; version 2 and 1."""
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


def quota_of(groups: str, read: Callable[[str], str | None]) -> float | None:
    """Processors' worth of time granted by control groups; the tightest limit counts.

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
    for folder in _group_folders(groups, "cpu"):
        pair = (read(f"{folder}/cpu.max") or "").split()
        if not pair:
            pair = [
                (read(f"{folder}/{name}") or "").strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            ]
        # "max", and -1 in version 1, mean no limit.
        if len(pair) == 2 and pair[0].isdecimal() and pair[1].isdecimal() and int(pair[1]):
            limits.append(int(pair[0]) / int(pair[1]))
    return min(limits, default=None)


def memory_of(meminfo: str, groups: str, read: Callable[[str], str | None]) -> int | None:
    """Bytes of memory: the machine's, or the tightest limit of the control groups if that is less."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    amounts = [int(match[1]) << 10] if match else []
    for folder in _group_folders(groups, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = (read(f"{folder}/{name}") or "").strip()
            if text.isdecimal():
                amounts.append(int(text))
    return min(amounts, default=None)
