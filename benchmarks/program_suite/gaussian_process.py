"""Gaussian process regression in float64: a kernel's width is chosen by likelihood, then means and variances are predicted.

Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import Program

NOISE = 0.05


def inputs(small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    count, places, features = (80, 30, 3) if small else (1500, 600, 6)
    x = rng.uniform(-1, 1, (count + places, features))
    y = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + np.cos(2 * x[:, -1]) + NOISE * rng.standard_normal(len(x))
    return {"x": x[:count], "y": y[:count, None], "at": x[count:], "widths": (0.7, 1.5) if small else (0.7, 1.0, 1.5, 2.2)}


def build(ops: Any, data: dict[str, Any]) -> Any:
    x, y, at = (ops.array(data[name]) for name in ("x", "y", "at"))
    widths, count = data["widths"], len(data["x"])

    def kernel(distances: Any, width: float) -> Any:
        scaled = distances * (-math.sqrt(3) / width)
        values = 1 - scaled
        values *= ops.exp_(scaled)
        return values

    def factor_of(distances: Any, width: float) -> Any:
        covariance = kernel(distances, width)
        covariance.reshape(-1)[:: count + 1] += NOISE**2
        return ops.cholesky(covariance)

    def likelihood(factor: Any, weights: Any) -> float:
        logarithms = ops.xp.log(factor.diagonal()).sum()
        return float(-0.5 * (y * weights).sum() - logarithms - 0.5 * count * math.log(2 * math.pi))

    def run() -> Mapping[str, Any]:
        distances = ops.distances(x, x)
        found = []
        for width in widths:
            factor = factor_of(distances, width)
            weights = ops.cholesky_solve(y, factor)
            found.append((likelihood(factor, weights), width, factor, weights))
        _, width, factor, weights = max(found, key=lambda each: each[0])
        cross = kernel(ops.distances(at, x), width)
        mean = ops.matmul(cross, weights)
        explained = ops.solve_triangular(factor, cross.T)
        variance = 1 + NOISE**2 - (explained * explained).sum(axis=0)
        return {"likelihoods": np.array([each[0] for each in found]), "mean": mean, "variance": variance}

    return run


PROGRAMS = [Program("Gaussian process", inputs, build, bound=1e-6)]
