"""Sums, sums of products, products of elements, cross products and powers by compiled loops: against longdouble, in every layout."""

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


def random(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Any:
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.startswith("c") else real).astype(dtype)


def layouts(a: Any) -> tuple[Any, ...]:
    """The same numbers, laid out otherwise."""
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    wide[..., ::2] = a
    turned = np.ascontiguousarray(a[::-1])[::-1]
    return a, np.asfortranarray(a), wide[..., ::2], turned


def wide(a: Any) -> Any:
    return a.astype(np.clongdouble if a.dtype.kind == "c" else np.longdouble)


def close(got: Any, want: Any, scale: Any = 1.0) -> None:
    got = np.asarray(got)
    epsilon = np.finfo(got.dtype).eps
    assert got.shape == np.shape(want)
    np.testing.assert_array_less(np.abs(got - want), 40 * epsilon * (np.abs(want) + scale))


SUMS = ("ijk->", "ijk->i", "ijk->j", "ijk->k", "ijk->ik", "ijk->kj", "ijk->ji", "iij->", "iij->j", "iji->i", "iii->")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("equation", SUMS)
def test_sums(equation: str, dtype: str, rng: np.random.Generator) -> None:
    inputs = equation.partition("->")[0]
    for size in (3, 33):
        sizes = {"i": size, "j": size + 2, "k": size + 5}
        a = random(tuple(sizes[label] for label in inputs), dtype, rng)
        for x in layouts(a):
            got = backline.einsum(equation, x)
            assert got.dtype == x.dtype
            close(got, np.einsum(equation, wide(x)), scale=np.sqrt(x.size))
            assert backline.explain().library == "kernels"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 511, 513, 1000, 16384, 16385, 300001])
def test_all_elements_of_one_axis(n: int, dtype: str, rng: np.random.Generator) -> None:
    x = random((n,), dtype, rng)
    for each in (x, x[::-1], np.repeat(x, 2)[::2]):
        close(backline.einsum("i->", each), wide(each).sum(), scale=np.sqrt(n))
        if not dtype.startswith("c"):
            close(backline.einsum("i,i->", each, x), (wide(each) * wide(x)).sum(), scale=np.sqrt(n))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("equation", ["ij,ij->", "ij,ij->i", "ij,ij->j", "ij,ji->", "ij,ji->j", "ijk,ikj->ik", "ijk,kij->", "ii,ii->"])
def test_sums_of_products(equation: str, dtype: str, rng: np.random.Generator) -> None:
    terms = equation.partition("->")[0].split(",")
    for size in (2, 6, 40):
        sizes = {"i": size, "j": size + 3, "k": size + 1}
        terms_of_a_sum = math.prod(sizes[label] for label in set("".join(terms)))
        a, b = (random(tuple(sizes[label] for label in term), dtype, rng) for term in terms)
        for x, y in itertools.product(layouts(a), layouts(b)):
            close(backline.einsum(equation, x, y), np.einsum(equation, wide(x), wide(y)), scale=np.sqrt(terms_of_a_sum))
        assert backline.explain().library == "kernels"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("equation", ["i,j->ij", "i,j->ji", "ij,j->ij", "ij,i->ij", "ij,ij->ij", "ij,ji->ij", "ij,kl->ikjl", "ij,->ij", "bi,bj->bij"])
def test_products_of_elements(equation: str, dtype: str, rng: np.random.Generator) -> None:
    terms = equation.partition("->")[0].split(",")
    sizes = {"i": 7, "j": 9, "k": 3, "l": 5, "b": 4}
    a, b = (random(tuple(sizes[label] for label in term), dtype, rng) for term in terms)
    want = np.einsum(equation, wide(a), wide(b))
    close(backline.einsum(equation, a, b), want)
    assert backline.explain().library == "kernels"
    for target in (np.empty(want.shape, dtype), np.empty(want.shape, dtype, order="F"), np.empty((2, *want.shape), dtype)[1]):
        assert backline.einsum(equation, a, b, out=target) is target
        close(target, want)


def test_axes_of_size_one_are_repeated(rng: np.random.Generator) -> None:
    a, b = random((5, 1, 4), "float64", rng), random((5, 6, 1), "float64", rng)
    close(backline.einsum("ijk,ijk->ik", a, b), (wide(a) * wide(b)).sum(1), scale=3)
    close(backline.einsum("ijk,ijk->ijk", a, b), wide(a) * wide(b))
    close(backline.einsum("ijk->k", a), wide(a).sum((0, 1)), scale=3)
    assert backline.einsum("ij->", np.ones((1, 1))) == 1 and backline.einsum("ij->", np.ones((0, 3))) == 0


