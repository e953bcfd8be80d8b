"""The plug-in that rehearses the check on a GPU: fakes stand where CuPy and the bindings would be, the rows run as they are.

``python -m pytest -m gpu -p rehearsal.stand_in --gpu-out=FOLDER``, with the folder of tests on PYTHONPATH. A file of results that
comes of it says that it was rehearsed. With ``--fault`` the stand-ins, or Backline, do something wrong: the rows have to see it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from gpu import check, peers
from gpu.machine import Machine, NotReady

FAULTS = ("numbers", "choices")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault", choices=FAULTS, default="", help="what is done wrong")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--gpu-out"):
        raise pytest.UsageError("a rehearsal writes where --gpu-out says, never where results are")
    check.machine = StandIn(config.getoption("--fault"))


class StandIn(Machine):
    """A machine without a device."""

    rehearsed = True

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.open = fault, ExitStack()
        self.made: Any = None


    def prepare(self) -> None:
        try:
            from fakes.gpu_machine import GpuMachine
            from fakes.insert import inserted
        except ImportError as error:
            raise NotReady(f"a rehearsal needs the bindings' packages: {error}") from error
        self.made = GpuMachine(self.folder)
        self.open.enter_context(inserted(**self.made.modules()))
        self.open.enter_context(self.made.without_libraries())
        if self.fault:
            from rehearsal import faults

            faults.put_in(self.fault)
        self.notes.append(f"rehearsed by stand-ins{f', with a fault: {self.fault}' if self.fault else ''}")

    def close(self) -> None:
        self.open.close()
        super().close()

    def clock(self, function: Callable[[], Any], runs: int = 10, warm: int = 3, flush: bool = True) -> list[float]:
        return super().clock(function, min(runs, 2), min(warm, 1), flush)

    def peers(self, sections: list[str], seconds: float) -> dict[str, Any]:
        # In this process, where PyTorch cannot be imported: its columns stay empty.
        def once(function: Callable[[], Any], **given: int) -> list[float]:
            return Machine.clock(self, function, 1, 0)

        return {name: peers.measure(name, self.cupy(), once, None, rehearsed=True) for name in sections}
