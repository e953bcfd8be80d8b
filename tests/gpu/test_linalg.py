"""Linear algebra on CUDA arrays: which routine runs on each side of every threshold, how exact it is, and what info says.

Everything runs while products may use TF32: linear algebra must not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg, switches
from backline.errors import LinAlgError
from gpu.arrays import normal, wide
from gpu.proofs import Proof, far, h, largest, routines
from gpu.watch import watched

pytestmark = pytest.mark.usefixtures("tf32_is_permitted_to_products")

DEFAULT, CUSOLVER = ({"cuda.preferred_linalg_library": each} for each in ("default", "cusolver"))


def well(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Square matrices far from singular."""
    n = shape[-1]
    return (normal(shape, dtype, seed) + (2 * n**0.5 + 1) * np.eye(n)).astype(dtype)


def positive(shape: tuple[int, ...], dtype: str) -> Any:
    a = wide(normal(shape, dtype))
    return (a @ h(a) / shape[-1] + np.eye(shape[-1])).astype(dtype)


# --- Cholesky and LU --------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="LA-1")
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(("shape", "dtype", "expected"), [
    ((64, 64), "float32", {"potrf": 1}), ((1, 65, 65), "complex128", {"potrf": 1}), ((2, 33, 33), "float32", {"potrf_batched": 1}),
    ((40, 12, 12), "complex128", {"potrf_batched": 1}),
])  # fmt: skip
def test_cholesky(proof: Proof, shape: tuple[int, ...], dtype: str, expected: dict[str, int], upper: bool) -> None:
    a, name = positive(shape, dtype), f"{shape} {dtype} {'upper' if upper else 'lower'}"
    factor = proof.run(name, linalg.cholesky, a, upper=upper, expected=expected)
    assert not np.any(np.tril(factor, -1) if upper else np.triu(factor, 1)), "zeros in the other triangle"
    product = h(factor) @ factor if upper else factor @ h(factor)
    proof.near(name, far(product, wide(a), largest(a)), shape[-1], dtype)


@pytest.mark.gpu(row="LA-2")
@pytest.mark.parametrize(("shape", "dtype", "expected"), [
    ((64, 64), "float32", {"potrs": 1}), ((2, 64, 64), "float32", {"trsm": 4}), ((2, 63, 63), "complex128", {"trsm_batched": 2}),
])  # fmt: skip
def test_cholesky_solve_and_inverse(proof: Proof, shape: tuple[int, ...], dtype: str, expected: dict[str, int]) -> None:
    a, b = positive(shape, dtype), normal((*shape[:-1], 3), dtype, 4)
    factor = np.linalg.cholesky(wide(a)).astype(dtype)
    x = proof.run(f"solve {shape} {dtype}", backline.cholesky_solve, b, factor, expected=expected)
    proof.near("solve", far(wide(a) @ x, wide(b), largest(a, x)), shape[-1], dtype)
    x = proof.run(f"inverse {shape} {dtype}", backline.cholesky_inverse, factor, expected=expected)
    proof.near("inverse", far(wide(a) @ x, np.eye(shape[-1]), largest(a, x)), shape[-1], dtype)


def multiplied(lu: Any, pivots: Any) -> Any:
    """P L U."""
    m, n = lu.shape[-2:]
    k = min(m, n)
    whole = (np.tril(lu[..., :k], -1) + np.eye(m, k)) @ np.triu(lu[..., :k, :])
    for matrix, rows in zip(whole.reshape(-1, m, n), pivots.reshape(-1, k), strict=True):
        for i in reversed(range(k)):
            j = int(rows[i]) - 1
            matrix[[i, j]] = matrix[[j, i]]
    return whole


@pytest.mark.gpu(row="LA-3")
@pytest.mark.parametrize(("dtype", "b", "n"), [
    ("float32", 2, 129), ("complex64", 2, 129), ("float64", 2, 66), ("complex128", 2, 66),
    ("float32", 4, 272), ("complex64", 4, 272), ("float64", 4, 364), ("complex128", 4, 203),
])  # fmt: skip
def test_lu_factor_on_both_sides(proof: Proof, dtype: str, b: int, n: int) -> None:
    for size, expected in ((n, {"getrf_batched": 1}), (n + 1, {"getrf": b})):
        a, name = normal((b, size, size), dtype), f"{b} x {size} {dtype}"
        lu, pivots = proof.run(name, linalg.lu_factor, a, expected=expected)
        proof.near(name, far(multiplied(lu, pivots), wide(a), largest(a)), size, dtype)


