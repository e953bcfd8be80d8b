"""The commands on terminals of several widths: no line is longer, no word is broken where a line can end elsewhere."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import on_terminal, plain

from backline.cli import text_layout

WIDTHS = (60, 80, 200)
SWITCH = "cudnn.conv.fp32_precision"
STEADY = {
    "info": ["info"],
    "switches": ["switches"],
    "one switch": ["switches", "mkldnn.enabled"],
    "a view": ["switches", SWITCH],
    "explain": ["explain", "linalg.svd f32 512x512"],
    "help": ["--help"],
    "help of bench": ["bench", "--help"],
    "an error": ["explain", "linalg.nothing f32 512x512"],
}
MARK = "/,;:._=|-"


@functools.cache
def piped(*arguments: str, **more: str) -> str:
    """Returns the output of the command where nothing is a terminal."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "TERM")} | more
    done = subprocess.run(
        [sys.executable, "-m", "backline", *arguments],
        stdin=subprocess.DEVNULL, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout + done.stderr


def broken_words(text: list[str], whole: str) -> list[str]:
    """The words that lines on the terminal break other than behind a mark."""
    there = {word for line in text for word in line.split()}
    ends = {line.split()[-1] for line in text if line.split()}
    missing = [word for word in set(whole.split()) if word not in there]
    return [w for w in missing if not any(w.startswith(end) and end[-1] in MARK for end in ends)]


@pytest.mark.parametrize("what", STEADY)
@pytest.mark.parametrize("columns", WIDTHS)
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(columns: int, what: str) -> None:
    arguments = STEADY[what]
    status = 2 if what == "an error" else 0
    lines = plain(on_terminal(columns, *arguments, status=status))
    assert max(map(len, lines)) <= columns
    assert all(line == line.rstrip() for line in lines)
    assert not broken_words(lines, piped(*arguments))


@pytest.mark.parametrize("columns", [60, 80])
def test_tune_fits(columns: int, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import numpy as np, backline\na = np.ones((300, 300), np.float32)\nbackline.matmul(a, a)\nbackline.linalg.svd(a)\n"
    )
    where = str(tmp_path / "t.sqlite")
    lines = plain(on_terminal(columns, "tune", "--rounds", "1", "--budget", "1", str(tmp_path / "job.py"), BACKLINE_TUNING=where))
    shown = [line for line in lines if str(tmp_path) not in line]  # the test's own folder has a long name
    assert max(map(len, shown)) <= columns
    words = {word for line in shown for word in line.split()}
    assert {"problem", "calls", "NumPy", "not", "tuned", "faster", "runs", "on", "error", "300x300", "full_matrices=True"} <= words
    assert max(map(len, plain(on_terminal(columns, "tune", "--list", BACKLINE_TUNING=where)))) <= columns


@pytest.mark.parametrize("columns", [60, 80])
def test_bench_fits_and_shows_a_bar(columns: int) -> None:
    text = on_terminal(columns, "bench", "matmul", "linalg.inv", "-n", "30", "-d", "f32", "--budget", "0.02")
    lines = plain(text)
    assert "measuring" in text and "\x1b[?25l" in text  # the bar, and the cursor that is hidden beside it
    assert max(map(len, lines)) <= columns
    assert any(re.fullmatch(r"2 problems in [\d.]+ m?s", line) for line in lines)


def test_rows_are_whole_lines_where_there_is_no_terminal() -> None:
    names = [line.split()[0] for line in piped("switches").splitlines()]
    assert len(names) == len({*names}) > 50 and max(map(len, piped("switches").splitlines())) > 100
    assert "\x1b" not in piped("info") + piped("switches") + piped("explain", "matmul f32 8x8 8x8")


def test_no_color_means_none() -> None:
    for arguments in (["info"], ["switches"], ["explain", "matmul f32 8x8 8x8"]):
        text = on_terminal(80, *arguments, NO_COLOR="1")
        assert not re.search(r"\x1b\[[\d;]*3\dm", text)  # bold remains
    assert "\x1b" not in on_terminal(80, "explain", "matmul f32 8x8 8x8", TERM="dumb")


# Texts and tables as functions of a width ----------------------------------------------------------------------------------


def test_a_line_breaks_between_words() -> None:
    assert text_layout.wrapped("one two three four", 9) == ["one two", "three", "four"]
    assert text_layout.wrapped("", 9) == [""]
    assert text_layout.wrapped("see /a/very/long/path/to/somewhere now", 12) == ["see", "/a/very/", "long/path/", "to/somewhere", "now"]


def test_a_path_breaks_behind_a_slash_before_another_mark() -> None:
    assert text_layout.broken("/opt/site-packages/xy", 15) == ["/opt/", "site-packages/", "xy"]
    assert text_layout.broken("abcdefgh", 3) == ["abc", "def", "gh"]
    assert "".join(text_layout.broken("/a-b.c_d/e" * 9, 7)) == "/a-b.c_d/e" * 9


ROWS = [("mkl", "2026.2", "/opt/lib/libmkl_rt.so.3", "64-bit; threads: gomp"), ("x", "", "why it is missing", "")]


@pytest.mark.parametrize("width", [*range(12, 90), None])
@pytest.mark.parametrize("title", [False, True])
def test_tables_keep_every_word_at_every_width(width: int | None, title: bool) -> None:
    lines = text_layout.rows_of(ROWS, indent=2, width=width, title=title, right=[1])
    assert len(lines) == len(ROWS)
    for row, shown in zip(ROWS, lines, strict=True):
        assert width is None or max(map(len, shown)) <= width
        assert "".join("".join(shown).split()) == "".join("".join(row).split())


def test_a_table_that_fits_is_one_line_a_row() -> None:
    assert text_layout.rows_of([("a", "bb"), ("ccc", "d")], width=20) == [["a    bb"], ["ccc  d"]]


# Completion, help, warnings ------------------------------------------------------------------------------------------------


def test_a_shell_completes_commands_switches_and_libraries() -> None:
    program = "from backline.cli import app; app(prog_name='backline')"
    environment = os.environ | {"_BACKLINE_COMPLETE": "complete_bash"}

    def completions(words: str) -> list[str]:
        more = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run([sys.executable, "-c", program], env=environment | more, capture_output=True, text=True, check=False)
        assert not done.stderr, done.stderr
        return done.stdout.split()

    assert completions("backline sw") == ["switches"]
    assert SWITCH in completions("backline switches cudnn.c")
    assert completions("backline bench --library openb") == ["openblas"]
    assert "linalg.svd" in completions("backline bench linalg.s")


def test_completion_can_be_shown_and_installed(tmp_path: Path) -> None:
    program = "from backline.cli import app; app(prog_name='backline')"
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-c", program, "--show-completion", shell]
        environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "_BACKLINE_COMPLETE" in done.stdout, done.stderr
    command[3:] = ["--install-completion", "bash"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and list(tmp_path.rglob("backline.sh")), done.stderr


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_summaries_of_the_commands_are_whole(columns: int) -> None:
    for arguments in (["--help"], ["check", "--help"]):
        _, found, commands = on_terminal(columns, *arguments).partition("Commands:")
        assert found and "..." not in commands


def test_a_bad_variable_is_a_line_of_its_own_in_the_command() -> None:
    text = piped("switches", "benchmark", BACKLINE_BENCHMARK="maybe")
    assert "warning: backline, the environment: BACKLINE_BENCHMARK = 'maybe' is ignored" in text
    assert "typer" not in text and text.count("warning") == 1


def test_a_bad_variable_points_at_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import backline\nx = 1\nbackline.get_num_threads()\n")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mine.py")],
        env=os.environ | {"BACKLINE_BENCHMARK": "maybe"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{tmp_path}/mine.py:3: RuntimeWarning" in done.stderr
