"""`backline check` on the command line: a sample of every library's kernels, and the page of errata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from backline import libraries
from backline.cli import app
from backline.cli.check import page
from backline.errors import BadValue
from backline.kernel_check.cases import FAMILIES, cases
from backline.libraries import errata, errata_local
from backline.libraries.errata_table import TABLE
from backline.problems import Problem
from support import need

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def without_local_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKLINE_ERRATA", str(tmp_path / "errata.json"))
    errata.clear()


def check(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *words])
    return done.exit_code, done.output


# Products, pooling and XNNPACK's convolutions: kernels that differ little between processors. The rest is `make check-kernels`.
SAMPLES = [("openblas", "matmul"), ("onednn", "pooling"), ("xnnpack", "conv"), ("mkl", "matmul"), ("blis", "matmul")]


@pytest.mark.parametrize(("library", "op"), SAMPLES)
def test_a_sample_of_kernels_has_nothing_new(library: str, op: str) -> None:
    need(library)
    status, output = check("kernels", "--library", library, "--op", op, "--seconds", "6")
    assert status == 0 and "nothing new" in output, output


def test_json_and_words_that_are_not_understood() -> None:
    status, output = check("kernels", "--library", "numpy", "--op", "attention", "--seconds", "30", "--json")
    (job,) = json.loads(output)
    assert status == 0 and job["library"] == "numpy" and job["runs"] > 20 and job["failures"] == []
    for words, said in (
        (("--library", "nothing"), "no library"),
        (("--op", "nothing"), "no case"),
        (("--library", "magma"), "info"),
    ):
        status, output = check("kernels", *words)
        assert status == 2 and said in output, output


def test_cases_are_problems_with_edges_of_every_family() -> None:
    lines = cases()
    assert len(lines) > 4000 and all(cases(name) for name in FAMILIES)
    refused = []
    for line in lines:
        try:
            Problem.parse(line)
        except BadValue:
            refused.append(line)
    assert not refused
    problems = [Problem.parse(line) for line in cases("fft")]
    assert {p.points % 64 for p in problems if p.op == "fft.c2r" and len(p.axes) == 1} == set(range(64))


def test_the_page_is_made_from_the_table(tmp_path: Path) -> None:
    assert (ROOT / "docs" / "errata.md").read_text(encoding="utf-8") == page()
    assert check("errata", "--docs", str(tmp_path / "page.md"))[0] == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page()
    status, output = check("errata", "--json")
    rows = json.loads(output)
    assert status == 0 and [row["id"] for row in rows] == [row.id for row in TABLE]
    status, output = check("errata")
    assert status == 0 and all(row.id in output and row.condition in output for row in TABLE)
    holding = {row["id"] for row in rows if row["holds here"]}
    info = json.loads(CliRunner().invoke(app, ["info", "--json"]).output)
    assert {name for library in info["libraries"] for name in library["errata"]} == holding


def test_keep_fails_before_the_check_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "errata.json").write_text("{")
    status, output = check("kernels", "--library", "numpy", "--op", "attention", "--keep")
    assert status == 1 and "damaged" in output and "runs" not in output, output
    monkeypatch.setenv("BACKLINE_ERRATA", "")
    status, output = check("kernels", "--library", "numpy", "--op", "attention", "--keep")
    assert status == 2 and "BACKLINE_ERRATA is empty" in output and "runs" not in output, output


def test_rows_of_this_machine_hold_by_what_they_say_not_by_their_name() -> None:
    numpy = libraries.get("numpy")
    fields: dict[str, Any] = {
        "id": "local-numpy-1", "library": "numpy", "operations": ("matmul",), "problem": "matmul f64 2x2 2x2", "condition": "seen",
        "evidence": "seen", "processor": errata_local.processor(),
    }  # fmt: skip
    builds = errata_local.identity(numpy), "another"
    errata.keep([errata_local.LocalErratum(**fields, build=build) for build in builds])
    status, output = check("errata", "--json")
    holds = {row["build"]: row["holds here"] for row in json.loads(output) if row["id"] == "local-numpy-1"}
    assert status == 0 and holds == {builds[0]: True, builds[1]: False}


def test_the_help_says_what_the_time_and_the_file_are() -> None:
    said = "".join(check("kernels", "--help")[1].split())  # lines break at hyphens, too
    for text in ("Time limit, divided among libraries and instruction-set caps", "(BACKLINE_ERRATA)", "run again under each cap"):
        assert text.replace(" ", "") in said, said
