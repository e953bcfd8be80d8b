"""Measuring: operands that suit, errors that are noticed, rounds that are fair, and what `benchmark` does with it."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries, switches
from backline.engine import accuracy, accuracy_wide
from backline.engine.tuning import measure, record_store, sample_operands
from backline.libraries.base import Algorithm, Library, PythonPlan, Refusal
from backline.native import thread_team
from backline.problems import Operand, Problem
from backline.problems.op_registry import operations
from processes import started

Array = Any


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    where = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(where))
    record_store.reload()
    yield where
    monkeypatch.undo()
    record_store.reload()


class Fake(Library):
    """Products by a function of the test's own."""

    name = "fake"
    title = "A fake"

    def __init__(self, functions: dict[str, Callable[..., Any]], pool: str = "") -> None:
        self.functions, self.pool = functions, pool

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        for name in self.functions:
            yield Algorithm(library=self.name, name=name, pool=self.pool)

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        return PythonPlan(self.functions[algorithm.name])

    def report(self) -> dict[str, Any]:
        return {"name": self.name, "available": True}


@pytest.fixture
def fake() -> Iterator[Callable[..., list[Algorithm]]]:
    """Registers a library of functions; returns its algorithms."""

    def make(**functions: Callable[..., Any]) -> list[Algorithm]:
        library = Fake(functions)
        libraries.register(library)
        return [a for a in library.algorithms(square(8), 1) if isinstance(a, Algorithm)]

    yield make
    if "fake" in libraries.names():
        libraries.unregister("fake")
    _core.memo_clear()


def square(n: int, dtype: Any = np.float32) -> Any:
    a = np.ones((n, n), dtype)
    return operations["matmul"].build(a, a)


def product(a: Array, b: Array) -> Array:
    return np.matmul(a, b)


# Operands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "aligned"),
    [
        ((3, 4), (16, 4), True),
        ((3, 4), (4, 12), True),
        ((3, 4), (-16, -4), True),
        ((3, 4), (64, 8), True),
        ((5, 3, 4), (0, 16, 4), True),
        ((3, 4), (16, 4), False),
        ((0, 4), (16, 4), True),
        ((), (), True),
    ],
)
def test_operands_have_the_layout_asked_for(shape: Any, strides: Any, aligned: bool) -> None:
    o = Operand("a", np.dtype(np.float32), shape, strides, aligned)
    (a,) = sample_operands.arrays_for(Problem("any", (o,)), 0)
    assert (a.shape, a.dtype) == (shape, o.dtype) and a.flags.aligned == aligned and a.flags.writeable
    assert a.strides == strides or a.size == 0
    assert np.isfinite(a).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128", "int32", "uint8", "bool"])
def test_the_same_seed_gives_the_same_operands(dtype: str) -> None:
    first, again, other = (sample_operands.arrays_for(square(20, dtype), seed) for seed in (1, 1, 2))
    assert np.array_equal(first[0], again[0]) and not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], first[1])


