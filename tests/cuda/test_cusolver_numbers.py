"""Linear algebra on CUDA arrays, computed by LAPACK where cuSOLVER would: what is right proves every layout and order of calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg, switches
from backline.errors import BadValue, LinAlgError, NoKernel
from backline.libraries.cuda.cusolver import routine_table, row_interchanges
from backline.libraries.cuda.cusolver.library import CuSOLVER
from fakes.insert import inserted
from fakes.matrices import FLOATS, h, near, numbers, positive, there, well
from fakes.solver_machine import SolverMachine, real_types
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean")
assert clean

# On each side of what the rules turn on, and small enough for LAPACK in a test.
BATCHES: tuple[tuple[int, ...], ...] = ((), (2,), (3, 3))


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolverMachine]:
    made = SolverMachine(tmp_path_factory.getbasetemp())
    with inserted(**made.modules()):
        yield made


LAYOUTS = {
    "C": lambda a: np.ascontiguousarray(a),
    "F": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "padded rows": lambda a: _padded(a),
    "padded columns": lambda a: _padded(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "backwards": lambda a: np.ascontiguousarray(a[..., ::-1, :])[..., ::-1, :],
}


def _padded(a: Any) -> Any:
    room = np.full((*a.shape[:-1], a.shape[-1] + 3), np.nan, a.dtype)
    room[..., : a.shape[-1]] = a
    return room[..., : a.shape[-1]]


@pytest.mark.parametrize(("layout", "dtype"), [
    *(("C", dtype) for dtype in FLOATS), ("F", "float64"), ("F", "complex64"), ("padded rows", "complex128"),
    ("padded columns", "complex128"), ("padded columns", "float32"), ("backwards", "complex64"),
])  # fmt: skip
class TestEveryLayout:
    """Each operation on matrices in each memory order."""

    def test_lu(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for m, n in ((4, 4), (5, 3), (3, 5)):
                a = LAYOUTS[layout](numbers((*batch, m, n), dtype))
                found, expected = linalg.lu_factor(there(a)), linalg.lu_factor(a)
                near(found.LU, expected.LU)
                assert found.pivots.dtype == np.int32 and np.array_equal(found.pivots.host, expected.pivots)

    def test_solve_and_inverse(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for n in (3, 17) if batch else (3, 17, 66):
                a = LAYOUTS[layout](well((*batch, n, n), dtype))
                near(linalg.inv(there(a)), np.linalg.inv(a))
                for k in (1, n):
                    b = LAYOUTS[layout](numbers((*batch, n, k), dtype, 1))
                    near(linalg.solve(there(a), there(b)), np.linalg.solve(a, b))
                    b = LAYOUTS[layout](numbers((*batch, k, n), dtype, 2))
                    near(linalg.solve(there(a), there(b), left=False), np.linalg.solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2))
            b = numbers((*batch, n), dtype, 3)
            near(linalg.solve(there(a), there(b)), np.linalg.solve(a, b[..., None])[..., 0])

    @pytest.mark.parametrize("preference", ["default", "cusolver"])
    def test_solve_with_factors(self, machine: SolverMachine, dtype: str, layout: str, preference: str) -> None:
        with switches.scope({"cuda.preferred_linalg_library": preference}):
            for batch in BATCHES:
                for n, k in ((3, 3), (9, 2), (17, 17), (66, 3)):
                    a = well((*batch, n, n), dtype)
                    lu, pivots = linalg.lu_factor(a)
                    lu = LAYOUTS[layout](lu)
                    for left in (True, False):
                        b = LAYOUTS[layout](numbers((*batch, n, k) if left else (*batch, k, n), dtype, 1))
                        for adjoint in (True, False):
                            found = linalg.lu_solve(there(lu), there(pivots), there(b), left=left, adjoint=adjoint)
                            of = h(a) if adjoint else a
                            product = of @ found.host if left else found.host @ of
                            near(product, b, 2000)

    def test_triangles(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for n, k in ((3, 2),) if len(batch) > 1 else ((3, 2), (66, 3)):
                a = LAYOUTS[layout](well((*batch, n, n), dtype))
                for upper in (True, False):
                    for unit in (True, False):
                        t = np.triu(a) if upper else np.tril(a)
                        if unit:
                            t = t / np.diagonal(t, axis1=-2, axis2=-1)[..., None, :]
                            t = LAYOUTS[layout](t.astype(dtype))
                        given = t.copy(order="K")
                        if unit:
                            given[..., range(n), range(n)] = np.nan
                        given = LAYOUTS[layout](given)
                        for left in (True, False):
                            b = LAYOUTS[layout](numbers((*batch, n, k) if left else (*batch, k, n), dtype, 1))
                            found = linalg.solve_triangular(there(given), there(b), upper=upper, left=left, unitriangular=unit)
                            near(t @ found.host if left else found.host @ t, b, 2000)

    def test_cholesky(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for n in (1, 4) if batch else (4, 66):
                a = positive((*batch, n, n), dtype)
                given = LAYOUTS[layout](np.where(np.tri(n, dtype=bool), a, np.nan).astype(dtype))
                low = linalg.cholesky(there(given))
                near(low, np.linalg.cholesky(a))
                near(linalg.cholesky(there(LAYOUTS[layout](h(given))), upper=True), h(np.linalg.cholesky(a)))
                for upper in (True, False):
                    factor = LAYOUTS[layout](h(low.host) if upper else low.host)
                    b = LAYOUTS[layout](numbers((*batch, n, 3), dtype, 1))
                    near(backline.cholesky_solve(there(b), there(factor), upper), np.linalg.solve(a, b), 3000)
                    near(backline.cholesky_inverse(there(factor), upper), np.linalg.inv(a), 3000)

    def test_qr(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for m, n in ((4, 4), (6, 3), (3, 6), (40, 33)):
                a = LAYOUTS[layout](numbers((*batch, m, n), dtype))
                for mode in ("reduced", "complete", "r"):
                    q, r = linalg.qr(there(a), mode)
                    if mode == "r":
                        assert q.shape == (0,)
                        near(r, np.linalg.qr(a, "r"))
                        continue
                    expected = np.linalg.qr(a, mode)
                    assert q.shape == expected.Q.shape
                    near(r, expected.R)
                    near(q.host @ r.host, a)
                    near(h(q.host) @ q.host, np.broadcast_to(np.eye(q.shape[-1], dtype=dtype), (*batch, *q.shape[-1:] * 2)))

    def test_least_squares(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for m, n in ((4, 4), (7, 3), (3, 7), (70, 66)):
                a = LAYOUTS[layout](numbers((*batch, m, n), dtype))
                b = LAYOUTS[layout](numbers((*batch, m, 2), dtype, 1))
                found = linalg.lstsq(there(a), there(b))
                expected = np.linalg.pinv(a) @ b
                near(found.solution, expected.astype(dtype), 1e5)
                assert found.rank.shape == found.singular_values.shape == (0,)
                if m > n:
                    near(found.residuals, np.sum(np.abs(b - a @ expected) ** 2, -2).astype(found.residuals.dtype), 1e5)
                else:
                    assert found.residuals.shape == (0,)
                vector = linalg.lstsq(there(a), there(b[..., 0]), driver="gels")
                near(vector.solution, expected[..., 0].astype(dtype), 1e5)

    def test_symmetric_eigenvalues(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for n in (1, 4, 33):
                a = positive((*batch, n, n), dtype)
                for uplo in "LU":
                    given = LAYOUTS[layout](np.where(np.tri(n, dtype=bool) if uplo == "L" else np.tri(n, dtype=bool).T, a, np.nan).astype(dtype))
                    w, v = linalg.eigh(there(given), uplo)
                    near(w, np.linalg.eigvalsh(a))
                    near(a @ v.host, v.host * w.host[..., None, :].astype(dtype), 1000)
                    near(linalg.eigvalsh(there(given), uplo), np.linalg.eigvalsh(a))

    def test_general_eigenvalues(self, machine: SolverMachine, dtype: str, layout: str) -> None:
        for batch in BATCHES:
            for n in (1, 2, 7):
                a = LAYOUTS[layout](numbers((*batch, n, n), dtype))
                w, v = linalg.eig(there(a))
                assert w.dtype == v.dtype == np.result_type(dtype, np.complex64)
                near(a @ v.host, v.host * w.host[..., None, :], 3000)
                near(np.sort_complex(linalg.eigvals(there(a)).host), np.sort_complex(w.host), 3000)

    @pytest.mark.parametrize("driver", [None, "gesvdj", "gesvd", "gesvda"])
    def test_singular_values(self, machine: SolverMachine, dtype: str, layout: str, driver: str | None) -> None:
        for batch in BATCHES:
            for m, n in ((1, 1), (4, 4), (6, 3), (3, 6), (40, 33), (33, 40)):
                a = LAYOUTS[layout](numbers((*batch, m, n), dtype))
                near(linalg.svdvals(there(a), driver=driver), np.linalg.svd(a, compute_uv=False))
                for full in (False, True):
                    if driver == "gesvda" and full and m != n:
                        continue
                    u, s, vh = linalg.svd(there(a), full, driver=driver)
                    k = min(m, n)
                    assert u.shape == (*batch, m, m if full else k) and vh.shape == (*batch, n if full else k, n)
                    near(s, np.linalg.svd(a, compute_uv=False))
                    near((u.host[..., :k] * s.host[..., None, :].astype(dtype)) @ vh.host[..., :k, :], a)
                    near(h(u.host) @ u.host, np.broadcast_to(np.eye(u.shape[-1], dtype=dtype), (*batch, *u.shape[-1:] * 2)))


@pytest.mark.parametrize("op", ["lu_solve", "solve", "solve_triangular", "cholesky_solve"])
def test_batches_broadcast(machine: SolverMachine, op: str) -> None:
    rng = np.random.default_rng(5)
    for shape_a, shape_b in (((2, 1), (1, 3)), ((), (4,)), ((4,), ()), ((2, 3), (3,)), ((12,), (12,))):
        a, b = well((*shape_a, 5, 5), "float64"), rng.standard_normal((*shape_b, 5, 2))
        if op == "lu_solve":
            lu, pivots = linalg.lu_factor(a)
            found = linalg.lu_solve(there(lu), there(pivots), there(b))
        elif op == "cholesky_solve":
            low = np.tril(a)
            a, found = low @ h(low), backline.cholesky_solve(there(b), there(low))
        elif op == "solve":
            found = linalg.solve(there(a), there(b))
        else:
            a = np.triu(a)
            found = linalg.solve_triangular(there(a), there(b), upper=True)
        near(found, np.linalg.solve(a, b), 3000)


@pytest.mark.parametrize("name", ["getrf_batched+getrs", "getrf_batched+getrs_batched", "getrf_batched+trsm_batched+trsm_batched"])
def test_every_way_to_solve_gives_the_same(machine: SolverMachine, name: str) -> None:
    a, b = well((9, 6, 6), "complex128"), numbers((9, 6, 4), "complex128", 1)
    for left in (True, False):
        given = b if left else b.swapaxes(1, 2)
        expected = linalg.solve(a, given, left=left)
        near(machine.run(name, linalg.solve, there(a), there(given), left=left), expected, 1000)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("version", [None, "12.0.4"])
def test_every_algorithm_gives_what_the_first_does(
    machine: SolverMachine, monkeypatch: pytest.MonkeyPatch, dtype: str, version: str | None
) -> None:
    monkeypatch.setattr(CuSOLVER, "version", lambda self: version)
    seen = set()
    for batch in ((), (2,), (9,)):
        for n in (5, 33) if len(batch) and batch[0] == 2 else (5,):
            a, b, p = well((*batch, n, n), dtype), numbers((*batch, n, 3), dtype, 1), positive((*batch, n, n), dtype)
            factors = linalg.lu_factor(a)
            tall = numbers((*batch, n + 4, n), dtype)
            for op, *args in (
                (linalg.inv, a), (linalg.solve, a, b), (linalg.lu_factor, a), (linalg.lu_solve, *factors, b), (linalg.cholesky, p),
                (backline.cholesky_solve, b, np.linalg.cholesky(p)), (backline.cholesky_inverse, np.linalg.cholesky(p)),
                (linalg.eigvalsh, p), (linalg.eigvals, p), (linalg.svdvals, tall), (linalg.lstsq, tall, numbers((*batch, n + 4, 2), dtype)),
                (linalg.qr, tall),
            ):  # fmt: skip
                given = [there(x) for x in args]
                expected = op(*given)
                for name in machine.algorithms(op, *given):
                    seen.add(name)
                    found = machine.run(name, op, *given)
                    for x, y in zip(found, expected, strict=True) if isinstance(found, tuple) else ((found, expected),):
                        near(x, y.host, 1e4)
            for name in machine.algorithms(linalg.eigh, there(p)):
                w, v = machine.run(name, linalg.eigh, there(p))
                near(p @ v.host, v.host * w.host[..., None, :].astype(dtype), 1000)
    assert ("syev_batched" in seen) == (version is not None) and ("syevj_batched" in seen) == (version is None)
    assert {"geqrf+orgqr_any_order", "potrf", "potrf_batched", "gesvd", "syevd_any_order", "geev"} <= seen


class TestWhatIsWrong:
    def test_singular(self, machine: SolverMachine) -> None:
        for batch in ((), (3,)):
            a = np.broadcast_to(np.eye(4), (*batch, 4, 4)).copy()
            a[(1, 2, 2) if batch else (2, 2)] = 0
            where = "item 1 of the batch: " if batch else ""
            sides = there(np.ones((*batch, 4, 1)))
            for call in (linalg.inv, linalg.lu_factor, lambda x, sides=sides: linalg.solve(x, sides)):
                with pytest.raises(LinAlgError, match=rf"{where}the input matrix is singular \(element 3 of the diagonal of U is zero\)"):
                    call(there(a))
            info = linalg.inv_ex(there(a)).info
            assert info.dtype == np.int32 and info.shape == batch
            expected = linalg.inv_ex(a).info
            assert np.array_equal(info.host, expected)
            assert np.array_equal(linalg.lu_factor_ex(there(a)).info.host, expected)
            assert np.array_equal(linalg.solve_ex(there(a), there(np.ones((*batch, 4, 1)))).info.host, expected)

    def test_numbers_that_are_not_finite_spread(self, machine: SolverMachine) -> None:
        a = np.stack([np.eye(3), np.full((3, 3), np.nan), np.zeros((3, 3))])
        a[1, 0] = 0
        found = linalg.inv_ex(there(a))
        assert found.info.host.tolist() == [0, 0, 1]
        assert np.isnan(found.inverse.host[1]).all() and np.array_equal(found.inverse.host[0], np.eye(3))
        assert np.isnan(linalg.inv(there(a[:2])).host[1]).all()
        with pytest.raises(LinAlgError, match="item 2"):
            linalg.inv(there(a))

    def test_not_positive_definite(self, machine: SolverMachine) -> None:
        a = np.stack([np.eye(3), np.diag([1.0, -1, 1]), np.full((3, 3), np.nan)])
        assert linalg.cholesky_ex(there(a)).info.host.tolist() == [0, 2, 1]
        assert int(linalg.cholesky_ex(there(a[1])).info.host) == 2
        with pytest.raises(LinAlgError, match="item 1 of the batch: the leading minor of order 2"):
            linalg.cholesky(there(a))
        with pytest.raises(LinAlgError, match="the leading minor of order 1"):
            linalg.cholesky(there(a[2]))
        with pytest.raises(LinAlgError, match="element 2 of the diagonal is zero"):
            backline.cholesky_inverse(there(np.diag([1.0, 0, 1])))

    @pytest.mark.parametrize("call", [linalg.eigh, linalg.eigvalsh, linalg.eig, linalg.eigvals, linalg.svd, linalg.svdvals,
                                      lambda a: linalg.lstsq(a, there(np.ones((2, 3, 1))))])  # fmt: skip
    def test_not_finite(self, machine: SolverMachine, call: Any) -> None:
        a = np.stack([np.eye(3), np.diag([1, np.inf, 1])])
        with pytest.raises(LinAlgError, match=r"item 1 of the batch: .* NaN or infinity"):
            call(there(a))

    def test_no_full_rank(self, machine: SolverMachine) -> None:
        for shape in ((4, 3), (3, 4), (3, 3)):
            a = np.zeros(shape)
            a[0, 0] = a[1, 1] = 1
            for batch in ((), (9,)):
                given = np.broadcast_to(a, (*batch, *shape)).copy()
                with pytest.raises(LinAlgError, match="no full rank \\(element 3"):
                    linalg.lstsq(there(given), there(np.ones((*batch, shape[0], 1))))

    def test_pivots_that_are_no_rows(self, machine: SolverMachine) -> None:
        lu, pivots = linalg.lu_factor(well((3, 3, 3), "float64"))
        pivots[2, 1] = 4
        machine.forget()
        with pytest.raises(BadValue, match="item 2 of the batch: a pivot is not one of the rows"):
            linalg.lu_solve(there(lu), there(pivots), there(np.ones((3, 3, 1))))
        assert not any("getrs" in name or "trsm" in name for name in machine.names())  # nothing was computed with them

    def test_no_convergence(self, machine: SolverMachine) -> None:
        machine.numbers.unconverged = {0: 3}
        with pytest.raises(LinAlgError, match=r"did not converge \(3 off-diagonal"):
            linalg.eigh(there(positive((32, 32), "float32")))
        machine.numbers.unconverged = {1: 5}
        with pytest.raises(LinAlgError, match="item 1 of the batch: the eigenvalues did not converge"):
            linalg.eigh(there(positive((3, 4, 4), "float64")))

    def test_an_output_over_an_operand(self, machine: SolverMachine) -> None:
        a = there(well((3, 3), "float64"))
        with pytest.raises(BadValue, match="overlaps an operand"):
            linalg.inv(a, out=a)
        memory = np.ones(30)
        with pytest.raises(BadValue, match="overlaps an operand"):
            linalg.lu_factor(a, out=(there(memory[:9].reshape(3, 3)), there(memory[8:].view(np.int32)[:3])))


def test_matrices_that_do_not_converge_are_computed_again(machine: SolverMachine) -> None:
    for shape, dtype in (((3, 5, 4), "complex128"), ((3, 40, 30), "float32"), ((3, 30, 40), "complex64"), ((30, 30), "float64")):
        a = numbers(shape, dtype)
        machine.numbers.unconverged, machine.numbers.seen = {0: min(shape[-2:]) + 1, 2: 3}, 0
        machine.forget()
        u, s, vh = linalg.svd(there(a), False)
        near((u.host * s.host[..., None, :].astype(dtype)) @ vh.host, a)
        assert machine.names().count("xgesvd") == (2 if len(shape) > 2 else 1)
        machine.numbers.seen = 0
        near(linalg.svdvals(there(a)), np.linalg.svd(a, compute_uv=False))


def test_outputs(machine: SolverMachine) -> None:
    a, b = well((2, 4, 4), "float32"), numbers((2, 4, 3), "float32", 1)
    out = there(np.zeros((2, 3, 4), "f4").swapaxes(1, 2))
    assert linalg.solve(there(a), there(b), out=out) is out
    near(out, np.linalg.solve(a, b))
    outs = there(np.zeros((2, 4, 4), "f4")), there(np.zeros((2, 4), "i4")), there(np.zeros(2, "i4"))
    found = linalg.lu_factor_ex(there(a), out=outs)
    assert all(x is y for x, y in zip(found, outs, strict=True))
    near(outs[0], linalg.lu_factor(a).LU)
    assert np.array_equal(outs[1].host, linalg.lu_factor(a).pivots)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3), (0, 3, 3), (0, 2, 3)])
def test_nothing_to_compute(machine: SolverMachine, shape: tuple[int, ...]) -> None:
    a = np.ones(shape)
    machine.forget()
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (linalg.lu_factor, (), {}), (linalg.lu_factor_ex, (), {}), (linalg.svdvals, (), {}), (linalg.svd, (), {}),
        *((linalg.qr, (mode,), {}) for mode in ("reduced", "complete", "r")), (linalg.svd, (False,), {}),
    ]  # fmt: skip
    if shape[-1] == shape[-2]:
        calls += [(f, (), {}) for f in (linalg.inv, linalg.inv_ex, linalg.cholesky, linalg.eigh, linalg.eigvalsh, linalg.eig, linalg.eigvals)]
        calls += [(linalg.solve, (np.ones((*shape[:-1], 2)),), {}), (linalg.solve_ex, (np.ones((*shape[:-2], 2, shape[-1])),), {"left": False})]
        calls += [(linalg.solve_triangular, (np.ones((*shape[:-1], 2)),), {"upper": True}), (backline.cholesky_inverse, (), {})]
    for call, more, keywords in calls:
        found = call(there(a), *(there(x) if isinstance(x, np.ndarray) else x for x in more), **keywords)
        expected = call(a, *more, **keywords)
        found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
        for x, y in zip(found, expected, strict=True):
            assert x.shape == np.shape(y) and x.dtype == np.asarray(y).dtype and np.array_equal(x.host, y), call
    found = linalg.lstsq(there(a), there(np.ones((*shape[:-1], 2))))
    assert found.solution.shape == (*shape[:-2], shape[-1], 2) and not found.solution.host.any()
    assert set(machine.names()) <= {"create", "set_stream"}


def test_no_right_sides(machine: SolverMachine) -> None:
    a = there(well((3, 3), "float64"))
    assert linalg.solve(a, there(np.ones((3, 0)))).shape == (3, 0)
    assert linalg.solve(a, there(np.ones((0, 3))), left=False).shape == (0, 3)


def test_drivers_of_the_device_and_of_the_cpu(machine: SolverMachine) -> None:
    a = numbers((4, 3), "float64")
    with pytest.raises(BadValue, match="CUDA arrays only"):
        linalg.svd(a, driver="gesvdj")
    with pytest.raises(NoKernel, match="the call asks for driver='gesdd'; it has gesvdj, gesvd and gesvda"):
        linalg.svd(there(a), driver="gesdd")
    with pytest.raises(NoKernel, match="gives min"):
        linalg.svd(there(a), driver="gesvda")
    with pytest.raises(NoKernel, match="the call asks for driver='gelsd'; it has gels"):
        linalg.lstsq(there(a), there(a), driver="gelsd")
    with pytest.raises(BadValue, match="one of"):
        linalg.svd(there(a), driver="gesvdx")


def test_interchanges_as_one_permutation(machine: SolverMachine) -> None:
    rng = np.random.default_rng(1)
    for items, n in ((1, 1), (4, 7), (2, 300)):
        pivots = np.array([[rng.integers(i, n) + 1 for i in range(n)] for _ in range(items)], np.int32)
        expected = np.tile(np.arange(n), (items, 1))
        for row, given in zip(expected, pivots, strict=True):
            for i, j in enumerate(given - 1):
                row[[i, j]] = row[[j, i]]
        for room in (row_interchanges.ROOM, 5):
            before, row_interchanges.ROOM = row_interchanges.ROOM, room
            try:
                found = row_interchanges.permutation(there(pivots), n, backwards=False).host
                back = row_interchanges.permutation(there(pivots), n, backwards=True).host
            finally:
                row_interchanges.ROOM = before
            assert np.array_equal(found, expected)
            assert np.array_equal(np.take_along_axis(found, back, 1), np.tile(np.arange(n), (items, 1)))
    wild = np.array([[-5, 10**6, 2]], np.int32)  # as from what is not finite: nothing outside is reached
    assert sorted(row_interchanges.permutation(there(wild), 3, backwards=False).host[0]) == [0, 1, 2]


def test_the_types_are_numbered_as_nvidia_does() -> None:
    import nvmath

    names = {"float32": "CUDA_R_32F", "float64": "CUDA_R_64F", "complex64": "CUDA_C_32F", "complex128": "CUDA_C_64F"}
    for name, number in routine_table.DATA_TYPES.items():
        assert getattr(nvmath.CudaDataType, names[name]) == number
