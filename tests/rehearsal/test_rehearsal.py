"""The check on a GPU, run by stand-ins for CuPy and the bindings: its rows' own code runs, passes, and sees what is done wrong.

What a stand-in cannot show is how a device's arithmetic errs, how long it takes and whether the vendor's libraries take what they
are given; the rows ask for these on a device only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpu.check import NO_TORCH, NOT_REACHED
from gpu.rows import ROWS

TESTS = Path(__file__).parents[1]
RECORDED = {"BLAS-3", "BLAS-12", "PERF-1", "PERF-2", "PERF-3", "PERF-4", "PERF-5", "CALL-1"}

needs_bindings = pytest.mark.usefixtures("bindings")


@pytest.fixture(scope="module")
def bindings() -> None:
    """CI installs them, as for every test of these libraries."""
    pytest.importorskip("nvmath.bindings.cusolverDn")
    pytest.importorskip("cudnn")


class Run(NamedTuple):
    """A run of the check that is over."""

    status: int
    printed: str
    folder: Path

    @property
    def found(self) -> dict[str, Any]:
        (path,) = self.folder.glob("gpu-*.json")
        made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return made

    @property
    def outcomes(self) -> dict[str, str]:
        return {row["id"]: row["outcome"] for row in self.found["rows"]}


def run(folder: Path, *arguments: str, rehearsed: bool = True, out: bool = True, **variables: str) -> Run:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    path = os.pathsep.join(p for p in (str(TESTS), env.get("PYTHONPATH", "")) if p)
    # One thread each: the matrices are small.
    env |= {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **variables}
    plugins = ["-p", "no:cacheprovider", *(["-p", "rehearsal.stand_in"] if rehearsed else [])]
    where = [f"--gpu-out={folder}"] if out else []
    command = [sys.executable, "-m", "pytest", "-m", "gpu", *plugins, *where, *arguments]
    done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True, check=False, timeout=900)
    return Run(done.returncode, done.stdout + done.stderr, folder)


@needs_bindings
def test_every_row_has_a_test_and_its_code_runs(tmp_path: Path) -> None:
    """In one run, which takes half a minute: the rows, the files, and the columns of peers that are not there."""
    whole = run(tmp_path)
    expected = {name: "recorded" if name in RECORDED else "proved" for name in ROWS}
    assert whole.outcomes == expected, whole.printed[-6000:]
    assert whole.status == 0 and f"proved {len(ROWS) - len(RECORDED)}:" in whole.printed
    files_are_as_they_should(whole)
    libraries = {timing["library"] for timing in whole.found["timings"] if timing["row"].startswith("PERF")}
    assert libraries == {"backline", "cupy"}, "PyTorch cannot be imported in a rehearsal"


def files_are_as_they_should(whole: Run) -> None:
    """Their names and sizes, and what the file of results has."""
    names = {re.sub(r"-\d{8}", "-DATE", path.name) for path in whole.folder.iterdir()}
    card = "h100-80gb-hbm3"
    assert names == {f"gpu-{card}-DATE.json", f"gpu-{card}-DATE.log", f"cudnn_device_{card}.json"}
    assert all(path.stat().st_size < 1 << 20 for path in whole.folder.iterdir())
    found = whole.found
    assert list(found) == sorted(found) and found["schema"] == 2 and found["machine"]["rehearsed"] is True
    assert found["deadline_hit"] is False and found["wall_s"] > 0
    for row in found["rows"]:
        assert (
            set(row) == {"id", "outcome", "expected", "observed", "evidence", "missing", "seconds"}
            and row["expected"]
            and row["observed"]
        )
    (path,) = whole.folder.glob("gpu-*.json")
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r'^  \{"evidence".*"id": "[A-Z]+-\d+".*\}', text, re.M)) == len(ROWS), "one row on each line"
    timing = found["timings"][0]
    assert {"op", "shape", "dtype", "library", "algorithm", "median_us", "min_us", "runs", "cold_cache"} <= set(timing)
    assert {"cublas", "cudnn", "package numpy"} <= set(found["versions"])
    assert {str(n) for n in range(1, 14)} <= set(found["findings"])


WRONG_NUMBERS = {
    "BLAS-1",
    "CONV-3",
    "FFT-2",
    "LA-1",
    "LA-13",
    "SDPA-8",
    "SP-1",
    "ELEM-1",
    "ELEM-2",
    "ELEM-3",
    "SDPA-12",
    "STR-2",
    "STR-4",
    "ARR-1",
}
WRONG_CHOICES = {"BLAS-2", "CONV-2", "FFT-3", "LA-3", "STR-1"}


@needs_bindings
@pytest.mark.parametrize(("fault", "rows"), [("numbers", WRONG_NUMBERS), ("choices", WRONG_CHOICES)])
def test_what_is_done_wrong_is_seen(fault: str, rows: set[str], tmp_path: Path) -> None:
    done = run(tmp_path, "--fault", fault, "--gpu-rows", ",".join(sorted(rows)))
    assert {name for name, outcome in done.outcomes.items() if outcome == "refuted"} == rows, done.printed[-6000:]
    assert done.status == 1
    refuted = next(row for row in done.found["rows"] if row["outcome"] == "refuted")
    assert "test_" in refuted["evidence"], "the failure is told"


@needs_bindings
def test_rows_after_a_lost_device_are_not_reached(tmp_path: Path) -> None:
    done = run(tmp_path, "--fault", "lost", "--gpu-rows", "ENV-3,BLAS-1,FFT-2")
    assert [done.outcomes[name] for name in ("ENV-3", "BLAS-1", "FFT-2")] == ["proved", "refuted", "not_reached"]
    later = next(row for row in done.found["rows"] if row["id"] == "FFT-2")
    assert re.search(r"the device was lost in .*test_blas\.py::.*misaligned address.*--gpu-rows", later["evidence"]), later
    assert done.status == 1


def test_without_a_gpu_it_fails_and_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, rehearsed=False, out=False, TMPDIR=str(tmp_path))
    assert done.status == 1 and "the check on a GPU cannot begin: " in done.printed
    assert re.search(r"there is no GPU|CuPy cannot be imported|CuPy is not installed", done.printed)
    (folder,) = tmp_path.glob("backline-gpu-check-*")
    assert f"{folder}/gpu-none-" in done.printed, "a folder that nobody named is printed"
    done = done._replace(folder=folder)
    assert set(done.outcomes.values()) == {"not_reached"} and set(done.outcomes) == set(ROWS)


@needs_bindings
def test_what_comes_after_the_deadline_is_not_reached_and_not_refuted(tmp_path: Path) -> None:
    done = run(tmp_path, "--gpu-deadline", "0", "--gpu-rows", "ENV-3,BLAS-1", CI="true")
    wanted = {"ENV-3": "not_reached", "BLAS-1": "not_reached"}
    assert done.outcomes == dict.fromkeys(ROWS, "left_out") | wanted and done.found["deadline_hit"] is True
    assert done.status == NOT_REACHED and "not reached 2: ENV-3 BLAS-1" in done.printed and "--gpu-deadline" in done.printed
    assert "refuted" not in done.printed


WITH_CUPY_ALONE = {"ENV-1", "ENV-2", "ENV-3", "TRI-2", "ELEM-1", "PERF-5"}


@needs_bindings
def test_cupy_alone_is_enough(tmp_path: Path) -> None:
    done = run(tmp_path, "--lacking=all")
    expected = dict.fromkeys(ROWS, "unavailable") | {name: "recorded" if name in RECORDED else "proved" for name in WITH_CUPY_ALONE}
    assert done.outcomes == expected, done.printed[-6000:]
    assert done.status == 0 and f"something is missing {len(ROWS) - len(WITH_CUPY_ALONE)}: " in done.printed
    needed = {need for row in ROWS.values() for need in row.needs if " >= " not in need} - {"two devices", "no MAGMA"}
    assert needed <= {*done.found["missing"]} and all(f"missing: {need}: " in done.printed for need in needed)
    first = next(row for row in done.found["rows"] if row["id"] == "ENV-1")
    assert "cudnn" in first["missing"], "tests of a row that is proved name what they lacked"


@needs_bindings
def test_rows_without_a_part_of_what_their_tests_need(tmp_path: Path) -> None:
    """Without cuDNN and Triton no test is run that asks for them by name."""
    rows = ("CONV-1", "SDPA-11", "SDPA-13")
    done = run(tmp_path, "--lacking=cudnn,cudnn_file,triton", f"--gpu-rows={','.join(rows)}")
    assert done.outcomes == dict.fromkeys(ROWS, "left_out") | dict.fromkeys(rows, "proved"), done.printed[-3000:]
    missing = {row["id"]: row["missing"] for row in done.found["rows"]}
    assert (missing["SDPA-11"], missing["SDPA-13"]) == ("triton; cudnn", "")


@needs_bindings
def test_a_row_that_does_not_come_back_is_given_up(tmp_path: Path) -> None:
    done = run(tmp_path, "--gpu-deadline", "-100")
    assert done.status == 3 and "given up" in done.printed and done.found["deadline_hit"] is True


@needs_bindings
def test_torch_that_a_plugin_has_imported_is_got_rid_of(tmp_path: Path) -> None:
    plugin = tmp_path / "brings_torch.py"
    plugin.write_text(f"import os, sys, types\nif {NO_TORCH!r} not in os.environ:\n    sys.modules['torch'] = types.ModuleType('torch')\n")
    path = os.pathsep.join(p for p in (str(tmp_path), str(TESTS), os.environ.get("PYTHONPATH", "")) if p)
    done = run(tmp_path / "out", "-p", "brings_torch", "--gpu-rows", "ENV-3", PYTHONPATH=path)
    assert done.outcomes == dict.fromkeys(ROWS, "left_out") | {"ENV-3": "proved"}, done.printed[-3000:]
    assert done.status == 0 and f"not asked for {len(ROWS) - 1}: " in done.printed, "some rows alone can succeed"
    plugin.write_text("import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n")
    done = run(tmp_path / "again", "-p", "brings_torch", PYTHONPATH=path)
    assert done.status == 1 and f"PyTorch is imported although {NO_TORCH} is set" in done.printed
