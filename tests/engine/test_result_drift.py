"""`backline check results`: an operation that computes something else is told from one that was given something else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from erring import script
from typer.testing import CliRunner

from backline.cli import app
from backline.engine.result_drift import check_results, report_of
from backline.engine.result_sketch import apart, sketch
from support import clean, rng, seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and script and seed

SCRIPT = """
import sys
import numpy as np, backline
assert sys.argv[1:] == ["--against", "x y"]
rng = np.random.default_rng(0)
a, b = rng.standard_normal((7, 5)), rng.standard_normal((5, 6))
backline.linalg.svd(a)
with backline.use("erring"):
    backline.matmul(b, b.T)
    c = backline.matmul(a, b)
d = backline.matmul(c.T, c)
backline.linalg.qr(d)
"""


def check(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", "results", *words])
    return done.exit_code, done.output


def test_a_planted_error_is_named(script: Callable[..., str]) -> None:
    path = script(SCRIPT, "c = a @ b; c[1, 2] += 1e-6; return c")
    steps: list[str] = []
    report = check_results([path, "--against", "x y"], step=steps.append)
    assert steps == ["every call again by numpy", "all calls by numpy alone"] and not report
    assert report.first is not None and report.first.key == "matmul f64 7x5 5x6" and report.first.library == "erring"
    assert report.operations == 5 and report.number == 3 and report.drifted == 1
    assert report.inputs is not None and report.inputs.number == 4 and report.later >= 1  # they were given something else
    text = str(report)
    assert "number 3 of 5" in text and "the operation itself" in text and "as a consequence" in text
    assert "backline run --set erring.enabled=False" in text and "backline.backends.erring.enabled = False" in text
    content = json.loads(json.dumps(report.as_dict()))
    assert content["number"] == 3 and content["first"]["library"] == "erring" and content["inputs"]["number"] == 4


def test_a_sound_script_agrees(script: Callable[..., str]) -> None:
    status, text = check("--json", script(SCRIPT), "--against", "x y")
    content = json.loads(text[text.index("{") :])
    assert status == 0 and content["operations"] == 5 and content["first"] is None and content["inputs"] is None
    status, text = check("--against", "wider", script(SCRIPT), "--against", "x y")
    assert status == 0 and "all of them" in text and "first drift" not in text


def test_what_cannot_be_compared(script: Callable[..., str]) -> None:
    assert check(script("import numpy as np; np.eye(3) @ np.eye(3)"))[0] == 3
    status, text = check(script("1 // 0"))
    assert status == 1 and "ZeroDivisionError" in text
    for words in (("nowhere.py",), ("--against", "nothing", __file__), ("--tolerance", "-1", __file__), ()):
        assert check(*words)[0] == 2, words


def test_nothing_compared_is_no_agreement(script: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = script("import numpy as np, backline\nwith backline.use('numpy'): backline.matmul(np.eye(3), np.eye(3))")
    monkeypatch.chdir(os.path.dirname(path))
    status, text = check("-m", "job")
    assert status == 3 and "nothing was compared" in text and "1 that numpy itself ran" in text and "all of them" not in text
    entries = [{**entry(f"matmul {name}", 1, 1), "record": None} for name in "abc"]
    report = report_of("job.py", "mkl", entries, entries)
    assert not report and not report.drifts and report.already == 3 and "3 that mkl itself ran" in str(report)
    assert "nothing was compared" in repr(report) and report.as_dict()["compared"] == 0
    report = report_of("job.py", "wider", [{**entries[0], "reason": "there is no reference"}], None)
    assert not report and "there is no reference" in str(report) and "--against a library" in str(report)
    report = report_of("job.py", "numpy", [entries[0], entry("matmul d", 1, 1)], None)
    assert report and "the 1 that were compared" in str(report)


def test_a_tolerance_below_rounding() -> None:
    near = entry("matmul a", 1, 1, drifts=True, rounding=1e-6)
    report = report_of("job.py", "numpy", [near, near], None)
    assert not report and report.drifts and report.within_rounding == 2
    assert "below what rounding explains, 1.0e-06" in str(report) and "mkl.enabled" not in str(report)
    report = report_of("job.py", "numpy", [near, entry("matmul b", 1, 1, drifts=True)], None)
    assert report.within_rounding == 1 and "1 of them by more than rounding explains" in str(report)


def entry(key: str, inputs: float, result: float, drifts: bool = False, rounding: float = 1e-12) -> dict[str, Any]:
    record = {
        "op": "matmul", "key": key, "library": "mkl", "algorithm": "gemm", "against": "numpy", "number": 1, "difference": 1e-9,
        "tolerance": 1e-12, "rounding": rounding, "drifts": drifts, "seconds": 0.0,
    }  # fmt: skip
    return {
        "key": key, "inputs": sketch(np.array([inputs])), "result": sketch(np.array([result])), "tolerance": 1e-12, "reason": "",
        "library": "mkl", "record": record,
    }  # fmt: skip


def test_drift_by_operands_alone() -> None:
    first = [entry("matmul a", 1, 1), entry("matmul b:F", 1, 1), entry("matmul c", 1.01, 3)]
    second = [entry("matmul a", 1, 1), entry("matmul b", 1, 1), entry("matmul c", 1, 2)]
    report = report_of("job.py", "numpy", first, second)
    assert not report and report.first is None and report.inputs is not None and report.inputs.key == "matmul c"
    assert 0.2 < report.inputs.result < 0.4 and 0.005 < report.inputs.inputs < 0.02
    assert "the program enlarges rounding errors" in str(report) and report.diverged == 0
    assert report_of("job.py", "numpy", second, second)
    report = report_of("job.py", "numpy", first[:2], second)
    assert report and report.diverged == 3 and "from operation 3 on" in str(report)
    assert report_of("job.py", "numpy", second, [second[0], entry("matmul z", 1, 1)]).diverged == 2
    own = [entry("matmul a", 1, 5, drifts=True), *second[1:]]
    report = report_of("job.py", "numpy", own, second)
    assert report.first is not None and report.number == 1 and report.inputs is None and report.later == 0


def test_sketches(rng: np.random.Generator) -> None:
    x = rng.standard_normal((30, 20))
    assert apart(sketch(x), sketch(-x)) == 0 and apart(sketch([x, x]), sketch([x])) == np.inf
    assert apart(sketch(x), sketch(x * (1 + 1e-9))) < 1e-7
    for _ in range(20):
        y = x.copy()
        y.flat[rng.integers(y.size)] += 1.0
        assert apart(sketch(x), sketch(y)) > 1e-6
    assert apart(sketch(x * np.nan), sketch(x * np.nan)) == 0 and apart(sketch(x), sketch(x * np.inf)) == np.inf
    assert sketch(np.zeros((0, 3)))[0][0] == 0 and sketch(None) == [] and len(sketch((x, np.arange(3), None))) == 2
    assert apart(sketch(np.zeros(3)), sketch(np.zeros(3))) == 0 and apart(sketch(1j * x), sketch(x)) < 1e-15
