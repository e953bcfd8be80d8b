"""OpenMP runtimes: those of a list, those of this process, and those that could be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backline.libraries import openmp_runtimes, presence
from backline.libraries.in_process import LoadedLibrary
from backline.libraries.openmp_runtimes import Runtime
from backline.native import library_folders

Build = Callable[..., Path]


@pytest.fixture(autouse=True)
def _as_new() -> Iterator[None]:
    presence.presence("openmp").forget()
    openmp_runtimes._version.cache_clear()
    yield
    presence.presence("openmp").forget()
    openmp_runtimes._version.cache_clear()


def library(family: str, path: str = "", **facts: object) -> LoadedLibrary:
    return LoadedLibrary(family, "openmp", path or f"/x/{family}.so", **{"owner": "test", **facts})  # type: ignore[arg-type]  # facts of several types


def standin(build: Build, *functions: str) -> str:
    return str(build("libgomp.so.1", "".join(f"int {name}(void) {{ return 3; }}" for name in ("omp_get_max_threads", *functions))))


def test_kinds_and_order() -> None:
    found = openmp_runtimes.runtimes_of([
        library("libgomp", threads=2), library("openblas"), library("libiomp5", serves_openmp=True), library("libomp"),
        library("mkl.intel_thread"), library("tbb"),
    ])  # fmt: skip
    assert [runtime.kind for runtime in found] == ["Intel", "GNU", "LLVM"]
    assert [runtime.serves for runtime in found] == [True, False, False]
    assert [runtime.threads for runtime in found] == [None, 2, None]
    assert openmp_runtimes.runtimes_of([]) == []


@pytest.mark.parametrize(
    ("functions", "edition"),
    [
        ((), ""), (("omp_get_level",), "OpenMP 3.0"), (("omp_get_level", "omp_get_num_teams"), "OpenMP 4.0"),
        (("omp_get_max_task_priority", "omp_get_num_teams"), "OpenMP 4.5"),
        (("omp_get_supported_active_levels", "omp_get_level"), "OpenMP 5.0"), (("omp_get_max_teams",), "OpenMP 5.1"),
        (("omp_get_max_teams", "omp_get_device_from_uid"), "OpenMP 6.0"),
    ],
)  # fmt: skip
def test_the_edition_is_told_by_the_newest_function(functions: tuple[str, ...], edition: str, build: Build) -> None:
    (runtime,) = openmp_runtimes.runtimes_of([library("libgomp", standin(build, *functions), owner="system")])
    assert runtime.version == edition


def test_the_release_of_a_package_that_brought_it(build: Build) -> None:
    import importlib.metadata

    path = standin(build, "omp_get_level")
    release = importlib.metadata.version("numpy")
    (runtime,) = openmp_runtimes.runtimes_of([library("libgomp", path, owner="numpy")])
    assert runtime.version == f"OpenMP 3.0 (numpy {release})"
    for owner in ("no-such-package", "/opt/somewhere", "environment"):
        (runtime,) = openmp_runtimes.runtimes_of([library("libgomp", path, owner=owner)])
        assert runtime.version == "OpenMP 3.0"


def test_files_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    text = tmp_path / "libgomp.so.1"
    text.write_text("no library")
    for one in (library("libgomp", str(text)), library("libgomp", "/no/such/file"), library("libgomp", deleted=True)):
        (runtime,) = openmp_runtimes.runtimes_of([one])
        assert runtime.version == ""
        assert "of unknown version" in str(runtime)


def test_in_one_line() -> None:
    pair = [Runtime("Intel", "/a", "OpenMP 6.0 (intel-openmp 2026.0)", "intel-openmp", 4, True), Runtime("GNU", "/b", "", "torch", 2, False)]
    assert openmp_runtimes.describe(pair) == "Intel OpenMP 6.0 (intel-openmp 2026.0) from intel-openmp; GNU of unknown version from torch"
    assert openmp_runtimes.describe([]) == ""


def test_version_names_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp_runtimes, "loaded", lambda: ())
    assert openmp_runtimes.version() is None
    assert presence.presence("openmp").version() is None
    monkeypatch.setattr(openmp_runtimes, "loaded", lambda: (library("libgomp"), library("libomp", serves_openmp=True)))
    assert openmp_runtimes.version() == "LLVM of unknown version from test; GNU of unknown version from test"
    found = presence.presence("openmp")
    assert found.version() == openmp_runtimes.version()
    assert (found.available(), found.path) == (True, "/x/libomp.so")
    assert found.searched() == ("already in this process: /x/libomp.so", "already in this process: /x/libgomp.so")


def test_loadable_finds_each_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build: Build) -> None:
    monkeypatch.setattr(library_folders, "prefix_folders", lambda: [str(tmp_path / "lib")])
    monkeypatch.setattr(library_folders, "system_folders", lambda notes=None: [str(tmp_path)])
    assert not any(openmp_runtimes.loadable().values())
    Path(tmp_path / "libgomp.so.1").write_bytes(Path(standin(build)).read_bytes())
    (tmp_path / "lib").mkdir()
    Path(tmp_path / "lib" / "libiomp5.so").write_bytes(Path(standin(build)).read_bytes())
    Path(tmp_path / "libomp.so.5").write_text("spoilt")
    found = openmp_runtimes.loadable()
    assert {kind: bool(finding) for kind, finding in found.items()} == {"GNU": True, "LLVM": False, "Intel": True}
    assert "text file" in found["LLVM"].reason


def run(program: str) -> dict[str, object]:
    source = str(Path(openmp_runtimes.__file__).parents[2])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "KMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**clean, "PYTHONPATH": source}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


REAL = """
import ctypes, json, os
from dataclasses import asdict
from backline.libraries import openmp_runtimes, presence
before = [asdict(runtime) for runtime in openmp_runtimes.runtimes()]
found = presence.presence("openmp")
available = found.available()
tasks = len(os.listdir("/proc/self/task"))
after = [asdict(runtime) for runtime in openmp_runtimes.runtimes()]
path = openmp_runtimes.loadable()["GNU"].require()
library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
library.omp_set_num_threads(3)
loaded = openmp_runtimes.runtimes()
print(json.dumps({"before": before, "after": after, "available": available, "path": path, "version": found.version(),
                  "loaded": [asdict(runtime) for runtime in loaded], "tasks": len(os.listdir("/proc/self/task")) - tasks}))
"""


def test_the_real_runtime() -> None:
    answer = run(REAL)
    assert answer["before"] == answer["after"]  # asking whether one is there loads none
    assert answer["available"]
    gnu = [runtime for runtime in answer["loaded"] if runtime["kind"] == "GNU"]  # type: ignore[attr-defined]  # JSON of a child process
    here = next(runtime for runtime in gnu if os.path.samefile(runtime["path"], answer["path"]))  # type: ignore[arg-type]  # JSON of a child process
    assert here["threads"] == 3
    assert here["version"].startswith("OpenMP ")
    assert here["serves"]
    assert f"GNU {here['version']} from {here['owner']}" in str(answer["version"])
    assert answer["tasks"] == 0
