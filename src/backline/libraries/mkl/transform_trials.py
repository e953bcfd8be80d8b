"""Accuracy of MKL's transforms where some lose digits: each is tried once, beside NumPy in float64, before it may be used.

What is lost depends on the length, the processor's instructions and the precision, by no rule that is known. On an Intel Xeon,
with kernels for AVX-512 (2026.2), 51 of 909 random transforms of float32 that are doubtful by the rules below, and 179 of 547
of float64, have over ten times NumPy's error, up to 2,000 and 2,700 times: `benchmarks/fft_accuracy.py --library mkl --untried`.
Real ones of float32 from 2^16 points on lose up to a digit and a half on some other processors.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from math import prod, sqrt
from typing import Any

import numpy as np

from ...problems import Operand
from ...problems.fft_problem import FftProblem
from ...problems.length_factors import largest_factor
from .. import fixed_order
from ..base import Algorithm
from ..reference import reference_fft

__all__ = ["LARGEST", "Trials", "chance_factor", "doubtful"]

Make = Callable[[FftProblem], Any]

LARGEST = 47  # prime factor that is not transformed by a convolution
REAL_FROM, REAL_TO = 1 << 16, 1 << 24  # points of real transforms of float32 that are doubtful by any kernels
MOST_POINTS = 1 << 25  # in all axes, of the largest transform that is tried
MOST_AT_ONCE = 1 << 22  # points of a batch; of a larger one so many are tried
# Relative errors that are allowed, in the Euclidean norm: of float32 a little less than ten times NumPy's, which computes in
# float64 and has 2.5e-8; of float64, against NumPy's result, between what is usual (4e-16 to 8e-16) and what loses a digit.
ALLOWED = {"float32": 2.4e-7, "float64": 1.2e-15}
FEW, DRAWS = 2048, 4  # numbers below which the error depends much on chance, and how often it is measured then
KEPT = 4096  # errors that trials found


def doubtful(p: FftProblem, avx512: bool) -> bool:
    """Tells whether a transform in its input's precision may lose digits by MKL's kernels, with or without those for AVX-512."""
    if not p.single:
        return avx512 and any(n > largest_factor(n) >= 17 for n in p.lengths)
    if p.needs_double(LARGEST) or (avx512 and not all(map(_short_and_smooth, p.lengths))):
        return True
    real = p.op != "fft.c2c" or p.dtype.kind != "c"
    return real and REAL_FROM <= p.lengths[-1] <= REAL_TO


def _short_and_smooth(n: int) -> bool:
    """Tells whether kernels for AVX-512 were right: up to 4096 points; and powers of two, or 64 times 2, 3 and 5, above it."""
    if n & (n - 1) == 0:
        return n <= 1 << 20
    factor = largest_factor(n)
    return (n <= 4096 and factor <= 13) or (n <= 1 << 17 and n % 64 == 0 and factor <= 5)


_lock = threading.RLock()  # of all trials, so that nothing is tried twice


def _new_lock() -> None:
    """In a forked child: the thread that held it is not there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


class Trials:
    """Errors that trials in this process found, the latest `KEPT`."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[FftProblem, str, int], float] = OrderedDict()

    def refusal(self, p: FftProblem, algorithm: Algorithm, make: Make) -> str:
        """Returns the reason why an algorithm must not compute a Problem that is `doubtful`, or an empty string.

        `make` returns the Plan of the algorithm for a Problem.
        """
        if p.points > MOST_POINTS:
            return f"some lengths lose digits, and one of {p.points} points is too large to be tried"
        dtype, allowed = p.real.name, ALLOWED[p.real.name]
        try:
            error = self.error(p, algorithm, make)
        except Exception as failed:  # which may succeed the next time
            return f"whether it loses digits could not be tried: {type(failed).__name__}: {failed}"
        if error <= allowed:
            return ""
        points = "x".join(map(str, p.lengths))
        return f"loses digits at {points} points: relative error {error:.1e} in {dtype}, tried now; {allowed:.1e} is allowed"

    def error(self, p: FftProblem, algorithm: Algorithm, make: Make) -> float:
        """Returns the error that was found before, or by trials now.

        MKL has other kernels for one transform than for several. So a trial of several has two at least, and where they are
        computed in pieces, of which the last may be one transform, one alone is tried as well.
        """
        tried = [_smaller(p, max(2, algorithm.threads), MOST_AT_ONCE)]
        if algorithm.name.endswith(fixed_order.SUFFIX) and tried[0].items > 1:
            tried.append(_smaller(p, 1, 1))
        with _lock:
            return max(self._error_of(each, algorithm, make) for each in tried)

    def _error_of(self, p: FftProblem, algorithm: Algorithm, make: Make) -> float:
        key = p, algorithm.key, algorithm.threads
        if key not in self._found:
            self._found[key] = self.measure(p, make)
            if len(self._found) > KEPT:
                self._found.popitem(last=False)
        return self._found[key]

    def measure(self, p: FftProblem, make: Make) -> float:
        """Returns the error of random transforms, relative to NumPy's result in float64; infinity where it is no number.

        It is the larger of two: of all transforms together, and of the worst of them, divided by what chance explains.
        """
        plan = make(p)
        arrays = [o.empty() for o in p.operands]
        x = next(array for o, array in zip(p.operands, arrays, strict=True) if o.role == "input")
        wide = np.dtype(np.complex128 if x.dtype.kind == "c" else np.float64)
        exact = reference_fft.plan(replace(p, operands=(Operand.contiguous("input", wide, x.shape),)))
        errors, rng = [], np.random.default_rng(0)
        for _ in range(DRAWS if x.size < FEW else 1):
            _fill(x, rng)
            reference = exact(x.astype(wide, order="C"))
            sizes = _squares(reference, p.axes)
            np.subtract(plan(*arrays), reference, out=reference)
            off = _squares(reference, p.axes)
            errors.append(sqrt(np.sum(off) / (np.sum(sizes) or 1.0)))  # an input without elements is zeros
            errors.append(sqrt(np.max(off / np.where(sizes > 0, sizes, 1.0))) / chance_factor(p.points))
        return float(np.nan_to_num(np.max(errors), nan=np.inf, posinf=np.inf))


def chance_factor(points: int) -> float:
    """Returns how many times the usual error a single transform of so many points may have by chance."""
    return 1 + 4 / sqrt(2 * points)


def _smaller(p: FftProblem, least: int, most: int) -> FftProblem:
    """A Problem with as many of the transforms as have `most` points in all, or `least` of them, along the last axes first."""
    shape = [1 if axis in p.axes else n for axis, n in enumerate(p.result)]
    left = max(most // p.points, least)
    for axis in range(len(shape)):
        shape[axis] = min(shape[axis], max(left // prod(shape[axis + 1 :]), 1))
    if prod(shape) == p.items:
        return p

    def cut(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n if axis in p.axes else shape[axis] for axis, n in enumerate(sizes))

    return replace(p, operands=tuple(replace(o, shape=cut(o.shape)) for o in p.operands), result=cut(p.result))


def _fill(array: Any, rng: np.random.Generator) -> None:
    """Uniform numbers between -0.5 and 0.5."""
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    for part in parts:
        part[...] = rng.random(array.shape, part.dtype) - part.dtype.type(0.5)


def _squares(x: Any, axes: tuple[int, ...]) -> Any:
    # Not by `np.linalg.norm`: its call of BLAS would be recorded as one of the program's.
    return np.sum(x.real**2, axis=axes) + np.sum(x.imag**2, axis=axes)