def test_numbers_that_are_none_spread(rng: np.random.Generator) -> None:
    x = np.ones((40, 50))
    x[3, 7], x[4, 0], x[5, 1], x[5, 2] = np.nan, np.inf, np.inf, -np.inf
    rows = backline.einsum("ij->i", x)
    assert np.isnan(rows[[3, 5]]).all() and rows[4] == np.inf and (np.delete(rows, [3, 4, 5]) == 50).all()
    assert np.isnan(backline.einsum("ij->", x)) and np.isnan(backline.einsum("ij,ij->", x, x))
    huge = np.full(100, 3e38, np.float32)
    assert backline.einsum("i->", huge) == np.inf and backline.einsum("i->", np.concatenate([huge, -huge])) == 0


def test_an_output_must_not_overlap(rng: np.random.Generator) -> None:
    a = random((6, 6), "float64", rng)
    with pytest.raises(backline.errors.BadValue, match="overlap"):
        backline.einsum("ij,ij->ij", a, a.T, out=a)
    with pytest.raises(backline.errors.BadValue, match="overlap"):
        backline.einsum("ij->j", a, out=a[0])


def test_bits_do_not_depend_on_threads_or_instructions(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 600, 700))
    found = set()
    for threads, cap in itertools.product((1, 2, 3), capability.reachables()):
        with backline.num_threads(threads), backline.switches.scope({"cpu.capability": cap}):
            results = [backline.einsum("ij,ij->", x, y)] + [backline.einsum(f"ij->{label}", x) for label in ("", "i", "j")]
            found.add(b"".join(result.tobytes() for result in results))
    assert len(found) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_of_elements(dtype: str, rng: np.random.Generator) -> None:
    a, b = random((4, 5), dtype, rng), random((3, 2), dtype, rng)
    for x, y in itertools.product(layouts(a), layouts(b)):
        close(backline.kron(x, y), np.kron(wide(x), wide(y)))
    close(backline.kron(a, b[0]), np.kron(wide(a), wide(b[0])))
    stack = random((2, 3, 4), dtype, rng)
    close(backline.kron(stack, a), np.kron(wide(stack), wide(a)))
    assert backline.explain().library == "kernels"
    x, y = random((7, 3, 2), dtype, rng), random((1, 3, 2), dtype, rng)
    for one, other in itertools.product(layouts(x), layouts(y)):
        np.testing.assert_allclose(linalg.cross(one, other, dim=1), np.cross(one, other, axis=1), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(backline.cross(one, other), linalg.cross(one, other, dim=1))
    assert backline.explain().library == "kernels"
    rows, columns = random((30, 41), dtype, rng), random((41,), dtype, rng)
    for one in layouts(rows):
        close(linalg.vecdot(one, columns), (wide(one).conj() * wide(columns)).sum(-1), scale=7)
        close(linalg.vecdot(one, one, dim=0), (wide(one).conj() * wide(one)).sum(0), scale=7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers(dtype: str, rng: np.random.Generator) -> None:
    for n, count in ((1, 2), (3, 3), (8, 5), (9, 20), (21, 4)):
        x = random((n,), dtype, rng)
        for each in (x, x[::-1], np.repeat(x, 2)[::2]):
            want = np.vander(wide(each), count, increasing=True)
            close(linalg.vander(each, N=count), want, scale=np.abs(want) + np.finfo(dtype).tiny)
            np.testing.assert_array_equal(backline.vander(each, count), linalg.vander(each, N=count)[:, ::-1])
            assert backline.explain().library == "kernels"
    batch = random((2, 3, 4), dtype, rng)
    np.testing.assert_array_equal(linalg.vander(batch)[1, 2], linalg.vander(batch[1, 2]))
    x = np.array([np.nan, np.inf, 0], dtype)
    np.testing.assert_array_equal(linalg.vander(x)[:, 0], np.ones(3, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_along_axes_are_one_product(dtype: str, rng: np.random.Generator) -> None:
    a, b = random((3, 4, 5), dtype, rng), random((4, 5, 6), dtype, rng)
    for dims in (2, ((1, 2), (0, 1)), ((2, 1), (1, 0)), ([1, 2], [0, 1]), ((-1,), (1,)), 0):
        want = np.tensordot(a, b, dims)
        np.testing.assert_allclose(backline.tensordot(a, b, dims), want, rtol=2e-5 if a.real.itemsize == 4 else 1e-12, atol=1e-4)
        assert backline.tensordot(a, b, dims).shape == want.shape
    for x, y in ((a, a), (a, a[0]), (a[:, ::2], a[1]), (a.T, a.T), (a[0], a), (a, a[0, 0]), (a[::-1], a)):
        np.testing.assert_allclose(backline.inner(x, y), np.inner(x, y), rtol=2e-5 if a.real.itemsize == 4 else 1e-12, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_result_of_many_elements(dtype: str, rng: np.random.Generator) -> None:
    """In parts, which threads share."""
    for n in ((1 << 17) + 1, 200_003):
        a, b = random((n,), dtype, rng), random((n,), dtype, rng)
        close(backline.einsum("i->", a), wide(a).sum(), scale=np.sqrt(n))
        if not dtype.startswith("c"):
            close(backline.einsum("i,i->", a, b), (wide(a) * wide(b)).sum(), scale=np.sqrt(n))
