"""Fourier transforms by the compiled loops below `numpy.fft`, without its Python: nothing is planned for a length.

Libraries that plan a transform take longer for the plan of a short one than NumPy takes to transform it. So calls run on this
while their lengths keep changing: its Plans hold no tables, and are made from templates. Along each axis the result is that of
`numpy.fft`.
"""

from __future__ import annotations

import functools
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...problems.fft_problem import FftProblem
from ..base import Algorithm, Refusal, failure
from ..fft_steps import Lay, Steps, batches, on_threads, unfit

__all__ = ["LOOPS", "MOST_ELEMENTS", "loop_algorithm", "prepare_loops"]

LOOPS = "loops"
MOST_ELEMENTS = 1 << 14  # of the result: the GIL is kept, and plans of other libraries are worth their time for more
AXES = 3  # beside the one that is transformed: so many loops the kernel has


@functools.cache
def _loop(kind: str, sign: int, odd: bool) -> tuple[int, int] | None:
    """Returns the addresses of the loop of a transform and of its data; None where this NumPy has other ones."""
    try:
        module: Any = import_module("numpy.fft._pocketfft_umath")
    except ImportError:
        return None
    name = {"c2c": "fft" if sign < 0 else "ifft", "r2c": "rfft_n_odd" if odd else "rfft_n_even", "c2r": "irfft"}[kind]
    dtypes = {"c2c": "DdD", "r2c": "ddD", "c2r": "Ddd"}[kind]
    ufunc = getattr(module, name, None)
    return None if ufunc is None else _kernels.ufunc_loop(ufunc, bytes(np.dtype(letter).num for letter in dtypes))


def _reason(problem: FftProblem) -> str:
    """Returns the reason why the loops do not take a Problem, or an empty string."""
    if problem.op == "fft.r2r":
        return "NumPy has no cosine and sine transforms"
    reason = unfit(problem)
    if reason:
        return reason
    if prod(problem.result) > MOST_ELEMENTS:
        return f"they are for results of up to {MOST_ELEMENTS} elements"
    if problem.empty:
        return "there is nothing to compute"
    if len(problem.result) > AXES + 1:
        return f"they are for arrays of up to {AXES + 1} axes"
    if problem.normalisation is None:
        return f"NumPy has no factor of {problem.scale}"
    if any(_loop(kind, sign, odd) is None for kind, sign, odd in KINDS):
        return f"NumPy {np.__version__} has no loops of the form known here"
    return ""


KINDS = (("c2c", -1, False), ("c2c", 1, False), ("r2c", -1, False), ("r2c", -1, True), ("c2r", 1, False))


def loop_algorithm(problem: FftProblem) -> Algorithm | Refusal:
    """Returns the loops for a Problem, or the reason why they do not take it."""
    reason = _reason(problem)
    if reason:
        return Refusal("numpy", LOOPS, reason)
    precision, note = ("f64", "float32 computed in float64, as NumPy does") if problem.single else ("", "")
    return on_threads("numpy", LOOPS, 1, pool="", precision=precision, note=note)


def prepare_loops(problem: FftProblem) -> Any:
    """Returns the Plan of the loops for a Problem that `loop_algorithm` returned them for."""
    return LoopSteps(problem).plan()


class LoopSteps(Steps):
    """Writes down transforms by NumPy's loops, one axis after the other."""

    def __init__(self, problem: FftProblem) -> None:
        super().__init__(problem, 1, wide=problem.single)
        self.statuses = 0

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: Any,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        factor = 0 if scale == 1.0 else self.problem.normalisation
        last = axes[-1]
        self._line(kind, sign, source, target, last, lengths[-1], factor if len(axes) == 1 else 0)
        for axis, length in zip(axes[:-1], lengths[:-1], strict=True):
            self._line("c2c", sign, target, target, axis, length, factor if axis == axes[-2] else 0)

    def _line(self, kind: str, sign: int, source: Lay, target: Lay, axis: int, length: Any, normalisation: int | None) -> None:
        """Writes down transforms along one axis."""
        b = self.b
        odd = kind == "r2c" and bool(length % 2 == 1)
        found = _loop(kind, sign, odd)
        assert found is not None and normalisation is not None
        dims = batches(source, target, (axis,))
        dims = [(1, 0, 0)] * (AXES - len(dims)) + dims
        values = [
            *found, normalisation, self.problem.period, source.shape[axis], target.shape[axis],
            source.strides[axis], target.strides[axis], *(d[0] for d in dims), *(d[1] for d in dims), *(d[2] for d in dims),
        ]  # fmt: skip
        info = b.info(1)
        b.each()
        to = (info[0], info[1] + b.int_size * self.statuses, b.int_size)
        what = b.packed(f"<{len(values)}q", *values)
        b.call(_kernels.addresses["transform_ufunc"], [what, source.at, target.at], returns=3, to=to)
        b.each()
        self.statuses += 1

    def plan(self) -> Any:
        """Returns the finished plan."""
        b = self.b
        result = self.write()
        assert b.info_buffer is not None
        at = b.info_buffer[0]  # one status for each call, so that a later one that succeeds does not hide a failure
        b.buffers[at] = ("work", b.int_size * self.statuses)
        b.info_buffer = (at, b.int_size, self.statuses)
        return b.plan(result, on_info=_no_memory)


def _no_memory(plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
    raise failure(plan, "NumPy failed to run a Fourier transform", cause="there was no memory for its tables")