@pytest.mark.gpu(row="LA-3")
@pytest.mark.parametrize(("shape", "expected"), [((300, 300), 1), ((3, 40, 24), 3), ((3, 24, 40), 3), ((1, 8, 8), 1)])
def test_lu_factor_of_one_matrix_and_of_others_than_square(proof: Proof, shape: tuple[int, ...], expected: int) -> None:
    a = normal(shape, "float32")
    lu, pivots = proof.run(f"{shape}", linalg.lu_factor, a, expected={"getrf": expected})
    proof.near(f"{shape}", far(multiplied(lu, pivots), wide(a), largest(a)), max(shape[-2:]), "float32")


def solved(
    proof: Proof, shape: tuple[int, ...], k: int, expected: dict[str, int], dtype: str = "float32", *, adjoint: bool = False, left: bool = True
) -> None:
    """Solve with factors that the device made, and look at the residual of the system."""
    n = shape[-1]
    a = well(shape, dtype)
    lu, pivots = (each.get() for each in linalg.lu_factor(proof.xp.asarray(a)))
    b = normal((*shape[:-2], n, k) if left else (*shape[:-2], k, n), dtype, 3)
    name = f"{shape} {dtype}, {k} right-hand sides{', adjoint' if adjoint else ''}{'' if left else ', on the right'}"
    x = proof.run(name, linalg.lu_solve, np.ascontiguousarray(lu), pivots, b, adjoint=adjoint, left=left, expected=expected)
    of = h(wide(a)) if adjoint else wide(a)
    proof.near(name, far(of @ x if left else x @ of, wide(b), largest(a, x)), n, dtype)


@pytest.mark.gpu(row="LA-4")
def test_lu_solve_where_cusolver_is_preferred(proof: Proof) -> None:
    with switches.scope(CUSOLVER):
        for shape, expected in (
            ((2, 64, 64), {"getrs": 2}), ((64, 64), {"getrs": 1}), ((2, 63, 63), {"getrs_batched": 1}), ((3, 64, 64), {"getrs_batched": 1}),
        ):  # fmt: skip
            solved(proof, shape, 5, expected)
        solved(proof, (2, 64, 64), 5, {"getrs": 2}, "complex128", adjoint=True)
        solved(proof, (2, 64, 64), 5, {"getrs": 2}, "complex64", left=False)


@pytest.mark.gpu(row="LA-5")
def test_lu_solve_with_as_many_right_hand_sides_as_rows(proof: Proof) -> None:
    for shape, expected in (
        ((3, 16, 16), {"getrs_batched": 1}), ((3, 17, 17), {"trsm_batched": 2}), ((17, 17), {"trsm_batched": 2}),
        ((2, 64, 64), {"trsm": 4}), ((9, 64, 64), {"trsm_batched": 2}),
    ):  # fmt: skip
        solved(proof, shape, shape[-1], expected)
        solved(proof, shape, shape[-1], expected, "complex128", adjoint=True)


@pytest.mark.gpu(row="LA-6")
@pytest.mark.parametrize(("b", "n", "k", "adjoint", "expected"), [
    (2, 8, 3, False, {"getrs_batched": 1}), (2, 9, 3, False, {"getrs": 2}), (2, 32, 65, False, {"getrs": 2}), (2, 33, 64, False, {"getrs": 2}),
    (2, 33, 65, False, {"trsm_batched": 2}), (2, 33, 65, True, {"getrs": 2}), (3, 33, 8, False, {"getrs_batched": 1}),
    (3, 33, 9, False, {"trsm_batched": 2}), (2, 64, 64 - 1, False, {"getrs": 2}), (2, 65, 2, False, {"getrs": 2}),
    (3, 65, 2, False, {"getrs_batched": 1}), (2, 65, 3, False, {"trsm": 4}), (2, 128, 2, False, {"getrs": 2}), (2, 129, 2, False, {"trsm": 4}),
    (9, 129, 2, True, {"trsm_batched": 2}),
])  # fmt: skip
def test_lu_solve_with_other_right_hand_sides(proof: Proof, b: int, n: int, k: int, adjoint: bool, expected: dict[str, int]) -> None:
    solved(proof, (b, n, n), k, expected, adjoint=adjoint)


