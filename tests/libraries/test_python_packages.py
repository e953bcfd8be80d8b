"""Packages of Python behind backends, with stand-ins on the path; MLX as a Mac has it."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from backline.errors import BackendUnavailable
from backline.libraries import presence, python_packages
from backline.libraries.presence import unavailable

MLX = """
__version__ = "0.32.4"
gpu = "gpu"
class metal:
    is_available = staticmethod(lambda: {metal})
    device_info = staticmethod(lambda: {{"device_name": "Apple M1"}})
{more}
"""
NEWER = "def device_info(device): return {'device_name': 'Apple M2' if device == gpu else '?'}"


@pytest.fixture(autouse=True)
def _as_new(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlx"]:  # the true one, in another test
        monkeypatch.delitem(sys.modules, name)
    for name in ("mps", "opt_einsum"):
        presence.presence(name).forget()
    yield
    for name in ("mps", "opt_einsum"):
        presence.presence(name).forget()


def only(folder: Path) -> None:
    """Leave out the folders where MLX is installed: parts of a package without an __init__.py come together."""
    sys.path[:] = [str(folder), *(path for path in sys.path if not (Path(path) / "mlx").is_dir())]


def mlx(folder: Path, text: str) -> presence.Presence:
    only(folder)
    (folder / "mlx").mkdir(exist_ok=True)
    (folder / "mlx" / "core.py").write_text(text)
    found = presence.presence("mps")
    found.forget()
    return found


# --- MLX: a package without an __init__.py, as it is


def test_no_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    found = presence.presence("mps")
    assert not found.available()
    assert (found.version(), found.path, found.reason()) == (None, None, "there is no package mlx in this environment")
    assert not presence.mlx_importable()
    assert presence.metal_facts() == {}
    error = unavailable("mps", "get_name()")
    assert isinstance(error, BackendUnavailable)
    assert "pip install mlx" in error.remedy and "packages of this interpreter" in error.cause


@pytest.mark.parametrize(("more", "name"), [("", "Apple M1"), (NEWER, "Apple M2")])
def test_mlx_with_metal(more: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mlx(tmp_path, MLX.format(metal=True, more=more))
    monkeypatch.setattr(presence.python_packages, "gpu_cores", lambda: 10)
    assert found.available(), found.reason()
    assert (found.version(), found.path) == ("0.32.4", str(tmp_path / "mlx"))
    assert presence.mlx_importable()
    assert presence.metal_facts() == {"name": name, "cores": 10}
    assert "mlx.core" not in sys.modules


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (MLX.format(metal=False, more=""), "MLX finds no Metal device"),
        ("raise RuntimeError('no backend')", "cannot be imported: RuntimeError: no backend"),
        ("import no_such_module_at_all", "cannot be imported: ModuleNotFoundError"),
        ("import os; os.abort()", "crashes when it is tested (SIGABRT)"),
        ("raise SystemExit(3)", "ends the process that tests it"),
        ("print('noise')", "lacks a function"),
    ],
)
def test_mlx_that_does_not_work(text: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = mlx(tmp_path, text)
    assert not found.available()
    assert why in found.reason()
    assert found.version() is None
    assert presence.mlx_importable()  # "built", as the model calls it
    assert presence.metal_facts() == {}
    assert capfd.readouterr() == ("", "")


def test_a_folder_called_mlx(tmp_path: Path) -> None:
    only(tmp_path)
    (tmp_path / "mlx").mkdir()
    found = presence.presence("mps")
    assert not found.available()
    assert "no module core" in found.reason()
    assert not presence.mlx_importable()


def test_cores_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert python_packages.cores_in('{"SPDisplaysDataType": [{"sppci_cores": "8"}, {"sppci_model": "x"}, {"sppci_cores": "40"}]}') == 40
    for text in ("", "[]", "{}", '{"SPDisplaysDataType": []}', '{"SPDisplaysDataType": [{"sppci_cores": "many"}]}', "null"):
        assert python_packages.cores_in(text) == 0
    assert python_packages.gpu_cores() >= 0  # 0 where there is no system profiler


# --- opt_einsum


def test_opt_einsum_here() -> None:
    found = presence.presence("opt_einsum")
    assert found.available()
    assert found.version() == importlib.metadata.version("opt_einsum")
    assert found.path is not None and found.path.endswith("opt_einsum")


def test_opt_einsum_is_found_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opt_einsum", raising=False)
    (tmp_path / "opt_einsum").mkdir()
    (tmp_path / "opt_einsum" / "__init__.py").write_text("raise SystemExit('imported')")
    found = presence.presence("opt_einsum")
    assert found.available()
    assert found.path == str(tmp_path / "opt_einsum")
    assert "opt_einsum" not in sys.modules


def test_an_imported_package_tells_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("opt_einsum")
    module.__version__ = "9.9"  # type: ignore[attr-defined]  # a module of the test's own
    monkeypatch.setitem(sys.modules, "opt_einsum", module)
    assert python_packages.version("opt_einsum") == "9.9"
    assert python_packages.version("no_such_package") is None
    assert not presence.presence("opt_einsum").available()  # its origin is not told
    assert "without a specification" in presence.presence("opt_einsum").reason()


def test_opt_einsum_absent_or_a_mere_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opt_einsum", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = presence.presence("opt_einsum")
    assert (found.available(), found.version(), found.path) == (False, None, None)
    assert "there is no package opt_einsum" in found.reason()
    (tmp_path / "opt_einsum" / "__pycache__").mkdir(parents=True)  # what an uninstallation leaves
    found.forget()
    assert not found.available()
    assert "is a folder of that name, not the package" in found.reason()
    monkeypatch.setitem(sys.modules, "opt_einsum", None)  # how a program forbids an import
    found.forget()
    assert not found.available()


def test_an_import_hook_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hook:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "mlx":
                raise ImportError("forbidden here")

    monkeypatch.setattr(sys, "meta_path", [Hook, *sys.meta_path])
    assert "forbidden here" in presence.presence("mps").reason()


def test_a_package_is_looked_for_until_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Choice on a device asks; where it was not, it may have been installed since."""
    import importlib.util

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(python_packages, "_specs", {})
    assert "there is no package laterinstalled" in python_packages.find("laterinstalled")[2]
    (tmp_path / "laterinstalled").mkdir()
    (tmp_path / "laterinstalled" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    folder = str(tmp_path / "laterinstalled")
    assert python_packages.find("laterinstalled")[0] == folder
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: pytest.fail("it is known"))
    assert python_packages.find("laterinstalled")[0] == folder and "laterinstalled" not in sys.modules
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert python_packages.find("laterinstalled")[0] is None, "another path is another question"


def test_what_is_kept_of_packages_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(python_packages, "_specs", {})
    monkeypatch.setattr(python_packages, "SPECS", 2)
    for name in ("first_one", "second_one", "third_one"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        assert python_packages.find(name)[0] == str(tmp_path / name)
    assert len(python_packages._specs) == 1
