"""Linear algebra of MLX's arrays against float64 of NumPy: values, infos, errors, and what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import EPS, agree, back, close, mx, there

import backline
from backline import linalg
from backline.errors import BadValue, LinAlgError, NoKernel
from support import clean, dtype_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean

RNG = np.random.default_rng(9)
REAL = ("float32", "float64")
BATCHES = [(), (2,), (2, 3), (0,)]


def draw(shape: tuple[int, ...], name: str = "float32") -> Any:
    x = np.asarray(RNG.standard_normal(shape))
    return np.asarray(x + 1j * RNG.standard_normal(shape) if name == "complex64" else x).astype(dtype_of(name))


def regular(batch: tuple[int, ...], n: int, name: str = "float32") -> Any:
    x = draw((*batch, n, n), name) + 2 * n * np.eye(n, dtype=name)
    return np.ascontiguousarray(x[..., RNG.permutation(n), :])


def definite(batch: tuple[int, ...], n: int, name: str = "float32") -> Any:
    x = draw((*batch, n, n), name)
    return (x @ x.conj().swapaxes(-1, -2) + n * np.eye(n)).astype(name)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("n", [1, 3, 20, 0])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_factorisations(batch: Any, n: int, name: str) -> None:
    for upper in (False, True):
        agree(linalg.cholesky, definite(batch, n, name), upper=upper, times=64)
        agree(linalg.cholesky_ex, definite(batch, n, name), upper=upper, times=64)
    agree(linalg.lu_factor, regular(batch, n, name), times=64)
    info = agree(linalg.lu_factor_ex, regular(batch, n, name), times=64)[2]
    assert info.dtype == np.int32 and not info.any()
    for m in (n, n + 2):
        a = draw((*batch, m, n), name)
        q, r = back(linalg.qr(there(a)))
        close(q @ r, a.astype(np.float64), EPS[name], 64)
        assert np.array_equal(np.triu(r), r)
        close(r, back(linalg.qr(there(a), mode="r"))[1], EPS[name], 4)
        k = min(m, n)
        close(q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(k), (*batch, k, k)), EPS[name], 64)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("n", [1, 3, 20, 0])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_solving(batch: Any, n: int, name: str) -> None:
    a, more = regular(batch, n, name), {"times": 256.0}
    agree(linalg.inv, a, **more)
    agree(linalg.inv_ex, a, **more)
    agree(linalg.solve, a, draw((*batch, n), name), **more)
    lu, pivots = linalg.lu_factor(a)
    for left in (True, False):
        b = draw((*batch, n, 2) if left else (*batch, 2, n), name)
        agree(linalg.solve, a, b, left=left, **more)
        agree(linalg.solve_ex, a, b, left=left, **more)
        for upper in (True, False):
            agree(linalg.solve_triangular, a + 2 * n * np.eye(n, dtype=name), b, upper=upper, left=left, **more)
            agree(linalg.solve_triangular, (np.eye(n) + a / (4 * n + 1)).astype(name), b, upper=upper, left=left, unitriangular=True, **more)
        for adjoint in (True, False):
            agree(linalg.lu_solve, lu, pivots, b, left=left, adjoint=adjoint, **more)
    b = draw((*batch, n, 2), name)
    for upper in (True, False):
        factor = linalg.cholesky(definite(batch, n, name), upper=upper)
        agree(backline.cholesky_solve, b, factor, upper=upper, **more)
        agree(backline.cholesky_inverse, factor, upper=upper, **more)


def test_batches_are_broadcast() -> None:
    agree(linalg.solve, regular((), 4), draw((3, 4, 2)), times=256)
    agree(linalg.solve, regular((3, 1), 4), draw((2, 4, 2)), times=256)
    agree(linalg.solve_triangular, regular((), 4) + 8 * np.eye(4, dtype=np.float32), draw((3, 4, 2)), upper=True, times=256)
    agree(linalg.lstsq, draw((6, 3)), draw((4, 6, 2)), times=256)


def test_what_is_in_the_other_triangle_is_not_read() -> None:
    a = definite((), 4)
    spoilt = np.where(np.triu(np.ones((4, 4)), 1) > 0, np.float32(np.nan), a)
    close(back(linalg.cholesky(there(spoilt))), np.linalg.cholesky(a.astype(float)), EPS["float32"], 64)
    close(back(linalg.eigvalsh(there(spoilt))), np.linalg.eigvalsh(a.astype(float)), EPS["float32"], 64)
    b = draw((4, 2))
    wanted = np.linalg.solve(np.tril(a).astype(float), b)
    close(back(linalg.solve_triangular(there(spoilt), there(b), upper=False)), wanted, EPS["float32"], 64)


@pytest.mark.parametrize("name", [*REAL, "complex64"])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("n", [1, 4, 0])
def test_spectra(n: int, batch: Any, name: str) -> None:
    a = definite(batch, n, name)
    for UPLO in "LU":
        values, vectors = back(linalg.eigh(there(a), UPLO))
        close(values, np.linalg.eigvalsh(a.astype(np.complex128)), EPS[name], 64)
        close((vectors * values[..., None, :]) @ vectors.conj().swapaxes(-1, -2), a.astype(np.complex128), EPS[name], 64)
        agree(linalg.eigvalsh, a, UPLO, times=64, dtype="")
    for m in (n, n + 2):
        a = draw((*batch, m, n), name)
        agree(linalg.svdvals, a, times=64, dtype="")
        for full in (True, False):
            u, s, vh = back(linalg.svd(there(a), full_matrices=full))
            k = min(m, n)
            assert u.shape[-1] == (m if full else k) and vh.shape[-2] == (n if full else k)
            close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a.astype(np.complex128), EPS[name], 64)
            close(u.conj().swapaxes(-1, -2) @ u, np.broadcast_to(np.eye(u.shape[-1]), (*batch, *u.shape[-1:] * 2)), EPS[name], 64)


@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_eigenvalues_of_any_matrix(batch: Any) -> None:
    a = draw((*batch, 5, 5))
    values, vectors = back(linalg.eig(there(a)))
    assert values.dtype == vectors.dtype == np.complex64
    close(a.astype(np.complex128) @ vectors, vectors * values[..., None, :].astype(np.complex128), EPS["float32"], 128)
    for name in ("float32", "complex64"):
        a = draw((*batch, 5, 5), name)
        found, wanted = back(linalg.eigvals(there(a))), np.linalg.eigvals(a.astype(np.complex128))
        apart = np.abs(found[..., :, None] - wanted[..., None, :]).min(-1)  # in some order
        assert found.dtype == np.complex64 and found.shape == wanted.shape and (apart < 1e-4).all()


@pytest.mark.parametrize("name", [*REAL, "complex64"])
@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4), (0, 3), (3, 0)], ids=str)
def test_least_squares(shape: Any, name: str) -> None:
    a = draw(shape, name)
    for b in (draw((shape[0], 2), name), draw(shape[:1], name)):
        solution, residuals, rank, values = back(linalg.lstsq(there(a), there(b)))
        close(solution, np.linalg.pinv(a.astype(np.complex128)) @ b if a.size else np.zeros((shape[1], *b.shape[1:])), EPS[name], 256)
        assert rank == min(shape) and not residuals.size and not values.size
    if min(shape) > 1:
        a[:, 1] = a[:, 0]
        assert back(linalg.lstsq(there(a), there(draw((shape[0], 2), name))).rank) == np.linalg.matrix_rank(a)


# Errors and infos ----------------------------------------------------------------------------------------------------


def test_singular_matrices() -> None:
    a = regular((2,), 3)
    a[1, :, 1] = 0
    b = draw((2, 3, 2))
    for call in (lambda: linalg.inv(there(a)), lambda: linalg.solve(there(a), there(b)), lambda: linalg.lu_factor(there(a))):
        with pytest.raises(LinAlgError, match="element 2 of the diagonal of U is zero"):
            call()
    inverse, info = back(linalg.inv_ex(there(a)))
    assert info.tolist() == [0, 2] and np.isnan(inverse[1]).all()
    close(inverse[0], np.linalg.inv(a[0].astype(float)), EPS["float32"], 256)
    solution, info = back(linalg.solve_ex(there(a), there(b)))
    assert info.tolist() == [0, 2] and np.isfinite(solution[0]).all() and np.isnan(solution[1]).all()
    assert back(linalg.lu_factor_ex(there(a)).info).tolist() == [0, 2]
    assert back(mx.ones((2,)) + 1).tolist() == [2, 2]  # nothing is left of it


@pytest.mark.parametrize("k", [1, 3, 70, 100])
def test_matrices_that_are_not_definite(k: int) -> None:
    a = definite((2,), 100)
    a[1, k - 1, k - 1] = -5
    for upper in (False, True):
        with pytest.raises(LinAlgError, match=f"leading minor of order {k} is not positive-definite"):
            linalg.cholesky(there(a), upper=upper)
        assert back(linalg.cholesky_ex(there(a), upper=upper).info).tolist() == [0, k]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_matrices_that_are_not_finite(value: float) -> None:
    a = definite((), 4)
    a[2, 1] = a[1, 2] = value
    for name in ("eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals"):
        with pytest.raises(LinAlgError, match="holds NaN or infinity"):
            getattr(linalg, name)(there(a))
    with pytest.raises(LinAlgError, match="holds NaN or infinity"):
        linalg.lstsq(there(a), there(draw((4,))))
    with pytest.raises(LinAlgError, match="not positive-definite"):
        linalg.cholesky(there(a))
    if np.isnan(value):
        assert np.isnan(back(linalg.inv(there(a)))).any()
        assert np.isnan(back(linalg.solve(there(a), there(draw((4,)))))).any()


def test_zeros_on_the_diagonal() -> None:
    t = np.array([[[1, 0], [2, 0]], [[1, 0], [2, 3]]], np.float32)
    x = back(linalg.solve_triangular(there(t), there(np.ones((2, 2, 1), np.float32)), upper=False))
    assert not np.isfinite(x[0]).all() and np.allclose(x[1].ravel(), [1, -1 / 3])
    with pytest.raises(LinAlgError, match="element 2 of the diagonal is zero"):
        backline.cholesky_inverse(there(t))


def test_pivots_out_of_range_are_refused() -> None:
    lu, pivots = linalg.lu_factor(regular((), 3))
    for bad in (0, 4, -1):
        pivots[1] = bad
        with pytest.raises(BadValue, match="pivot is not one of the rows"):
            linalg.lu_solve(there(lu), there(pivots), there(draw((3, 1))))


def test_what_returns_an_info_is_lazy() -> None:
    """Inside a gradient, and a function that is compiled, nothing can be evaluated."""
    a, b = there(regular((), 3)), there(draw((3, 1)))
    for call in (linalg.inv_ex, linalg.cholesky_ex, linalg.lu_factor_ex, lambda x: linalg.solve_ex(x, b), linalg.qr):
        compiled = mx.compile(lambda x, call=call: tuple(call(x)))(a)
        close(back(tuple(compiled)), tuple(back(call(a))), EPS["float32"], 64)
    with pytest.raises(ValueError, match="eval"):
        mx.compile(linalg.inv)(a)
    slope = mx.grad(lambda y: mx.sum(linalg.solve_triangular(a, y, upper=True)))(b)
    assert slope.shape == (3, 1)
    assert "waits" in str(backline.explain(linalg.inv, a)) and "waits" not in str(backline.explain(linalg.inv_ex, a))
    assert "waits" in str(backline.explain(linalg.svd, a)) and "waits" not in str(backline.explain(linalg.qr, a))


def test_refusals() -> None:
    a = there(definite((), 3, "complex64"))
    with pytest.raises(NoKernel, match="conjugates of a complex matrix"):
        linalg.eig(a)
    for name in ("cholesky", "inv", "qr", "lu_factor"):
        with pytest.raises(NoKernel, match="not of complex64"):
            getattr(linalg, name)(a)
    real = there(draw((5, 3)))
    with pytest.raises(NoKernel, match="asks for driver='gesvd'"):
        linalg.svd(real, driver="gesvd")
    with pytest.raises(NoKernel, match="asks for driver='gelsd'"):
        linalg.lstsq(real, there(draw((5, 1))), driver="gelsd")
    with pytest.raises(NoKernel, match="reduced factors only"):
        linalg.qr(real, mode="complete")
    with pytest.raises(NoKernel, match="single precision"):
        linalg.eig(there(definite((), 3, "float64")))
    with pytest.raises(NoKernel, match="nothing is written to"):
        linalg.inv(there(definite((), 3)), out=mx.zeros((3, 3)))