def test_large_operands_need_no_second_copy() -> None:
    code = """
from backline.engine.tuning import sample_operands as sample
from backline.problems import Operand, Problem
import numpy as np
p = Problem("any", (Operand("a", np.dtype(np.complex128), (20, 1000, 1000), (16000000, 16000, 16)),))
sample.arrays_for(p, 0)
with open("/proc/self/status") as status:  # ru_maxrss would be that of the process that made this one
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""
    peak = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert peak < (320 + 200) * 1024


# Errors ---------------------------------------------------------------------------------------------------------------

N, M, K = 24, 13, 5
CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("matmul", [(N, M), (M, N)], {}),
    ("matmul", [(3, N, M), (M, N)], {}),
    ("dot", [(N,), (N,)], {}),
    ("addmm", [(N,), (N, M), (M, N)], {"alpha": 0.5, "beta": 2.0}),
    ("linalg.cholesky", [(N, N)], {}),
    ("linalg.cholesky", [(3, N, N)], {"upper": True}),
    ("linalg.inv", [(3, N, N)], {}),
    ("linalg.solve", [(N, N), (N, K)], {}),
    ("linalg.solve", [(N, N), (N,)], {}),
    ("linalg.solve", [(N, N), (K, N)], {"left": False}),
    ("linalg.lu_factor", [(3, N, M)], {}),
    ("linalg.lu_factor", [(M, N)], {}),
    ("linalg.lu_solve", [(N, N), (N,), (N, K)], {}),
    ("linalg.lu_solve", [(N, N), (N,), (N, K)], {"adjoint": True}),
    ("linalg.lu_solve", [(N, N), (N,), (K, N)], {"left": False}),
    ("linalg.lu_solve", [(N, N), (N,), (K, N)], {"left": False, "adjoint": True}),
    ("linalg.solve_triangular", [(N, N), (N, K)], {"upper": True}),
    ("linalg.solve_triangular", [(N, N), (K, N)], {"upper": False, "left": False, "unitriangular": True}),
    ("linalg.ldl_factor", [(3, N, N)], {}),
    ("linalg.ldl_factor", [(N, N)], {"hermitian": True}),
    ("linalg.ldl_solve", [(N, N), (N,), (N, K)], {}),
    ("linalg.ldl_solve", [(N, N), (N,), (N, K)], {"hermitian": True}),
    ("linalg.householder_product", [(N, M), (M - 1,)], {}),
    ("linalg.qr", [(N, M)], {}),
    ("linalg.qr", [(N, M)], {"mode": "complete"}),
    ("linalg.eigh", [(3, N, N)], {}),
    ("linalg.eigvalsh", [(N, N)], {}),
    ("linalg.eig", [(N, N)], {}),
    ("linalg.eigvals", [(N, N)], {}),
    ("linalg.svd", [(N, M)], {}),
    ("linalg.svd", [(M, N)], {"full_matrices": False}),
    ("linalg.svdvals", [(3, N, M)], {}),
    ("linalg.lstsq", [(N, M), (N, K)], {}),
    ("cholesky_solve", [(N, K), (N, N)], {"upper": True}),
    ("cholesky_inverse", [(N, N)], {}),
]


def build(name: str, shapes: list[tuple[int, ...]], keywords: dict[str, Any], dtype: Any) -> Any:
    arrays = [np.ones(s, dtype) for s in shapes]
    if name in ("linalg.lu_solve", "linalg.ldl_solve"):
        arrays[1] = np.ones(shapes[1], np.int32)
    return operations[name].build(*arrays, **keywords)


@pytest.mark.parametrize("wide", [True, False], ids=["against float64", "by what it must satisfy"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(("name", "shapes", "keywords"), CASES)
def test_a_right_result_has_a_small_error_and_a_wrong_element_a_large_one(
    name: str, shapes: Any, keywords: Any, dtype: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not wide:
        monkeypatch.setattr(accuracy_wide, "WIDE", 0)
    p = build(name, shapes, keywords, np.dtype(dtype))
    arrays = sample_operands.arrays_for(p, 3)
    held = accuracy.Reference(p, arrays)
    result = libraries.get("numpy").prepare(p, Algorithm(library="numpy", name="x"))(*arrays)
    assert held.error(result) <= accuracy.bound(p)
    parts = result if isinstance(result, tuple) else (result,)
    which = {"linalg.qr": 1, "linalg.svd": 1}.get(name, 0)
    wrong = [np.array(x) for x in parts]
    part = wrong[which]
    if name.startswith("linalg.lu_factor") or name == "linalg.cholesky":
        part[..., -1, 0 if not keywords.get("upper") else -1] += 0.5
    else:
        part[(..., *[0] * min(part.ndim, 1))] += 0.5
    seen = held.error(tuple(wrong) if isinstance(result, tuple) else wrong[0])
    assert seen > 10 * accuracy.bound(p), seen
    wrong[which] = part * np.nan
    assert held.error(tuple(wrong) if isinstance(result, tuple) else wrong[0]) == math.inf


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_held_against_its_own_rounding(dtype: str) -> None:
    import ml_dtypes

    p = square(32, ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    a, b = sample_operands.arrays_for(p, 0)
    right = (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
    assert 1e-4 < accuracy.error(p, [a, b], right) < accuracy.bound(p)


def test_a_result_of_another_shape_is_wrong() -> None:
    p = square(4)
    arrays = sample_operands.arrays_for(p, 0)
    assert accuracy.error(p, arrays, np.zeros((4, 5), np.float32)) == math.inf


def test_a_bound_on_the_error_keeps_the_more_accurate_library(fake: Any) -> None:
    """Its inverse has fewer wrong digits than NumPy's; a reference in float64 by NumPy would have called NumPy's exact."""
    from backline.engine.double_double import pair, product

    def improved(a: Array) -> Array:
        x = np.linalg.inv(a)
        return x + x @ (pair(np.eye(len(a))) - product(a, x)).high

    def spoilt(a: Array) -> Array:
        return improved(a) * (1 + 1e-13)

    better, worse = fake(improved=improved, spoilt=spoilt)
    a = np.random.default_rng(0).standard_normal((300, 300)) + 30 * np.eye(300)
    problem, threads = operations["linalg.inv"].build(a), backline.get_num_threads()
    numpy = next(x for x in libraries.get("numpy").algorithms(problem, threads) if isinstance(x, Algorithm))
    record = measure.measure_problem(problem, [better, worse, numpy], threads, budget=0.0, seed=3)
    errors = [record.errors[x.key] for x in (better, numpy, worse)]
    assert errors == sorted(errors) and 0 < errors[0] < errors[1] and errors[2] == pytest.approx(1e-13, rel=0.05)
    record_store.keep(record)
    with switches.scope(max_error=(errors[0] + errors[1]) / 2):
        backline.linalg.inv(a)
        choice = backline.explain()
    assert choice.chosen is not None and choice.chosen.key == "fake.improved@1"
    refused = {f"{c.library}.{c.algorithm}" for c in choice.candidates if c.verdict == "refused" and c.switch == "max_error"}
    assert refused >= {"fake.spoilt", "numpy.linalg"}


# Records --------------------------------------------------------------------------------------------------------------


def test_a_record_says_what_was_done(fake: Any) -> None:
    algorithms = fake(one=product, two=lambda a, b: np.dot(a, b))
    p = square(16)
    record = measure.measure_problem(p, algorithms, 1, seed=5, budget=0.2)
    assert (record.key, record.threads, record.seed) == (p.key, 1, 5)
    assert set(record.medians) == set(record.minima) == set(record.runs) == {"fake.one@1", "fake.two@1"}
    assert all(record.minima[k] <= record.medians[k] for k in record.medians)
    assert all(n >= 3 for n in record.runs.values())
    assert all(e < 1e-5 for e in record.errors.values())
    assert record.versions == {"fake": "1"} and not record.rejected and record.winner in record.medians
    assert record_store.parse(record.line()) == record
    assert record_store.every() == []  # measuring keeps nothing


def test_wrong_and_failing_algorithms_are_rejected_with_the_reason(fake: Any) -> None:
    def fails(a: Array, b: Array) -> Array:
        raise RuntimeError("it broke\nin two lines")

    algorithms = fake(
        right=product, wrong=lambda a, b: a @ b + 1, nan=lambda a, b: a * np.nan, fails=fails, other=lambda a, b: np.dot(a, b)
    )
    record = measure.measure_problem(square(16), algorithms, 1, budget=0.1)
    assert set(record.medians) == {"fake.right@1", "fake.other@1"}
    assert "wrong result" in record.rejected["fake.wrong@1"] and record.errors["fake.wrong@1"] > 0.01
    assert record.errors["fake.nan@1"] == math.inf
    assert record.rejected["fake.fails@1"] == "it failed: RuntimeError: it broke in two lines"
    assert record_store.parse(record.line()) == record


def test_a_single_candidate_is_checked_and_not_timed(fake: Any) -> None:
    record = measure.measure_problem(square(16), fake(one=product), 1)
    assert record.medians == {} and record.errors["fake.one@1"] < 1e-5


def test_checking_only(fake: Any) -> None:
    record = measure.measure_problem(square(16), fake(one=product, two=product), 1, timing=False)
    assert record.medians == {} and len(record.errors) == 2


def test_a_much_slower_candidate_is_dropped_and_the_fast_one_wins(fake: Any) -> None:
    def slow(a: Array, b: Array) -> Array:
        time.sleep(0.004)
        return a @ b

    record = measure.measure_problem(square(16), fake(slow=slow, fast=product), 1, budget=1.0)
    assert record.winner == "fake.fast@1"
    assert record.runs["fake.slow@1"] == measure.ROUNDS < record.runs["fake.fast@1"]


def test_nothing_new_is_begun_after_the_limit(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LONG", math.inf)
    calls = []

    def slow(a: Array, b: Array) -> Array:
        calls.append(1)
        time.sleep(0.05)
        return a @ b

    algorithms = fake(one=slow, two=slow, three=slow, four=slow)
    record = measure.measure_problem(square(16), algorithms, 1, limit=0.05)
    assert set(record.medians) == {"fake.one@1", "fake.two@1"} and len(calls) < 10
    assert record.covered == ()  # one run each is no verdict
    monkeypatch.setattr(measure, "LONG", 0.05)  # unless they are long
    again = measure.measure_problem(square(16), algorithms, 1, limit=0.05)
    assert set(again.covered) >= {"fake.one@1", "fake.two@1"}


def test_the_order_is_shuffled_by_the_seed(fake: Any) -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        def run(a: Array, b: Array) -> Array:
            order.append(name)
            time.sleep(0.003)
            return a @ b

        return run

    runs = []
    algorithms = fake(**{name: noted(name) for name in "abcd"})
    for seed in (1, 1, 2):
        order.clear()
        measure.measure_problem(square(4), algorithms, 1, seed=seed, budget=0.0)
        runs.append("".join(order))
    assert runs[0] == runs[1] != runs[2]


def test_operands_outside_the_cache_are_pushed_out_of_it(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_caches", lambda: (1 << 10, 1 << 16))

    def flushed() -> list[int]:
        return [measure._Run(square(n), fake(one=product), 1, 0, math.inf, None).flush for n in (8, 64, 128)]

    assert flushed() == [0, 2 << 10, 2 << 16]
    monkeypatch.setattr(measure, "_caches", lambda: (1 << 16, 1 << 10))  # of many cores together, and the last one of some
    assert flushed() == [0, 0, 2 << 16]


@pytest.mark.parametrize("pool", ["", "of the team", "another"])
def test_caches_are_emptied_by_the_threads_that_a_candidate_uses(pool: str, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the team wake of it, and a second core has a cache of its own; those of another pool are left alone."""
    monkeypatch.setattr(measure, "_caches", lambda: (1 << 10, 1 << 16))
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(_core, "fill_shares", lambda memory, threads: asked.append((memory.nbytes, threads)))
    name = thread_team.name() if pool == "of the team" else pool
    run = measure._Run(square(64), [], 3, 0, math.inf, None)
    run.last_pool = name
    (algorithm,) = fake(one=product)
    run.block(measure._Candidate(replace(algorithm, threads=2), product, name))
    assert set(asked) == {(2 << 10, 2 if pool == "of the team" and name else 1)}


