"""The parts of the check on a GPU that need no device: what it makes ready, and what it makes of rows."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from backline.libraries import presence
from gpu import check as checks
from gpu import machine as machines
from gpu import peers, test_peers
from gpu.arrays import described
from gpu.check import Check
from gpu.machine import ROOT, Machine, NotReady, compile_parts
from gpu.results import Results
from gpu.rows import ROWS


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


def test_the_compiled_parts_are_there_already(machine: Machine) -> None:
    machine.build()
    assert machine.notes == ["the compiled parts were there"]


def test_flags_and_files_are_those_of_the_build() -> None:
    text = (ROOT / "CMakeLists.txt").read_text()
    assert all(flag in text for flag in machines.FLAGS if flag not in ("-std=c++17", "-fPIC", "-fvisibility-inlines-hidden"))
    assert all(define.removeprefix("-D") in text for define in machines.DEFINES)
    alone = re.search(r"set_source_files_properties\((.*?)PROPERTIES COMPILE_OPTIONS (\S+)\)", text, re.S)
    assert alone is not None and {Path(name).name: [alone[2]] for name in alone[1].split()} == machines.SPECIAL
    listed = re.search(r"set\(shared (.*?)\)", text, re.S)
    assert listed is not None
    shared = {"${shared}": tuple(name.removeprefix("src/backline/") for name in listed[1].split())}
    modules = re.findall(r"python_add_library\((\w+) MODULE WITH_SOABI \S+( \S+)?\)", text)
    assert {name: shared[more.strip()] if more else () for name, more in modules} == machines.MODULES


def test_without_a_compiler_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotReady, match="there is no no-such-compiler"):
        compile_parts(tmp_path, tmp_path / "objects")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(NotReady, match="cannot be built: false"):
        compile_parts(tmp_path, tmp_path / "objects")


def test_every_file_is_compiled_once_and_linked_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    (tmp_path / "package").mkdir()
    made = compile_parts(tmp_path / "package", tmp_path / "objects")
    lines = log.read_text().splitlines()
    compiled = [re.search(r"-c (\S+) -o (\S+)", line) for line in lines]
    sources = [Path(each[1]).relative_to(machines.SOURCES).as_posix() for each in compiled if each]
    there = [
        path.relative_to(machines.SOURCES).as_posix()
        for name in machines.MODULES
        for path in (machines.SOURCES / name).glob("*.cpp")
    ]
    assert sorted(sources) == sorted([*there, *machines.MODULES["_kernels"]]), "those files are part of two"
    assert len({each[2] for each in compiled if each}) == len(sources)
    assert sum("-ffp-contract=off" in line for line in lines) == len(machines.SPECIAL)
    links = {Path(re.search(r"-o (\S+)", line)[1]).name.partition(".")[0]: line for line in lines if "-shared" in line}  # type: ignore[index]  # each has one
    assert [*links] == [*machines.MODULES] == [path.name.partition(".")[0] for path in made]
    more = machines.MODULES["_kernels"]
    assert all(f"_kernels/{Path(name).stem}.o" in links["_kernels"] for name in more)
    assert links["_kernels"].count(".o ") == sum(name.startswith("_kernels/") for name in there) + len(more)


def test_what_is_missing_is_named_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"ml_dtypes", "platformdirs", "cupy"}
    monkeypatch.setattr(machines, "_installed", lambda name: name not in absent)
    with pytest.raises(NotReady, match="pip install ml_dtypes platformdirs"):
        machine.look_for_packages()
    absent -= {"ml_dtypes", "platformdirs"}
    with pytest.raises(NotReady, match=r"CuPy is not installed in .*cupy-cuda13x.*cupy-cuda12x"):
        machine.look_for_packages()
    absent.clear()
    machine.look_for_packages()


def test_libraries_that_are_not_there_are_noted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Any:
        if name == "cudnn":
            raise RuntimeError("no cudnn\nanywhere")
        return types.SimpleNamespace(abs_path=f"/x/{name}.so")

    pathfinder = types.ModuleType("cuda.pathfinder")
    pathfinder.load_nvidia_dynamic_lib = load  # type: ignore[attr-defined]  # a module of our own
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    machine.preload()
    assert machine.notes == ["nvrtc: /x/nvrtc.so", "cublasLt: /x/cublasLt.so", "cudnn is not loaded: no cudnn anywhere"]
    machine.notes.clear()
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    machine.preload()
    assert len(machine.notes) == 1 and "cuda.pathfinder" in machine.notes[0]


def test_what_rows_need(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries.cuda.attention import kernel_compiler
    from backline.libraries.cuda.common import bindings

    monkeypatch.setattr(kernel_compiler, "reason", lambda: "no Triton")
    monkeypatch.setattr(machines, "_installed", lambda name: False)
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 1)
    monkeypatch.setitem(bindings.inserted, "cupy", types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime)))
    monkeypatch.setitem(bindings.inserted, "cufft", object())
    assert machine.missing("triton") == "no Triton" and "pip install jax" in machine.missing("jax")
    assert machine.missing("cufft") == "" and "one device" in machine.missing("two devices")
    runtime.getDeviceCount = lambda: 2
    assert machine.missing("two devices") == ""
    monkeypatch.setattr(bindings, "reason", lambda *names: f"no {names}")
    known = {"triton", "jax", "two devices", "no MAGMA", "cublas", "cublasLt", "cusolverDn", "cufft", "cudnn", "cusparseLt"}
    assert {need for row in ROWS.values() for need in row.needs if " >= " not in need} <= known
    assert machine.missing("cublas") == "no ('cublas',)"


@pytest.mark.parametrize(("need", "told", "missing"), [
    ("cusolver >= 11.7.2", "11.7.1", "cuSOLVER 11.7.2 or later is needed, and this is 11.7.1"), ("cusolver >= 11.7.2", "11.7.2", ""),
    ("cusolver >= 11.7.2", "12.0.0", ""), ("cusolver >= 11.7.2", None, ""), ("cublas >= 12.5", "12.4.5", "and this is 12.4.5"),
    ("cublas >= 12.5", "12.10.0", ""), ("cudnn >= 91501", 91002, "and this is 91002"), ("cudnn >= 91501", 92800, ""),
    ("capability >= 8.0", (7, 5), "compute capability 8.0 or later is needed, and this is 7.5"), ("capability >= 8.0", (10, 0), ""),
])  # fmt: skip
def test_what_is_too_old_is_missing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, need: str, told: Any, missing: str
) -> None:
    monkeypatch.setattr(machine, "device", lambda: types.SimpleNamespace(capability=told))
    monkeypatch.setattr(
        presence.presence(need.split()[0]) if "capability" not in need else machine, "version", lambda: told, raising=False
    )
    found = machine.missing(need)
    assert missing in found and bool(found) == bool(missing)


def test_variables_that_would_change_what_rows_see_are_removed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ |= {"NVIDIA_TF32_OVERRIDE": "0", "TORCH_BLAS_PREFER_CUBLASLT": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    machine.settle_variables()
    assert not {"NVIDIA_TF32_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT"} & {*os.environ} and "CUBLAS_WORKSPACE_CONFIG" in os.environ
    assert os.environ["CUPY_CACHE_DIR"].startswith(str(machine.folder))
    assert machine.notes[0] == "NVIDIA_TF32_OVERRIDE=0 was set, and is not for the check" and len(machine.notes) == 2


def test_timings_that_are_ended_are_not_reached(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: Any, **given: Any) -> None:
        raise subprocess.TimeoutExpired("peers", 0.0)

    monkeypatch.setattr(subprocess, "run", ended)
    timed = machine.peers(["products"], 2.0)
    assert timed["late"] == "the timings did not end within 2 s" and not timed["products"]
    with pytest.raises(pytest.skip.Exception, match="not reached: the timings did not end"):
        test_peers.test_in_turn_with_peers(Results().recorder("PERF-1", "test"), timed, "products", None)


def test_a_description_of_a_device_is_read_however_it_is_written() -> None:
    text = '{"deviceVer": 900}'
    for serialized in (text, text + "\0", text.encode(), text.encode() + b"\0", [*text.encode(), 0]):
        assert described(serialized) == {"deviceVer": 900}


def test_what_becomes_of_a_row() -> None:
    """By what became of its tests."""
    tests = {
        "proved": ["passed", "passed"], "refuted": ["passed", "failed", "not_reached"], "not_reached": ["passed", "not_reached"],
        "begun": ["passed", ""], "recorded": ["passed"], "unavailable": ["unavailable", "unavailable"], "in part": ["passed", "unavailable"],
        "left out": ["left_out"], "some left out": ["passed", "left_out"], "some left": ["unavailable", ""], "without tests": [],
    }  # fmt: skip
    expected = {
        "proved": "proved", "refuted": "refuted", "not_reached": "not_reached", "begun": "not_reached", "recorded": "recorded",
        "unavailable": "unavailable", "in part": "proved", "left out": "left_out", "some left out": "not_reached",
        "some left": "not_reached", "without tests": "not_reached",
    }  # fmt: skip
    results = Results(tests)
    for row, outcomes in tests.items():
        for outcome in outcomes:
            recorder = results.recorder(row, "test")
            recorder.outcome = outcome
            if row == "recorded":
                recorder.record()
    assert results.outcomes() == expected and not results.complete()
    results.wanted = {"proved", "in part", "recorded"}
    assert set(results.outcomes().values()) == {"proved", "recorded", "left_out", "refuted"}, "what failed is told in any case"


@pytest.mark.parametrize(("outcomes", "complete"), [
    ([], False), (["passed"], True), (["passed", "unavailable", "left_out"], True), (["unavailable"], False), (["left_out"], False),
    (["passed", ""], False), (["passed", "failed"], False),
])  # fmt: skip
def test_what_succeeds(outcomes: list[str], complete: bool) -> None:
    """A row that was refuted or not reached does not, and neither does a run that proved nothing."""
    results = Results([f"A-{i}" for i, _ in enumerate(outcomes)])
    for i, outcome in enumerate(outcomes):
        results.recorder(f"A-{i}", "test").outcome = outcome
    assert results.complete() is complete


class Item:
    """A test, as far as it is looked at."""

    def __init__(self, row: str | None, *needs: str) -> None:
        self.nodeid = f"test of {row}"
        # Those of parameters, which name no row, come with the test's own.
        own = [pytest.mark.gpu(row=row).mark] if row else []
        self.markers = [*own, *([pytest.mark.gpu(needs=needs).mark] if needs else [])]

    def iter_markers(self, name: str) -> Any:
        return iter(self.markers)


class Lacking:
    """A machine without cuDNN and JAX."""

    notes: tuple[str, ...] = ()

    def missing(self, need: str) -> str:
        return f"no {need}" if need in ("cudnn", "jax") else ""

    def close(self) -> None:
        pass


@pytest.fixture
def check(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setattr(checks, "machine", Lacking())
    made = Check(pytestconfig)
    hook = types.SimpleNamespace(pytest_deselected=lambda items: None)
    made.config = types.SimpleNamespace(getoption=lambda name: "", hook=hook)  # type: ignore[assignment]  # what is looked at
    return made


def test_a_row_that_nobody_knows(check: Check) -> None:
    check.pytest_collection_modifyitems([Item("BLAS-1"), Item(None)])  # type: ignore[list-item]  # what is looked at
    with pytest.raises(pytest.UsageError, match="test of BLAS-99 names the row 'BLAS-99'"):
        check.pytest_collection_modifyitems([Item("BLAS-1"), Item("BLAS-99")])  # type: ignore[list-item]  # likewise


def test_tests_that_need_what_is_missing_are_taken_out(check: Check) -> None:
    items = [Item("CONV-2"), Item("BLAS-1"), Item("SDPA-5", "jax"), Item("ENV-3"), Item(None)]
    check.pytest_collection_modifyitems(items)  # type: ignore[arg-type]  # what is looked at
    assert [item.nodeid for item in items] == ["test of ENV-3", "test of BLAS-1", "test of None"]
    assert check.results.missing == {"cudnn": "no cudnn", "jax": "no jax"}
    outcomes = check.results.outcomes()
    assert (outcomes["CONV-2"], outcomes["SDPA-5"], outcomes["ENV-3"]) == ("unavailable", "unavailable", "not_reached")
    assert check.results.row("CONV-2")["missing"] == "cudnn"


def test_tests_that_nobody_asked_for_are_left_out(check: Check) -> None:
    items = [Item("BLAS-1"), Item("BLAS-2"), Item("CONV-2")]
    check.config.getoption = lambda name: "BLAS-1"  # type: ignore[method-assign]  # what is looked at
    check.pytest_collection_modifyitems(items)  # type: ignore[arg-type]  # likewise
    assert [item.nodeid for item in items] == ["test of BLAS-1"] and not check.results.missing, (
        "what others need is not looked for"
    )
    outcomes = check.results.outcomes()
    assert {name for name, outcome in outcomes.items() if outcome != "left_out"} == {"BLAS-1"}
    check.pytest_deselected([Item("BLAS-1")])  # type: ignore[list-item]  # by -k
    assert check.results.outcomes()["BLAS-1"] == "left_out" and not check.results.complete()
    check.config.getoption = lambda name: "BLAS-1,NONE-1"  # type: ignore[method-assign]  # what is looked at
    with pytest.raises(pytest.UsageError, match="--gpu-rows names the row 'NONE-1'"):
        check.pytest_collection_modifyitems([])


def test_an_import_of_torch_is_seen(tmp_path: Path) -> None:
    from gpu.test_environment import imported

    assert imported(tmp_path, "import numpy as xp", ["F.relu(made)"], ("torch", "jax")) == "[]"
    assert imported(tmp_path, "import numpy as xp", ["__import__('torch')"], ("torch", "jax")) == "['torch']"


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
