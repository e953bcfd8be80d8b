"""NumPy's BLAS on one thread, for calls that may use no more.

NumPy's BLAS takes its number of threads for the process and not for a call. While a call of Backline's that may use one thread
runs, the count of an OpenBLAS of NumPy's own is therefore one, and afterwards what it was before; products that other threads
compute with NumPy meanwhile run on one thread as well. Of another BLAS, the functions that this needs are not known.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...problems import Problem
from ..base import BORROWED, Algorithm, Refusal
from . import reference_linalg

__all__ = ["BORROWED", "by_blas_or_loops", "limited", "loops_product", "marked", "openblas_thread_count", "refusal"]

THREADED = 1e6  # floating-point operations below which no BLAS uses threads
NAMES = tuple((prefix, suffix) for prefix in ("scipy_", "") for suffix in ("64_", ""))


class _Count:
    """The number of threads of NumPy's OpenBLAS: one while anybody needs that."""

    def __init__(self, get: Callable[[], int], put: Callable[[int], None]) -> None:
        self._get, self._put = get, put
        self._lock = threading.Lock()
        self._users, self._former = 0, 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._former = self._get()
                if self._former != 1:
                    self._put(1)
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users = max(self._users - 1, 0)
            if self._users == 0 and self._former != 1:
                self._put(self._former)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # a thread that does not exist here may have held it
        self._users = 0


def openblas_thread_count(path: str) -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Returns the functions that get and set the thread count of a loaded OpenBLAS; None where it has none by known names."""
    try:
        library = ctypes.CDLL(path, mode=getattr(os, "RTLD_NOLOAD", 0) | os.RTLD_NOW)
    except OSError:
        return None
    for prefix, suffix in NAMES:
        get, put = (getattr(library, f"{prefix}openblas_{verb}_num_threads{suffix}", None) for verb in ("get", "set"))
        if get is not None and put is not None:
            get.restype, get.argtypes = ctypes.c_int, ()
            put.restype, put.argtypes = None, (ctypes.c_int,)
            return get, put
    return None


@lru_cache(maxsize=1)
def _count() -> _Count | None:
    """Finds the function that sets the thread count of NumPy's OpenBLAS; None where it is another BLAS, or is not found."""
    from ...native.process_map import mapped_files
    from .. import registry
    from ..recognition import owner

    family = registry.find("openblas")
    assert family is not None
    for file in mapped_files():
        if "openblas" not in file.name or owner(file.path, family) != "numpy":
            continue
        functions = openblas_thread_count(file.path)
        if functions is not None:
            return _Count(*functions)
    return None


def refusal(name: str, problem: Problem, threads: int) -> Refusal | None:
    """Refusal of an algorithm of NumPy's that cannot run on so many threads, because of its BLAS; None where it can."""
    if threads == 1 and problem.flops > THREADED and reference_linalg.blas_threads() > 1 and _count() is None:
        return Refusal("numpy", name, "NumPy's BLAS takes no thread count for one call, and uses more than one")
    return None


def by_blas_or_loops(
    name: str, problem: Problem, threads: int, *, precision: str = "", note: str = "", engine: str = "", **order: Any
) -> Iterator[Algorithm | Refusal]:
    """Lists the two ways of NumPy's: products by its BLAS, under a name, or by its own loops on one thread and in one order."""
    if no := refusal(name, problem, threads):
        yield no
    else:
        yield Algorithm(
            library="numpy", name=name, threads=threads, scaled=True, precision=precision, pool="numpy" if threads > 1 else "",
            note=note + engine, **order,
        )  # fmt: skip
    note = f"without a BLAS: slow{engine}"
    yield Algorithm(library="numpy", name="loops", precision=precision, level="threads", basis="construction", note=note)


def loops_product(a: Any, b: Any) -> Any:
    """A product of matrices without a BLAS."""
    return np.einsum("ij,jk->ik", a, b)


def marked(algorithm: Algorithm, problem: Problem) -> Algorithm:
    """The algorithm, marked where it runs on one thread only by setting the count of the process."""
    if algorithm.threads != 1 or not algorithm.scaled or problem.flops <= THREADED or reference_linalg.blas_threads() == 1:
        return algorithm
    note = "; ".join(filter(None, [algorithm.note, "all of NumPy's products run on one thread meanwhile"]))
    return replace(algorithm, note=note, traits=(*algorithm.traits, BORROWED))


def limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with NumPy's BLAS on one thread."""
    count = _count()
    if count is None:
        return function

    def run(*arrays: Any, **scalars: Any) -> Any:
        with count:
            return function(*arrays, **scalars)

    return run
