"""Elementary functions by the compiled loops below NumPy's own, on all threads: the bits are those of `numpy.exp`.

Of arrays with gaps they are those of a copy without gaps, for which the loops may have other code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import _kernels
from ...problems.dtypes import HALVES
from ...problems.neural_problem import ELEMENTARY, NeuralProblem
from ..base import Algorithm, Refusal
from ..kernels.element_functions import ElementFunction, element_plan, element_ways, layout_refusal, wide_name

__all__ = ["UFUNC", "element_algorithms", "prepare_elements"]

UFUNC = "ufunc"
DTYPES = (*HALVES, "float32", "float64", "complex64", "complex128")


@functools.cache
def _loop(name: str, dtype: str) -> tuple[int, int] | None:
    """Returns the addresses of the loop of a function and of its data; None where this NumPy has none."""
    number = np.dtype(dtype).num
    return _kernels.ufunc_loop(getattr(np, name), bytes((number, number)))


def _reason(p: NeuralProblem) -> str:
    """Returns the reason why the loops do not take a Problem, or an empty string."""
    if p.dtype.name not in DTYPES:
        return f"its loops are for {', '.join(DTYPES)}, not {p.dtype.name}"
    if _loop(p.op, wide_name(p)) is None:
        return f"NumPy {np.__version__} has no loop of {p.op} of the form known here"
    return layout_refusal(p)


def element_algorithms(p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loops for an elementary function, on all threads and on one, or the reason why they do not take it."""
    if p.op not in ELEMENTARY:
        return
    reason = _reason(p)
    if reason:
        yield Refusal("numpy", UFUNC, reason)
        return
    yield from element_ways(p, threads, library="numpy", name=UFUNC, basis="construction", note=f"the loop below numpy.{p.op}")


def prepare_elements(p: NeuralProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `element_algorithms` listed."""
    loop = _loop(p.op, wide_name(p))
    assert loop is not None
    return element_plan(p, ElementFunction(*loop), algorithm.threads)
