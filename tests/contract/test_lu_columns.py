"""LU whose columns threads share, with the next panel factored ahead: right for any number of threads, shape and singular matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, linalg
from backline.engine import plan_caches, ranking
from backline.libraries.blas import lapack, lapack_parts
from backline.libraries.blas.lapack_steps import SPLIT
from support import FLOATS, algorithms, arrays_in, clean, dtype_of, need, problem_of, random_array, rng, roundoff, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean", "narrow_panels")
assert clean and rng and seed
LAPACK = ("mkl", "openblas")
SHAPES = ((1, 1), (7, 7), (8, 8), (9, 9), (33, 33), (64, 64), (70, 20), (20, 70), (8, 50), (50, 8))


@pytest.fixture
def narrow_panels(clean: None) -> Iterator[None]:
    assert clean is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lapack_parts, "panel_of", lambda k: 8)
        patch.setattr(lapack, "LEAST_SPLIT", 0)
        yield
    plan_caches.clear()
    _core.memo_clear()


def divided(library: str, op: str, *args: Any, **kwargs: Any) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Results of the algorithms whose columns are divided, on several numbers of threads."""
    problem, some = problem_of(op, *args, **kwargs), 0
    for threads in (2, 5):
        for algorithm in algorithms(library, problem, threads):
            if algorithm.name.endswith(SPLIT):
                some += 1
                assert algorithm.threads == threads and algorithm.scaled
                result = need(library).prepare(problem, algorithm)(*arrays_in(args, kwargs))
                yield threads, tuple(np.array(part) for part in (result if isinstance(result, tuple) else (result,)))
    assert some, f"{library} divides no {op}"


def rows_after(pivots: Array, m: int) -> Array:
    order = np.arange(m)
    for i, p in enumerate(pivots):
        order[[i, p - 1]] = order[[p - 1, i]]
    return order


def distance(x: Array, y: Array, dtype: np.dtype[Any]) -> float:
    """The distance of two matrices in units of rounding errors, which grow with the size."""
    x, y = (np.asarray(each).astype(np.clongdouble) for each in (x, y))
    return float(np.linalg.norm((x - y).ravel()) / (np.linalg.norm(y.ravel()) or 1) / roundoff(dtype) / max(x.shape))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LAPACK)
def test_factors_and_pivots(library: str, dtype: str, rng: np.random.Generator) -> None:
    need(library)
    kind = dtype_of(dtype)
    for m, n in SHAPES:
        a = random_array(rng, (m, n), kind)
        k = min(m, n)
        for x in (a, np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2]):
            for threads, (lu, pivots) in divided(library, "linalg.lu_factor", x):
                where = (library, dtype, m, n, threads)
                assert ((pivots >= np.arange(1, k + 1)) & (pivots <= m)).all(), where
                lower = np.tril(lu[:, :k], -1) + np.eye(m, k, dtype=kind)
                assert np.abs(lower).max() <= 1.5, where  # each pivot was the largest; 1.42 of complex ones
                product = lower.astype(np.clongdouble) @ np.triu(lu[:k]).astype(np.clongdouble)
                assert distance(product, a[rows_after(pivots, m)], kind) < 30, where


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LAPACK)
def test_systems_and_determinants(library: str, dtype: str, rng: np.random.Generator) -> None:
    need(library)
    kind = dtype_of(dtype)
    for n in (1, 9, 40):
        a = (random_array(rng, (n, n), kind) + 2 * n * np.eye(n)).astype(kind)
        exact = np.linalg.det(a.astype(np.complex128 if kind.kind == "c" else np.float64) / (2 * n))
        for k in (1, 20):
            b = random_array(rng, (n, k), kind)
            for threads, (x,) in divided(library, "linalg.solve", a, b):
                assert distance(a @ x, b, kind) < 100, (n, k, threads)
            for threads, (x,) in divided(library, "linalg.solve", a, b.T.copy(), left=False):
                assert distance(x @ a, b.T, kind) < 100, (n, k, threads)
        for threads, (found,) in divided(library, "linalg.det", (a / (2 * n)).astype(kind)):
            assert abs(found - exact) <= 200 * n * roundoff(kind) * abs(exact), (n, threads)
        for matrix in (a, np.asfortranarray(a)):
            for threads, (inverse,) in divided(library, "linalg.inv", matrix):
                assert distance(a @ inverse, np.eye(n, dtype=kind), kind) < 100, (n, threads)
                assert inverse.shape == (n, n), (n, threads)
        for threads, (p, lower, upper) in divided(library, "linalg.lu", a):
            assert distance(p @ lower @ upper, a, kind) < 30, (n, threads)


