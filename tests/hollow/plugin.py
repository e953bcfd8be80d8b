"""The plug-in that runs the rows of the check on a GPU with the true CuPy: ``python -m pytest -m gpu -p hollow.plugin --gpu-out=FOLDER``.

As in the rehearsal the numbers are the host's; `hollow.device` says what is true and what is not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hollow.device import begin

FOLDER = Path(tempfile.mkdtemp(prefix="backline-hollow-"))
DEVICE = begin(FOLDER)  # before anything imports CuPy

from rehearsal import stand_in  # noqa: E402  # after the device is in place

from gpu import check  # noqa: E402  # after the device is in place


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    check.machine = Hollowed("")


def pytest_unconfigure() -> None:
    import shutil

    shutil.rmtree(FOLDER, ignore_errors=True)


class Hollowed(stand_in.StandIn):
    """A machine with the true CuPy, and no device."""

    def prepare(self) -> None:
        from fakes.insert import inserted
        from hollow.machine import Hollow

        self.made = Hollow(self.folder, DEVICE)
        self.open.enter_context(inserted(**self.made.modules()))
        self.open.enter_context(self.made.without_libraries())
        self.notes.append("rehearsed with the true CuPy")
