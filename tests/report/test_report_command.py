"""`backline report` on scripts: what ran, on what, and how it ended; `backline run --from` sets the same switches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from backline.cli import app
from backline.engine import machine_peak
from backline.engine.verify_determinism import verify_determinism
from backline.errors import BadValue
from backline.launch import saved_report
from backline.report import run_report
from report_samples import SCRIPT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="maps of processes are Linux's")
PEAKS = machine_peak.Peaks({"f32": 100.0, "f64": 50.0}, 10.0, {"f32": "numpy.matmul@n"}, 2, "2026-11-23T03:00:00.000000Z")


@pytest.fixture(autouse=True, scope="module")
def measured() -> Any:
    """Nothing is measured here, and no file is read for its hash."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_peak, "measure", lambda step, **how: PEAKS)
        patch.setattr(run_report, "_hash", lambda path: ("0" * 64, os.path.getsize(path)))
        patch.setenv("BACKLINE_FALLBACK", "warn")
        patch.setenv("OMP_NUM_THREADS", "2")
        yield


@pytest.fixture(scope="module")
def made(measured: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    script = tmp_path_factory.mktemp("report") / "job.py"
    script.write_text(SCRIPT)
    return script, run_report.report_of([str(script), "--size", "3"])


def test_what_ran_is_there(made: tuple[Path, dict[str, Any]]) -> None:
    script, report = made
    assert (report["status"], report["complete"], report["command"]) == (0, True, [str(script), "--size", "3"])
    rows = {row["op"]: row for row in report["operations"]}
    assert rows.keys() == {"matmul", "linalg.svd"} or rows.keys() == {"matmul", "svd"}
    product = rows["matmul"]
    assert product["count"] == 3 and 0 < product["least"] <= product["seconds"] / 3 and product["planned"] == 1
    assert (
        product["precision"] == "f32"
        and product["gflops"] > 0
        and product["unit"] == "f32"
        and product["bytes"] == 2 * 96 * 96 * 4
    )
    assert {row["name"] for row in report["libraries"]} >= {product["library"]}
    assert report["mapped"] and all(row["sha256"] == "0" * 64 for row in report["mapped"])
    assert report["seconds"] > 0 and report["machine"]["processor"] and report["numpy"]


def test_switches_of_the_process_and_of_scopes_with_what_set_them(made: tuple[Path, dict[str, Any]]) -> None:
    script, report = made
    assert {"name": "fallback", "text": "warn", "kind": "environment", "where": "BACKLINE_FALLBACK"} in report["switches"]
    svd = next(row for row in report["operations"] if row["op"].endswith("svd"))
    said = svd["switches"]["deterministic"]
    assert said["value"] == "True" and said["origin"].startswith(f"scope ({script}:8")
    product = next(row for row in report["operations"] if row["op"] == "matmul")
    assert (
        "deterministic" not in product["switches"]
        and product["switches"]["fallback"]["origin"] == "environment (BACKLINE_FALLBACK)"
    )


def test_calls_of_numpy_and_children_are_told_of(made: tuple[Path, dict[str, Any]]) -> None:
    _, report = made
    assert report["processes"] == 1 and any("started other processes, 1 time" in note for note in report["notes"])
    routines = {row["routine"] for row in report["exchanged"]}
    assert "dgesv" in routines or any("not recorded" in note for note in report["notes"])


def test_a_report_is_what_run_from_reads(made: tuple[Path, dict[str, Any]]) -> None:
    _, report = made
    saved = saved_report.parse(json.dumps(report))
    assert saved.switches["fallback"] == "warn" and saved.variables["OMP_NUM_THREADS"] == "2"
    assert [note.text for note in saved_report.differences(saved)] == []


ENDINGS = [
    ("import backline, numpy as np\nbackline.mm(np.eye(3), np.eye(3))\nraise KeyError('x')", 1, True, "KeyError: 'x'"),
    ("import backline, numpy as np\nbackline.mm(np.eye(3), np.eye(3))\nraise SystemExit(7)", 7, True, "SystemExit(7)"),
    ("import backline, numpy as np, os\nbackline.mm(np.eye(3), np.eye(3))\nos._exit(5)", 5, False, "without a last word"),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 137, False, "by signal SIGKILL"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "status", "complete", "said"), ENDINGS, ids=["error", "exit", "os._exit", "signal"])
