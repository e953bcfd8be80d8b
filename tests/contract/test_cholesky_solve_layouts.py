"""A Cholesky factor is read as it lies in memory, and its other triangle is not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean
LIBRARIES = [name for name in ("mkl", "openblas", "numpy") if libraries.get(name).available()]
N, K = 7, 4


def laid(a: Any, layout: str) -> Any:
    if layout == "columns":
        return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "part":
        whole = np.full((*a.shape[:-1], 2 * N + 3), np.nan, a.dtype)
        whole[..., :N] = a
        return whole[..., :N]
    if layout == "every second":
        return np.repeat(a, 2, axis=-1)[..., ::2]
    if layout == "backwards":
        return np.ascontiguousarray(a[..., ::-1, ::-1])[..., ::-1, ::-1]
    return np.ascontiguousarray(a)


@pytest.mark.parametrize("layout", ["rows", "columns", "part", "every second", "backwards"])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_solution_does_not_depend_on_the_layout(library: str, dtype: str, upper: bool, layout: str) -> None:
    rng = np.random.default_rng(1)
    for batch in ((), (3,)):
        a, b = rng.standard_normal((*batch, N, N)), rng.standard_normal((*batch, N, K))
        if dtype.startswith("complex"):
            a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
        a = a @ a.conj().swapaxes(-1, -2) + N * np.eye(N)
        factor = np.linalg.cholesky(a)
        factor = factor.conj().swapaxes(-1, -2) if upper else factor
        unread = np.tri(N, k=-1, dtype=bool) if upper else np.tri(N, k=-1, dtype=bool).T
        given = laid(np.where(unread, np.nan, factor).astype(dtype), layout)
        with backline.use(library, only=True):
            result = backline.cholesky_solve(b.astype(dtype), given, upper)
        bound = 1e-4 if dtype in ("float32", "complex64") else 1e-12
        assert np.abs(result - np.linalg.solve(a, b)).max() <= bound * np.abs(b).max()
