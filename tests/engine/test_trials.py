"""Trials on real calls: what runs, what callers get, what explain and trace say, what is written, and what ends learning."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, backends, libraries, linalg, switches
from backline.engine import trials
from backline.engine.tuning import learned, learned_records, machine_load, record_store
from backline.engine.tuning import online as tuning_online
from backline.engine.tuning.record import TuningRecord
from backline.errors import BadType, BadValue
from backline.libraries.base import Algorithm, Library, PythonPlan, Refusal
from backline.problems import Problem
from processes import started
from support import clean, python

pytestmark = pytest.mark.usefixtures("clean", "fresh")
assert clean
Array = Any
A = np.random.default_rng(0).standard_normal((6, 6))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tuning file of the test's own, nothing learned, and other calls that have taken 100 seconds."""
    where = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(where))
    record_store.reload()
    learned_records.forget()
    learned_records.costs.account.spent = 100.0
    monkeypatch.setattr(trials, "LOADING", 1e9)  # no library is loaded for these
    monkeypatch.setattr(learned_records, "INTERVAL", 1e9)
    yield where
    learned_records.forget()
    monkeypatch.undo()
    record_store.reload()


class Several(Library):
    """Products by one function under several names, each of which takes as long as the test says."""

    name = "several"
    title = "A fake"

    def __init__(self, names: dict[str, dict[str, Any]]) -> None:
        self.names = names
        self.ran: list[str] = []
        self.functions: dict[str, Callable[..., Any]] = {}

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        if problem.op == "matmul":
            for name, more in self.names.items():
                yield Algorithm(library=self.name, name=name, **more)

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        name = algorithm.name

        def run(a: Array, b: Array, *out: Array) -> Array:
            self.ran.append(name)
            return self.functions.get(name, np.matmul)(a, b, *out)

        return PythonPlan(run)

    def report(self) -> dict[str, Any]:
        return {"name": self.name, "available": True}


