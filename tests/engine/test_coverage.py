"""Coverage of tuning records: a partial measurement is no verdict for ever, and nothing is measured twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.engine.tuning import benchmark, coverage, measure, record_exchange, record_store
from backline.engine.tuning.record import TuningRecord, parse
from backline.libraries.base import Algorithm
from backline.native.machine import fingerprint
from backline.problems import Problem
from backline.problems.op_registry import operations
from support import need

A, B, C = Algorithm(library="a", name="x"), Algorithm(library="b", name="x"), Algorithm(library="c", name="x")
TIMES = {"a.x@1": 3.0, "b.x@1": 2.0, "c.x@1": 1.0}


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    where = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(where))
    record_store.reload()
    yield where
    monkeypatch.undo()
    record_store.reload()


class Measured:
    """Stands in for measuring: notes what it is given, and answers with times of a table, a microsecond where it has none."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []
        self.under: list[dict[str, str]] = []
        self.times: dict[str, float] = {}
        self.factor = 1.0
        self.disturbed = ""
        self.count = 0

    def __call__(
        self, problem: Problem, algorithms: Sequence[Algorithm], threads: int, *, timing: bool = True, under: Any = (), **more: Any
    ) -> TuningRecord:
        keys = [a.key for a in algorithms]
        self.given.append(keys)
        self.under.append(dict(under))
        self.count += 1
        timed = keys if timing and len(keys) > 1 else []
        record = TuningRecord(
            problem.key, threads, medians={k: self.times.get(k, 1e-6) * self.factor for k in timed},
            minima={k: self.times.get(k, 1e-6) * self.factor for k in timed}, runs=dict.fromkeys(timed, 3),
            errors=dict.fromkeys(keys, 1e-7), covered=() if self.disturbed else tuple(timed), under=dict(under),
            disturbed=self.disturbed, created=f"2026-11-22T00:00:{self.count:02}.000000Z",
            versions={name: libraries.get(name).version() or "" for name in {a.library for a in algorithms} & {*libraries.names()}},
            machine=fingerprint(), backline=backline.__version__,
        )  # fmt: skip
        return replace(record, winner=record_store.winner(record, algorithms))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    made = Measured()
    monkeypatch.setattr(measure, "measure_problem", made)
    return made


def multiply(**flags: Any) -> Any:
    a = np.ones((12, 12), np.float32)
    with switches.scope({"benchmark": True, "benchmark_limit": 0} | {k.replace("__", "."): v for k, v in flags.items()}):
        backline.matmul(a, a)
        return backline.explain()


def candidates(choice: Any) -> list[str]:
    return [c.detail.key for c in choice.candidates if c.detail is not None and c.verdict != "refused"]


# What a record says ---------------------------------------------------------------------------------------------------


def test_a_limit_of_one_keeps_no_other_from_being_timed_later(measured: Measured) -> None:
    multiply(benchmark_limit=1)
    assert [len(keys) for keys in measured.given] == [1] and measured.under[0]["benchmark_limit"] == "1"
    multiply(benchmark_limit=1)
    assert measured.count == 1  # a single candidate is checked once
    choice = multiply()
    assert set(measured.given[1]) == set(candidates(choice)) and len(measured.given[1]) > 1
    assert choice.basis.startswith("measured now")
    multiply()
    multiply(benchmark_limit=2)
    assert measured.count == 2
    record_store.reload()  # as the next process would
    multiply()
    assert measured.count == 2


def test_a_limit_of_one_holds_nothing_back_in_a_later_process(measured: Measured) -> None:
    multiply(benchmark_limit=1)
    record_store.reload()
    choice = multiply()
    assert set(measured.given[1]) == set(candidates(choice))


LATER = """
import numpy as np, backline
from backline.engine.tuning import record_store as records
a = np.ones((12, 12), np.float32)
with backline.backends.flags(benchmark=True, benchmark_limit={limit}):
    backline.matmul(a, a)
(record,) = records.every()
print(len(record.medians), len(record.errors), backline.explain().basis.partition(",")[0])
"""


