"""Determinants, inverses, solutions and Cholesky factors of batches of small systems by a compiled loop: against NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from support import rng, seed

assert rng and seed


@pytest.fixture(autouse=True)
def lanes_first() -> Iterator[None]:
    """Whatever is fastest on the machine: here it is about the compiled loops."""
    with backline.use("kernels"):
        yield


def matrices(items: int, n: int, dtype: str, rng: np.random.Generator) -> Any:
    return rng.standard_normal((items, n, n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 9, 15, 16])
def test_results(n: int, dtype: str, rng: np.random.Generator) -> None:
    epsilon = float(np.finfo(dtype).eps)
    for items in (8, 17, 40):
        a = matrices(items, n, dtype, rng)
        sides = rng.standard_normal((items, n, 3)).astype(dtype)
        for x in (a, np.asfortranarray(a), a[::-1], np.swapaxes(a, 1, 2), np.repeat(a, 2, axis=2)[:, :, ::2]):
            exact = x.astype(np.float64)
            condition = np.linalg.cond(exact)
            assert linalg.det(x).dtype == a.dtype
            bound = 20 * n * epsilon * condition
            assert (np.abs(linalg.det(x) / np.linalg.det(exact) - 1) <= bound).all()
            assert backline.explain().algorithm == "lanes"
            sign, logarithm = linalg.slogdet(x)
            np.testing.assert_array_equal(sign, np.linalg.slogdet(exact)[0])
            assert (np.abs(logarithm - np.linalg.slogdet(exact)[1]) <= bound + 10 * n * epsilon).all()
            inverse = linalg.inv(x)
            residual = np.abs(exact @ inverse.astype(np.float64) - np.eye(n)).max((1, 2))
            assert (residual <= bound).all() and inverse.dtype == a.dtype
            assert backline.explain().algorithm == "lanes"
            solution = linalg.solve(x, sides)
            error = np.abs(exact @ solution.astype(np.float64) - sides).max((1, 2))
            assert (error <= bound * (1 + np.abs(solution).max((1, 2)))).all()
            vectors = linalg.solve(x, sides[..., 0])
            np.testing.assert_allclose(vectors, solution[..., 0], rtol=1e-3 if dtype == "float32" else 1e-9)


def definite(items: int, n: int, dtype: str, rng: np.random.Generator) -> Any:
    x = matrices(items, n, "float64", rng)
    return (x @ np.swapaxes(x, 1, 2) + np.eye(n)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 9, 15, 16])
def test_factors(n: int, dtype: str, rng: np.random.Generator) -> None:
    epsilon = float(np.finfo(dtype).eps)
    for items in (8, 17, 40):
        a = definite(items, n, dtype, rng)
        for x in (a, np.asfortranarray(a), a[::-1], np.swapaxes(a, 1, 2), np.repeat(a, 2, axis=2)[:, :, ::2]):
            for upper in (False, True):
                factor = linalg.cholesky(x, upper=upper)
                assert backline.explain().algorithm == "lanes" and factor.dtype == a.dtype
                np.testing.assert_array_equal(factor, np.triu(factor) if upper else np.tril(factor))
                wide = factor.astype(np.float64)
                product = np.swapaxes(wide, 1, 2) @ wide if upper else wide @ np.swapaxes(wide, 1, 2)
                # LAPACK Users' Guide: the error of a product of factors grows with n and the diagonal.
                size = np.abs(x.astype(np.float64)).max((1, 2))
                assert (np.abs(product - x).max((1, 2)) <= (n + 2) * epsilon * size).all()
    assert linalg.cholesky(np.repeat(a[None], 2, axis=0), upper=True).shape == (2, *a.shape)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("upper", [False, True])
def test_matrices_without_a_factor(dtype: str, upper: bool) -> None:
    a = np.repeat(4 * np.eye(3, dtype=dtype)[None], 19, axis=0)
    a[1, 2, 2], a[2, 1, 1], a[3, 0, 0], a[9, 1, 1], a[18, 2, 2] = -1, 0, -0.0, np.inf, np.nan
    read, other = ((0, 2), (2, 0)) if upper else ((2, 0), (0, 2))
    a[(5, *read)] = a[(6, *other)] = np.nan
    factor, info = linalg.cholesky_ex(a, upper=upper)
    assert backline.explain().algorithm == "lanes" and info.dtype == np.int32
    assert {i: int(x) for i, x in enumerate(info) if x} == {1: 3, 2: 2, 3: 1, 5: 1, 9: 1, 18: 1}
    np.testing.assert_array_equal(factor[info == 0], np.repeat(2 * np.eye(3, dtype=dtype)[None], 13, axis=0))
    with pytest.raises(linalg.LinAlgError, match="item 1 of the batch: the leading minor of order 3 is not positive-definite"):
        linalg.cholesky(a, upper=upper)
    least = np.nextafter(np.zeros(1, dtype), np.ones(1, dtype))[0]
    np.testing.assert_array_equal(linalg.cholesky(np.full((9, 1, 1), least), upper=upper), np.full((9, 1, 1), np.sqrt(least)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_interchanged(dtype: str) -> None:
    shifts = np.array([np.roll(np.eye(5, dtype=dtype), i, axis=0) for i in range(11)])
    np.testing.assert_array_equal(linalg.inv(shifts), np.swapaxes(shifts, 1, 2))
    np.testing.assert_array_equal(linalg.det(shifts), np.ones(11, dtype))
    swapped = shifts[:, [1, 0, 2, 3, 4]]
    np.testing.assert_array_equal(linalg.slogdet(swapped).sign, -np.ones(11, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_singular_and_spoilt_matrices(dtype: str) -> None:
    a = np.repeat(np.eye(3, dtype=dtype)[None], 12, axis=0)
    a[4, 2, 2], a[7] = 0, np.array([[np.nan, 1, 1], [1, 1, 1], [1, 1, 1]])
    np.testing.assert_array_equal(linalg.det(a)[[3, 4, 7]], np.array([1, 0, np.nan], dtype))
    sign, logarithm = linalg.slogdet(a)
    assert sign[4] == 0 and logarithm[4] == -np.inf and np.isnan(sign[7]) and np.isnan(logarithm[7])
    with pytest.raises(linalg.LinAlgError, match=r"item 4 .*element 3 of the diagonal"):
        linalg.inv(a)
    with pytest.raises(linalg.LinAlgError, match="item 4"):
        linalg.solve(a, np.ones((12, 3, 1), dtype))
    inverse, info = linalg.inv_ex(a)
    assert info.tolist() == [0, 0, 0, 0, 3] + 7 * [0] and info.dtype == np.int32
    assert np.isnan(inverse[7]).all() and (inverse[0] == np.eye(3)).all()
    result, info = linalg.solve_ex(a, np.ones((12, 3, 1), dtype))
    assert info[4] == 3 and np.isnan(result[7]).any() and (result[0] == 1).all()


def test_pivots_near_the_ends_of_the_range() -> None:
    for scale in (1e-310, 1e-300, 1e300):
        a = np.repeat((np.array([[0.0, 2.0], [4.0, 1.0]]) * scale)[None], 9, axis=0)
        assert (linalg.slogdet(a).logabsdet == pytest.approx(np.log(8) + 2 * np.log(scale), rel=1e-12)) if scale > 1e-305 else True
        solved = linalg.solve(a, np.repeat((a[0] @ np.array([[1.0], [2.0]]))[None], 9, axis=0))
        np.testing.assert_allclose(solved[8], [[1.0], [2.0]], rtol=1e-12 if scale > 1e-305 else 1e-3)


def test_results_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    a, squares = matrices(3000, 7, "float64", rng), definite(3000, 7, "float64", rng)
    found = set()
    for threads in (1, 2, 3):
        with backline.num_threads(threads):
            found.add(linalg.inv(a).tobytes() + linalg.det(a).tobytes() + linalg.cholesky(squares).tobytes())
    assert len(found) == 1


def test_what_it_has_not_goes_to_others(rng: np.random.Generator) -> None:
    a = matrices(10, 4, "float64", rng)
    out = np.empty_like(a)
    assert linalg.inv(a, out=out) is out
    np.testing.assert_allclose(out, linalg.inv(a), rtol=1e-9)
    for x in (a.astype(complex), rng.standard_normal((10, 17, 17)), a[:7]):
        np.testing.assert_allclose(linalg.inv(x), np.linalg.inv(x), rtol=1e-6, atol=1e-9)
        assert backline.explain().algorithm != "lanes"
    np.testing.assert_allclose(linalg.solve(a, np.ones((4, 2))), np.linalg.solve(a, np.ones((4, 2))), rtol=1e-9)
    with backline.backends.flags(only=("numpy",)):
        np.testing.assert_allclose(linalg.inv(a), out, rtol=1e-9)
