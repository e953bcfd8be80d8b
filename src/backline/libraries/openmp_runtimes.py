"""The OpenMP runtimes of this process, each with its package, version and thread count.

Asking starts nothing and loads nothing. A runtime does not tell its version; the OpenMP functions it exports tell which
edition of the standard it has reached, and its package, if one brought it, tells the release.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ..native import elf
from ..native.library_search import Finding, LibrarySpec, search
from .in_process import LoadedLibrary, loaded

__all__ = ["Runtime", "describe", "loadable", "runtimes", "runtimes_of", "version"]

_KINDS = {"libgomp": "GNU", "libiomp5": "Intel", "libomp": "LLVM"}
_FILES = {
    "GNU": ("libgomp.so.1",),
    "LLVM": ("libomp.so.5", "libomp.so", "libomp.dylib"),
    "Intel": ("libiomp5.so", "libiomp5.dylib"),
}
#: Functions that came with an edition of OpenMP, the newest first.
_EDITIONS = (
    ("6.0", "omp_get_device_from_uid"), ("5.1", "omp_get_max_teams"), ("5.0", "omp_get_supported_active_levels"),
    ("4.5", "omp_get_max_task_priority"), ("4.0", "omp_get_num_teams"), ("3.1", "omp_in_final"), ("3.0", "omp_get_level"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Runtime:
    """An OpenMP runtime in this process.

    Attributes
    ----------
    kind : str
        "GNU", "LLVM" or "Intel".
    path : str
        The file.
    version : str
        "OpenMP 5.1", and the release if a package brought it: "OpenMP 6.0 (intel-openmp 2026.0.0)"; "" if not known.
    owner : str
        Who brought it: a package, "system", or a folder.
    threads : int or None
        Threads it would use now if called from this thread; None if asking would start it.
    serves : bool
        Whether its functions answer a library that asks the whole process for OpenMP.
    """

    kind: str
    path: str
    version: str
    owner: str
    threads: int | None
    serves: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.version or 'of unknown version'} from {self.owner}"


def runtimes() -> list[Runtime]:
    """Returns the OpenMP runtimes in this process now, the one that serves it first.

    Examples
    --------
    >>> all(runtime.kind in ("GNU", "LLVM", "Intel") for runtime in runtimes())
    True
    """
    return runtimes_of(loaded())


def runtimes_of(libraries: Iterable[LoadedLibrary]) -> list[Runtime]:
    """Returns the OpenMP runtimes among the libraries of a process."""
    found = []
    for library in libraries:
        if library.family in _KINDS:
            release = "" if library.deleted else _version(library.path, library.owner)
            found.append(
                Runtime(_KINDS[library.family], library.path, release, library.owner, library.threads, library.serves_openmp)
            )
    return sorted(found, key=lambda runtime: not runtime.serves)


def version() -> str | None:
    """Returns the runtimes in this process in one line, or None if there is none.

    Examples
    --------
    >>> version() is None or "OpenMP" in version()
    True
    """
    return describe(runtimes()) or None


def describe(found: Iterable[Runtime]) -> str:
    """Returns runtimes in one line.

    Examples
    --------
    >>> describe([Runtime("GNU", "/usr/lib/libgomp.so.1", "OpenMP 5.1", "system", 2, True)])
    'GNU OpenMP 5.1 from system'
    """
    return "; ".join(map(str, found))


def loadable() -> dict[str, Finding]:
    """Returns the file from which a runtime of each kind would be loaded: kind to finding, false where there is none.

    Examples
    --------
    >>> sorted(loadable())
    ['GNU', 'Intel', 'LLVM']
    """
    needs = ("omp_get_max_threads",)
    return {
        kind: search(LibrarySpec(f"{kind} OpenMP", prefix_globs=files, system_names=files, needs=needs, reuse_mapped=False))
        for kind, files in _FILES.items()
    }


@lru_cache(maxsize=16)
def _version(path: str, owner: str) -> str:
    try:
        exported = elf.exports(path, [name for _, name in _EDITIONS]) if elf.supported() else frozenset()
    except elf.Refused:
        return ""
    edition = next((f"OpenMP {number}" for number, name in _EDITIONS if name in exported), "")
    release = _release(owner)
    return f"{edition or 'OpenMP'} ({owner} {release})" if release else edition


def _release(owner: str) -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    if owner in ("system", "environment") or "/" in owner:
        return ""
    try:
        return installed(owner)
    except PackageNotFoundError:
        return ""
