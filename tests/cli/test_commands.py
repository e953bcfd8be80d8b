"""The commands as a shell runs them: what they print, as text and as JSON, and the statuses they end with."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline.cli.bench import bench
from backline.engine.tuning import machine_load
from backline.native.machine import fingerprint
from processes import running, started

BOXES = set("─│┌┐└┘├┤┬┴┼━┃┏┓┗┛┡┩╭╮╰╯╞╡═║╔╗╚╝\x1b")


def run(*arguments: str, status: int = 0, tuning: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "backline", *arguments],
        env=os.environ | {"BACKLINE_TUNING": tuning} | more, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and not BOXES & set(done.stdout + done.stderr)
    return done


def of_json(*arguments: str, **more: Any) -> Any:
    return json.loads(run(*arguments, "--json", **more).stdout)


# info ---------------------------------------------------------------------------------------------------------------------


def test_info_shows_every_part() -> None:
    lines = run("info").stdout.splitlines()
    parts = [x for x in lines if x and not x.startswith(" ")]
    assert parts == [
        "machine", "switches that are set", "libraries", "thread runtimes in this process", "maths libraries in this process", "conflicts", "tuning",
    ]  # fmt: skip
    for name in ("mkl", "openblas", "blis", "numpy"):
        assert any(x.startswith(f"  {name} ") for x in lines)
    assert not any(x != x.rstrip() for x in lines)


def test_info_as_json() -> None:
    content = of_json("info")
    assert set(content) == {
        "backline", "python", "executable", "numpy", "threads", "machine", "libraries", "plug-ins", "mapped",
        "conflicts", "switches", "ranking", "tuning",
    }  # fmt: skip
    assert content["numpy"] == np.__version__ and content["machine"]["fingerprint"] == fingerprint()
    for library in content["libraries"]:
        assert library["available"] or library["reason"]
        assert {"name", "title", "reason", "how to get"} <= set(library)
    assert content["ranking"]["class"] and content["ranking"]["shipped for"] in ("amd-avx512-2c", "amd-avx2-2c", "intel-amx-2c")
    assert content["tuning"] == {
        "path": "", "exists": False, "records": 0, "newest": "", "other_machines": 0, "problem": "", "dropped": {},
        "project": "", "project_records": 0, "project_problem": "",
    }  # fmt: skip


def test_info_says_why_a_library_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"\x7fELF")
    content = of_json("info", BACKLINE_MKL_LIBRARY=str(tmp_path / "broken.so"))
    mkl = next(x for x in content["libraries"] if x["name"] == "mkl")
    assert not mkl["available"] and "broken.so" in mkl["reason"]
    assert "missing" in run("info", BACKLINE_MKL_LIBRARY=str(tmp_path / "broken.so")).stdout


def test_info_says_once_why_several_libraries_are_not_there() -> None:
    missing = [x for x in of_json("info")["libraries"] if not x["available"]]
    causes = [(" ".join(x["reason"].split()), x["how to get"]) for x in missing]
    out = run("info").stdout
    for reason, how in causes:
        assert sum(reason in line and (how in line) for line in out.splitlines()) == 1, reason
    for x in missing:
        assert re.search(rf"^  (missing: .*)?{x['name']}\b", out, re.MULTILINE)
    together = [line for line in out.splitlines() if line.startswith("  missing: ")]
    if {"cupy", "cublas", "cudnn"} <= {x["name"] for x in missing}:
        assert any("cudnn, cublas" in line for line in together)


def test_the_default_openblas_is_no_conflict() -> None:
    environment = {"BACKLINE_MKL_ENABLED": "0"}
    kinds = {c["kind"]: c["severity"] for c in of_json("info", **environment)["conflicts"]}
    assert "several copies of OpenBLAS" not in kinds and kinds.get("several pools that wait by spinning", "note") == "note"


def test_info_says_what_is_wrong_with_the_tuning_file(tmp_path: Path) -> None:
    (tmp_path / "t.sqlite").write_text("notes " * 1000)
    done = run("info", tuning=str(tmp_path / "t.sqlite"))
    assert "not used" in done.stdout and done.stderr.count("is not used") == 1
    assert of_json("info", tuning=str(tmp_path / "t.sqlite"))["tuning"]["problem"]


# explain ----------------------------------------------------------------------------------------------------------------


def test_explain_quoted_or_not() -> None:
    assert run("explain", "matmul f32 64x32 32x16").stdout == run("explain", "matmul", "f32", "64x32", "32x16").stdout


def test_explain_as_json_names_every_candidate() -> None:
    content = of_json("explain", "linalg.svd f64 20x10", BACKLINE_MKL_ENABLED="0")
    assert content["problem"] == "linalg.svd f64 20x10 full_matrices=True"
    mkl = next(c for c in content["candidates"] if c["library"] == "mkl")
    assert mkl["verdict"] == "refused" and mkl["switch"] == "mkl.enabled"
    assert content["candidates"][0]["verdict"] == "chosen" and content["candidates"][0]["library"] == content["library"]


def test_explain_where_nothing_can_run_it() -> None:
    done = run("explain", "linalg.svd f64 20x10", status=1, BACKLINE_ONLY="blis")
    assert done.stderr.startswith("error: nothing can run linalg.svd") and "only" in done.stderr


@pytest.mark.parametrize("threads", ["1", "2"])
def test_explain_with_a_number_of_threads(threads: str) -> None:
    content = of_json("explain", "--threads", threads, "matmul f32 1000x1000 1000x1000")
    assert content["threads"] == int(threads)


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "matmul f32 3x"], ["nonsense"], ["bench", "--threads", "0"]])
def test_usage_errors_end_with_status_2(arguments: list[str]) -> None:
    run(*arguments, status=2)


def test_help_is_plain() -> None:
    for command in ([], ["info"], ["switches"], ["explain"], ["bench"], ["tune"]):
        assert "Usage: " in run(*command, "--help").stdout
    assert run("--version").stdout.startswith("backline ")


def test_on_a_terminal_there_is_colour(tmp_path: Path) -> None:
    main, side = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"}
    command = [sys.executable, "-m", "backline", "explain", "matmul f32 8x8 8x8"]
    with started(command, stdout=side, env=environment) as child:
        os.close(side)
        text = b""
        while True:
            try:
                part = os.read(main, 4096)
            except OSError:  # how Linux tells that the other side is closed
                break
            if not part:
                break
            text += part
        os.close(main)
        assert child.wait() == 0 and b"\x1b[32m" in text


# bench ------------------------------------------------------------------------------------------------------------------


def test_bench_measures_each_library_and_keeps_nothing(tmp_path: Path) -> None:
    where = tmp_path / "t.sqlite"
    rows = of_json("bench", "matmul", "linalg.inv", "-n", "24", "-d", "f32", "--budget", "0.05", tuning=str(where))
    assert {r["problem"] for r in rows} == {"matmul f32 24x24 24x24", "linalg.inv f32 24x24"}
    for r in rows:
        assert set(r) == {"problem", "library", "algorithm", "threads", "seconds", "gflops", "error", "refused", "disturbed"}
        assert r["refused"] or (r["seconds"] > 0 and r["gflops"] > 0 and r["error"] < 1e-4)
    assert "numpy" in {r["library"] for r in rows} and not where.exists()


def test_bench_as_text_and_with_filters() -> None:
    out = run("bench", "matmul f64 20x20 20x20:F", "--library", "numpy", "--budget", "0.02").stdout
    first, second, *busy = out.splitlines()  # the machine may be, which is said in a line
    assert all("busy" in line for line in busy) and first == "matmul f64 20x20 20x20:F" and second.split()[0] == "numpy" and "GF/s" in second and "error" in second


def test_bench_says_once_that_the_machine_was_busy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    moments = itertools.count(1)
    monkeypatch.setattr(machine_load, "read", lambda: machine_load.Reading(at := float(next(moments)), 0.0, busy=9 * at))
    texts = ["matmul f32 8x8 8x8", "matmul f32 9x9 9x9"]
    bench(texts, None, None, None, None, 0.0, every=False, json=False)
    *_, last = (out := capsys.readouterr().out).splitlines()
    assert last.startswith("2 problems timed on a busy machine, the last while other programs took 9.0 of") and out.count("busy") == 1
    bench(texts[:1], None, None, None, None, 0.0, every=False, json=True)
    assert {"9.0" in row["disturbed"] for row in json.loads(capsys.readouterr().out)} == {True}


def test_bench_compares_numpy_with_something_more_precise() -> None:
    rows = of_json("bench", "matmul", "linalg.inv", "linalg.svdvals", "-n", "40", "-d", "f64", "-l", "numpy", "--budget", "0.02")
    assert len(rows) == 3 and all(0 < r["error"] < 1e-12 for r in rows), rows


def test_bench_ends_in_time_and_names_what_it_did_not_reach() -> None:
    out = run("bench", "matmul", "linalg.inv", "linalg.qr", "-n", "30", "-d", "f32", "--total", "0").stdout
    assert out.startswith("matmul f32 30x30 30x30\n") and "\n1 problem in " in out
    assert "2 not reached in 0 s, --total gives more: linalg.inv, linalg.qr" in out.splitlines()[-2:]
    rows = of_json("bench", "matmul", "linalg.inv", "-n", "30", "-d", "f32", "--total", "0")
    assert [r["refused"] for r in rows if r["problem"].startswith("linalg.inv")] == ["not reached in 0 s"]


def test_bench_refuses_what_does_not_fit_and_who_is_unknown() -> None:
    assert "for its operands alone" in run("bench", "matmul", "-n", "3000000", "-d", "f64", status=2).stderr
    assert "no library 'mlk'" in run("bench", "matmul", "--library", "mlk", status=2).stderr


# tune -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text(
        "import sys, numpy as np, backline\n"
        "a = np.ones((40, 40), np.float32)\n"
        "for _ in range(20):\n    backline.matmul(a, a)\n"
        "print('said', *sys.argv[1:])\n"
        "sys.exit(3 if 'fail' in sys.argv else 0)\n"
    )
    return str(tmp_path / "job.py")


def test_tune_then_list_export_reset_import(script: str, tmp_path: Path) -> None:
    where, exchange = str(tmp_path / "t.sqlite"), str(tmp_path / "records.json")
    out = run("tune", "--rounds", "0", "--budget", "2", script, "--list", "x", tuning=where).stdout  # what follows the script is the script's
    assert "said --list x" in out
    for text in ("operations", "matmul f32 40x40 40x40", "all operations", "the whole script", "where the time went", where):
        assert text in out
    rows = run("tune", "--list", tuning=where).stdout.splitlines()
    assert len(rows) == 2 and rows[1].startswith("matmul f32 40x40 40x40")
    assert of_json("tune", "--list", tuning=where)[0]["machine"] == fingerprint()
    assert "wrote 1 records" in run("tune", "--export", exchange, tuning=where).stdout
    assert ".old1" in run("tune", "--reset", tuning=where).stdout
    assert "no records" in run("tune", "--list", tuning=where).stdout
    assert "took 1 records" in run("tune", "--import", exchange, tuning=where).stdout
    assert len(run("tune", "--list", tuning=where).stdout.splitlines()) == 2


def test_tune_as_json(script: str, tmp_path: Path) -> None:
    out = run("tune", "--json", "--rounds", "1", "--budget", "1", script, tuning=str(tmp_path / "t.sqlite")).stdout
    first, _, rest = out.partition("\n")
    content = json.loads(rest)
    assert first == "said" and content["measured"] == 1 and set(content["runs"]) == {"numpy", "untuned", "tuned"}
    names = {"key", "threads", "count", "numpy", "untuned", "tuned", "algorithm", "error", "faster", "alone"}
    assert set(content["rows"][0]) == names


def test_tune_of_a_script_without_an_operation_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "numpy_only.py").write_text("import numpy as np\nprint(np.ones(3) @ np.ones(3))\n")
    done = run("tune", str(tmp_path / "numpy_only.py"), status=3, tuning=str(tmp_path / "t.sqlite"))
    assert "operations" not in done.stdout and "called no operation of Backline" in done.stderr
    assert "backline.matmul(a, b) for a @ b" in done.stderr
    assert "3 where it calls no" in " ".join(run("tune", "--help").stdout.split())


def test_a_second_tune_measures_nothing_again_unless_told(script: str, tmp_path: Path) -> None:
    where = str(tmp_path / "t.sqlite")
    words = ("tune", "--rounds", "0", "--budget", "20")
    assert "measured" in run(*words, script, tuning=where).stdout
    (record,) = of_json("tune", "--list", tuning=where)
    # The machine may have been busy; the record as it is of a quiet one:
    record |= {"covered": sorted(record["errors"]), "disturbed": ""}
    (tmp_path / "quiet.json").write_text(json.dumps(record) + "\n")
    run("tune", "--import", str(tmp_path / "quiet.json"), tuning=where)
    second = run(*words, script, tuning=where).stdout
    assert "known  " in second and "measured  " not in second
    third = run(*words, "--again", script, tuning=where).stdout
    assert "measured  " in third and "known  " not in third


def test_tune_says_what_went_wrong(script: str) -> None:
    failed = run("tune", script, "fail", status=1)
    assert "ended with status 3" in failed.stderr and "said fail" in failed.stderr
    assert "no script" in run("tune", "nowhere.py", status=2).stderr
    assert "nothing to do" in run("tune", status=2).stderr
    assert "not a level" in run("tune", "--deterministic", "always", script, status=2).stderr


def test_tune_under_determinism_says_that_nothing_is_chosen_by_timing(script: str) -> None:
    assert "nothing by timing" in run("tune", "--rounds", "0", "--deterministic", "threads", script).stdout


@pytest.mark.parametrize(("rounds", "runs"), [(0, 4), (1, 6)])
def test_a_script_runs_as_often_as_it_is_told_to(tmp_path: Path, rounds: int, runs: int) -> None:
    (tmp_path / "job.py").write_text(
        "import numpy as np, backline\nbackline.matmul(np.ones((40, 40)), np.ones((40, 40)))\nopen(__file__ + '.runs', 'a').write('x')\n"
    )
    out = run("tune", "--rounds", str(rounds), "--budget", "0", str(tmp_path / "job.py"), tuning=str(tmp_path / "t.sqlite")).stdout
    assert len((tmp_path / "job.py.runs").read_text()) == runs
    assert ("in turn, one of each" in out) == bool(rounds) and ("--rounds 1 has them in turn" in out) == (not rounds)


def test_import_of_what_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1, 2]\n")
    assert "line 1" in run("tune", "--import", str(tmp_path / "x.json"), status=2).stderr
    assert "nowhere.json" in run("tune", "--import", "nowhere.json", status=2).stderr


def test_ctrl_c_during_tune_keeps_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(
        "import numpy as np, backline\nfor n in range(20, 80):\n    backline.matmul(np.ones((n, n)), np.ones((n, n)))\n"
    )
    where = tmp_path / "t.sqlite"

    def kept() -> int:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{where}?mode=ro", uri=True)) as file:
                return int(file.execute("SELECT count(*) FROM records").fetchone()[0])
        except sqlite3.Error:  # there is no file or no table yet
            return 0

    with started(
        [sys.executable, "-m", "backline", "tune", tmp_path / "many.py"],
        env=os.environ | {"BACKLINE_TUNING": str(where)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        while not kept() and child.poll() is None:
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=200)
    assert child.returncode == 130 and "what was measured is kept" in errors and "Traceback" not in errors
    assert 1 <= len(of_json("tune", "--list", tuning=str(where))) < 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_script_ends_with_the_tune_that_runs_it(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "endless.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    command = [sys.executable, "-m", "backline", "tune", "--verbose", tmp_path / "endless.py"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        script = int(child.stdout.readline())
        child.send_signal(number)
        child.wait(timeout=200)
        for _ in range(3000):
            if not running(script):
                break
            time.sleep(0.01)
        assert not running(script)


# calibrate ----------------------------------------------------------------------------------------------------------------


def test_calibrate_measures_in_the_time_it_has_and_goes_on(tmp_path: Path) -> None:
    file = str(tmp_path / "t.sqlite")
    assert "`backline calibrate` measures this machine" in run("info", tuning=file).stdout
    first = of_json("calibrate", "--seconds", "4", tuning=file)
    assert first["measured"] == sum(p["problems"] for p in first["parts"]) > 0 and first["file"] == file
    assert {p["part"] for p in first["parts"]} <= {"products", "halves", "algebra", "layers", "transforms"}
    assert all(p["gain"] >= 1.0 and 0 <= p["better"] <= p["problems"] for p in first["parts"])
    info = of_json("info", tuning=file)
    assert info["ranking"]["measured on a busy machine"] == len(first["disturbed"])
    kept = info["tuning"]["records"] - len(first["peak"]["by"])  # the machine's peaks are records, too
    assert sum(info["ranking"][f"measured {how}"] for how in ("here", "on a busy machine")) == kept >= first["measured"]
    assert first["peak"]["gflops"].keys() >= {"f32", "f64"}
    second = run("calibrate", "--seconds", "2", "--threads", "2", tuning=file)
    said = " ".join(second.stdout.split())  # how wide a column is depends on which rows there are
    assert "shapes of" in said and f"kept in {file}" in said
    assert run("calibrate", "--seconds", "0", status=2).stderr


def test_a_calibration_stopped_by_ctrl_c_keeps_what_it_measured(tmp_path: Path) -> None:
    file = tmp_path / "t.sqlite"
    command = [sys.executable, "-m", "backline", "calibrate", "--seconds", "60"]
    environment = os.environ | {"BACKLINE_TUNING": str(file)}
    with started(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "what was measured is kept" in errors
    assert of_json("info", tuning=str(file))["tuning"]["records"] > 0
