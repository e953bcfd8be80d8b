"""Prime factors of the lengths of transforms, as far as the times of libraries depend on them.

Each library has kernels of its own for small factors, and a way of its own to do without them, by definition or by a convolution;
real transforms of odd length go other ways than even ones, and images whose rows are powers of two apart meet in few cache sets.
"""

from __future__ import annotations

import math
from functools import lru_cache

__all__ = ["SMOOTH", "factors_of", "largest_factor", "lengths_in"]

SMOOTH = 13  # largest prime factor of the lengths that libraries have kernels for
UNIT = 8  # what larger ones are measured by: that there is one makes a difference beside its size
TWOS = 4  # more factors of two than this make no difference
HALVED = ("irfft", "hfft")  # how names of functions begin whose input has half of the last axis


@lru_cache(maxsize=4096)
def largest_factor(n: int) -> int:
    """Returns the largest prime factor of a positive integer, 1 for 1.

    Above 2^40, where looking would take long, a remaining factor that is not known to be prime counts as one.

    Examples
    --------
    >>> [largest_factor(n) for n in (1, 64, 1030, 8251)]
    [1, 2, 103, 223]
    """
    found, factor, rest = 1, 2, n
    while factor * factor <= rest and factor < 1 << 20:
        while rest % factor == 0:
            rest //= factor
            found = factor
        factor += 1 if factor == 2 else 2
    return max(found, rest)


def factors_of(lengths: tuple[int, ...]) -> tuple[float, ...]:
    """Returns by what transforms of these lengths differ beside their sizes.

    Returns
    -------
    tuple of float
        log2 of the largest prime factor of the last length over `UNIT`, 0 for one of `SMOOTH` or less; the same of the other
        lengths; whether the last length is odd; factors of two that all other lengths have, up to `TWOS`.

    Examples
    --------
    >>> factors_of((48, 105)), factors_of((1024,)), factors_of((104, 208))
    ((0.0, 0.0, 1.0, 4.0), (0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 3.0))
    >>> factors_of((64, 26 * 128 * 127))[0] == math.log2(127 / UNIT)
    True
    """
    *others, last = lengths or (2,)
    return _beyond(last), max(map(_beyond, others), default=0.0), float(last % 2), float(min(map(_twos, others), default=0))


def lengths_in(key: str) -> tuple[int, ...]:
    """Returns the lengths of the transform that a Problem's key names; none of a text that is no such key, as files may have one.

    Examples
    --------
    >>> lengths_in("fft.rfft f32 6x100"), lengths_in("fft.irfftn c64 8x65"), lengths_in("fft.fftn c128 4x5x6 s=(7,9) dim=(0,2)")
    ((100,), (8, 128), (7, 9))
    >>> lengths_in("fft.fft c64"), lengths_in("fft.fft c64 4x5 dim=7"), lengths_in("fft.fft c64 all")
    ((), (), ())
    """
    try:
        return _lengths(*key.split(" "))
    except (TypeError, ValueError, IndexError):
        return ()


def _lengths(name: str, dtype: str, shape: str, *rest: str) -> tuple[int, ...]:
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    if given := options.get("n") or options.get("s"):
        return _numbers(given)
    lengths = [int(n) for n in shape.partition(":")[0].split("x")]
    if "dim" in options:
        lengths = [lengths[axis] for axis in _numbers(options["dim"])]
    elif not name.endswith("n"):
        lengths = lengths[-1:]
    if name.removeprefix("fft.").startswith(HALVED):
        lengths[-1] = 2 * (lengths[-1] - 1)
    return tuple(lengths)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.strip("()").split(",") if n)


def _beyond(n: int) -> float:
    largest = largest_factor(n)
    return math.log2(largest / UNIT) if largest > SMOOTH else 0.0


def _twos(n: int) -> int:
    return min((n & -n).bit_length() - 1, TWOS) if n else 0
