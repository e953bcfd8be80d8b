"""Tuning a script from end to end: recorded, measured, run again, compared."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline.engine import records, tune
from backline.engine.explain import problem_builders
from backline.engine.record import TuningRecord
from backline.engine.recorder import pack, unpack
from backline.engine.worth import not_worth
from backline.errors import BadValue

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
    records.reload()
    yield where
    monkeypatch.undo()
    records.reload()


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text(SCRIPT)
    return str(tmp_path / "job.py")


def test_a_script_is_tuned(script: str, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[str] = []
    seen: list[tuple[int, int, str]] = []
    report = tune.tune_script([script, "--verbose", "x y"], budget=5.0, step=steps.append, progress=lambda *a: seen.append(a))
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
    records.reload()
    assert {r.key for r in records.every()} == keys
    content = json.loads(json.dumps(report.as_dict()))
    assert set(content["runs"]) == {"numpy", "untuned", "tuned"} and len(content["rows"]) == 2


def test_the_tuned_run_takes_the_winners(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "not_worth", lambda *arguments: {})
    report = tune.tune_script([script], budget=5.0)
    winners = {r.key: r.winner for r in report.records}
    assert {e["key"]: e["algorithm"] for e in report.tuned.entries} == winners
    assert not report.not_loaded


def test_what_is_not_worth_loading_is_not_loaded(script: str) -> None:
    """A few microseconds saved three times: no library is worth its loading, and NumPy is there anyway."""
    report = tune.tune_script([script], budget=5.0)
    assert report.not_loaded and "numpy" not in report.not_loaded
    assert all("ms to load, and saves the script 0 ms" in why for why in report.not_loaded.values())
    assert {e["library"] for e in report.tuned.entries}.isdisjoint(report.not_loaded)
    records.reload()
    assert all(r.left == report.not_loaded for r in records.every())


def test_what_a_library_saves_is_weighed_over_all_problems_of_a_script() -> None:
    def record(name: str, **seconds: float) -> TuningRecord:
        return TuningRecord(name, 1, medians={f"{library}.way@1": s for library, s in seconds.items()})

    one, two = record("one", numpy=3.0, mkl=2.0, blis=2.1), record("two", numpy=3.0, mkl=2.0)
    loading = {"mkl": 1.5, "blis": 0.5}
    # Each alone does not pay for MKL; both together do, and BLIS then saves nothing.
    assert set(not_worth([(one, 1)], loading, ())) == {"mkl"}
    assert set(not_worth([(two, 1)], loading, ())) == {"mkl", "blis"}
    assert set(not_worth([(one, 1), (two, 1)], loading, ())) == {"blis"}
    # What is loaded in any case costs nothing more; what alone can run something stays.
    assert set(not_worth([(two, 1)], loading, ("mkl",))) == {"blis"}
    assert set(not_worth([(record("three", blis=1.0), 1)], loading, ())) == {"mkl"}


def test_runs_are_compared_whatever_layouts_their_results_have() -> None:
    def run(name: str, *keys: str) -> tune.Run:
        return tune.Run(
            name, 2.0, [{"key": k, "threads": 1, "count": 1, "seconds": 0.5, "algorithm": "x.y@1", "used": 1} for k in keys]
        )

    plain, other = "matmul f32 8x8 8x8", "matmul f32 8x8 8x8:F"
    report = tune.TuneReport("job.py", run("numpy", plain), run("untuned", other), run("tuned", plain, other))
    (row,) = report.rows()
    assert (row.count, row.numpy, row.untuned, row.tuned) == (2, 0.5, 0.5, 1.0)


@pytest.mark.parametrize("budget", [0.0])
def test_without_a_budget_nothing_is_measured_and_that_is_said(script: str, budget: float) -> None:
    report = tune.tune_script([script], budget=budget)
    assert report.records == [] and len(report.left_out) == 2
    assert all("budget of 0 s" in why for why in report.left_out.values())


def test_deterministic_chooses_nothing_by_timing(script: str) -> None:
    report = tune.tune_script([script], deterministic="run")
    assert report.records == [] and records.every() == []
    assert all(not e["basis"].startswith("tuning record") for e in report.tuned.entries)


def test_max_error_rejects_what_is_less_accurate(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = tune.tune_script([script], budget=5.0, max_error=1e-3)
    assert all(r.error is not None and r.error <= 1e-3 for r in report.rows())
    # A bound that nothing meets ends the last run, with the reasons.
    with pytest.raises(tune.ScriptFailed, match="when tuned"):
        tune.tune_script([script], budget=5.0, max_error=0.0)
    assert "max_error = 0" in capfd.readouterr().err


def test_without_a_file_the_tuned_run_has_the_records_all_the_same(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", "")
    records.reload()
    report = tune.tune_script([script], budget=5.0)
    assert report.file == "" and all(e["basis"].startswith("tuning record of") for e in report.tuned.entries)


def test_a_script_that_fails(script: str) -> None:
    with pytest.raises(tune.ScriptFailed, match=r"job.py ended with status 7") as caught:
        tune.tune_script([script, "fail"])
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
    with pytest.raises(tune.ScriptFailed, match=message) as caught:
        tune.tune_script([str(tmp_path / "bad.py")])
    assert cause in caught.value.cause and "recorder.py" not in caught.value.cause


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(BadValue, match=r"no script 'nowhere.py'"):
        tune.tune_script(["nowhere.py"])


def test_a_script_without_operations(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("import sys; sys.exit(0)")
    report = tune.tune_script([str(tmp_path / "empty.py")])
    assert report.rows() == [] and report.records == []


def test_a_script_beside_modules_of_its_own(tmp_path: Path) -> None:
    """Its folder is where it imports from, as with Python itself; this package's folder is not."""
    (tmp_path / "beside.py").write_text("value = 1")
    (tmp_path / "imports.py").write_text(
        "import beside, sys, numpy as np, backline\n"
        "assert not any(p.rstrip('/').endswith('backline/engine') for p in sys.path)\n"
        "backline.mv(np.eye(3), np.ones(3))\n"
    )
    report = tune.tune_script([str(tmp_path / "imports.py")], budget=1.0)
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
    assert len(tune.tune_script([str(tmp_path / "forks.py")], budget=1.0).rows()) == 2


