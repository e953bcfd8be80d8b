"""The driver that a text in PTX takes: the CUDA release that its version belongs to, and the first driver of that release.

Both are NVIDIA's tables: the release history of PTX ("Parallel Thread Execution ISA"), and "CUDA Toolkit and Corresponding Driver
Versions" of the release notes, its column for Linux.
"""

from __future__ import annotations

import re

from ....errors import LibraryFailed
from ...presence import presence

__all__ = ["CUDA_OF_PTX", "DRIVERS", "driver_refuses_ptx", "installed", "needed", "refused", "version_of"]

Version = tuple[int, int]

CUDA_OF_PTX: dict[Version, Version] = {
    (7, 0): (11, 0), (7, 1): (11, 1), (7, 2): (11, 2), (7, 3): (11, 3), (7, 4): (11, 4), (7, 5): (11, 5), (7, 6): (11, 6),
    (7, 7): (11, 7), (7, 8): (11, 8), (8, 0): (12, 0), (8, 1): (12, 1), (8, 2): (12, 2), (8, 3): (12, 3), (8, 4): (12, 4),
    (8, 5): (12, 5), (8, 6): (12, 7), (8, 7): (12, 8), (8, 8): (12, 9), (9, 0): (13, 0), (9, 1): (13, 1), (9, 2): (13, 2),
}  # fmt: skip
"""Version of PTX -> the first CUDA whose driver knows it. Later ones count on by one."""

DRIVERS: dict[Version, str] = {
    (11, 0): "450.51.05", (11, 1): "455.23", (11, 2): "460.27.03", (11, 3): "465.19.01", (11, 4): "470.42.01",
    (11, 5): "495.29.05", (11, 6): "510.39.01", (11, 7): "515.43.04", (11, 8): "520.61.05", (12, 0): "525.60.13",
    (12, 1): "530.30.02", (12, 2): "535.54.03", (12, 3): "545.23.06", (12, 4): "550.54.14", (12, 5): "555.42.02",
    (12, 6): "560.28.03", (12, 8): "570.26", (12, 9): "575.51.03", (13, 0): "580.65.06", (13, 1): "590.44.01",
    (13, 2): "595.45.04",
}  # fmt: skip
"""CUDA -> the first of NVIDIA's drivers for it."""


def version_of(ptx: bytes) -> Version | None:
    """The version that a text in PTX says it has.

    >>> version_of(b"// made by ...\\n.version 8.7\\n.target sm_80"), version_of(b"")
    ((8, 7), None)
    """
    found = re.search(rb"^\s*\.version\s+(\d+)\.(\d+)", ptx, re.MULTILINE)
    return None if found is None else (int(found[1]), int(found[2]))


def needed(ptx: Version) -> tuple[Version, str]:
    """The CUDA that a driver must go up to for a version of PTX, and the first such driver; "" where no table has it.

    >>> needed((8, 7)), needed((9, 5))
    (((12, 8), '570.26'), ((13, 5), ''))
    """
    cuda = CUDA_OF_PTX.get(ptx, (ptx[0] + 4, ptx[1]))
    # Not each release of CUDA came with a driver of its own.
    return cuda, next((DRIVERS[each] for each in sorted(DRIVERS) if each >= cuda), "")


def installed() -> tuple[Version | None, str]:
    """The CUDA that the driver goes up to, None where that is not known, and the driver in words."""
    number = int(presence("cuda").facts.get("driver", 0))
    if not number:
        return None, "a driver that does not tell its version"
    cuda = number // 1000, number % 1000 // 10
    release = _release()
    who = f"NVIDIA's driver {release}, which" if release else "a driver that"
    return cuda, f"{who} goes up to CUDA {_said(cuda)}"


def _release() -> str:
    """Number of the kernel's driver, as Linux shows it; empty where it does not."""
    try:
        with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as file:
            found = re.search(r"\s(\d{3}\.\d+(?:\.\d+)?)\s", file.readline())
    except OSError:
        return ""
    return "" if found is None else found[1]


def driver_refuses_ptx(ptx: bytes) -> tuple[str, str]:
    """Returns why the driver does not take a text in PTX, and the remedy; two empty strings if it does, or nobody knows."""
    version, (cuda, words) = version_of(ptx), installed()
    if version is None or cuda is None or cuda >= needed(version)[0]:
        return "", ""
    return _reason(version, words), _remedy(version)


def refused(what: str, ptx: bytes, error: Exception) -> LibraryFailed:
    """The error of a text in PTX that the driver did not take."""
    version, (_, words) = version_of(ptx), installed()
    said = " ".join(f"{type(error).__name__}: {error}".split())
    if version is None:
        return LibraryFailed(f"the driver refuses {what}", cause=f"{said}; there is {words}", remedy="a newer driver")
    return LibraryFailed(f"the driver refuses {what}", cause=f"{said}; {_reason(version, words)}", remedy=_remedy(version))


def _reason(ptx: Version, words: str) -> str:
    return f"it is PTX {_said(ptx)}, of CUDA {_said(needed(ptx)[0])}, and there is {words}"


def _remedy(ptx: Version) -> str:
    cuda, driver = needed(ptx)
    return f"NVIDIA's driver {driver} or newer" if driver else f"a driver of NVIDIA's that goes up to CUDA {_said(cuda)}"


def _said(version: Version) -> str:
    return ".".join(map(str, version))
