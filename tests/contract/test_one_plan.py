"""Operations that run as one plan give what the operations that they are composed of give: every library, dtype and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from support import clean, need, rng, seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed
DTYPES = ("float32", "float64", "complex64", "complex128")
SQUARE: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (linalg.det, (), {}), (linalg.slogdet, (), {}), (linalg.cond, (), {}), (linalg.cond, (-2,), {}), (linalg.cond, ("nuc",), {}),
    (linalg.matrix_power, (-1,), {}), (linalg.matrix_power, (2,), {}), (linalg.matrix_power, (13,), {}),
    (linalg.matrix_power, (8,), {}),
    *((linalg.cond, (order,), {}) for order in (1, -1, float("inf"), -float("inf"), "fro")),
]  # fmt: skip
ANY: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (linalg.lu, (), {}), (linalg.pinv, (), {}), (linalg.pinv, (), {"rtol": 0.5}), (linalg.matrix_rank, (), {}),
    (linalg.matrix_rank, (), {"atol": 1.0}), (linalg.matrix_norm, (2,), {}), (linalg.matrix_norm, (-2,), {"keepdim": True}),
    (linalg.matrix_norm, ("nuc",), {}),
]  # fmt: skip


def random(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Any:
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.startswith("c") else real).astype(dtype)


def layouts(a: Any) -> tuple[Any, ...]:
    return a, np.asfortranarray(a), a[..., ::-1, :], np.repeat(a, 2, axis=-1)[..., ::2]


def same(got: Any, want: Any, tolerance: float) -> None:
    for one, other in zip(got, want, strict=True) if isinstance(want, tuple) else ((got, want),):
        assert type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.max(np.abs(other), initial=0))


@pytest.mark.parametrize("library", ["openblas", "mkl"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "args", "keywords"), SQUARE + ANY)
def test_one_plan_is_the_composition(
    library: str, dtype: str, op: Any, args: tuple[Any, ...], keywords: dict[str, Any], rng: np.random.Generator
) -> None:
    need(library)
    shapes = [(1, 1), (4, 4), (9, 9), (3, 5, 5), (2, 2, 3, 3)]
    if (op, args, keywords) in ANY:
        shapes += [(3, 5), (6, 2), (2, 4, 3)]
    with backline.backends.flags(only=(library, "kernels")):
        for shape in shapes:
            for a in layouts(random(shape, dtype, rng)):
                with backline.trace() as events:
                    got = op(a, *args, **keywords)
                tolerance = 2e-3 if a.real.itemsize == 4 else 1e-9
                same(got, op.__wrapped__(a, *args, **keywords), tolerance)
                if a.ndim == 2 or op is not linalg.matrix_power or args == (-1,):  # powers of a stack are products, which loops make
                    assert events[0].library == library


@pytest.mark.parametrize("library", ["openblas", "mkl", "numpy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_singular_and_spoilt_matrices(library: str, dtype: str) -> None:
    need(library)
    spoilt = np.ones((3, 3), dtype)
    spoilt[0, 0] = np.nan
    stack = np.stack([np.eye(3, dtype=dtype), np.zeros((3, 3), dtype), spoilt])
    with backline.backends.flags(only=(library,)):
        np.testing.assert_array_equal(linalg.det(stack), np.array([1, 0, np.nan], dtype))
        sign, logarithm = linalg.slogdet(stack)
        np.testing.assert_array_equal(sign[:2], [1, 0])
        np.testing.assert_array_equal(logarithm, np.array([0, -np.inf, np.nan]))
        assert np.isnan(sign[2])
        assert np.isnan(linalg.lu(stack).U[2, 0, 0]) and not np.isnan(linalg.lu(stack).U[:2]).any()
        for op in (linalg.cond, linalg.matrix_rank, linalg.pinv):
            with pytest.raises(linalg.LinAlgError, match="NaN or infinity"):
                op(spoilt)
        assert linalg.matrix_rank(stack[:2]).tolist() == [3, 0] and not linalg.pinv(stack[1]).any()
        with pytest.raises(linalg.LinAlgError, match="singular"):
            linalg.matrix_power(stack[1], -1)


def test_chains_and_sums(rng: np.random.Generator) -> None:
    need("openblas")
    matrices = [random(shape, "float64", rng) for shape in ((3, 50), (50, 2), (2, 7), (7, 4))]
    matrices[1] = np.asfortranarray(matrices[1])
    for count in (3, 4):
        for chain in (matrices[:count], tuple(matrices[:count])):
            np.testing.assert_allclose(linalg.multi_dot(chain), np.linalg.multi_dot(list(chain)), rtol=1e-12, atol=1e-12)
    assert backline.explain().problem.op == "linalg.multi_dot"
    a = random((5, 7), "float32", rng)
    for view in (a, a.T, a[::-1], a[:, ::3]):
        assert backline.trace(view) == pytest.approx(float(np.trace(view.astype(float))), rel=1e-6)
        assert backline.trace(view).dtype == np.float32 and backline.explain().library == "kernels"
    x, y = random((2, 30), "complex128", rng)
    assert linalg.vecdot(x, y) == pytest.approx(np.vecdot(x, y)) and backline.inner(x, y) == pytest.approx(np.inner(x, y))


def test_outputs_get_the_same_bits(rng: np.random.Generator) -> None:
    a = random((2, 4, 4), "float64", rng)
    for op in (linalg.det, linalg.pinv, linalg.matrix_rank, linalg.cond, linalg.norm, linalg.matrix_norm):
        want = np.asarray(op(a))
        out = np.empty_like(want)
        assert op(a, out=out) is out and (out == want).all()
        with pytest.raises(backline.errors.BadType):
            op(a, out=np.empty(want.shape, np.float16))


def test_what_is_switched_off_does_not_run(rng: np.random.Generator) -> None:
    a = random((4, 4), "float64", rng)
    want = linalg.norm(a), backline.trace(a)
    with backline.backends.flags(only=("numpy",)), backline.trace() as events:
        assert linalg.norm(a) == pytest.approx(want[0]) and backline.trace(a) == pytest.approx(want[1])
    assert not events


@pytest.mark.parametrize("library", ["openblas", "mkl"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials(library: str, dtype: str, rng: np.random.Generator) -> None:
    need(library)
    epsilon = float(np.finfo(dtype).eps)
    with backline.backends.flags(only=(library, "kernels")):
        for n in (2, 3, 9, 40):
            for size in (0, 1e-20, 1e-9, 1e-5, 1e-2, 0.1, 0.4, 1, 3, 30):  # a polynomial of every degree, and squarings
                for a in layouts(random((n, n), dtype, rng)):
                    a = (a * (size / max(np.abs(a).sum(0).max(), 1e-30))).astype(dtype)
                    got = linalg.matrix_exp(a)
                    assert got.dtype == a.dtype and backline.explain().problem.op == "linalg.matrix_exp"
                    want = exponential(a)
                    assert np.abs(got - want).max() <= 20 * n * epsilon * (1 + size) * np.abs(want).max()
        scales = (0, 1e-6, 1, 40)  # as 1-norms: whatever the seed, no exponential passes the largest float32
        matrices = [a * (scale / np.abs(a).sum(0).max()) for scale in scales for a in [random((4, 4), dtype, rng)]]
        stack = np.stack([*matrices, np.full((4, 4), np.nan, dtype)])
        got = linalg.matrix_exp(stack.astype(dtype))
        assert np.isnan(got[4]).all() and (got[0] == np.eye(4)).all()
        for one, each in zip(got[:4], stack.astype(dtype), strict=False):
            np.testing.assert_allclose(one, linalg.matrix_exp(each), rtol=200 * epsilon, atol=200 * epsilon * np.abs(one).max())


def exponential(a: Any) -> Any:
    """By Taylor series in longdouble, after scaling to a norm below 2^-6, and squaring."""
    x = a.astype(np.clongdouble if a.dtype.kind == "c" else np.longdouble)
    times = max(0, int(np.ceil(np.log2(float(np.abs(x).sum(0).max()) + 1e-300))) + 6)
    x = x / 2.0**times
    term = result = np.eye(len(a), dtype=x.dtype)
    for i in range(1, 25):
        term = term @ x / i
        result = result + term
    for _ in range(times):
        result = result @ result
    return result
