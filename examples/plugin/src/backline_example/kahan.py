"""Products whose sums carry their rounding errors along (Ogita, Rump and Oishi's Dot2): for results, not for speed.

The result is as good as if the sums were computed in twice the precision and rounded once at the end. Nothing here is a BLAS
call; the order of the operations is fixed, so the same operands give the same bits, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from backline import switches
from backline.errors import refuse_overlap
from backline.libraries.base import Algorithm, Handler, Library, PythonPlan, Refusal
from backline.problems.matmul_problem import MatmulProblem

__all__ = ["Kahan", "product"]

HALVES = {"float32": 2**12 + 1, "float64": 2**27 + 1}  # by which a number is split into two short ones


def algorithms(library: Kahan, problem: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    if problem.dtype.name not in HALVES:
        yield Refusal("kahan", "dot2", f"it has no {problem.dtype.name}")
    elif problem.alpha != 1 or problem.beta != 0:
        yield Refusal("kahan", "dot2", "it has no factors and no summand")
    elif problem.m * problem.n * problem.k * problem.items > switches.get("kahan.largest"):
        reason = f"more multiplications than kahan.largest = {switches.get('kahan.largest')}"
        yield Refusal("kahan", "dot2", reason, "kahan.largest")
    else:
        note = "as if computed in twice the precision; slow"
        yield Algorithm(library="kahan", name="dot2", level="threads", basis="construction", note=note)


def prepare(library: Kahan, problem: MatmulProblem, algorithm: Algorithm) -> PythonPlan:
    a, b, out = (problem.index(role) for role in ("a", "b", "out"))

    def run(*arrays: Any) -> Any:
        if out is not None:
            for operand in (arrays[a], arrays[b]):
                refuse_overlap(arrays[out], operand)
        # A vector comes as the caller gave it; the Problem has it as a matrix.
        left, right = (arrays[i].reshape(problem.operands[i].shape) for i in (a, b))
        with np.errstate(all="ignore"):  # as BLAS: the result shows it
            result = product(left, right).reshape(problem.result)
        if out is None:
            return result if result.ndim else result[()]
        arrays[out][...] = result
        return arrays[out]

    return PythonPlan(run)


class Kahan(Library):
    """Compensated products. Its name, title and families are those of its row."""

    handlers: ClassVar = {MatmulProblem: Handler(algorithms, prepare)}

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1.0"

    def details(self) -> dict[str, Any]:
        return {"path": __file__}


def split(x: Any) -> tuple[Any, Any]:
    """Two numbers of half the digits each whose sum is `x` exactly (Veltkamp)."""
    c = x * x.dtype.type(HALVES[x.dtype.name])
    high = c - (c - x)
    return high, x - high


def product(a: Any, b: Any) -> Any:
    """The product of two stacks of matrices, each sum with the rounding errors of its terms and additions added at the end."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    total, errors = np.zeros(shape, a.dtype), np.zeros(shape, a.dtype)
    for i in range(a.shape[-1]):
        x, y = a[..., :, i, None], b[..., i, None, :]
        term = x * y
        (x1, x2), (y1, y2) = split(x), split(y)
        lost = x2 * y2 - (((term - x1 * y1) - x2 * y1) - x1 * y2)  # what the multiplication rounded away, exactly
        new = total + term
        part = new - total
        lost = lost + ((total - (new - part)) + (term - part))  # and the addition
        total, errors = new, errors + lost
    result = total + errors
    # The errors of infinities, and of numbers near the largest, are NaN: there the plain sum stands.
    return np.where(np.isfinite(errors), result, total)
