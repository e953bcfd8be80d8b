"""Double-double arithmetic against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from backline.engine.double_double import Pair, bilinear, difference, pair, product

Array = Any


def fraction(x: Any, i: Any) -> Fraction:
    found = pair(x)
    return Fraction(float(found.high[i])) + Fraction(float(np.broadcast_to(found.low, found.high.shape)[i]))


def exact(a: Array, b: Array) -> list[list[Fraction]]:
    (m, k), n = a.shape, b.shape[1]
    return [[sum((Fraction(float(a[i, t])) * Fraction(float(b[t, j])) for t in range(k)), Fraction(0)) for j in range(n)] for i in range(m)]


@pytest.mark.parametrize("scale", [1.0, 2.0**600, 2.0**-400])
@pytest.mark.parametrize("k", [1, 7, 300])
def test_products(scale: float, k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((3, k)) * scale, rng.standard_normal((k, 4))
    found, right = product(a, b), exact(a, b)
    terms = np.abs(a) @ np.abs(b)
    for i, j in np.ndindex(3, 4):
        assert abs(fraction(found, (i, j)) - right[i][j]) <= Fraction(2) ** -62 * Fraction(float(terms[i, j]))


def test_products_of_blocks_batches_and_complex_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.engine import double_double

    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 1, 40, 30)) + 1j * rng.standard_normal((3, 1, 40, 30))
    b = rng.standard_normal((2, 30, 50))
    whole = product(a, b)
    assert whole.high.shape == (3, 2, 40, 50) and np.allclose(whole.high, a @ b, rtol=1e-13, atol=1e-13)
    assert 0 < np.max(difference(whole, pair(a @ b))) < 1e-13
    monkeypatch.setattr(double_double, "BLOCK", 100)
    assert np.max(difference(product(a, b), whole)) < 1e-17


def test_what_few_bits_hold_is_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**20), 2**20, (20, 20)).astype(float) for _ in "ab")
    found = product(a, b)
    assert np.array_equal(found.high, a @ b) and not np.any(found.low)
    cancelling = product(np.array([[1.0, 2.0**-60, -1.0]]), np.ones((3, 1)))
    assert cancelling.high[0, 0] == 2.0**-60


def test_sums_and_products_of_elements() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal(9), rng.standard_normal(9)
    squares = pair(x).times(y)
    right = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)]
    assert [fraction(squares, i) for i in range(9)] == right
    assert abs(fraction(squares.sum(), ()) - sum(right)) < Fraction(2) ** -98
    assert abs(fraction(squares - pair(y), 3) - (right[3] - Fraction(float(y[3])))) < Fraction(2) ** -98
    z = pair(x + 1j * y).times(1j)
    assert np.array_equal(z.high, -y + 1j * x)


def test_any_sum_of_products_of_elements() -> None:
    rng = np.random.default_rng(2)
    x, taps = rng.standard_normal(20), rng.standard_normal(5)
    found = bilinear(np.convolve, x, taps, 5)
    for i in range(24):
        right = sum((Fraction(float(x[i - t])) * Fraction(float(taps[t])) for t in range(5) if 0 <= i - t < 20), Fraction(0))
        assert abs(fraction(found, i) - right) < Fraction(2) ** -60
    twice = bilinear(np.convolve, x + 1j * x, taps + 0j, 5)
    assert np.max(difference(Pair(twice.high.imag, twice.low.imag), found)) < 1e-18
