"""An operation of linear algebra under a watch: the routines that ran for it, and how far its result is from what it must be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import backline
from gpu.arrays import wide
from gpu.watch import Calls, watched

__all__ = ["Proof", "far", "h", "largest", "routines"]


def routines(calls: Calls) -> dict[str, int]:
    """Returns how often each routine was called, without the letter of its type; what sets handles up is left out."""
    aside = ("create", "destroy", "set_", "get_", "xgesvdj_set")
    names = [name for name in calls.names() if not name.startswith(aside) and not name.endswith("_buffer_size")]
    return dict(Counter(name[1:] for name in names))


def h(a: Any) -> Any:
    return a.conj().swapaxes(-1, -2)


def far(left: Any, right: Any, scale: float) -> float:
    """Distance of two stacks of matrices, relative to a scale."""
    return float(np.max(np.abs(left - right), initial=0)) / max(scale, 1e-300)


def largest(*arrays: Any) -> float:
    """Product of the Euclidean norms of the largest matrices."""
    return float(np.prod([np.linalg.norm(a, axis=(-2, -1)).max(initial=0) for a in arrays]))


class Proof:
    """Runs an operation under a watch, and looks at the routines that ran and at a residual.

    Parameters
    ----------
    row, xp
        The fixtures.
    """

    def __init__(self, row: Any, xp: Any) -> None:
        self.row, self.xp = row, xp

    def run(self, name: str, op: Any, *given: Any, expected: dict[str, int], **more: Any) -> Any:
        """The results as NumPy's arrays in double precision; NumPy's arrays among those given go to the device."""
        there = [self.xp.asarray(x) if isinstance(x, np.ndarray) else x for x in given]
        with watched("cublas", "cusolverDn") as calls:
            result = op(*there, **more)
            ran = routines(calls)
            modes = {each["mode"] for each in calls.of("set_math_mode")} | {each["mode"] for each in calls.of("set_atomics_mode")}
        self.row.observe(f"{name}: {' '.join(f'{count} {routine}' for routine, count in ran.items())}", backline.explain().chosen.key)
        assert ran == expected, f"{name}: {ran}"
        assert modes <= {0}, "float32 is float32 here"
        for host, array in zip(given, there, strict=True):
            if isinstance(host, np.ndarray):
                assert np.array_equal(array.get(), host), f"{name}: operands stay as they are"
        if isinstance(result, tuple):
            return [each.get() if each.dtype.kind in "iu" else wide(each) for each in result]
        return wide(result)

    def near(self, name: str, residual: float, n: int, dtype: str) -> None:
        """A residual is below 50 n eps."""
        allowed = 50 * n * float(np.finfo(dtype).eps)
        self.row.observe(f"{name}: residual {residual:.2g} of {allowed:.2g}")
        assert residual < allowed, f"{name}: {residual} is not below {allowed}"
