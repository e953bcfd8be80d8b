"""Complex transforms of float32 at lengths with a large prime factor, by transforms of lengths that MKL is good at.

With w[j] = exp(sign pi i j^2 / n), a transform is w[k] times the sum of x[j] w[j] conj(w[k - j]) over j: convolved with a chirp
(L. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", IEEE Transactions on Audio and
Electroacoustics 18, 1970). MKL takes this way itself, and loses a little more than a digit. Here it loses a little less: factors
are computed in float64, products rounded once, and the convolution has a length at which MKL's own error is the least.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native.plan_builder import Pointer, shift
from ...problems import Operand
from ...problems.fft_problem import FftProblem, largest_factor
from ..blas.cblas import BlasTraits
from ..fft_steps import Dim, Lay, batches, offsets
from ..kernels.vector_level import vector_level
from ..reference import reference_fft
from .mkl_fft import DftiSteps
from .transform_trials import LARGEST

__all__ = ["ChirpSteps", "convolution_length", "convolved"]

FROM, TO = 129, 1 << 20  # points: fewer lose little as they are, and more lose too much in any case
FACTORS = 1, 3, 5  # of powers of 2, the lengths at which MKL's error in float32 is the least
ITEM = np.dtype(np.complex64).itemsize


def convolved(p: FftProblem) -> bool:
    """Tells whether a Problem is of complex transforms of one axis in float32 that have a large prime factor."""
    if p.dtype != np.complex64 or p.op != "fft.c2c" or len(p.axes) != 1:
        return False
    return FROM <= p.points <= TO and largest_factor(p.points) > LARGEST


def convolution_length(points: int) -> int:
    """Returns how many points a convolution has that transforms so many.

    Examples
    --------
    >>> convolution_length(131), convolution_length(1009), convolution_length(422957)
    (320, 2048, 1048576)
    """
    return min(factor << max((-(-(2 * points - 1) // factor) - 1).bit_length(), 0) for factor in FACTORS)


def tables(points: int, length: int, sign: int, scale: float) -> tuple[Any, Any]:
    """Returns the chirp, and the transform of its conjugate over `length` points times `scale` / `length`; both complex128."""
    j = np.arange(points, dtype=np.int64)
    chirp = np.exp(sign * 1j * np.pi * (j * j % (2 * points)) / points)
    other = np.zeros(length, np.complex128)
    other[:points] = chirp.conj()
    other[length - points + 1 :] = other[points - 1 : 0 : -1]
    operands = (Operand.contiguous("input", other.dtype, other.shape),)
    whole = FftProblem("fft.c2c", operands, axes=(0,), lengths=(length,), result=other.shape)
    factors = reference_fft.plan(whole)(other) * (scale / length)
    return chirp, factors


class ChirpSteps(DftiSteps):
    """Writes down convolutions: whole lines, one after the other or divided among the threads, or one line on all threads."""

    def __init__(self, traits: BlasTraits, problem: FftProblem, threads: int, *, divided: bool = False) -> None:
        super().__init__(traits, problem, threads, divided=divided or threads == 1 or problem.items >= threads)

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: float,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        b, (axis,), (points,) = self.b, axes, lengths
        length = convolution_length(points)
        chirp, factors = tables(points, length, sign, scale)
        b.keep += [chirp, factors]
        descriptor = self.descriptor(kind, (length,), ((1,), (1,)), (1, 0, 0), 1.0)
        line, spectrum = (b.work(length * ITEM, shared=not self.divided) for _ in range(2))
        steps = source.strides[axis], target.strides[axis]
        dims = batches(source, target, axes)
        count = prod(d[0] for d in dims)

        def convolve(here: Pointer, there: Pointer, lines: int) -> None:
            self.weight(chirp, points, length, here, steps[0], line, ITEM)
            self.compute(-1, descriptor, line, spectrum)
            self.statuses += lines
            self.weight(factors, length, length, spectrum, ITEM, spectrum, ITEM)
            self.compute(1, descriptor, spectrum, line)
            self.statuses += lines
            self.weight(chirp, points, points, line, ITEM, there, steps[1])

        b.each()
        if self.divided:
            convolve(*self.lines_of(source, target, dims), count)
            b.each(count, self.threads)
            return
        for here, there in zip(offsets(dims, 1), offsets(dims, 2), strict=True):
            convolve(shift(source.at, here), shift(target.at, there), 1)

    def lines_of(self, source: Lay, target: Lay, dims: list[Dim]) -> tuple[Pointer, Pointer]:
        """Returns where each line begins in both arrays."""
        if len(dims) == 1:
            return (source.at[0], source.at[1], dims[0][1]), (target.at[0], target.at[1], dims[0][2])
        return (source.at[0], source.at[1], offsets(dims, 1)), (target.at[0], target.at[1], offsets(dims, 2))

    def weight(self, table: Any, count: int, length: int, source: Pointer, step: int, target: Pointer, to_step: int) -> None:
        """Multiplies `count` numbers with a table, and fills the target up to `length` with zeros; alone, on all threads."""
        address, function, level = table.ctypes.data, _kernels.addresses["transform_weight"], vector_level()
        if self.divided:
            self.b.call(function, [self.b.packed("<5q", level, count, length - count, step, to_step), address, source, target])
            return
        self.b.each()
        part = -(-length // self.threads)
        firsts = range(0, length, part)
        whats = []
        for first in firsts:
            numbers, whole = max(min(count - first, part), 0), min(length - first, part)
            whats += [level, numbers, whole - numbers, step, to_step]
        here = source[0], source[1], tuple(min(first, count) * step for first in firsts)
        there = target[0], target[1], tuple(first * to_step for first in firsts)
        buffer, start, _ = self.b.packed(f"<{len(whats)}q", *whats)
        factors = [address + min(first, count) * table.itemsize for first in firsts]
        self.b.call(function, [(buffer, start, 5 * 8), factors, here, there])
        self.b.each(len(firsts), self.threads)
