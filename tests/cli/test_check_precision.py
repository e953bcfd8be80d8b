"""`backline check precision` on the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from backline.cli import app


def precision(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", "precision", *words])
    return done.exit_code, done.output


def test_a_table_of_one_library() -> None:
    status, output = precision("matmul", "--library", "numpy", "--dtype", "float64", "--quick")
    assert status == 0, output
    head = next(line for line in output.splitlines() if line.startswith("operation"))
    for word in ("library", "computed in", "error", "bits", "ordinary", "worst case"):
        assert word in head
    rows = [line.split() for line in output.splitlines() if line.startswith("matmul")]
    assert rows and all(row[:3] == ["matmul", "f64", "numpy"] and 52 <= float(row[6]) <= 53 for row in rows)


def test_json_has_the_same() -> None:
    status, output = precision("linear", "--dtype", "f32", "--quick", "--json")
    content = json.loads(output[output.index("{") :])
    assert status == 0 and content["unreached"] == 0 and not content["failures"]
    assert all(row["operation"] in ("linear", "matmul") and row["worst"] <= row["bits"] and row["case"] for row in content["rows"])


def test_a_time_limit_is_told() -> None:
    status, output = precision("fft", "--seconds", "0")
    assert status == 0 and "were not reached in 0 s" in output, output


@pytest.mark.parametrize(
    ("words", "said"),
    [(("nothing",), "no case"), (("--library", "nothing"), "no library"), (("matmul", "--dtype", "int8"), "is not measured")],
)
def test_words_that_are_not_understood(words: tuple[str, ...], said: str) -> None:
    status, output = precision(*words)
    assert status == 2 and said in output, output
