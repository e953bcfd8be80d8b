"""`backline check kernels` on a library with a kernel that fails in every way there is: each is found, and refused from then on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import backline
from backline.cli import app
from backline.kernel_check import runs
from backline.libraries import errata, errata_local

Maker = Callable[..., Path]

BROKEN = '''
import ctypes, os, time
import numpy as np
from backline.libraries.base import Algorithm, Library, PythonPlan, Refusal
from backline.libraries import LibraryInfo

ROW = LibraryInfo("broken", "Broken", "broken_library:Broken", families=("matmul",))

class Broken(Library):
    def reason(self): return ""
    def version(self): return "1.0"
    def algorithms(self, problem, threads):
        if problem.get("out"):
            yield Refusal("broken", "", "it makes its own output")
            return
        yield Algorithm(library="broken", name="sound")
        yield Algorithm(library="broken", name="kernel")
    def prepare(self, problem, algorithm):
        m = problem.m if algorithm.name == "kernel" else 0
        def run(a, b):
            if m == 2: return a @ b + 1
            if m == 3: ctypes.memset(b.ctypes.data + b.nbytes, 1, 1)
            if m == 4: ctypes.memset(a.ctypes.data - 1, 1, 1)
            if m == 5: ctypes.string_at(a.ctypes.data - 1, 1)
            if m == 6: ctypes.string_at(a.ctypes.data + a.nbytes, 1)
            if m == 7: ctypes.memset(8, 1, 1)
            if m == 8: time.sleep(1000)
            if m == 9: os._exit(0)
            if m == 10: a[...] = 0
            if m == 40: return np.empty((m, b.shape[1]))
            return a @ b
        return PythonPlan(run)
    def report(self): return {"path": __file__}
'''
FOUND = {
    2: "relative error", 3: "crashes (SIGSEGV)", 4: "writes 1 bytes before the start of an array", 5: "crashes (SIGSEGV)",
    6: "crashes (SIGSEGV)", 7: "crashes (SIGSEGV)", 8: "hangs", 9: "ends the process with status 0", 10: "changes an operand",
    40: "relative error",
}  # fmt: skip


@pytest.fixture
def broken(make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    folder = make("broken", {"broken": "broken_library:ROW"}, {"broken_library.py": BROKEN})
    source = Path(backline.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), str(folder)]))
    monkeypatch.setenv("BACKLINE_ERRATA", str(tmp_path / "errata.json"))
    errata.clear()
    monkeypatch.setattr(runs, "CASE_SECONDS", 10.0)
    monkeypatch.setattr("backline.cli.check.cases", lambda op: [f"matmul f64 {m}x{m} {m}x{m}" for m in (1, *FOUND, 11)])
    yield folder
    monkeypatch.undo()
    errata.clear()


def offered(m: int) -> set[str]:
    choice = backline.explain("matmul", np.ones((m, m)), np.ones((m, m)))
    return {c.algorithm for c in choice.candidates if c.library == "broken" and c.verdict != "refused"}


def test_what_a_broken_kernel_does_is_found_and_refused(broken: Path, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["check", "kernels", "--library", "broken", "--seconds", "600", "--keep"])
    assert found.exit_code == 1, found.output
    lines = [line.split(": ", 1)[1] for line in found.output.splitlines() if line.startswith("    new: ")]
    assert len(lines) == len(FOUND), found.output
    for (m, what), line in zip(FOUND.items(), lines, strict=True):
        assert line.startswith(f"matmul f64 {m}x{m} {m}x{m} by kernel {what}"), found.output
    rows = errata_local.local_rows()
    assert {row.problem for row in rows} == {f"matmul f64 {m}x{m} {m}x{m}" for m in FOUND}
    assert all(row.library == "broken" and row.algorithm == "kernel" and row.evidence for row in rows)
    # From now on these alone are refused, with the reason; the library's other algorithm goes on.
    for m in (1, 11, *FOUND):
        assert offered(m) == ({"sound"} if m in FOUND else {"sound", "kernel"})
    reasons = [c.reason for c in backline.explain("matmul", np.ones((8, 8)), np.ones((8, 8))).candidates]
    assert any("erratum local-broken-" in reason and "hangs" in reason for reason in reasons)
    # A second check knows them, and has nothing new; forgotten, they are offered again.
    again = CliRunner().invoke(app, ["check", "kernels", "--library", "broken", "--seconds", "600"])
    assert again.exit_code == 0 and again.output.count("known on this machine: ") == len(FOUND), again.output
    forgotten = CliRunner().invoke(app, ["check", "kernels", "--forget"])
    assert forgotten.exit_code == 0 and f"{len(FOUND)} errata" in forgotten.output
    assert offered(8) == {"sound", "kernel"} and not (tmp_path / "errata.json").exists()


def test_a_time_limit_ends_the_check(broken: Path) -> None:
    outcome = runs.run(runs.Job("broken"), ["matmul f64 1x1 1x1"] * 100_000, 3.0)
    assert outcome.reason == "the time is over" and not outcome.findings and outcome.cases < 100_000


def test_a_case_that_cannot_be_checked_is_a_finding_and_the_others_go_on(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["matmul f64 3x3 3x3", "linalg.inv f64 3x4", "matmul f64 2x2 2x2"]
    outcome = runs.run(runs.Job("numpy"), lines, 120)
    assert (outcome.cases, outcome.reason) == (3, "")
    (found,) = outcome.findings
    assert (found.op, found.problem, found.algorithm, found.new) == ("linalg.inv", lines[1], "", True)
    assert found.what.startswith("cannot be checked: ") and runs.local_rows(outcome, "today") == []  # no algorithm is to blame
    monkeypatch.setattr("backline.cli.check.cases", lambda op: lines)
    done = CliRunner().invoke(app, ["check", "kernels", "--library", "numpy", "--seconds", "120", "--keep"])
    assert done.exit_code == 1 and f"new: {lines[1]} cannot be checked: " in done.output, done.output
    assert not (tmp_path / "errata.json").exists()


def listing(folder: Path, line: str) -> None:
    """Have a line run by the library before it lists anything."""
    file = folder / "broken_library.py"
    at = "    def algorithms(self, problem, threads):\n"
    assert BROKEN.count(at) == 1
    file.write_text(BROKEN.replace(at, f"{at}        {line}\n"))


def test_a_child_that_dies_outside_of_algorithms_is_a_finding_and_the_others_go_on(broken: Path) -> None:
    listing(broken, "if problem.m == 12: os._exit(3)")
    outcome = runs.run(runs.Job("broken"), [f"matmul f64 {m}x{m} {m}x{m}" for m in (11, 12, 13)], 120)
    (found,) = outcome.findings
    assert found.what == "ends the process with status 3 outside of any algorithm" and found.problem == "matmul f64 12x12 12x12"
    assert (outcome.cases, outcome.runs, outcome.reason) == (3, 4, "")


def test_a_child_that_dies_at_once_is_no_success(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_CHILD", "import os; os._exit(3)")
    done = CliRunner().invoke(app, ["check", "kernels", "--library", "broken", "--seconds", "60"])
    assert done.exit_code == 1 and "ends the process with status 3 before its first case" in done.output, done.output


def test_after_a_crash_each_algorithm_of_each_problem_runs_once(broken: Path) -> None:
    # Both Problems of a case, with and without `out`, are run by the algorithm that crashes.
    file = broken / "broken_library.py"
    file.write_text(BROKEN.replace('if problem.get("out"):', "if False:").replace("def run(a, b):", "def run(a, b, out=None):"))
    outcome = runs.run(runs.Job("broken"), ["matmul f64 7x7 7x7"], 120)
    crashes = [(f.problem, f.algorithm) for f in outcome.findings if "SIGSEGV" in f.what]
    assert len(crashes) == 2 and len({problem for problem, _ in crashes}) == 2, outcome
    assert {algorithm for _, algorithm in crashes} == {"kernel"} and outcome.runs == 4


def test_what_cannot_be_prepared_is_no_run(broken: Path) -> None:
    file = broken / "broken_library.py"
    at = "    def prepare(self, problem, algorithm):\n"
    file.write_text(BROKEN.replace(at, f"{at}        if algorithm.name == 'kernel': raise RuntimeError('not here')\n"))
    done = CliRunner().invoke(app, ["check", "kernels", "--library", "broken", "--seconds", "120"])
    count = len(FOUND) + 2
    assert done.exit_code == 0 and f"{count} runs, {count} not run: nothing new" in done.output, done.output


def test_names_of_rows_tell_builds_apart() -> None:
    finding = runs.Finding(runs.Job("broken"), "matmul", "matmul f64 2x2 2x2", "kernel", "hangs", (), False)
    one = runs.Outcome(findings=[finding], build="one")
    names = [row.id for outcome in (one, replace(one, build="two"), one) for row in runs.local_rows(outcome, "today")]
    assert names[0] == names[2] != names[1] and all(len(name) >= len("local-broken-") + 12 for name in names)
