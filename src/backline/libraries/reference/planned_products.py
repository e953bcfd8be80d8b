"""Products inside of NumPy's formulas by the libraries that are chosen for them, for the same bits on any number of threads.

NumPy's own BLAS promises nothing of the kind. The products keep to the switches that hold in the call, and so to the determinism
level asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...native import thread_team
from ...problems import Problem
from ...problems.op_registry import operations
from .. import fixed_order
from ..base import Algorithm, Planner, Refusal

__all__ = ["PlannedProducts", "planned"]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def planned(name: str, threads: int, **more: Any) -> Iterator[Algorithm | Refusal]:
    """Lists a formula of NumPy's by this name whose products other libraries compute, where that is asked for."""
    if fixed_order.asked():
        make, note = partial(Algorithm, library="numpy", **more), "each product by the library that is chosen for it"
        yield from fixed_order.listed(name, threads, make, note, thread_team.name())


class PlannedProducts:
    """Multiplies matrices, or batches of them, by plans that are kept for the shapes of one formula."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.plans: dict[Any, Any] = {}

    def __call__(self, left: Any, right: Any, order: str = "C") -> Any:
        """Returns the product; always a new array without gaps."""
        if left.dtype not in FLOATS or 0 in (*left.shape, *right.shape):
            return np.matmul(left, right)
        key = tuple((a.dtype, a.shape, a.strides, a.flags.aligned) for a in (left, right))
        plan = self.plans.get(key)
        if plan is None:
            problem: Problem = operations["matmul"].build(left, right)
            plan = self.plans[key] = self.planner.plan(problem)
        return plan(left, right)
