"""Thread scopes: for each copy of a library, which threads it runs on, which setting limits them, and how far that reaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from .in_process import LoadedLibrary

__all__ = ["ThreadScope", "scope_of"]


class ThreadScope(NamedTuple):
    """Threads of a library.

    Attributes
    ----------
    pool : str
        Which threads it runs on.
    variables : tuple of str
        Environment variables that it reads when it is loaded, by precedence.
    call : str
        The function that sets their number later.
    reach : str
        What that call holds for: "this copy", "the calling thread", "the process".
    """

    pool: str
    variables: tuple[str, ...]
    call: str
    reach: str

    def text(self, environ: Mapping[str, str]) -> str:
        """Returns it in one line, with the variable that decides.

        Examples
        --------
        >>> scope_of(LoadedLibrary("libgomp", "openmp", "/lib/libgomp.so.1", "system")).text({"OMP_NUM_THREADS": "4"})
        'its own threads; OMP_NUM_THREADS=4; omp_set_num_threads holds for the calling thread'
        """
        parts = [self.pool]
        if self.variables:
            name = next((name for name in self.variables if environ.get(name, "").strip()), "")
            unset = " and ".join(self.variables) + (" are not set" if len(self.variables) > 1 else " is not set")
            parts.append(f"{name}={environ[name]}" if name else unset)
        if self.call:
            parts.append(f"{self.call} holds for {self.reach}")
        return "; ".join(parts)


_OPENMP: Final = ThreadScope("threads of the OpenMP runtime", ("OMP_NUM_THREADS",), "omp_set_num_threads", "the calling thread")
_RUNTIME: Final = _OPENMP._replace(pool="its own threads")
_NO_THREADS: Final = ThreadScope("the calling thread only", (), "", "")

#: By family and, where that matters, how it was built to run threads.
_SCOPES: Final[Mapping[tuple[str, str], ThreadScope]] = {
    ("openblas", "pthreads"): ThreadScope(
        "its own threads", ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"), "openblas_set_num_threads",
        "this copy",
    ),
    ("openblas", "openmp"): _OPENMP._replace(variables=("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")),
    ("openblas", "none"): _NO_THREADS,
    ("openblas", "team"): ThreadScope("Backline's threads", (), "backline.set_num_threads", "the process"),
    ("mkl", ""): ThreadScope(
        "threads of its threading layer", ("MKL_NUM_THREADS", "OMP_NUM_THREADS"), "MKL_Set_Num_Threads", "this copy"
    ),
    ("blis", ""): ThreadScope(
        "threads of the OpenMP runtime, or its own", ("BLIS_NUM_THREADS", "OMP_NUM_THREADS"), "bli_thread_set_num_threads",
        "this copy",
    ),
    ("onednn", "openmp"): _OPENMP,
    ("onednn", "none"): _NO_THREADS,
    ("libgomp", ""): _RUNTIME,
    ("libiomp5", ""): _RUNTIME,
    ("libomp", ""): _RUNTIME,
    ("tbb", ""): ThreadScope("its own threads", (), "tbb::global_control", "the process"),
}  # fmt: skip


def scope_of(library: LoadedLibrary) -> ThreadScope | None:
    """Returns the thread scope of a library; None where nothing general can be said of it.

    Examples
    --------
    >>> library = LoadedLibrary("openblas", "blas", "/a/libopenblas.so", "numpy", threading="pthreads")
    >>> scope_of(library).reach
    'this copy'
    """
    return _SCOPES.get((library.family, library.threading)) or _SCOPES.get((library.family, ""))
