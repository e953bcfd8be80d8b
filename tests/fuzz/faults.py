"""Faults put into a library on purpose, to see that the fuzzer finds them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from backline import libraries

Plan = Callable[..., Any]


def _one_element(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    result = plan(*arrays)
    if result.size and np.isfinite(result.flat[-1]):
        result.flat[-1] *= 1 + 2.0**-8
    return result


def _not_written(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    result = np.array(plan(*arrays))
    if result.size:
        result.flat[0] = np.nan
    return result


def _bare_error(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    raise TypeError("unsupported operand type(s)")


def _crash(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    return ctypes.string_at(0)


def _hang(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    time.sleep(3600)


def _reads_further(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    """One element behind the last operand, where that is contiguous."""
    x = arrays[1]
    if x.flags.c_contiguous:
        ctypes.string_at(x.ctypes.data + x.nbytes, x.itemsize)
    return plan(*arrays)


def _writes_operand(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    result = plan(*arrays)
    if arrays[0].size and arrays[0].flags.writeable:
        arrays[0].flat[0] += 1
    return result


def _wrong_shape(plan: Plan, arrays: tuple[Any, ...]) -> Any:
    return plan(*arrays)[None]


FAULTS = {
    "one element": _one_element, "not written": _not_written, "bare error": _bare_error, "crash": _crash, "hang": _hang,
    "reads further": _reads_further, "writes operand": _writes_operand, "wrong shape": _wrong_shape,
}  # fmt: skip


def plant(name: str, library: str = "numpy", op: str = "matmul") -> None:
    """Plans of a library for products have this fault from now on."""
    made = libraries.get(library)
    prepare, fault = made.prepare, FAULTS[name]

    def faulty(problem: Any, algorithm: Any, *planner: Any) -> Any:
        plan = prepare(problem, algorithm, *planner)
        return (lambda *arrays: fault(plan, arrays)) if problem.op == op else plan

    made.prepare = faulty  # type: ignore[method-assign]  # a double
