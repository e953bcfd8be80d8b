"""Relative errors of results: compared with a wider reference where the answer is unique, by residual where it is not.

Results of float32, complex64 and 16-bit floats are compared with float64, computed from operands converted exactly. Results
of float64 and complex128 are compared with references of at least 11 bits more, in double-double arithmetic or
`np.longdouble`: one in float64 would report the difference of two roundings, and 0 for NumPy. An error of 0 means that every
digit is right. Where no such reference can be had in reasonable time, errors below the reference's own rounding are reported
as that rounding. Where operands of linear algebra are too ill-conditioned for any reference, the error is the backward error:
by how much operands would have to change for the result to be exact.

Products are `accuracy_products`' business, linear algebra `accuracy_linalg`'s, and layers and transforms `accuracy_layers`'.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..libraries.reference.rounding import STORED, unit
from ..problems import Problem
from ..problems.linalg_problem import LinalgProblem
from ..problems.matmul_problem import MatmulProblem
from ..problems.op_registry import operations
from ..problems.scaled_problem import FLOAT8, ScaledProblem
from .accuracy_layers import LayerReference
from .accuracy_linalg import LinalgReference
from .accuracy_products import ProductReference
from .accuracy_wide import ProblemReference

__all__ = ["Reference", "bound", "error"]

Array = Any

CHUNK = 1 << 20  # elements looked at at a time
# What judges the results of each kind of Problem; operations whose row has a check of its own are judged by that.
FORMS: tuple[tuple[type[Problem], type[ProblemReference]], ...] = (
    (MatmulProblem, ProductReference), (LinalgProblem, LinalgReference), (Problem, LayerReference),
)  # fmt: skip


def bound(problem: Problem, precision: str = "") -> float:
    """The largest relative error that is still rounding, for the dtype and size of a Problem and the precision computed in.

    It separates wrong from inaccurate; what accuracy is wanted is the `max_error` switch's business.
    """
    # Of a product of float8 the result is rounded to a dtype of its own.
    dtype = problem.result_dtype if isinstance(problem, ScaledProblem) else problem.dtype
    name = dtype.name
    if name in ("float16", "bfloat16"):
        rounding, accumulated = (2.0**-10 if name == "float16" else 2.0**-7), 2.0**-23
    elif dtype.kind in "fc":
        rounding = accumulated = float(np.finfo(dtype).eps)
    else:
        return 0.0
    if problem.dtype.name in FLOAT8:
        accumulated = 2.0**-17  # tensor cores keep 14 bits of such sums: four roundings of that, as below
    if precision in STORED:  # each of two operands is rounded once
        rounding = max(rounding, 2 * unit(precision))
    if precision == "f16 accumulation":
        accumulated = 2.0**-14  # four roundings of a sum for each root of a term, not 64: those would let anything pass
    return 4 * rounding + 64 * accumulated * math.sqrt(problem.summands)


def error(problem: Problem, arrays: list[Array], result: Any) -> float:
    """Relative error of a result; infinite if it holds NaN or infinity.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems.op_registry import operations
    >>> import backline
    >>> a = np.eye(3, dtype=np.float32)
    >>> error(operations["matmul"].build(a, a), [a, a], a), error(operations["matmul"].build(a, a), [a, a], a * np.nan)
    (0.0, inf)
    """
    return Reference(problem, arrays).error(result)


class Reference:
    """The reference that results of a Problem on given operands are compared with; computed once.

    Parameters
    ----------
    problem, arrays
        The Problem and its operands.
    backward
        Whether the error of a solution or an inverse is always the backward error, of well-conditioned operands too.
    """

    def __init__(self, problem: Problem, arrays: list[Array], *, backward: bool = False) -> None:
        self.backward = backward
        # An operand that the call may overwrite is gone by the time it is needed.
        self.problem, self.arrays = problem, [a.copy() for a in arrays] if problem.parameter("overwrite") else arrays
        self._reference: ProblemReference | None = None

    def error(self, result: Any) -> float:
        """Relative error of one result."""
        with np.errstate(all="ignore"):  # operands and results may be as large or small as their format has them
            return self._error(result)

    def _error(self, result: Any) -> float:
        p = self.problem
        if p.dtype.kind not in "fc" and p.dtype.name != "bfloat16" and not isinstance(p, ScaledProblem):
            return 0.0  # integers: only NumPy computes those, and exactly
        parts = result if isinstance(result, tuple) else (result,)
        parts = tuple(x if x is None else np.asarray(x) for x in parts)
        if not all(_finite(x) for x in parts if x is not None):
            return math.inf
        row = operations.get(p.op)
        if row is not None and callable(row.check):
            return row.check(p, self.arrays, parts)
        if self._reference is None:
            self._reference = next(make for kind, make in FORMS if isinstance(p, kind))(p, self.arrays)
            self._reference.backward = self.backward
        return self._reference.error(parts)


def _finite(array: Array) -> bool:
    if array.dtype.kind not in "fc" and array.dtype.name != "bfloat16":
        return True
    if array.ndim and array.size > CHUNK:
        return all(_finite(part) for part in array)
    return bool(np.isfinite(array).all())
