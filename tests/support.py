"""Helpers of the contract, engine, core, thread and fault tests: seeds, layouts, every algorithm of a library, error bounds.

Test modules import it by path (``from support import ...``): each folder's conftest puts this folder on ``sys.path``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.libraries import errata_table
from backline.libraries.base import Algorithm, Refusal
from backline.native.process_map import mapped_files
from backline.problems.op_registry import operations
from processes import wrapped

Array = Any
LIBRARIES = ("mkl", "openblas", "blis", "numpy")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = ("float32", "float64", "complex64", "complex128")
HALVES = ("float16", "bfloat16")
THREADS = 2
SHIPPED_ERRATA = errata_table.TABLE  # before any test
# The environment of a program in which new memory holds numbers that a result would show.
POISON = {"MALLOC_PERTURB_": "1", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


def dtype_of(name: str) -> np.dtype[Any]:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def need(library: str) -> Any:
    """The library, or the end of the test where it is not installed (a failure in CI)."""
    found = libraries.get(library)
    if not found.available():
        pytest.skip(f"{library} is not available: {found.reason()}")
    return found


# Seeds ----------------------------------------------------------------------------------------------------------------


def new_seed() -> int:
    """A seed of this run; BACKLINE_TEST_SEED repeats an earlier one. pytest shows what is printed of a test that fails."""
    given = os.environ.get("BACKLINE_TEST_SEED", "")
    seed = int(given) if given else int.from_bytes(os.urandom(4), "little")
    print(f"BACKLINE_TEST_SEED={seed}")
    return seed


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Normal numbers with a spread of magnitudes; integers below 10."""
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0, 10, shape)).astype(dtype)
    x = np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape))
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return np.asarray(x, dtype)


# Layouts --------------------------------------------------------------------------------------------------------------


def misaligned(x: Array) -> Array:
    """A copy one byte past where its elements would be aligned."""
    raw = np.frombuffer(bytearray(x.nbytes + 1), np.uint8)[1:]
    y = raw.view(x.dtype).reshape(x.shape)
    y[...] = x
    assert x.size == 0 or x.dtype.alignment == 1 or not y.flags.aligned
    return y


def _wide(x: Array) -> Array:
    """Columns of a matrix that is much wider: a large leading dimension."""
    base = np.zeros((*x.shape[:-1], x.shape[-1] + 1000), x.dtype)
    y = base[..., 17 : 17 + x.shape[-1]]
    y[...] = x
    return y


def _steps(x: Array) -> Array:
    """Every second element along every axis."""
    base = np.zeros([2 * n for n in x.shape], x.dtype)
    y = base[(..., *(slice(None, None, 2) for _ in x.shape))]
    y[...] = x
    return y


def _negative(x: Array, axis: int) -> Array:
    return np.flip(np.array(np.flip(x, axis), order="C"), axis) if x.ndim else x.copy()


def _fortran(x: Array) -> Array:
    """The last two axes in column-major order, the batch before them."""
    return np.array(np.swapaxes(x, -1, -2), order="C").swapaxes(-1, -2) if x.ndim > 1 else x.copy()


def _batch_last(x: Array) -> Array:
    """The batch innermost in memory: no matrix of it is contiguous."""
    return np.array(x, order="F")


LAYOUTS: dict[str, Any] = {
    "C": lambda x: x.copy(),
    "F": _fortran,
    "batch last": _batch_last,
    "negative rows": lambda x: _negative(x, -2 if x.ndim > 1 else -1),
    "negative columns": lambda x: _negative(x, -1),
    "steps": _steps,
    "wide": lambda x: _wide(x) if x.ndim else x.copy(),
    "misaligned": misaligned,
}


def spread(x: Array, axis: int = -1) -> Array:
    """The first slice along an axis repeated by a stride of 0."""
    first = np.take(x, [0], axis) if x.shape[axis] else x
    return np.broadcast_to(first, x.shape)


# Every algorithm ------------------------------------------------------------------------------------------------------


def algorithms(library: str, problem: Any, threads: int = THREADS) -> list[Algorithm]:
    """Returns what a library lists for a Problem, refusals left out."""
    return [a for a in need(library).algorithms(problem, threads) if not isinstance(a, Refusal)]


def problem_of(op: str, *args: Any, **kwargs: Any) -> Any:
    return operations[op].build(*args, **kwargs)


def arrays_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Array]:
    found: list[Array] = []
    for value in (*args, *kwargs.values()):
        found += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, np.ndarray)]
    return found


