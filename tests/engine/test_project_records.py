"""Tuning records of projects and of many machines: files of both formats, precedence, refusals, pruning, the commands."""

from __future__ import annotations

import json
import os
import sys
import types
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import backline
import tuning_samples
from backline import libraries
from backline.cli import app
from backline.engine.choose import choose
from backline.engine.tuning import (
    database,
    deciding_record,
    machine_class,
    project_records,
    record_exchange,
    record_files,
    record_store,
)
from backline.engine.tuning.record import TuningRecord
from backline.errors import BadValue
from backline.native.machine import fingerprint
from support import python
from tuning_samples import OTHER, file, problem

runner = CliRunner()
HERE = str(machine_class.here())
STRANGE = "other-sse-128c" if HERE != "other-sse-128c" else "other-sse-1c"
assert file  # a fixture


def made(**changes: Any) -> TuningRecord:
    """A record of this machine and of its class."""
    return tuning_samples.made(**{"processors": HERE, **changes})


def of_project(path: Path, *records: TuningRecord, monkeypatch: pytest.MonkeyPatch) -> Path:
    record_files.write(str(path), records)
    monkeypatch.setenv("BACKLINE_PROJECT_TUNING", str(path))
    record_store.reload()
    return path


# Files --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tuning.toml", "records.json"])
def test_records_of_two_machines_survive_a_file(name: str, tmp_path: Path) -> None:
    quoted = made(
        machine=OTHER,
        processors="amd-avx2-4c",
        rejected={"mkl.gemm@1": 'it\'s "wrong" \\ here'},
        versions={"numpy": "1", "mkl": "2"},
    )
    path = str(tmp_path / name)
    assert record_files.write(path, [made(), quoted]) == 2
    assert sorted(record_files.read(path), key=lambda r: r.machine) == sorted([made(), quoted], key=lambda r: r.machine)