Make = Callable[..., Several]


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Registers the library, and has its algorithms take the seconds given, on the clock of the trials; they are ranked in order."""

    def make(more: dict[str, dict[str, Any]] | None = None, /, **seconds: float) -> Several:
        library = Several({name: (more or {}).get(name, {}) for name in seconds})
        libraries.register(library)
        real = trials.Trials.__call__

        def told(self: Any, sampled: Any, plan: Any, calls: int, wall: int, cpu: int, interruptions: int) -> None:
            taken = int(seconds.get(plan.choice.algorithm, 1.0) * 1e9)
            real(self, sampled, plan, calls, taken if wall >= 0 else wall, taken, 0)

        monkeypatch.setattr(trials.Trials, "__call__", told)
        monkeypatch.setattr(tuning_online, "UNKNOWN", 10.0)  # libraries of this machine are not tried
        order = (*(f"several.{name}@1" for name in seconds), "mkl.jit@1")  # compiled kernels come first where none names them
        monkeypatch.setattr("backline.engine.ranking.order_of", lambda *_: order)
        monkeypatch.setattr("backline.engine.ranking.times_of", lambda *_: {f"several.{name}@1": 1.0 for name in seconds})
        return library

    yield make
    if "several" in libraries.names():
        libraries.unregister("several")
    _core.memo_clear()


def calls(count: int, a: Array = A) -> list[Array]:
    return [backline.matmul(a, a) for _ in range(count)]


def online(**more: Any) -> Any:
    return backends.flags(benchmark="online", **more)


# What runs ------------------------------------------------------------------------------------------------------------


def test_the_fastest_takes_over_and_every_result_is_right(several: Make) -> None:
    library = several(slow=3e-3, fast=1e-3, slower=4e-3)
    with online():
        results = calls(50)
        assert backline.explain(backline.matmul, A, A).algorithm == "fast"
    assert all(np.array_equal(result, A @ A) for result in results)
    assert library.ran[0] == "slow" and set(library.ran[-10:]) == {"fast"}
    assert len(library.ran) == 50  # a trial is a call, not one more


@pytest.mark.parametrize("loading, ran", [(1e9, {"slow"}), (0.15, {"slow", "fast"})])
def test_what_would_have_to_be_imported_is_tried_where_there_is_room_for_it(
    several: Make, monkeypatch: pytest.MonkeyPatch, loading: float, ran: set[str]
) -> None:
    library = several(slow=3e-3, fast=1e-3)
    monkeypatch.setattr(Several, "imported", lambda self: False)
    monkeypatch.setattr(trials, "LOADING", loading)
    with online():
        calls(50)
    assert set(library.ran) == ran


def test_a_scope_without_it_learns_nothing_and_runs_the_ranking(several: Make) -> None:
    library = several(slow=3e-3, fast=1e-3)
    with online():
        calls(50)
    learned_records.forget()
    library.ran.clear()
    calls(20)
    assert set(library.ran) == {"slow"} and not learned.table


def test_scopes_with_other_switches_learn_for_themselves(several: Make) -> None:
    library = several(slow=3e-3, fast=1e-3)
    with online():
        calls(50)
    library.ran.clear()
    with online(max_error=1.0):
        calls(3)
    assert library.ran == ["slow"] * 3


@pytest.mark.parametrize("switch", ["deterministic", "mkldnn.deterministic"])
def test_nothing_is_learned_while_determinism_is_asked_for(several: Make, switch: str) -> None:
    library = several(slow=3e-3, fast=1e-3)
    with online(), switches.scope({switch: True}):
        calls(50)
        told = str(backline.explain(backline.matmul, A, A))
    assert set(library.ran) == {"slow"} and not learned.table
    assert f"nothing is learned online while {switch} is on" in told


def test_only_what_could_be_chosen_is_tried(several: Make) -> None:
    """Not what is less precise than the choice, comes after it by a switch, is switched off, or beyond `benchmark_limit`."""
    more: dict[str, dict[str, Any]] = {"coarse": {"precision": "tf32"}, "math": {"traits": ("math",)}, "half": {"precision": "bf16"}}
    library = several(more, slow=3e-3, coarse=1e-4, math=1e-4, half=1e-4, fast=1e-3, late=1e-5)
    a = A.astype(np.float32)
    with online(fp32_precision="bf16", benchmark_limit=2):
        calls(200, a)
    assert set(library.ran) == {"slow", "fast"}


def test_what_uses_all_processors_is_not_tried_beside_other_programs(several: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    library = several({"all": {"threads": 2, "scaled": True}}, slow=3e-3, all=1e-3, fast=2e-3)
    monkeypatch.setattr("backline.engine.ranking.times_of", lambda *_: {f"several.{n}": 1.0 for n in ("slow@1", "all@n", "fast@1")})
    with monkeypatch.context() as patch, online():
        patch.setattr(machine_load.Quietness, "disturbed", property(lambda self: "other programs took 1.9 of 2 processors"))
        calls(60)
    assert set(library.ran) == {"slow", "fast"} and library.ran[-1] == "fast"
    with online():
        calls(500)
    assert library.ran[-1] == "all"


@pytest.mark.parametrize("chosen", ["several", "numpy"])
def test_threads_that_spin_long_are_tried_beside_a_choice_that_has_them(chosen: str, several: Make) -> None:
    library = several({"slow": {"pool": "numpy" * (chosen == "numpy")}, "spins": {"pool": "numpy"}}, slow=3e-3, spins=1e-3, fast=2e-3)
    with online():
        calls(200)
    assert library.ran[-1] == ("spins" if chosen == "numpy" else "fast")
    assert ("spins" in library.ran) == (chosen == "numpy")


def test_a_preference_is_kept(several: Make) -> None:
    several(fast=1e-12)
    with backends.flags(benchmark="online", prefer=("numpy",)):
        calls(60)
        assert backline.explain(backline.matmul, A, A).library == "numpy"
        assert all(key.startswith("numpy.") for one in learned_records.every() for key in one.algorithms)


def test_one_that_fails_where_the_choice_does_not_is_left(several: Make) -> None:
    library = several(slow=3e-3, broken=1e-3)

    def broken(a: Array, b: Array) -> Array:
        raise RuntimeError("no kernel")

    library.functions["broken"] = broken
    with online():
        results = calls(60)
        assert backline.explain(backline.matmul, A, A).algorithm == "slow"
    assert all(np.array_equal(result, A @ A) for result in results)
    assert library.ran.count("broken") == 1
    assert learned_records.every()[0].learner.tried["several.broken@1"].verdict == "failed"


def test_one_that_cannot_be_prepared_is_left(several: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    library = several(slow=3e-3, broken=1e-3, fast=1e-3)
    real = library.prepare

    def prepare(problem: Problem, algorithm: Algorithm) -> Any:
        if algorithm.name == "broken":
            raise RuntimeError("no kernel")
        return real(problem, algorithm)

    monkeypatch.setattr(library, "prepare", prepare)
    with online():
        calls(60)
        assert backline.explain(backline.matmul, A, A).algorithm == "fast"


def test_an_error_of_the_call_is_the_callers(several: Make) -> None:
    """It comes from the choice, whatever was tried, and nothing is held against what was tried."""
    library = several(slow=3e-3, fast=1e-3)

    def bad(a: Array, b: Array) -> Array:
        raise ArithmeticError("the operand")

    with online():
        calls(9)
        library.functions |= {"slow": bad, "fast": bad}
        for _ in range(20):
            with pytest.raises(ArithmeticError, match="the operand"):
                backline.matmul(A, A)
        library.functions.clear()
        calls(50)
        assert backline.explain(backline.matmul, A, A).algorithm == "fast"


def test_results_go_where_the_caller_says() -> None:
    out, a = np.empty_like(A), A
    with backends.flags(benchmark="online"):
        for _ in range(80):
            out[:] = np.nan
            assert backline.matmul(a, a, out=out) is out
            np.testing.assert_allclose(out, A @ A, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("overwrite", [False, True])
def test_operations_of_all_kinds_stay_right(overwrite: bool) -> None:
    spd, x = A @ A.T + 6 * np.eye(6), np.arange(64.0)
    with backends.flags(benchmark="online"):
        for _ in range(60):
            np.testing.assert_allclose(linalg.cholesky(spd) @ linalg.cholesky(spd).T, spd, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(linalg.solve(spd, A), np.linalg.solve(spd, A), rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(backline.fft.fft(x), np.fft.fft(x), rtol=1e-10, atol=1e-9)
            np.testing.assert_allclose(linalg.det(spd), np.linalg.det(spd), rtol=1e-10)
            np.testing.assert_allclose(backline.nn.functional.softmax(A, 1).sum(1), 1.0, rtol=1e-12)
            np.testing.assert_allclose(backline.einsum("ij,jk->ki", A, A), (A @ A).T, rtol=1e-10, atol=1e-10)


# What is said ---------------------------------------------------------------------------------------------------------


def test_trace_and_explain_say_what_is_tried(several: Make) -> None:
    several(slow=3e-3, fast=1e-3)
    with online(), backline.trace() as events:
        calls(60)
        last = backline.explain()
        asked = backline.explain(backline.matmul, A, A)
    told = {e.choice.basis.partition(";")[0] for e in events if e.choice.basis.startswith("online")}
    assert "online: trying several.fast@1 in the place of several.slow@1" in told
    assert "online: fastest of 2 tried" in told
    assert last.algorithm == asked.algorithm == "fast" and asked.basis.startswith("online: fastest of 2 tried; ")
    assert "several.slow@1 was demoted: it took 3.0 times what was expected of it; before: shipped ranking" in asked.basis
    assert [c.verdict for c in last.candidates[:2]] == ["chosen", "next"] == [c.verdict for c in asked.candidates[:2]]
    assert [c.seconds for c in asked.candidates[:2]] == [1e-3, 3e-3]
    assert "benchmark = 'online', " in str(asked)
    trial = next(e for e in events if "trying" in e.choice.basis)
    assert trial.choice.algorithm == "fast" and trial.library == "several"
    assert trial.choice.trial and ", a trial" in str(trial) and not asked.trial
    assert sum(", a trial" in line for line in str(events).splitlines()) == sum(e.choice.trial for e in events) >= 3


def test_the_switch_is_set_like_any_other(tmp_path: Path) -> None:
    config = tmp_path / "backline.toml"
    config.write_text('benchmark = "online"\nbenchmark_overhead = 0.1\n')
    program = "from backline import backends; print(backends.benchmark, backends.benchmark_overhead)"
    base = {**os.environ, "BACKLINE_CONFIG": ""}
    for more, want in (
        ({}, "False 0.03"),
        ({"BACKLINE_BENCHMARK": " Online ", "BACKLINE_BENCHMARK_OVERHEAD": "0.5"}, "online 0.5"),
        ({"BACKLINE_CONFIG": str(config)}, "online 0.1"),
        ({"BACKLINE_CONFIG": str(config), "BACKLINE_BENCHMARK": "off"}, "False 0.1"),
    ):
        done = subprocess.run([sys.executable, "-c", program], env=base | more, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == want, more
    with pytest.raises(BadType, match=r"'online'"):
        backends.benchmark = "onlin"  # type: ignore[assignment]  # wrong on purpose
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(BadValue, match="benchmark_overhead"):
            backends.benchmark_overhead = wrong


def test_no_overhead_means_no_trials(several: Make) -> None:
    library = several(slow=3e-3, fast=1e-3)
    with online(benchmark_overhead=0.0):
        calls(500)
    assert set(library.ran) == {"slow"}


# What is written ------------------------------------------------------------------------------------------------------


def rows(file: Path) -> list[str]:
    with sqlite3.connect(file) as connection:
        return [text for (text,) in connection.execute("SELECT record FROM records")]


def test_records_are_ordinary_ones_and_hold_for_later_processes(several: Make, fresh: Path) -> None:
    several(slow=3e-3, fast=1e-3)
    with online():
        calls(50)
    assert learned_records.write() == 1 and len(rows(fresh)) == 1 and learned_records.write() == 0
    learned_records.forget()
    record_store.reload()
    (record,) = record_store.every()
    assert record.winner == "several.fast@1" and record.medians == {"several.slow@1": 3e-3, "several.fast@1": 1e-3}
    assert set(record.covered) == set(record.medians) and record.place.startswith("matmul|f64|")
    choice = backline.explain(backline.matmul, A, A)
    assert choice.algorithm == "fast" and choice.basis.startswith("tuning record")


def test_what_was_known_stays(several: Make, fresh: Path) -> None:
    """A record of a measurement, and what another process writes meanwhile, are merged with what is learned."""
    several(slow=3e-3, fast=1e-3)
    with online():
        calls(50)
        (one,) = learned_records.every()
    record = one.record()
    assert record is not None
    other = TuningRecord(
        record.key, record.threads, medians={"several.slow@1": 6e-3, "several.third@1": 5e-3}, errors={"several.slow@1": 1e-16},
        rejected={"several.wrong@1": "wrong result"}, covered=("several.slow@1", "several.third@1", "several.wrong@1"),
        created="2026-01-01T00:00:00.000000Z", versions={"several": "1"}, machine=record.machine, place=record.place,
    )  # fmt: skip
    record_store.keep(other)
    record_store.reload()  # this process has not seen it
    record_store.empty()
    record_store._store.records = {}
    assert learned_records.write() == 1
    record_store.reload()
    (found,) = record_store.every()
    # Slow took half as long here as there; so third is taken to be twice as fast here, too.
    assert found.medians == pytest.approx({"several.slow@1": 3e-3, "several.fast@1": 1e-3, "several.third@1": 2.5e-3})
    assert found.winner == "several.fast@1" and found.errors and found.rejected and found.created > other.created


def test_a_record_set_by_hand_is_left_alone(several: Make) -> None:
    library = several(slow=3e-3, fast=1e-3)
    with online():
        calls(50)
        learned_records.write()
        (record,) = record_store.every()
        learned_records.forget()
        record_store.keep(TuningRecord(**{**{n: getattr(record, n) for n in record.__slots__}, "winner": "default"}))
        library.ran.clear()
        calls(100)
    assert set(library.ran) == {"slow"} and not learned.table


def test_what_was_found_on_a_busy_machine_is_marked(several: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    several(slow=3e-3, fast=1e-3)
    monkeypatch.setattr(machine_load.Quietness, "disturbed", property(lambda self: "other programs took 1.9 of 2 processors"))
    with online():
        calls(50)
    learned_records.write()
    (record,) = record_store.every()
    assert record.disturbed and not record.covered


def test_it_is_written_at_intervals_and_not_at_every_call(several: Make, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several(slow=3e-3, fast=1e-3, third=2e-3)
    with online():
        calls(60)
        assert not fresh.exists()
        learned_records.forget()
        learned_records.costs.account.spent = 100.0
        _core.memo_clear()
        monkeypatch.setattr(learned_records, "INTERVAL", 0.0)
        calls(60)
    assert len(rows(fresh)) == 1


PROGRAM = """
    import os, sys, time
    import numpy as np
    import backline
    from backline import backends
    from backline.engine import ranking, trials
    from backline.engine.tuning import learned_records
    ranking.times_of = lambda problem: {}  # so that everything is worth a trial, whatever this class's ranking says
    learned_records.costs.account.spent = 1e6
    real = trials.Trials.__call__
    def told(self, sampled, plan, calls, wall, cpu, interruptions):
        taken = {"numpy": 1_000_000}.get(plan.choice.library, 3_000_000)
        real(self, sampled, plan, calls, taken, taken, 0)
    trials.Trials.__call__ = told
    backends.benchmark = "online"
    a = np.ones((5, 7)), np.ones((7, 3))
    for _ in range(80):
        backline.matmul(*a)
    print(sum(one.learner.changed for one in learned_records.every()), flush=True)