def test_a_program_that_fails_has_a_report_and_its_status(
    text: str, status: int, complete: bool, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(text)
    page, data = tmp_path / "it.html", tmp_path / "it.json"
    done = CliRunner().invoke(app, ["report", "-o", str(page), "--json", str(data), str(script)])
    report = json.loads(data.read_text())
    assert done.exit_code == report["status"] == status, done.output
    assert report["complete"] is complete and said in " ".join(report["notes"])
    assert len(report["operations"]) == (1 if complete else 0)
    assert saved_report.read(str(page)) == saved_report.read(str(data))


WRONG = [
    (["nothing.py"], "no script"), (["-m", "no_such_module"], "no module"), (["-m", "no_such_package.module"], "no module"),
    (["-o", "no/x.html", __file__], "no folder"), (["-o", ".", __file__], "is a folder"),
    (["-o", "a.html", "--json", "./a.html", __file__], "the same file"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), WRONG, ids=range(len(WRONG)))
def test_words_that_are_not_understood(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["report", *words])
    assert done.exit_code == 2 and said in " ".join(done.output.split()), done.output
    assert not list(tmp_path.iterdir())


def test_a_report_is_of_something() -> None:
    with pytest.raises(BadValue, match=r"no (script|module)"):
        run_report.report_of(["-m"])


@pytest.mark.parametrize("how", ["script", "module", "syntax", "missing"])
def test_errors_are_shown_as_python_shows_them(how: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("def f(:\n" if how == "syntax" else "def f():\n    raise KeyError('x')\nf()\n")
    words = {"module": ["-m", "job"], "missing": ["-m", "json.no_such_module"]}.get(how, [str(script)])
    command = [sys.executable, "-m", "backline.report.reported_program", str(tmp_path / "run.json"), str(os.getpid()), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if how == "missing":
        assert done.returncode == 2 and "no module 'json.no_such_module'" in done.stderr and "Traceback" not in done.stderr
        return
    plain = [sys.executable, *words]
    wanted = subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True, check=False)
    shown = [line for line in wanted.stderr.splitlines() if "runpy" not in line]  # above a module Python shows its own frames
    assert done.returncode == wanted.returncode == 1 and done.stderr.splitlines() == shown


def test_a_check_of_determinism_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "job.py"
    script.write_text("import backline, numpy as np\nbackline.mm(np.eye(3), np.eye(3))")
    monkeypatch.setattr(run_report, "verify_script", lambda argv, step: verify_determinism(lambda: None, runs=2, threads=(1,)))
    report = run_report.report_of([str(script)], check_determinism=True)
    assert ["same bits", "from run to run"] in report["determinism"]["rows"] and not report["determinism"]["failed"]


def test_run_from_sets_the_switches_and_says_what_differs(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    data, script = tmp_path / "report.json", tmp_path / "job.py"
    data.write_text(json.dumps(made[1] | {"numpy": "0.0.1"}))
    script.write_text("import backline\nprint('fallback:', backline.backends.fallback)")
    environment = {name: value for name, value in os.environ.items() if name != "BACKLINE_FALLBACK"}
    command = [
        sys.executable,
        "-m",
        "backline",
        "run",
        "--from",
        str(data),
        "--core-list",
        str(min(os.sched_getaffinity(0))),
        "--ncores-per-instance",
        "1",
        str(script),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "fallback: warn" in done.stdout, done.stderr
    assert "it was 0.0.1" in done.stderr
    data.write_text("{}")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is not a report" in done.stderr and "kind is missing" in done.stderr


def test_run_from_binds_and_preloads_nothing_unless_it_is_asked(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    data, script = tmp_path / "report.json", tmp_path / "job.py"
    data.write_text(json.dumps(made[1]))
    shown = "LD_PRELOAD", "KMP_AFFINITY", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MALLOC_CONF"
    script.write_text(
        f"import json, os\nprint(json.dumps([sorted(os.sched_getaffinity(0)), [os.environ.get(v) for v in {shown}]]))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in shown}
    command = [sys.executable, "-m", "backline", "run", "--from", str(data)]
    done = subprocess.run([*command, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [sorted(os.sched_getaffinity(0)), [None] * len(shown)]
    assert "OMP_NUM_THREADS is not set, it was 2" in done.stderr and "options name cores" not in done.stderr
    cpu = min(os.sched_getaffinity(0))
    command += ["--core-list", str(cpu), "--ncores-per-instance", "1"]
    done = subprocess.run([*command, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[cpu], [None, None, None, "1", None]] and "the options name cores" in done.stderr
    done = subprocess.run(
        [*command[:5], "nowhere.json", str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--from 'nowhere.json' cannot be read" in done.stderr
