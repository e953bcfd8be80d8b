"""NNPACK: a file of its own where there is one, or the copy inside PyTorch while PyTorch is imported."""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import ClassVar

from ...native.shared_library import NativeLibrary
from ...problems.conv_problem import ConvProblem
from .. import presence
from ..base import FileLibrary, Handler, Planner
from ..probing.probe_cache import prove_found
from ..pthreadpool import Pools
from .nnpack_conv import check, conv_algorithms, prepare_conv, status_text

__all__ = ["NNPACK"]


class NNPACK(FileLibrary):
    """A system's libnnpack, or the copy inside PyTorch once that is imported."""

    handlers: ClassVar = {ConvProblem: Handler(conv_algorithms, prepare_conv)}

    native: NativeLibrary | None = None
    pools: Pools | None = None
    _with_torch = False

    # loading

    def loaded(self) -> bool:
        self._look_again()
        return super().loaded()

    def reason(self) -> str:
        self._look_again()
        return super().reason()

    def _look_again(self) -> None:
        """PyTorch may be imported after somebody asked: then what was not there is."""
        if self._reason and not self._with_torch and "torch" in sys.modules:
            self._reason = None

    def load(self) -> str:
        self._with_torch = "torch" in sys.modules
        machine = platform.machine().lower()
        if machine not in ("x86_64", "amd64"):
            return f"it takes structures by value, and how {machine} passes them is not known here"
        proof = prove_found(self, presence.find(self.info))
        return proof.reason or self._open(proof.path) or proof.replaced()

    def test(self, path: str) -> dict[str, str]:
        return {"reason": self._open(path)}

    def _open(self, path: str) -> str:
        """Load and check a file; what is wrong with it, or an empty string."""
        native = NativeLibrary(path)
        if not native.address("nnp_convolution_inference"):
            return f"{path} exports no nnp_convolution_inference"
        status = native.call(native.address("nnp_initialize"), restype=ctypes.c_int)
        if status:
            return f"{path} does not initialise: {status_text(status)}"
        pools = Pools(native)
        for count in pools.counts():
            wrong = check(native, pools.get(count))
            if wrong:
                return f"{path} {wrong} on {count} thread{'s' if count > 1 else ''}"
        self.native, self.pools, self.facts = native, pools, {"pool": pools.name}
        return ""

    def version(self) -> str | None:
        """It does not tell one."""
        return None

    def context(self, planner: Planner) -> tuple[NativeLibrary, Pools]:
        assert self.native is not None and self.pools is not None
        return self.native, self.pools