@pytest.mark.gpu(row="LA-7")
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(("b", "n", "expected"), [(8, 64, {"trsm": 8}), (9, 64, {"trsm_batched": 1}), (8, 63, {"trsm_batched": 1})])
def test_triangular_solve(proof: Proof, dtype: str, b: int, n: int, expected: dict[str, int]) -> None:
    a, right = well((b, n, n), dtype), normal((b, n, 5), dtype, 2)
    for upper, left in ((True, True), (False, False)):
        given = right if left else np.ascontiguousarray(right.swapaxes(1, 2))
        name = f"{b} x {n} {dtype} {'upper' if upper else 'lower'}, {'left' if left else 'right'}"
        x = proof.run(name, linalg.solve_triangular, a, given, upper=upper, left=left, expected=expected)
        of = wide(np.triu(a) if upper else np.tril(a))
        proof.near(name, far(of @ x if left else x @ of, wide(given), largest(of, x)), n, dtype)


# --- QR and least squares ---------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="LA-8")
@pytest.mark.parametrize(("shape", "dtype", "way"), [
    ((16, 256, 24), "float32", "batched"), ((15, 256, 24), "float32", "each"), ((17, 257, 24), "float32", "each"),
    ((2, 47, 12), "complex128", "batched"), ((2, 48, 12), "complex128", "each"), ((16, 8), "float64", "each"), ((2, 8, 16), "float64", "batched"),
])  # fmt: skip
def test_qr(proof: Proof, shape: tuple[int, ...], dtype: str, way: str) -> None:
    a = normal(shape, dtype)
    items = int(np.prod(shape[:-2]))
    made = "ungqr" if dtype.startswith("complex") else "orgqr"
    expected = {"geqrf_batched": 1, made: items} if way == "batched" else {"geqrf": items, made: items}
    q, r = proof.run(f"{shape} {dtype}", linalg.qr, a, expected=expected)
    n = max(shape[-2:])
    proof.near("Q R", far(q @ r, wide(a), largest(a)), n, dtype)
    proof.near("Q^H Q", far(h(q) @ q, np.eye(q.shape[-1]), 1), n, dtype)
    assert not np.any(np.tril(r, -1))


@pytest.mark.gpu(row="LA-14")
@pytest.mark.parametrize(("shape", "dtype", "expected"), [
    ((16, 256, 24), "float32", {"gels_batched": 1}), ((15, 256, 24), "float32", {"geqrf": 15, "ormqr": 15, "trsm_batched": 1}),
    ((17, 257, 24), "float64", {"geqrf": 17, "ormqr": 17, "trsm_batched": 1}), ((96, 64), "float32", {"geqrf": 1, "ormqr": 1, "trsm": 1}),
    ((2, 24, 40), "float64", {"geqrf": 2, "trsm_batched": 1, "ormqr": 2}), ((3, 40, 9), "complex128", {"gels_batched": 1}),
    ((2, 48, 9), "complex128", {"geqrf": 2, "unmqr": 2, "trsm_batched": 1}),
])  # fmt: skip
def test_lstsq(proof: Proof, shape: tuple[int, ...], dtype: str, expected: dict[str, int]) -> None:
    a, b = normal(shape, dtype), normal((*shape[:-1], 3), dtype, 6)
    x, residuals = proof.run(f"{shape} {dtype}", linalg.lstsq, a, b, expected=expected)[:2]
    m, n = shape[-2:]
    left = wide(a) @ x - wide(b)
    if m > n:
        proof.near("A^H (A X - B)", far(h(wide(a)) @ left, 0 * x, largest(a, a, x)), m, dtype)
        sums = (np.abs(left) ** 2).sum(-2)
        proof.near("residuals", far(residuals, sums, float(sums.max())), m, dtype)
    else:
        proof.near("A X - B", far(left, 0 * left, largest(a, x)), n, dtype)
        shortest = np.linalg.pinv(wide(a)) @ wide(b)
        proof.near("of all solutions the shortest", far(x, shortest, largest(shortest)), n, dtype)


