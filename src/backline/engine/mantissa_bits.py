"""Relative errors as mantissa bits.

A result has p equivalent mantissa bits if it is as far from the exact result as that of operands rounded to p bits would be,
with nothing else rounded. So tf32, which rounds operands to 10 bits and sums in float32, has 10, and operands rounded to bf16
give 7, whatever the operation and however its error is judged. The error of rounded operands is computed, not estimated: once
for each set of operands, with few enough bits that nothing else shows; the error of p bits is that times a power of two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import LinAlgError
from ..problems import Problem, short
from . import accuracy
from .accuracy_wide import computed
from .double_double import widened
from .precision_cases import FORMATS

__all__ = ["MantissaBits", "rounded"]

Array = Any
# Bits that operands are rounded to, by those their format stores: few enough that nothing but this rounding shows.
COARSE = {52: 26, 23: 10, 10: 5, 7: 4}


def rounded(array: Array, bits: int) -> Array:
    """A copy of an array of floating-point numbers, every number rounded to so many bits of mantissa.

    Examples
    --------
    >>> rounded(np.array([1 + 2.0**-5, 1 + 2.0**-4]), 4)
    array([1.    , 1.0625])
    """
    if array.dtype.kind == "c":
        result = np.empty_like(array)
        result.real, result.imag = rounded(array.real, bits), rounded(array.imag, bits)
        return result
    mantissa, exponent = np.frexp(widened(array))  # of a mantissa below one the first bit is not stored in the format
    return np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1).astype(array.dtype)


class MantissaBits:
    """The measure of results of a Problem on given operands.

    Parameters
    ----------
    problem, arrays
        The Problem and its operands.
    """

    def __init__(self, problem: Problem, arrays: list[Array]) -> None:
        # The error of a solution that counts is the backward one: how far operands that are nearly singular make good solutions
        # differ is no property of an algorithm.
        self.reference = accuracy.Reference(problem, arrays, backward=True)
        self.stored = FORMATS[short(problem.dtype)].stored
        self.coarse = COARSE[self.stored]
        coarse = [
            rounded(x, self.coarse) if o.role != "out" and (x.dtype.kind in "fc" or x.dtype.name == "bfloat16") else x
            for o, x in zip(problem.operands, arrays, strict=True)
        ]
        try:
            with np.errstate(all="ignore"):
                self.unit = self.reference.error(computed(problem, coarse)) * 2.0**self.coarse
        except LinAlgError:  # of operands so close to having no result that rounding them takes it away
            self.unit = math.inf

    @property
    def measurable(self) -> bool:
        """Tells whether rounding the operands shows in the result at all, and in a finite amount."""
        return 0 < self.unit < math.inf

    def error(self, result: Any) -> float:
        """Relative error of a result."""
        return self.reference.error(result)

    def of(self, error: float) -> float:
        """Equivalent mantissa bits of an error; at most one more than the format stores, which an exact result has."""
        most = self.stored + 1.0
        if not error > 0:
            return most
        return min(max(math.log2(self.unit / error), 0.0), most) if math.isfinite(error) else 0.0
