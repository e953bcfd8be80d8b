"""The parts of the check on a GPU that need no device: what it makes ready, and what it makes of rows."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gpu import machine as machines
from gpu import peers
from gpu.check import Check
from gpu.machine import ROOT, Machine, NotReady, compile_core
from gpu.results import Results


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    made = Machine()
    yield made
    made.close()
    assert not made.folder.exists()


def wheel(folder: Path, name: str, package: str, tag: str = "py3-none-any") -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as archive:
        archive.writestr(f"{package}/__init__.py", f"name = {name!r}\n")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


def test_wheels_of_what_is_not_installed_are_unpacked(machine: Machine, tmp_path: Path) -> None:
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheel(tmp_path, "from_a_wheel", "from_a_wheel_package")
    wheel(tmp_path, "its_own", "its_own_package", f"{here}-{here}-manylinux_2_28_{machines.platform.machine()}")
    wheel(tmp_path, "numpy", "numpy")
    (tmp_path / "from_a_wheel_package").mkdir()  # a folder of that name is not the package
    sys.path.append(str(tmp_path))
    wheel(tmp_path, "other_python", "other_python_package", "cp27-none-any")
    wheel(tmp_path, "other_machine", "other_machine_package", f"{here}-{here}-manylinux_2_28_s390x")
    machine.unpack(tmp_path)
    for name in ("from_a_wheel", "its_own"):
        assert importlib.import_module(f"{name}_package").name == name
        assert importlib.metadata.version(name) == "1.0"
    for name in ("other_python", "other_machine"):
        with pytest.raises(ImportError):
            importlib.import_module(f"{name}_package")
    assert str(machine.folder / "wheels") in os.environ["PYTHONPATH"]
    assert not (machine.folder / "wheels" / "numpy").exists()
    assert len(machine.notes) == 4


def test_the_core_is_there_already(machine: Machine) -> None:
    machine.build()
    assert machine.notes == ["the compiled core was there"]


def test_flags_are_those_of_the_build() -> None:
    text = (ROOT / "CMakeLists.txt").read_text()
    assert all(flag in text for flag in machines.FLAGS if flag not in ("-std=c++17", "-fPIC", "-fvisibility-inlines-hidden"))
    assert all(define.removeprefix("-D") in text for define in machines.DEFINES)
    assert all(name in text and all(flag in text for flag in flags) for name, flags in machines.SPECIAL.items())


def test_without_a_compiler_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotReady, match="there is no no-such-compiler"):
        compile_core(tmp_path, tmp_path / "objects")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(NotReady, match="cannot be built: false"):
        compile_core(tmp_path, tmp_path / "objects")


def test_what_becomes_of_a_row() -> None:
    results = Results(["A-1", "A-2", "A-3", "A-4", "A-5"])
    assert set(results.outcomes().values()) == {"not_reached"} and not results.complete()
    for row, outcomes in {"A-1": ["passed", "passed"], "A-2": ["passed", "failed"], "A-3": ["passed", "not_reached"], "A-4": ["passed", ""]}.items():
        for outcome in outcomes:
            results.recorder(row, "test").outcome = outcome
    last = results.recorder("A-5", "test")
    last.outcome = "passed"
    last.record()
    assert [*results.outcomes().values()] == ["proved", "refuted", "not_reached", "not_reached", "recorded"]
    assert not results.complete() and not Results([]).complete()
    only = Results(["A-1"])
    only.recorder("A-1", "test").outcome = "passed"
    assert only.complete()


class Item:
    """A test, as far as it is looked at."""

    def __init__(self, row: str | None) -> None:
        self.nodeid = f"test of {row}"
        self.marker = None if row is None else pytest.mark.gpu(row=row).mark

    def get_closest_marker(self, name: str) -> Any:
        return self.marker


def test_a_row_that_nobody_knows(pytestconfig: pytest.Config) -> None:
    check = Check(pytestconfig)
    check.pytest_collection_modifyitems([Item("BLAS-1"), Item(None)])  # type: ignore[list-item]
    with pytest.raises(pytest.UsageError, match="test of BLAS-99 names the row 'BLAS-99'"):
        check.pytest_collection_modifyitems([Item("BLAS-1"), Item("BLAS-99")])  # type: ignore[list-item]
    check.machine.close()


def test_a_peer_that_cannot_do_it_leaves_the_others_their_turns() -> None:
    def fails() -> None:
        raise ValueError("no such thing")

    def clock(function: Any, runs: int, warm: int) -> list[float]:
        function()
        return [2.0] * runs

    case = peers.Case("op", [4, 4], "float32", {"backline": lambda: None, "torch": fails, "cupy": lambda: None})
    lines = peers._in_turn(case, {"op": case.op, "shape": case.shape, "dtype": case.dtype}, clock, 2)
    assert [line.get("error") for line in lines] == [None, "ValueError: no such thing", None]
    assert [len(line.get("times_us", ())) for line in lines] == [2 * peers.RUNS, 0, 2 * peers.RUNS]
    assert peers.ratios(lines) == {"op float32 4x4": {"backline": 1.0, "cupy": 1.0}}