def test_a_pool_is_left_to_rest_before_another_works(monkeypatch: pytest.MonkeyPatch, fake: Any) -> None:
    slept: list[float] = []
    run = measure._Run(square(8), fake(one=product), 1, 0, math.inf, None)
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    for pool in ("gomp", "gomp", "numpy", "numpy", "gomp"):
        run.settle(pool)
    assert slept == [measure.SPIN, measure.NUMPY_SPIN]


def test_the_memory_it_takes_is_bounded() -> None:
    """Beyond what the libraries take for the product itself: operands, a result, what empties the caches, and some slack."""
    code = """
import sys
import numpy as np
from backline import libraries
from backline.engine.tuning import measure, sample_operands; from backline.engine import ranking
from backline.engine.choose import eligible
from backline.problems import Problem

def peak():
    # Not ru_maxrss: that starts with what the parent had when it forked.
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) << 10

p = Problem.parse(sys.argv[1])
able = ranking.sort(p, eligible(p, 2))
for a in able:  # workspace of the libraries, which some keep
    arrays = sample_operands.arrays_for(p, 0)
    library = libraries.get(a.library)
    library.prepare(p, a, *measure.planner_for(library, measure.NULL_PLANNER))(*arrays)
    del arrays
before = peak()
measure.measure_problem(p, able, 2, budget=0.0, limit=5.0)
print(p.bytes, peak() - before)
"""
    for text in ("matmul f32 2500x2500 2500x2500", "linalg.solve f64 1500x1500 1500x16"):
        command = [sys.executable, "-c", code, text]
        operands, more = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        assert more <= 2 * operands + measure.MAX_FLUSH + (32 << 20), f"{text}: {more >> 20} MiB, operands {operands >> 20} MiB"


