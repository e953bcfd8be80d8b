"""cuDNN without a device: its heuristics and filters answer for a card that is described to them.

They run only where the marker is asked for (``make test-cudnn``): a stub of the driver is loaded into the process, which the tests
of other folders must not find there.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.described_cards import CARDS, DESCRIPTION, FUNCTIONS, NO_DEVICE
from fakes.idle_cudnn import Idle, idle

SOURCE = (
    "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in FUNCTIONS)
    + """
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "there is no device"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
"""
)


class Card(NamedTuple):
    """A card that is not there."""

    capability: tuple[int, int]
    described: Any


class Deviceless(NamedTuple):
    """cuDNN's frontend, cards by name, and what stands for the runs of plans."""

    module: Any
    cards: dict[str, Card]
    idle: Idle


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("cudnn").addoption("--cudnn-result", metavar="FILE", help="write there what cuDNN answered, as JSON")


@pytest.fixture(scope="session")
def answered(request: pytest.FixtureRequest, deviceless: Deviceless) -> Iterator[dict[str, Any]]:
    """Notes of the tests on cuDNN's answers; they go to the file that was asked for."""
    noted: dict[str, Any] = {}
    yield noted
    file = request.config.getoption("--cudnn-result", default=None)
    if file is not None:
        session = request.session
        versions = {"cudnn": deviceless.module.backend_version(), "frontend": deviceless.module.__version__}
        counts = {"passed": session.testscollected - session.testsfailed, "failed": session.testsfailed}
        lines = (
            f" {json.dumps(key)}: {json.dumps(value)}" for key, value in {"versions": versions, "tests": counts, **noted}.items()
        )
        Path(file).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "cudnn" in (config.option.markexpr or ""):
        return
    here, skip = Path(__file__).parent, pytest.mark.skip(reason="make test-cudnn runs it")
    for item in items:
        if here in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def deviceless(tmp_path_factory: pytest.TempPathFactory) -> Deviceless:
    """cuDNN, in a process where there is no device: the library of the driver is one that says so, unless there is a true one."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        folder = tmp_path_factory.mktemp("driver")
        source, library = folder / "stub.c", folder / "libcuda.so.1"
        source.write_text(SOURCE)
        compiler = os.environ.get("CC", "gcc")
        subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    from backline.libraries.cuda.common import bindings

    module = bindings.cudnn()  # which loads cuBLASLt first
    front = idle(tmp_path_factory.mktemp("idle"), module)  # before the frontend looks for any function
    cards = {}
    for name, other in CARDS.items():
        description = {**DESCRIPTION, "deviceName": name, **other}
        major, minor = divmod(description["deviceVer"] // 10, 10)
        cards[name] = Card((major, minor), module.create_device_properties(json.dumps(description)))
    return Deviceless(module, cards, front)
