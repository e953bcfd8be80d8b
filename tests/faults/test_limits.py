"""Files, variables and texts of any size and kind: bounded time, and a warning or an error that says what was wrong."""

from __future__ import annotations

import sqlite3
import tomllib
from pathlib import Path
from typing import Any

import pytest

import backline
from backline.engine.tuning import database
from backline.errors import BacklineError, BadValue
from backline.problems import Problem
from backline.switches import toml
from support import clean, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean

HUGE = ["100000", "2147483647", "99999999999999999999", "9" * 5000, "-1", "0", "1e9", "nan", "\udcff", "\x1b[2J", "4" * 50_000]


@pytest.mark.parametrize("count", [1025, 5000, 100_000, 2**31 - 1, 2**63, 10**30, 0, -1])
def test_threads_have_a_bound(count: int) -> None:
    before = backline.get_num_threads()
    for call in (backline.set_num_threads, backline.set_num_interop_threads):
        with pytest.raises(BadValue, match="1024"):
            call(count)
    with pytest.raises(BadValue, match="1024"), backline.num_threads(count):
        pass
    assert backline.get_num_threads() == before
    with backline.num_threads(1024):
        assert backline.get_num_threads() == 1024


def test_every_variable_with_anything_in_it() -> None:
    """Each switch's variable, with numbers, bytes and lengths that no value has: a warning, and the default holds."""
    python(
        f"""
import os, sys, warnings
warnings.simplefilter("error")
import backline

found = {HUGE!r}
from backline.switches.switch_registry import all_switches
for switch in list(all_switches().values()):
    for text in found:
        try:
            value = switch.parse(text)
        except backline.errors.BacklineError:
            continue
        assert isinstance(value, (str, tuple, float, int)), (switch.name, text)
"""
    )


@pytest.mark.parametrize("text", ["99999999999999999999", "9" * 5000, "\x1b[2J", "x" * 20_000], ids=["1e20", "digits", "escape", "long"])
def test_a_variable_is_ignored_with_a_warning(text: str) -> None:
    python(
        f"""
import os, warnings
names = ["NUM_THREADS", "PREFER", "MKL_ENABLED", "FP32_PRECISION", "DETERMINISM_LEVEL"]
for name in names:
    os.environ["BACKLINE_" + name] = {text!r}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import backline
    threads = backline.get_num_threads()
assert 1 <= threads <= 1024
said = " ".join(str(w.message) for w in caught)
assert len(said) < 20000 and "\x1b" not in said
assert all("BACKLINE_" + name in said for name in names), said
"""
    )


def test_openmp_counts_past_the_bound_are_cut() -> None:
    python("import os; os.environ['OMP_NUM_THREADS'] = '5000'\nimport backline\nassert backline.get_num_threads() == 1024")


LONG_KEYS = {
    "dotted": ".".join(["a"] * 3000) + " = 1",
    "table": "[" + ".".join(["a"] * 3000) + "]\nb = 1",
    "quoted": ".".join(['"a"'] * 3000) + " = 1",
    "many": ".".join(["a"] * 200_000) + " = 1",
    "escaped quotes": ".".join([r'"\""'] * 30_000) + " = 1",
    "no end": 'a = "' + r"\"" * 400_000,
    "no end of lines": 'a = """' + '""a' * 300_000,
    "apostrophes": "' " * 400_000,
    "inline": "x = {" + ".".join(["a"] * 3000) + " = 1}",
    "nested": "a = " + "{a = " * 900 + "1" + "}" * 900,
    "arrays": "a = " + "[" * 100_000,
    "spaces": '"""' + " " * 900_000,
    "number": "num_threads = " + "9" * 5000,
    "word": "a" * 900_000 + " = 1",
}


@pytest.mark.parametrize("text", LONG_KEYS.values(), ids=LONG_KEYS)
@pytest.mark.parametrize("file", ["backline.toml", "pyproject.toml"])
def test_a_configuration_of_any_depth(tmp_path: Path, file: str, text: str) -> None:
    head = "[tool.backline]\n" if file == "pyproject.toml" else ""
    (tmp_path / file).write_text(head + text.replace("[a", "[tool.backline.a") if head else text)
    python(
        f"""
import os, signal
signal.alarm(60)  # it takes milliseconds; without the limits it took minutes
os.chdir({str(tmp_path)!r})
import backline
for _ in range(2):
    try:
        assert 1 <= backline.get_num_threads() <= 1024
    except backline.errors.BadValue as error:
        assert {file!r} in str(error) and len(str(error)) < 20000, str(error)[:500]
"""
    )


def test_keys_at_the_limit_are_read() -> None:
    assert toml.loads(".".join(["a"] * toml.MOST_PARTS) + " = 1")
    with pytest.raises(toml.LongKey, match="64 parts"):
        toml.loads(".".join(["a"] * (toml.MOST_PARTS + 1)) + " = 1")


