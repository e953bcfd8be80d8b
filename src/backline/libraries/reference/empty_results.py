"""Results of linear algebra where there is nothing to compute, over an array namespace: no routine is called for them."""

from __future__ import annotations

from typing import Any

from ...problems.linalg_problem import LinalgProblem
from ...problems.linalg_results import linalg_results

__all__ = ["empty"]


def empty(p: LinalgProblem, arrays: dict[str, Any], xp: Any) -> tuple[Any, ...]:
    """Results of a Problem without elements, or without right-hand sides: identities, and zeros."""
    described = linalg_results(p)
    assert described is not None  # no other operation comes here
    results = [xp.zeros(shape, dtype) for shape, dtype in described]
    op = p.op.removeprefix("linalg.")
    if op == "qr" and p.parameter("mode", "reduced") == "complete":
        identities: tuple[int, ...] = (0,)
    else:
        identities = (0, 2) if op == "svd" and p.parameter("full_matrices", True) else ()
    for i in identities:
        results[i][...] = xp.eye(results[i].shape[-1], dtype=p.dtype)
    if op == "lstsq" and p.m > p.n:
        b = xp.abs(arrays["b"]) ** 2
        sums = b.sum(axis=-1)[..., None] if p.parameter("vector", False) else b.sum(axis=-2)
        results[1] = xp.broadcast_to(sums, (*p.batch, p.k)).astype(described[1][1])
    return tuple(results)
