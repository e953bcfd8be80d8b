"""`backline check kernels` on a library with a kernel that fails in every way there is: each is found, and refused from then on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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

class Broken(Library):
    name, title, families = "broken", "Broken", ("matmul",)
    def reason(self): return ""
    def version(self): return "1.0"
    def algorithms(self, problem, threads):
        if problem.get("out"):
            yield Refusal("broken", "", "it makes its own output")
            return
        yield Algorithm("broken", "sound")
        yield Algorithm("broken", "kernel")
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
    folder = make("broken", {"broken": "broken_library:Broken"}, {"broken_library.py": BROKEN})
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
