"""Lets the tests here import ``support``, the helpers that several folders share, and has the stand-ins of an H100 and its libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from fakes.gpu_machine import GpuMachine


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> GpuMachine:
    """Stand-ins of CuPy and of every library of an H100, not in place yet; they need the bindings, whose signatures they have."""
    for package in ("cudnn", "nvmath"):
        pytest.importorskip(package)
    from fakes.gpu_machine import GpuMachine

    return GpuMachine(tmp_path_factory.getbasetemp())


@pytest.fixture
def machine(made: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuMachine]:
    """The same, found where Backline looks for CuPy and the libraries."""
    from fakes.insert import inserted

    with inserted(**made.modules()), made.without_libraries():
        yield made
        monkeypatch.undo()  # else what a test patched of this would be put back after it has gone, and stay
