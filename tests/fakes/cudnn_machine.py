"""A machine with CuPy and cuDNN that are not there: fakes that share one log, arrays that lie as on a device."""

from __future__ import annotations

from typing import Any

import cudnn as real
import numpy as np

import backline
from backline import libraries, switches
from backline.engine.choose import planner
from backline.libraries.base import Algorithm
from backline.nn import functional
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.device_memory import placed
from fakes.graphs import Cudnn, Plan


class Machine:
    """Fakes that share one log."""

    def __init__(self) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.cupy, self.cudnn = CuPy(H100, log=self.log), Cudnn(real, self.log)
        self.free, self.rng = 1 << 40, np.random.default_rng(0)
        alloc = self.cupy.cuda.alloc

        def bounded(size: int) -> Any:
            if size > self.free:
                raise MemoryError(size)
            return alloc(size)

        self.cupy.cuda.alloc = bounded
        self.cupy.cuda.get_elapsed_time = lambda begin, end: self.plan(self.cudnn.used()[-1]).ms

    def plan(self, name: str) -> Plan:
        return next(plan for plan in self.cudnn.plans if plan.name == name)

    def array(self, *shape: int, dtype: Any = np.float32, last: bool = False) -> ndarray:
        values = self.rng.standard_normal(shape).astype(dtype)
        if last:
            values = np.moveaxis(np.moveaxis(values, 1, -1).copy(), -1, 1)
        return aligned(values)

    def names(self) -> list[str]:
        """Names of the calls since this was last asked."""
        found = [name for name, _ in self.log]
        self.log.clear()
        return found

    def prepared(self, name: str = "conv_tf32", **given: Any) -> tuple[Any, tuple[ndarray, ndarray]]:
        x, w = self.array(2, 4, 6, 6), self.array(8, 4, 3, 3)
        with switches.scope(given):
            problem = backline.explain(functional.conv2d, x, w).problem
            return libraries.get("cudnn").prepare(problem, Algorithm(library="cudnn", name=name), planner), (x, w)


def aligned(values: np.ndarray[Any, Any]) -> ndarray:
    """As memory of a device, strides as they are."""
    return ndarray(placed(values))


def same(found: Any, wanted: np.ndarray[Any, Any], dtype: Any = np.float32) -> None:
    tolerance = {2: 2e-2, 4: 1e-4, 8: 1e-10}[np.dtype(dtype).itemsize]
    assert isinstance(found, ndarray) and found.host.dtype == dtype
    assert np.allclose(found.host.astype(float), wanted.astype(float), rtol=tolerance, atol=tolerance)
