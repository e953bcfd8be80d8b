"""Norms of any order, where elements differ by more than a power of them can hold: against decimals with 60 digits."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import backline.linalg as linalg

Array = Any
ORDERS = (-math.inf, -100.5, -3, -2, -1.5, -1, -0.5, -0.01, 0, 0.01, 0.5, 1, 1.5, 2, 3, 10, 1000.0, math.inf)
EXACT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


def exact(x: Array, order: float) -> Decimal:
    """The norm of a vector; NaN and infinity as the sum of powers has them."""
    with decimal.localcontext(EXACT):
        sizes = [(Decimal(abs(v.real)) ** 2 + Decimal(abs(v.imag)) ** 2).sqrt() for v in x.astype(np.complex128).tolist()]
        if order == 0:
            return Decimal(sum(v != 0 for v in sizes))
        if any(v.is_nan() for v in sizes):
            return Decimal("nan")
        if math.isinf(order):
            return max(sizes) if order > 0 else min(sizes)
        if order < 0 and 0 in sizes:
            return Decimal(0)
        if order > 0 and any(v.is_infinite() for v in sizes):
            return Decimal("inf")
        sizes = [v for v in sizes if v.is_finite()]  # what is infinite adds nothing under a negative order
        if not sizes:
            return Decimal("inf")
        total = sum((v ** Decimal(order) for v in sizes if v), Decimal(0))
        return total ** (1 / Decimal(order)) if total else Decimal(0)


def vectors(dtype: str) -> list[Array]:
    info = np.finfo(dtype)
    most, least, normal = float(info.max), float(info.smallest_subnormal), float(info.tiny)
    rows: list[list[float]] = [
        [1, math.sqrt(most) * 1e6], [3 * least, 7 * least, normal], [most / 2, most / 4, 1], [normal, 1, most / 8], [0, 1, 2],
        [0, 0], [1, math.inf, 3], [math.inf, -math.inf], [math.nan, 1], [math.nan, math.inf], [math.nan, 0], [0, math.inf],
        [-3.5], [most], [least], [most / 64] * 7, [normal] * 7, list(np.random.default_rng(0).standard_normal(33)),
    ]  # fmt: skip
    made = [np.array(row, dtype) for row in rows]
    if np.dtype(dtype).kind == "c":
        made += [(x / 2 * (1 + 1j)).astype(dtype) for x in made if np.isfinite(x).all() and np.abs(x).max() > 1]
    return made


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_every_order_of_every_size(dtype: str, order: float) -> None:
    info = np.finfo(dtype)
    # Raised to a small power and back, a rounding grows by the root's degree.
    allowed = 8 + (10 / abs(order) if 0 < abs(order) < 1 else 0)
    for x in vectors(dtype):
        wanted = exact(x, order)
        for found in (linalg.vector_norm(x, order), linalg.vector_norm(x[None], order, dim=1)[0], linalg.norm(x, order)):
            assert found.dtype == info.dtype
            if wanted.is_nan():
                assert np.isnan(found), (x, found)
                continue
            with decimal.localcontext(EXACT):
                size, beyond = Decimal(float(found)), wanted > Decimal(float(info.max)) * (1 - Decimal("1e-5"))
                if beyond and found == math.inf:
                    continue
                off = abs(size - wanted)
                room = max(Decimal(allowed * float(info.eps)) * wanted, 2 * Decimal(float(info.smallest_subnormal)))
            assert off <= room, (x, found, wanted)


def test_what_was_seen() -> None:
    assert linalg.vector_norm(np.array([1, 1e200]), -2) == 1
    assert linalg.norm(np.array([1, 1e200]), -2) == 1
    assert linalg.vector_norm(np.array([1e-200, 1e200]), -3) == pytest.approx(1e-200)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_matrices_at_the_ends_of_the_range(order: Any) -> None:
    small = np.array([[3.0, 1.0], [2.0, -4.0], [0.5, 0.0]])
    for factor in (1e-300, 1e300):
        found, wanted = linalg.matrix_norm(small * factor, order), linalg.matrix_norm(small, order) * factor
        assert found == pytest.approx(wanted, rel=1e-13, abs=0)
        assert linalg.norm(small * factor, order) == found
