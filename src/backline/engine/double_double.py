"""Arithmetic with twice the precision of float64, for the references that float64 results are compared with.

A value is a `Pair`: the unevaluated sum of two float64 (or complex128) arrays, about 106 bits. `np.longdouble` would not do:
it has 11 bits more than float64 on x86, none more on some platforms, and no BLAS.

Matrix products follow Ozaki, Ogita, Oishi and Rump, "Error-free transformations of matrix multiplication by using fast
routines of matrix multiplication and its applications", Numerical Algorithms 59 (2012): each operand is cut into slices of so
few bits that a product of two slices is exact in float64, whatever the order of summation, so NumPy's BLAS computes it
without rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

import numpy as np

__all__ = [
    "Pair", "bilinear", "difference", "exponent", "pair", "paired", "probes", "product", "relative", "scaled", "times", "widened",
]  # fmt: skip

Array = Any

# Bits of each operand that count, from the largest element of a row or column. float64 has 53: with 13 more an error of one
# rounding is known to four digits, for six products of slices; a full 106 bits would take fifteen.
BITS = 66
MODERATE = 160  # exponents up to which products of a few elements and their squares stay in float64's range
BLOCK = 1 << 19  # elements of an operand that are sliced at a time
CHUNK = 1 << 20  # elements converted at a time
PROBES = 4


@dataclass(frozen=True)
class Pair:
    """The sum of `high` and a much smaller `low`, which may be the number 0.

    Examples
    --------
    >>> third = pair(np.ones(1)) - pair(np.array([2.0**-70]))
    >>> third.high, third.low == -(2.0**-70)
    (array([1.]), array([ True]))
    """

    high: Array
    low: Array = 0.0

    def __add__(self, other: Pair) -> Pair:
        high, low = _two_sum(self.high, other.high)
        return _renormalized(high, low + (self.low + other.low))

    def __sub__(self, other: Pair) -> Pair:
        return self + Pair(-other.high, -other.low)

    def each(self, function: Callable[[Array], Array]) -> Pair:
        """Both parts after a function that only moves, repeats or conjugates elements."""
        return Pair(function(self.high), function(np.broadcast_to(self.low, np.shape(self.high))))

    def times(self, factors: Any) -> Pair:
        """The product with a number or an array, or a Pair of those, element by element."""
        other = factors if isinstance(factors, Pair) else Pair(np.asarray(factors))
        if self.high.dtype.kind != "c" and other.high.dtype.kind != "c":
            return _real_times(self, other)
        (ar, ai), (br, bi) = ((x.each(np.real), x.each(np.imag)) for x in (self, other))
        return _joined(_real_times(ar, br) - _real_times(ai, bi), _real_times(ar, bi) + _real_times(ai, br))

    def sum(self) -> Pair:
        """The sums along the last axis."""
        rest = self.each(lambda x: x)
        while (n := rest.high.shape[-1]) > 1:
            half = n // 2
            pairs = Pair(rest.high[..., :half], rest.low[..., :half]) + Pair(
                rest.high[..., half : 2 * half], rest.low[..., half : 2 * half]
            )
            if n % 2:
                odd = (rest.high[..., -1:], rest.low[..., -1:])
                pairs = Pair(np.append(pairs.high, odd[0], axis=-1), np.append(pairs.low, odd[1], axis=-1))
            rest = pairs
        return rest.each(lambda x: x.sum(axis=-1))


def pair(array: Array) -> Pair:
    """An array of float64 or complex128, or a Pair, as a Pair."""
    return array if isinstance(array, Pair) else Pair(np.asarray(array))


def widened(x: Array) -> Array:
    """An array of any dtype of numbers in float64 or complex128."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64, copy=False)


def paired(x: Array) -> Pair:
    """An array of any dtype of numbers as a Pair; one of longdouble keeps its digits."""
    high = widened(x)
    return Pair(high, widened(x - high)) if x.dtype.char in "gG" else Pair(high)


def exponent(x: Array) -> int:
    """The power of two above the largest element where its square or product with others may leave float64's range, else 0."""
    parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
    if x.size == 0 or x.dtype.name in ("float16", "bfloat16"):
        return 0
    largest = max(max(abs(part.max()), abs(part.min())) for part in parts)
    power = int(np.frexp(largest)[1]) if np.isfinite(largest) else 0
    return power if abs(power) > MODERATE else 0


def scaled(x: Array, power: int) -> Array:
    """An array times a power of two, however large that is."""
    if power == 0:
        return x
    if x.dtype.kind != "c":
        return np.ldexp(x, power)
    result = np.empty_like(x)
    result.real, result.imag = np.ldexp(x.real, power), np.ldexp(x.imag, power)
    return result


def difference(one: Pair, other: Pair) -> Array:
    """``|one - other|``, rounded to float64 at the end."""
    return np.abs((one.high - other.high) + (one.low - other.low))