"""


def test_it_is_written_at_exit(fresh: Path) -> None:
    done = python(PROGRAM)
    assert len(rows(fresh)) == 1, done


def test_a_forked_child_learns_and_writes_nothing(fresh: Path) -> None:
    python(
        PROGRAM
        + """
    child = os.fork()
    if not child:
        for _ in range(5000):
            backline.matmul(*a)
        assert learned_records.stopped() and learned_records.write() == 0 and not learned_records.every()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not os.path.exists(os.environ["BACKLINE_TUNING"])
    for _ in range(100):
        backline.matmul(*a)
    assert learned_records.every()
    """
    )
    assert len(rows(fresh)) == 1


@pytest.mark.slow
def test_killed_at_any_time_the_file_is_whole(fresh: Path) -> None:
    """A process that writes all the time is killed; what it wrote before is there, and is valid."""
    program = textwrap.dedent(PROGRAM) + textwrap.dedent("""
        n = 0
        while True:
            n += 1
            x, y = np.ones((5, 7 + n)), np.ones((7 + n, 3))
            for _ in range(80):
                backline.matmul(x, y)
            if learned_records.write():
                print(n, flush=True)
    """)
    most = 0
    for delay in (0.0, 0.013, 0.05, 0.11, 0.2):
        with started([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
            assert process.stdout is not None
            for _ in range(4):
                assert process.stdout.readline()
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.wait()
        record_store.reload()
        found = record_store.every()
        assert len(found) >= max(most, 4) and not record_store.report()["dropped"] and not record_store.report()["problem"]
        most = len(found)


# Many threads, little memory ------------------------------------------------------------------------------------------


def test_many_threads_at_once(several: Make) -> None:
    library = several(slow=3e-3, fast=1e-3, third=2e-3)
    arrays = [np.full((n, n), 1.0) for n in range(2, 8)]
    wrong: list[object] = []
    begin = threading.Barrier(8)

    def work(seed: int) -> None:
        begin.wait()
        with online():
            for i in range(400):
                a = arrays[(i + seed) % len(arrays)]
                if not (backline.matmul(a, a) == len(a)).all():
                    wrong.append(a.shape)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and Counter(library.ran).total() == 3200
    with online():
        assert {backline.explain(backline.matmul, a, a).algorithm for a in arrays} == {"fast"}


def test_memory_is_bounded(several: Make, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several(slow=3e-3, fast=1e-3)
    monkeypatch.setattr(learned_records, "MOST", 5)
    with online():
        for n in range(1, 21):
            calls(30, np.ones((n, n)))
    assert len(learned.table) == 5 and len(learned_records._waiting) < 5
    learned_records.write()
    assert len(rows(fresh)) == 20  # what was found of those that were forgotten is not lost


def test_the_plans_of_trials_are_let_go() -> None:
    before = sum(type(o) is trials.Trials for o in gc.get_objects())
    with backends.flags(benchmark="online"):
        calls(30)
    _core.memo_clear()
    gc.collect()
    assert sum(type(o) is trials.Trials for o in gc.get_objects()) == before

