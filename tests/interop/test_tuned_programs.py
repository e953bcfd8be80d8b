"""Programs that never import backline: tuned, run tuned, and exchanged by a variable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline import errors
from backline.cli import tune_exchanged
from backline.engine import script_runs
from backline.engine.tuning import record_store
from backline.interop import numpy as exchange
from backline.interop import program_runs, tune_program
from backline.interop.exchange import layouts, loaded_objects, recorded_calls, targets, tuned_choice
from backline.interop.program_runs import ProgramRun
from backline.interop.tune_program import ProgramReport
from processes import wrapped
from support import need

WHY_NOT = layouts.unsupported()
ELSEWHERE = [s.symbol.routine for m in ([] if WHY_NOT else loaded_objects.modules()) for s in m.slots if not s.symbol.bundled]
pytestmark = pytest.mark.skipif(bool(WHY_NOT or ELSEWHERE), reason="NumPy is no wheel for Linux with glibc here")

PROGRAM = """
import sys
import numpy as np
assert "backline" not in globals()
a = np.random.default_rng(3).standard_normal((100, 100)) + 100 * np.eye(100)
for _ in range(8):
    x = np.linalg.solve(a, a)
    s = np.linalg.svd(a, compute_uv=False)
print("largest", s[0], *sys.argv[1:], __name__)
if "fail" in sys.argv:
    raise ZeroDivisionError("on purpose")
if "die" in sys.argv:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text(PROGRAM)
    return str(tmp_path / "job.py")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    where = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(where))
    monkeypatch.setenv("BACKLINE_SHARE_PROCESSORS", "0")
    record_store.reload()
    yield where
    exchange.restore()
    monkeypatch.undo()
    record_store.reload()


def run(*words: str, status: int = 0, **more: str) -> tuple[str, str]:
    environment = os.environ | more
    result = subprocess.run(
        wrapped([sys.executable, "-m", *words]), capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout, result.stderr


def ideal(package: str, routine: str, named: str, library: str, seconds: float) -> Any:
    """A record by which a library takes so much of the time that the package's own takes."""
    from backline.engine.tuning.stamp import stamped_key

    key = f"exchanged {package}.{routine} {named}"
    medians = {f"{package}.{routine}@n": 1.0, f"{package}.{routine}@1": 1.0, f"{library}.{routine}@n": seconds}
    return stamped_key(key, targets.threads(), (), medians=medians, covered=tuple(sorted(medians)), calls=10)


# Records ----------------------------------------------------------------------------------------------------------------


def exchanged_as_measured() -> None:
    assert tuned_choice.layer() is None
    with exchange.use("tuned"):
        assert exchange.status().slots == 0 and "backline tune" in exchange.status().notes[0]
    record_store.keep_all([
        ideal("numpy", "dgesv", "fortran64 n=128 nrhs=128 lda=128 ldb=128", "mkl", 0.5),
        ideal("numpy", "zgesdd", "fortran64 jobz=N m=64 n=64 lda=64 ldu=1 ldvt=1", "mkl", 2.0),
    ])  # fmt: skip
    with exchange.use("tuned"):
        status = exchange.status()
        assert (status.choice, status.library("dgesv"), status.library("zgesdd")) == ("tuned", "mkl", "numpy")
        a = np.random.default_rng(3).standard_normal((128, 128)) + 128 * np.eye(128)
        np.linalg.solve(a, a), np.linalg.solve(a[:9, :9], a[:9, :9])
        row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("numpy", "dgesv"))
        assert row.small is not None and row.large is not None and row.small >= 1 and row.large >= 1
    with pytest.raises(errors.BadValue, match="takes nothing else"):
        exchange.use("tuned", small={"gemm": 0})


def test_what_was_measured_is_exchanged_and_the_rest_is_not() -> None:
    need("mkl")
    # What an exchange finds is what a process has loaded: a process of its own has nothing of other tests.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(exchanged_as_measured).result(timeout=120)


def test_a_deterministic_program_is_not_exchanged() -> None:
    from backline import switches

    need("mkl")
    record_store.keep(ideal("numpy", "dgesv", "fortran64 n=128 nrhs=128 lda=128 ldb=128", "mkl", 0.5))
    with switches.scope(deterministic=True), pytest.raises(errors.NotDeterministic, match="not exchanged for tuned"):
        exchange.use("tuned")


# The command ------------------------------------------------------------------------------------------------------------