def run_each(library: str, op: str, *args: Any, threads: int = THREADS, **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Prepare every algorithm of the library for a call and run it; yields its name and what it returned."""
    lib = need(library)
    problem = problem_of(op, *args, **kwargs)
    for algorithm in algorithms(library, problem, threads):
        plan = lib.prepare(problem, algorithm)
        yield f"{algorithm.key} on {algorithm.threads}", plan(*arrays_in(args, kwargs))


# Error bounds ---------------------------------------------------------------------------------------------------------


def roundoff(dtype: np.dtype[Any]) -> float:
    """Unit roundoff of a dtype's arithmetic."""
    if dtype.kind not in "fcV":
        return 0.0
    name = dtype.name
    bits = {"float16": 11, "bfloat16": 8, "float32": 24, "complex64": 24, "float64": 53, "complex128": 53}[name]
    return 2.0**-bits


def smallest(dtype: np.dtype[Any]) -> float:
    """Smallest positive subnormal."""
    return {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "complex64": 2.0**-149}.get(dtype.name, 2.0**-1074)


def wide(x: Array) -> Array:
    """The array in the widest type that NumPy has here: 64-bit mantissas."""
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def assert_close(result: Array, reference: Array, bound: Array, what: str) -> None:
    """Componentwise |result - reference| <= bound; NaN and infinity where the reference has them."""
    result = np.asarray(result)
    assert result.shape == reference.shape, f"{what}: shape {result.shape}, not {reference.shape}"
    got = wide(result) if result.dtype.kind != "b" else result.astype(np.longdouble)
    special = ~np.isfinite(reference)
    if special.any():
        same = np.isnan(got) & np.isnan(reference) | (got == reference)
        assert same[special].all(), (
            f"{what}: {got[special][~same[special]][:3]} in the place of {reference[special][~same[special]][:3]}"
        )
    with np.errstate(invalid="ignore"):
        error = np.abs(got - reference)
    wrong = ~(error <= bound) & ~special
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.size} elements are wrong; at {at}: {got[at]}, not {reference[at]}, "
            f"error {float(error[at]):.3e} above {float(np.broadcast_to(bound, error.shape)[at]):.3e}"
        )


# Programs of their own ------------------------------------------------------------------------------------------------


def python(program: str, *, timeout: float = 200, env: dict[str, str] | None = None, check: bool = True) -> Any:
    """Run a program in a fresh interpreter; its output is in the message if it fails or hangs."""
    source = str(Path(backline.__file__).parents[1])
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "BACKLINE_SHARE_PROCESSORS": "0", **(env or {})}
    environment = {k: v for k, v in environment.items() if v is not None}
    done = subprocess.run(
        wrapped([sys.executable, "-c", textwrap.dedent(program)]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check:
        assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


# Fixtures (import them into a test module to use them there) -----------------------------------------------------------


@pytest.fixture
def seed() -> int:
    return new_seed()


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def clean() -> Iterator[None]:
    """Default switches before and after the test, and nothing kept of the plans made in it."""
    from backline import _core
    from backline.engine import first_sights, plan_caches, refusals
    from backline.engine.tuning import record_store
    from backline.libraries import errata
    from backline.switches import store
    from backline.switches.scope_state import states

    # BLIS before 1.1 is refused all products of float32, since they may read past an array. What it computes is right, and is
    # what tests of products look at: their arrays do not end at the end of mapped memory.
    assert errata_table.TABLE is SHIPPED_ERRATA, "a test before this one, or a fixture of it, left another table in place"
    errata_table.TABLE = tuple(row for row in SHIPPED_ERRATA if row.library != "blis")
    errata.clear()

    def start() -> None:
        store._restart()
        record_store.reload()
        plan_caches.clear()
        first_sights.clear()
        refusals.warned.clear()
        _core.memo_clear()

    start()
    switches.assign("num_threads", THREADS, depth=1)
    yield
    frame = states.get(None)
    leaked = frame.layers if frame is not None else ()
    for layer in reversed(leaked):
        layer[0].__exit__(None, None, None)
    errata_table.TABLE = SHIPPED_ERRATA
    errata.clear()
    start()
    assert not leaked, f"the test left scopes open: {[layer[0] for layer in leaked]}"


def forget_plugins() -> None:
    """Takes plug-ins out again, and starts from untouched switches: in a new process they would not have been looked for."""
    from backline import backends
    from backline.libraries import plugins
    from backline.switches import store

    for name in plugins.found():
        sys.modules.pop(f"backline.backends.{name}", None)
        vars(backends).pop(name, None)
    plugins._forget()
    store._restart()


@functools.cache
def _openblas_of_numpy() -> Any:
    """NumPy maps its BLAS when it is imported; the list of what is mapped is long, and read for this once."""
    path = next((f.path for f in mapped_files() if "numpy.libs" in f.path and "openblas" in f.path), None)
    return ctypes.CDLL(path) if path else None


@pytest.fixture
def numpy_on_one_thread() -> Iterator[None]:
    """NumPy's own BLAS on one thread, where it is the OpenBLAS of a wheel: references must not fight the tests for cores."""
    library = _openblas_of_numpy()
    if library is None:
        yield
        return
    before = library.scipy_openblas_get_num_threads64_()
    library.scipy_openblas_set_num_threads64_(1)
    yield
    library.scipy_openblas_set_num_threads64_(before)
