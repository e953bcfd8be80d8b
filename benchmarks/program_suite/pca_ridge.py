"""Principal components and kernel ridge regression of handwritten digits, as in examples/digits_ridge.py.

The data are the 1797 digits of the UCI collection that scikit-learn ships. Components come from the covariance and from singular
values; the regression is cross-validated over widths of the kernel and strengths of the ridge, in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import Program

FOLDS = 5
COMPONENTS = 20


def inputs(small: bool) -> dict[str, Any]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    count = 300 if small else 1795
    order = np.random.default_rng(1).permutation(len(digits.data))[:count]
    labels = digits.target[order]
    return {
        "pixels": digits.data[order],
        "targets": np.eye(10, dtype=np.float32)[labels],
        "gammas": (0.001,) if small else (0.0005, 0.001),
        "ridges": (0.1, 0.3),
    }


def build(ops: Any, data: dict[str, Any]) -> Any:
    xp, matmul = ops.xp, ops.matmul
    pixels, targets = ops.array(data["pixels"]), ops.array(data["targets"])
    narrow = ops.array(data["pixels"].astype(np.float32))
    gammas, ridges = data["gammas"], data["ridges"]
    fold = np.arange(len(data["pixels"])) % FOLDS
    folds = [(ops.array(np.flatnonzero(fold != k)), ops.array(np.flatnonzero(fold == k))) for k in range(FOLDS)]

    def components() -> tuple[Any, Any, Any]:
        centred = pixels - pixels.mean(axis=0)
        variances, vectors = ops.eigh(matmul(centred.T, centred) / (len(centred) - 1))
        _, singular, _ = ops.svd(centred)
        basis = vectors[:, -COMPONENTS:]
        scores = matmul(centred, basis)
        return variances, singular, matmul(scores, basis.T)

    def cross_validate(kernel: Any) -> list[Any]:
        """Returns the scores of every digit for each ridge, each from the digits of the other folds."""
        scores = [xp.empty_like(targets) for _ in ridges]
        for train, test in folds:
            square, cross = (ops.take(ops.take(kernel, rows, 0), train, 1) for rows in (train, test))
            last = 0.0
            for n, ridge in enumerate(ridges):
                square.reshape(-1)[:: len(square) + 1] += ridge - last
                weights = ops.cholesky_solve(targets[train], ops.cholesky(square))
                scores[n][test] = matmul(cross, weights)
                last = ridge
        return scores

    def run() -> Mapping[str, Any]:
        variances, singular, rebuilt = components()
        squares = (narrow * narrow).sum(axis=1)
        distances = matmul(narrow, narrow.T)
        distances *= -2
        distances += squares
        distances += squares[:, None]
        scores = [each for gamma in gammas for each in cross_validate(ops.exp_(-gamma * distances))]
        errors = np.array([float(((each - targets) ** 2).mean()) for each in scores])
        return {"variances": variances, "singular": singular, "rebuilt": rebuilt, "errors": errors, "scores": scores[-1]}

    return run


PROGRAMS = [Program("PCA and kernel ridge", inputs, build, bound=2e-3)]
