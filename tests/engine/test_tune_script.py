"""Tuning a script from end to end: recorded, measured, run again, compared."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backline import libraries, switches
from backline.cli import tune as cli_tune
from backline.engine import script_runs, tune_script
from backline.engine.tuning import machine_load, measure, record_store
from backline.engine.tuning.benchmark import measure_missing
from backline.engine.tuning.load_cost import not_worth_loading
from backline.engine.tuning.record import TuningRecord
from backline.engine.tuning.trace_script import pack, unpack
from backline.errors import BadValue
from backline.interop import tune_program
from backline.libraries.base import FileLibrary
from backline.problems.op_registry import operations

SCRIPT = """
import sys
import numpy as np, backline
rng = np.random.default_rng(0)
a = rng.standard_normal((48, 48)).astype(np.float32)
for _ in range(3):
    backline.matmul(a, a.T)
    backline.linalg.cholesky(a @ a.T + 48 * np.eye(48, dtype=np.float32))
print("arguments", sys.argv[1:], __name__, sys.argv[0] == __file__)
if "fail" in sys.argv:
    sys.exit(7)
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    where = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(where))
    monkeypatch.setattr(script_runs, "ROUNDS", 0)
    record_store.reload()
    yield where
    monkeypatch.undo()
    record_store.reload()


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text(SCRIPT)
    return str(tmp_path / "job.py")


