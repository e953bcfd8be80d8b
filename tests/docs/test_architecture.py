"""docs/architecture.md: its picture is drawn from the package as it is, and the files that it names exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "backline"


def test_the_picture_shows_the_package_as_it_is() -> None:
    spec = importlib.util.spec_from_file_location("architecture_picture", ROOT / "docs" / "architecture_picture.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    assert drawn == module.picture(), "python docs/architecture_picture.py > docs/architecture.svg"
    names = {name for layer in module.layers() for name in layer}
    parts = {p.stem for p in PACKAGE.iterdir() if (p.suffix == ".py" or (p / "__init__.py").is_file()) and p.name != "__init__.py"}
    assert parts - names == set()


def test_the_files_on_the_way_of_a_call_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = [name for row in re.findall(r"^\| \d \| (.*?) \|", text, re.M) for name in re.findall(r"`([^`]+)`", row)]
    assert len(files) >= 7
    assert [name for name in files if not list(PACKAGE.glob(name))] == []
