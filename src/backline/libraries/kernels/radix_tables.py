"""Which passes a length is made of, and the numbers that they multiply with.

Prime factors above 13 are summed up by definition where that costs less than a convolution (C. M. Rader, "Discrete Fourier
transforms when the number of data samples is prime", Proceedings of the IEEE 56, 1968), as it does for most up to 83. A
convolution is the last pass of a line, which has one prime factor at most that is worth it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from ...problems import Operand
from ...problems.fft_problem import FftProblem
from ...problems.length_factors import SMOOTH, largest_factor
from ..reference import reference_fft

__all__ = [
    "BY_DEFINITION", "Convolution", "circle", "convolution", "convolutions", "passes", "radices", "sides", "table", "turns",
]  # fmt: skip

BY_DEFINITION = 401  # largest prime factor that may be: kLargestRadix of radix_passes.hpp
PASS, DEFINED, CONVOLVED = 2.0, 0.3, 8.0  # cost of a point in any pass, in one by definition for each point of it, beside passes
LONGEST, SOME = 1 << 15, 8  # points of a convolution, of twice as many as the longest side has; lengths that are looked at
PI, NOTHING = np.arctan(np.longdouble(1)) * 4, 1e-12


@lru_cache(maxsize=256)
def sides(points: int) -> tuple[int, int]:
    """Returns the two numbers whose product a length is that are the nearest to each other, the smaller one first.

    Examples
    --------
    >>> sides(353525), sides(4096), sides(7919)
    ((395, 895), (64, 64), (1, 7919))
    """
    one = next(n for n in range(isqrt(points), 0, -1) if points % n == 0)
    return one, points // one


@lru_cache(maxsize=256)
def radices(points: int) -> tuple[int, ...]:
    """Returns the radices of the passes whose product a length is, in their order.

    Examples
    --------
    >>> radices(46), radices(640), radices(1)
    ((2, 23), (4, 4, 8, 5), (1,))
    """
    found: list[int] = []
    twos = (points & -points).bit_length() - 1
    rest, odd = points >> twos, 3
    while twos:
        step = 2 if twos in (2, 4) else min(twos, 3)
        found.append(1 << step)
        twos -= step
    found.sort()
    while rest > 1:
        while rest % odd == 0:
            found.append(odd)
            rest //= odd
        odd += 2
    return tuple(found) or (1,)


class Convolution(NamedTuple):
    """How transforms of a prime number of points are convolved: by transforms of `points`. Both are 0 where none are."""

    prime: int = 0
    points: int = 0

    def tables(self, dtype: Any) -> Iterator[Any]:
        """Yields powers of a root, what the spectrum is multiplied with, and what its passes are."""
        order = powers(self.prime)
        yield order.astype(f"i{dtype.itemsize // 2}").view(dtype)
        turned = circle(order, self.prime, np.dtype(np.complex128))
        wave = np.zeros(self.points, np.complex128)
        # It is periodic, and goes on before its beginning: at the end, of which its beginning may need the first place.
        wave[1 - self.prime :] = wave[: self.prime - 1] = np.roll(turned[::-1], 1)
        yield (_transformed(wave) / self.points).astype(dtype)
        yield from factors(self.points, radices(self.points), dtype)


@lru_cache(maxsize=256)
def convolution(points: int) -> Convolution:
    """Returns how the largest prime factor of a length is convolved, if it is.

    Examples
    --------
    >>> convolution(2 * 1327), convolution(1319), convolution(2 * 61 * 61)
    (Convolution(prime=1327, points=1326), Convolution(prime=1319, points=2744), Convolution(prime=0, points=0))
    """
    prime = largest_factor(points)
    if prime <= SMOOTH:
        return Convolution()
    begin = bisect_left(_smooth(), 2 * prime - 3)
    lengths = _smooth()[begin : begin + SOME]
    if largest_factor(prime - 1) <= BY_DEFINITION:
        lengths = [prime - 1, *lengths]
    best = min(lengths, key=_cost)
    defined = prime * (PASS + DEFINED * prime)
    return Convolution(prime, best) if prime > BY_DEFINITION or 2 * _cost(best) + CONVOLVED * prime < defined else Convolution()


def convolutions(one: int, other: int, single: bool) -> tuple[Convolution, Convolution] | None:
    """Returns how both sides of a divided line are convolved, or None where too many digits would be lost.

    In float32 two convolutions, one after the other, may have more than ten times NumPy's error: one of them is by definition.

    Examples
    --------
    >>> [bool(side.prime) for side in convolutions(1019, 1021, single=False) or ()], convolutions(1019, 1021, single=True)
    ([True, True], None)
    >>> [bool(side.prime) for side in convolutions(397, 1021, single=True) or ()]
    [False, True]
    """
    both = convolution(one), convolution(other)
    if not single or not all(side.prime for side in both):
        return both
    shorter = min(both).prime
    if shorter > BY_DEFINITION:
        return None
    return (Convolution(), both[1]) if both[0].prime == shorter else (both[0], Convolution())


def _cost(points: int) -> float:
    return points * sum(PASS + DEFINED * (radix if radix % 2 else 6) for radix in radices(points))


@lru_cache(maxsize=1)
def _smooth() -> list[int]:
    """All numbers without prime factors above 7 up to the largest convolution."""
    found = [1]
    for prime in (2, 3, 5, 7):
        for n in found:  # which grows meanwhile
            if n * prime <= LONGEST:
                found.append(n * prime)
    return sorted(found)


def powers(prime: int) -> Any:
    """Returns all residues but 0 as powers of one of them, from 1 on: of the least whose powers they are.

    Examples
    --------
    >>> powers(7)
    array([1, 3, 2, 6, 4, 5])
    """
    count = rest = prime - 1
    factors = set()
    while rest > 1:
        factors.add(largest_factor(rest))
        rest //= largest_factor(rest)
    root = next(root for root in range(2, prime) if all(pow(root, count // n, prime) != 1 for n in factors))
    found = np.ones(1, np.int64)
    while len(found) < count:
        found = np.concatenate([found, found * (int(found[-1]) * root % prime) % prime])
    return found[:count]


@lru_cache(maxsize=8)  # for the axes of one array: plans keep theirs
def table(points: int, dtype: Any, halves: bool, convolved: Convolution) -> tuple[Any, int, int]:
    """Returns the complex numbers that passes multiply with, and where those of the passes and of a convolution begin.

    They lie one pass behind the other, as radix_passes.hpp reads them. With `halves`, before them lie those by which results of
    twice as many real points become of these.
    """
    before = [circle(np.arange(points + 1), 2 * points, dtype)] if halves else []
    parts = [*before, *factors(points, passes(points, convolved), dtype)], [*convolved.tables(dtype)] if convolved.prime else []
    begin, last = (sum(part.size for part in some) for some in (before, parts[0]))
    return np.concatenate([part.ravel() for some in parts for part in (*some, np.zeros(0, dtype))]), begin, last


def passes(points: int, convolved: Convolution) -> tuple[int, ...]:
    """Returns the radices of the passes of a length before the one that is convolved, if there is one.

    Examples
    --------
    >>> passes(2 * 3 * 1327, convolution(1327)), passes(1327, convolution(1327)), passes(35, Convolution())
    ((2, 3), (), (5, 7))
    """
    if not convolved.prime:
        return radices(points)
    return radices(points // convolved.prime) if points > convolved.prime else ()


def factors(points: int, radices: tuple[int, ...], dtype: Any) -> Iterator[Any]:
    """Yields the factors of passes over so many points, as radix_passes.hpp reads them."""
    for radix in radices:
        rest = points // radix
        if radix % 2:
            half = np.arange(1, (radix - 1) // 2 + 1)
            yield circle(np.outer(half, half) % radix, radix, dtype).conj()
        if rest > 1:
            yield circle(np.outer(np.arange(rest), np.arange(1, radix)), points, dtype)
        points = rest


def turns(one: int, other: int, sign: int, dtype: Any) -> Any:
    """Returns what the results of the first lines of a divided one are multiplied with, a row for each of their points."""
    found = circle(np.outer(np.arange(one), np.arange(other)), one * other, dtype)
    return found.conj() if sign > 0 else found


def circle(which: Any, points: int, dtype: Any) -> Any:
    """Returns exp(-2 pi i which / points) for numbers from 0 up to `points`, from two tables of about as many entries."""
    step, wide = isqrt(points) + 1, np.clongdouble if dtype == np.complex128 else np.complex128
    near, far = (_turned(np.arange(*some), points).astype(wide) for some in ((step,), (0, points + 1, step)))
    rows, columns = np.divmod(which, step)
    found = near[columns] * far[rows]
    for part in (found.real, found.imag):
        part[np.abs(part) < NOTHING] = 0  # at quarters of the circle, where results of real numbers are real
    return found.astype(dtype)


def _turned(which: Any, points: int) -> Any:
    angles = which.astype(np.longdouble) * (-2 * PI / points)
    return np.cos(angles) + 1j * np.sin(angles)


def _transformed(numbers: Any) -> Any:
    operands = (Operand.contiguous("input", numbers.dtype, numbers.shape),)
    return reference_fft.plan(FftProblem("fft.c2c", operands, axes=(0,), lengths=numbers.shape, result=numbers.shape))(numbers)
