"""Arguments before a script: options that there are none of, scripts that are missing or not given, options that exclude one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from backline.cli import app
from backline.engine.script_runs import check_script
from backline.errors import BadValue

runner = CliRunner()
COMMANDS = (["report"], ["bisect"], ["tune"], ["doctor"], ["check", "results"])


def refused(*words: str) -> str:
    done = runner.invoke(app, list(words))
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_called_one(command: list[str], tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("raise SystemExit(1)\n")
    for words in (["--bogus", str(script)], ["--bogus=3", str(script)], ["--bogus"], ["-m", "--bogus"]):
        text = refused(*command, *words)
        assert "there is no option --bogus cause" in text and "there is no script" not in text
    assert "there is no script" in refused(*command, str(tmp_path / "none.py"))


def test_scripts_and_modules_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("")
    check_script([str(tmp_path / "s.py"), "--bogus"])
    check_script(["-m", "no_such_module", "--bogus"])
    for argv, text in (([], "no script is given"), (["-m"], "no module is given"), (["s.p"], "there is no script 's.p'")):
        with pytest.raises(BadValue, match=text):
            check_script(argv)


@pytest.mark.parametrize("words", [["bisect"], ["check", "results"]], ids=" ".join)
def test_without_a_script(words: list[str]) -> None:
    assert "no script is given" in refused(*words)


@pytest.mark.parametrize("option", ["--list", "--prune"])
def test_records_are_shown_and_removed_without_a_script(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", str(tmp_path / "tuning.sqlite"))
    (tmp_path / "s.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    text = refused("tune", option, str(tmp_path / "s.py"))
    assert f"{option} goes without a script" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.py"]  # it did not run, and nothing was written


def test_an_unknown_option_stops_tune_before_anything_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", str(tmp_path / "tuning.sqlite"))
    (tmp_path / "tuning.sqlite").write_bytes(b"")
    assert "there is no option --bogus" in refused("tune", "--reset", "--bogus")
    assert [p.name for p in tmp_path.iterdir()] == ["tuning.sqlite"]


def test_numbers_of_threads_are_told_by_their_option() -> None:
    for threads in ("0,1", "-2", "x"):
        text = refused("check", "determinism", f"--threads={threads}", "s.py")
        assert f"--threads '{threads}'" in text and "remedy: " in text
    assert "runs=1 with threads=" in refused("check", "determinism", "--runs", "1", "--threads", "1", __file__)
