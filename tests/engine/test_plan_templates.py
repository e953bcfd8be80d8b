"""Calls whose sizes keep changing: their Plans are made without Python, are right, and everything that counts is still heard."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, linalg
from backline.engine import fft_plan_caches, ranking
from backline.engine.tuning import record_store
from backline.engine.tuning.record import TuningRecord
from backline.native.machine import fingerprint
from backline.nn import functional
from support import clean, misaligned, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

BLAS = (
    "openblas.gemm_batch@1", "openblas.gemm@1", "openblas.gemm@n",
    "openblas.gemv@1", "openblas.dot@1", "openblas.getrs@1", "openblas.getri@1", "mkl.jit@1",
)  # fmt: skip
LOOPS = ("kernels.compiled@1", "kernels.compiled@n")
KNOWN = 40  # calls after which sizes of a range have a template

Arrays = tuple[Any, ...]


@pytest.fixture(autouse=True)
def order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The choice is the same on every machine."""
    need("openblas")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: (*LOOPS, *BLAS))
    _core.memo_clear()
    yield
    _core.memo_clear()


def events_of(call: Callable[[], object]) -> list[str]:
    """Names of the Python functions that a call runs, beside the call itself."""
    seen: list[str] = []

    def watch(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in seen if "<lambda>" not in name]


rng = np.random.default_rng(5)


