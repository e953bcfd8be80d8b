"""Norms by compiled loops: against longdouble, in every layout, and where squares leave the range."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from backline.libraries import capability
from support import rng, seed

assert rng and seed

DTYPES = ("float32", "float64", "complex64", "complex128")


def expected(x: Any, order: float, dim: Any, keepdim: bool) -> Any:
    size = np.abs(x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble))
    if order == 0:
        return (size != 0).sum(axis=dim, keepdims=keepdim)
    if math.isinf(order):
        return (size.max if order > 0 else size.min)(axis=dim, keepdims=keepdim)
    return (size**order).sum(axis=dim, keepdims=keepdim) ** (1 / np.longdouble(order))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 511, 513, 1000, 16384, 16385, 200001])
@pytest.mark.parametrize("order", [2, 1, 0, math.inf, -math.inf])
def test_all_elements(dtype: str, n: int, order: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal(n) + (1j * rng.standard_normal(n) if dtype.startswith("c") else 0)).astype(dtype)
    rel = 2e-7 if x.real.itemsize < 8 else 2e-15
    assert linalg.vector_norm(x, order) == pytest.approx(float(expected(x, order, None, False)), rel=rel)
    assert backline.explain().algorithm == "compiled"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (33, 70), (3, 40, 50), (2, 3, 4, 5), (700, 65)])
def test_axes_and_layouts(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype.startswith("c") else 0)).astype(dtype)
    axes = [None, *range(x.ndim), *itertools.combinations(range(x.ndim), 2)]
    arrays, orders = (x, x.T, x[::-1], x[..., ::2], np.asfortranarray(x)), (2, 1, math.inf, -math.inf, 3, 0.5, -1)
    for array, dim, order in itertools.product(arrays, axes, orders):
        got, want = linalg.vector_norm(array, order, dim, True), expected(array, order, dim, True)
        np.testing.assert_allclose(got, want.astype(got.dtype), rtol=4e-6 if x.real.itemsize < 8 else 1e-14)


def test_bits_do_not_depend_on_threads_or_instructions(rng: np.random.Generator) -> None:
    x = rng.standard_normal((600, 700))
    found = set()
    for threads, cap in itertools.product((1, 2, 3), capability.reachables()):
        with backline.num_threads(threads), backline.switches.scope({"cpu.capability": cap}):
            found.add((linalg.norm(x).tobytes(), linalg.vector_norm(x, 1, 0).tobytes(), linalg.vector_norm(x, 2, 1).tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layouts(dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, 30)).astype(dtype)
    misaligned = np.frombuffer(bytearray(1 + x.nbytes), dtype, x.size, 1)
    misaligned[:] = x.ravel()
    for other in (x.T, x[:, ::2], x[::-1], misaligned.reshape(x.shape), x.astype(x.dtype.newbyteorder())):
        assert float(linalg.norm(other)) == pytest.approx(float(np.linalg.norm(other.astype(np.float64))), rel=1e-6)
    assert linalg.norm(x.T) == linalg.norm(x)


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
