"""Linear algebra: every library, every algorithm it lists, every dtype, batch and layout.

Results are judged by backward error, orthogonality and reconstruction, with bounds of the form c n eps norm (Higham, Accuracy and
Stability of Numerical Algorithms; LAPACK Users' Guide, chapter 4), computed in longdouble; and by what must be the same on every
library: info, errors, shapes, dtypes.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from backline.errors import BadType, BadValue, LinAlgError
from support import (
    FLOATS,
    LAYOUTS,
    algorithms,
    arrays_in,
    clean,
    dtype_of,
    need,
    numpy_on_one_thread,
    problem_of,
    rng,
    run_each,
    seed,
    spread,
)
from support import wide as longdouble

Array = Any
LIBRARIES = ("mkl", "openblas", "numpy")  # BLIS has no LAPACK
BATCHES = ((), (3,), (2, 2), (0,), (2, 0))
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed


def wide(x: Array) -> Array:
    """Small arrays in longdouble; large ones in double, whose products run on a BLAS."""
    if x.size <= 1000:
        return longdouble(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def eps(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).eps)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return np.asarray(x, dtype)


def adjoint(x: Array) -> Array:
    return x.conj().swapaxes(-1, -2)


def size_of(x: Array) -> Array:
    """Frobenius norm of each matrix, at least the smallest normal number."""
    return np.maximum(np.sqrt(np.sum(np.abs(wide(np.asarray(x))) ** 2, axis=(-1, -2), keepdims=True)), 1e-300)


def small(residual: Array, scale: Array, n: int, dtype: np.dtype[Any], what: str, factor: float = 10) -> None:
    """norm(residual) <= factor * n * eps * scale, item by item."""
    limit = factor * max(n, 1) * eps(dtype) * np.broadcast_to(scale, (*residual.shape[:-2], 1, 1))
    error = size_of(residual) if residual.size else np.zeros((*residual.shape[:-2], 1, 1))
    assert (error <= limit + 1e-300).all(), f"{what}: {float(np.max(error / limit)):.2g} times the bound"


def identity(n: int) -> Array:
    return np.eye(n, dtype=np.longdouble if n < 40 else np.float64)


def definite(rng: np.random.Generator, batch: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> Array:
    x = normal(rng, (*batch, n, n), dtype)
    return np.asarray(np.matmul(x, adjoint(x)) + n * np.eye(n), dtype) if n else x


def hermitian(rng: np.random.Generator, batch: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> Array:
    x = normal(rng, (*batch, n, n), dtype)
    return np.asarray(x + adjoint(x), dtype)


# What each result must fulfil -----------------------------------------------------------------------------------------
# check(arguments as they are, keywords, result, what)


def check_cholesky(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a = wide(args[0])
    factor = result if isinstance(result, np.ndarray) else result.L
    f = wide(factor)
    n = a.shape[-1]
    upper = kw.get("upper", False)
    assert not np.tril(factor, -1).any() if upper else not np.triu(factor, 1).any(), f"{what}: the other triangle is not zero"
    triangle = np.triu(a, 1) if upper else np.tril(a, -1)
    diagonal = np.einsum("...ii->...i", a).real[..., None] * identity(n)
    small(
        (adjoint(f) @ f if upper else f @ adjoint(f)) - (triangle + adjoint(triangle) + diagonal),
        size_of(a),
        n,
        factor.dtype,
        what,
    )
    if not isinstance(result, np.ndarray):
        assert np.asarray(result.info).dtype == np.int32 and not np.any(result.info) and np.shape(result.info) == a.shape[:-2]


def unpivot(pivots: Array, x: Array) -> Array:
    """P X, for pivots as LAPACK counts them."""
    x = np.array(x)
    for item in np.ndindex(*x.shape[:-2]):
        rows = x[item]
        for i in reversed(range(pivots.shape[-1])):
            j = int(pivots[item][i]) - 1
            rows[[i, j]] = rows[[j, i]]
    return x


def check_lu(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a = wide(args[0])
    m, n = a.shape[-2:]
    k = min(m, n)
    assert result.pivots.dtype == np.int32 and result.pivots.shape == (*a.shape[:-2], k), what
    low = np.tril(wide(result.LU)[..., :k], -1) + np.eye(m, k)
    up = np.triu(wide(result.LU)[..., :k, :])
    small(unpivot(result.pivots, low @ up) - a, size_of(low) * size_of(up) if k else 0, k, args[0].dtype, what)
    if k:
        assert (np.abs(low) <= 1 + 1e-5).all() or a.dtype.kind == "c", f"{what}: not partial pivoting"


def check_inverse(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    inverse = result if isinstance(result, np.ndarray) else result.inverse
    a, x = wide(args[0]), wide(inverse)
    n = a.shape[-1]
    small(a @ x - identity(n), size_of(a) * size_of(x), n, inverse.dtype, what)


def check_solution(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    x = result if isinstance(result, np.ndarray) else result.result
    a, b = wide(args[0]), wide(args[1])
    x = wide(np.asarray(x))
    n = a.shape[-1]
    if b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]):
        b, x = b[..., None], x[..., None]
    small((a @ x if kw.get("left", True) else x @ a) - b, size_of(a) * size_of(x) if x.size else 0, n, args[0].dtype, what)


def check_triangular(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a = np.triu(args[0]) if kw["upper"] else np.tril(args[0])
    if kw.get("unitriangular"):
        a[..., range(a.shape[-1]), range(a.shape[-1])] = 1
    check_solution((a, args[1]), {"left": kw.get("left", True)}, result, what)


def check_lu_solve(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    lu, pivots, b = args
    n = lu.shape[-1]
    a = unpivot(pivots, (np.tril(wide(lu), -1) + np.eye(n)) @ np.triu(wide(lu)))
    a = adjoint(a) if kw.get("adjoint") else a
    x = wide(result)
    residual = (a @ x if kw.get("left", True) else x @ a) - wide(b)
    small(residual, size_of(np.tril(lu) + np.eye(n)) * size_of(lu) * size_of(x) if x.size else 0, n, lu.dtype, what, 30)


def check_cholesky_solve(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    b, factor = wide(args[0]), wide(np.triu(args[1]) if kw.get("upper") else np.tril(args[1]))
    a = adjoint(factor) @ factor if kw.get("upper") else factor @ adjoint(factor)
    small(a @ wide(result) - b, size_of(a) * size_of(result) if result.size else 0, a.shape[-1], args[0].dtype, what, 30)


def check_cholesky_inverse(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    factor = wide(np.triu(args[0]) if kw.get("upper") else np.tril(args[0]))
    a = adjoint(factor) @ factor if kw.get("upper") else factor @ adjoint(factor)
    n = a.shape[-1]
    small(a @ wide(result) - identity(n), size_of(a) * size_of(result), n, args[0].dtype, what, 30)
    small(wide(result) - adjoint(wide(result)), size_of(result), n, args[0].dtype, what + " symmetry")


def ldl_whole(ld: Array, pivots: Array, hermitian: bool) -> Array:
    """The matrix of LDL factors as LAPACK lays them out, one by one."""
    found = np.zeros_like(wide(ld))
    turn = adjoint if hermitian else (lambda x: x.swapaxes(-1, -2))
    n = ld.shape[-1]
    for item in np.ndindex(*ld.shape[:-2]):
        left, middle = np.eye(n, dtype=found.dtype), np.zeros((n, n), found.dtype)
        k = 0
        while k < n:
            step = 1 if pivots[item][k] > 0 else 2
            assert step == 1 or pivots[item][k] == pivots[item][k + 1]
            other, last = abs(int(pivots[item][k])) - 1, k + step - 1
            column = np.eye(n, dtype=found.dtype)
            column[k + step :, k : k + step] = ld[item][k + step :, k : k + step]
            swap = np.eye(n)
            swap[[last, other]] = swap[[other, last]]
            left = left @ swap @ column
            block = np.tril(wide(ld[item][k : k + step, k : k + step]))
            middle[k : k + step, k : k + step] = block + turn(np.tril(block, -1))
            k += step
        found[item] = left @ middle @ turn(left)
    return found


def check_ldl(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    hermitian, a = kw.get("hermitian", False), args[0]
    n = a.shape[-1]
    assert result.LD.shape == a.shape and result.LD.dtype == a.dtype and not np.triu(result.LD, 1).any(), what
    assert result.pivots.dtype == np.int32 and result.pivots.shape == a.shape[:-1], what
    grown = size_of(ldl_whole(np.abs(result.LD), result.pivots, False))  # elements of L have no bound
    small(ldl_whole(result.LD, result.pivots, hermitian) - wide(a), grown if a.size else 0, n, a.dtype, what, 30)
    if len(result) == 3:
        assert np.asarray(result.info).dtype == np.int32 and not np.any(result.info) and np.shape(result.info) == a.shape[:-2]


def check_ldl_solve(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    ld, pivots, b = args
    a = ldl_whole(ld, pivots, kw.get("hermitian", False))
    grown = size_of(ldl_whole(np.abs(ld), pivots, False)) if ld.size else 1
    small(a @ wide(result) - wide(b), grown * size_of(result) if result.size else 0, ld.shape[-1], ld.dtype, what, 30)


def check_householder(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a, tau = wide(args[0]), wide(args[1])
    m, n = a.shape[-2:]
    product = np.zeros((*a.shape[:-2], m, m), a.dtype) + np.eye(m)
    for i in range(tau.shape[-1]):
        v = np.where(np.arange(m)[:, None] < i, 0, np.where(np.arange(m)[:, None] == i, 1, a[..., i : i + 1]))
        product = product - tau[..., i, None, None] * (product @ v) @ adjoint(v)
    assert result.shape == a.shape and result.dtype == args[0].dtype, what
    small(wide(result) - product[..., :n], size_of(product) if m else 0, m, args[0].dtype, what, 30)


def check_qr(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a = wide(args[0])
    m, n = a.shape[-2:]
    k = min(m, n)
    mode = kw.get("mode", "reduced")
    r = wide(result.R)
    assert r.shape == (*a.shape[:-2], m if mode == "complete" else k, n), f"{what}: R has shape {r.shape}"
    assert not np.tril(r, -1).any(), f"{what}: R is not triangular"
    if mode == "r":
        assert result.Q.size == 0
        small(adjoint(r) @ r - adjoint(a) @ a, size_of(a) ** 2, m, args[0].dtype, what)
        return
    q = wide(result.Q)
    assert q.shape == (*a.shape[:-2], m, m if mode == "complete" else k), what
    small(q @ r - a, size_of(a), m, args[0].dtype, what)
    small(adjoint(q) @ q - identity(q.shape[-1]), 1, m, args[0].dtype, what + " orthogonality")


def check_eigh(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    low = np.tril(args[0], -1) if kw.get("UPLO", "L") == "L" else adjoint(np.triu(args[0], 1))
    n = low.shape[-1]
    a = wide(low) + adjoint(wide(low)) + np.einsum("...ii->...i", wide(args[0])).real[..., None] * identity(n)
    values = result if isinstance(result, np.ndarray) else result.eigenvalues
    assert values.dtype == np.zeros(0, args[0].dtype).real.dtype and values.shape == a.shape[:-1], what
    assert (np.diff(values) >= 0).all(), f"{what}: not ascending"
    if 0 < n < 40:
        reference = np.linalg.eigvalsh(a.astype(np.complex128))
        small((values - reference)[..., None], size_of(a), n, args[0].dtype, what)
    if not isinstance(result, np.ndarray):
        v = wide(result.eigenvectors)
        assert result.eigenvectors.dtype == args[0].dtype
        small(a @ v - v * values[..., None, :], size_of(a), n, args[0].dtype, what)
        small(adjoint(v) @ v - identity(n), 1, n, args[0].dtype, what + " orthogonality")


def check_eig(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a = wide(args[0])
    n = a.shape[-1]
    kind = np.result_type(args[0].dtype, np.complex64)
    values = result if isinstance(result, np.ndarray) else result.eigenvalues
    assert values.dtype == kind and values.shape == a.shape[:-1], what
    small((values.sum(-1) - np.einsum("...ii->...", a))[..., None, None], size_of(a), n, args[0].dtype, what + " trace", 30)
    if not isinstance(result, np.ndarray):
        v = wide(result.eigenvectors)
        assert result.eigenvectors.dtype == kind and v.shape == a.shape, what
        small(a @ v - v * values[..., None, :], size_of(a), n, args[0].dtype, what, 30)
        if n:
            assert np.allclose(np.sum(np.abs(v) ** 2, axis=-2), 1, atol=1e-4), f"{what}: vectors are not of length 1"


def check_svd(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a = wide(args[0])
    m, n = a.shape[-2:]
    k = min(m, n)
    values = result if isinstance(result, np.ndarray) else result.S
    assert values.dtype == np.zeros(0, args[0].dtype).real.dtype and values.shape == (*a.shape[:-2], k), what
    assert (np.diff(values) <= 0).all() and (values >= 0).all(), what
    if a.size and k < 40:
        reference = np.linalg.svd(a.astype(np.complex128), compute_uv=False)
        small((values - reference)[..., None], size_of(a), max(m, n), args[0].dtype, what)
    if not isinstance(result, np.ndarray):
        full = kw.get("full_matrices", True)
        u, vh = wide(result.U), wide(result.Vh)
        assert u.shape == (*a.shape[:-2], m, m if full else k) and vh.shape == (*a.shape[:-2], n if full else k, n), what
        small((u[..., :k] * values[..., None, :]) @ vh[..., :k, :] - a, size_of(a), max(m, n), args[0].dtype, what)
        small(adjoint(u) @ u - identity(u.shape[-1]), 1, max(m, n), args[0].dtype, what + " U")
        small(vh @ adjoint(vh) - identity(vh.shape[-2]), 1, max(m, n), args[0].dtype, what + " Vh")


def check_lstsq(args: tuple[Array, ...], kw: dict[str, Any], result: Any, what: str) -> None:
    a, b = args[:2]
    driver = kw["driver"]
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    b = b[..., None] if vector else b
    x = result.solution[..., None] if vector else result.solution
    m, n = a.shape[-2:]
    residual = wide(a) @ wide(x) - wide(b)
    if not a.size or not b.size:
        assert x.shape[-2:] == (n, b.shape[-1])
        return
    if m >= n:  # normal equations: the residual is orthogonal to the columns
        small(adjoint(wide(a)) @ residual, size_of(a) * (size_of(a) * size_of(x) + size_of(b)), max(m, n), a.dtype, what, 30)
    else:  # least norm: A X = B, and X in the row space
        small(residual, size_of(a) * size_of(x), max(m, n), a.dtype, what, 30)
        exact = np.linalg.lstsq(a.reshape(-1, m, n)[0].astype(complex), np.broadcast_to(b, (*x.shape[:-2], *b.shape[-2:])).reshape(-1, m, b.shape[-1])[0].astype(complex), rcond=None)[0]  # fmt: skip
        assert np.allclose(x.reshape(-1, n, x.shape[-1])[0], exact, atol=1e-2 if eps(a.dtype) > 1e-10 else 1e-8), what
    if driver == "gels":
        assert np.size(result.rank) == 0
    else:
        assert np.asarray(result.rank).dtype == np.int64 and (np.asarray(result.rank) == min(m, n)).all(), what
    wanted = m > n and driver is not None and driver != "gelsy"
    assert bool(np.size(result.residuals)) == wanted, f"{what}: residuals {result.residuals}"
    if wanted:
        squares = np.sum(np.abs(residual) ** 2, axis=-2)
        assert result.residuals.shape == squares.shape, what
        assert np.allclose(result.residuals, squares.astype(float), rtol=1e-2, atol=1e-5), what
    assert bool(np.size(result.singular_values)) == (driver in ("gelsd", "gelss")), what


# The calls ------------------------------------------------------------------------------------------------------------


def lu_parts(rng: np.random.Generator, batch: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    lu = normal(rng, (*batch, n, n), dtype)
    lu = lu + 3 * n * np.eye(n, dtype=dtype)
    pivots = np.empty((*batch, n), np.int32)
    for i in range(n):
        pivots[..., i] = rng.integers(i + 1, n + 1, batch)
    return lu.astype(dtype), pivots


def calls(rng: np.random.Generator, batch: tuple[int, ...], dtype: np.dtype[Any], n: int, k: int) -> list[tuple[Any, ...]]:
    """(operation, arguments, keywords, check) of everything a LAPACK does."""
    new = partial(normal, rng, dtype=dtype)
    square, good, herm = new((*batch, n, n)), definite(rng, batch, n, dtype), hermitian(rng, batch, n, dtype)
    square = square + np.asarray(2 * np.sqrt(n) * np.eye(n), dtype)
    tall, broad = new((*batch, n + 5, n)), new((*batch, n, n + 5))
    right, turned = new((*batch, n, k)), new((*batch, k, n))
    lu, pivots = lu_parts(rng, batch, n, dtype)
    found: list[tuple[Any, ...]] = []
    for upper in (False, True):
        found += [
            ("linalg.cholesky", (good,), {"upper": upper}, check_cholesky),
            ("linalg.cholesky_ex", (good,), {"upper": upper}, check_cholesky),
            ("cholesky_solve", (right, good), {"upper": upper}, check_cholesky_solve),
            ("cholesky_inverse", (good,), {"upper": upper}, check_cholesky_inverse),
        ]
        for unit in (False, True):
            triangle = (np.asarray(square / max(n, 1), dtype) if unit else square).astype(dtype)
            found += [
                ("linalg.solve_triangular", (triangle, right), {"upper": upper, "unitriangular": unit}, check_triangular),
                ("linalg.solve_triangular", (triangle, turned), {"upper": upper, "unitriangular": unit, "left": False}, check_triangular),
            ]  # fmt: skip
    for x in (square, tall, broad):
        found += [
            ("linalg.lu_factor", (x,), {}, check_lu), ("linalg.lu_factor_ex", (x,), {}, check_lu),
            *(("linalg.qr", (x,), {"mode": mode}, check_qr) for mode in ("reduced", "complete", "r")),
            *(("linalg.svd", (x,), {"full_matrices": f, "driver": d}, check_svd) for f in (True, False) for d in (None, "gesdd", "gesvd")),
            *(("linalg.svdvals", (x,), {"driver": d}, check_svd) for d in (None, "gesvd")),
        ]  # fmt: skip
        rows = x.shape[-2]
        for driver in (None, "gelsy", "gels", "gelsd", "gelss"):
            found.append(("linalg.lstsq", (x, new((*batch, rows, k)), eps(dtype) * 10), {"driver": driver}, check_lstsq))
            found.append(("linalg.lstsq", (x, new((*batch, rows)), eps(dtype) * 10), {"driver": driver}, check_lstsq))
    found += [("linalg.inv", (square,), {}, check_inverse), ("linalg.inv_ex", (square,), {}, check_inverse)]
    for b, left in ((right, True), (turned, False), (new((*batch, n)), True), (new((n,)), True)):
        found.append(("linalg.solve", (square, b), {"left": left}, check_solution))
        found.append(("linalg.solve_ex", (square, b), {"left": left}, check_solution))
    for b, left in ((right, True), (turned, False)):
        for adj in (False, True):
            found.append(("linalg.lu_solve", (lu, pivots, b), {"left": left, "adjoint": adj}, check_lu_solve))
    mixed = new((*batch, n, n))
    for turned_over, whole in ((False, mixed + mixed.swapaxes(-1, -2)), (True, herm), (True, herm * (1 - np.eye(n, dtype=dtype)))):
        if np.all(whole == 0) and n:
            continue  # of one row without its diagonal
        found += [(f"linalg.{op}", (whole,), {"hermitian": turned_over}, check_ldl) for op in ("ldl_factor", "ldl_factor_ex")]
        factors = linalg.ldl_factor(whole, hermitian=turned_over)
        found.append(("linalg.ldl_solve", (factors.LD, factors.pivots, right), {"hermitian": turned_over}, check_ldl_solve))
    reflectors = (tall / np.asarray(2 * np.sqrt(n + 5), dtype)).astype(dtype)
    for count in {0, n // 2, n}:
        found.append(("linalg.householder_product", (reflectors, new((*batch, count))), {}, check_householder))
    for uplo in ("L", "U"):
        found += [("linalg.eigh", (herm,), {"UPLO": uplo}, check_eigh), ("linalg.eigvalsh", (herm,), {"UPLO": uplo}, check_eigh)]
        # The other triangle is not read: anything may be in it.
        other = np.where(np.tril(np.ones((n, n), bool), -1) == (uplo == "L"), herm, np.asarray(np.nan, dtype)) if n else herm
        other = np.where(np.eye(n, dtype=bool), herm, other).astype(dtype)
        found += [
            ("linalg.eigh", (other,), {"UPLO": uplo}, check_eigh),
            ("linalg.eigvalsh", (other,), {"UPLO": uplo}, check_eigh),
        ]
    return [*found, ("linalg.eig", (square,), {}, check_eig), ("linalg.eigvals", (square,), {}, check_eig)]


def clear_unread(op: str, args: tuple[Array, ...], kw: dict[str, Any]) -> tuple[Array, ...]:
    """The arguments for the checks: NaN in a triangle that is not read becomes 0."""
    return tuple(np.nan_to_num(x) if isinstance(x, np.ndarray) and "eig" in op and x.dtype.kind in "fc" else x for x in args)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_algorithm(library: str, batch: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    need(library)
    names = list(LAYOUTS)
    sizes = ((2, 3), (0, 2)) if len(batch) == 2 else ((1, 1), (7, 4), (0, 2), (3, 0))
    for n, k in sizes:
        for op, args, kw, check in calls(rng, batch, dtype_of(dtype), n, k):
            chosen = ("C", "F", names[int(rng.integers(len(names)))])
            for layout in chosen:
                given = tuple(LAYOUTS[layout](x) if isinstance(x, np.ndarray) else x for x in args)
                seen = clear_unread(op, args, kw)
                before = [x.copy() for x in given if isinstance(x, np.ndarray)]
                for name, result in run_each(library, op, *given, **kw):
                    check(seen, kw, result, f"{op} {name} n={n} {layout} {kw}")
                after = [x for x in given if isinstance(x, np.ndarray)]
                assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(before, after, strict=True)), (
                    f"{op} changed its operand"
                )


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_algorithm_on_threads(library: str, batch: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    need(library)
    for op, args, kw, check in calls(rng, batch, dtype_of(dtype), 80, 90):
        if any(isinstance(x, np.ndarray) and np.isnan(x).any() for x in args):
            continue
        for name, result in run_each(library, op, *args, **kw):
            if library == "numpy" and op not in (
                "linalg.inv",
                "linalg.solve",
                "linalg.qr",
                "linalg.svd",
                "linalg.eigh",
                "linalg.eig",
            ):
                continue
            check(args, kw, result, f"{op} {name} {kw}")


@pytest.mark.parametrize("library", LIBRARIES)
def test_batches_broadcast(library: str, rng: np.random.Generator) -> None:
    for dtype in map(dtype_of, FLOATS):
        a = normal(rng, (3, 1, 5, 5), dtype) + 5 * np.eye(5, dtype=dtype)
        b = normal(rng, (4, 5, 2), dtype)
        triangle = np.triu(a)
        lu, pivots = lu_parts(rng, (3, 1), 5, dtype)
        factor = definite(rng, (3, 1), 5, dtype)
        for op, args, kw, check in (
            ("linalg.solve", (a, b), {}, check_solution),
            ("linalg.solve", (a[0, 0], b), {}, check_solution),
            ("linalg.solve", (a, b[0]), {}, check_solution),
            ("linalg.solve", (a, b[0, :, 0]), {}, check_solution),
            ("linalg.solve", (spread(a, 0), b), {}, check_solution),
            ("linalg.solve_triangular", (triangle, b), {"upper": True}, check_triangular),
            ("linalg.lu_solve", (np.broadcast_to(lu, (3, 4, 5, 5)), np.broadcast_to(pivots, (3, 4, 5)), b), {}, check_lu_solve),
            ("cholesky_solve", (b, factor), {}, check_cholesky_solve),
        ):
            for name, result in run_each(library, op, *args, **kw):
                check(args, kw, result, f"{op} {name}")


def outs_of(result: Any, layout: str) -> Any:
    parts = result if isinstance(result, tuple) else (result,)
    made = tuple(LAYOUTS[layout](np.full(np.shape(x), 77, np.asarray(x).dtype)) for x in parts)
    return made if isinstance(result, tuple) else made[0]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", [(), (3,), (0,)], ids=str)
@pytest.mark.parametrize("library", LIBRARIES)
def test_out(library: str, batch: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    lib = need(library)
    layouts = list(LAYOUTS)
    for op, args, kw, check in calls(rng, batch, dtype_of(dtype), 5, 3):
        if op in ("linalg.eig", "linalg.eigvals", "linalg.lstsq") or kw.get("mode") == "r":
            continue
        plain = problem_of(op, *args, **kw)
        for algorithm in algorithms(library, plain):
            expected = lib.prepare(plain, algorithm)(*arrays_in(args, kw))
            layout = layouts[int(rng.integers(len(layouts)))]
            out = outs_of(expected, layout)
            problem = problem_of(op, *args, **kw, out=out)
            result = lib.prepare(problem, algorithm)(*arrays_in(args, {**kw, "out": out}))
            assert type(result) is type(expected), f"{op} returns {type(result)}"
            given = out if isinstance(out, tuple) else (out,)
            parts = result if isinstance(result, tuple) else (result,)
            assert all(x is y for x, y in zip(given, parts, strict=True)), f"{op} {algorithm.key} {layout}: not the arrays given"
            check(clear_unread(op, args, kw), kw, result, f"{op} {algorithm.key} out {layout} {kw}")


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_outs(library: str) -> None:
    need(library)
    a = np.eye(4) * 2
    frozen = np.empty((4, 4))
    frozen.flags.writeable = False
    with backline.use(library, only=True):
        for out, kind in (
            (np.empty((4, 5)), BadValue),
            (np.empty((4, 4), "f"), BadType),
            (frozen, BadValue),
            ((a.copy(),), BadType),
            (a, BadValue),
        ):
            with pytest.raises(kind):
                linalg.inv(a, out=out)
        with pytest.raises(BadType, match="tuple of 2 arrays"):
            linalg.qr(a, out=np.empty((4, 4)))
        with pytest.raises(BadType, match="tuple of 2 arrays"):
            linalg.qr(a, out=(np.empty((4, 4)),))
        with pytest.raises(BadValue, match=r"out\[1\]"):
            linalg.qr(a, out=(np.empty((4, 4)), np.empty((3, 4))))
        both = np.empty((4, 4))
        with pytest.raises(BadValue, match="overlaps"):
            linalg.qr(a, out=(both, both))
        with pytest.raises(BadValue, match="overlaps"):
            linalg.solve(a, both, out=both)


# Failures that must be the same everywhere ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_singular_matrices(library: str, dtype: str) -> None:
    kind = dtype_of(dtype)
    a = np.array([[1, 2, 0, 0], [0, 0, 3, 0], [0, 0, 4, 1], [0, 0, 0, 5]], kind)  # the second pivot is zero
    stack = np.stack([np.eye(4, dtype=kind), a, np.zeros((4, 4), kind)])
    b = np.ones((4, 2), kind)
    for x in (a, np.asfortranarray(a)):
        for op, args in (("linalg.inv", (x,)), ("linalg.solve", (x, b)), ("linalg.lu_factor", (x,))):
            for each in (op, f"{op}_ex"):
                problem = problem_of(each, *args)
                for algorithm in algorithms(library, problem):
                    plan = need(library).prepare(problem, algorithm)
                    if each == op:
                        with pytest.raises(LinAlgError, match=r"singular \(element 2 of the diagonal of U is zero\)"):
                            plan(*args)
                    else:
                        assert plan(*args)[-1] == 2, f"{each} {algorithm.key}"
    for name, result in run_each(library, "linalg.inv_ex", stack):
        assert result.info.tolist() == [0, 2, 1] and np.array_equal(result.inverse[0], np.eye(4)), name
    for name, result in run_each(library, "linalg.solve_ex", stack, b):
        assert result.info.tolist() == [0, 2, 1], name
    with backline.use(library, only=True):
        if library != "numpy":
            with pytest.raises(LinAlgError, match="item 1 of the batch"):
                linalg.inv(stack)
        with pytest.raises(LinAlgError):
            linalg.matrix_power(a, -1)
        assert linalg.det(a) == 0 and linalg.slogdet(a).logabsdet == -np.inf and linalg.cond(a, 1) == np.inf
        assert (
            np.isinf(linalg.solve_triangular(np.zeros((1, 1), kind), np.ones((1, 1), kind), upper=True)).all() or kind.kind == "c"
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_not_positive_definite(library: str, dtype: str) -> None:
    kind = dtype_of(dtype)
    bad = np.diag([4, 4, -1, 4]).astype(kind)
    first, nan = np.diag([-1, 1, 1, 1]).astype(kind), np.eye(4, dtype=kind)
    nan[2, 2] = np.nan
    for upper in (False, True):
        for x, info in (
            (bad, 3), (np.asfortranarray(bad), 3), (first, 1), (np.eye(4, dtype=kind), 0), (nan, 1), (np.full((4, 4), np.inf, kind), 1),
            (np.full((1, 1), np.inf, kind), 1), (np.diag([4, 4, 4, np.inf]).astype(kind), 1),
        ):  # fmt: skip
            for name, result in run_each(library, "linalg.cholesky_ex", x, upper=upper):
                assert result.info == info, f"{name}: info {result.info}, not {info}"
        for name, result in run_each(library, "linalg.cholesky_ex", np.stack([np.eye(4, dtype=kind), bad, nan]), upper=upper):
            assert result.info.tolist() == [0, 3, 1], name
        with (
            backline.use(library, only=True),
            pytest.raises(LinAlgError, match="leading minor of order 3 is not positive-definite"),
        ):
            linalg.cholesky(bad, upper=upper)
        spoilt = np.eye(4, dtype=kind) * 4
        spoilt[(3, 0) if upper else (0, 3)] = np.nan
        for name, result in run_each(library, "linalg.cholesky", spoilt, upper=upper):
            assert np.array_equal(result, 2 * np.eye(4)), f"{name} read the other triangle"


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_not_finite(library: str, dtype: str, value: float, capfd: pytest.CaptureFixture[str]) -> None:
    lib = need(library)
    kind = dtype_of(dtype)
    a = np.eye(5, dtype=kind) * 3 + 1
    a[3, 1] = value
    good = np.eye(5, dtype=kind) * 3 + 1
    ones = np.ones((5, 2), kind)
    for x in (a, np.asfortranarray(a)):
        for op, args, kw in (
            ("linalg.eigh", (x,), {}), ("linalg.eigvalsh", (x,), {}), ("linalg.eig", (x,), {}), ("linalg.eigvals", (x,), {}),
            ("linalg.svd", (x,), {}), ("linalg.svd", (x,), {"driver": "gesvd"}), ("linalg.svdvals", (x,), {}),
            *(("linalg.lstsq", (y, z), {"driver": d}) for y, z in ((x, ones), (good, x)) for d in (None, "gelsy", "gels", "gelsd", "gelss")),
        ):  # fmt: skip
            problem = problem_of(op, *args, **kw)
            for algorithm in algorithms(library, problem):
                with pytest.raises(LinAlgError, match="holds NaN or infinity"):
                    lib.prepare(problem, algorithm)(*arrays_in(args, kw))
        for op, args, first in (
            ("linalg.inv", (x,), 0), ("linalg.inv_ex", (x,), 0), ("linalg.solve", (x, ones), 0), ("linalg.solve_ex", (x, ones), 0),
            ("linalg.lu_factor", (x,), 0), ("linalg.lu_factor_ex", (x,), 0), ("linalg.solve", (good, a), 0), ("linalg.qr", (x,), 1),
        ):  # fmt: skip
            for name, result in run_each(library, op, *args):
                parts = result if isinstance(result, tuple) else (result,)
                if op.endswith("_ex"):
                    assert parts[-1] == 0, f"{op} {name}: info {parts[-1]}"
                if np.isnan(value):
                    assert not np.isfinite(parts[first]).all(), f"{op} {name}: NaN vanished"
        batch = np.stack([good, x, np.zeros_like(good)])
        for name, result in run_each(library, "linalg.inv_ex", batch):
            assert result.info.tolist() == [0, 0, 1], f"{name}: {result.info}"
            assert np.isfinite(result.inverse[0]).all()
    assert capfd.readouterr() == ("", ""), "a library wrote to the terminal"


@pytest.mark.parametrize("library", LIBRARIES)
def test_pivots_that_are_no_rows(library: str) -> None:
    need(library)
    lu, b = np.eye(4), np.ones((4, 1))
    with backline.use(library, only=True):
        for bad in ([0, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 10**9], [-1, 2, 3, 4]):
            pivots = np.array(bad, np.int32)
            for _ in range(2):  # also where the Memo knows the call
                with pytest.raises(BadValue, match="a pivot is not one of the rows"):
                    linalg.lu_solve(lu, pivots, b)
            with pytest.raises(BadValue, match="a pivot"):
                linalg.lu_solve(np.stack([lu, lu]), np.stack([np.arange(1, 5, dtype=np.int32), pivots]), b)
        assert np.array_equal(linalg.lu_solve(lu, np.arange(1, 5, dtype=np.int32), b), b)


@pytest.mark.parametrize("library", LIBRARIES)
def test_unit_triangles_do_not_read_their_diagonal(library: str) -> None:
    a = np.triu(np.ones((3, 3)))
    np.fill_diagonal(a, [np.nan, np.inf, 0])
    for name, result in run_each(library, "linalg.solve_triangular", a, np.ones((3, 1)), upper=True, unitriangular=True):
        assert result.ravel().tolist() == [0, 0, 1], name


@pytest.mark.parametrize("library", ["mkl", "openblas"])
def test_svd_has_a_second_try(library: str, rng: np.random.Generator) -> None:
    """Decompositions for which gesdd does not converge are tried by gesvd; a test double fails, which no known matrix provokes."""
    from backline.libraries.blas import lapack

    lib = need(library)
    a = rng.standard_normal((6, 4))
    asked: list[str] = []

    def again(name: str) -> Any:
        asked.append(name)
        return lib.prepare(problem, next(x for x in algorithms(library, problem) if x.name == name))

    for kw in ({}, {"out": outs_of(np.linalg.svd(a), "steps")}):
        problem = problem_of("linalg.svd", a, **kw)
        arrays = tuple(arrays_in((a,), kw))
        result = lapack._failed("linalg.svd", partial(again, "gesvd"), None, [4], arrays, ())
        check_svd((a,), {}, result, "second try")
    assert asked == ["gesvd", "gesvd"]
    with pytest.raises(LinAlgError, match="item 1 of the batch: the singular values did not converge"):
        lapack._failed("linalg.svd", None, None, [0, 4], (a,), ())
    with pytest.raises(RuntimeError, match="argument 3 illegal"):
        lapack._failed("linalg.svd", None, None, [-3], (a,), ())
    with backline.use(library, only=True):
        assert {backline.explain(linalg.svd, a, driver=d).algorithm for d in ("gesdd", "gesvd")} == {"gesdd", "gesvd"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_arguments(library: str) -> None:
    need(library)
    a, wrong = np.eye(3), np.ones((3, 4))
    with backline.use(library, only=True):
        for name in ("cholesky", "cholesky_ex", "inv", "inv_ex", "eigh", "eigvalsh", "eig", "eigvals", "det", "slogdet"):
            f = getattr(linalg, name)
            with pytest.raises(BadValue, match=rf"{name}: A must be a square matrix or a batch of them, it has shape \(3, 4\)"):
                f(wrong)
        for name in ("cholesky", "inv", "eigh", "eig", "svd", "svdvals", "qr", "lu_factor", "lu", "pinv"):
            f = getattr(linalg, name)
            with pytest.raises(BadValue, match=rf"{name}: A must .*it has shape \(3,\)"):
                f(np.ones(3))
            for bad, text in (
                (a.astype(np.float16), "float16"),
                (a.astype(int), "int64"),
                (a.tolist(), "list"),
                (None, "NoneType"),
            ):
                with pytest.raises(BadType, match=text):
                    f(bad)
        for call, kind, text in (
            (lambda: linalg.solve(a, np.ones(4)), BadValue, "A is 3 x 3, B has length 4"),
            (lambda: linalg.solve(a, np.ones((4, 2))), BadValue, r"\(3, 3\) and B of shape \(4, 2\)"),
            (lambda: linalg.solve(a, np.ones(3), left=False), BadValue, "left=False with vectors"),
            (lambda: linalg.solve(a, a.astype("f")), BadType, "float64 and float32 differ"),
            (lambda: linalg.solve(np.ones((2, 3, 3)), np.ones((4, 3, 1))), BadValue, "do not broadcast"),
            (lambda: linalg.solve(a, a, left=1), BadType, "left is True or False, not 1"),
            (lambda: linalg.cholesky(a, upper="yes"), BadType, "upper is True or False"),
            (lambda: linalg.cholesky_ex(a, check_errors=True), BadValue, "check_errors"),
            (lambda: linalg.lu_factor(a, pivot=False), BadValue, "pivot=False"),
            (lambda: linalg.lu_solve(a, np.ones(3, np.int64), a), BadType, "int64"),
            (lambda: linalg.lu_solve(a, np.ones(4, np.int32), a), BadValue, r"\(4,\)"),
            (lambda: linalg.ldl_factor(a, hermitian=1), BadType, "hermitian is True or False"),
            (lambda: linalg.ldl_factor_ex(a, check_errors=True), BadValue, "check_errors"),
            (lambda: linalg.ldl_factor(wrong), BadValue, "square"),
            (lambda: linalg.ldl_solve(a, np.ones(3, np.int64), a), BadType, "int64"),
            (lambda: linalg.ldl_solve(a, np.ones(3), a), BadType, "Expected pivots to be integers"),
            (lambda: linalg.ldl_solve(a, np.ones(4, np.int32), a), BadValue, "pivots.shape to be the same"),
            (lambda: linalg.ldl_solve(a, np.ones(3, np.int32), np.ones(3)), BadValue, "at least 2 dimensions"),
            (lambda: linalg.ldl_solve(a, np.ones(3, np.int32), np.ones((4, 1))), BadValue, "do not fit"),
            (lambda: linalg.ldl_solve(a, np.ones(3, np.int32), a.astype("f")), BadType, "float32"),
            (lambda: linalg.householder_product(np.ones((2, 3)), np.ones(2)), BadValue, r"input.shape\[-2\] must be greater than or equal to"),
            (lambda: linalg.householder_product(a, np.ones(4)), BadValue, r"input.shape\[-1\] must be greater than or equal to tau.shape\[-1\]"),
            (lambda: linalg.householder_product(a, np.ones((2, 3))), BadValue, "one dimension less than input"),
            (lambda: linalg.householder_product(a, np.ones(3, "f")), BadType, "float32"),
            (lambda: linalg.qr(a, "full"), BadValue, "mode='full'"),
            (lambda: linalg.qr(a, 1), BadType, "mode is a str, not int"),
            (lambda: linalg.qr(a, "r", out=(a, a)), BadValue, "one result only"),
            (lambda: linalg.eigh(a, "x"), BadValue, "Expected UPLO argument to be 'L' or 'U', but got x"),
            (lambda: linalg.svd(a, full_matrices=0), BadType, "full_matrices"),
            (lambda: linalg.svd(a, driver="gesvdj"), BadValue, "CUDA"),
            (lambda: linalg.svd(a, driver="dc"), BadValue, "one of: 'gesdd', 'gesvd'"),
            (lambda: linalg.solve_triangular(a, wrong[:2], upper=True), BadValue, "do not fit"),
            (lambda: linalg.solve_triangular(a, a), TypeError, "upper"),
            (lambda: linalg.lstsq(a, np.ones((4, 1))), BadValue, r"B of shape \(4, 1\)"),
            (lambda: linalg.lstsq(a, a, driver="qr"), BadValue, "driver='qr'"),
            (lambda: linalg.lstsq(a, a, rcond="small"), BadType, "rcond"),
            (lambda: linalg.matrix_power(a, 1.5), BadType, "n is an int, not float"),
            (lambda: linalg.matrix_norm(a, 3), BadValue, "Order 3 not supported"),
            (lambda: linalg.vector_norm(np.ones(0), np.inf), BadValue, "cannot compute the inf norm"),
            (lambda: linalg.norm(np.ones((2, 2, 2)), 1), BadValue, "say which axes"),
            (lambda: linalg.vector_norm(a, 2, 1.5), BadType, "dim is an int, not 1.5"),
            (lambda: linalg.vector_norm(a, 2, (0, None)), BadType, "dim is an int"),
            (lambda: linalg.matrix_norm(a, dim=0), BadValue, "two different axes"),
            (lambda: linalg.multi_dot(3), BadType, "multi_dot: tensors is int"),
            (lambda: backline.cholesky_solve(np.ones((4, 1)), a), BadValue, "do not fit"),
        ):  # fmt: skip
            with pytest.raises(kind, match=text):
                call()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_ldl_of_singular_matrices_and_of_nan(library: str, dtype: str) -> None:
    need(library)
    with backline.use(library, only=True):
        nothing, one = np.zeros((2, 2), dtype), np.eye(2, dtype=dtype)
        result = linalg.ldl_factor_ex(nothing)
        assert result.info == 1 and result.pivots.tolist() == [1, 2] and not result.LD.any()
        with pytest.raises(LinAlgError, match="D is zero in row 1"):
            linalg.ldl_factor(nothing)
        with pytest.raises(LinAlgError, match="item 1 of the batch"):
            linalg.ldl_factor(np.stack([one, nothing]))
        for bad in (np.nan, np.inf):
            spoilt = one.copy()
            spoilt[1, 0] = bad
            batch = np.stack([one, spoilt, nothing])
            result = linalg.ldl_factor_ex(batch)
            assert result.info.tolist() == [0, 0, 1] and result.pivots.tolist() == [[1, 2]] * 3
            assert np.isnan(result.LD[1][np.tril_indices(2)]).all() and result.LD[1][0, 1] == 0 and np.array_equal(result.LD[0], one)
            assert np.isnan(linalg.ldl_factor(spoilt).LD).any()
        upper = np.array([[1, np.nan], [2, 3]], dtype)  # not read
        assert np.isfinite(linalg.ldl_factor(upper).LD).all()
        with np.errstate(all="raise"):
            assert not np.isfinite(linalg.ldl_solve(nothing, np.array([1, 2], np.int32), one)).any()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("pivots", [[1, -2], [-2, -1], [0, 1], [3, 1], [-3, -3], [-2, 2], [1, 2**31 - 1], [-(2**31), -(2**31)]])
def test_pivots_that_no_factorisation_has_reach_no_lapack(library: str, pivots: list[int]) -> None:
    need(library)
    with backline.use(library, only=True), pytest.raises(BadValue, match="pivots are rows counted from 1, or pairs"):
        linalg.ldl_solve(np.eye(2), np.array(pivots, np.int32), np.ones((2, 1)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_ldl_and_reflectors_write_to_given_arrays(library: str, rng: np.random.Generator) -> None:
    need(library)
    with backline.use(library, only=True):
        a = hermitian(rng, (3,), 5, np.dtype("c16"))
        out = np.empty((3, 5, 5), "c16"), np.empty((3, 5), np.int32), np.empty(3, np.int32)
        given = linalg.ldl_factor_ex(a, hermitian=True, out=out)
        plain = linalg.ldl_factor_ex(a, hermitian=True)
        assert all(x is y and np.array_equal(x, z) for x, y, z in zip(given, out, plain, strict=True))
        b = np.empty((3, 2, 5), "c16").swapaxes(1, 2)
        sides = normal(rng, (5, 2), a.dtype)
        assert linalg.ldl_solve(*plain[:2], sides, hermitian=True, out=b) is b
        assert np.allclose(a @ b, np.broadcast_to(sides, b.shape))
        q = np.empty_like(a)
        tau = np.zeros((3, 4), "c16")
        assert linalg.householder_product(a, tau, out=q) is q and np.array_equal(q, np.broadcast_to(np.eye(5), q.shape))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_qr_of_one_row_repeated_is_finite(dtype: str, rng: np.random.Generator) -> None:
    """Remainders shrink by the rounding error with each column, down to numbers that underflow."""
    for m, n in ((6, 6), (6, 12), (8, 8), (12, 12), (20, 13), (20, 20), (24, 24), (40, 8)):
        for scale in (1e-8, 1, 1e4):
            a = np.repeat(normal(rng, (1, n), np.dtype(dtype)), m, 0) * np.dtype(dtype).type(scale)
            q, r = linalg.qr(a)
            assert np.isfinite(q).all() and np.isfinite(r).all(), (m, n, scale, str(backline.explain()))
            assert np.abs(q @ r - a).max() <= 64 * n * np.finfo(dtype).eps * np.abs(a).max()


# What torch.linalg gives ----------------------------------------------------------------------------------------------
# Values that depend on rules, not on rounding: recorded by data/record_torch.py with the version of torch in the file.

RECORDED = json.loads((Path(__file__).parent / "data" / "torch_linalg.json").read_text())


def decode(value: Any) -> Any:
    if isinstance(value, dict) and "complex" in value:
        return np.array(value["real"], float) + 1j * np.array(value["complex"], float)
    return np.array(value, dtype=float) if isinstance(value, list) and not isinstance(value[0] if value else 0, str) else value


@pytest.mark.parametrize("name", RECORDED["cases"])
def test_as_torch(name: str) -> None:
    case = RECORDED["cases"][name]
    function = getattr(linalg, case["function"])
    args = [np.array(x["array"], dtype=x["dtype"]).reshape(x["shape"]) if isinstance(x, dict) else x for x in case["args"]]
    kwargs = {k: tuple(v) if isinstance(v, list) else v for k, v in case["kwargs"].items()}
    if "error" in case:
        with pytest.raises((BadValue, BadType, LinAlgError)):
            function(*args, **kwargs)
        return
    with np.errstate(all="ignore"):
        result = function(*args, **kwargs)
    parts = result if isinstance(result, tuple) else (result,)
    assert len(parts) == len(case["result"])
    for i, (part, wanted) in enumerate(zip(parts, case["result"], strict=True)):
        if case["function"] == "inv_ex" and i == 0 and np.any(parts[1]):
            continue  # the inverse has no meaning where info is not 0
        assert list(np.shape(part)) == wanted["shape"], f"{name}: shape {np.shape(part)}, torch has {wanted['shape']}"
        assert np.asarray(part).dtype.name == wanted["dtype"], (
            f"{name}: dtype {np.asarray(part).dtype}, torch has {wanted['dtype']}"
        )
        value = np.array(wanted["array"], dtype=float).reshape(wanted["shape"])
        got = np.asarray(part)
        if case["function"] == "cond":
            # An SVD finds every singular value within n * eps of the largest: so well is 1 / cond known. Of a singular matrix
            # the smallest one is rounding, another with each processor, and 0 as well.
            n = args[0].shape[-1]
            with np.errstate(divide="ignore"):
                assert np.allclose(1 / got, 1 / value, rtol=1e-5, atol=10 * n * eps(args[0].dtype), equal_nan=True), f"{name}: {got} {value}"
            continue
        assert np.allclose(np.abs(got) if case.get("absolute") else got, value, rtol=1e-5, atol=1e-6, equal_nan=True), (
            f"{name}: {got} {value}"
        )


@pytest.mark.torch
def test_the_recorded_values_are_those_of_torch_now() -> None:
    torch = pytest.importorskip("torch")
    import importlib.util

    spec = importlib.util.spec_from_file_location("record_torch", Path(__file__).parent / "data" / "record_torch.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert torch.__version__ and os.path.isfile(module.__file__ or "")
    now = module.record()
    assert now["cases"].keys() == RECORDED["cases"].keys()
    for name, case in now["cases"].items():
        old = RECORDED["cases"][name]
        assert ("error" in case) == ("error" in old), name
        for x, y in zip(case.get("result", []), old.get("result", []), strict=True):
            assert x["shape"] == y["shape"] and x["dtype"] == y["dtype"], name
            left, right = np.array(x["array"], float), np.array(y["array"], float)
            if case["function"] == "cond":  # as above: of a singular matrix it is rounding, another with each build of PyTorch
                with np.errstate(divide="ignore"):
                    assert np.allclose(1 / left, 1 / right, rtol=1e-5, atol=100 * eps(x["dtype"]), equal_nan=True), name
                continue
            assert np.allclose(left, right, atol=1e-6, equal_nan=True), name
