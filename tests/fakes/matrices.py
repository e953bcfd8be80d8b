"""Matrices for tests of linear algebra on CUDA arrays, and how near a result has to come."""

from __future__ import annotations

from typing import Any

import numpy as np

from fakes.cupy_standin import ndarray

FLOATS = ("float32", "float64", "complex64", "complex128")


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    made = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        made = made + 1j * rng.standard_normal(shape)
    return made.astype(dtype)


def well(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Square matrices that are far from singular."""
    n = shape[-1]
    return numbers(shape, dtype, seed) + (2 * n**0.5 + 1) * np.eye(n, dtype=dtype)


def positive(shape: tuple[int, ...], dtype: str) -> Any:
    a = numbers(shape, dtype)
    return (a @ a.conj().swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def there(a: Any) -> Any:
    return ndarray(a)


def near(found: Any, expected: Any, factor: float = 300) -> None:
    host = found.host if isinstance(found, ndarray) else found
    expected = np.asarray(expected)
    assert host.shape == expected.shape and host.dtype == expected.dtype, (host.shape, expected.shape, host.dtype, expected.dtype)
    eps = np.finfo(expected.dtype).eps if expected.dtype.kind in "fc" else 0
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(host, expected, rtol=0, atol=factor * float(eps) * scale)


def h(a: Any) -> Any:
    return a.conj().swapaxes(-1, -2)
