"""Non-negative matrix factorization by multiplicative updates (Lee and Seung, 2001), in float32.

A table of counts, such as words by documents, becomes the product of two matrices without negative elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import Program

TINY = 1e-9


def inputs(small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    rows, columns, rank, rounds = (60, 50, 5, 4) if small else (2000, 1500, 40, 20)
    topics = rng.gamma(0.3, 1, (rows, rank)) @ rng.gamma(0.3, 1, (rank, columns))
    counts = (topics + 0.01 * rng.random((rows, columns))).astype(np.float32)
    left, right = rng.random((rows, rank), np.float32), rng.random((rank, columns), np.float32)
    return {"counts": counts, "left": left, "right": right, "rounds": rounds}


def build(ops: Any, data: dict[str, Any]) -> Any:
    matmul, rounds = ops.matmul, data["rounds"]
    counts, first, second = (ops.array(data[name]) for name in ("counts", "left", "right"))

    def run() -> Mapping[str, Any]:
        left, right = first, second
        for _ in range(rounds):
            right = right * matmul(left.T, counts) / (matmul(matmul(left.T, left), right) + TINY)
            left = left * matmul(counts, right.T) / (matmul(left, matmul(right, right.T)) + TINY)
        rest = matmul(left, right)
        rest -= counts
        return {"left": left, "right": right, "error": float(ops.norm(rest)) ** 2 / counts.shape[0]}

    return run


PROGRAMS = [Program("matrix factorization", inputs, build, bound=2e-3)]
