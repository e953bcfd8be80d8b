"""Sums divided into parts of a fixed size, for the same bits on any number of threads: small parts, so that there are many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, backends, linalg
from backline.engine import plan_caches
from backline.errors import LinAlgError
from backline.libraries import fft_steps, fixed_order
from backline.libraries.blas import cblas, lapack, lapack_parts, product_parts
from support import (
    FLOATS,
    algorithms,
    arrays_in,
    assert_close,
    clean,
    dtype_of,
    need,
    problem_of,
    random_array,
    rng,
    roundoff,
    seed,
    wide,
)

Array = Any
pytestmark = pytest.mark.usefixtures("clean", "small_parts")
assert clean and rng and seed
BLAS, LAPACK = ("mkl", "openblas", "blis"), ("mkl", "openblas")


@pytest.fixture
def small_parts(clean: None) -> Iterator[None]:
    """Parts of a few rows, columns, terms and transforms, at the level that asks for them."""
    assert clean is None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LEAST_FLOPS": 0, "TILE": 40, "LEAST_TILE": 16, "TILE_FLOPS": 1, "DEPTH": 20, "LENGTH": 8}.items():
            patch.setattr(product_parts, name, value)
        patch.setattr(lapack_parts, "panel_of", lambda k: 8)
        patch.setattr(lapack_parts, "LEAST", 8)
        patch.setattr(lapack, "LEAST_IN_PARTS", 0)
        patch.setattr(cblas, "THREAD_FLOPS", 0)
        patch.setattr(fft_steps, "PIECE_POINTS", 16)
        patch.setattr(fft_steps, "THREAD_FLOPS", 0)
        with backends.flags(deterministic=True, determinism_level="threads"):
            yield
    plan_caches.clear()
    _core.memo_clear()


def in_parts(library: str, op: str, *args: Any, **kwargs: Any) -> list[tuple[str, Any]]:
    """Runs what is listed in parts on one thread and on three: all must have the same bits. Returns name and result of each kind."""
    lib, problem, found = need(library), problem_of(op, *args, **kwargs), dict[str, Any]()
    for threads in (1, 3):
        for algorithm in algorithms(library, problem, threads):
            if fixed_order.SUFFIX not in algorithm.name and algorithm.name != "dot_split":
                continue
            assert algorithm.level == "threads"
            result = lib.prepare(problem, algorithm)(*arrays_in(args, kwargs))
            parts = tuple(np.array(part) for part in (result if isinstance(result, tuple) else (result,)))
            if algorithm.name in found:
                assert all(x.tobytes() == y.tobytes() for x, y in zip(found[algorithm.name], parts, strict=True)), algorithm.key
            found[algorithm.name] = parts
    return list(found.items())


# Products ---------------------------------------------------------------------------------------------------------------

SHAPES = ((1, 1, 1), (7, 5, 3), (41, 83, 29), (3, 4, 500), (1, 90, 70), (90, 1, 70), (1, 5, 300), (5, 1, 300), (64, 64, 64))


def layouts(x: Array) -> Iterator[Array]:
    yield x
    yield np.asfortranarray(x)
    yield np.repeat(np.repeat(x, 2, -1), 2, -2)[..., ::2, ::2]
    yield np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


@pytest.mark.parametrize("dtype", (*FLOATS, "float16"))
@pytest.mark.parametrize("library", BLAS)
def test_products(library: str, dtype: str, rng: np.random.Generator) -> None:
    need(library)
    kind, some = dtype_of(dtype), 0
    for m, n, k in SHAPES:
        a, b, c = (random_array(rng, shape, kind) for shape in ((m, k), (k, n), (m, n)))
        exact = wide(a) @ wide(b)
        size = np.abs(wide(a)) @ np.abs(wide(b)) + np.abs(wide(c))
        bound = (
            8 * (k + 2) * roundoff(np.dtype(np.float32) if dtype == "float16" else kind) * size + 4 * roundoff(kind) * size + 1e-7
        )
        for x, y in zip(layouts(a), layouts(b), strict=True):
            for name, (result,) in in_parts(library, "mm", x, y):
                some += 1
                assert_close(result, exact, bound, f"{library} {name} {(m, n, k)}")
            for name, (result,) in in_parts(library, "addmm", c, x, y, beta=0.5, alpha=2):
                assert_close(result, 2 * exact + wide(c) / 2, 3 * bound, f"{library} {name} {(m, n, k)}, added")
    assert some


@pytest.mark.parametrize("library", BLAS)
def test_batches_and_given_outputs(library: str, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((3, 50, 60)), rng.standard_normal((3, 60, 45))
    exact = wide(a) @ wide(b)
    bound = 500 * roundoff(a.dtype) * (np.abs(wide(a)) @ np.abs(wide(b)))
    assert [assert_close(r, exact, bound, name) for name, (r,) in in_parts(library, "bmm", a, b)]
    lower = np.zeros((50, 45), order="F")
    for out in (np.zeros((50, 45)), lower, np.zeros((50, 90))[:, ::2], np.zeros((45, 50)).T[::-1]):
        for name, (result,) in in_parts(library, "mm", a[0], b[0], out=out):
            assert_close(result, exact[0], bound[0], name)
            assert_close(out, exact[0], bound[0], name)


@pytest.mark.parametrize("library", BLAS)
def test_nan_and_infinity_spread_as_in_one_product(library: str, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((50, 90)), rng.standard_normal((90, 50))
    a[3, 4], b[70, 7] = np.nan, np.inf
    exact = np.einsum("ij,jk->ik", a, b)
    for name, (result,) in in_parts(library, "mm", a, b):
        assert np.array_equal(np.isnan(result), np.isnan(exact)), name
        assert np.array_equal(np.isinf(result), np.isinf(exact)), name


# Factorizations -----------------------------------------------------------------------------------------------------------

SIZES = (1, 7, 9, 33, 64)


def relative(x: Array, y: Array, dtype: np.dtype[Any]) -> float:
    """The distance of two matrices in units of rounding errors of a matrix of their size."""
    scale = np.linalg.norm(y.astype(complex)) or 1.0
    return float(np.linalg.norm((x - y).astype(complex)) / scale / roundoff(dtype) / max(*x.shape, 1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LAPACK)
def test_factorizations(library: str, dtype: str, rng: np.random.Generator) -> None:
    need(library)
    kind = dtype_of(dtype)
    for n in SIZES:
        a, b = random_array(rng, (n, n), kind), random_array(rng, (n, 20), kind)
        a = (a + 2 * n * np.eye(n)).astype(kind)
        spd = (a @ a.conj().T).astype(kind)
        exact = a.astype(np.complex128 if kind.kind == "c" else np.float64)
        for x in (a, np.asfortranarray(a)):
            for name, (lu, pivots) in in_parts(library, "linalg.lu_factor", x):
                lower, upper = np.tril(lu, -1) + np.eye(n), np.triu(lu)
                order = np.arange(n)
                for i, p in enumerate(pivots):
                    order[[i, p - 1]] = order[[p - 1, i]]
                assert relative((lower @ upper), a[order], kind) < 30, (name, n)
                for way, (solution,) in in_parts(library, "linalg.lu_solve", lu, pivots, b):
                    assert relative(a @ solution, b, kind) < 100, (way, n)
            for left in (True, False):
                right = b if left else b.T.copy()
                for name, (solution,) in in_parts(library, "linalg.solve", x, right, left=left):
                    assert relative(a @ solution if left else solution @ a, right, kind) < 100, (name, n, left)
            for name, (inverse,) in in_parts(library, "linalg.inv", x):
                assert relative(a @ inverse, np.eye(n), kind) < 200, (name, n)
            for name, (determinant,) in in_parts(library, "linalg.det", x / kind.type(2 * n)):
                assert abs(determinant - np.linalg.det(exact / (2 * n))) <= 200 * n * roundoff(kind) * abs(determinant), (name, n)
        for x in (spd, np.asfortranarray(spd)):
            for upper in (False, True):
                for name, (factor,) in in_parts(library, "linalg.cholesky", x, upper=upper):
                    product = factor.conj().T @ factor if upper else factor @ factor.conj().T
                    assert relative(product, spd, kind) < 30, (name, n, upper)
                    assert not np.tril(factor, -1).any() if upper else not np.triu(factor, 1).any()
                    for way, (solution,) in in_parts(library, "cholesky_solve", b, factor, upper=upper):
                        assert relative(spd @ solution, b, kind) < 2000, (way, n, upper)
        triangle = np.tril(a)
        for x in (triangle, np.asfortranarray(triangle)):
            for y in (b, np.asfortranarray(b)):
                for name, (solution,) in in_parts(library, "linalg.solve_triangular", x, y, upper=False):
                    assert relative(triangle @ solution, y, kind) < 100, (name, n)
                turned = y.T
                for name, (solution,) in in_parts(library, "linalg.solve_triangular", x, turned, upper=False, left=False):
                    assert relative(solution @ triangle, turned, kind) < 100, (name, n)


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LAPACK)
def test_qr(library: str, dtype: str, mode: str, rng: np.random.Generator) -> None:
    need(library)
    kind, some = dtype_of(dtype), 0
    for m, n in ((1, 1), (7, 5), (40, 40), (70, 33), (33, 70), (90, 9)):
        a = random_array(rng, (m, n), kind)
        for name, (q, r) in in_parts(library, "linalg.qr", a, mode=mode):
            some += 1
            assert not np.tril(r, -1).any()
            if mode == "r":
                assert relative(r.conj().T @ r, a.conj().T @ a, kind) < 100, (name, m, n)
                continue
            assert relative(q @ r, a, kind) < 50, (name, m, n)
            assert relative(q.conj().T @ q, np.eye(q.shape[1]), kind) < 50, (name, m, n)
    assert some


@pytest.mark.parametrize("library", LAPACK)
def test_infos_are_those_of_the_whole(library: str, rng: np.random.Generator) -> None:
    n = 40
    with backline.use(library, only=True):
        for at in (0, 7, 8, 20, 39):
            singular = np.diag(rng.integers(1, 3, n)).astype(float)  # whose factors have no rounding errors, however it lies
            singular[at, at] = 0
            assert linalg.lu_factor_ex(singular).info == at + 1
            assert linalg.inv_ex(singular).info == at + 1
            assert linalg.solve_ex(singular, np.ones(n)).info == at + 1
            assert linalg.det(singular) == 0
            with pytest.raises(LinAlgError, match=f"element {at + 1} "):
                linalg.solve(singular, np.ones((n, 3)))
            spd = np.eye(n)
            spd[at, at] = -1
            assert linalg.cholesky_ex(spd).info == at + 1
            with pytest.raises(LinAlgError, match=f"order {at + 1} "):
                linalg.cholesky(spd, upper=True)
        unknown = np.eye(n)
        unknown[30, 2] = unknown[2, 30] = np.nan
        assert linalg.cholesky_ex(unknown).info == 1
        assert np.isnan(linalg.solve_ex(unknown, np.ones((n, 20))).result).any()
        pivots = np.full(n, n + 1, np.int32)
        with pytest.raises(backline.errors.BadValue):
            linalg.lu_solve(np.eye(n), pivots, np.ones((n, 20)))


# Transforms ---------------------------------------------------------------------------------------------------------------

TRANSFORMS = {
    "fft.fft": np.fft.fft, "fft.ifft": np.fft.ifft, "fft.fft2": np.fft.fft2, "fft.ifft2": np.fft.ifft2, "fft.fftn": np.fft.fftn,
    "fft.rfft": np.fft.rfft, "fft.rfft2": np.fft.rfft2, "fft.rfftn": np.fft.rfftn, "fft.irfft2": np.fft.irfft2, "fft.irfftn": np.fft.irfftn,
}  # fmt: skip


@pytest.mark.parametrize("op", TRANSFORMS)
@pytest.mark.parametrize("library", ["mkl", "fftw"])
def test_transforms(library: str, op: str, rng: np.random.Generator) -> None:
    need(library)
    some = 0
    for shape in ((5, 12), (40, 33), (3, 8, 9), (20, 6, 10), (2, 3, 1, 16)):
        x: Array = rng.standard_normal(shape)
        for given in (x, x.T, x + 1j * x[::-1]):
            if given.dtype.kind == "c" and op.startswith("fft.rfft"):
                continue
            exact = TRANSFORMS[op](given)
            for name, (result,) in in_parts(library, op, given):
                some += 1
                assert np.linalg.norm(result - exact) <= 100 * roundoff(x.dtype) * (np.linalg.norm(exact) + 1e-300), (name, shape)
    assert some
