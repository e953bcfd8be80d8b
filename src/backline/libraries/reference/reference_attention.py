"""Attention of NumPy's arrays by the formula: every shape, dtype and mask, and the gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ... import switches
from ...problems.attention_problem import AttentionProblem
from ...problems.dtypes import HALVES, compute_dtype
from ..attention_constraints import facts_of, refusal, refused_kernels
from ..base import Algorithm, Refusal
from .attention_formula import AttentionSpace, kept_weights, run
from .planned_products import planned

__all__ = ["HALF", "algorithms", "named_plan"]

Array = Any
HALF = "math_half"


def algorithms(library: str, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Lists NumPy's algorithms, and refuses the kernels that no library has for arrays of the CPU."""
    yield from refused_kernels(library, problem)
    reason = refusal("math", problem, facts_of(problem.device))
    if reason:
        yield Refusal(library, "math", reason)
        return
    if problem.dtype.name in HALVES and switches.get("cuda.fp16_bf16_reduction_math_sdp"):
        how = f"products and softmax rounded to {problem.dtype.name}"
        yield Algorithm(library=library, name=HALF, level="threads", basis="construction", note=how, traits=("math", "half math"))
    precision = "f32 accumulation" if problem.dtype.name in HALVES else ""
    note = "all scores of all heads at once"
    if problem.dtype.name not in (*HALVES, "float32", "float64"):  # no BLAS takes part
        yield Algorithm(library=library, name="math", level="threads", basis="construction", note=note, traits=("math",))
        return
    pool = "numpy" if threads > 1 else ""
    yield Algorithm(
        library=library, name="math", threads=threads, scaled=True, precision=precision, pool=pool, note=note, traits=("math",)
    )
    yield from planned("math", threads, precision=precision, traits=("math",))


def named_plan(problem: AttentionProblem, name: str, matmul: Callable[..., Array] = np.matmul) -> Callable[..., Any]:
    """Returns the function of the arrays of the call: attention, or its gradients where ``grad`` is among the operands.

    By the algorithm `HALF`, operands and results of each product are rounded to the Problem's 16-bit dtype, and with them the
    softmax. `matmul` computes the products.
    """
    roles = [o.role for o in problem.operands]
    compute = compute_dtype(problem.dtype)
    inside = problem.dtype if name == HALF else compute

    def multiply(left: Array, right: Array) -> Array:
        product: Array = matmul(left.astype(inside, copy=False), right.astype(inside, copy=False), order="C")
        product = product.astype(inside, copy=False)  # of bfloat16 NumPy makes float32
        return product.astype(compute, copy=False)

    def kept(shape: tuple[int, ...], seed: int) -> Array:
        return kept_weights(problem, shape, seed, compute)

    space = AttentionSpace(np, compute, np.dtype(bool), multiply, kept, compute.type, values_known=True)

    def function(*arrays: Array, **scalars: int) -> Any:
        with np.errstate(all="ignore"):  # what overflows or is NaN shows in the result
            return run(problem, space, dict(zip(roles, arrays, strict=True)), **scalars)

    return function
