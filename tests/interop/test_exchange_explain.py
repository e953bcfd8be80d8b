"""Explanations of exchanged routines: the same library as the status says, with candidates, verdicts and reasons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scipy.linalg
from typer.testing import CliRunner

from backline import errors, switches
from backline.cli import app
from backline.engine.tuning import record_store
from backline.engine.tuning.stamp import stamped_key
from backline.interop import numpy as exchange
from backline.interop.exchange import signatures, targets, tuned_choice
from exchange_support import restored, wheels_only
from processes import wrapped
from support import need

pytestmark = [wheels_only, pytest.mark.usefixtures("restored")]
assert restored and scipy.linalg
LARGE = {"m": 12_000, "n": 12_000, "k": 12_000, "nrhs": 12_000}


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tuning file of its own."""
    monkeypatch.setenv("BACKLINE_TUNING", str(tmp_path / "tuning.sqlite"))
    record_store.reload()
    yield
    exchange.restore()
    monkeypatch.undo()
    record_store.reload()


def sizes(routine: str, **given: int) -> dict[str, int]:
    return {name: given.get(name, LARGE[name]) for name in signatures.work_names(routine)}


def reason(choice: Any, library: str) -> str:
    (row,) = [c for c in choice.candidates if c.library == library]
    return f"{row.verdict}: {row.reason}"


def test_without_an_exchange() -> None:
    choice = exchange.explain("dgemm", m=30, n=40, k=50)
    assert choice.library == "numpy" and reason(choice, "numpy") == "chosen: nothing is exchanged"
    assert choice.candidates[0].library == "numpy" and {c.library for c in choice.candidates} == {"numpy", *targets.NAMES}
    assert choice.problem.parameter("k") == 50 and choice.chosen is not None and choice.chosen.threads >= 1
    text = str(choice)
    assert "30x50" in text and "because" in text and "chosen" in text and "<table>" in choice._repr_html_()


def test_every_routine_runs_where_the_status_says() -> None:
    need("openblas")
    seen = set()
    with exchange.use("openblas"):
        for row in exchange.status().routines:
            if row.family in ("fft", "utility", "complex result") or (row.package, row.routine) in seen:
                continue
            seen.add((row.package, row.routine))
            choice = exchange.explain(row.routine, package=row.package, **sizes(row.routine))
            wanted = row.package if row.library == "numpy" else row.library
            assert choice.library == wanted, (row, str(choice))
            if row.reason:
                assert row.reason in reason(choice, "openblas"), (row, str(choice))
    assert len(seen) > 100


def test_small_calls_stay_and_the_reason_has_the_figures() -> None:
    need("openblas")
    with exchange.use("openblas", small={"gemm": 1000}):
        small, large = exchange.explain("dgemm", m=9, n=10, k=11), exchange.explain("dgemm", m=10, n=10, k=10)
        assert (small.library, large.library) == ("numpy", "openblas")
        assert reason(small, "openblas") == "refused: small: m * n * k is 990, and calls go there from 1,000 on"
        assert reason(large, "openblas") == "chosen: the exchange is for openblas"
    ahead = exchange.explain("dgemm", "openblas", m=4, n=4, k=4)
    assert ahead.library == "numpy" and "is 64" in reason(ahead, "openblas") and exchange.status().choice == ""