def product(a: Array | Pair, b: Array | Pair) -> Pair:
    """The matrix product to about 2**-65 of the sum of its absolute terms; exact where the operands have few bits.

    Parameters
    ----------
    a, b
        Arrays of float64 or complex128, or Pairs, of at least two axes; the axes before the last two are broadcast.

    Examples
    --------
    >>> tiny = product(np.array([[1.0, 2.0**-60, -1.0]]), np.ones((3, 1)))
    >>> bool(tiny.high[0, 0] == 2.0**-60)
    True
    """
    a, b = pair(a), pair(b)
    (m, k), n = a.high.shape[-2:], b.high.shape[-1]
    batch = np.broadcast_shapes(a.high.shape[:-2], b.high.shape[:-2])
    dtype = np.result_type(a.high, b.high, np.float64)
    result = Pair(np.zeros((*batch, m, n), dtype), np.zeros((*batch, m, n), dtype))
    if result.high.size == 0 or k == 0:
        return result
    a = a.each(lambda x: np.broadcast_to(x, (*batch, m, k)))
    b = b.each(lambda x: np.broadcast_to(x, (*batch, k, n)))
    for items in _parts(batch, max(m * k, k * n)):
        for rows in _steps(m, k):
            for columns in _steps(n, k):
                left, right = (*items, rows, slice(None)), (*items, slice(None), columns)
                found = _any_product(Pair(a.high[left], a.low[left]), Pair(b.high[right], b.low[right]))
                result.high[(*items, rows, columns)], result.low[(*items, rows, columns)] = found.high, found.low
    return result


