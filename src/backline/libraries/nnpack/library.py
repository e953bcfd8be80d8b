"""NNPACK, found: a file of its own where there is one, or the copy inside PyTorch, and that only while PyTorch is imported."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from typing import Any, cast

from ... import switches
from ...native import thread_team
from ...native.library_search import Finding
from ...native.shared_library import NativeLibrary
from ...problems import Problem
from ...problems.conv_problem import ConvProblem
from .. import presence
from ..base import Algorithm, FileLibrary, Refusal
from ..probing.probe_cache import prove_by_class
from ..pthreadpool import Pools
from .nnpack_conv import check, conv_algorithms, prepare_conv, status_text

__all__ = ["NNPACK"]


class NNPACK(FileLibrary):
    """A system's libnnpack, or the copy inside PyTorch once that is imported."""


    def __init__(self) -> None:
        self.finding: Finding | None = None
        self.native: NativeLibrary | None = None
        self.pools: Pools | None = None
        self._with_torch = False

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
        try:
            self.finding = presence.find(self.info)
            path = self.finding.path
            if path is None:
                return self.finding.reason
            proof = prove_by_class(self.name, path, 1 if thread_team.forked() else cast(int, switches.get("num_threads")))
            wrong = proof.reason or self._open(path) or proof.replaced()
        except (OSError, RuntimeError, ValueError) as error:
            # dlopen's own text, or a call that fails: a reason, not a crash.
            return f"{type(error).__name__}: {error}"
        if wrong:
            self.native = self.pools = None
        return wrong

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
        threads = 1 if thread_team.forked() or not pools.name else cast(int, switches.get("num_threads"))
        for count in dict.fromkeys((1, threads)):
            wrong = check(native, pools.get(count))
            if wrong:
                return f"{path} {wrong} on {count} thread{'s' if count > 1 else ''}"
        self.native, self.pools = native, pools
        return ""

    def version(self) -> str | None:
        """It does not tell one."""
        return None

    # problems

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        if not self.available() or self.native is None or self.pools is None:
            yield Refusal(self.name, "", f"not available: {self.reason()}")
            return
        yield from conv_algorithms(self.native, self.pools, problem, threads)

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        assert self.native is not None and self.pools is not None and isinstance(problem, ConvProblem)
        return prepare_conv(self.native, self.pools, problem, algorithm)

    def report(self) -> dict[str, Any]:
        reason = self.reason()
        facts: dict[str, Any] = {"name": self.name, "title": self.title, "available": not reason, "reason": reason}
        if reason:
            facts["how to get"] = self.how_to_get
        if self.finding is not None:
            facts |= {"path": self.finding.path, "found by": self.finding.step, "search": [str(s) for s in self.finding.steps]}
        if self.pools is not None:
            facts |= {"version": None, "pool": self.pools.name}
        return facts
