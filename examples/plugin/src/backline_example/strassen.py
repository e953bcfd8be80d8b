"""Strassen's algorithm over NumPy's products: 7 products of halves where the usual way takes 8.

Its error is bounded in relation to the largest elements of the operands, not to each element of the result, and grows with every
halving; so it says which levels it takes, and whoever sets ``max_error`` has it measured and refused where it is too coarse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from backline import libraries, switches
from backline.errors import refuse_overlap
from backline.libraries.base import Algorithm, Handler, Library, PythonPlan, Refusal
from backline.problems.matmul_problem import MatmulProblem

__all__ = ["Strassen", "levels", "product"]

DTYPES = ("float32", "float64", "complex64", "complex128")


def algorithms(library: Strassen, problem: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    why, switch = refused(problem)
    if why:
        yield Refusal("strassen", "strassen", why, switch)
        return
    # The products of the halves are NumPy's: what it promises of threads and of bits is all that can be promised here.
    for leaf in libraries.get("numpy").algorithms(problem, threads):
        if isinstance(leaf, Refusal):
            yield Refusal("strassen", "strassen", f"its inner products are NumPy's: {leaf.reason}", leaf.switch)
        else:
            depth = depth_of(problem)
            note = f"{depth} halving{'s' if depth > 1 else ''}; the error of each element is relative to the largest ones"
            yield replace(leaf, library="strassen", name="strassen", note=note)


def prepare(library: Strassen, problem: MatmulProblem, algorithm: Algorithm) -> PythonPlan:
    depth = depth_of(problem)
    a, b, out = (problem.index(role) for role in ("a", "b", "out"))

    def run(*arrays: Any) -> Any:
        if out is not None:
            for operand in (arrays[a], arrays[b]):
                refuse_overlap(arrays[out], operand)
        with np.errstate(all="ignore"):  # as BLAS: the result shows it
            result = product(arrays[a], arrays[b], depth)
            if not np.isfinite(result).all():
                # An infinity or a NaN spreads through the sums of blocks to elements that it has no part in.
                result = np.matmul(arrays[a], arrays[b])
        if out is None:
            return result
        arrays[out][...] = result
        return arrays[out]

    return PythonPlan(run)


class Strassen(Library):
    """Products of two large matrices. Its name, title and families are those of its row."""

    handlers: ClassVar = {MatmulProblem: Handler(algorithms, prepare)}

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1.0"

    def details(self) -> dict[str, Any]:
        return {"path": __file__, "config": f"halves matrices above {switches.get('strassen.cutoff')}"}


def refused(problem: MatmulProblem) -> tuple[str, str]:
    """Returns why it has nothing for a Problem, and the switch that would change it; two empty strings if it has."""
    if problem.batch or problem.alpha != 1 or problem.beta != 0 or problem.parameter("conj"):
        return "it multiplies two matrices, without a batch, factors or a summand", ""
    if problem.dtype.name not in DTYPES:
        return f"it has no {problem.dtype.name}", ""
    if not switches.get("numpy.enabled"):
        return "its inner products are NumPy's, which is off", "numpy.enabled"
    if depth_of(problem) == 0:
        return f"a size is not above strassen.cutoff = {switches.get('strassen.cutoff')}", "strassen.cutoff"
    return "", ""


def depth_of(problem: MatmulProblem) -> int:
    """Times that the matrices of a Problem are halved, as the switch says here."""
    return levels(problem.m, problem.n, problem.k, switches.get("strassen.cutoff"))


def levels(m: int, n: int, k: int, cutoff: int) -> int:
    """Times that matrices are halved until one size is not above `cutoff`.

    >>> levels(1000, 1000, 1000, 256), levels(256, 1000, 1000, 256)
    (2, 0)
    """
    size, depth = min(m, n, k), 0
    while size > cutoff:
        size, depth = -(-size // 2), depth + 1
    return depth


def product(a: Any, b: Any, depth: int) -> Any:
    """The product of two matrices after `depth` halvings."""
    m, k, n = *a.shape, b.shape[1]
    step = 2**depth
    rows, inner, columns = (-(-size // step) * step for size in (m, k, n))
    if (m, k) != (rows, inner):
        a = np.pad(a, ((0, rows - m), (0, inner - k)))
    if (k, n) != (inner, columns):
        b = np.pad(b, ((0, inner - k), (0, columns - n)))
    result = _product(a, b, depth)
    return result if result.shape == (m, n) else result[:m, :n].copy()


def _product(a: Any, b: Any, depth: int) -> Any:
    if depth == 0:
        return np.matmul(a, b)
    i, j, p = a.shape[0] // 2, b.shape[1] // 2, a.shape[1] // 2
    a11, a12, a21, a22 = a[:i, :p], a[:i, p:], a[i:, :p], a[i:, p:]
    b11, b12, b21, b22 = b[:p, :j], b[:p, j:], b[p:, :j], b[p:, j:]
    m1 = _product(a11 + a22, b11 + b22, depth - 1)
    m2 = _product(a21 + a22, b11, depth - 1)
    m3 = _product(a11, b12 - b22, depth - 1)
    m4 = _product(a22, b21 - b11, depth - 1)
    m5 = _product(a11 + a12, b22, depth - 1)
    m6 = _product(a21 - a11, b11 + b12, depth - 1)
    m7 = _product(a12 - a22, b21 + b22, depth - 1)
    c = np.empty((2 * i, 2 * j), a.dtype)
    c[:i, :j] = m1 + m4 - m5 + m7
    c[:i, j:] = m3 + m5
    c[i:, :j] = m2 + m4
    c[i:, j:] = m1 - m2 + m3 + m6
    return c
