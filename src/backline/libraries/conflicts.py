"""Combinations of numerical libraries in one process that conflict, each with its consequence and a remedy.

The judgement is a function of a list, so that combinations that no test machine has can be tested. Nothing is changed here:
environment variables are the user's, libraries stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .in_process import LoadedLibrary, loaded

__all__ = ["SEVERITIES", "Conflict", "conflicts"]

#: How bad, the worst first: the process may end; numbers may be wrong; calls are slow; worth knowing.
SEVERITIES = ("fatal", "wrong", "slow", "note")


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict between libraries of one process.

    Attributes
    ----------
    kind : str
        Which combination: "two LLVM OpenMP runtimes".
    severity : str
        One of `SEVERITIES`.
    libraries : tuple of LoadedLibrary
        Those concerned; empty if the cause is a variable.
    meaning : str
        What it leads to.
    remedy : str
        What to do.
    """

    kind: str
    severity: str
    libraries: tuple[LoadedLibrary, ...]
    meaning: str
    remedy: str

    def __str__(self) -> str:
        who = ", ".join(f"{library.path} (from {library.owner})" for library in self.libraries)
        lines = [f"{self.kind} [{self.severity}]", f"  means : {self.meaning}", f"  remedy: {self.remedy}"]
        if who:
            lines.insert(1, f"  files : {who}")
        return "\n".join(lines)


def conflicts(
    libraries: Iterable[LoadedLibrary] | None = None, environ: Mapping[str, str] | None = None
) -> list[Conflict]:
    """Returns what is wrong, slow or worth knowing about a set of libraries in one process.

    Parameters
    ----------
    libraries : iterable of LoadedLibrary, optional
        The libraries; by default those that are mapped now.
    environ : mapping, optional
        The environment variables, of which the OpenMP runtimes' own matter; by default those of this process.

    Returns
    -------
    list of Conflict
        The worst first; empty if there is nothing to say.

    Examples
    --------
    >>> conflicts([], {"KMP_DUPLICATE_LIB_OK": "TRUE"})[0].kind
    'KMP_DUPLICATE_LIB_OK is set'
    """
    everything = loaded() if libraries is None else tuple(libraries)
    environ = os.environ if environ is None else environ
    families: dict[str, list[LoadedLibrary]] = {}
    for library in everything:
        families.setdefault(library.family, []).append(library)
    found = [
        *_openmp(families),
        *_wrong_layer(families),
        *_several_copies(families),
        *_spinning(everything, environ),
        *_duplicate_allowed(environ),
        *_replaced(everything),
        *_two_cudas(everything),
    ]
    return sorted(found, key=lambda conflict: SEVERITIES.index(conflict.severity))


_Families = Mapping[str, list[LoadedLibrary]]


def _openmp(families: _Families) -> Iterable[Conflict]:
    gnu = families.get("libgomp", [])
    llvm = [*families.get("libiomp5", []), *families.get("libomp", [])]
    if len(llvm) > 1:
        yield Conflict(
            "two LLVM OpenMP runtimes", "fatal", tuple(llvm),
            "libiomp5 and libomp are one family, and two copies in one process end it with 'OMP: Error #15', "
            "or crash or hang, even when only a thread count is asked for",
            "keep one: choose MKL's threading layer with MKL_THREADING_LAYER=GNU before its first use, or "
            "take packages of one build family. Do not set KMP_DUPLICATE_LIB_OK: it silences the check and "
            "keeps both",
        )  # fmt: skip
    if gnu and llvm:
        yield Conflict(
            "libgomp beside an LLVM OpenMP runtime", "slow", (*gnu, *llvm),
            "two pools of threads: calls that alternate between them use more threads than there are cores",
            "limit the threads of both, or have MKL use libgomp too: MKL_THREADING_LAYER=GNU before its "
            "first use",
        )  # fmt: skip
    if len(gnu) > 1:
        yield Conflict(
            "several copies of libgomp", "slow", tuple(gnu),
            "each copy has threads and settings of its own: a limit set in one is not seen by the others, "
            "and code that alternates between them is slow",
            "keep to one of the packages in this process where you can, else limit the threads of each",
        )  # fmt: skip


def _wrong_layer(families: _Families) -> Iterable[Conflict]:
    layer = families.get("mkl.intel_thread", [])
    # Harmless while Intel's runtime answers the process: then the layer finds what it was built for.
    server = [library for library in families.get("libgomp", []) if library.serves_openmp]
    if layer and server:
        yield Conflict(
            "MKL's Intel layer while libgomp serves the process", "wrong", (*layer, *server),
            "the layer may be bound to libgomp's functions; threaded products are then wrong, without an "
            "error. It happens when the layer is chosen by a call after libgomp became global (importing "
            "PyTorch does that)",
            "choose MKL_THREADING_LAYER=GNU (or SEQUENTIAL) before MKL's first use, or use MKL before "
            "PyTorch is imported; check a product whose result is known, at a size that threads",
        )  # fmt: skip


