"""Cholesky factors of large matrices, which all threads copy, and systems with few right-hand sides, which they solve in panels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, linalg
from backline.engine import ranking
from backline.errors import LinAlgError
from support import clean, need, rng, roundoff, seed

Array = Any
DTYPES = ("float32", "float64", "complex64", "complex128")
VENDORS = ("mkl", "openblas", "blis")
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed


def definite(rng: np.random.Generator, n: int, dtype: str) -> Array:
    """A Hermitian matrix with a condition number of about four."""
    a = rng.uniform(-1, 1, (n, n)) + (1j * rng.uniform(-1, 1, (n, n)) if dtype.startswith("complex") else 0)
    return ((a + a.conj().T) / (2 * n**0.5) + 3 * np.eye(n)).astype(dtype)


def double(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def layouts(a: Array) -> dict[str, Array]:
    n = len(a)
    wide_rows, back = np.zeros((n, n + 3), a.dtype), a[::-1].copy()[::-1]
    wide_rows[:, :n] = a
    spread = np.zeros((n, 2 * n), a.dtype)
    spread[:, ::2] = a
    return {"C": a, "F": np.asfortranarray(a), "wide": wide_rows[:, :n], "back": back, "spread": spread[:, ::2]}


@pytest.mark.parametrize("library", ["mkl", "openblas"])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(
    ("n", "dtype", "threads"), [(255, "float32", 2), (256, "float64", 1), *((301, dtype, 2) for dtype in DTYPES)]
)
def test_factors_do_not_see_the_other_triangle(
    n: int, dtype: str, threads: int, upper: bool, library: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    need(library)
    # Where the result is given another algorithm may be the fastest, and its last bits differ.
    monkeypatch.setattr(ranking, "order_of", lambda *_: (f"{library}.potrf@n", f"{library}.potrf@1"))
    a = definite(rng, n, dtype)
    spoilt = np.where(np.tri(n, k=-1, dtype=bool) if upper else ~np.tri(n, dtype=bool), np.nan, a).astype(dtype)
    for name, given in layouts(spoilt).items():
        before = given.copy()
        out = np.full((n, n), 7, dtype)
        with backline.num_threads(threads), backline.backends.flags(only=(library,)):
            found = linalg.cholesky(given, upper=upper)
            assert linalg.cholesky(given, upper=upper, out=out) is out
        assert np.array_equal(found, out) and np.array_equal(given, before, equal_nan=True), name
        assert not np.tril(found, -1).any() if upper else not np.triu(found, 1).any()
        f = double(found)
        product = f.conj().T @ f if upper else f @ f.conj().T
        assert np.abs(product - a).max() <= 20 * n * roundoff(a.dtype), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_wherever_it_is(value: float, dtype: str, rng: np.random.Generator) -> None:
    n = 300
    for row, column in ((0, 0), (n - 1, 0), (n - 1, n - 1), sorted(rng.integers(0, n, 2), reverse=True)):
        a = definite(rng, n, dtype)
        if dtype.startswith("complex") and row != column:
            a.imag[row, column] = value
        else:
            a[row, column] = value
        for given in (a, np.asfortranarray(a)):
            with pytest.raises(LinAlgError, match="order 1 is not positive-definite"):
                linalg.cholesky(given)
            assert linalg.cholesky_ex(given).info == 1
            if row != column:  # the other triangle is not read
                linalg.cholesky(given, upper=True)
    a = definite(rng, n, dtype)
    a[200, 200] = -1
    assert linalg.cholesky_ex(a).info == 201


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(512, 1), (577, 10)])
def test_solutions_in_panels(
    n: int, k: int, dtype: str, upper: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    a = definite(rng, n, dtype)
    factor = np.linalg.cholesky(double(a)).astype(dtype)
    factor = np.ascontiguousarray(factor.conj().T) if upper else factor
    other = np.where(np.tri(n, k=-1, dtype=bool) if upper else ~np.tri(n, dtype=bool), np.nan, factor).astype(dtype)
    b = rng.uniform(-1, 1, (n, k)).astype(dtype)
    ran = 0
    for vendor in VENDORS:
        monkeypatch.setattr(ranking, "order_of", lambda *_, name=vendor: (f"{name}.potrs_split@n",))
        if not libraries.get(vendor).available():
            continue
        for name, given in list(layouts(other).items())[:3]:
            with backline.use(vendor), backline.num_threads(2):
                choice = backline.explain(backline.cholesky_solve, b, given, upper=upper)
                if "potrs_split" not in choice.algorithm:
                    continue
                out = np.full((n, k), 7, dtype)
                found = backline.cholesky_solve(b, given, upper=upper)
                backline.cholesky_solve(b, given, upper=upper, out=out)
            ran += 1
            assert np.array_equal(found, out), name
            rest = double(a) @ double(found) - b
            assert np.abs(rest).max() <= 100 * n * roundoff(a.dtype), (vendor, name)
    assert ran or not any(libraries.get(name).available() for name in ("mkl", "openblas"))
