"""Sums of squares for norms: against longdouble, and what is left to the slower way."""

from __future__ import annotations

import numpy as np
import pytest

import backline
from backline import _kernels
from support import rng, seed

assert rng and seed


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000, 40001])
def test_it_is_the_sum_of_squares(dtype: str, n: int, rng: np.random.Generator) -> None:
    x = (rng.standard_normal(n) + (1j * rng.standard_normal(n) if dtype.startswith("c") else 0)).astype(dtype)
    parts = np.stack([x.real, x.imag]).astype(np.longdouble)
    assert _kernels.sum_of_squares(x) == pytest.approx(float((parts**2).sum()), rel=1e-14)
    assert float(backline.linalg.norm(x)) == pytest.approx(float(np.sqrt((parts**2).sum())), rel=1e-7 if x.itemsize < 9 else 1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layouts(dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, 30)).astype(dtype)
    assert _kernels.sum_of_squares(x) is not None and _kernels.sum_of_squares(x.T) == _kernels.sum_of_squares(x)
    misaligned = np.frombuffer(bytearray(1 + x.nbytes), dtype, x.size, 1)
    misaligned[:] = x.ravel()
    for other in (x[:, ::2], x[::-1], misaligned, x.astype(x.dtype.newbyteorder()), x.astype(np.float16), x.astype(int)):
        assert _kernels.sum_of_squares(other) is None
    for other in (x[:, ::2], x[::-1], misaligned.reshape(x.shape)):
        assert float(backline.linalg.norm(other)) == pytest.approx(float(np.linalg.norm(other.astype(np.float64))), rel=1e-6)
    with pytest.raises(TypeError, match="takes an array"):
        _kernels.sum_of_squares([1.0])


@pytest.mark.parametrize("values", [
    [3e200, 4e200], [3e-200, 4e-200], [1e-160, 1e-165], [5e-324], [np.inf, 1], [np.nan, 1], [np.nan, np.inf], [0.0, 0.0], [-0.0],
])  # fmt: skip
def test_what_squares_leave_the_range(values: list[float]) -> None:
    expected = np.sqrt((np.array(values, np.longdouble) ** 2).sum())
    assert float(backline.linalg.norm(np.array(values))) == pytest.approx(float(expected), rel=1e-15, abs=0, nan_ok=True)


def test_float32_keeps_its_whole_range() -> None:
    tiny = np.array([1e-45, 0, 3e-45], np.float32)
    assert backline.linalg.norm(tiny) == np.float32(np.sqrt((tiny.astype(float) ** 2).sum()))
    large = np.array([2e38, 2e38], np.float32)
    assert backline.linalg.norm(large) == np.float32(np.sqrt((large.astype(float) ** 2).sum()))


def test_results_are_as_before() -> None:
    x = np.ones((2, 3), np.float32)
    assert type(backline.linalg.norm(x)) is np.float32 and backline.linalg.norm(x, keepdim=True).shape == (1, 1)
    out = np.empty((), np.float32)
    assert backline.linalg.vector_norm(x, out=out) is out and out == np.float32(6**0.5)
    with pytest.raises(backline.errors.BadType):
        backline.linalg.norm(x, out=np.empty((), np.float64))
    for order in (np.array([2, 2]), 2 + 0j, "2"):
        with pytest.raises(backline.errors.BadType, match="ord is a number"):
            backline.linalg.vector_norm(x, order)
