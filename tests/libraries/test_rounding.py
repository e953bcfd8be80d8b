"""Rounding to tf32 and bf16 against two references that share nothing with it: float64 arithmetic, and ml_dtypes' bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline.errors import BadType, BadValue
from backline.libraries.reference.rounding import BLOCK, STORED, round_to, unit

Array = Any
PRECISIONS = ("tf32", "bf16")
LARGEST = float(np.finfo(np.float32).max)


def floats(*bits: int) -> Array:
    return np.array(bits, np.uint32).view(np.float32)


def bits_of(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint32)


def assert_same_bits(got: Array, wanted: Array) -> None:
    got, wanted = bits_of(got), bits_of(wanted)
    wrong = np.flatnonzero(got != wanted)
    assert not wrong.size, f"{wrong.size} differ, the first at {wrong[0]}: {got[wrong[0]]:#x}, not {wanted[wrong[0]]:#x}"


def reference(x: Array, precision: str) -> Array:
    """The nearest multiple of the last place, found in float64: `rint` takes the even one of two."""
    stored = {"tf32": 10, "bf16": 7}[precision]
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        finite = np.isfinite(wide)
        exponent = np.frexp(np.where(finite, wide, 1.0))[1] - 1
        step = np.ldexp(1.0, np.maximum(exponent, -126) - stored)
        rounded = np.rint(np.where(finite, wide, 0.0) / step) * step
        rounded = np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, wide), rounded)
        result = np.where(finite, rounded, wide).astype(np.float32)
    result = np.copysign(result, x)  # a zero has the sign of what became zero
    bits = np.where(np.isnan(x), x.view(np.uint32), result.view(np.uint32))
    return bits.astype(np.uint32).view(np.float32)


# All classes of numbers -----------------------------------------------------------------------------------------------


@st.composite
def patterns(draw: Any) -> int:
    """A float32 as bits: any, or one with an exponent and a mantissa where something may go wrong."""
    if draw(st.booleans()):
        return int(draw(st.integers(0, 2**32 - 1)))
    sign = draw(st.integers(0, 1))
    exponent = draw(st.sampled_from([0, 1, 2, 126, 127, 128, 253, 254, 255]) | st.integers(0, 255))
    dropped = draw(st.sampled_from([13, 16]))
    high = draw(st.sampled_from([0, 1, 2, (1 << (23 - dropped)) - 1]) | st.integers(0, (1 << (23 - dropped)) - 1))
    half = 1 << (dropped - 1)
    low = draw(st.sampled_from([0, 1, half - 1, half, half + 1, 2 * half - 1]) | st.integers(0, 2 * half - 1))
    return sign << 31 | exponent << 23 | high << dropped | low


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=300, deadline=None)
@given(st.lists(patterns(), max_size=60))
def test_any_bits(precision: str, bits: list[int]) -> None:
    x = floats(*bits)
    kept = x.copy()
    got = round_to(x, precision)
    assert_same_bits(got, reference(x, precision))
    assert_same_bits(x, kept)
    assert_same_bits(round_to(got, precision), got)
    assert (np.isnan(got) == np.isnan(x)).all() and (np.signbit(got) == np.signbit(x)).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_number_of_the_precision_and_what_lies_about_it(precision: str) -> None:
    """Every sign, exponent and mantissa that can stay, with what is cut off at its ends and around the tie."""
    dropped = 23 - STORED[precision]
    half = 1 << (dropped - 1)
    stays = np.arange(1 << (32 - dropped), dtype=np.uint32) << np.uint32(dropped)
    for low in (0, 1, half - 1, half, half + 1, 2 * half - 1):
        x = (stays | np.uint32(low)).view(np.float32)
        assert_same_bits(round_to(x, precision), reference(x, precision))


def test_bf16_is_the_bfloat16_of_ml_dtypes() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 1 << 20, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        wanted = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert_same_bits(round_to(x, "bf16"), wanted)


# Boundaries, in figures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "u"), [("tf32", 2.0**-11), ("bf16", 2.0**-8)])
def test_ties_go_to_the_even_neighbour(precision: str, u: float) -> None:
    assert unit(precision) == u
    tiny = 2.0**-23
    given = [1 + u, 1 + u + tiny, 1 + u - tiny, 1 + 3 * u, 1 + 3 * u - tiny, -1 - u, -1 - 3 * u, 2 - u, 2 - u - tiny]
    wanted = [1, 1 + 2 * u, 1, 1 + 4 * u, 1 + 2 * u, -1, -1 - 4 * u, 2, 2 - 2 * u]
    assert np.float32(given).astype(float).tolist() == given, "the test's own figures are float32 numbers"
    assert round_to(np.float32(given), precision).astype(float).tolist() == wanted


@pytest.mark.parametrize(("precision", "stored"), [("tf32", 10), ("bf16", 7)])
def test_the_largest_numbers(precision: str, stored: int) -> None:
    top = 2.0**128 - 2.0 ** (127 - stored)  # the largest that the precision has
    tie = 2.0**128 - 2.0 ** (126 - stored)
    below = float(np.nextafter(np.float32(tie), np.float32(0)))
    x = np.float32([LARGEST, -LARGEST, top, tie, below, -below])
    assert round_to(x, precision).astype(float).tolist() == [np.inf, -np.inf, top, np.inf, top, -top]


@pytest.mark.parametrize(("precision", "stored"), [("tf32", 10), ("bf16", 7)])
def test_subnormal_numbers(precision: str, stored: int) -> None:
    step = 2.0 ** (-126 - stored)
    smallest, normal = 2.0**-149, 2.0**-126
    x = np.float32([smallest, step / 2, step / 2 + smallest, step, 1.5 * step, 2.5 * step, normal - smallest, -smallest, normal])
    wanted = [0, 0, step, step, 2 * step, 2 * step, normal, -0.0, normal]
    got = round_to(x, precision)
    assert got.astype(float).tolist() == wanted
    assert np.signbit(got).tolist() == [False] * 7 + [True, False]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_infinities_zeros_and_the_payloads_of_nan_are_kept(precision: str) -> None:
    quiet, signalling = 0x7FC00000, 0x7F800001  # the latter would turn into infinity if its last bits were cut off
    nan = [quiet, quiet | 0xFFF, signalling, 0xFF800001, 0x7F801FFF, 0x7FFFFFFF, 0xFFFFFFFF]
    x = floats(0x7F800000, 0xFF800000, 0, 0x80000000, *nan)
    assert_same_bits(round_to(x, precision), x)
    c = np.empty(x.size, np.complex64)
    c.real, c.imag = x, x[::-1]
    assert_same_bits(round_to(c, precision), c)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_error_is_at_most_the_unit_roundoff_and_reaches_it(precision: str) -> None:
    rng = np.random.default_rng(2)
    x = (rng.uniform(1, 2, 200_000) * 2.0 ** rng.integers(-120, 120, 200_000)).astype(np.float32)
    exact = x.astype(float)
    error = np.abs(round_to(x, precision).astype(float) - exact) / np.abs(exact)
    u = unit(precision)
    assert 0.99 * u < error.max() <= u
    order = np.argsort(x)
    assert (np.diff(round_to(x[order], precision)) >= 0).all(), "rounding keeps the order"


# Arrays of every make --------------------------------------------------------------------------------------------------


def views(x: Array) -> dict[str, Array]:
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    wide = np.zeros((x.shape[0] * 3, x.shape[1] * 2), x.dtype)
    wide[::3, ::2] = x
    return {
        "C": x.copy(), "F": np.asfortranarray(x), "transposed": x.T, "reversed": x[::-1, ::-1], "steps": wide[::3, ::2],
        "negative steps": x[::-2, ::3], "repeated": np.broadcast_to(x[:1], (4, *x.shape)), "misaligned": raw, "read-only": frozen,
        "window": np.lib.stride_tricks.sliding_window_view(x[0], 3), "no axis": x[1, 1:2].reshape(()), "one": x[:1, :1],
        "empty": x[:0], "empty column": x[:, :0], "three axes": x.reshape(2, -1, 3)[:, :, ::-1],
    }  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_strides_of_every_kind(dtype: str, precision: str) -> None:
    rng = np.random.default_rng(3)
    plain = rng.standard_normal((6, 15))
    x = (plain + 1j * rng.standard_normal(plain.shape) if dtype == "complex64" else plain).astype(dtype)
    for name, view in views(x).items():
        before = np.array(view)
        got = round_to(view, precision)
        assert type(got) is np.ndarray and got.dtype == x.dtype and got.shape == view.shape, name
        assert got.flags.c_contiguous and got.flags.writeable and got.flags.aligned and not np.shares_memory(got, view), name
        assert np.array_equal(before, view), f"{name}: the input was changed"
        parts = [before.real, before.imag] if dtype == "complex64" else [before]
        wanted = [reference(np.array(part, np.float32), precision) for part in parts]
        found = [got.real, got.imag] if dtype == "complex64" else [got]
        assert all(np.array_equal(f, w) for f, w in zip(found, wanted, strict=True)), name


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_arrays_longer_than_a_block(size: int, precision: str) -> None:
    x = np.random.default_rng(4).standard_normal(size).astype(np.float32)
    x[-3:] = floats(0x7F800001, 0x7F800000, 0xFFFFFFFF)  # in the last block, none in those before
    assert_same_bits(round_to(x, precision), reference(x, precision))


def test_what_is_refused() -> None:
    for dtype in ("float64", "complex128", "float16", "int32", ">f4", ml_dtypes.bfloat16):
        with pytest.raises(BadType, match=r"(?s)cannot be rounded to tf32.*float32 and complex64 only"):
            round_to(np.ones(3, dtype), "tf32")
    for precision in ("ieee", "none", "TF32", "fp16", ""):
        with pytest.raises(BadValue, match=r"tf32, bf16"):
            round_to(np.ones(3, np.float32), precision)
        with pytest.raises(BadValue, match=r"tf32, bf16"):
            unit(precision)
