"""Thread counts: what a scope allows is what the library uses, whatever ran before."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, linalg
from backline.native import thread_team
from support import algorithms, clean, need, numpy_on_one_thread, problem_of, rng, seed

pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed


def calls(rng: np.random.Generator) -> dict[str, Callable[[], Any]]:
    """One call of each family, at sizes around those where libraries begin to divide the work."""
    found: dict[str, Callable[[], Any]] = {}

    def add(name: str, function: Any, *args: Any) -> None:
        found[f"{name} {len(found)}"] = lambda: function(*args)

    for n in (3000, 9000, 12000, 30000, 200000):
        for dtype in ("f4", "f8", "c16"):
            x = rng.standard_normal(n).astype(dtype)
            add(f"dot {dtype}", backline.dot, x, x[::-1].copy())
    for n in (60, 96, 100, 130, 170, 300):
        a, x = rng.standard_normal((n, n)), rng.standard_normal(n)
        add("mv", backline.mv, a, x)
        add("mv transposed", backline.mv, a.T, x)
        add("mm", backline.mm, a, a)
        add("thin", backline.mm, a[:3], a)
        add("mm f32", backline.mm, a.astype("f"), a.astype("f"))
    stack = rng.standard_normal((12, 40, 40))
    add("bmm", backline.bmm, stack, stack)
    half = rng.standard_normal((130, 130)).astype(np.float16)
    add("half", backline.mm, half, half)
    for n in (20, 60, 140):
        a = rng.standard_normal((n, n)) + n * np.eye(n)
        s = a + a.T
        for function, args in (
            (linalg.inv, (a,)), (linalg.solve, (a, a[:, :9])), (linalg.cholesky, (s,)), (linalg.qr, (a,)), (linalg.eigvalsh, (s,)),
            (linalg.eigh, (s,)), (linalg.svdvals, (a,)), (linalg.svd, (a,)), (linalg.lu_factor, (a,)), (linalg.eigvals, (a,)),
            (linalg.lstsq, (a, a[:, :2])),
        ):  # fmt: skip
            add(function.__name__, function, *args)
        add("solve_triangular", lambda x, y: linalg.solve_triangular(x, y, upper=True), a, a[:, :9])
        add("batch of inverses", linalg.inv, np.stack([a, s]))
    return found


def bits(result: Any) -> list[bytes]:
    return [np.ascontiguousarray(x).tobytes() for x in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis"])
def test_same_bits_for_any_number_of_threads(library: str, rng: np.random.Generator) -> None:
    """The promise of `determinism_level="threads"`, also for small calls that run without asking the library for a count."""
    need(library)
    large = rng.standard_normal((300, 300))
    different = []
    with backline.use(library, only=True), backline.backends.flags(deterministic=True, determinism_level="threads"):
        for name, call in calls(rng).items():
            if library == "blis" and any(x in name for x in ("inv", "solve", "cholesky", "qr", "eig", "svd", "lu", "lst")):
                continue
            results = []
            for threads in (1, 2, 1, 2):
                # Without determinism in between: leaves another count in force in the library.
                with backline.backends.flags(deterministic=False), backline.num_threads(3 - threads):
                    backline.mm(large, large)
                with backline.num_threads(threads):
                    results.append(bits(call()))
            if any(r != results[0] for r in results):
                different.append(name)
    assert not different, different


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis", "numpy"])
def test_same_bits_from_run_to_run(library: str, rng: np.random.Generator) -> None:
    need(library)
    different = []
    with backline.use(library, only=True), backline.backends.flags(deterministic=True, determinism_level="run"):
        for name, call in calls(rng).items():
            if library == "blis" and any(x in name for x in ("inv", "solve", "cholesky", "qr", "eig", "svd", "lu", "lst")):
                continue
            first = bits(call())
            if any(bits(call()) != first for _ in range(3)):
                different.append(name)
    assert not different, different


def test_one_count_is_not_left_for_the_next_call() -> None:
    lib = need("openblas")
    a = np.random.default_rng(0).standard_normal((400, 400))
    native = lib.traits.native
    count = native.address(f"{lib.control}get_num_threads{native.suffix}")
    problem = problem_of("matmul", a, a)
    for threads in (2, 1, 2):
        (algorithm,) = [x for x in algorithms("openblas", problem) if x.name == "gemm" and x.threads == threads]
        lib.prepare(problem, algorithm)(a, a)
        assert native.call(count, restype=ctypes.c_int) == threads == lib.traits.thread_guard.value


@pytest.mark.parametrize("op", ["linalg.inv", "linalg.solve", "linalg.lu_factor", "linalg.det"])
def test_lu_of_openblas_takes_turns_of_two_pools_only_where_that_pays(op: str) -> None:
    traits = need("openblas").traits

    def threads(n: int) -> set[int]:
        a = np.broadcast_to(np.float64(1), (n, n))
        args = (a, a[:, :16]) if op == "linalg.solve" else (a,)
        return {x.threads for x in algorithms("openblas", problem_of(op, *args), 2)}

    beside = traits.lu_pool not in ("", traits.pool)
    assert threads(100) == ({1} if beside else {1, 2}), "too small for blocks of our own, which run on one pool"
    assert threads(3000) == {1, 2}


def test_lu_of_mkl_runs_on_the_pool_of_the_rest() -> None:
    traits = need("mkl").traits
    a = np.broadcast_to(np.float64(1), (500, 500))
    assert traits.lu_pool in ("", traits.pool)
    assert {x.threads for x in algorithms("mkl", problem_of("linalg.lu_factor", a), 2)} == {1, 2}


@pytest.mark.parametrize("jobs", [1, 2, 3, 7, 20])
def test_all_jobs_of_a_team_run_at_the_same_time(jobs: int) -> None:
    assert thread_team.bind() == _core.team_bound()
    assert _core.team_check(jobs) == (jobs, 2**jobs - 1)


@pytest.mark.parametrize("size", [0, 1, 2, 1001])
@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_shares_of_all_threads_fill_the_whole(size: int, threads: int) -> None:
    memory = np.zeros(size + 1, np.uint8)
    _core.fill_shares(memory[:size], threads)
    assert memory.tolist() == [1] * size + [0]


def test_threads_of_the_team_fill_their_shares() -> None:
    script = """
import numpy as np
from backline import _core
from backline.native import thread_team
bound = thread_team.bind()
memory = np.zeros(1000, np.uint8)
for threads, woken in ((1, 0), (3, 2)):
    _core.fill_shares(memory, threads)
    assert not bound or len(_core.team_threads()) == woken, _core.team_threads()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_cannot_be_written_to_is_not_filled() -> None:
    memory = np.zeros(8, np.uint8)
    memory.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        _core.fill_shares(memory, 2)
    assert not memory.any()
