"""XNNPACK: search for the file, detection of its interface by trials, checks, and its handlers."""

from __future__ import annotations

import os
import warnings
from typing import Any, ClassVar

from ...native.library_search import search
from ...native.shared_library import NativeLibrary
from ...problems.conv_problem import ConvProblem
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ..base import FileLibrary, Handler, Planner
from ..probing.probe_cache import prove_found
from . import xnnpack_layers
from .interface import EARLY, Interface, Xnnpack, trials, wrong

__all__ = ["XNNPACK"]

SECONDS = 20  # for one interface to be tried
RIGHT = 0  # exit status of a trial

# Of packed layers, where shapes keep changing: calls of one, and operations of one that is worth a Plan of its own at once.
PACKED_AFTER, PACKED_FLOPS = 16, 1e8


def _handler(algorithms: Any, prepare: Any) -> Handler:
    """One whose Plans of packed layers, which have an operator with weights of its own, are for shapes that come often."""
    return Handler(algorithms, prepare, one_shape=PACKED_AFTER, one_shape_flops=PACKED_FLOPS, one_shape_if=lambda p: p.packed)


class XNNPACK(FileLibrary):
    """libXNNPACK of the system, such as Debian's libxnnpack0; float32 convolutions and products with constant weights."""

    handlers: ClassVar = {
        ConvProblem: _handler(xnnpack_layers.conv_algorithms, xnnpack_layers.prepare_conv),
        MatmulProblem: _handler(xnnpack_layers.product_algorithms, xnnpack_layers.prepare_product),
        LinearProblem: _handler(xnnpack_layers.product_algorithms, xnnpack_layers.prepare_product),
    }
    xnn: Xnnpack | None = None

    # loading

    def load(self) -> str:
        proof = prove_found(self, search(self.spec))
        if proof.reason:
            return proof.reason
        interface = Interface.read(proof.facts.get("interface", ""))
        if interface is None:
            return "which interface it has is found by trying, which takes a process that may crash, and none can be started"
        xnn = Xnnpack(NativeLibrary(proof.path), interface)
        amiss = proof.replaced()
        if amiss:
            return amiss
        for count in xnn.pools.counts():
            amiss = wrong(xnn, count)
            if amiss:
                return f"{proof.path} {amiss}"
        self.xnn, self.threaded = xnn, bool(xnn.pools.name)
        self.facts = {"pool": xnn.pools.name, "config": f"the {'older' if interface in EARLY else 'newer'} {interface}"}
        return ""

    def test(self, path: str) -> dict[str, str]:
        """Returns the interface of a library file, or the reason why it cannot be used."""
        tried = _tried(NativeLibrary(path))
        return {"reason": "", "interface": tried} if Interface.read(tried) else {"reason": tried}

    def version(self) -> str | None:
        """Returns None: XNNPACK does not report its version."""
        return None

    def context(self, planner: Planner) -> Xnnpack:
        assert self.xnn is not None
        return self.xnn


def _tried(native: NativeLibrary) -> str:
    """In a child process of its own: which interface a file has, found by children of that; else what is wrong."""
    ended = []
    for interface in trials(native):
        status = _try(native, interface)
        if status == RIGHT:
            return str(interface)
        ended.append(f"{interface}: {'crashed' if status < 0 else _WRONG.get(status, 'failed')}")
    return f"{native.path} has none of the interfaces that are known ({'; '.join(ended)})"


_WRONG = {1: "a call failed", 2: "wrong result"}


def _try(native: NativeLibrary, interface: Interface) -> int:
    """Exit status of a child that tries an interface; that of a crash is negative."""
    import faulthandler
    import signal

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads, such as those of NumPy's BLAS; none of them is needed
        child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.disable()  # a crash is an answer
            signal.alarm(SECONDS)  # a wrong one may wait for ever
            status = 2 if wrong(Xnnpack(native, interface), 1) else RIGHT
        except RuntimeError:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