def test_what_is_chosen_by_routine_and_what_cannot_be() -> None:
    need("openblas")
    choice = exchange.explain("dgesdd", {"blas": "openblas", "*": "numpy"}, m=300, n=300)
    assert choice.library == "numpy" and reason(choice, "numpy") == "chosen: not among what is exchanged"
    assert reason(choice, "openblas").startswith("next: ")
    choice = exchange.explain("zdotc", "openblas", package="scipy")
    assert choice.library == "scipy" and "return a complex number" in reason(choice, "openblas")
    with switches.scope({"mkl.enabled": False}):
        assert "disabled by mkl.enabled" in reason(exchange.explain("dgesdd", m=3, n=3), "mkl")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: exchange.explain("dgem", m=1, n=1, k=1), ("'dgem' is no routine that NumPy or SciPy calls here", "'dgemm'")),
        (lambda: exchange.explain("dgemm"), ("was given the sizes none", "m, n, k")),
        (lambda: exchange.explain("dgemm", m=1, n=1), ("was given the sizes m, n", "explain('dgemm', m=, n=, k=)")),
        (lambda: exchange.explain("dgemm", m=1, n=1, k=-1), ("k = -1 is no size",)),
        (lambda: exchange.explain("dgemm", m=1, n=True, k=1), ("n = True is no size",)),
        (lambda: exchange.explain("dgemm", package="pandas", m=1, n=1, k=1), ("package='pandas'",)),
        (lambda: exchange.explain("dgemm", "openblass", m=1, n=1, k=1), ("'openblass' is no library",)),
    ],
)
def test_questions_that_are_refused(call: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(errors.BadValue) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def record(routine: str, named: str, one: float, rejected: dict[str, str] | None = None, **seconds: float) -> Any:
    key = f"exchanged numpy.{routine} {named}"
    medians = {f"numpy.{routine}@1": one} | {f"{name}.{routine}@n": value for name, value in seconds.items()}
    return stamped_key(
        key, targets.threads(), (), medians=medians, covered=tuple(sorted(medians)), calls=10, rejected=rejected or {}
    )  # fmt: skip


def test_a_tuned_exchange_is_explained_by_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    need("openblas")
    monkeypatch.setattr(tuned_choice, "homes", lambda: ["openblas"])
    record_store.keep_all([
        record("dgesv", "fortran64 n=128 nrhs=128 lda=128 ldb=128", 3.0, numpy=2.0, openblas=1.0),
        record("zgesdd", "fortran64 jobz=N m=64 n=64 lda=64", 2.0, {"openblas.zgesdd@n": "it answered 7"}, numpy=2.0),
    ])  # fmt: skip
    solve = exchange.explain("dgesv", "tuned", n=130, nrhs=128)
    assert solve.library == "openblas" and reason(solve, "openblas") == "chosen: measured to be faster"
    assert [c.seconds for c in solve.candidates if c.library == "openblas"] == [1.0]
    assert "n=128 nrhs=128" in solve.basis and "tuning record of" in solve.basis
    small = exchange.explain("dgesv", "tuned", n=4, nrhs=4)
    assert small.library == "numpy" and "calls go there from" in reason(small, "openblas")
    svd = exchange.explain("zgesdd", "tuned", m=64, n=65)
    assert svd.library == "numpy" and reason(svd, "openblas") == "refused: it answered 7"
    assert reason(svd, "numpy") == "chosen: no other library was measured to be faster by 3 %"
    other = exchange.explain("dgemm", "tuned", m=900, n=900, k=900)
    assert other.library == "openblas" and other.basis.endswith("no tuning record of this class of sizes")


def test_nothing_was_measured_to_be_faster() -> None:
    choice = exchange.explain("dgemm", "tuned", m=300, n=300, k=300)
    assert choice.library == "numpy" and "no other library would save 3 %" in reason(choice, "numpy")


def command(*words: str, status: int = 0, **more: str) -> tuple[str, str]:
    done = subprocess.run(
        wrapped([sys.executable, "-m", "backline", "explain", *words]), capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | more,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_the_command_explains_an_exchanged_routine() -> None:
    need("openblas")
    content = json.loads(command("--exchanged", "--blas", "openblas", "--json", "dgemm", "300x300x300")[0])
    assert content["library"] == "openblas" and content["candidates"][0]["verdict"] == "chosen"
    out, _ = command("--exchanged", "--threads", "1", "dgesdd", "300x200", BACKLINE_EXCHANGE="openblas")
    assert "exchanged.dgesdd" in out and "the exchange for openblas" in out and "300x200" in out
    assert "no sizes of dgemm" in command("--exchanged", "dgemm", "300", status=2)[1]
    assert "--blas goes with --exchanged" in command("--blas", "mkl", "matmul f32 2x2 2x2", status=2)[1]


def asked(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", "--exchanged", *words])
    return done.exit_code, " ".join(done.output.split())


def test_the_command_refuses_what_are_no_sizes() -> None:
    for words in (["300x300x300", "5"], ["300x300x300 5"], ["300", "300", "300"], ["300x300x"], ["300x300"]):
        status, text = asked("dgemm", *words)
        assert status == 2 and f"'{' '.join(words)}' are no sizes of dgemm" in text and "such as: dgemm 300x300x300" in text
    assert asked("dgemm")[0] == 2 and "dgemm is given without its sizes" in asked("dgemm")[1]
    for routine, near in (("nosuch", ""), ("DGEMM", "'dgemm'"), ("dgemm_", "'dgemm'")):
        status, text = asked(routine, "3x3x3")
        assert status == 2 and f"'{routine}' is no routine that NumPy or SciPy calls here" in text and near in text
    status, text = asked("--blas", "nolib", "dgemm", "3x3x3")
    assert status == 2 and "'nolib' is no library" in text and "*" not in text


def test_a_size_of_zero_is_shown() -> None:
    status, text = asked("dgemm", "0x3x4")
    assert status == 0 and "m=0 n=3 k=4" in text


def test_sizes_that_do_not_fit_into_the_integers_of_a_library() -> None:
    need("openblas")
    choice = exchange.explain("dgesdd", "openblas", m=20_000, n=300)
    if 8 in targets.load("openblas").namings:
        assert choice.library == "openblas"
    else:
        assert choice.library == "numpy" and "m = 20,000: its integers have 32 bits" in reason(choice, "openblas")
    assert exchange.explain("dgesdd", "openblas", package="scipy", m=20_000, n=300).library == "openblas"
