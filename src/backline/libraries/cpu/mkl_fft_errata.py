"""Errata of MKL's Fourier transforms: lengths at which its kernels are wrong or lose digits, with what was seen.

Every condition is a pure function of a Problem. How the arrays lie, the number of transforms and the number of threads are left
out of the conditions on purpose: how MKL divides transforms among its kernels is not documented.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...problems.fft import FftProblem, largest_factor
from ..maps import mapped_files

__all__ = ["ERRATA", "FftErratum", "applying", "kernels", "matching", "of_large_factors", "of_single_lengths", "of_single_tails"]

# The AVX-512 kernels for float32 have 10 times NumPy's error or more at many lengths. These are the ones without: lengths up to
# FEW_POINTS without a prime factor above 13, multiples of BLOCK without one above 5 up to SOME_POINTS, and powers of two up to
# MANY_POINTS.
FEW_POINTS, SOME_POINTS, MANY_POINTS, BLOCK = 4096, 1 << 17, 1 << 20, 64
TAILS_FROM = 8192


def of_large_factors(p: FftProblem) -> bool:
    """Some length has a prime factor of 17 or more and is no prime itself."""
    return any(largest_factor(n) >= 17 and largest_factor(n) != n for n in p.lengths)


def of_single_lengths(p: FftProblem) -> bool:
    """Some length is large or has large prime factors, as `_accurate_in_single` has it."""
    return not all(_accurate_in_single(n) for n in p.lengths)


def of_single_tails(p: FftProblem) -> bool:
    """The last length is even, 8192 or more, and no multiple of 64."""
    n = p.lengths[-1]
    return n >= TAILS_FROM and n % 2 == 0 and n % BLOCK != 0


def _accurate_in_single(n: int) -> bool:
    """Return whether transforms of n points in float32 stay below 10 times NumPy's error."""
    if n & (n - 1) == 0:
        return n <= MANY_POINTS
    factor = largest_factor(n)
    return (n <= FEW_POINTS and factor <= 13) or (n <= SOME_POINTS and n % BLOCK == 0 and factor <= 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FftErratum:
    """One defect.

    Attributes
    ----------
    id
        Its name.
    operations, single
        Operations of Problems, and whether they are those in float32 or those in float64.
    isa
        Instruction set of the kernels that have the defect.
    since, before
        First version with the defect, and first one without it; "" where not known.
    condition
        The condition in words.
    evidence
        What was seen, and where.
    holds
        The condition as a function of the Problem.
    """

    id: str
    operations: tuple[str, ...]
    single: bool
    isa: str
    condition: str
    evidence: str
    holds: Callable[[FftProblem], bool]
    since: str = ""
    before: str = ""

    def concerns(self, problem: FftProblem) -> bool:
        """Return whether a Problem has the defect, on kernels that have it."""
        return problem.op in self.operations and problem.single == self.single and self.holds(problem)

    def reason(self) -> str:
        """Return the reason of a refusal."""
        return f"erratum {self.id}: {self.condition}; {self.evidence}"


ALL = ("fft.c2c", "fft.r2c", "fft.c2r")

ERRATA = (
    FftErratum(
        id="mkl-dft-single-tail",
        operations=("fft.c2r",),
        single=True,
        isa="avx512",
        condition="real results in float32 of an even length from 8192 on that 64 does not divide are wrong",
        evidence="errors of 1 to 8 % of the largest element wherever length mod 64 was 36 to 62 and the transform a single one, "
        "from 8232 to 1547910 points (MKL 2026.2, AVX-512)",
        holds=of_single_tails,
    ),
    FftErratum(
        id="mkl-dft-single-digits",
        operations=ALL,
        single=True,
        isa="avx512",
        condition="transforms in float32 lose digits at lengths with prime factors above 13 and at most lengths above 4096",
        evidence="relative errors up to 4e-4 (906770 points), 4e-7 at 16807 points, NumPy 2.5e-8 (MKL 2026.2, AVX-512)",
        holds=of_single_lengths,
    ),
    FftErratum(
        id="mkl-dft-double-digits",
        operations=ALL,
        single=False,
        isa="avx512",
        condition="transforms in float64 lose digits at lengths with prime factors of 17 and more, primes themselves left out",
        evidence="up to 200 times NumPy's error at 1606 of the 4298 lengths 2 to 4299 (1030 points: 3e-14), 2800 times at 780563 "
        "points (MKL 2026.2, AVX-512)",
        holds=of_large_factors,
    ),
)


def kernels(path: str) -> str:
    """Name of the kernels that an MKL has loaded ("def", "avx2", "avx512"); "" where its files do not tell.

    Parameters
    ----------
    path
        Its ``libmkl_rt``.
    """
    folder = os.path.dirname(os.path.realpath(path))
    for file in mapped_files():
        real = os.path.realpath(file.path)
        name = re.fullmatch(r"libmkl_(def|mc3?|avx\w*)\.so[.\d]*", os.path.basename(real))
        if name is not None and os.path.dirname(real) == folder:
            return name[1]
    return ""


def applying(loaded: str) -> tuple[FftErratum, ...]:
    """The errata of an MKL that has loaded these kernels; those that are not known may have every defect."""
    return () if loaded in ("def", "mc", "mc3", "avx", "avx2") else ERRATA


def matching(errata: tuple[FftErratum, ...], problem: FftProblem) -> Iterator[FftErratum]:
    """Yield the errata that a Problem falls under."""
    for erratum in errata:
        if erratum.concerns(problem):
            yield erratum
