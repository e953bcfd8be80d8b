"""Products of small matrices, and batches of them, by a compiled loop: against wider arithmetic, in every layout."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.errors import BadValue
from backline.libraries import capability
from backline.libraries.base import Refusal
from backline.problems.dtypes import HALVES, compute_dtype
from support import (
    LAYOUTS,
    algorithms,
    arrays_in,
    assert_close,
    clean,
    dtype_of,
    problem_of,
    random_array,
    rng,
    roundoff,
    seed,
    smallest,
    wide,
)

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "bfloat16")
NAME = "small_products"
#: Rows, terms and columns: columns that fill vectors, fewer than one, and one more than some.
SIZES = ((4, 4, 4), (3, 3, 3), (1, 7, 5), (5, 1, 1), (3, 3, 1), (2, 9, 17), (9, 16, 33), (8, 8, 8), (13, 70, 24), (6, 5, 49), (7, 2, 2))


def by_loop(a: Array, b: Array, **call: Any) -> list[tuple[str, Array]]:
    problem = problem_of("matmul", a, b, **call)
    library, found = libraries.get("kernels"), []
    for algorithm in algorithms("kernels", problem):
        if algorithm.name == NAME:
            found.append((algorithm.key, library.prepare(problem, algorithm)(*arrays_in((a, b), call))))
    return found


def check(a: Array, b: Array, **call: Any) -> int:
    """Compares what the loop makes on one thread and on two with wider arithmetic, and returns how many times it did."""
    exact, sizes = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
    results = by_loop(a, b, **call)
    for name, result in results:
        computed = compute_dtype(a.dtype)
        bound = 1.01 * (4 if a.dtype.kind == "c" else 1) * (a.shape[-1] + 1) * roundoff(computed) * sizes + 1e-300
        if computed != a.dtype:  # rounded once
            bound += 1.01 * roundoff(a.dtype) * np.abs(exact) + smallest(a.dtype)
        assert result.dtype == a.dtype and result.shape == exact.shape
        assert_close(result, exact, bound, f"{name} of {a.shape} {b.shape}")
        assert call.get("out") is None or result is call["out"]
    return len(results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout(dtype: str, rng: np.random.Generator) -> None:
    taken: set[tuple[str, str]] = set()
    for m, k, n in SIZES:
        items = int(rng.integers(2, 70))
        a, b = random_array(rng, (items, m, k), dtype_of(dtype)), random_array(rng, (items, k, n), dtype_of(dtype))
        for left, right in itertools.product(("C", "F", *rng.choice([*LAYOUTS], 2)), ("C", "F", "wide", *rng.choice([*LAYOUTS], 1))):
            if check(LAYOUTS[left](a), LAYOUTS[right](b)):
                taken.add((left, right))
        by_columns = np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2), np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
        for left, right in itertools.product((a, by_columns[0]), (b, by_columns[1])):
            assert check(left, right)
        assert check(a[:1].repeat(items, 0)[::-1], b[::-1]) and check(a, b[0]) and check(a[0], b)
        assert bool(check(a[0], b[0])) == bool(check(a[:1], b[:1])) == (m > 1 and n > 1)
    assert ("C", "C") in taken and (dtype in HALVES or ("C", "wide") in taken)


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("word", ["default", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_rows_and_columns(dtype: str, word: str, rng: np.random.Generator) -> None:
    if not capability.allows(word):
        pytest.skip(f"this processor has no {word}")
    with backline.backends.cpu.flags(capability=word):
        for m, n in itertools.product(range(1, 10), (*range(1, 20), *map(int, rng.integers(20, 200, 4)))):
            a, b = random_array(rng, (3, m, 5), dtype_of(dtype)), random_array(rng, (3, 5, n), dtype_of(dtype))
            assert check(a, b) or m == n == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_out(dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)

    def taken(out: Array) -> bool:  # matrices of 16-bit floats are rounded as a whole
        return dtype not in HALVES or bool(out[0].flags.forc)

    for m, k, n in ((3, 5, 9), (8, 8, 8), (5, 4, 1), (1, 4, 5)):
        a, b = random_array(rng, (6, m, k), kind), random_array(rng, (6, k, n), kind)
        for out in (
            np.full((6, m, n), 7, kind), np.full((6, n, m), 7, kind).swapaxes(1, 2), np.full((12, m, n + 3), 7, kind)[::-2, :, 1:-2],
            np.full((m, 6, n), 7, kind).swapaxes(0, 1),
        ):  # fmt: skip
            assert bool(check(a, b, out=out)) == taken(out), out.strides
        around = np.full((6, m, n + 2), 7, kind)
        assert bool(check(a, b, out=around[..., 1:-1])) == taken(around[..., 1:-1])
        assert (around[..., 0] == 7).all() and (around[..., -1] == 7).all()


def test_overlapping_out_is_refused(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((40, 6, 6)), rng.standard_normal((40, 6, 6))
    for out in (a, b):
        with pytest.raises(BadValue, match="overlaps an operand"):
            by_loop(a, b, out=out)


def test_several_batch_dimensions(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((4, 5, 6, 7)), rng.standard_normal((4, 5, 7, 3))
    assert check(a, b) and check(a, b[0, 0]) and check(a[:, ::-1][::-1], b)
    assert not by_loop(a, b[:, :1])  # whose matrices do not lie at equal distances


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit_nor_does_the_place_in_the_batch(dtype: str, rng: np.random.Generator) -> None:
    for m, k, n in ((4, 4, 4), (16, 16, 16), (7, 30, 21)):
        a, b = random_array(rng, (1501, m, k), dtype_of(dtype)), random_array(rng, (1501, k, n), dtype_of(dtype))
        results = [result for _, result in by_loop(a, b)]
        assert len(results) == 2 and results[0].tobytes() == results[1].tobytes()
        assert by_loop(a[700:702], b[700:702])[0][1].tobytes() == results[0][700:702].tobytes()


@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "bfloat16"))
def test_special_values_stay_where_they_are(dtype: str, rng: np.random.Generator) -> None:
    a, b = random_array(rng, (5, 3, 7), dtype_of(dtype)), random_array(rng, (5, 7, 11), dtype_of(dtype))
    a[1, 2, 0], b[3, 5, 10], b[4, 0, 0] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        exact = wide(a) @ wide(b)
    for right in (b, np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)):
        results = by_loop(a, right)
        assert results
        for _, result in results:
            np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
            np.testing.assert_array_equal(np.isinf(result), np.isinf(exact))


def test_what_it_refuses(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((5, 9, 20)), rng.standard_normal((5, 20, 8))
    large = rng.standard_normal((3, 100, 100))
    cases = {
        "do not lie one behind the other": (a.astype(np.float16), b.astype(np.float16)[..., ::2]), "a single product with a vector": (a[0, :1], b[0]), "more than 32768 terms": (large[0, :40], large[0]), "no longer small": (large, large), "each product is one number":
        (a[:, :1], b[:, :, :1]), "of more than 16 terms for one column": (a, b[:, :, :1]), "an empty product": (a[:0], b[:0]),
        "for one column": (a, b[:, :, :1]), "do not lie at equal distances": (a[None].repeat(2, 0), b[:, None][:2, [0, 0, 0, 0, 0]][:, :1]),
        "a matrix of more than 2048": (large[:, :2], large.swapaxes(1, 2)),
    }  # fmt: skip
    for reason, arrays in cases.items():
        problem = problem_of("matmul", *arrays)
        refused = [r.reason for r in libraries.get("kernels").algorithms(problem, 2) if isinstance(r, Refusal) and r.name == NAME]
        assert len(refused) == 1 and reason in refused[0], (reason, refused)
    layer = problem_of("nn.functional.linear", a[0], b[0].T.copy(), b[0, 0], activation="relu")
    (refusal,) = (r for r in libraries.get("kernels").algorithms(layer, 2) if isinstance(r, Refusal) and r.name == NAME)
    assert "its loops are for products of" in refusal.reason
    assert not any(x.name == NAME for x in algorithms("kernels", problem_of("baddbmm", np.zeros((5, 9, 8)), a, b)))


def test_a_user_gets_it(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((300, 3, 3)), rng.standard_normal((300, 3, 3))
    with backline.use("kernels"):
        result = backline.matmul(a, b)
        assert (backline.explain().library, backline.explain().algorithm) == ("kernels", NAME)
    np.testing.assert_allclose(result, a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_overflow_and_underflow_as_they_are_rounded(dtype: str) -> None:
    """Sums are float32's: what is too large for the dtype only becomes infinity at the end, and small results are subnormal."""
    kind = dtype_of(dtype)
    largest = 2.0**15 if dtype == "float16" else 2.0**127
    a, b = np.full((4, 3, 2), largest, kind), np.zeros((4, 2, 5), kind)
    b[:, 0], b[:, 1, 0], b[:, 1, 1] = 1, 1, -1
    tiny = np.full((4, 3, 2), float(smallest(kind)), kind)
    for _, result in by_loop(a, b):
        assert np.isinf(result[..., 0]).all() and (result[..., 1] == 0).all() and (result[..., 2:] == a[0, 0, 0]).all()
    for _, result in by_loop(tiny, b):
        assert (result[..., 2:] == tiny[0, 0, 0]).all() and (result[..., 1] == 0).all() and (result[..., 0] == 2 * tiny[0, 0, 0]).all()
    assert by_loop(a, b) and by_loop(tiny, b)
