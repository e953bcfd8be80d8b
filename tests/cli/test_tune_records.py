"""The records of `backline tune` as commands: what filters, files and days they refuse, and with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from backline.cli import app
from backline.engine.tuning import record_files, record_store
from tuning_samples import OTHER, file, made

assert file  # a fixture

runner = CliRunner()


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