def _parts(batch: tuple[int, ...], size: int) -> Iterator[tuple[Any, ...]]:
    """Indices of parts of a batch of about BLOCK elements."""
    if not batch or prod(batch) * size <= BLOCK:
        yield (slice(None),) * len(batch)
        return
    step = max(BLOCK // (prod(batch[1:]) * size), 1)
    for start in range(0, batch[0], step):
        if step > 1 or prod(batch[1:]) == 1:
            yield (slice(start, start + step), *[slice(None)] * (len(batch) - 1))
        else:
            yield from ((slice(start, start + 1), *rest) for rest in _parts(batch[1:], size))


def _steps(n: int, k: int) -> Iterator[slice]:
    step = max(BLOCK // k, 1)
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its rounding error, exactly (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _halves(x: Array) -> tuple[Array, Array]:
    """Two numbers of at most 26 bits with this sum (Veltkamp)."""
    big = 134217729.0 * x  # 2**27 + 1
    upper = big - (big - x)
    return upper, x - upper


def _real_times(a: Pair, b: Pair) -> Pair:
    """Dekker's product: its rounding error is put together from products of halves, which are exact."""
    high = a.high * b.high
    (a1, a2), (b1, b2) = _halves(a.high), _halves(b.high)
    error = ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2
    return _renormalized(high, error + (a.high * b.low + a.low * b.high))


def _renormalized(high: Array, low: Array) -> Pair:
    total = high + low
    return Pair(total, low - (total - high))


def _any_product(a: Pair, b: Pair) -> Pair:
    """Complex products are made of real ones: a BLAS may compute them in ways that are not exact."""
    if a.high.dtype.kind != "c" and b.high.dtype.kind != "c":
        return _real_product(a, b)
    (ar, ai), (br, bi) = ((x.each(np.real), x.each(np.imag)) for x in (a, b))
    if a.high.dtype.kind != "c":
        real, imaginary = _real_product(a, br), _real_product(a, bi)
    elif b.high.dtype.kind != "c":
        real, imaginary = _real_product(ar, b), _real_product(ai, b)
    else:
        real = _real_product(ar, br) - _real_product(ai, bi)
        imaginary = _real_product(ar, bi) + _real_product(ai, br)
    return _joined(real, imaginary)


def _joined(real: Pair, imaginary: Pair) -> Pair:
    return Pair(real.high + 1j * imaginary.high, real.low + 1j * imaginary.low)


def _real_product(a: Pair, b: Pair) -> Pair:
    bits = _slice_bits(a.high.shape[-1])
    (left, rows), (right, columns) = _slices(a, bits, -1), _slices(b, bits, -2)
    total = _sum_of_products(np.matmul, left, right, bits)
    exponents = rows + columns
    return Pair(np.ldexp(total.high, exponents), np.ldexp(total.low, exponents))


def bilinear(function: Callable[[Array, Array], Array], a: Array, b: Array, terms: int) -> Pair:
    """A sum of products of elements of two arrays, as precise as `product`, by any function that computes it in float64.

    Parameters
    ----------
    function
        It may only multiply elements of the one by elements of the other and add up, in any order.
    a, b
        Operands; elements count down to 2**-66 of the largest.
    terms
        How many products are added up for one element of the result, at most.
    """
    bits = _slice_bits(2 * terms if a.dtype.kind == "c" else terms)
    left, right = _components(a, bits), _components(b, bits)
    total: Pair | None = None
    for unit, (slices, exponent) in left.items():
        for other, (others, more) in right.items():
            # Of a lambda with defaults the checker infers no type.
            part = _sum_of_products(lambda x, y, u=unit, v=other: function(u * x, v * y), slices, others, bits)  # type: ignore[misc]
            part = part.times(np.ldexp(1.0, exponent + more))
            total = part if total is None else total + part
    assert total is not None
    return total


def _components(x: Array, bits: int) -> dict[complex, tuple[list[Array], int]]:
    """Returns slices and their exponent, those of the real part under the key 1, of the imaginary part under 1j."""
    found = {}
    for unit, part in ((1, x.real), (1j, x.imag)) if x.dtype.kind == "c" else ((1, x),):
        slices, exponents = _slices(pair(part), bits, None)
        found[complex(unit) if x.dtype.kind == "c" else unit] = slices, int(exponents.max())
    return found


def _slice_bits(terms: int) -> int:
    """Returns bits of slices such that a sum of so many products of two of them fits into the 53 bits of a float64."""
    return (53 - ceil(log2(max(terms, 1)))) // 2


def _sum_of_products(times: Callable[[Array, Array], Array], left: list[Array], right: list[Array], bits: int) -> Pair:
    levels: dict[int, Pair] = {}
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            if (i + j) * bits < BITS:
                exact = Pair(times(x, y))
                levels[i + j] = levels[i + j] + exact if i + j in levels else exact
    total = levels.pop(max(levels))
    for level in sorted(levels, reverse=True):  # the smallest first
        total = total + levels[level]
    return total.each(lambda x: x)


def _slices(x: Pair, bits: int, axis: int | None) -> tuple[list[Array], Array]:
    """Slices of `bits` bits whose sum is x, each row (or column) divided by a power of two, and the exponents of those."""
    _, exponents = np.frexp(np.max(np.abs(x.high), axis=axis, keepdims=True))
    rest, low = np.ldexp(x.high, -exponents), np.ldexp(np.broadcast_to(x.low, x.high.shape), -exponents)
    slices: list[Array] = []
    for number in range(ceil(BITS / bits)):
        # Adding this leaves in the sum just the bits down to 2**-((number + 1) * bits); taking it away again is exact.
        carrier = 1.5 * 2.0 ** (52 - (number + 1) * bits)
        part = (rest + carrier) - carrier
        slices.append(part)
        rest, low = _two_sum(rest - part, low)
        if not rest.any():
            break
    return slices, exponents


def times(a: Array, x: Pair, keep: str = "", *, exact: bool = True, power: int = 0) -> Pair:
    """Matrix times vectors in double-double arithmetic or float64, some rows at a time; `keep` is the triangle that counts.

    The matrix is multiplied by two to the `power` first.
    """
    rows, cols = a.shape[-2:]
    items = max(a.size // max(rows * cols, 1), 1)
    step = max(CHUNK // max(items * cols, 1), 1)
    parts = []
    for first in range(0, rows, step):
        part = widened(scaled(a[..., first : first + step, :], power))
        if keep:
            part = np.triu(part, first) if "upper" in keep else np.tril(part, first)
            if keep.startswith("unit"):
                here = np.arange(min(part.shape[-2], cols - first))
                part[..., here, here + first] = 1
        parts.append(product(part, x) if exact else pair(np.matmul(part, x.high)))
    if len(parts) == 1:
        return parts[0]
    lows = [np.broadcast_to(part.low, part.high.shape) for part in parts]
    return Pair(np.concatenate([part.high for part in parts], axis=-2), np.concatenate(lows, axis=-2))


def relative(got: Pair, wanted: Pair, least: float = 0.0) -> float:
    """Largest difference over the largest value; `least` is a size below which that value is not taken."""
    if got.high.shape != wanted.high.shape:
        return float("inf")
    if got.high.size == 0:
        return 0.0
    size, distance = max(float(np.max(np.abs(wanted.high))), least), float(np.max(difference(got, wanted)))
    if not np.isfinite(distance):
        return float("inf")
    return distance / size if size else (0.0 if distance == 0.0 else float("inf"))


def probes(rng: np.random.Generator, n: int, dtype: np.dtype[Any]) -> Array:
    """Random vectors of eight bits, none near 0: a product with them is exact, and no single wrong element is missed."""

    def draw() -> Array:
        return rng.integers(128, 256, (n, PROBES)) * rng.choice((-1.0, 1.0), (n, PROBES)) / 128

    return draw() + 1j * draw() if dtype.kind == "c" else draw()