def filled(*shape: int, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    x = rng.standard_normal(shape)
    return np.asarray(x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x, dtype)


def definite(n: int) -> np.ndarray[Any, Any]:
    return filled(n, n) + 4 * n * np.eye(n)


OPERATIONS: dict[str, tuple[Callable[[int, int], Arrays], Any, dict[str, Any], Callable[..., Any]]] = {
    "mm": (lambda m, n: (filled(m, n), filled(n, 70)), backline.mm, {}, np.matmul),
    "mm float32": (lambda m, n: (filled(m, n, dtype="f4"), filled(n, 70, dtype="f4")), backline.mm, {}, np.matmul),
    "mm complex": (lambda m, n: (filled(m, n, dtype="c16"), filled(n, 66, dtype="c16")), backline.mm, {}, np.matmul),
    "mm transposed": (lambda m, n: (filled(n, m).T, filled(70, n).T), backline.mm, {}, np.matmul),
    "mm with gaps": (lambda m, n: (filled(m + 3, n + 5)[:m, :n], filled(2 * n, 70)[::2]), backline.mm, {}, np.matmul),
    "mm reversed": (lambda m, n: (filled(m, n)[::-1], filled(n, 70)[:, ::-1]), backline.mm, {}, np.matmul),
    "mm misaligned": (lambda m, n: (misaligned(filled(m, n)), filled(n, 70)), backline.mm, {}, np.matmul),
    "addmm": (
        lambda m, n: (filled(70), filled(m, n), filled(n, 70)), backline.addmm, {"beta": 2, "alpha": -1.5},
        lambda c, a, b: 2 * c - 1.5 * (a @ b),
    ),
    "mv": (lambda m, n: (filled(m, n), filled(n)), backline.mv, {}, np.matmul),
    "dot": (lambda m, n: (filled(m * n), filled(2 * m * n)[::2]), backline.dot, {}, np.dot),
    "matmul of a batch": (lambda m, n: (filled(m, 3, n), filled(n, 5)), backline.matmul, {}, np.matmul),
    "bmm": (lambda m, n: (filled(6, m, n), filled(6, n, 9)), backline.bmm, {}, np.matmul),
    "einsum": (lambda m, n: ("ij,jk->ik", filled(m, n), filled(n, 70)), backline.einsum, {}, np.einsum),
    "einsum turned": (lambda m, n: ("ij,jk->ki", filled(m, n), filled(n, 70)), backline.einsum, {}, np.einsum),
    "einsum of a batch": (
        lambda m, n: ("bhqd,bhkd->bhqk", filled(2, 3, m, 8), filled(2, 3, n, 8)), backline.einsum, {}, np.einsum,
    ),
    "einsum of three": (
        lambda m, n: ("ij,jk,k->i", filled(m, n), filled(n, 7), filled(7)), backline.einsum, {}, np.einsum,
    ),
    "relu": (lambda m, n: (filled(m, n),), functional.relu, {}, lambda x: np.maximum(x, 0)),
    "relu with gaps": (lambda m, n: (filled(m, n + 1)[:, :n],), functional.relu, {}, lambda x: np.maximum(x, 0)),
    "softmax": (
        lambda m, n: (filled(m, n),), functional.softmax, {"dim": -1},
        lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    ),
    "norm": (lambda m, n: (filled(m, n, dtype="f4"),), linalg.norm, {}, np.linalg.norm),
    "norms": (lambda m, n: (filled(m, n),), linalg.norm, {"dim": 1}, lambda x: np.linalg.norm(x, axis=1)),
    "solve": (lambda m, n: (definite(m), filled(m, n)), linalg.solve, {}, np.linalg.solve),
    "solve of a vector": (lambda m, n: (definite(m), filled(m)), linalg.solve, {}, np.linalg.solve),
    "inv": (lambda m, n: (definite(n),), linalg.inv, {}, np.linalg.inv),
    "det": (lambda m, n: (definite(n) / n,), linalg.det, {}, np.linalg.det),
    "triangle": (lambda m, n: (filled(m, n),), lambda x: linalg.qr(x, mode="r")[1] ** 2, {}, lambda x: np.linalg.qr(x, "r") ** 2),
    "eigh": (lambda m, n: (definite(n) + definite(n).T,), linalg.eigvalsh, {}, np.linalg.eigvalsh),
    "eigvals": (
        lambda m, n: (np.triu(filled(n, n)) + np.diag(np.arange(float(n))),), lambda x: np.sort(linalg.eigvals(x).real), {},
        lambda x: np.sort(np.diag(x)),
    ),
    "exponential": (lambda m, n: (np.diag(filled(n)),), linalg.matrix_exp, {}, lambda x: np.diag(np.exp(np.diag(x)))),
    "kron": (lambda m, n: (filled(m, n), filled(3, 2)), backline.kron, {}, np.kron),
    "layer_norm": (
        lambda m, n: (filled(m, n, 32),), functional.layer_norm, {"normalized_shape": 32},
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    ),
    "batch_norm": (
        lambda m, n: (filled(m, 4, n), filled(4), np.abs(filled(4)) + 1), functional.batch_norm, {},
        lambda x, mean, variance: (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5),
    ),
}  # fmt: skip


# Those that take empty arrays as NumPy does, or nearly so.
NO_ELEMENTS = tuple(name for name in OPERATIONS if name.split()[0] in ("mm", "addmm", "mv", "dot", "matmul", "bmm", "einsum", "relu", "norm"))


def same(got: Any, wanted: Any) -> bool:
    got, wanted = np.asarray(got), np.asarray(wanted)
    scale = float(np.max(np.abs(wanted), initial=0.0)) or 1.0
    tolerance = 1e-4 if wanted.dtype.itemsize == 4 else 1e-10
    return got.shape == wanted.shape and got.dtype == wanted.dtype and bool(np.all(np.abs(got - wanted) <= tolerance * scale))


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_right_for_every_size(name: str) -> None:
    make, ours, options, theirs = OPERATIONS[name]
    generator = random.Random(name)
    sizes = [(generator.randint(1, 60), generator.randint(1, 60)) for _ in range(120)]
    sizes += [(0, 5), (5, 0), (0, 0), (1, 1), (1, 40), (40, 1), (150, 130), (130, 150), (64, 64), (65, 65)] * 2
    for m, n in sizes:
        if not m * n and name not in NO_ELEMENTS:
            continue
        arrays = make(m, n)
        wanted = theirs(*arrays)
        for which in ("first", "second"):
            assert same(ours(*arrays, **options), wanted), f"{m} x {n}, the {which} time"


TEMPLATED = (
    "mm", "mm float32", "mm transposed", "mm with gaps", "addmm", "mv", "dot", "bmm", "einsum", "einsum turned", "einsum of a batch",
    "relu", "norm", "norms", "solve", "softmax", "layer_norm", "kron", "det", "eigh",
)  # fmt: skip


def changing(name: str, calls: int = KNOWN) -> None:
    """Calls of many sizes, so that there are templates for those around 50 x 30."""
    make, ours, options, _ = OPERATIONS[name]
    for i in range(calls):
        ours(*make(50 + i % 4, 20 + i // 4), **options)


@pytest.mark.parametrize("name", TEMPLATED)
def test_a_new_size_runs_no_python(name: str) -> None:
    make, ours, options, _ = OPERATIONS[name]
    changing(name)
    arrays = make(53, 31)
    assert events_of(lambda: ours(*arrays, **options)) == []


@pytest.mark.parametrize("name", TEMPLATED)
def test_explain_and_trace_tell_of_the_call_that_was_made(name: str) -> None:
    make, ours, options, _ = OPERATIONS[name]
    changing(name)
    arrays = make(53, 31)
    ours(*arrays, **options)
    told, asked = backline.explain(), backline.explain(ours, *arrays, **options)
    if type(told) is not type(asked):  # an einsum that is one product as it is tells of the product
        asked = asked.steps[0].choice  # type: ignore[attr-defined]  # a choice of several steps
    assert told.problem == asked.problem and told.chosen == asked.chosen and told.basis == asked.basis
    assert str(told) == str(asked)
    with backline.trace() as events:
        ours(*make(53, 32), **options)
    assert len(events) == 1 and events[0].choice.problem == backline.explain().problem != told.problem


def test_given_outputs_are_written_and_must_not_overlap() -> None:
    for n in range(30, 30 + KNOWN):
        a, b, out = filled(n, 40), filled(40, n), np.full((n, n), np.nan)
        assert backline.mm(a, b, out=out) is out and same(out, a @ b)
    assert events_of(lambda: backline.mm(filled(31, 40), filled(40, 31), out=np.empty((31, 31))))  # made in the lambda
    square = filled(80, 80)
    with pytest.raises(backline.errors.BadValue, match="overlap"):
        backline.mm(square[:41, :40], square[:40, :41], out=square[:41, :41])
    assert backline.mm(filled(33, 40), filled(40, 33), out=square[:33, 40:73]) is not None
    with pytest.raises(backline.errors.BadValue, match="shape"):
        backline.mm(filled(47, 40), filled(40, 47), out=np.empty((47, 46)))


def test_given_outputs_of_any_layout_and_size_are_written() -> None:
    for n in range(70, 70 + KNOWN):
        a, b, out = filled(n, n), filled(n, n), np.empty((n, n))
        assert same(backline.mm(a, b, out=out), a @ b)
    for n in (115, 116, 90):
        a, b, whole = filled(n, n), filled(n, n), np.full((n, n + 9), np.nan)
        assert same(backline.mm(a, b, out=whole[:, 5 : n + 5]), a @ b)
        assert np.isnan(whole[:, :5]).all() and np.isnan(whole[:, n + 5 :]).all()


def test_wrong_arguments_are_refused_as_ever() -> None:
    changing("mm")
    for n in range(51, 70):
        with pytest.raises(backline.errors.BadValue, match="do not fit"):
            backline.mm(filled(53, n), filled(n + 1, 70))
    with pytest.raises(backline.errors.BadValue):
        backline.mm(filled(53, 30), filled(30, 70, 2))
    with pytest.raises(backline.errors.BadType):
        backline.mm(filled(53, 30), filled(30, 70, dtype="f4"))
    changing("solve")
    with pytest.raises(backline.errors.BadValue):
        linalg.solve(filled(53, 52), filled(53, 4))
    with pytest.raises(linalg.LinAlgError, match="element 54 of the diagonal"):
        linalg.solve(np.diag([1.0] * 53 + [0.0]), filled(54, 3))


@pytest.mark.cpu_kernel
def test_code_is_compiled_for_a_shape_that_is_called_often(monkeypatch: pytest.MonkeyPatch) -> None:
    mkl = need("mkl")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: ("mkl.jit@1", *BLAS))
    arrays = filled(21, 30), filled(30, 40)
    names = {found.name for found in mkl.algorithms(backline.explain(backline.mm, *arrays).problem, 1) if hasattr(found, "traits")}
    if "jit" not in names:
        pytest.skip("MKL compiles no kernels for this processor")
    backline.mm(*arrays)
    assert backline.explain().algorithm == "jit"
    for n in range(22, 22 + KNOWN):
        backline.mm(filled(n, 30), filled(30, 40))
    arrays = filled(40, 31), filled(31, 40)
    backline.mm(*arrays)
    told = backline.explain()
    assert told.algorithm == "gemm" and ("mkl", "jit") in {(c.library, c.algorithm) for c in told.candidates}
    assert next(c.reason for c in told.candidates if c.algorithm == "jit").endswith("shapes keep changing here")
    for _ in range(600):
        result = backline.mm(*arrays)
    assert backline.explain().algorithm == "jit" and same(result, arrays[0] @ arrays[1])
    assert events_of(lambda: backline.mm(*arrays)) == []


def test_a_full_cache_of_transforms_forgets_its_own_plans_alone() -> None:
    x, a = filled(53, 31), filled(12)
    functional.relu(x)
    backline.fft.fft(a)
    kept = fft_plan_caches.cache(str(backline.explain().library))
    most = kept.max_size
    try:
        kept.max_size = 2
        functional.relu(x)
        backline.fft.fft(a)
        for n in range(13, 20):
            backline.fft.fft(filled(n))
        assert kept.size <= 2
        assert events_of(lambda: functional.relu(x)) == []
        assert events_of(lambda: backline.fft.fft(a)), "its plan was dropped, and the Memo must not keep it"
    finally:
        kept.max_size = most


def test_switches_are_heard() -> None:
    changing("mm")
    a, b = OPERATIONS["mm"][0](53, 31)
    with backline.backends.flags(only=("numpy",)):
        backline.mm(a, b)
        assert backline.explain().library == "numpy"
        for n in range(32, 32 + KNOWN):
            assert same(backline.mm(filled(53, n), (right := filled(n, 70))), np.zeros((53, 70))) or right.size
            assert backline.explain().library == "numpy"
    backline.mm(*OPERATIONS["mm"][0](53, 33))
    assert backline.explain().library == "openblas"
    backline.set_num_threads(1)
    try:
        backline.mm(*OPERATIONS["mm"][0](53, 34))
        assert backline.explain().threads == 1
    finally:
        backline.set_num_threads(2)
    with backline.use("numpy"):
        backline.mm(*OPERATIONS["mm"][0](53, 35))
        assert backline.explain().library == "numpy"


def test_emptying_the_memo_empties_what_is_known_of_sizes() -> None:
    changing("relu")
    x = filled(53, 31)
    _core.memo_clear()
    assert events_of(lambda: functional.relu(x))


def test_a_tuning_record_decides_for_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", str(tmp_path / "tuning.sqlite"))
    record_store.reload()
    try:
        make = OPERATIONS["mm"][0]
        key = backline.explain(backline.mm, *make(53, 31)).problem.key
        threads = backline.get_num_threads()
        winner = "numpy.matmul@n"
        record = TuningRecord(
            key, threads, medians={winner: 2e-6}, minima={winner: 1e-6}, runs={winner: 100}, errors={winner: 1e-16}, winner=winner,
            covered=(winner,), seed=7, spent=0.5, created="2026-11-21T03:00:00.000000Z", versions={"numpy": np.__version__},
            machine=fingerprint(), backline=backline.__version__,
        )  # fmt: skip
        record_store.keep(record)
        chosen = {}
        for n in (*range(20, 31), *range(32, 60), 31):
            backline.mm(*make(53, n))
            chosen[n] = backline.explain().library
        assert chosen.pop(31) == "numpy" and set(chosen.values()) == {"openblas"}
        a, b = make(53, 61)
        assert events_of(lambda: backline.mm(a, b)) == []
    finally:
        monkeypatch.undo()
        record_store.reload()


def test_threads_may_meet_new_sizes_at_once() -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(150):
            name = generator.choice(("mm", "relu", "norm", "solve", "einsum turned"))
            make, ours, options, theirs = OPERATIONS[name]
            m, n = generator.randint(30, 60), generator.randint(1, 60)
            arrays = make(m, n)
            if not same(ours(*arrays, **options), theirs(*arrays)):
                wrong.append(f"{name} {m} x {n}")
            if generator.random() < 0.02:
                _core.memo_clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_is_bounded_however_many_sizes_come() -> None:
    program = textwrap.dedent("""
        import gc
        import numpy as np
        import backline
        from backline import _core

        pool = np.random.default_rng(1).standard_normal(1 << 18)

        def resident():
            gc.collect()
            return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

        def call(n):
            m, k = 2 + n % 200, 2 + n // 200
            a, b = pool[: m * k].reshape(m, k), pool[: k * 70].reshape(k, 70)
            backline.mm(a, b)
            backline.nn.functional.relu(a)
            backline.linalg.norm(a)

        grown = [resident()]
        for n in range(30000):
            call(n)
            if n % 10000 == 9999:
                grown.append(resident())
        assert _core.memo_info()["size"] <= _core.memo_info()["max_size"]
        print(grown[-1] - grown[0], grown[-1] - grown[-2])
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    whole, last = map(float, done.stdout.split())
    assert whole < 300 and last < 40, done.stdout


def test_a_template_is_checked_before_it_is_believed() -> None:
    one = ((0, 1),), 1
    for arguments in (
        ([(0, False, 0)], [], [((((5,), 1),), None, None, [])], [], [], None, {}, None, None, None, 0),  # a quantity that is not there
        ([(-1, False, 0)], [], [], [], [], None, {}, None, None, None, 0),
        ([(0, False, 0)], [], [], [], [], ("#", 0), {}, None, None, None, 0),  # a sum that is not there
        ([(0, False, 0)], [], [], [], [], ("?", 0), {}, None, None, None, 0),
        ([(0, False, 0)], [], [], [], [((((0,), 1)),)], ("b", b"1234", [(1, 4, 0)]), {}, None, None, None, 0),  # outside the bytes
        ([(0, False, 0)], [], [(one,)], [], [], None, {}, None, None, None, 0),
        ([(0, False, 0)], [], [], [((((5,), 1),), 4)], [], None, {}, None, None, None, 0),
        ([(0, False, i % 8) for i in range(300)], [], [], [], [], None, {}, None, None, None, 0),
    ):
        with pytest.raises((ValueError, TypeError)):
            _core.PlanTemplate(*arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_the_memo_forgets_the_plans_that_it_is_given() -> None:
    arrays = [filled(40 + i % 20, 1 + i // 20) for i in range(600)]
    plans = []
    for x in arrays:
        functional.relu(x)
        plans.append(_core.last_plan())
    generator = random.Random(4)
    left = list(range(600))
    while len(left) > 50:
        gone = set(generator.sample(left, 60))
        _core.memo_forget([plans[i] for i in gone])
        left = [i for i in left if i not in gone]
        for i in generator.sample(left, min(40, len(left))):
            functional.relu(arrays[i])
            assert _core.last_plan() is plans[i], "the others stay"
    for i in sorted(set(range(600)) - set(left))[::7]:
        assert same(functional.relu(arrays[i]), np.maximum(arrays[i], 0)) and _core.last_plan() is not plans[i]
