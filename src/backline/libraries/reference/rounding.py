"""Float32 numbers rounded to fewer bits of mantissa, in NumPy alone: what tf32 and bf16 keep of an operand.

Both have float32's sign and eight bits of exponent, so rounding is a matter of the mantissa: tf32 stores 10 bits of it, bf16
stores 7. The result stays float32, with zeros in the bits that are gone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import BadType, BadValue

__all__ = ["STORED", "round_to", "unit"]

STORED = {"tf32": 10, "bf16": 7}
"""Precision to the bits of mantissa it stores; float32 stores 23."""

# Elements at a time: what rounding needs beside the result stays in cache.
BLOCK = 1 << 15
SIGN, INFINITY = np.uint32(0x80000000), np.uint32(0x7F800000)


def unit(precision: str) -> float:
    """Unit roundoff of a precision: the largest relative error of rounding one normal number to it.

    Examples
    --------
    >>> unit("tf32") == 2.0**-11, unit("bf16") == 2.0**-8
    (True, True)
    """
    return 2.0 ** -(_stored(precision) + 1)


def round_to(array: np.ndarray[Any, Any], precision: str) -> np.ndarray[Any, Any]:
    """A copy of an array, every number rounded to the nearest that a reduced precision has; ties go to the even one.

    Parameters
    ----------
    array
        float32 or complex64 (rounded by parts), of any strides. It is not changed.
    precision
        "tf32" or "bf16".

    Returns
    -------
    ndarray
        A new C-contiguous array of the same shape and dtype.

    Raises
    ------
    BadType
        For another dtype.
    BadValue
        For another precision.

    Notes
    -----
    Exponents are float32's, subnormal numbers included: those are rounded to multiples of the smallest subnormal number that
    the precision has (2**-136 for tf32, 2**-133 for bf16). What lies half a step or more above the largest finite number becomes
    infinity. Infinities, NaN (every bit of it) and the sign of zero are kept. The cost is some passes over memory: about that of
    a copy and a few additions.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 3.0, -np.inf], np.float32)
    >>> round_to(x, "tf32") == [1, 1 + 2.0**-9, 3, -np.inf]
    array([ True,  True,  True,  True])
    """
    dropped = 23 - _stored(precision)
    given = np.asarray(array)
    if given.dtype not in (np.dtype(np.float32), np.dtype(np.complex64)):
        raise BadType(
            f"an array of {given.dtype} cannot be rounded to {precision}",
            cause="reduced precision concerns float32 and complex64 only",
            remedy=f"x.astype(np.{'complex64' if given.dtype.kind == 'c' else 'float32'})",
        )
    result = np.array(given, order="C", copy=True)
    bits = result.reshape(-1).view(np.uint32)
    for start in range(0, bits.size, BLOCK):
        _round(bits[start : start + BLOCK], dropped)
    return result


def _stored(precision: str) -> int:
    if precision not in STORED:
        raise BadValue(f"there is no reduced precision {precision!r}", remedy=f"one of: {', '.join(STORED)}")
    return STORED[precision]


def _round(bits: np.ndarray[Any, Any], dropped: int) -> None:
    """Round the float32 numbers with these bits in place.

    Adding just under half of the last bit that stays, and one more where that bit is set, carries into it exactly if the number
    is to be rounded up. A carry out of the mantissa goes into the exponent, as it should: the next power of two, the smallest
    normal number, or infinity. A NaN must not be carried anywhere, so it is put back.
    """
    nan = (bits & ~SIGN) > INFINITY
    kept = bits[nan] if nan.any() else None
    carry = bits >> np.uint32(dropped)
    carry &= np.uint32(1)
    carry += np.uint32((1 << (dropped - 1)) - 1)
    bits += carry
    bits &= np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    if kept is not None:
        bits[nan] = kept
