"""The records of `backline tune` as commands: what filters, files and days they refuse, and with which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import backline
from backline.cli import app
from backline.engine.tuning import record_files, record_store
from backline.engine.tuning.record import TuningRecord
from backline.native.machine import fingerprint

runner = CliRunner()
OTHER = "another-4c-00000000"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    where = tmp_path / "data" / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(where))
    monkeypatch.setenv("BACKLINE_PROJECT_TUNING", "")
    record_store.reload()
    yield where
    monkeypatch.undo()
    record_store.reload()


def made(**changes: Any) -> TuningRecord:
    base = TuningRecord(
        "matmul f32 8x8 8x8", 2, medians={"numpy.matmul@n": 2e-6}, errors={"numpy.matmul@n": 1e-7}, winner="numpy.matmul@n",
        created="2026-11-21T03:00:00.000000Z", versions={"numpy": np.__version__}, machine=fingerprint(),
        backline=backline.__version__,
    )  # fmt: skip
    return replace(base, **changes)


def listed(*words: str) -> list[dict[str, Any]]:
    done = runner.invoke(app, ["tune", "--list", "--json", *words])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("option", ["--older-than", "--newer-than"])
@pytest.mark.parametrize("days", ["-1", "nan", "inf", "1e9"])
def test_days_that_have_not_passed_are_refused(option: str, days: str) -> None:
    record_store.keep_all([made()])
    for command in ("--prune", "--list"):
        done = runner.invoke(app, ["tune", command, option, days])
        assert done.exit_code == 2 and option in done.output
    assert len(listed()) == 1


def test_files_that_cannot_be_read_or_written_are_told_with_a_remedy(tmp_path: Path) -> None:
    record_store.keep_all([made()])
    missing, folder = str(tmp_path / "none.toml"), str(tmp_path)
    nowhere = str(tmp_path / "none" / "x.toml")
    for words, name in (
        (["--merge", missing], missing), (["--import", missing], missing), (["--list", "--file", missing], missing),
        (["--import", folder], folder), (["--export", nowhere], nowhere), (["--export", folder], folder),
        (["--export", nowhere, "--merge", missing], missing), (["--export", missing, "--file", nowhere], nowhere),
    ):  # fmt: skip
        done = runner.invoke(app, ["tune", *words])
        text = " ".join(done.output.split())
        assert done.exit_code == 2 and name in text and "remedy:" in text and ".backline-" not in text, text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data"]


def test_names_in_filters_are_checked(tmp_path: Path) -> None:
    record_store.keep_all([made()])
    for command in (["--list"], ["--prune"], ["--export", str(tmp_path / "x.json")]):
        for filters, text in ((["--dtype", "floof"], "'floof' is no dtype"), (["--library", "nolib"], "no library 'nolib'")):
            done = runner.invoke(app, ["tune", *command, *filters])
            assert done.exit_code == 2 and text in " ".join(done.output.split()), done.output
    theirs = str(tmp_path / "theirs.json")  # a plug-in of another machine
    record_files.write(theirs, [made(machine=OTHER, medians={"plugged.way@1": 1e-6}, winner="plugged.way@1")])
    assert len(listed("--file", theirs, "--library", "plugged")) == 1
    assert len(listed("--dtype", "f32")) == 1 and listed("--dtype", "i8") == [] == listed("--library", "mkl")


def test_a_single_file_is_merged(tmp_path: Path) -> None:
    one = str(tmp_path / "one.json")
    record_files.write(one, [made()])
    assert "took 1 records from 1 file, 1 of them" in runner.invoke(app, ["tune", "--merge", one]).stdout
