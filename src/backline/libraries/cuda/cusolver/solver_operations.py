"""The operations of linear algebra by cuSOLVER's and cuBLAS's routines: what is copied, called in which order, and returned.

LU, QR and least squares work on copies of the matrices, column by column. Factors that are only read are taken as they lie
where their columns are in one piece; a triangle also where its rows are. Results have the memory order that costs nothing.

A call waits for the device only where something it computes decides whether it raises: `info` of an operation that is no
``..._ex``, convergence, pivots that are no rows. Every other call returns before the work is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ....errors import BadValue, LinAlgError
from ....problems.linalg_problem import LinalgProblem, not_finite
from ....problems.memory_layout import matrix_layout
from ...blas.lapack import BAD_PIVOTS, meaning
from ..common.device_plan import at
from .matrix_stacks import ADJOINT, LEFT, LOWER, PLAIN, RIGHT, TRANSPOSED, UPPER
from .row_interchanges import permutation
from .singular_values import singular

__all__ = ["OPERATIONS", "Call", "raise_first"]

NOT_FINITE = -9999
Arrays = dict[str, Any]


def raise_first(op: str, infos: Any) -> None:
    """Raise the `LinAlgError` that the first info that is not 0 means."""
    found = np.asarray(infos).reshape(-1)
    for item, info in enumerate(found):
        if info:
            where = f"item {item} of the batch: " if len(found) > 1 else ""
            if info == NOT_FINITE:
                raise LinAlgError(f"{op}: {where}{not_finite(op)}")
            raise LinAlgError(f"{op}: {where}{meaning(op, info)}")


class _Reading(NamedTuple):
    """Matrices that are only read: where the first lies, bytes to the next, leading dimension, whether rows are its columns."""

    at: int
    step: int
    ld: int
    flipped: bool
    kept: Any


class Call:
    """One call: the Problem, its arrays, and the routines (`Solver`, or what has methods of the same names)."""

    def __init__(self, p: LinalgProblem, solver: Any, arrays: Arrays) -> None:
        self.p, self.s, self.xp, self.arrays = p, solver, solver.xp, arrays
        self.ways = solver.settings.recipe.ways

    def items(self, role: str = "a", core: int = 2) -> Any:
        """An operand as (items, ...), its batch broadcast; a view where that can be."""
        array = self.arrays[role]
        shape = array.shape[array.ndim - core :]
        return self.xp.broadcast_to(array, (*self.p.batch, *shape)).reshape(self.p.items, *shape)

    def sides(self) -> Any:
        """Right-hand sides as (items, rows, columns)."""
        return self.items("b", 1)[:, :, None] if self.p.parameter("vector", False) else self.items("b")

    def reading(self, role: str, rows_too: bool) -> _Reading:
        """A matrix operand for a routine that does not write to it, copied unless it lies as it may."""
        o, size, step = self.p.get(role), self.s.dtype.itemsize, self.p.where(role)
        assert o is not None
        layout, ld = matrix_layout(o.shape[-2:], o.strides[-2:], size, o.aligned)
        if isinstance(step, int) and (layout == "F" or (layout == "C" and rows_too)):
            return _Reading(at(self.arrays[role]), step, ld, layout == "C", None)
        return _reading(self.s.stack(self.items(role)))

    def batched(self, array: Any) -> Any:
        """(items, ...) as (*batch, ...)."""
        return array.reshape(*self.p.batch, *array.shape[1:])

    def matrices(self, stack: Any) -> Any:
        return self.batched(stack).swapaxes(-1, -2)

    def finite(self, array: Any) -> Any:
        return self.xp.isfinite(array).all(axis=(1, 2))

    def identity(self) -> Any:
        x = self.s.empty(self.p.items, self.p.n, self.p.n)
        x[...] = self.xp.eye(self.p.n, dtype=self.s.dtype)
        return x

    def solution(self, x: Any, left: bool = True) -> Any:
        """Solutions from their stack, which holds their transposes where A stood on the right."""
        if self.p.parameter("vector", False):
            return self.batched(x[:, 0, :])
        return self.matrices(x) if left else self.batched(x)

    # LU ---------------------------------------------------------------------------------------------------------

    def factors(self) -> tuple[Any, Any, Any]:
        """LU of A: factors, pivots and info."""
        m, n = self.p.m, self.p.n
        lu, info = self.s.stack(self.items()), self.s.infos(self.p.items)
        many = self.ways[0] == "getrf_batched"
        pivots = self.s.empty(self.p.items, min(m, n), dtype=np.int32 if many else np.int64)
        (self.s.getrf_batched if many else self.s.getrf)(lu, pivots, info)
        return lu, pivots, info

    def solve_by(self, lu: _Reading, pivots: Any, x: Any, op: int) -> Any:
        """Solve op(A) X = x by the factors of A; the result may be x itself."""
        way = self.ways[-1]
        if way == "getrs":
            self.s.getrs(op, lu.at, lu.step, lu.ld, pivots.astype(np.int64, copy=False), x, self.s.infos(self.p.items))
            return x
        pivots = pivots.astype(np.int32, copy=False)
        if way == "getrs_batched":
            self.s.getrs_batched(op, lu.at, lu.step, lu.ld, pivots, x)
            return x
        many = way == "trsm_batched"
        where = (lu.at, lu.step, lu.ld)
        order = permutation(pivots, self.p.n, backwards=op != PLAIN)[:, None, :]
        if op == PLAIN:
            x = self.xp.ascontiguousarray(self.xp.take_along_axis(x, order, axis=2))
            self.s.trsm(LEFT, LOWER, PLAIN, True, *where, x, batched=many)
            self.s.trsm(LEFT, UPPER, PLAIN, False, *where, x, batched=many)
            return x
        self.s.trsm(LEFT, UPPER, op, False, *where, x, batched=many)
        self.s.trsm(LEFT, LOWER, op, True, *where, x, batched=many)
        return self.xp.take_along_axis(x, order, axis=2)

    def with_info(self, first: Any, others: tuple[Any, ...], info: Any) -> tuple[Any, ...]:
        """Results of what rests on LU, whose first is NaN for matrices that are not finite, which count as not singular."""
        a, xp = self.items(), self.xp
        if self.p.parameter("check", True):
            host = info.get()
            if host.any():
                spoilt = ~self.finite(a).get() & (host != 0)
                raise_first(self.p.op, np.where(spoilt, 0, host))
                xp.copyto(first, np.nan, where=xp.asarray(spoilt)[:, None, None])
            return (first, *others)
        spoilt = ~self.finite(a) & (info != 0)
        xp.copyto(first, np.nan, where=spoilt[:, None, None])
        info = xp.where(spoilt, 0, info).astype(np.int32)
        return (first, *others, info.reshape(self.p.batch))


def _reading(stack: Any) -> _Reading:
    return _Reading(at(stack), stack.strides[0], stack.shape[2], False, stack)


def lu_factor(c: Call) -> tuple[Any, ...]:
    lu, pivots, info = c.factors()
    interchanges = c.batched(pivots.astype(np.int32, copy=False))
    lu, *others = c.with_info(lu, (interchanges,), info)
    return (c.matrices(lu), *others)


def inv(c: Call) -> tuple[Any, ...]:
    lu, pivots, info = c.factors()
    x = c.solve_by(_reading(lu), pivots, c.identity(), PLAIN)
    x, *others = c.with_info(x, (), info)
    return (c.matrices(x), *others)


def solve(c: Call) -> tuple[Any, ...]:
    left = c.p.parameter("left", True)
    lu, pivots, info = c.factors()
    # X A = B is A.T X.T = B.T, whose columns are the rows of B.
    x = c.s.stack(c.sides() if left else c.sides().swapaxes(1, 2))
    x = c.solve_by(_reading(lu), pivots, x, PLAIN if left else TRANSPOSED)
    x, *others = c.with_info(x, (), info)
    return (c.solution(x, left), *others)


def lu_solve(c: Call) -> tuple[Any, ...]:
    left, adjoint = c.p.parameter("left", True), c.p.parameter("adjoint", False)
    pivots = c.items("p", 1)
    wrong = ((pivots < 1) | (pivots > c.p.n)).any(axis=1).get()
    if wrong.any():
        where = f"item {int(wrong.argmax())} of the batch: " if len(wrong) > 1 else ""
        raise BadValue(f"{c.p.op}: {where}{BAD_PIVOTS}", remedy="pivots as lu_factor returns them")
    pivots = c.xp.ascontiguousarray(pivots)
    x = c.s.stack(c.sides() if left else c.sides().swapaxes(1, 2))
    # X A^H = B is conj(A) X.T = B.T, and so A conj(X.T) = conj(B.T).
    conjugate = adjoint and not left and c.s.complex
    if conjugate:
        x = x.conj()
    op = (ADJOINT if adjoint else PLAIN) if left else (PLAIN if adjoint else TRANSPOSED)
    x = c.solve_by(c.reading("a", rows_too=False), pivots, x, op)
    return (c.solution(x.conj() if conjugate else x, left),)


# --- triangles and Cholesky ------------------------------------------------------------------------------------------


def solve_triangular(c: Call) -> tuple[Any, ...]:
    p = c.p
    left, upper, unit = p.parameter("left", True), p.parameter("upper", False), p.parameter("unitriangular", False)
    a, x = c.reading("a", rows_too=True), c.s.stack(c.sides())
    uplo, op = (UPPER if upper != a.flipped else LOWER), (TRANSPOSED if a.flipped else PLAIN)
    many = c.ways[0] == "trsm_batched"
    c.s.trsm(LEFT if left else RIGHT, uplo, op, unit, a.at, a.step, a.ld, x, batched=many)
    return (c.matrices(x),)


def _by_cholesky(c: Call, x: Any) -> None:
    upper = c.p.parameter("upper", False)
    if c.ways[0] == "potrs":
        a = c.reading("a", rows_too=False)
        c.s.potrs(UPPER if upper else LOWER, a.at, a.step, a.ld, x, c.s.infos(c.p.items))
        return
    # Of complex rows the conjugate would be wanted, which the routine does not take.
    a = c.reading("a", rows_too=not c.s.complex)
    many = c.ways[0] == "trsm_batched"
    uplo = UPPER if upper != a.flipped else LOWER
    for op in (ADJOINT, PLAIN) if upper else (PLAIN, ADJOINT):
        turned = PLAIN if op == ADJOINT else TRANSPOSED
        c.s.trsm(LEFT, uplo, turned if a.flipped else op, False, a.at, a.step, a.ld, x, batched=many)


def cholesky_solve(c: Call) -> tuple[Any, ...]:
    x = c.s.stack(c.sides())
    _by_cholesky(c, x)
    return (c.matrices(x),)


def _zero_on_diagonal(c: Call, matrices: Any) -> Any:
    """Index from 1 of the first zero on each diagonal, or 0."""
    zero = c.xp.diagonal(matrices, axis1=1, axis2=2) == 0
    return c.xp.where(zero.any(axis=1), zero.argmax(axis=1) + 1, 0)


def cholesky_inverse(c: Call) -> tuple[Any, ...]:
    x = c.identity()
    _by_cholesky(c, x)
    raise_first(c.p.op, _zero_on_diagonal(c, c.items()).get())
    return (c.matrices(x),)


def cholesky(c: Call) -> tuple[Any, ...]:
    upper = c.p.parameter("upper", False)
    a = c.items()
    triangle = c.xp.triu(a) if upper else c.xp.tril(a)
    factor, info = c.s.stack(triangle), c.s.infos(c.p.items)
    many = c.ways[0] == "potrf_batched"
    (c.s.potrf_batched if many else c.s.potrf)(UPPER if upper else LOWER, factor, info)
    # The batched routine writes over the other triangle. A stack holds columns, so the triangles change places.
    factor = c.xp.tril(factor) if upper else c.xp.triu(factor)
    # What is not finite counts as if the first minor had failed.
    info = c.xp.where(c.finite(triangle), info, 1).astype(np.int32)
    if c.p.parameter("check", True):
        raise_first(c.p.op, info.get())
        return (c.matrices(factor),)
    return c.matrices(factor), info.reshape(c.p.batch)


# --- QR and least squares --------------------------------------------------------------------------------------------


def qr(c: Call) -> tuple[Any, ...]:
    p, mode = c.p, c.p.parameter("mode", "reduced")
    m, n = p.m, p.n
    k = min(m, n)
    columns = m if mode == "complete" else k
    factored, tau, info = c.s.stack(c.items()), c.s.empty(p.items, k), c.s.infos(p.items)
    if c.ways[0] == "geqrf_batched":
        c.s.geqrf_batched(factored, tau)
    else:
        c.s.geqrf(factored, tau, info)
    r = c.batched(c.xp.triu(factored[:, :, :columns].swapaxes(1, 2)))
    if mode == "r":
        return c.s.empty(0), r
    q = factored[:, :columns, :]
    if columns > n:
        q = c.s.empty(p.items, columns, m)
        q[:, :k, :] = factored[:, :k, :]
    c.s.orgqr(q, k, tau, info)
    return c.matrices(q), r


def lstsq(c: Call) -> tuple[Any, ...]:
    p, xp, s = c.p, c.xp, c.s
    m, n, k, items = p.m, p.n, p.k, p.items
    a, b = c.items(), c.sides()
    ok = c.finite(a) & c.finite(b)
    info = s.infos(items)
    tau = s.empty(items, min(m, n))
    many = "trsm_batched" in c.ways
    if m >= n:
        factored, x = s.stack(a), s.stack(b)
        if c.ways[0] == "gels_batched":
            s.gels_batched(factored, x, info)
            short = info
        else:
            s.geqrf(factored, tau, info)
            s.ormqr(ADJOINT if s.complex else TRANSPOSED, factored, tau, x, info)
            short = _zero_on_diagonal(c, factored[:, :, :n])
            s.trsm(LEFT, UPPER, PLAIN, False, at(factored), factored.strides[0], m, x, rows=n, batched=many)
    else:
        # A^H = Q R, and X = Q times the solution of R^H Y = B.
        factored, x = s.empty(items, m, n), xp.zeros((items, k, n), s.dtype)
        factored[...] = a.conj()
        x[:, :, :m] = b.swapaxes(1, 2)
        s.geqrf(factored, tau, info)
        short = _zero_on_diagonal(c, factored[:, :, :m])
        s.trsm(LEFT, UPPER, ADJOINT, False, at(factored), factored.strides[0], n, x, rows=m, batched=many)
        s.ormqr(PLAIN, factored, tau, x, info)
    raise_first(p.op, xp.where(ok, short, NOT_FINITE).get())
    residuals = s.empty(0, dtype=s.real)
    if m > n:
        residuals = c.batched(xp.sum(xp.abs(x[:, :, n:]) ** 2, axis=2).astype(s.real, copy=False))
    return c.solution(x[:, :, :n]), residuals, xp.empty((0,), np.int64), s.empty(0, dtype=s.real)


# --- eigenvalues and singular values ---------------------------------------------------------------------------------


def _made_finite(c: Call, stack: Any) -> Any:
    """Tells which matrices are finite, and makes the others so, since the methods may not come to an end with NaN."""
    finite = c.xp.isfinite(stack)
    c.xp.copyto(stack, 0, where=~finite)
    return finite.all(axis=(1, 2))


def _symmetric(c: Call, vectors: bool) -> tuple[Any, ...]:
    p, lower, way = c.p, c.p.parameter("UPLO", "L") == "L", c.ways[0]
    # The other triangle is not read, and may hold anything.
    v = c.s.stack((c.xp.tril if lower else c.xp.triu)(c.items()))
    w, info = c.s.empty(p.items, p.n, dtype=c.s.real), c.s.infos(p.items)
    ok = _made_finite(c, v)
    uplo = LOWER if lower else UPPER
    if way.startswith("syevj"):
        c.s.syevj(vectors, uplo, v, w, info, batched=way == "syevj_batched")
    else:
        (c.s.syev_batched if way == "syev_batched" else c.s.syevd)(vectors, uplo, v, w, info)
    raise_first(p.op, c.xp.where(ok, info, NOT_FINITE).get())
    return (c.batched(w), c.matrices(v)) if vectors else (c.batched(w),)


def _general(c: Call, vectors: bool) -> tuple[Any, ...]:
    p, xp, s = c.p, c.xp, c.s
    values = np.result_type(s.dtype, np.complex64)
    a, info = s.stack(c.items()), s.infos(p.items)
    ok = _made_finite(c, a)
    w = s.empty(p.items, p.n, dtype=values)
    v = s.empty(p.items, p.n, p.n) if vectors else None
    s.geev(a, w, v, info)
    raise_first(p.op, xp.where(ok, info, NOT_FINITE).get())
    if v is None:
        return (c.batched(w),)
    if not s.complex:
        # A pair's first column is the real part, its second the imaginary part.
        first, second = (w.imag > 0)[:, :, None], (w.imag < 0)[:, :, None]
        paired = xp.where(first, v + 1j * xp.roll(v, -1, axis=1), xp.where(second, xp.roll(v, 1, axis=1) - 1j * v, v))
        v = paired.astype(values, copy=False)
    return c.batched(w), c.matrices(v)


def _singular(c: Call, vectors: bool) -> tuple[Any, ...]:
    p, xp, way = c.p, c.xp, c.ways[0]
    a = c.items()
    ok = c.finite(a)
    finite = xp.where(ok[:, None, None], a, 0)
    full = vectors and bool(p.parameter("full_matrices", True))
    u, values, vh, info = singular(c.s, way, finite, vectors, full)
    found = xp.where(ok, info, NOT_FINITE).get()
    failed = np.flatnonzero(found > 0)
    if way.startswith("gesvdj") and failed.size:
        # They took too many sweeps; what takes longer goes on where it must.
        chosen = xp.asarray(failed)
        *again, info = singular(c.s, "gesvd", finite[chosen], vectors, full)
        found[failed] = info.get()
        for whole, part in zip((u, values, vh) if vectors else (values,), again if vectors else again[1:2], strict=True):
            whole[chosen] = part
    raise_first(p.op, found)
    return tuple(map(c.batched, (u, values, vh) if vectors else (values,)))


OPERATIONS: dict[str, Callable[[Call], tuple[Any, ...]]] = {
    "linalg.cholesky": cholesky, "linalg.lu_factor": lu_factor, "linalg.inv": inv, "linalg.solve": solve,
    "linalg.lu_solve": lu_solve, "linalg.solve_triangular": solve_triangular, "cholesky_solve": cholesky_solve,
    "cholesky_inverse": cholesky_inverse, "linalg.qr": qr, "linalg.lstsq": lstsq,
    "linalg.eigh": lambda c: _symmetric(c, True), "linalg.eigvalsh": lambda c: _symmetric(c, False),
    "linalg.eig": lambda c: _general(c, True), "linalg.eigvals": lambda c: _general(c, False),
    "linalg.svd": lambda c: _singular(c, True), "linalg.svdvals": lambda c: _singular(c, False),
}  # fmt: skip
"""Operation -> its results, before a given output or a named tuple takes them."""