def test_a_script_is_tuned(script: str, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[str] = []
    seen: list[tuple[int, int, str]] = []
    report = tune_script.tune_script(
        [script, "--verbose", "x y"], budget=5.0, step=steps.append, progress=lambda *a: seen.append(a)
    )
    assert steps == ["NumPy alone", "backline, not tuned", "backline, tuned"]
    assert [text for _, _, text in seen][-1] == "" and seen[-1][0] == seen[-1][1] == 2
    # The script's own output comes once, from the last run, and its arguments are its own.
    assert capfd.readouterr().out == "arguments ['--verbose', 'x y'] __main__ True\n"
    keys = {"matmul f32 48x48 48x48:F", "linalg.cholesky f32 48x48"}
    rows = report.rows()
    assert {r.key for r in rows} == keys == {r.key for r in report.records}
    assert all(r.count == 3 and r.numpy and r.untuned and r.tuned for r in rows)
    assert set(report.numpy.by("library")) == {"numpy"}
    assert all(r.error is not None and r.error < 1e-5 for r in rows)
    assert all(e["basis"].startswith("tuning record of") for e in report.tuned.entries)
    assert report.file == str(file) and not report.left_out
    record_store.reload()
    assert {r.key for r in record_store.every()} == keys
    content = json.loads(json.dumps(report.as_dict()))
    assert set(content["runs"]) == {"numpy", "untuned", "tuned"} and len(content["rows"]) == 2


def test_the_tuned_run_takes_the_winners(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_script, "not_worth_loading", lambda *arguments: {})
    report = tune_script.tune_script([script], budget=5.0)
    winners = {r.key: r.winner for r in report.records}
    assert {e["key"]: e["algorithm"] for e in report.tuned.entries} == winners
    assert not report.not_loaded


def test_what_is_not_worth_loading_is_not_loaded(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is worth its loading where each takes a microsecond, and NumPy is there anyway."""

    def equal(*arguments: Any, **options: Any) -> TuningRecord:  # not this machine's times, by which one may save more
        record = measure_missing(*arguments, **options)
        return replace(record, medians=dict.fromkeys(record.medians, 1e-6), disturbed="")

    monkeypatch.setattr(tune_script, "measure_missing", equal)
    report = tune_script.tune_script([script], budget=5.0)
    assert report.not_loaded and "numpy" not in report.not_loaded
    assert all("ms to load, and saves the script 0 ms" in why for why in report.not_loaded.values())
    assert {e["library"] for e in report.tuned.entries}.isdisjoint(report.not_loaded)
    record_store.reload()
    assert all(r.left == report.not_loaded for r in record_store.every())


def test_what_was_measured_is_not_measured_again(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    real = measure.measure_problem

    def count(problem: Any, algorithms: list[Any], *args: Any, **kwargs: Any) -> Any:
        given.append([a.key for a in algorithms])
        return real(problem, algorithms, *args, **kwargs | {"budget": 0.0})

    monkeypatch.setattr(measure, "measure_problem", count)
    with switches.scope({"openblas.enabled": False}):
        first = tune_script.tune_script([script])
    assert len(first.records) == len(given) == 2 and first.held == []
    assert all(r.under["openblas.enabled"] == "False" and not r.disturbed for r in first.records)
    second = tune_script.tune_script([script])
    # OpenBLAS was not covered, and may run now: it is measured, beside the fastest of the others.
    assert {r.key for r in second.records} == {r.key for r in first.records} and second.held == []
    assert all(sum(not key.startswith("openblas.") for key in keys) == 1 < len(keys) for keys in given[2:])
    third = tune_script.tune_script([script])
    assert third.records == [] and len(third.held) == 2 and len(given) == 4 and third.as_dict()["held"] == 2
    assert all(r.error is not None for r in third.rows())
    again = tune_script.tune_script([script], again=True)
    assert len(again.records) == 2 and again.held == [] and len(given) == 6


def test_what_is_missing_is_not_called_not_loaded(script: str) -> None:
    class Missing(FileLibrary):
        name, title, switch, load_seconds = "missing", "A library that is not here", "numpy.enabled", 0.25
        _reason = "no file of this name was found"

        def algorithms(self, problem: Any, threads: int) -> Iterator[Any]:
            return iter(())

    libraries.register(Missing())
    try:
        report = tune_script.tune_script([script], budget=5.0)
    finally:
        libraries.unregister("missing")
    assert report.not_loaded and all(libraries.get(name).available() for name in report.not_loaded)


def test_on_a_busy_machine_all_is_timed_twice_and_that_is_said(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = count(1)
    monkeypatch.setattr(machine_load, "read", lambda: machine_load.Reading(at := float(next(moments)), 0.0, busy=4 * at))
    given: list[str] = []
    real = measure.measure_problem

    def noted(problem: Any, *args: Any, **kwargs: Any) -> Any:
        given.append(problem.key)
        return real(problem, *args, **kwargs | {"budget": 0.0})

    monkeypatch.setattr(measure, "measure_problem", noted)
    report = tune_script.tune_script([script])
    assert len(given) == 4 and len({*given}) == len(report.records) == 2
    assert all("other programs took 4.0 of" in r.disturbed and not r.covered for r in report.records)
    assert set(report.as_dict()["disturbed"]) == {*given}
    # Who could save all of what the script's few calls take would not be worth loading.
    assert all(re.search(r"saves the script at most \d ms$", why) for why in report.not_loaded.values()) and report.not_loaded
    ((label, text),) = [fact for fact in cli_tune._busy(report) if "timed" in fact[1] and "problem" in fact[1]]
    assert label == "busy" and text.startswith("2 problems timed on a busy machine, the last while other programs took 4.0 of")
    monkeypatch.undo()
    monkeypatch.setenv("BACKLINE_TUNING", report.file)
    later = tune_script.tune_script([script], budget=5.0)
    assert len(later.records) == 2 and not any(r.disturbed for r in later.records)


def test_what_was_never_measured_comes_before_what_the_machine_was_too_busy_for(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [operations["matmul"].build(np.ones((n, n)), np.ones((n, n))) for n in (20, 21, 22)]
    order: list[str] = []
    real = measure.measure_problem

    def noted(problem: Any, *args: Any, **kwargs: Any) -> Any:
        order.append(problem.key)
        return real(problem, *args, **kwargs | {"budget": 0.0})

    monkeypatch.setattr(measure, "measure_problem", noted)
    report = tune_script.TuneReport("job.py", *runs_of(1.0, 1.0, 1.0))
    tune_script._measure(report, [(problems[0], 1)], 60.0, True, False, lambda *a: None)
    (record,) = report.records
    record_store.keep(replace(record, covered=(), disturbed="others"))
    tune_script._measure(report, [(p, 1) for p in problems], 60.0, True, False, lambda *a: None)
    assert [int(key.split("x")[-1]) for key in order] == [20, 21, 22, 20]


def test_a_short_script_runs_in_turn_and_a_long_one_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert script_runs.rounds_in_turn(0.0) == 0
    monkeypatch.undo()
    seconds = (0.0, script_runs.COMPARING / 2, script_runs.COMPARING * 0.9, script_runs.COMPARING * 1.1)
    assert [script_runs.rounds_in_turn(s) for s in seconds] == [2, 2, 1, 0]


def test_of_runs_in_turn_the_fastest_of_a_quiet_machine_are_kept(
    script: str, file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    real = script_runs.run_recorded
    seconds = {"numpy": [9.0, 5.0, 4.0], "untuned": [9.0, 3.0, 1.0], "tuned": [2.0, 2.5]}

    def timed(name: str, *args: Any, **kwargs: Any) -> tune_script.Run:
        order.append(name)
        run = real(name, *args, **kwargs)
        run.seconds = dict(enumerate(seconds[name], 1)).get(order.count(name), run.seconds)
        run.disturbed = "others" if (name, run.seconds) == ("untuned", 1.0) else ""
        return run

    monkeypatch.setattr(tune_script, "run_recorded", timed)
    monkeypatch.setattr(script_runs, "ROUNDS", 2)
    report = tune_script.tune_script([script], budget=0.0)
    assert order == ["numpy", "untuned", *["numpy", "untuned", "tuned"] * 2]
    assert [run.seconds for run in (report.numpy, report.untuned, report.tuned)] == [4.0, 3.0, 2.0]
    assert report.rounds == report.as_dict()["rounds"] == 2 and not report.busy()
    assert cli_tune._runs(report) == "in turn, the fastest of 2 of each"
    assert capfd.readouterr().out.count("arguments") == 1
    # A script that NumPy alone cannot run is not asked again to.
    order.clear()
    monkeypatch.setattr(tune_script, "_run_numpy", lambda *a, **k: order.append("numpy") or tune_script.Run("numpy", failed="no"))
    report = tune_script.tune_script([script], budget=0.0)
    assert order == ["numpy", "untuned", *["untuned", "tuned"] * 2] and report.numpy.failed == "no"
    monkeypatch.setattr(script_runs, "COMPARING", 0.0)
    report = tune_script.tune_script([script], budget=0.0)
    assert order[-3:] == ["numpy", "untuned", "tuned"] and report.rounds == 0 and "--rounds 1" in cli_tune._runs(report)


def runs_of(*seconds: float, disturbed: str = "") -> list[tune_script.Run]:
    """The three runs of a script with one Problem: ten calls, and as long as that for itself."""
    ways = ("numpy.matmul@n", "openblas.gemm@n", "mkl.gemm@1")
    return [
        tune_script.Run(
            name, 2 * s, [{"key": "matmul f32 8x8 8x8", "threads": 2, "count": 10, "seconds": s, "algorithm": way, "used": 1}],
            disturbed=disturbed if name == "numpy" else "",
        )
        for name, s, way in zip(("numpy", "untuned", "tuned"), seconds, ways, strict=True)
    ]  # fmt: skip


def test_runs_at_different_load_are_not_compared() -> None:
    record = TuningRecord("matmul f32 8x8 8x8", 2, medians={"numpy.matmul@n": 3e-3, "mkl.gemm@1": 2e-3})
    still = tune_script.TuneReport("job.py", *runs_of(0.04, 0.03, 0.02), records=[record])
    assert (still.rows()[0].faster, still.in_operations(), still.busy()) == (2.0, 2.0, "")
    busy = tune_script.TuneReport("job.py", *runs_of(8.66, 0.03, 0.02, disturbed="other programs took 1.3"), records=[record])
    assert busy.rows()[0].faster == busy.in_operations() == 1.5  # and not 433
    assert busy.faster(17.3, 0.04) is None and busy.busy() == "other programs took 1.3"
    ((_, text),) = cli_tune._busy(busy)
    assert text.startswith("the script ran while other programs took 1.3: its runs are not compared")
    for run, seconds in zip((busy.numpy, busy.untuned, busy.tuned), (0.5, 0.5, 0.01), strict=True):
        run.entries.append({**run.entries[0], "key": "matmul f32 9x9 9x9", "seconds": seconds})
    assert [r.faster for r in busy.rows()] == [1.5, None] and busy.in_operations() is None  # a third of the time is not compared
    unknown = tune_script.TuneReport("job.py", *runs_of(8.66, 0.03, 0.02, disturbed="others"))
    assert unknown.rows()[0].faster is None and unknown.in_operations() is None


def test_on_a_busy_machine_the_times_shown_are_those_that_are_compared() -> None:
    record = TuningRecord("matmul f32 8x8 8x8", 2, medians={"numpy.matmul@n": 3e-3, "mkl.gemm@1": 2e-3})
    still = tune_script.TuneReport("job.py", *runs_of(0.04, 0.03, 0.02), records=[record])
    assert still.compared(still.rows()[0]) == still.totals() == (0.04, 0.03, 0.02)
    busy = tune_script.TuneReport("job.py", *runs_of(8.66, 0.03, 0.02, disturbed="others"), records=[record])
    for before, untuned, after in (busy.compared(busy.rows()[0]), busy.totals()):
        assert before is not None and after is not None and untuned is None
        assert before / after == pytest.approx(busy.rows()[0].faster) == pytest.approx(busy.in_operations())
    # A measurement that was disturbed itself says no more than the runs did.
    disturbed = tune_script.TuneReport("job.py", *runs_of(8.66, 0.03, 0.02, disturbed="others"))
    disturbed.records = [replace(record, disturbed="others")]
    assert disturbed.rows()[0].faster is None and disturbed.in_operations() is None
    assert disturbed.compared(disturbed.rows()[0]) == disturbed.totals() == (8.66, 0.03, 0.02)
    assert cli_tune._busy(disturbed)[0][1].endswith("its runs are not compared")


@pytest.mark.parametrize(("operations", "spent", "shares"), [(1, 1.25, [3.0, 4.8]), (1, 9.0, [3.0, 0.0]), (0, 0.0, [6.0])])
def test_a_script_of_both_kinds_has_one_budget(
    operations: int, spent: float, shares: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    stock = SimpleNamespace(operations=operations, failed="")

    def tuned(*args: Any, budget: float, **kwargs: Any) -> Any:
        given.append(budget)
        return SimpleNamespace(measuring=spent, as_dict=dict)

    monkeypatch.setattr(tune_program, "unsupported", lambda: "")
    monkeypatch.setattr(tune_program, "recorded", lambda *args, **kwargs: stock)
    monkeypatch.setattr(tune_program, "worth_tuning", lambda run: True)
    monkeypatch.setattr(tune_program, "tune_program", tuned)
    monkeypatch.setattr(tune_script, "tune_script", tuned)
    cli_tune._script(["job.py"], None, "", 6.0, None, False, None, False, json=True)
    assert given == shares


def test_what_a_library_saves_is_weighed_over_all_problems_of_a_script() -> None:
    def record(name: str, **seconds: float) -> TuningRecord:
        return TuningRecord(name, 1, medians={f"{library}.way@1": s for library, s in seconds.items()})

    one, two = record("one", numpy=3.0, mkl=2.0, blis=2.1), record("two", numpy=3.0, mkl=2.0)
    loading = {"mkl": 1.5, "blis": 0.5}
    # Each alone does not pay for MKL; both together do, and BLIS then saves nothing.
    assert set(not_worth_loading([(one, 1)], loading, ())) == {"mkl"}
    assert set(not_worth_loading([(two, 1)], loading, ())) == {"mkl", "blis"}
    assert set(not_worth_loading([(one, 1), (two, 1)], loading, ())) == {"blis"}
    # What is loaded in any case costs nothing more; what alone can run something stays.
    assert set(not_worth_loading([(two, 1)], loading, ("mkl",))) == {"blis"}
    assert set(not_worth_loading([(record("three", blis=1.0), 1)], loading, ())) == {"mkl"}
    # By times of a busy machine MKL seems to be slower than NumPy: of those it may save up to all.
    busy = replace(record("busy", numpy=1.0, mkl=4.0), disturbed="other programs took 1.0 of 2 processors")
    assert not_worth_loading([(busy, 1)], loading, ()) == {
        "blis": "takes 500 ms to load, and saves the script at most 0 ms",
        "mkl": "takes 1500 ms to load, and saves the script at most 1000 ms",
    }
    assert set(not_worth_loading([(busy, 2)], loading, ())) == {"blis"}


def test_runs_are_compared_whatever_layouts_their_results_have() -> None:
    def run(name: str, *keys: str) -> tune_script.Run:
        return tune_script.Run(
            name, 2.0, [{"key": k, "threads": 1, "count": 1, "seconds": 0.5, "algorithm": "x.y@1", "used": 1} for k in keys]
        )

    plain, other = "matmul f32 8x8 8x8", "matmul f32 8x8 8x8:F"
    report = tune_script.TuneReport("job.py", run("numpy", plain), run("untuned", other), run("tuned", plain, other))
    (row,) = report.rows()
    assert (row.count, row.numpy, row.untuned, row.tuned) == (2, 0.5, 0.5, 1.0)


@pytest.mark.parametrize("budget", [0.0])
def test_without_a_budget_nothing_is_measured_and_that_is_said(script: str, budget: float) -> None:
    report = tune_script.tune_script([script], budget=budget)
    assert report.records == [] and len(report.left_out) == 2
    assert all("budget of 0 s" in why and "again goes on" in why for why in report.left_out.values())


def test_deterministic_chooses_nothing_by_timing(script: str) -> None:
    report = tune_script.tune_script([script], deterministic="run")
    assert report.records == [] and record_store.every() == []
    assert all(not e["basis"].startswith("tuning record") for e in report.tuned.entries)


def test_max_error_rejects_what_is_less_accurate(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = tune_script.tune_script([script], budget=5.0, max_error=1e-3)
    assert all(r.error is not None and r.error <= 1e-3 for r in report.rows())
    # A bound that nothing meets ends the last run, with the reasons.
    with pytest.raises(tune_script.ScriptFailed, match="when tuned"):
        tune_script.tune_script([script], budget=5.0, max_error=0.0)
    assert "max_error = 0" in capfd.readouterr().err


def test_without_a_file_the_tuned_run_has_the_records_all_the_same(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", "")
    record_store.reload()
    report = tune_script.tune_script([script], budget=5.0)
    assert report.file == "" and all(e["basis"].startswith("tuning record of") for e in report.tuned.entries)


def test_a_script_that_fails(script: str) -> None:
    with pytest.raises(tune_script.ScriptFailed, match=r"job.py ended with status 7") as caught:
        tune_script.tune_script([script, "fail"])
    assert caught.value.status == 7 and "arguments ['fail']" in caught.value.cause


@pytest.mark.parametrize(
    ("text", "message", "cause"),
    [
        ("1 / 0", "ended with status 1", "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV", ""),
        ("def (", "ended with status 1", "SyntaxError"),
        ("import os; os._exit(0)", "without a record", "os._exit"),
    ],
)
def test_how_a_script_can_end(text: str, message: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(tune_script.ScriptFailed, match=message) as caught:
        tune_script.tune_script([str(tmp_path / "bad.py")])
    assert cause in caught.value.cause and "recorder.py" not in caught.value.cause


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(BadValue, match=r"no script 'nowhere.py'"):
        tune_script.tune_script(["nowhere.py"])


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "import numpy as np; np.linalg.svd(np.eye(4) @ np.eye(4))"])
def test_a_script_without_operations_is_an_error_that_says_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text(text)
    steps: list[str] = []
    with pytest.raises(tune_script.NothingToTune, match=r"empty.py called no operation of Backline") as caught:
        tune_script.tune_script([str(tmp_path / "empty.py")], step=steps.append)
    assert "backline.matmul(a, b)" in caught.value.remedy and caught.value.exit_status == 3
    assert steps == ["NumPy alone"]  # it is not run again to see the same


def test_a_script_beside_modules_of_its_own(tmp_path: Path) -> None:
    """Its folder is where it imports from, as with Python itself; this package's folder is not."""
    (tmp_path / "beside.py").write_text("value = 1")
    (tmp_path / "imports.py").write_text(
        "import beside, sys, numpy as np, backline\n"
        "assert not any(p.rstrip('/').endswith('backline/engine') for p in sys.path)\n"
        "backline.mv(np.eye(3), np.ones(3))\n"
    )
    report = tune_script.tune_script([str(tmp_path / "imports.py")], budget=1.0)
    assert len(report.rows()) == 1


def test_forked_children_of_the_script_leave_its_record_alone(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(
        "import os, sys, numpy as np, backline\n"
        "backline.mv(np.eye(3), np.ones(3))\n"
        "child = os.fork()\n"
        "if child == 0:\n    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "backline.mv(np.eye(4), np.ones(4))\n"
    )
    assert len(tune_script.tune_script([str(tmp_path / "forks.py")], budget=1.0).rows()) == 2


def problems() -> list[Any]:
    import ml_dtypes

    a, v = np.ones((6, 5), np.complex64), np.ones(5, np.complex64)
    half = np.ones((4, 4), ml_dtypes.bfloat16)
    square = np.ones((3, 4, 4))[:, ::-1]
    return [
        operations["mv"].build(a, v),
        operations["addmm"].build(np.ones(6, np.complex64), a, a.T, alpha=1 + 2j),
        operations["vdot"].build(v, v),
        operations["matmul"].build(half, half, out=half.copy()),
        operations["linalg.svd"].build(square, full_matrices=False, driver="gesvd"),
        operations["linalg.lu_solve"].build(np.ones((4, 4)), np.ones(4, np.int32), np.ones((4, 1))),
        operations["linalg.lstsq"].build(np.ones((6, 3)), np.ones(6)),
    ]


@pytest.mark.parametrize("number", range(7))
def test_problems_survive_the_way_between_processes(number: int) -> None:
    p = problems()[number]
    again = unpack(json.loads(json.dumps(pack(p))))
    assert again == p and hash(again) == hash(p) and type(again) is type(p) and again.key == p.key and again.flops == p.flops


def test_the_recorder_runs_as_a_script(tmp_path: Path) -> None:
    """Every Problem, with how often and how long, by one process that was told nothing else."""
    (tmp_path / "job.py").write_text(SCRIPT)
    run = tune_script.run_recorded("untuned", [str(tmp_path / "job.py")], {"BACKLINE_NUM_THREADS": "1"}, show=False)
    assert {e["threads"] for e in run.entries} == {1} and sum(e["count"] for e in run.entries) == 6
    assert run.seconds > run.in_operations > 0
    assert os.path.basename(sys.executable).startswith("python")
