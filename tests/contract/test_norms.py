"""Norms of any order, where elements differ by more than a power of them can hold: against decimals with 60 digits."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import backline.linalg as linalg
from backline.errors import BadType
from support import dtype_of

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
@pytest.mark.parametrize("order", [-math.inf, -2, 0, 0.5, 1, 2, 3.5, math.inf])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_are_computed_in_float32_and_rounded_once(dtype: str, order: float) -> None:
    rng = np.random.default_rng(5)
    half = dtype_of(dtype)
    for x in (rng.standard_normal((6, 7)), np.full((6, 7), 300.0), np.array([[np.inf, 1], [np.nan, 2]]), np.array([[60000.0] * 2] * 2)):
        x = x.astype(half)
        wide = x.astype(np.float32)
        for more in ({}, {"dim": 0}, {"dim": (0, 1), "keepdim": True}):
            result, wanted = linalg.vector_norm(x, order, **more), linalg.vector_norm(wide, order, **more)
            with np.errstate(over="ignore"):
                np.testing.assert_array_equal(result.astype(float), np.asarray(wanted).astype(half).astype(float))
            assert result.dtype == half and np.shape(result) == np.shape(wanted)
            np.testing.assert_array_equal(linalg.vector_norm(x, order, **more, dtype=np.float32), wanted)
    with np.errstate(over="ignore"):
        assert linalg.matrix_norm(x) == linalg.norm(x) == linalg.vector_norm(x) == np.float32(120000).astype(half)
    for other in ("nuc", 2, -2, 1, -1, math.inf, -math.inf):
        with np.errstate(over="ignore"):
            if other in ("nuc", 2, -2):
                with pytest.raises(BadType, match="Low precision dtypes not supported"):
                    linalg.matrix_norm(x, other)
            else:
                assert linalg.matrix_norm(x, other) == linalg.matrix_norm(x.astype(np.float32), other).astype(half)
        assert linalg.matrix_norm(x, other, dtype=np.float32) == linalg.matrix_norm(x.astype(np.float32), other)


@pytest.mark.parametrize("function", [linalg.norm, linalg.vector_norm, linalg.matrix_norm])
def test_the_dtype_of_a_norm(function: Any) -> None:
    x = np.random.default_rng(6).standard_normal((4, 5))
    for own, wider in (("float32", "float64"), ("float64", "float64"), ("float16", "float32"), ("bfloat16", "float64"),
                       ("complex64", "complex128")):  # fmt: skip
        a = x.astype(dtype_of(own))
        wanted = function(a.astype(wider))
        for given in (wider, np.dtype(wider), np.dtype(wider).type):
            result = function(a, dtype=given)
            assert result == wanted and result.dtype == wanted.dtype
        out = np.empty((), wanted.dtype)
        assert function(a, dtype=wider, out=out) is out and out == wanted
        with pytest.raises(BadType, match="out has dtype"):
            function(a, dtype=wider, out=np.empty((), "float16"))
    for own, wrong, text in (
        ("float64", "float32", "convertible without narrowing"), ("float16", "bfloat16", "convertible without narrowing"),
        ("float32", "complex64", "dtype should be real"), ("complex64", "float64", "dtype should be complex"),
        ("float32", "int32", "floating point or complex"), ("float32", "nothing", "dtype is 'nothing'"),
        ("int64", "float64", "Expected a floating point or complex"), ("bool", None, "Expected a floating point or complex"),
    ):  # fmt: skip
        with pytest.raises(BadType, match=text):
            function(x.astype(dtype_of(own)), dtype=wrong)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_matrices_at_the_ends_of_the_range(order: Any) -> None:
    small = np.array([[3.0, 1.0], [2.0, -4.0], [0.5, 0.0]])
    for factor in (1e-300, 1e300):
        found, wanted = linalg.matrix_norm(small * factor, order), linalg.matrix_norm(small, order) * factor
        assert found == pytest.approx(wanted, rel=1e-13, abs=0)
        assert linalg.norm(small * factor, order) == found
