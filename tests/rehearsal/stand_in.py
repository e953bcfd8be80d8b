"""The plug-in that rehearses the check on a GPU: fakes stand where CuPy and the bindings would be, the rows run as they are.

``python -m pytest -m gpu -p rehearsal.stand_in --gpu-out=FOLDER``, with the folder of tests on PYTHONPATH. A file of results that
comes of it says that it was rehearsed. With ``--fault`` the stand-ins, or Backline, do something wrong: the rows have to see it. With
``--lacking`` some of the bindings are not there, or Triton is not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from gpu import check, peers
from gpu.machine import Machine, NotReady

FAULTS = ("numbers", "choices", "lost")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault", choices=FAULTS, default="", help="what is done wrong")
    parser.addoption("--lacking", default="", help="bindings that are not there, 'triton' too; 'all' for every one but CuPy")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    check.machine = StandIn(config.getoption("--fault"), config.getoption("--lacking"))


class StandIn(Machine):
    """A machine without a device."""

    rehearsed = True

    def __init__(self, fault: str, lacking: str = "") -> None:
        super().__init__()
        self.fault, self.lacking, self.open = fault, {*filter(None, lacking.split(","))}, ExitStack()
        self.made: Any = None

    def prepare(self) -> None:
        try:
            from fakes.gpu_machine import GpuMachine
            from fakes.insert import inserted
        except ImportError as error:
            raise NotReady(f"a rehearsal needs the bindings' packages: {error}") from error
        self.made = GpuMachine(self.folder)
        modules = self.made.modules()
        if self.lacking == {"all"}:
            self.lacking = {*modules, "triton"} - {"cupy"}
        self.open.enter_context(inserted(**{name: module for name, module in modules.items() if name not in self.lacking}))
        self.open.enter_context(self.made.without_libraries())
        self.leave_out(self.lacking)
        if self.fault:
            from rehearsal import faults

            faults.put_in(self.fault)
        self.notes.append(f"rehearsed by stand-ins{f', with a fault: {self.fault}' if self.fault else ''}")

    def leave_out(self, names: set[str]) -> None:
        """Have it found that some bindings' libraries, or Triton, are not there."""
        from backline.libraries import presence
        from backline.libraries.cuda.attention import kernel_compiler

        patch, why = self.open.enter_context(pytest.MonkeyPatch.context()), "left out of this rehearsal"
        for name in names - {"triton", "cudnn_file"}:  # the file of cuDNN is there if cuDNN is
            patch.setattr(presence.presence(name.lower().removesuffix("dn")), "_found", presence.Found(why, (), None))
        if "triton" in names:
            patch.setattr(kernel_compiler, "reason", lambda: f"Triton is {why}")

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