@pytest.mark.parametrize("library", LAPACK)
def test_singular_matrices_and_such_that_are_not_finite(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(library)
    n = 40
    keys = tuple(f"{library}.{name}@n" for name in (f"getrf{SPLIT}", f"getrs{SPLIT}", f"getri{SPLIT}"))
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: keys)
    backline.set_num_threads(3)
    for at in (0, 7, 8, 9, 31, 39):
        singular = np.diag(np.arange(1.0, n + 1))
        singular[at, at] = 0
        assert linalg.lu_factor_ex(singular).info == at + 1
        assert backline.explain().algorithm == f"getrf{SPLIT}"
        assert linalg.solve_ex(singular, np.ones(n)).info == at + 1
        assert linalg.inv_ex(singular).info == at + 1
        assert backline.explain().algorithm == f"getri{SPLIT}"
        assert linalg.det(singular) == 0
    unknown = np.eye(n)
    unknown[5, 5] = np.nan
    assert np.isnan(linalg.det(unknown)) and np.isnan(linalg.solve(unknown, np.ones(n))).any()
    assert np.isnan(linalg.inv(unknown)).any()


def test_where_the_same_bits_are_asked_for_blocks_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = next((name for name in LAPACK if backline.libraries.get(name).available()), None)
    if library is None:
        pytest.skip("no LAPACK beside NumPy's")
    problem = problem_of("linalg.lu_factor", np.ones((64, 64)))
    assert any(a.name.endswith(SPLIT) for a in algorithms(library, problem, 2))
    with backline.backends.flags(deterministic=True, determinism_level="threads"):
        assert not any(a.name.endswith(SPLIT) for a in algorithms(library, problem, 2))
    assert not any(a.name.endswith(SPLIT) for a in algorithms(library, problem, 1))


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_blocks_cover_every_column_once(threads: int) -> None:
    for first, last, panel in (
        (0, 1, 0),
        (0, 1, 1),
        (8, 100, 8),
        (8, 16, 8),
        (8, 17, 8),
        (0, 400, 64),
        (300, 400, 64),
        (64, 64, 0),
    ):
        for blocks in (lapack_parts.ahead(threads, first, last, panel), lapack_parts.ahead_in_blocks(first, last, panel)):
            columns = [c for start, count in blocks for c in range(start, start + count)]
            assert columns == list(range(first, last)), (first, last, panel, blocks)
            assert not panel or (blocks[0][0] == first and blocks[0][1] >= panel)
        assert len(lapack_parts.ahead(threads, first, last, panel)) <= threads


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("dtype", ("float64", "complex128"))  # which NumPy computes in themselves
@pytest.mark.parametrize("library", LAPACK)
def test_graded_systems_keep_as_many_bits_as_those_of_numpy(
    library: str, dtype: str, left: bool, rng: np.random.Generator
) -> None:
    """LU of the transpose would lose three bits in the median and up to seven."""
    kind, n = dtype_of(dtype), 48
    lib, ratios = need(library), dict[str, list[float]]()
    for _ in range(15):
        sizes = 2.0 ** rng.integers(-8, 9, n)
        a, b = (random_array(rng, shape, kind) for shape in ((n, n), (n, 3)))
        a = (a * sizes * sizes[:, None]).astype(kind)

        def residual(x: Array, a: Array = a, b: Array = b) -> float:
            x = x.astype(np.clongdouble)
            return float(np.abs(b - a @ x).max() / np.linalg.norm(x))

        numpy = residual(np.linalg.solve(a, b))
        given, right = (a, b) if left else (a.T, b.T.copy())
        for order in ("C", "F"):
            matrix = np.asarray(given, order=order)
            problem = problem_of("linalg.solve", matrix, right, left=left)
            for algorithm in algorithms(library, problem, 2):
                x = lib.prepare(problem, algorithm)(matrix, right)
                ratios.setdefault(f"{algorithm.key} {order}", []).append(residual(x if left else x.T) / numpy)
    assert ratios and all(np.median(found) < 3 for found in ratios.values()), ratios