# The benchmark switch ---------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the Problems that are measured."""
    seen: list[str] = []
    real = measure.measure_problem

    def count(problem: Problem, *args: Any, **kwargs: Any) -> Any:
        seen.append(problem.key)
        return real(problem, *args, budget=0.0, **kwargs)

    monkeypatch.setattr(measure, "measure_problem", count)
    return seen


def test_benchmark_measures_each_signature_once(counted: list[str]) -> None:
    a, b = np.ones((8, 8)), np.ones((9, 9))
    with backline.backends.flags(benchmark=True):
        for _ in range(3):
            backline.matmul(a, a)
            backline.matmul(b, b)
        choice = backline.explain()
    assert sorted(counted) == ["matmul f64 8x8 8x8", "matmul f64 9x9 9x9"]
    assert choice.basis.startswith("measured now") and choice.candidates[0].seconds is not None
    record_store.reload()  # as the next process would: the file has them
    with backline.backends.flags(benchmark=True):
        backline.matmul(a, a)
    assert len(counted) == 2


def test_nothing_is_measured_unless_asked_nor_under_determinism_nor_by_explain(counted: list[str]) -> None:
    a = np.ones((8, 8))
    backline.matmul(a, a)
    with backline.backends.flags(benchmark=True, deterministic=True):
        backline.matmul(a, a)
    with backline.backends.flags(benchmark=True):
        backline.explain(backline.matmul, a, a)
    assert counted == []


