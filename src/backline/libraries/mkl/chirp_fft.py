"""Transforms at lengths with a large prime factor, by complex transforms of lengths that MKL is good at.

With w[j] = exp(sign pi i j^2 / n), a transform is w[k] times the sum of x[j] w[j] conj(w[k - j]) over j: convolved with a chirp
(L. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", IEEE Transactions on Audio and
Electroacoustics 18, 1970). MKL takes this way itself, and in float32 loses a little more than a digit. Here it loses a little
less: factors are computed in float64, products rounded once, and the convolution has a length at which MKL's own error is the
least. It has only so many points as are read and written: of real transforms half of one side is left out.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native.plan_builder import Pointer, shift
from ...problems import Operand
from ...problems.fft_problem import FftProblem
from ...problems.length_factors import largest_factor
from ..blas.cblas import BlasTraits
from ..fft_steps import MOST_OFFSETS, Dim, Lay, batches, offsets
from ..kernels.vector_level import vector_level
from ..reference import reference_fft
from .mkl_fft import DftiSteps
from .transform_trials import LARGEST

__all__ = ["ChirpSteps", "convolution_length", "convolved"]

FROM, TO = 129, 1 << 20  # points: fewer lose little as they are, and more lose too much in any case
FACTORS = 1, 3, 5  # of powers of 2, the lengths at which MKL's error in float32 is the least
TAKEN, GIVEN = 1, 2  # the number or the result, as in transforms.cpp, is real at an end
DTYPES = "float32", "float64", "complex64", "complex128"


def convolved(p: FftProblem) -> bool:
    """Tells whether a Problem is of transforms of one axis, of a length with a large prime factor."""
    if p.dtype.name not in DTYPES or p.op == "fft.r2r" or len(p.axes) != 1 or p.items > MOST_OFFSETS:
        return False
    return FROM <= p.points <= TO and largest_factor(p.points) > LARGEST


def convolution_length(taken: int, given: int) -> int:
    """Returns how many points a convolution has that makes `given` numbers of `taken` ones.

    Examples
    --------
    >>> convolution_length(131, 131), convolution_length(1009, 505), convolution_length(422957, 422957)
    (320, 1536, 1048576)
    """
    return min(factor << max((-(-(taken + given - 1) // factor) - 1).bit_length(), 0) for factor in FACTORS)


def tables(kind: str, points: int, sign: int, scale: float) -> tuple[Any, Any, Any]:
    """Returns what inputs are multiplied with, their transforms, and results: complex128.

    `kind` is "c2c", "r2c" or "c2r", in which the half of the input that is missing counts by the other one.
    """
    half = points // 2 + 1
    taken, given = (half if kind == "c2r" else points), (half if kind == "r2c" else points)
    j = np.arange(points, dtype=np.int64)
    chirp = np.exp(sign * 1j * np.pi * (j * j % (2 * points)) / points)
    other = np.zeros(convolution_length(taken, given), np.complex128)
    other[:given] = chirp[:given].conj()
    other[len(other) - taken + 1 :] = chirp[taken - 1 : 0 : -1].conj()
    operands = (Operand.contiguous("input", other.dtype, other.shape),)
    whole = FftProblem("fft.c2c", operands, axes=(0,), lengths=other.shape, result=other.shape)
    before = chirp[:taken].copy()
    if kind == "c2r":
        before[1 : points - half + 1] *= 2
    return before, reference_fft.plan(whole)(other) * (scale / len(other)), chirp[:given].copy()


class ChirpSteps(DftiSteps):
    """Writes down convolutions: whole lines, one after the other or divided among the threads, or one line on all threads."""

    def __init__(self, traits: BlasTraits, problem: FftProblem, threads: int, *, divided: bool = False) -> None:
        super().__init__(traits, problem, threads, divided=divided or threads == 1 or problem.items >= threads)

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: float,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        b, (axis,), (points,) = self.b, axes, lengths
        before, factors, after = tables(kind, points, sign, scale)
        b.keep += [before, factors, after]
        length, item = len(factors), self.complex.itemsize
        descriptor = self.descriptor("c2c", (length,), ((1,), (1,)), (1, 0, 0), 1.0)
        line, spectrum = (b.work(length * item, shared=not self.divided) for _ in range(2))
        dims = batches(source, target, axes)
        count = prod(d[0] for d in dims)
        ends = 1, int(points % 2 == 0)  # the last element of half a spectrum is real where the length is even
        taken, given = (tuple(side * end for end in ends) for side in (TAKEN * (kind == "c2r"), GIVEN * (kind == "r2c")))

        def convolve(here: Pointer, there: Pointer, lines: int) -> None:
            self.weight(before, length, here, source.strides[axis], line, item, real_numbers=kind == "r2c", real_ends=taken)
            self.compute(-1, descriptor, line, spectrum)
            self.statuses += lines
            self.weight(factors, length, spectrum, item, spectrum, item)
            self.compute(1, descriptor, spectrum, line)
            self.statuses += lines
            self.weight(after, len(after), line, item, there, target.strides[axis], real_results=kind == "c2r", real_ends=given)

        b.each()
        if self.divided:
            convolve(*lines_of(source, target, dims), count)
            b.each(count, self.threads)
            return
        for here, there in zip(offsets(dims, 1), offsets(dims, 2), strict=True):
            convolve(shift(source.at, here), shift(target.at, there), 1)

    def weight(
        self, table: Any, length: int, source: Pointer, step: int, target: Pointer, to_step: int,
        *, real_numbers: bool = False, real_results: bool = False, real_ends: tuple[int, ...] = (0, 0),
    ) -> None:  # fmt: skip
        """Multiplies numbers with a table, and fills the target up to `length` with zeros; of one line, on all threads.

        `real_ends` says of the first and of the last number whether its imaginary part counts as 0 (TAKEN), or that of the
        result is written as 0 (GIVEN).
        """
        count, address, function = len(table), table.ctypes.data, _kernels.addresses["transform_weight"]
        fixed, (starts, ends) = (vector_level(), self.real.itemsize, int(real_numbers), int(real_results)), real_ends
        if self.divided:
            what = self.b.packed("<10q", *fixed, starts, ends, count, length - count, step, to_step)
            self.b.call(function, [what, address, source, target])
            return
        self.b.each()
        part = -(-length // self.threads)
        firsts = range(0, length, part)
        whats: list[int] = []
        for first in firsts:
            numbers, whole = max(min(count - first, part), 0), min(length - first, part)
            at_end = first < count <= first + part
            whats += [*fixed, starts * (first == 0), ends * at_end, numbers, whole - numbers, step, to_step]
        begins = [min(first, count) for first in firsts]
        here = source[0], source[1], tuple(n * step for n in begins)
        there = target[0], target[1], tuple(first * to_step for first in firsts)
        buffer, start, _ = self.b.packed(f"<{len(whats)}q", *whats)
        what = buffer, start, 8 * len(whats) // len(firsts)
        self.b.call(function, [what, [address + n * table.itemsize for n in begins], here, there])
        self.b.each(len(firsts), self.threads)


def lines_of(source: Lay, target: Lay, dims: list[Dim]) -> tuple[Pointer, Pointer]:
    """Returns where each line begins in both arrays."""
    if len(dims) == 1:
        return (source.at[0], source.at[1], dims[0][1]), (target.at[0], target.at[1], dims[0][2])
    return (source.at[0], source.at[1], offsets(dims, 1)), (target.at[0], target.at[1], offsets(dims, 2))
