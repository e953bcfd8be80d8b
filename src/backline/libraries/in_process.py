"""The numerical libraries that this process has mapped, whoever brought them.

NumPy, SciPy, PyTorch and others each bring libraries of their own, with thread pools of their own. This
module lists them: what each is, which package brought it, how many threads it would use now. `conflicts` says what a
combination means.

Nothing is loaded by asking, and nothing is started: a library is only called through a handle it already has,
and only functions that return something already known. Where the answer would need more than that it is left
open ("" or None). BLAS code built into extension modules is not seen.

On Linux only; elsewhere the list is empty.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..native import thread_team
from ..native.process_map import MappedFile, mapped_files, parse_maps, read_maps
from . import file_facts
from .recognition import Match, classify, families, owner
from .registry import LibraryInfo

__all__ = ["LoadedLibrary", "copies", "describe", "loaded", "loaded_in"]


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """A library in this process.

    Attributes
    ----------
    family : str
        "openblas", "mkl", "libgomp"; a part of MKL is "mkl.core".
    kind : str
        "blas", "fft", "nn", "openmp", "threads", "cuda".
    path : str
        The file.
    owner : str
        Who brought it: a package, "system", or a folder.
    version : str
        "" if the library cannot say without side effects.
    integers : str
        Width of the integers its BLAS takes: "LP64" (32 bits), "ILP64" (64 bits), both, or "".
    threading : str
        What runs its threads, if that is known: "pthreads", "openmp", "none", "tbb"; "team" where that is Backline's, on libgomp.
    threads : int or None
        Threads it would use now if called from this thread; None if not known.
    evidence : str
        What it was known by.
    serves_openmp : bool
        Whether this is the file that answers when a library without a runtime of its own asks the process for
        OpenMP.
    deleted : bool
        Whether the file was removed or replaced since it was mapped.
    """

    family: str
    kind: str
    path: str
    owner: str
    version: str = ""
    integers: str = ""
    threading: str = ""
    threads: int | None = None
    evidence: str = "name"
    serves_openmp: bool = False
    deleted: bool = False


def loaded() -> tuple[LoadedLibrary, ...]:
    """Returns the numerical libraries mapped into this process now.

    Returns
    -------
    tuple of LoadedLibrary
        In order of family and path.

    Notes
    -----
    The files are read once for each set of mapped files; a further call costs reading the kernel's list and
    asking for thread counts, about a millisecond or two. Not for use within a call.

    Examples
    --------
    >>> all(library.family for library in loaded())
    True
    """
    files = tuple(file for file in mapped_files() if ".so" in file.name)
    identified = _identify(files, families())
    present = [library.family for library, _, _ in identified]
    server = _openmp_server(files) if {"libgomp", "libiomp5", "libomp"}.intersection(present) else None
    result = []
    for library, match, file in identified:
        if not library.deleted and _may_be_asked(library, file, present):
            library = replace(library, **_ask(library, match))
        if library.threading == "pthreads" and os.path.realpath(library.path) in thread_team.driven:
            library = replace(library, threading="team")
        if file == server and library.kind == "openmp":
            library = replace(library, serves_openmp=True)
        result.append(library)
    return tuple(sorted(result, key=lambda library: (library.kind, library.family, library.path)))


def loaded_in(process: int) -> tuple[LoadedLibrary, ...]:
    """Returns the numerical libraries mapped into another process, by its number.

    Only files tell about them: no version is known but those that stand in a file, and no count of threads.

    Raises
    ------
    OSError
        There is no such process, or it may not be read.
    """
    files = tuple(file for file in parse_maps(read_maps(process)) if ".so" in file.name)
    found = []
    for library, match, _ in _identify(files, families()):
        brought_by = file_facts.origin(library.path, match.family.distribution, library.owner)
        told = {} if library.deleted else file_facts.facts(library.path, library.family)
        found.append(replace(library, owner=brought_by, **told))
    return tuple(sorted(found, key=lambda library: (library.kind, library.family, library.path)))


def copies(libraries: Iterable[LoadedLibrary]) -> dict[str, int]:
    """Returns the number of copies of each family; the parts of MKL are not counted apart.

    Examples
    --------
    >>> one = LoadedLibrary("openblas", "blas", "/a/libopenblas.so", "numpy")
    >>> copies([one, replace(one, path="/b/libopenblas.so", owner="scipy")])
    {'openblas': 2}
    """
    count: dict[str, int] = {}
    for library in libraries:
        if "." not in library.family:
            count[library.family] = count.get(library.family, 0) + 1
    return count


def describe(libraries: Iterable[LoadedLibrary]) -> str:
    """Returns a plain table of the libraries, one a line."""
    rows = [("library", "version", "integers", "threading", "threads", "from", "file")]
    for library in libraries:
        threads = "" if library.threads is None else str(library.threads)
        rows.append((library.family, library.version, library.integers, library.threading, threads,
                     library.owner, library.path))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


@lru_cache(maxsize=2)
def _identify(
    files: tuple[MappedFile, ...], among: tuple[LibraryInfo, ...]
) -> tuple[tuple[LoadedLibrary, Match, MappedFile], ...]:
    """Returns the facts that do not change while the same files are mapped and the same libraries known."""
    found = []
    for file in files:
        # Where the file was deleted another may bear its name by now: that one says nothing about this.
        matches = classify(file.name if file.deleted else file.path, read=not file.deleted, among=among)
        for match in matches:
            family = match.family
            library = LoadedLibrary(
                family.shown_as, family.kind, file.path, owner(file.path, family), evidence=match.evidence,
                threading=_LAYERS.get(family.name, ""), deleted=file.deleted,
                version=_version_in_name(file.name) if family.kind == "cuda" else "",
            )  # fmt: skip
            found.append((library, match, file))
    return tuple(found)


def _may_be_asked(library: LoadedLibrary, file: MappedFile, present: list[str]) -> bool:
    """Tells whether asking a library has no side effects, given the other families in the process."""
    if library.family == "mkl" and file.name.startswith("libmkl_rt") and "mkl.core" not in present:
        # libmkl_rt alone is an empty shell: to answer it would choose and open its layers.
        return False
    llvm = present.count("libiomp5") + present.count("libomp")
    if library.family in ("libiomp5", "libomp") or (library.family == "mkl" and llvm):
        # The first question initialises this runtime, and with a second one in the process that ends it.
        return llvm == 1 and _llvm_runtime_started()
    return True


def _llvm_runtime_started() -> bool:
    # Once initialised the runtime keeps a mark under this name, by which a second copy would know of it: a
    # piece of shared memory, or in older versions and where there is none an environment variable. (The C
    # library's variable, which os.environ does not show.)
    mark = f"__KMP_REGISTERED_LIB_{os.getpid()}"
    if any(os.path.exists(f"{place}/{mark}_{os.getuid()}") for place in ("/dev/shm", "/tmp")):
        return True
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_char_p, (ctypes.c_char_p,)
    return any(getenv(name.encode()) for name in (mark, f"{mark}_{os.getuid()}"))


_LAYERS = {
    "mkl.intel_thread": "openmp (Intel)", "mkl.gnu_thread": "openmp (GNU)", "mkl.tbb_thread": "tbb",
    "mkl.sequential": "none",
}  # fmt: skip


def _version_in_name(name: str) -> str:
    match = re.search(r"\.so\.([\d.]+)$", name)
    return match[1] if match else ""


def _openmp_server(files: Iterable[MappedFile]) -> MappedFile | None:
    """Returns the file whose functions a library gets that asks the whole process for OpenMP."""
    try:
        function = ctypes.CDLL(None).omp_get_max_threads
    except (OSError, AttributeError):
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return next((file for file in files if file.start <= address < file.end), None)


def _ask(library: LoadedLibrary, match: Match) -> dict[str, Any]:
    """Returns the facts that the library tells about itself, through the handle it has."""
    question = _QUESTIONS.get(library.family)
    if question is None:
        return {}
    import _ctypes

    try:
        # NOLOAD: answers only if the very file is mapped already, and never loads it.
        handle = _ctypes.dlopen(library.path, os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):
        return {}
    try:
        return question(ctypes.CDLL(library.path, handle=handle), match)
    except (AttributeError, ValueError):
        # A function of another version of the library: what it does not have it does not say.
        return {}
    finally:
        _ctypes.dlclose(handle)


def _text(library: ctypes.CDLL, name: str) -> str:
    function = getattr(library, name)
    function.restype, function.argtypes = ctypes.c_char_p, ()
    return (function() or b"").decode("ascii", "replace")


def _openblas(library: ctypes.CDLL, match: Match) -> dict[str, Any]:
    marker = next((name for name in match.family.markers if name in match.exported), "openblas_get_config")
    prefix, _, suffix = marker.partition("openblas_get_config")
    words = _text(library, marker).split()
    version = next((word for word in words if word[:1].isdigit()), "")
    wide = "USE64BITINT" in words or suffix == "64_"
    answer: dict[str, Any] = {"version": version, "integers": "ILP64" if wide else "LP64"}
    parallel = getattr(library, f"{prefix}openblas_get_parallel{suffix}")()
    answer["threading"] = {0: "none", 1: "pthreads", 2: "openmp"}.get(parallel, "")
    answer["threads"] = getattr(library, f"{prefix}openblas_get_num_threads{suffix}")()
    return answer


def _mkl(library: ctypes.CDLL, match: Match) -> dict[str, Any]:
    buffer = ctypes.create_string_buffer(256)
    library.MKL_Get_Version_String(buffer, ctypes.c_int(len(buffer) - 1))
    version = re.search(r"Version ([\d.]+)", buffer.value.decode("ascii", "replace"))
    answer: dict[str, Any] = {"version": version[1] if version else ""}
    if match.evidence == "name and symbols":
        answer["integers"] = "LP64 and ILP64"
    answer["threads"] = library.MKL_Get_Max_Threads()
    return answer


def _blis(library: ctypes.CDLL, match: Match) -> dict[str, Any]:
    width = library.bli_info_get_blas_int_type_size()
    # Its thread count is left open: the first question about threads initialises the library.
    return {
        "version": _text(library, "bli_info_get_version_str"),
        "integers": "ILP64" if width == 64 else "LP64",
    }


def _openmp(library: ctypes.CDLL, match: Match) -> dict[str, Any]:
    return {"threads": library.omp_get_max_threads()}


def _tbb(library: ctypes.CDLL, match: Match) -> dict[str, Any]:
    return {"version": _text(library, "TBB_runtime_version")}


class _DnnlVersion(ctypes.Structure):
    _fields_ = (
        ("numbers", ctypes.c_int * 3),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


def _onednn(library: ctypes.CDLL, match: Match) -> dict[str, Any]:
    function = library.dnnl_version
    function.restype, function.argtypes = ctypes.POINTER(_DnnlVersion), ()
    said = function().contents
    runtime = {1: "none", 2: "openmp", 4: "tbb", 8: "threadpool", 512: "sycl"}.get(said.cpu_runtime, "")
    return {"version": ".".join(map(str, said.numbers)), "threading": runtime}


def _fftw(library: ctypes.CDLL, match: Match) -> dict[str, Any]:
    for name in ("fftw_version", "fftwf_version", "fftwl_version"):
        if name in match.exported:
            # Data, not a function: a text that ends with a zero byte.
            text = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, name)))
            return {"version": text.decode("ascii", "replace").partition("-")[2].partition("-")[0]}
    return {}


_QUESTIONS: dict[str, Callable[[ctypes.CDLL, Match], dict[str, Any]]] = {
    "openblas": _openblas, "mkl": _mkl, "blis": _blis, "libgomp": _openmp, "libiomp5": _openmp,
    "libomp": _openmp, "tbb": _tbb, "onednn": _onednn, "fftw": _fftw,
}  # fmt: skip
