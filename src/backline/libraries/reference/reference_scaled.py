"""Products of 8-bit matrices by products of wider ones: every float8 is a float32, and sums of int8 products are exact.

It is the reference of these operations, and how those of float8 run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...errors import refuse_overlap
from ...problems.scaled_problem import ScaledProblem
from ..base import Algorithm

__all__ = ["EXACT_IN_FLOAT32", "algorithms", "plan"]

Array = Any
# Products of two int8 are at most 2**14, and float32 has every integer up to 2**24.
EXACT_IN_FLOAT32 = 1 << 10
BLOCK = 1 << 18  # elements of the result that are scaled at a time


def algorithms(p: ScaledProblem) -> Iterator[Algorithm]:
    """Lists the one way: the product of widened operands by the library that is chosen for it."""
    precision = "" if p.integer else "f32 accumulation"
    wide = _wide(p).name
    yield Algorithm(
        library="numpy", name="widened", precision=precision, level="threads", basis="construction",
        note=f"elements widened to {wide}, the product by the library that is chosen for it",
    )  # fmt: skip


def _wide(p: ScaledProblem) -> np.dtype[Any]:
    return np.dtype(np.float64 if p.integer and p.k > EXACT_IN_FLOAT32 else np.float32)


def plan(p: ScaledProblem, multiply: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Returns the operation as a function of the arrays of a call; `multiply` is given matrices of one dtype."""
    index, wide = {o.role: i for i, o in enumerate(p.operands)}, _wide(p)

    def run(*arrays: Array) -> Array:
        of = {role: arrays[i] for role, i in index.items()}
        out = of.get("out")
        if out is not None:
            for role in "ab":
                if np.may_share_memory(out, of[role]):
                    refuse_overlap(out, of[role])
        with np.errstate(all="ignore"):  # NaN, infinity and overflow show in the result
            sums = multiply(of["a"].astype(wide), of["b"].astype(wide))
            if p.integer:
                # Through int64, so that sums beyond int32 wrap around, as those of integers do.
                whole = sums.astype(np.int64).astype(np.int32)
                if out is None:
                    return whole
                out[...] = whole
                return out
            return _scaled(p, sums, of)

    return run


def _scaled(p: ScaledProblem, sums: Array, of: dict[str, Array]) -> Array:
    """Sums times scales plus bias, in float64 so that the product of the scales cannot overflow, rounded at the end."""
    left = of["scale_a"].astype(np.float64).reshape(-1, 1)
    right = of["scale_b"].astype(np.float64).reshape(1, -1)
    bias = of["bias"].astype(np.float64) if "bias" in of else None
    result = np.empty(p.result, p.result_dtype)
    step = max(BLOCK // max(p.n, 1), 1)
    for start in range(0, p.m, step):
        rows = slice(start, start + step)
        part = sums[rows] * (left if len(left) == 1 else left[rows])
        part *= right
        if bias is not None:
            part += bias
        result[rows] = part
    return result
