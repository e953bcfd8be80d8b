"""The example plug-in, installed by pip; made-up plug-ins in folders of their own; and nothing of either left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import backline
from backline import libraries
from backline.engine import plan_caches
from backline.libraries import plugins
from support import forget_plugins, python

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [*os.environ]:
        if name.startswith("BACKLINE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BACKLINE_CONFIG", "")
    monkeypatch.setenv("BACKLINE_TUNING", "")
    (tmp_path / ".git").mkdir()  # the search for a project file stops here
    monkeypatch.chdir(tmp_path)
    forget_plugins()
    yield
    names = [*plugins.found()]
    forget_plugins()
    for name in names:
        if name in libraries._order:
            libraries.unregister(name)
    plan_caches.clear()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed in it, as pip does it."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "dist"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--no-warn-script-location", "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture
def installed(site: Path) -> Callable[..., Any]:
    """Run a program where the example is installed; warnings are errors."""

    def run(program: str, **env: str) -> Any:
        source = Path(backline.__file__).parents[1]
        setting = {"PYTHONPATH": os.pathsep.join([str(source), str(site)]), "PYTHONWARNINGS": "error", **env}
        return python(textwrap.dedent(program), env=setting)

    return run


Maker = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Make a distribution that `sys.path` leads to: ``make("name", {"plug": "package:ROW"}, {"package.py": "…"})``."""
    before = set(sys.modules)
    count = 0

    def distribution(
        name: str, points: dict[str, str] | str, files: dict[str, str | bytes] | None = None, version: str = "1.0"
    ) -> Path:
        nonlocal count
        count += 1
        folder = tmp_path / f"site{count}"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if isinstance(points, dict):
            points = f"[{plugins.GROUP}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(points)
        for path, text in (files or {}).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        monkeypatch.syspath_prepend(folder)
        return folder

    yield distribution  # type: ignore[misc]  # a function with optional arguments
    for module in set(sys.modules) - before:
        if not module.startswith("backline."):
            del sys.modules[module]