# --- inverses and info ------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="LA-13")
@pytest.mark.parametrize(("shape", "dtype", "expected"), [
    ((16, 16), "float32", {"getrf": 1, "getrs_batched": 1}), ((17, 17), "float32", {"getrf": 1, "trsm_batched": 2}),
    ((200, 200), "complex64", {"getrf": 1, "trsm": 2}), ((4, 16, 16), "complex128", {"getrf_batched": 1, "getrs_batched": 1}),
    ((2, 67, 67), "float64", {"getrf": 2, "trsm": 4}), ((9, 66, 66), "float64", {"getrf_batched": 1, "trsm_batched": 2}),
])  # fmt: skip
def test_inv(proof: Proof, shape: tuple[int, ...], dtype: str, expected: dict[str, int]) -> None:
    a, n = well(shape, dtype), shape[-1]
    x = proof.run(f"{shape} {dtype}", linalg.inv, a, expected=expected)
    proof.near(f"{shape} {dtype}", far(wide(a) @ x, np.eye(n), largest(a, x)), n, dtype)
    x, info = proof.run(f"{shape} {dtype}, ex", linalg.inv_ex, a, expected=expected)
    proof.near("ex", far(wide(a) @ x, np.eye(n), largest(a, x)), n, dtype)
    assert not info.any()


@pytest.mark.gpu(row="LA-13")
def test_solve(proof: Proof) -> None:
    for shape, k, expected in (
        ((300, 300), 7, {"getrf": 1, "trsm": 2}), ((50, 8, 8), 3, {"getrf_batched": 1, "getrs_batched": 1}), ((64, 64), 1, {"getrf": 1, "getrs": 1}),
    ):  # fmt: skip
        a, b = well(shape, "float32"), normal((*shape[:-1], k), "float32", 8)
        x = proof.run(f"{shape}, {k} right-hand sides", linalg.solve, a, b, expected=expected)
        proof.near("solve", far(wide(a) @ x, wide(b), largest(a, x)), shape[-1], "float32")


@pytest.mark.gpu(row="LA-15")
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_info(row: Any, xp: Any, batch: tuple[int, ...]) -> None:
    row.expect("info of the ..._ex functions is LAPACK's index of the first bad pivot or minor, and nothing is raised")
    n, bad = 40, 7
    singular = well((*batch, n, n), "float32")
    regular = singular.copy()
    whole = singular.reshape(-1, n, n)
    whole[-1] = np.diag(np.arange(1.0, n + 1))  # so that no rounding makes a number of the zero
    whole[-1, bad - 1, bad - 1] = 0
    indefinite = positive((*batch, n, n), "float32")
    indefinite.reshape(-1, n, n)[-1] = np.diag(np.where(np.arange(n) == bad - 1, -1.0, 2.0))
    expected = np.zeros(batch, np.int32)
    expected.reshape(-1)[-1:] = bad
    b = normal((*batch, n, 2), "float32")
    with watched("cublas", "cusolverDn") as calls:
        for name, op, given in (
            ("lu_factor_ex", linalg.lu_factor_ex, (singular,)), ("inv_ex", linalg.inv_ex, (singular,)), ("solve_ex", linalg.solve_ex, (singular, b)),
            ("cholesky_ex", linalg.cholesky_ex, (indefinite,)),
        ):  # fmt: skip
            calls.forget()
            info = op(*map(xp.asarray, given))[-1]
            row.observe(f"{name} {batch}: info {info.get().tolist()}", " ".join(routines(calls)))
            assert info.dtype == np.int32 and info.shape == batch and np.array_equal(info.get(), expected), name
    none = linalg.lu_factor_ex(xp.asarray(regular))[-1].get()
    assert not none.any()
    for op, given in ((linalg.inv, singular), (linalg.lu_factor, singular), (linalg.cholesky, indefinite)):
        with pytest.raises(LinAlgError, match=str(bad)) as caught:
            op(xp.asarray(given))
    row.observe(f"without _ex: {caught.value}")


@pytest.mark.gpu(row="LA-15")
def test_work_goes_to_the_callers_stream(row: Any, xp: Any) -> None:
    row.expect("an operation of several routines is right on a stream of its own")
    a, b = well((3, 150, 150), "float32"), normal((3, 150, 4), "float32", 1)
    stream = xp.cuda.Stream(non_blocking=True)
    with stream, watched("cublas", "cusolverDn", fresh=True) as calls:
        x = linalg.solve_ex(xp.asarray(a), xp.asarray(b))[0]
        used = {each["stream_id"] for name, each in calls.log if name == "set_stream" and "stream_id" in each}
        stream.synchronize()
    residual = far(wide(a) @ wide(x), wide(b), largest(a, wide(x)))
    row.observe(f"residual {residual:.2g}", f"streams {len(used)}")
    assert used == {stream.ptr} and residual < 50 * 150 * float(np.finfo("float32").eps)
