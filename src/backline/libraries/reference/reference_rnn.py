"""Recurrent networks in NumPy: right for every dtype, and what others are compared with.

float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems.dtypes import HALVES, compute_dtype
from ...problems.rnn_problem import RnnProblem
from ..base import Algorithm, Refusal
from ..rnn_layers import forward
from . import numpy_threads
from .planned_products import planned
from .reference_rnn_grad import gradients
from .rnn_cells import Times, layer

__all__ = ["algorithms", "named_plan"]

Array = Any


def algorithms(p: RnnProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The two ways: products by NumPy's BLAS, or by NumPy's own loops on one thread and in one order."""
    precision = "f32 accumulation" if p.dtype.name in HALVES else ""
    if p.empty:
        yield Algorithm(library="numpy", name="loops", precision=precision, level="threads", basis="construction")
        return
    yield from planned("steps", threads, precision=precision)  # before the loops, which are slow
    yield from numpy_threads.by_blas_or_loops("steps", p, threads, precision=precision)


def named_plan(p: RnnProblem, name: str, product: Times = np.matmul) -> Callable[..., tuple[Array, ...]]:
    """The function of the arrays of a call; by the algorithm "loops" no BLAS takes part, by another one `product` multiplies."""
    times: Times = numpy_threads.loops_product if name == "loops" else product
    dtype = compute_dtype(p.dtype)

    def run(*arrays: Array) -> tuple[Array, ...]:
        given = [a if o.role == "lengths" else a.astype(dtype, copy=False) for o, a in zip(p.operands, arrays, strict=True)]
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            if p.is_gradient:
                return gradients(p, given, times)
            results = forward(p, given, lambda which, *of: layer(p, times, *of))
        return tuple(part.astype(p.dtype, copy=False) for part in results)

    return run