def problems() -> list[Any]:
    import ml_dtypes

    a, v = np.ones((6, 5), np.complex64), np.ones(5, np.complex64)
    half = np.ones((4, 4), ml_dtypes.bfloat16)
    square = np.ones((3, 4, 4))[:, ::-1]
    build = problem_builders
    return [
        build["mv"](a, v),
        build["addmm"](np.ones(6, np.complex64), a, a.T, alpha=1 + 2j),
        build["vdot"](v, v),
        build["matmul"](half, half, out=half.copy()),
        build["linalg.svd"](square, full_matrices=False, driver="gesvd"),
        build["linalg.lu_solve"](np.ones((4, 4)), np.ones(4, np.int32), np.ones((4, 1))),
        build["linalg.lstsq"](np.ones((6, 3)), np.ones(6)),
    ]


@pytest.mark.parametrize("number", range(7))
def test_problems_survive_the_way_between_processes(number: int) -> None:
    p = problems()[number]
    again = unpack(json.loads(json.dumps(pack(p))))
    assert again == p and hash(again) == hash(p) and type(again) is type(p) and again.key == p.key and again.flops == p.flops


def test_the_recorder_runs_as_a_script(tmp_path: Path) -> None:
    """Every Problem, with how often and how long, by one process that was told nothing else."""
    (tmp_path / "job.py").write_text(SCRIPT)
    run = tune._run("untuned", [str(tmp_path / "job.py")], {"BACKLINE_NUM_THREADS": "1"}, show=False)
    assert {e["threads"] for e in run.entries} == {1} and sum(e["count"] for e in run.entries) == 6
    assert run.seconds > run.in_operations > 0
    assert os.path.basename(sys.executable).startswith("python")