def test_in_processes_one_after_the_other(file: Path) -> None:
    def process(limit: int) -> list[str]:
        command = [sys.executable, "-W", "ignore:timed on a busy machine", "-c", LATER.format(limit=limit)]
        environment = os.environ | {"BACKLINE_TUNING": str(file)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split(maxsplit=2)

    assert process(1) == ["0", "1", "measured now\n"]
    timed, checked, basis = process(0)
    assert int(timed) == int(checked) > 1 and basis == "measured now\n"


def test_a_library_that_was_off_once_is_timed_when_it_is_on(measured: Measured) -> None:
    need("openblas")
    without = multiply(openblas__enabled=False)
    assert measured.under[0]["openblas.enabled"] == "False"
    assert not any(key.startswith("openblas.") for key in measured.given[0])
    (record,) = record_store.every()
    assert set(record.covered) == set(measured.given[0]) == set(candidates(without))
    fastest = min(record.medians, key=record.medians.__getitem__)
    measured.times = {"openblas.gemm@1": 1e-7}
    choice = multiply()
    # Only what is new is measured, in turn with the fastest of those that are known.
    new = [key for key in candidates(choice) if key.startswith("openblas.")]
    assert new and set(measured.given[1]) == {*new, fastest}
    assert choice.chosen.key == "openblas.gemm@1"
    (record,) = record_store.every()
    assert set(record.covered) == set(measured.given[0]) | set(new) == set(record.medians) and not record.disturbed
    record_store.reload()
    multiply()
    multiply(openblas__enabled=False)
    assert measured.count == 2


def test_without_benchmark_nothing_is_measured_and_explain_says_what_was_not_timed(measured: Measured) -> None:
    need("openblas")
    multiply(openblas__enabled=False)
    with switches.scope(num_threads=backline.get_num_threads()):
        a = np.ones((12, 12), np.float32)
        backline.matmul(a, a)
        basis = backline.explain(backline.matmul, a, a).basis
    assert measured.count == 1
    assert basis.startswith("tuning record of 2026-11-22") and "not timed" in basis
    assert "not timed" not in multiply(openblas__enabled=False).basis


def old_line() -> str:
    """A record as it was written before records said what they cover."""
    problem = operations["matmul"].build(np.ones((12, 12), np.float32), np.ones((12, 12), np.float32))
    record = TuningRecord(
        problem.key, backline.get_num_threads(), medians={"numpy.matmul@n": 2e-6}, minima={"numpy.matmul@n": 1e-6},
        runs={"numpy.matmul@n": 100}, errors={"numpy.matmul@n": 1e-7, "mkl.gemm@1": 1e-7}, winner="numpy.matmul@n",
        created="2026-11-20T03:00:00.000000Z", versions={"numpy": np.__version__}, machine=fingerprint(), backline="0.1.0",
    )  # fmt: skip
    content = json.loads(record.line())
    for name in ("covered", "under", "disturbed"):
        del content[name]
    return json.dumps(content, sort_keys=True)


def test_a_record_written_before_covers_what_it_timed(measured: Measured, tmp_path: Path) -> None:
    assert parse(old_line()).covered == ("numpy.matmul@n",)
    (tmp_path / "old.json").write_text(old_line() + "\n")
    assert record_exchange.import_from(str(tmp_path / "old.json")) == (1, 1)
    record_store.reload()
    a = np.ones((12, 12), np.float32)
    assert backline.explain(backline.matmul, a, a).library == "numpy"  # it is used as it was
    choice = multiply()
    others = [key for key in candidates(choice) if key != "numpy.matmul@n"]
    assert [set(keys) for keys in measured.given] == [{*others, "numpy.matmul@n"}]
    (record,) = record_store.every()
    assert record.medians["numpy.matmul@n"] == 2e-6 and set(record.covered) == set(candidates(choice))


def test_what_a_new_version_brings_is_timed_again(measured: Measured) -> None:
    need("openblas")
    multiply()
    (record,) = record_store.every()
    older = replace(record, versions={**record.versions, "openblas": "0"})
    record_store.reload()  # the next process, in which OpenBLAS is another version
    record_store.keep(older)
    multiply(openblas__enabled=False)
    assert measured.count == 1
    multiply()
    old = [key for key in record.covered if key.startswith("openblas.")]
    assert old and {*old} <= {*measured.given[1]} and len(measured.given[1]) == len(old) + 1 < len(measured.given[0])


def test_a_record_of_errors_alone_covers_no_times(measured: Measured) -> None:
    problem = operations["matmul"].build(np.ones((12, 12), np.float32), np.ones((12, 12), np.float32))
    threads = backline.get_num_threads()
    able = [A, B]
    checked = benchmark.measure_missing(problem, able, threads, timing=False)
    assert checked.errors and not checked.medians and checked.covered == ()
    assert benchmark.measure_missing(problem, able, threads, timing=False) == checked and measured.count == 1
    timed = benchmark.measure_missing(problem, able, threads)
    assert set(timed.medians) == {a.key for a in able} and measured.count == 2
    # And checking more leaves the times as they are.
    assert benchmark.measure_missing(problem, [A, B, C], threads, timing=False).medians == timed.medians
    assert measured.given[2] == ["c.x@1"]


def test_a_choice_fixed_by_hand_stays(measured: Measured) -> None:
    multiply(benchmark_limit=2)
    (record,) = record_store.every()
    record_store.keep(replace(record, winner="default", created="2026-11-23T00:00:00.000000Z"))
    multiply()
    assert measured.count == 1


def test_again_measures_all_and_forgets_what_was(measured: Measured) -> None:
    problem = operations["matmul"].build(np.ones((12, 12), np.float32), np.ones((12, 12), np.float32))
    benchmark.measure_missing(problem, [A, B, C], 1)
    measured.times = TIMES
    record = benchmark.measure_missing(problem, [A, B], 1, again=True)
    assert measured.given == [["a.x@1", "b.x@1", "c.x@1"], ["a.x@1", "b.x@1"]] and set(record.medians) == {"a.x@1", "b.x@1"}


# What was measured on a busy machine -------------------------------------------------------------------------------------


def test_what_was_timed_on_a_busy_machine_is_used_said_and_timed_again_by_the_next_process(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "_warned", False)
    measured.disturbed = "other programs took 1.3 of 2 processors"
    with pytest.warns(RuntimeWarning, match=r"^timed on a busy machine: matmul f32 12x12 12x12 .*1\.3 of 2 proc") as caught:
        choice = multiply()
    assert len(caught) == 1 and caught[0].filename == __file__
    assert choice.basis.endswith("on a busy machine: other programs took 1.3 of 2 processors")
    multiply(benchmark_limit=7)
    assert measured.count == 1  # not at every call of this process
    a = np.ones((9, 9), np.float32)
    with switches.scope(benchmark=True):
        backline.matmul(a, a)  # and no second warning, which would be an error here
    record_store.reload()
    a = np.ones((12, 12), np.float32)
    assert "timed on a busy machine" in backline.explain(backline.matmul, a, a).basis
    measured.disturbed = ""
    choice = multiply()
    assert set(measured.given[2]) == set(measured.given[0]) and "busy" not in choice.basis
    (record,) = [r for r in record_store.every() if "12x12" in r.key]
    assert not record.disturbed and set(record.covered) == set(record.medians)


def test_on_a_busy_machine_the_ranking_needs_more_to_be_overruled() -> None:
    record = TuningRecord("x", 1, medians={"a.x@1": 1.0, "b.x@1": 0.9})
    assert record_store.winner(record, [A, B]) == "b.x@1"
    assert record_store.winner(replace(record, disturbed="others"), [A, B]) == "a.x@1"
    assert record_store.winner(replace(record, disturbed="others", medians={"a.x@1": 1.0, "b.x@1": 0.5}), [A, B]) == "b.x@1"
    assert record_store.winner(replace(record, medians={}), [A, B]) == ""


# Putting two together -------------------------------------------------------------------------------------------------------


def made(*algorithms: Algorithm, factor: float = 1.0, **changes: Any) -> TuningRecord:
    keys = tuple(a.key for a in algorithms)
    record = TuningRecord(
        "x", 1, medians={k: TIMES[k] * factor for k in keys}, minima={k: TIMES[k] * factor for k in keys},
        runs=dict.fromkeys(keys, 3), errors=dict.fromkeys(keys, 1e-7), covered=keys, versions={a.library: "1" for a in algorithms},
    )  # fmt: skip
    return replace(record, winner=record_store.winner(record, algorithms), **changes)


def test_new_times_are_brought_to_the_scale_of_the_old() -> None:
    """The machine is three times as slow now: so is what both timed."""
    both = coverage.merged(made(A, B), made(B, C, factor=3.0), [A, B, C])
    assert both.medians == pytest.approx(TIMES) and both.minima == pytest.approx(TIMES)
    assert both.covered == ("a.x@1", "b.x@1", "c.x@1") and both.winner == "c.x@1"
    assert both.runs == dict.fromkeys(TIMES, 3) and both.versions == {"a": "1", "b": "1", "c": "1"}


def test_without_one_that_both_timed_the_times_stand_as_they_are() -> None:
    both = coverage.merged(made(A), made(B, factor=3.0), [A, B])
    assert both.medians == {"a.x@1": 3.0, "b.x@1": 6.0} and both.winner == "a.x@1"


def test_the_fastest_stays_the_winner_while_it_is_switched_off() -> None:
    assert coverage.merged(made(C), made(A, B), [A, B]).winner == "c.x@1"
    slow = made(A)
    assert coverage.merged(slow, made(B, C), [B, C]).winner == "c.x@1"


def test_what_the_new_one_rejects_loses_its_time() -> None:
    new = replace(made(B), rejected={"a.x@1": "wrong result"}, covered=("a.x@1", "b.x@1"))
    both = coverage.merged(made(A), new, [A, B])
    assert set(both.medians) == set(both.runs) == {"b.x@1"} and both.rejected == {"a.x@1": "wrong result"} and both.winner == "b.x@1"


def test_times_of_a_busy_machine_give_way_and_leave_the_sound_ones() -> None:
    busy = made(A, B, covered=(), disturbed="others")
    assert coverage.anchor(busy, [A, B]) is None and coverage.pending(busy, [A, B]) == [A, B]
    assert coverage.merged(busy, made(A, B, factor=2.0), [A, B]).medians == {"a.x@1": 6.0, "b.x@1": 4.0}
    later = coverage.merged(made(A, B), replace(made(B, C, factor=2.0), covered=(), disturbed="others"), [A, B, C])
    assert later.covered == ("a.x@1", "b.x@1") and later.disturbed == "others" and later.medians == pytest.approx(TIMES)
    assert coverage.pending(later, [A, B, C]) == [C] and coverage.anchor(later, [A, B, C]) == B
    assert coverage.merged(later, made(B, C), [A, B, C]).disturbed == ""
