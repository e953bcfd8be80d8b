"""docs/dependencies.md: the sizes that it gives are those of what is installed here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([\w-]+) (\d[\w.]*)[^|]*\| ([\d.]+) MB", PAGE, re.MULTILINE)


def files_of(name: str) -> list[Path]:
    listed = importlib.metadata.distribution(name).files or []
    return [Path(str(file.locate())) for file in listed if file.suffix != ".pyc"]


def test_every_dependency_has_a_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {re.split(r"[><=;\[ ]", line)[0] for line in project["dependencies"]} == {name for name, _, _ in ROWS}


@pytest.mark.parametrize(("name", "version", "size"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_gives_the_size_that_is_installed(name: str, version: str, size: str) -> None:
    installed = importlib.metadata.version(name)
    if not installed.startswith(version):
        # Another version is of about that size; a page that is out by more than this misleads.
        low, high = 0.5, 2.0
    else:
        low, high = 0.9, 1.1
    measured = sum(path.stat().st_size for path in files_of(name) if path.is_file()) / 1e6
    assert low * float(size) <= measured + 0.05 and measured <= high * float(size) + 0.05


def test_onednn_is_there_three_times_as_the_page_says() -> None:
    names = [path for path in files_of("onednn-cpu-gomp") if path.name.startswith("libdnnl.so")]
    assert sorted(path.name for path in names) == ["libdnnl.so", "libdnnl.so.3", "libdnnl.so.3.2"]
    assert len({hashlib.sha256(path.read_bytes()).digest() for path in names}) == 1
    assert "The wheel holds its file three times" in PAGE
