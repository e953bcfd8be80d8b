"""A linear layer by a library that has products only: its product, then what follows it, in one plan.

What follows works in place on blocks that stay in cache. Halves are widened first and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import refuse_overlap
from ..problems import Operand
from ..problems.linear_problem import LinearProblem
from ..problems.matmul_problem import MatmulProblem
from . import errata
from .base import Algorithm, Library, PythonPlan, Refusal
from .reference.reference_neural import DTYPES, activate, blocks

__all__ = ["SUFFIX", "linear_algorithms", "prepare_linear"]

SUFFIX = "_pointwise"
"""The end of the name of an algorithm of this kind, after that of the product's."""


def linear_algorithms(
    library: Library, problem: LinearProblem, threads: int, product: MatmulProblem | None = None, finish: str = "NumPy"
) -> Iterator[Algorithm | Refusal]:  # fmt: skip
    """Lists the library's ways for the product inside, each followed by bias, residual and activation.

    Parameters
    ----------
    library, problem, threads
        As for `Library.algorithms`.
    product
        The product inside, where the library takes another one than that of the Problem.
    finish
        What computes the rest, in words.
    """
    if problem.dtype.name not in DTYPES:
        yield Refusal(library.name, "linear", f"residual and activation are for {', '.join(DTYPES)}, not {problem.dtype.name}")
        return
    product = problem.product if product is None else product
    for found in library.algorithms(product, threads):
        if isinstance(found, Algorithm):
            wrong = errata.refusal(library, product, found)  # a row for products holds for the product inside, too
            if wrong:
                yield Refusal(library.name, found.name + SUFFIX, wrong)
                continue
            note = "; ".join(filter(None, [found.note, f"then the rest, by {finish}, in the same plan"]))
            precision = found.precision or ("f32 accumulation" if problem.halves else "")
            found = replace(found, name=found.name + SUFFIX, note=note, precision=precision)
        yield found


def prepare_linear(library: Library, problem: LinearProblem, algorithm: Algorithm) -> PythonPlan:
    """The plan of an Algorithm that `linear_algorithms` listed."""
    product = library.prepare(problem.product, replace(algorithm, name=algorithm.name.removesuffix(SUFFIX)))
    return PythonPlan(_Linear(problem, product))


class _Linear:
    """The plan's function of the arrays of the call."""

    def __init__(self, problem: LinearProblem, product: Any) -> None:
        self.problem, self.product = problem, product
        self.index = {o.role: i for i, o in enumerate(problem.operands)}
        names = {"c": problem.added}
        self.order = [self.index[names.get(o.role, o.role)] for o in problem.product.operands]
        self.late = problem.get("bias") if problem.added == "residual" else None
        self.activation = problem.parameter("activation")

    def __call__(self, *arrays: Any) -> Any:
        p, out = self.problem, self.index.get("out")
        if out is not None:
            self.refuse_overlaps(arrays, out)
        if p.halves:
            arrays_in = [_view(p.operands[i], arrays[i]).astype(np.float32, order="C") for i in self.order]
        else:
            arrays_in = [arrays[i] for i in self.order]
        result = self.product(*arrays_in)
        if not p.result:  # a scalar, which nothing can be written to
            result = np.asarray(result).reshape(1)
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            if self.late is not None:
                bias = np.lib.stride_tricks.as_strided(arrays[self.index["bias"]], (p.n,), self.late.strides[-1:])
                for part in blocks(result.shape, (result.ndim - 1,)):
                    result[part] += bias
            if self.activation:
                activate(self.activation, result, result)
            if out is None:
                result = result.astype(p.dtype, copy=False)
                return result if p.result else result[0]
            if not p.halves:
                return arrays[out]
            arrays[out][...] = result
            return arrays[out]

    def refuse_overlaps(self, arrays: tuple[Any, ...], out: int) -> None:
        """Checks what the product does not see: it looks after the rest, unless it works on copies."""
        for role, i in self.index.items():
            seen = i in self.order and not self.problem.halves
            same = role == self.problem.added and _same(arrays[i], arrays[out])
            if i != out and not seen and not same and np.may_share_memory(arrays[i], arrays[out]):
                refuse_overlap(arrays[out], arrays[i])


def _same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.strides == b.strides and a.ctypes.data == b.ctypes.data)


def _view(o: Operand, array: Any) -> Any:
    return np.lib.stride_tricks.as_strided(array, o.shape, o.strides)
