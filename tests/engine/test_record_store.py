"""Tuning records: what is kept, what is believed, what happens to a file that is damaged, and two processes at once."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.engine.tuning import database, designed_problems, record_exchange, record_store
from backline.engine.tuning.record import MAX_TEXT, TuningRecord, parse
from backline.errors import BadValue
from backline.libraries.base import Algorithm
from processes import started
from tuning_samples import file, made, problem

assert file  # a fixture


# What is kept -----------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_found_in_this_process_and_in_the_next(file: Path) -> None:
    assert record_store.find(problem(), 2) is None
    record_store.keep(made())
    assert record_store.find(problem(), 2) == made()
    record_store.reload()
    assert file.exists() and record_store.find(problem(), 2) == made()
    assert record_store.find(problem(), 1) is None and record_store.find(problem(9), 2) is None


def test_a_record_may_be_kept_for_this_process_only(file: Path) -> None:
    record_store.keep(made(), file=False)
    assert record_store.find(problem(), 2) is not None and not file.exists()


@pytest.mark.parametrize("part", designed_problems.PARTS)
def test_the_record_of_every_designed_problem_is_read_again(part: str) -> None:
    for each in designed_problems.problems(part):
        record = made(key=each.key, place=str(each.place()))
        assert record.place and parse(record.line()) == record


@pytest.mark.parametrize("op, arrays", [
    ("matmul", ((4, 30), (30, 20), (4, 20))), ("conv", ((1, 3, 9, 9), (5, 3, 3, 3), (5,))), ("layer_norm", ((4, 30), (30,))),
])  # fmt: skip
def test_a_bias_hides_no_sizes(op: str, arrays: tuple[tuple[int, ...], ...]) -> None:
    """A Problem with a bias is compared by its sizes with those that have none."""
    x, *more, last = (np.zeros(shape, np.float32) for shape in arrays)
    nn = backline.nn.functional
    with backline.trace() as events:
        if op == "matmul":
            backline.matmul(x, *more), nn.linear(x, more[0].T, last[0]), backline.addmm(last, x, *more)
        elif op == "conv":
            nn.conv2d(x, *more), nn.conv2d(x, *more, last)
        else:
            nn.layer_norm(x, x.shape[1:]), nn.layer_norm(x, x.shape[1:], last)
    without, *biased = (event.choice.problem for event in events)
    for added in biased:
        place = added.place()
        assert len(added.operands) > len(without.operands) and place == biased[0].place()
        assert place.sizes == without.place().sizes and place == place._replace(sizes=()).sized_as(added.key)


def test_an_empty_variable_means_no_file(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", "")
    record_store.reload()
    record_store.keep(made())
    assert record_store.find(problem(), 2) is not None and not file.exists()
    assert record_store.report()["path"] == ""


def test_without_the_variable_the_file_is_in_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BACKLINE_TUNING")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert record_store.path() == str(tmp_path / "backline" / "tuning.sqlite")


def test_the_newer_record_stays() -> None:
    newer, older = made(seed=1, created="2026-11-22T00:00:00.000000Z"), made(seed=2)
    record_store.keep(newer)
    record_store.keep(older)
    assert record_store.find(problem(), 2) == newer
    record_store.reload()
    assert record_store.find(problem(), 2) == newer


def test_a_record_of_another_machine_is_stored_but_not_used() -> None:
    record_store.keep(made(machine="another-4c-00000000"))
    assert record_store.find(problem(), 2) is None
    record_store.reload()
    assert record_store.find(problem(), 2) is None and record_store.report()["other_machines"] == 1


def test_a_library_of_another_version_loses_its_part_and_the_rest_stays() -> None:
    record_store.keep(
        made(
            medians={"numpy.matmul@n": 2e-6, "gone.gemm@1": 1e-9},
            errors={"numpy.matmul@n": 0.0, "gone.gemm@1": 0.0},
            versions={"numpy": np.__version__, "gone": "1"},
            winner="gone.gemm@1",
            covered=("gone.gemm@1", "numpy.matmul@n"),
        )
    )
    found = record_store.find(problem(), 2)
    assert found is not None and dict(found.medians) == {"numpy.matmul@n": 2e-6} and found.winner == ""
    assert found.covered == ("numpy.matmul@n",)
    assert "measured with gone 1" in str(record_store.report()["dropped"])
    record_store.keep(made(versions={"numpy": "0.9"}, created="2026-11-23T00:00:00.000000Z"))
    assert record_store.find(problem(), 2) is None
    assert f"measured with numpy 0.9, {np.__version__} is here now" in str(record_store.report()["dropped"])


def test_a_library_that_is_switched_off_is_not_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    record_store.keep(made(versions={"numpy": np.__version__, "mkl": "0"}))

    def asked() -> bool:
        raise AssertionError("it was asked")

    monkeypatch.setattr(libraries.get("mkl"), "available", asked)
    with switches.scope({"mkl.enabled": False}):
        assert record_store.find(problem(), 2) is not None
    with switches.scope(only=("numpy",)):
        assert record_store.find(problem(), 2) is not None


def test_keeping_makes_the_next_call_choose_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.ones((8, 8), np.float32)
    backline.matmul(a, a)
    threads = backline.get_num_threads()
    record_store.keep(made(threads=threads))
    backline.matmul(a, a)
    choice = backline.explain()
    assert choice.library == "numpy" and choice.basis.startswith("tuning record of 2026-11-21, 1 algorithm; ")
    others = [c for c in choice.candidates if c.verdict == "next" and c.detail is not None]
    assert choice.basis.endswith(f"{len(others)} other{'s' * (len(others) > 1)} not timed")
    assert choice.candidates[0].seconds == 2e-6 and choice.candidates[0].error == 1e-7


# The order ----------------------------------------------------------------------------------------------------------------

FIRST, SECOND, THIRD = (
    Algorithm(library="a", name="x", pool="gomp"),
    Algorithm(library="b", name="x", pool="gomp"),
    Algorithm(library="c", name="x", pool="other"),
)


@pytest.mark.parametrize(
    ("medians", "winner", "order"),
    [
        ({"a.x@1": 1.0, "b.x@1": 0.98}, "", "abc"),  # not clearly faster: the ranking's first stays
        ({"a.x@1": 1.0, "b.x@1": 0.96}, "", "bac"),
        ({"a.x@1": 1.0, "c.x@1": 0.9}, "", "acb"),  # another pool has to make up for standing beside the first
        ({"a.x@1": 1.0, "c.x@1": 0.5}, "", "cab"),
        ({"a.x@1": 1.0, "b.x@1": 0.5}, "a.x@1", "abc"),  # fixed by hand
        ({"a.x@1": 1.0, "b.x@1": 0.5}, "default", "abc"),
        ({"b.x@1": 0.5}, "", "bac"),
        ({"a.x@1": 1.0, "b.x@1": 0.5}, "z.x@1", "bac"),  # a winner that is no candidate here
    ],
)
def test_the_order_that_a_record_gives(medians: dict[str, float], winner: str, order: str) -> None:
    record = made(medians=medians, winner=winner)
    found = record_store.arrange([FIRST, SECOND, THIRD], record, "gomp")
    assert "".join(a.library for a in found) == order


def test_what_a_record_rejects_is_refused_with_the_reason() -> None:
    threads = backline.get_num_threads()
    record_store.keep(made(threads=threads, rejected={"numpy.matmul@n": "wrong result: relative error 1.0"}))
    a = np.ones((8, 8), np.float32)
    choice = backline.explain(backline.matmul, a, a)
    refused = [c for c in choice.candidates if c.library == "numpy"]
    assert choice.library != "numpy" and refused[0].verdict == "refused" and "wrong result" in refused[0].reason


def test_an_error_above_max_error_is_refused() -> None:
    threads = backline.get_num_threads()
    record_store.keep(made(threads=threads, errors={"numpy.matmul@n": 1e-3}))
    a = np.ones((8, 8), np.float32)
    with switches.scope(max_error=1e-5):
        choice = backline.explain(backline.matmul, a, a)
    refused = next(c for c in choice.candidates if c.library == "numpy")
    assert refused.switch == "max_error" and "1.0e-03" in refused.reason


# Text -----------------------------------------------------------------------------------------------------------------------


def test_a_record_survives_its_text() -> None:
    record = made(errors={"numpy.matmul@n": float("inf")}, rejected={"numpy.matmul@n": "NaN"})
    assert parse(record.line()) == record
    assert "\n" not in record.line() and json.loads(record.line())["errors"] == {"numpy.matmul@n": None}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema": 2}, "schema"),
        ({"key": ""}, "key"),
        ({"key": "matmul\n"}, "key"),
        ({"threads": 0}, "threads"),
        ({"threads": True}, "threads"),
        ({"medians": {"numpy.matmul@n": -1.0}}, "medians"),
        ({"medians": {"numpy.matmul@n": "fast"}}, "medians"),
        ({"medians": {"../../x": 1.0}}, "medians"),
        ({"medians": {f"a.x{i}@1": 1.0 for i in range(300)}}, "medians"),
        ({"runs": {"numpy.matmul@n": 0}}, "runs"),
        ({"winner": "the fastest"}, "winner"),
        ({"created": "yesterday"}, "created"),
        ({"versions": {"numpy": 2}}, "versions"),
        ({"machine": "a b"}, "machine"),
        ({"spent": -1}, "spent"),
        ({"seed": 1 << 64}, "seed"),
        ({"covered": {"numpy.matmul@n": 1}}, "covered"),
        ({"covered": ["../../x"]}, "covered"),
        ({"covered": [f"a.x{i}@1" for i in range(300)]}, "covered"),
        ({"under": {"mkl.enabled": False}}, "under"),
        ({"disturbed": "x\ny"}, "disturbed"),
        ({"extra": 1}, "extra"),
    ],
)
def test_text_that_is_no_record_is_refused_and_the_field_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse(json.dumps(json.loads(made().line()) | changes))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "{}", "[" * 5000, " " * (MAX_TEXT + 1), b"{}", None, '{"spent": NaN}'])
def test_text_that_is_something_else_is_refused(text: Any) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_export_and_import(tmp_path: Path, file: Path) -> None:
    record_store.keep_all([made(), made(key="matmul f32 9x9 9x9")])
    exchange = tmp_path / "records.json"
    assert record_exchange.export(str(exchange)) == 2
    lines = exchange.read_text().splitlines()
    assert len(lines) == 2 and all(list(json.loads(x)) == sorted(json.loads(x)) for x in lines)
    record_store.reset()
    assert record_store.every() == []
    with exchange.open("a") as stream:
        stream.write(made(machine="another-4c-00000000").line() + "\n")
    assert record_exchange.import_from(str(exchange)) == (3, 2)
    assert record_store.find(problem(), 2) == made()


def test_an_import_with_one_bad_line_takes_nothing(tmp_path: Path) -> None:
    exchange = tmp_path / "records.json"
    exchange.write_text(made().line() + "\n{}\n")
    with pytest.raises(BadValue, match=r"line 2 is not a tuning record"):
        record_exchange.import_from(str(exchange))
    assert record_store.every() == []


# Records of earlier versions --------------------------------------------------------------------------------------------------


def of_before(**changes: Any) -> TuningRecord:
    """A record with keys of algorithms that have other names now; no version is known of the library that they are of now."""
    old = {"numpy.compiled@n": 4e-6, "numpy.compiled@1": 5e-6, "numpy.loops@1": 9e-6}
    base = made(
        key="relu_grad f32 256x1024 256x1024", medians=old, minima={k: s / 2 for k, s in old.items()}, runs=dict.fromkeys(old, 50),
        errors=dict.fromkeys(old, 0.0), winner="numpy.compiled@n", covered=tuple(sorted(old)),
    )  # fmt: skip
    return replace(base, **changes)


def test_a_record_of_before_is_read_under_the_names_of_now(file: Path) -> None:
    old = of_before(rejected={"numpy.compiled@1": "it failed"})
    found = parse(old.line())
    assert dict(found.medians) == {"kernels.compiled@n": 4e-6, "kernels.compiled@1": 5e-6, "numpy.loops@1": 9e-6}
    assert dict(found.minima) == {k: s / 2 for k, s in found.medians.items()} and {*found.runs} == {*found.errors} == {*found.medians}
    assert (found.winner, found.rejected) == ("kernels.compiled@n", {"kernels.compiled@1": "it failed"})
    assert found.covered == ("kernels.compiled@1", "kernels.compiled@n", "numpy.loops@1")
    assert found.versions == old.versions and parse(found.line()) == found


DEPTHWISE = "conv f32 8x32x112x112 32x1x3x3 padding=1x1 groups=32"


def test_of_several_names_that_are_one_now_the_shortest_time_stays() -> None:
    """The loop of depthwise convolutions was in the lists of three libraries."""
    medians = {"mkl.depthwise@n": 3e-3, "openblas.depthwise@n": 2e-3, "blis.depthwise@n": 4e-3, "onednn.nhwc@n": 5e-3, "blis.depthwise@1": 6e-3}
    old = made(
        key=DEPTHWISE, medians=medians, minima={k: s / 2 for k, s in medians.items()}, runs={k: i + 1 for i, k in enumerate(medians)},
        errors={"mkl.depthwise@n": 1e-7, "openblas.depthwise@n": 3e-7, "blis.depthwise@n": float("inf")}, left={"mkl": "0.1 s to load"},
        rejected={"mkl.depthwise@1": "it failed"}, covered=tuple(sorted({*medians, "mkl.depthwise@1"})), winner="mkl.depthwise@n",
        versions={"mkl": "1", "openblas": "1", "blis": "1", "onednn": "1"},
    )  # fmt: skip
    found = parse(old.line())
    assert found == replace(
        old, medians={"kernels.depthwise@n": 2e-3, "kernels.depthwise@1": 6e-3, "onednn.nhwc@n": 5e-3},
        minima={"kernels.depthwise@n": 1e-3, "kernels.depthwise@1": 3e-3, "onednn.nhwc@n": 2.5e-3},
        runs={"kernels.depthwise@n": 2, "kernels.depthwise@1": 5, "onednn.nhwc@n": 4}, errors={"kernels.depthwise@n": float("inf")},
        rejected={"kernels.depthwise@1": "it failed"}, winner="kernels.depthwise@n",
        covered=("kernels.depthwise@1", "kernels.depthwise@n", "onednn.nhwc@n"),
    )  # fmt: skip


def test_a_tuning_file_of_before_decides_on_a_loop_that_was_in_several_lists(file: Path) -> None:
    """Also where none of the libraries that listed it is of the version of then."""
    x, w = np.ones((8, 32, 112, 112), np.float32), np.ones((32, 1, 3, 3), np.float32)
    medians = {"mkl.depthwise@n": 2e-6, "openblas.depthwise@n": 3e-6, "mkl.depthwise@1": 4e-6, "onednn.nhwc@n": 1e-6}
    old = made(
        key=DEPTHWISE, medians=medians, minima=medians, runs={}, errors={}, covered=tuple(sorted(medians)), winner="mkl.depthwise@n",
        versions=dict.fromkeys(("mkl", "openblas", "onednn"), "0"),
    )  # fmt: skip
    database.write(str(file), [old])
    record_store.reload()
    with backline.num_threads(2):
        choice = backline.explain("nn.functional.conv2d", x, w, padding=1, groups=32)
    assert (choice.library, choice.algorithm, choice.threads) == ("kernels", "depthwise", 2)
    assert choice.candidates[0].seconds == 2e-6 and choice.basis.startswith("tuning record of 2026-11-21")


@pytest.mark.parametrize("release", [np.__version__, "0.9"])
def test_a_tuning_file_of_before_decides(file: Path, release: str) -> None:
    """Also what was measured beside another NumPy: the loops are not its own any more."""
    x = np.ones((256, 1024), np.float32)
    database.write(str(file), [of_before(winner="numpy.compiled@1", versions={"numpy": release})])
    record_store.reload()
    with backline.num_threads(2):
        choice = backline.explain("nn.grad.relu_input", x, x)
    assert (choice.library, choice.algorithm, choice.threads) == ("kernels", "compiled", 2) and choice.chosen is not None
    assert not choice.chosen.scaled and choice.candidates[0].seconds == 5e-6
    assert choice.basis.startswith(f"tuning record of 2026-11-21, {3 if release == np.__version__ else 2} algorithms")
    assert ("measured with numpy 0.9" in str(record_store.report()["dropped"])) == (release == "0.9")


def test_what_was_exported_before_is_imported(tmp_path: Path) -> None:
    exchange = tmp_path / "records.json"
    exchange.write_text(of_before().line() + "\n")
    assert record_exchange.import_from(str(exchange)) == (1, 1)
    assert record_store.every()[0].winner == "kernels.compiled@n"
    record_exchange.export(str(exchange))
    assert "numpy.compiled" not in exchange.read_text()


# Files that are not what they should be ---------------------------------------------------------------------------------------


def ours(file: Path) -> bytes:
    """A file with many records, and its content."""
    record_store.keep_all([made(key=f"matmul f32 {n}x{n} {n}x{n}") for n in range(2, 200)])
    return file.read_bytes()


def damaged(file: Path, kind: str) -> None:
    file.parent.mkdir(exist_ok=True)
    if kind == "text":
        file.write_text("these are my notes\n" * 100)
    elif kind == "folder":
        file.mkdir()
    elif kind == "foreign":
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE bookmarks (url)")
        connection.close()
    elif kind == "truncated":
        content = ours(file)
        file.write_bytes(content[: len(content) // 2])
    elif kind == "overwritten":
        content = bytearray(ours(file))
        content[5000:9000] = b"\xff" * 4000
        file.write_bytes(content)
    elif kind == "newer schema":
        ours(file)
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    record_store.reload()


@pytest.mark.parametrize("kind", ["text", "folder", "foreign", "truncated", "overwritten", "newer schema"])
def test_a_file_that_is_damaged_or_not_ours_is_named_once_and_left_alone(kind: str, file: Path) -> None:
    damaged(file, kind)
    before = file.read_bytes() if file.is_file() else b""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert record_store.find(problem(), 2) is None
        record_store.keep(made())
        record_store.keep(made(key="matmul f32 9x9 9x9"))
        assert record_store.find(problem(), 2) == made()  # in this process it holds
    assert len(caught) == 1 and str(file) in str(caught[0].message) and "--reset" in str(caught[0].message)
    assert record_store.report()["problem"]
    assert not file.is_file() or file.read_bytes() == before


def test_reset_moves_the_file_aside(file: Path) -> None:
    damaged(file, "text")
    before = file.read_bytes()
    moved = record_store.reset()
    assert moved is not None and Path(moved).read_bytes() == before and not file.exists()
    record_store.keep(made())
    assert record_store.reset() not in (moved, None)
    assert record_store.reset() is None


def test_an_empty_file_is_a_new_one(file: Path) -> None:
    file.parent.mkdir()
    file.touch()
    assert record_store.find(problem(), 2) is None
    record_store.keep(made())
    record_store.reload()
    assert record_store.find(problem(), 2) == made()


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blocked").write_text("a file where the folder should be")
    monkeypatch.setenv("BACKLINE_TUNING", str(tmp_path / "blocked" / "tuning.sqlite"))
    record_store.reload()
    with pytest.warns(RuntimeWarning, match="holds for this process only"):
        record_store.keep(made())
    record_store.keep(made(key="matmul f32 9x9 9x9"))
    assert record_store.find(problem(), 2) == made()


def test_a_file_that_can_only_be_read_is_used_and_not_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_store.keep(made())
    record_store.reload()
    real = database.connect

    def read_only(where: str, *, create: bool = False) -> Any:
        connection = real(where, create=create)
        connection.execute("PRAGMA query_only = 1")  # what a file without write permission does, for root too
        return connection

    monkeypatch.setattr(database, "connect", read_only)
    assert record_store.find(problem(), 2) == made()
    with pytest.warns(RuntimeWarning, match="readonly"):
        record_store.keep(made(seed=8, created="2027-01-01T00:00:00.000000Z"))
    assert record_store.find(problem(), 2).seed == 8  # type: ignore[union-attr]  # it is there


def test_one_row_that_is_no_record_is_left_out_and_named(file: Path) -> None:
    record_store.keep_all([made(), made(key="matmul f32 9x9 9x9")])
    connection = sqlite3.connect(file)
    connection.execute("UPDATE records SET record = '{}' WHERE key = ?", ("matmul f32 9x9 9x9",))
    connection.commit()
    connection.close()
    record_store.reload()
    with pytest.warns(RuntimeWarning, match=r"1 of 2 records .* schema is missing"):
        assert record_store.find(problem(), 2) == made()
    assert record_store.find(problem(9), 2) is None


# Processes -----------------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from dataclasses import replace
from backline.engine.tuning import record_store as records
from backline.engine.tuning.record import parse
record = parse(sys.stdin.readline())
first = int(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for n in range(first, first + 25):
    records.keep(replace(record, key=f"matmul f32 {n}x{n} {n}x{n}"))
"""