def test_a_program_is_tuned_and_run_so(job: str, file: Path) -> None:
    out, err = run("backline", "tune", "--budget", "1", "--json", job, "x")
    first = out.splitlines()[0] if out.startswith("largest") else ""
    content = json.loads(out[out.index("{") :])["exchanged"]
    assert "recorded" in err and content["script"] == job
    stock = content["runs"]["numpy"]
    assert {name: row["calls"] for name, row in stock["routines"].items() if name in ("dgesv", "dgesdd")} == {
        "dgesv": 8,
        "dgesdd": 8,
    }
    assert stock["failed"] == "" and 0 < stock["in_calls"] < stock["seconds"]
    held = {r.key.split()[1]: r for r in record_store.every()}
    assert set(held) <= {"numpy.dgesv", "numpy.dgesdd"} and all(r.calls == 8 for r in held.values())
    assert content["measured"] == len(held) and content["file"] == str(file)
    if content["home"]:  # a library was faster
        assert first.startswith("largest") and "tuned" in content["runs"]
        assert "same" in content["comparison"]
    # What was measured is not measured again, unless the machine was busy.
    quiet = [replace(r, disturbed="", covered=tuple(sorted(r.medians))) for r in record_store.every()]
    record_store.keep_all(quiet)
    out, _ = run("backline", "tune", "--budget", "0", job)
    for text in ("calls of NumPy and SciPy", "dgesdd", "all of BLAS and LAPACK", "the whole script", str(file)):
        assert text in out
    assert not quiet or f"{len(quiet)} problem" in out


@pytest.mark.parametrize(("word", "how"), [("fail", "ended with status 1"), ("die", "was ended by SIGKILL")])
def test_a_program_that_fails_is_measured_by_what_it_had_called(word: str, how: str, job: str) -> None:
    out, err = run("backline", "tune", "--budget", "0.1", job, word, status=1)
    assert how in err and (word != "fail" or "ZeroDivisionError: on purpose" in err)
    assert "what it had called until then was measured" in out and "dgesdd" in out
    assert {r.key.split()[1] for r in record_store.every()} <= {"numpy.dgesv", "numpy.dgesdd"}


def test_a_program_that_is_killed_leaves_all_that_it_called(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import os, signal, numpy as np\na = np.eye(64)\na @ a[:, :60]\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    found = program_runs.run("numpy", [str(tmp_path / "job.py")], {}, show=False)
    assert [r.count for r in found.calls if r.symbol.routine == "dgemm"] == [1]
    assert found.failed == "was ended by SIGKILL" and found.status == -signal.SIGKILL and found.processes == 1


def test_a_program_without_time_in_blas_has_nothing_to_tune(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("import numpy as np\nprint(np.ones(3) @ np.ones(3))\n")
    _, err = run("backline", "tune", str(tmp_path / "none.py"), status=3)
    assert "called no operation of Backline" in err and "its calls of BLAS and LAPACK took" in err


def test_a_module_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "job.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    out, _ = run("backline", "tune", "--budget", "0", "-m", "package.job", "x")
    assert "dgesdd" in out and "the budget of 0 s was used up" in out


# Programs under an exchange -----------------------------------------------------------------------------------------------


def test_a_program_as_an_argument_of_the_package(job: str, tmp_path: Path) -> None:
    need("openblas")
    (tmp_path / "asks.py").write_text("import sys, backline\nprint(backline.interop.numpy.status().choice, sys.argv[1:])\n")
    asks = str(tmp_path / "asks.py")
    assert run("backline", asks, "x")[0].strip() == "tuned ['x']"
    assert run("backline", asks, BACKLINE_EXCHANGE="openblas")[0].strip() == "openblas []"
    assert "no script 'nowhere.py'" in run("backline", "nowhere.py", status=2)[1]
    assert "write 'openblas'" in run("backline", asks, status=2, BACKLINE_EXCHANGE="openblass")[1]
    assert "Usage" in run("backline", "--help")[0]
    plain = ("--disable-numactl", "--disable-taskset", "--disable-iomp", "--use-default-allocator")
    out, err = run("backline", "run", *plain, "--tuned", asks)
    assert out.strip() == "tuned []" and "`backline tune SCRIPT` measures" in err
    assert "exclude each other" in run("backline", "run", *plain, "--tuned", "--blas", "mkl", asks, status=2)[1]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "None"),
        ("?gesdd=openblas,*=numpy", "?gesdd=openblas, *=numpy"),
    ],
)
def test_a_service_is_exchanged_by_one_import(value: str, said: str, tmp_path: Path) -> None:
    need("openblas")
    (tmp_path / "service.py").write_text(
        "import backline.auto, backline\nprint(backline.interop.numpy.status().choice or backline.auto.exchange)\n"
    )
    command = wrapped([sys.executable, tmp_path / "service.py"])
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | {"BACKLINE_EXCHANGE": value}
    )
    assert result.returncode == 0 and result.stdout.strip() == said, result.stdout + result.stderr