def test_the_file_of_a_project_names_machines_and_classes(tmp_path: Path) -> None:
    import tomllib

    path = tmp_path / "tuning.toml"
    record_files.write(
        str(path), [made(processors=""), made(machine=OTHER, processors="amd-avx2-4c"), made(machine="old-1c-0", processors="")]
    )
    machines = tomllib.loads(path.read_text())["machine"]
    assert {m["name"]: m["class"] for m in machines} == {fingerprint(): HERE, OTHER: "amd-avx2-4c", "old-1c-0": ""}
    assert {r.machine: r.processors for r in record_files.read(str(path))} == {
        fingerprint(): HERE,
        OTHER: "amd-avx2-4c",
        "old-1c-0": "",
    }


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.toml", b"format = 2\n", "format is 2, not 1"),
        ("t.toml", b"", "format is None"),
        ("t.toml", b"format = [", "it is not TOML"),
        ("t.toml", b"\xff\xfe\x00", "it is not TOML"),
        ("t.toml", b"format = 1\nmachine = 3\n", "other content"),
        ("t.toml", b"format = 1\ncode = 'import os'\n", "other content"),
        ("t.toml", b"format = 1\n[[machine]]\nname = 'a'\n", "and nothing else"),
        ("t.toml", b"format = 1\n[[machine]]\nname = 3\nclass = ''\nrecords = []\n", "are texts"),
        ("t.toml", b"format = 1\n[[machine]]\nname = 'a'\nclass = ''\nrecords = [3]\n", "record 1 of machine 'a'"),
        ("t.toml", b"format = 1\n[[machine]]\nname = 'a'\nclass = ''\nrecords = ['{}']\n", "schema is missing"),
        ("t.toml", b"format = 1\n" + b"a." * 5000 + b"b = 1\n", "more than 64 parts"),
        ("t.toml", b"format = " + b"[" * 100_000, "it is not TOML"),
        ("t.json", b"{}\n", "schema is missing"),
        ("t.json", b"cos\nsystem\n", "line 1 is not a tuning record"),
        ("t.json", b"\x80\x04\x95", "line 1 is not a tuning record"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused_with_its_place_and_nothing_is_taken(
    name: str, content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    good = tmp_path / "good.json"
    record_files.write(str(good), [made()])
    with pytest.raises(BadValue) as error:
        record_exchange.import_from(str(good), str(path))
    assert said in str(error.value) and str(path) in str(error.value) and "remedy" in str(error.value)
    assert record_store.every() == [] and path.read_bytes() == content
    if name.endswith(".toml"):
        with pytest.raises(BadValue):
            record_exchange.export(str(path), [made()])
        assert path.read_bytes() == content


def test_what_is_huge_or_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "MAX_PROJECT", 100)
    path = tmp_path / "t.toml"
    path.write_bytes(b"#" * 101)
    with pytest.raises(BadValue, match="has more than"):
        record_files.read(str(path))
    monkeypatch.setattr(record_files, "MAX_ROWS", 1)
    two = tmp_path / "two.json"
    record_files.write(str(two), [made(), made(threads=1)])
    with pytest.raises(BadValue, match="more than 1 records"):
        record_files.read(str(two))
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    for odd in (fifo, tmp_path):
        with pytest.raises(BadValue, match="is not a file"):
            record_files.read(str(odd))


def test_merging_keeps_the_newest_of_each_machine(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one.toml"), str(tmp_path / "two.json")
    record_files.write(
        one, [made(seed=1), made(machine=OTHER, processors="amd-avx2-4c", seed=2, created="2026-11-23T00:00:00.000000Z")]
    )
    record_files.write(
        two,
        [
            made(seed=3, created="2026-11-22T00:00:00.000000Z"),
            made(machine=OTHER, processors="amd-avx2-4c", seed=4),
            made(threads=1),
        ],
    )
    merged = {(r.machine, r.threads): r.seed for r in record_files.merged(one, two)}
    assert merged == {(fingerprint(), 2): 3, (OTHER, 2): 2, (fingerprint(), 1): 7}
    assert record_exchange.import_from(one, two) == (3, 2)
    assert {(r.machine, r.threads): r.seed for r in record_exchange.all_machines()} == merged
    assert {r.processors for r in record_exchange.all_machines()} == {HERE, "amd-avx2-4c"}


def test_exporting_to_a_project_keeps_what_is_there_and_leaves_calibrations_out(tmp_path: Path) -> None:
    path = str(tmp_path / "tuning.toml")
    record_files.write(path, [made(machine=OTHER, processors="amd-avx2-4c"), made(seed=1, created="2026-11-01T00:00:00.000000Z")])
    record_store.keep_all([made(seed=2), made(threads=1, calibrated=True)])
    assert record_exchange.export(path) == 1
    assert {(r.machine, r.seed) for r in record_files.read(path)} == {(OTHER, 7), (fingerprint(), 2)}
    plain = str(tmp_path / "all.json")
    assert record_exchange.export(plain) == 2 and len(record_files.read(plain)) == 2


# Precedence -----------------------------------------------------------------------------------------------------------------


def test_own_measurements_come_before_the_project_before_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = made(machine=OTHER, seed=1)
    path = of_project(tmp_path / "tuning.toml", shipped, monkeypatch=monkeypatch)
    assert deciding_record.find(problem(), 2) == shipped and not record_store.empty()
    record_store.keep(made(seed=2, calibrated=True))
    assert deciding_record.find(problem(), 2) == shipped
    basis = _basis()
    assert basis.startswith("tuning record of 2026-11-21") and f"of the project's {path}, measured on {OTHER}" in basis
    record_store.keep(made(seed=3, created="2026-11-22T00:00:00.000000Z"))
    found = deciding_record.find(problem(), 2)
    assert found is not None and found.seed == 3 and "project" not in _basis()


def test_a_calibration_decides_where_nothing_else_does() -> None:
    record_store.keep(made(calibrated=True))
    found = deciding_record.find(problem(), 2)
    assert found is not None and found.calibrated and _basis().startswith("calibration of 2026-11-21")


def test_measuring_sees_what_this_machine_has_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_project(tmp_path / "tuning.toml", made(machine=OTHER), monkeypatch=monkeypatch)
    assert record_store.find(problem(), 2) is None and record_store.every() == []
    assert deciding_record.problem_keys() == {problem().key}


def _basis(threads: int = 2) -> str:
    with backline.num_threads(threads):
        return choose(problem(), measure=False).basis


def test_another_class_is_refused_and_explain_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = of_project(
        tmp_path / "tuning.toml",
        made(machine=OTHER, processors=STRANGE),
        made(machine="x-1c-0", processors="", threads=1),
        monkeypatch=monkeypatch,
    )
    assert deciding_record.find(problem(), 2) is None
    a = np.ones((8, 8), np.float32)
    with backline.num_threads(2):
        text = str(backline.explain(backline.matmul, a, a))
    assert f"the record of the project's {path} is not used: it is for {STRANGE}, and this is {HERE}" in text
    assert "it is for an unknown class" in _basis(1)


def test_other_versions_are_refused_and_explain_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = of_project(tmp_path / "tuning.toml", made(machine=OTHER, versions={"numpy": "0.9"}), monkeypatch=monkeypatch)
    assert deciding_record.find(problem(), 2) is None
    assert f"the record of the project's {path} is not used: measured with numpy 0.9, {np.__version__} is here now" in _basis()
    partly = made(
        machine=OTHER, versions={"numpy": np.__version__, "gone": "1"}, winner="gone.gemm@1",
        medians={"numpy.matmul@n": 2e-6, "gone.gemm@1": 1e-9},
    )  # fmt: skip
    of_project(tmp_path / "tuning.toml", partly, monkeypatch=monkeypatch)
    found = deciding_record.find(problem(), 2)
    assert found is not None and dict(found.medians) == {"numpy.matmul@n": 2e-6} and found.winner == ""
    assert "part of the record of the project's" in _basis() and "gone 1, no such library" in _basis()


def test_an_own_record_of_other_versions_makes_room_for_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_project(tmp_path / "tuning.toml", made(machine=OTHER, seed=1), monkeypatch=monkeypatch)
    record_store.keep(made(versions={"numpy": "0.9"}))
    found = deciding_record.find(problem(), 2)
    assert found is not None and found.seed == 1 and "the tuning record is not used: measured with numpy 0.9" in _basis()


def test_of_several_machines_of_a_class_this_one_counts_then_the_newest(tmp_path: Path) -> None:
    old, new = made(machine=OTHER, seed=1), made(machine="x-1c-0", seed=2, created="2026-12-01T00:00:00.000000Z")
    assert project_records.of_class("p", [new, old]).records[problem().key, 2].seed == 2
    assert project_records.of_class("p", [new, old, made(seed=3)]).records[problem().key, 2].seed == 3


# Where it is looked for -------------------------------------------------------------------------------------------------------


def test_the_file_is_found_from_the_program_upwards_and_not_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKLINE_PROJECT_TUNING")
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "deep" / "er").mkdir(parents=True)
    (project / ".git").mkdir()
    elsewhere.mkdir()
    (project / "pyproject.toml").write_text('[tool.backline]\ntuning = "data/tuning.toml"\n')
    script = project / "deep" / "er" / "job.py"
    wanted = str(project / "data" / "tuning.toml")
    assert project_records.location(str(script)) == (wanted, "")
    monkeypatch.chdir(project)
    assert project_records.location(str(elsewhere / "job.py")) == ("", "")
    (project / "deep" / "backline.toml").write_text('tuning = "own.toml"\n')
    assert project_records.location(str(script)) == (str(project / "deep" / "own.toml"), "")
    (project / "deep" / "backline.toml").write_text("tuning = 3\n")
    assert "not the path of a file" in project_records.location(str(script))[1]
    (project / "deep" / "backline.toml").write_text("tuning = [")  # the switches tell of such a file
    assert project_records.location(str(script)) == (wanted, "")
    (project / "deep" / ".git").mkdir()
    assert project_records.location(str(script)) == ("", "")


def test_what_is_installed_and_what_is_interactive_has_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKLINE_PROJECT_TUNING")
    (tmp_path / "pyproject.toml").write_text('[tool.backline]\ntuning = "tuning.toml"\n')
    for folder in ("bin", "lib/python3.11/site-packages/tool"):
        (tmp_path / "venv" / folder).mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert project_records.location(str(tmp_path / "venv" / "bin" / "tool")) == ("", "")
    assert project_records.location(str(tmp_path / "venv" / "lib/python3.11/site-packages/tool/__main__.py")) == ("", "")
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    monkeypatch.chdir(tmp_path)
    assert project_records.location() == ("", "")


def test_a_program_uses_the_file_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.backline]\ntuning = "tuning.toml"\n')
    record_files.write(str(tmp_path / "tuning.toml"), [made(machine=OTHER)])
    script = tmp_path / "job.py"
    script.write_text(
        "import numpy as np, backline\n"
        "a = np.ones((8, 8), np.float32)\n"
        "with backline.num_threads(2):\n"
        "    print(backline.explain(backline.matmul, a, a).basis)\n"
    )
    program = f"import subprocess, sys; print(subprocess.run([sys.executable, {str(script)!r}], check=True, capture_output=True, text=True).stdout)"
    own = {"BACKLINE_PROJECT_TUNING": None, "BACKLINE_TUNING": str(tmp_path / "none.sqlite")}
    assert f"of the project's {tmp_path / 'tuning.toml'}" in python(program, env=own).stdout  # type: ignore[arg-type]  # values are texts
    assert "project" not in python(program, env={**own, "BACKLINE_TUNING": ""}).stdout  # type: ignore[arg-type]  # values are texts