def test_quotes_inside_of_a_key_hide_none_of_its_parts() -> None:
    part = r'"\""'
    assert toml.loads(".".join([part] * toml.MOST_PARTS) + " = 1")
    for line in ("{} = 1", "[{}]", "x = {{{} = 1}}"):
        with pytest.raises(toml.LongKey, match="64 parts"):
            toml.loads(line.format(".".join([part] * (toml.MOST_PARTS + 1))))


DOTS = ".".join(["1"] * 70)
STRINGS = {
    "basic": f'a = "{DOTS}"',
    "literal": f"a = '{DOTS}'",
    "after an escaped quote": rf'a = "\"{DOTS}"',
    "lines": f'a = """\n{DOTS}""""',
    "literal lines": f"a = '''\n{DOTS}''''",
    "comment": f"a = 1  # {DOTS}",
    "key": f'"{DOTS}" = 1',
    "array": f'a = ["{DOTS}", "b"]',
}


@pytest.mark.parametrize("text", STRINGS.values(), ids=STRINGS)
def test_dots_in_strings_and_comments_are_no_keys(text: str) -> None:
    assert toml.loads(text) == tomllib.loads(text)
    with pytest.raises(toml.LongKey):  # what follows is a key again
        toml.loads(f"{text}\n{'.'.join(['b'] * 70)} = 1")


TEXTS = {
    "matmul f32 " + "x".join(["2"] * 5000) + " 3x3": "5000 dimensions",
    "matmul f32 " + "x".join(["0"] * 65) + " 3x3": "65 dimensions",
    "matmul f32 " + "9" * 5000 + "x2 2x2": "more elements",
    "matmul f32 0x" + "9" * 19 + " 2x2": "more elements",
    "conv2d f32 1x1x9x9 1x1x3x3 stride=" + "9" * 5000: "conv2d",
    "conv2d f32 1x1x9x9 1x1x3x3 padding=" + "9" * 30: "conv2d",
    "fft.fft f32 64 n=" + "9" * 30: "fft",
    "linalg.svd f32 4x4 full_matrices=" + "(" * 500 + ")" * 500: "",
    "x" * 200_000: "200000 characters",
}


@pytest.mark.parametrize(("text", "said"), TEXTS.items(), ids=range(len(TEXTS)))
def test_a_problem_in_words_of_any_size(text: str, said: str) -> None:
    with pytest.raises(BacklineError) as caught:
        Problem.parse(text)
    assert said in str(caught.value) and len(str(caught.value)) < 20_000


def _database(path: Path, *statements: str, cells: tuple[Any, ...] = ()) -> None:
    base = sqlite3.connect(path, isolation_level=None)
    base.execute(f"PRAGMA application_id = {database.APPLICATION}")
    base.execute(f"PRAGMA user_version = {database.SCHEMA}")
    for statement in statements:
        base.execute(statement, cells if "?" in statement else ())
    base.close()


TABLE = f"CREATE TABLE records {database.COLUMNS}"
INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?)"
ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
STRANGE: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "an endless view": (
        (f"CREATE VIEW records AS {ENDLESS} SELECT 'm' machine, 'k' key, n threads, 'c' created, 'r' record FROM r",), (),
    ),
    "a trigger": ((TABLE, f"CREATE TRIGGER t BEFORE INSERT ON records BEGIN {'SELECT 1;'} END"), ()),
    "another column": (("CREATE TABLE records (machine, key, threads, created, record, more)",), ()),
    "a generated column": (
        ("CREATE TABLE records (machine TEXT, key TEXT, threads INT, created TEXT, record TEXT AS (zeroblob(900000000)))",), (),
    ),
    "a cell that is too large": ((TABLE, INSERT), ("{machine}", "k", 1, "c", "x" * (2 << 20))),
    "bytes that are no text": ((TABLE, "INSERT INTO records VALUES (?, CAST(x'ff' AS TEXT), ?, ?, ?)"), ("{machine}", 1, "c", "r")),
    "values of other types": ((TABLE, INSERT), ("{machine}", b"\xff", 1.5, b"", b"\x00")),
}  # fmt: skip


@pytest.mark.parametrize(("statements", "cells"), STRANGE.values(), ids=STRANGE)
def test_a_tuning_file_with_anything_in_it(tmp_path: Path, statements: tuple[str, ...], cells: tuple[Any, ...]) -> None:
    from backline.native.machine import fingerprint

    path = tmp_path / "tuning.sqlite"
    _database(path, *statements, cells=tuple(fingerprint() if cell == "{machine}" else cell for cell in cells))
    before = path.read_bytes()
    python(
        f"""
import os, signal, warnings
signal.alarm(60)
os.environ["BACKLINE_TUNING"] = {str(path)!r}
import numpy as np, backline
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert backline.matmul(np.ones((2, 2)), np.ones((2, 2)))[0, 0] == 2
assert [w for w in caught if "tuning file" in str(w.message)], caught
"""
    )
    assert path.read_bytes() == before