@pytest.mark.parametrize(("value", "said"), [("mlk", "'mlk' is no library that can be exchanged"), ("dgesdd=", "is no library")])
def test_a_bad_value_is_an_error_that_names_the_variable(value: str, said: str) -> None:
    command = wrapped([sys.executable, "-c", "import backline.auto"])
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | {"BACKLINE_EXCHANGE": value}
    )
    assert result.returncode == 1 and f"BACKLINE_EXCHANGE={value!r}" in result.stderr and said in result.stderr


# What is taken back -------------------------------------------------------------------------------------------------------


def report_of(before: float, after: float, disturbed: str = "") -> ProgramReport:
    """A program of one routine, before and after; and a record by which MKL is faster."""
    symbol = next(s.symbol for m in loaded_objects.modules(["numpy"]) for s in m.slots if s.symbol.routine == "dgesv")

    def one(choice: str, seconds: float) -> ProgramRun:
        rows = [recorded_calls.Recorded("numpy", symbol, choice, None, 10, seconds)]
        return ProgramRun(choice, 2 * seconds, calls=rows, disturbed=disturbed, output="x\n")

    record = ideal("numpy", "dgesv", "fortran64 n=128 nrhs=128 lda=128 ldb=128", "mkl", 0.5)
    chosen = tuned_choice.choose(tuned_choice.samples([record]), ["mkl"])
    return ProgramReport("job.py", one("numpy", before), chosen, one("tuned", after), [record])


def test_what_is_slower_in_the_program_is_taken_back() -> None:
    report = report_of(1.0, 1.5)
    assert report.faster(whole=True) == pytest.approx(1 / 1.5) and str(report.comparison()) == "the output is the same: 1 line"
    assert tune_program._take_back(report) and "had taken 1 s" in report.taken_back["dgesv"]
    assert any(label == "exchange" for label, _ in tune_exchanged._facts(report))
    (record,) = record_store.every()
    assert "slower in a program" in record.rejected["mkl.dgesv@n"]
    assert tuned_choice.choose(tuned_choice.samples([record]), ["mkl"]).home == ""
    assert ("taken back", f"dgesv: {report.taken_back['dgesv']}") in tune_exchanged._facts(report)


def test_what_is_faster_stays_and_times_of_a_busy_machine_decide_nothing() -> None:
    assert not tune_program._take_back(report_of(1.0, 0.9)) and record_store.every() == []
    busy = report_of(1.0, 1.5, "other programs took 1.3 of 2 processors")
    assert not tune_program._take_back(busy) and busy.faster(whole=True) is None and record_store.every() == []
    assert any("its runs are not compared" in text for _, text in tune_exchanged._facts(busy))


def test_a_short_program_is_compared_with_a_run_that_follows_the_tuned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is half as fast after the measuring: 1.5 s are less than the 2 s that the program takes by then."""
    first, then = report_of(1.0, 1.5), report_of(2.0, 1.5).stock
    monkeypatch.setattr(tune_program, "_measure", lambda report, *arguments: report.records.extend(first.records))
    monkeypatch.setattr(tuned_choice, "tuned", lambda: first.choice)
    monkeypatch.setattr(tune_program, "_again", lambda *arguments, **options: first.tuned)
    monkeypatch.setattr(tune_program, "recorded", lambda *arguments, **options: then)
    report = tune_program.tune_program(["job.py"], first.stock)
    assert report.stock is then and not report.taken_back and report.faster(whole=True) == pytest.approx(2 / 1.5)
    monkeypatch.setattr(script_runs, "COMPARING", 1.0)
    report = tune_program.tune_program(["job.py"], first.stock)
    assert report.stock is first.stock and report.taken_back
    monkeypatch.undo()


@pytest.mark.parametrize("change", [{"failed": "ended with status 1"}, {"disturbed": "other programs took 1.3 of 2 processors"}])
def test_a_run_that_failed_or_was_disturbed_takes_the_place_of_none(
    change: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = report_of(1.0, 0.9)
    monkeypatch.setattr(tune_program, "_measure", lambda report, *arguments: None)
    monkeypatch.setattr(tuned_choice, "tuned", lambda: first.choice)
    monkeypatch.setattr(tune_program, "_again", lambda *arguments, **options: first.tuned)
    monkeypatch.setattr(tune_program, "recorded", lambda *arguments, **options: replace(first.stock, **change))
    assert tune_program.tune_program(["job.py"], first.stock).stock is first.stock
