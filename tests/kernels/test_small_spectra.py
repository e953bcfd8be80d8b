"""Eigenvalues and eigenvectors of batches of small symmetric matrices by a compiled loop: by residuals, and against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from support import rng, seed

assert rng and seed
DTYPES = ("float32", "float64")


@pytest.fixture(autouse=True)
def lanes_first() -> Iterator[None]:
    """Whatever is fastest on the machine: here it is about the compiled loops."""
    with backline.use("kernels"):
        yield


def symmetric(rng: np.random.Generator, items: int, n: int, dtype: str) -> Any:
    a = rng.standard_normal((items, n, n))
    return (a + np.swapaxes(a, 1, 2)).astype(dtype)


def check(a: Any, lower: bool = True) -> None:
    """Residuals in longdouble, as large as rounding makes them; values against NumPy's in float64."""
    half = "L" if lower else "U"
    n, epsilon = a.shape[-1], float(np.finfo(a.dtype).eps)
    values, vectors = linalg.eigh(a, half)
    assert backline.explain().algorithm == "lanes"
    assert values.dtype == vectors.dtype == a.dtype and values.shape == a.shape[:-1] and vectors.shape == a.shape
    one = np.tril(a) if lower else np.triu(a)
    whole = (one + np.swapaxes(one, -1, -2) * (1 - np.eye(n, dtype=a.dtype))).astype(np.longdouble)
    size = np.abs(whole).max((-2, -1), keepdims=True)
    size = np.where(size > 0, size, 1)
    wide, scaled = vectors.astype(np.longdouble), whole / size
    bound = 30 * (n + 1) * epsilon
    assert (np.abs(scaled @ wide - wide * (values.astype(np.longdouble)[..., None, :] / size)) <= bound).all()
    assert (np.abs(np.swapaxes(wide, -1, -2) @ wide - np.eye(n)) <= bound).all()
    assert (np.diff(values, axis=-1) >= 0).all()
    exact = np.linalg.eigvalsh(scaled.astype(np.float64))
    for found in (values, linalg.eigvalsh(a, half)):
        assert backline.explain().algorithm == "lanes"
        assert (np.abs(found / size[..., 0] - exact) <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 6, 11, 16])
def test_results(n: int, dtype: str, rng: np.random.Generator) -> None:
    for items in (8, 21):
        a = symmetric(rng, items, n, dtype)
        for x in (a, a[::-1], np.asfortranarray(a), np.repeat(a, 2, axis=2)[:, :, ::2]):
            check(x)
        check(a, lower=False)
    stacked = symmetric(rng, 24, n, dtype).reshape(4, 6, n, n)
    assert linalg.eigh(stacked).eigenvectors.shape == stacked.shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_awkward_matrices(dtype: str, rng: np.random.Generator) -> None:
    """Multiple and tiny eigenvalues, what is diagonal already, one column, and both ends of the range."""
    n, largest = 5, float(np.finfo(dtype).max)
    column = rng.standard_normal(n)
    grading = 10.0 ** -np.arange(0, 2 * n, 2)
    kinds = [
        np.zeros((n, n)), np.eye(n), np.diag(np.arange(n)[::-1] + 0.5), np.ones((n, n)), np.outer(column, column),
        np.outer(grading, grading) * symmetric(rng, 1, n, "float64")[0], np.eye(n)[::-1], -np.ones((n, n)) + 2 * np.eye(n),
    ]  # fmt: skip
    check(np.array(kinds).astype(dtype))
    for scale in (largest / 40, float(np.finfo(dtype).tiny), float(np.finfo(dtype).tiny) * 1e3):
        check((np.array(kinds) * scale / np.abs(column).max() ** 2).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_named(dtype: str, rng: np.random.Generator) -> None:
    a = symmetric(rng, 20, 4, dtype)
    a[:, 0, 3] = np.nan  # in the triangle that is not read
    check_free = linalg.eigh(a)
    assert np.isfinite(check_free.eigenvalues).all()
    for bad in (np.nan, np.inf, -np.inf):
        b = symmetric(rng, 20, 4, dtype)
        b[13, 2, 1] = bad
        for function in (linalg.eigh, linalg.eigvalsh):
            with pytest.raises(linalg.LinAlgError, match=r"item 13 .*NaN or infinity"):
                function(b)


def test_results_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    a = symmetric(rng, 2000, 7, "float64")
    found = set()
    for threads in (1, 2, 3):
        with backline.num_threads(threads):
            values, vectors = linalg.eigh(a)
            found.add(values.tobytes() + vectors.tobytes())
    assert len(found) == 1


def test_what_it_has_not_goes_to_others(rng: np.random.Generator) -> None:
    for a in (symmetric(rng, 7, 4, "float64"), symmetric(rng, 10, 17, "float64"), symmetric(rng, 10, 4, "float64") + 0j):
        np.testing.assert_allclose(linalg.eigvalsh(a), np.linalg.eigvalsh(a), atol=1e-10)
        assert backline.explain().algorithm != "lanes"
