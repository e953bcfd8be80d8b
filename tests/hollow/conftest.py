"""A device that is not there, under the true CuPy. The tests run only where the marker is asked for (``make test-cupy``): CuPy and
what stands for the driver must not be in the process of other tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

collect_ignore = ["device.py", "machine.py", "plugin.py"]  # to look for doctests in them would import CuPy


class Here(NamedTuple):
    """CuPy, the device under it, and the machine that both are part of."""

    xp: Any
    device: Any
    machine: Any


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "cupy" in (config.option.markexpr or ""):
        return
    here, skip = Path(__file__).parent, pytest.mark.skip(reason="make test-cupy runs it")
    for item in items:
        if here in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Here:
    from hollow.device import begin

    folder = tmp_path_factory.mktemp("hollow")
    device = begin(folder)
    from hollow.machine import Hollow

    machine = Hollow(folder, device)
    return Here(machine.cupy, device, machine)


@pytest.fixture
def here(begun: Here) -> Iterator[Here]:
    """All libraries are there, and plans are made anew."""
    from fakes.insert import inserted

    with inserted(**begun.machine.modules()), begun.machine.without_libraries():
        yield begun
    begun.device.hollow_fail(0, 0)
