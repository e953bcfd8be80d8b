"""Size and class of a Problem's shape. Times of the problems of one class are predicted by their size alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..problems import Problem, short

__all__ = ["log2_work", "place", "shape_class"]


def log2_work(problem: Problem) -> float:
    """Returns log2 of the floating-point operations of a Problem, 0 for less than one."""
    return math.log2(max(problem.flops, 1.0))


def place(problem: Problem) -> str:
    """Returns where a measurement stands among others, as records write it: operation, dtype, shape class, log2 of the work.

    Empty on devices, for which nothing is predicted.
    """
    if problem.device != "cpu":
        return ""
    return f"{problem.op}|{short(problem.dtype)}|{shape_class(problem)}|{log2_work(problem):.2f}"


def shape_class(problem: Problem) -> str:
    """Returns the class of a Problem beyond its size: vectors, batches, thin matrices, kernels of one point."""
    describe = CLASSES.get(type(problem).__name__)
    return describe(problem) if describe else "batch" if getattr(problem, "items", 1) > 1 else ""


def _product(p: Any) -> str:
    if p.m == p.n == 1:
        return "dot"
    if p.m == 1 or p.n == 1:
        return "gemv"
    if p.items > 1:
        return "batch"
    return "thin" if min(p.m, p.n, p.k) * 8 <= max(p.m, p.n, p.k) else "square"


def _convolution(p: Any) -> str:
    points = math.prod(p.kernel)
    size = "1" if points == 1 else "3" if max(p.kernel) <= 3 else "5"
    groups = "" if p.groups == 1 else "depthwise " if p.groups == p.channels else "groups "
    return f"{groups}{size} {'one' if p.batch == 1 else 'many'}{' last' if p.last else ''}"


def _transform(p: Any) -> str:
    rest = p.points
    for factor in (2, 3, 5, 7, 11, 13):
        while rest > 1 and rest % factor == 0:
            rest //= factor
    axes = min(len(p.axes), 2)
    return f"{axes}d{' batch' if p.items > 1 else ''}{' prime' if rest > 1 else ''}"


CLASSES: dict[str, Callable[[Any], str]] = {
    "MatmulProblem": _product,
    "LinearProblem": _product,
    "ConvProblem": _convolution,
    "RnnProblem": lambda p: "one" if p.batch == 1 else "many",
    "AttentionProblem": lambda p: "causal" if p.is_causal else "",
    "FftProblem": _transform,
}