def test_the_key_is_no_unknown_switch(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.backline]\ntuning = "tuning.toml"\n')
    program = f"import os; os.chdir({str(tmp_path)!r}); import backline; print(backline.get_num_threads() > 0)"
    assert "True" in python(program, env={"PYTHONWARNINGS": "error"}).stdout


def test_a_file_that_cannot_be_used_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("broken.toml", "format = 9\n"), ("none.toml", None)):
        if content is not None:
            (tmp_path / name).write_text(content)
        monkeypatch.setenv("BACKLINE_PROJECT_TUNING", str(tmp_path / name))
        record_store.reload()
        with pytest.warns(RuntimeWarning, match="the project's tuning file .* is not used"):
            assert deciding_record.find(problem(), 2) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert deciding_record.find(problem(), 2) is None
        assert record_store.report()["project_problem"]


def test_without_tuning_data_no_project_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_project(tmp_path / "tuning.toml", made(machine=OTHER), monkeypatch=monkeypatch)
    monkeypatch.setenv("BACKLINE_TUNING", "")
    record_store.reload()
    assert deciding_record.find(problem(), 2) is None and record_store.empty()


# Pruning --------------------------------------------------------------------------------------------------------------------


def test_prune_removes_what_holds_no_more_and_keeps_it_beside(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale, partly = made(versions={"numpy": "0.9"}), made(threads=1, versions={"numpy": np.__version__, "gone": "1"})
    record_store.keep_all([stale, partly, made(threads=3), made(machine=OTHER, versions={"numpy": "0.1"})])
    done = record_exchange.prune()
    assert [r for r, _ in done.reasons] == [stale] and "measured with numpy 0.9" in done.reasons[0][1]
    assert {(r.machine, r.threads) for r in record_exchange.all_machines()} == {
        (fingerprint(), 1),
        (fingerprint(), 3),
        (OTHER, 2),
    }
    assert record_files.read(done.file) == [stale] and Path(done.file).parent == file.parent
    assert record_exchange.prune() == ([], "")
    assert record_exchange.import_from(done.file) == (1, 1) and len(record_exchange.all_machines()) == 4


def test_prune_by_age_and_of_other_machines() -> None:
    recent = (datetime.now(UTC) - timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    record_store.keep_all(
        [made(created=recent), made(threads=1, created="2020-01-01T00:00:00.000000Z"), made(machine=OTHER, created=recent)]
    )
    assert [r.threads for r, _ in record_exchange.prune(30).reasons] == [1]
    assert [why for _, why in record_exchange.prune(others=True).reasons] == [f"it is of {OTHER}"]
    assert [r.created for r in record_exchange.all_machines()] == [recent]


def test_a_library_that_is_not_here_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    record_store.keep(made(medians={"mkl.gemm@1": 1e-6}, errors={}, versions={"mkl": "2020.0"}))
    monkeypatch.setattr(libraries.get("mkl"), "available", lambda: False)
    monkeypatch.setattr(libraries.get("mkl"), "loaded", lambda: True)
    assert record_exchange.prune().reasons == []


def test_what_another_process_replaced_meanwhile_stays(file: Path) -> None:
    old, new = made(), made(seed=1, created="2026-11-25T00:00:00.000000Z")
    database.write(str(file), [new])
    assert database.remove(str(file), [old]) == 0 and database.remove(str(file), [new]) == 1
    assert database.texts(str(file)) == []


def test_a_file_of_something_else_is_not_pruned(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"not a database at all" * 100)
    content = file.read_bytes()
    done = runner.invoke(app, ["tune", "--prune"])
    assert done.exit_code == 2 and file.read_bytes() == content


# The commands ----------------------------------------------------------------------------------------------------------------


def listed(*words: str) -> list[dict[str, Any]]:
    done = runner.invoke(app, ["tune", "--list", "--json", *words])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_lists_are_filtered() -> None:
    recent = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    record_store.keep_all([
        made(created="2020-01-01T00:00:00.000000Z"), made(key="linalg.cholesky f64 8x8", created=recent, medians={"mkl.potrf@1": 1e-6}, winner="mkl.potrf@1"),
        made(key="linalg.qr f32 8x8", machine=OTHER, processors="arm-neon-4c"),
    ])  # fmt: skip
    assert [r["key"].split()[0] for r in listed()] == ["linalg.cholesky", "matmul"]
    both = [(fingerprint(), "linalg.cholesky"), (OTHER, "linalg.qr")]  # by machine: which is first depends on where the test runs
    assert [(r["machine"], r["key"].split()[0]) for r in listed("--all-machines", "--op", "linalg.*")] == sorted(both)
    assert [r["key"].split()[0] for r in listed("--library", "mkl")] == ["linalg.cholesky"]
    assert (
        [r["key"].split()[0] for r in listed("--dtype", "float64")]
        == ["linalg.cholesky"]
        == [r["key"].split()[0] for r in listed("--dtype", "f64")]
    )
    assert [r["key"].split()[0] for r in listed("--class", "arm-*")] == ["linalg.qr"]
    assert [r["key"].split()[0] for r in listed("--newer-than", "7")] == ["linalg.cholesky"] and len(
        listed("--newer-than", "0")
    ) == 0
    shown = runner.invoke(app, ["tune", "--list", "--all-machines"]).stdout
    assert "arm-neon-4c" in shown and OTHER in shown and "class" in shown
    assert "no records" in runner.invoke(app, ["tune", "--list", "--op", "conv"]).stdout


def test_export_list_merge_and_prune_as_commands(tmp_path: Path) -> None:
    record_store.keep_all([made(), made(threads=1, versions={"numpy": "0.9"})])
    one, two, both = (str(tmp_path / name) for name in ("one.toml", "two.json", "both.toml"))
    assert "wrote 2 records" in runner.invoke(app, ["tune", "--export", one]).stdout
    assert len(listed("--file", one)) == 2
    record_files.write(two, [made(machine=OTHER, processors="amd-avx2-4c")])
    done = runner.invoke(app, ["tune", "--export", both, "--merge", one, two])
    assert "wrote 3 records of 2 machines" in done.stdout and "amd-avx2-4c" in done.stdout
    assert runner.invoke(app, ["tune", "--export", both, "--merge", two]).exit_code == 0
    assert len(record_files.read(both)) == 3  # what the target held stays
    assert "took 3 records from 2 files, 2 of them" in runner.invoke(app, ["tune", "--merge", both, two]).stdout
    done = runner.invoke(app, ["tune", "--prune"])
    assert "removed 1 record;" in done.stdout and "numpy 0.9" in done.stdout and len(listed("--all-machines")) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--library", "mkl"], ["--merge"], ["--merge", "a.toml", "--export"], ["--merge", "--list", "a.toml"],
        ["--merge", "--op", "matmul", "a.toml"], [],
    ],
)  # fmt: skip
def test_words_that_do_not_go_together_are_refused(words: list[str]) -> None:
    assert runner.invoke(app, ["tune", *words]).exit_code == 2