def _several_copies(families: _Families) -> Iterable[Conflict]:
    # A copy on Backline's team has no threads of its own at work, and calls set its count for themselves; one on a single
    # thread has none to limit.
    openblas = [each for each in families.get("openblas", []) if each.threading != "team" and each.threads != 1]
    if len(openblas) > 1:
        yield Conflict(
            "several copies of OpenBLAS", "slow", tuple(openblas),
            f"{len(openblas)} pools of threads with {len(openblas)} settings: limiting one leaves the others",
            "limit the threads of each; leave all but the one in use at one thread",
        )  # fmt: skip
    mkl = families.get("mkl", [])
    if len(mkl) > 1:
        yield Conflict(
            "several copies of MKL", "note", tuple(mkl),
            "each has thread counts, reproducibility mode and verbose switch of its own; and where one was "
            "opened globally, functions of the other may run in it",
            "set what you need in each, and read back what took effect",
        )  # fmt: skip


def _spinning(libraries: tuple[LoadedLibrary, ...], environ: Mapping[str, str]) -> Iterable[Conflict]:
    pools = [library for library in libraries if _spins(library, environ)]
    if len(pools) < 2:
        return
    # What every process has in which NumPy and Backline compute. Backline puts NumPy's routines last for that reason.
    usual = sorted((library.family, library.owner == "numpy") for library in pools) == [("libgomp", False), ("openblas", True)]
    yield Conflict(
        "several pools that wait by spinning", "note" if usual else "slow", tuple(pools),
        "after a call the threads of a pool keep their cores busy for a while; calls that alternate "
        "between pools were measured to take up to ten times as long",
        "leave one pool threaded and the others at one thread (OPENBLAS_NUM_THREADS=1 for NumPy's), or start the program with "
        "OMP_WAIT_POLICY=PASSIVE" if usual else
        "leave one pool threaded and the others at one thread, or start the program with OMP_WAIT_POLICY=PASSIVE",
    )  # fmt: skip


def _spins(library: LoadedLibrary, environ: Mapping[str, str]) -> bool:
    """Tells whether a library has threads of its own that wait by spinning; an unknown count may be many."""
    if library.threads == 1:
        return False
    if library.family == "openblas":
        return library.threading == "pthreads"
    if environ.get("OMP_WAIT_POLICY", "").strip().upper() == "PASSIVE":
        return False
    if library.family == "libgomp":
        return environ.get("GOMP_SPINCOUNT", "").strip() != "0"
    if library.family in ("libiomp5", "libomp"):
        # Not known to have started: it has no threads that could spin.
        return library.threads is not None and environ.get("KMP_BLOCKTIME", "").strip() != "0"
    return False


def _duplicate_allowed(environ: Mapping[str, str]) -> Iterable[Conflict]:
    value = environ.get("KMP_DUPLICATE_LIB_OK", "")
    if value.strip().lower() in ("1", "true", "t", "yes", "y", "on", ".true."):
        yield Conflict(
            "KMP_DUPLICATE_LIB_OK is set", "note", (),
            f"KMP_DUPLICATE_LIB_OK={value} (importing scikit-learn sets it) silences the check for two "
            "OpenMP runtimes and nothing else: a process with both then hangs or crashes now and then "
            "instead of stopping at once",
            "with one runtime in the process nothing need be done; with two, remove one and unset it",
        )  # fmt: skip


def _replaced(libraries: tuple[LoadedLibrary, ...]) -> Iterable[Conflict]:
    gone = tuple(library for library in libraries if library.deleted)
    if gone:
        yield Conflict(
            "a library was replaced under this process", "note", gone,
            "its file was removed or replaced (an upgrade?) since it was loaded: parts opened later may not "
            "fit",
            "restart the process",
        )  # fmt: skip


# Major version in the name of a file -> the CUDA it is of.
_CUDA_OF = {
    "cudart": {"12": "12", "13": "13"}, "cublas": {"12": "12", "13": "13"}, "cublaslt": {"12": "12", "13": "13"},
    "cusolver": {"11": "12", "12": "13"}, "cufft": {"11": "12", "12": "13"},
}  # fmt: skip


def _two_cudas(libraries: tuple[LoadedLibrary, ...]) -> Iterable[Conflict]:
    found: dict[str, list[LoadedLibrary]] = {}
    for library in libraries:
        of = _CUDA_OF.get(library.family, {}).get(library.version.partition(".")[0])
        if of is not None:
            found.setdefault(of, []).append(library)
    if len(found) > 1:
        names = " and ".join(sorted(found))
        yield Conflict(
            f"libraries of CUDA {names}", "note", tuple(one for of in sorted(found) for one in found[of]),
            "packages in this process were built for different CUDAs: each brings kernels and workspaces of its own to the "
            "device, and which libraries a third package meets depends on what was imported first",
            "packages for one CUDA: CuPy, cuDNN, PyTorch and JAX say in their names which (cupy-cuda13x, nvidia-cudnn-cu13, ...)",
        )  # fmt: skip