def test_under_determinism_a_record_does_not_decide() -> None:
    a = np.ones((8, 8))
    p = operations["matmul"].build(a, a)
    threads = backline.get_num_threads()
    plain = backline.explain(backline.matmul, a, a)
    other = next(c for c in plain.candidates if c.verdict == "next")
    assert other.detail is not None
    record = measure.measure_problem(p, [plain.chosen, other.detail], threads, budget=0.0)  # type: ignore[list-item]  # details of candidates that were not refused
    record_store.keep(replace(record, winner=other.detail.key))
    assert backline.explain(backline.matmul, a, a).chosen == other.detail
    with backline.backends.flags(deterministic=True):
        assert backline.explain(backline.matmul, a, a).chosen == plain.chosen


def test_benchmark_limit_bounds_the_candidates() -> None:
    a = np.ones((8, 8))
    with backline.backends.flags(benchmark=True, benchmark_limit=2):
        backline.matmul(a, a)
    (record,) = record_store.every()
    assert len(record.errors) == 2


def test_threads_that_ask_at_once_measure_once(counted: list[str]) -> None:
    a = np.ones((8, 8))
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        with backline.backends.flags(benchmark=True):
            backline.matmul(a, a)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert counted == ["matmul f64 8x8 8x8"]


def test_a_wrong_library_is_not_used_after_a_measurement(fake: Any) -> None:
    fake(wrong=lambda a, b: a @ b + 1)
    a = np.eye(8)
    with switches.scope(benchmark=True, benchmark_limit=0):
        assert np.array_equal(backline.matmul(a, a), a)
        refused = [c for c in backline.explain().candidates if c.library == "fake"]
    assert refused and refused[0].verdict == "refused" and "wrong result" in refused[0].reason


INTERRUPTED = """
import sys, time
import numpy as np
from backline import libraries
from backline.engine.tuning import measure, record_store as records
from backline.problems.op_registry import operations
from backline.libraries.base import Algorithm, PythonPlan

class Slow:
    name = "numpy"
    handlers = {}
    def version(self): return np.__version__
    def available(self): return True
    def prepare(self, problem, algorithm):
        def run(a, b):
            time.sleep(0.002)
            return a @ b
        return PythonPlan(run)

libraries._objects["numpy"] = Slow()
a = np.ones((8, 8), np.float32)
p = operations["matmul"].build(a, a)
measure.SECONDS = measure.RUNS = 10**9
measure.BLOCKS = measure.RUNS
rounds = []
def progress(key, runs):
    if runs == 4:
        print("measuring", flush=True)
algorithms = [Algorithm(library="numpy", name=name) for name in ("one", "two")]
measure.measure_problem(p, algorithms, 2, budget=1e9, progress=progress)
"""


def test_ctrl_c_keeps_what_was_measured(file: Path) -> None:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started([sys.executable, "-c", INTERRUPTED], **pipes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "measuring\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=200)
    assert child.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
    (record,) = record_store.every()
    assert set(record.medians) == {"numpy.one@1", "numpy.two@1"}