def test_two_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        commands = ([sys.executable, "-c", WRITER, str(first)] for first in (100, 200, 300))
        writers = [stack.enter_context(started(command, **pipes)) for command in commands]
        for w in writers:
            assert w.stdin is not None and w.stdout is not None
            w.stdin.write(made().line() + "\n")
            w.stdin.flush()
            assert w.stdout.readline() == "ready\n"
        for w in writers:
            w.communicate("go\n", timeout=120)
        assert [w.returncode for w in writers] == [0, 0, 0]
    record_store.reload()
    assert len(record_store.every()) == 75


def test_a_writer_that_is_killed_leaves_the_old_state(file: Path) -> None:
    record_store.keep(made())
    code = f"""
import os, sqlite3
c = sqlite3.connect({str(file)!r}, isolation_level=None)
c.execute("PRAGMA cache_size = 1")
c.execute("BEGIN IMMEDIATE")
c.execute("DELETE FROM records")
c.executemany("INSERT INTO records VALUES ('m', ?, 1, '', ?)", [(str(i), "x" * 3000) for i in range(300)])
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    record_store.reload()
    assert record_store.find(problem(), 2) == made()


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = """
import sys, numpy as np, backline
a = np.ones((4, 4)); backline.matmul(a, a)
print([m for m in ("sqlite3", "rich", "typer", "statistics") if m in sys.modules])
"""
    out = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"BACKLINE_TUNING": ""}, capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"
