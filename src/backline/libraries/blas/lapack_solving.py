"""LAPACK's factorisations, inverses, systems and least squares, as steps.

Each method returns its results and what wraps them. Where the mathematics allows, a row-major matrix is handed over as it lies,
and the transposed problem is solved (inverse, Cholesky); LU, systems and least squares take a transposing copy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...native.plan_builder import Pointer
from ...problems.memory_layout import matrix_layout
from ...problems.result_tuples import CholeskyEx, InvEx, Lstsq, LUFactor, LUFactorEx, SolveEx
from .. import fixed_order
from ..kernels.conv_steps import same
from .lapack_parts import Parts
from .lapack_steps import NOT_FINITE, NOT_IN_RANGE

__all__ = ["Solving"]


class Solving(Parts):
    """One method for each operation, named as the operation is."""

    # factorisations ---------------------------------------------------------------------------------------------

    def cholesky(self) -> tuple[list[Pointer], Any]:
        n, upper = self.p.n, self.p.parameter("upper", False)
        order = self.own_order()
        in_lines = self.has_lines(n, order)
        self.b.share_work = self.in_parts or in_lines
        factor = self.result((n, n), order)
        # NaN and infinity are as if the first minor had failed: LAPACKs differ in what they make of them. What the other triangle
        # holds must not matter; potrf leaves the zeros alone.
        if in_lines:
            self.load_triangle(n, order, upper, factor)
        else:
            self.load("a", (n, n), order, factor)
            self.b.triangle("zero_lower" if upper else "zero_upper", (n, n), self.packed((n, n), order), self.dtype, factor)
            self.clear_info()
            self.finite(n * n, factor, 1)
        self.factor_cholesky("U" if upper == (order == "F") else "L", n, factor)
        return self.with_info([factor], None, CholeskyEx)

    def pivots(self, count: int) -> tuple[Pointer, Pointer]:
        """Returns pointers to the pivots that LAPACK writes and to the int32 result that they are converted to."""
        out = self.result((count,), dtype=np.int32)
        if self.native.int_size == 4:
            return out, out
        wide = self.b.work(8 * count)
        self.later.insert(0, lambda: self.b.copy((1, count), wide, (0, 8), out, (0, 4), ("int64", "int32")))
        return wide, out

    def lu_factor(self) -> tuple[list[Pointer], Any]:
        m, n = self.p.m, self.p.n
        lu = self.result((m, n), "F")
        native_pivots, pivots = self.pivots(min(m, n))
        self.load("a", (m, n), "F", lu)
        self.factor_lu(m, n, lu, native_pivots)
        return self.with_info([lu, pivots], LUFactor, LUFactorEx)

    def inv(self) -> tuple[list[Pointer], Any]:
        n = self.p.n
        order = self.own_order()  # the inverse of the transpose is the transpose of the inverse
        out = self.result((n, n), order)
        pivots = self.b.work(self.native.int_size * n)
        if self.routine == "gesv" or self.in_parts:
            a = self.b.work(n * n * self.size)
            self.load("a", (n, n), order, a)
            zeros = self.b.constant(bytes(self.size))
            self.b.copy((n, n), zeros, (0, 0), out, self.packed((n, n), order), self.size)
            self.b.triangle("unit_diagonal", (n, n), self.packed((n, n), order), self.dtype, out)
            if self.in_parts:
                self.factor_lu(n, n, a, pivots)
                self.solve_blocks("{t}getrs", ["N", n], n, [a, n, pivots], out, n, self.b.work(8))
            else:
                self.lapack("{t}gesv", n, n, a, n, pivots, out, n, self.info())
            return self.with_info([out], None, InvEx)
        self.load("a", (n, n), order, out)
        self.invert(out, pivots)
        return self.with_info([out], None, InvEx)

    # solving ----------------------------------------------------------------------------------------------------

    def right_sides(self, rows: int, order: str) -> tuple[Pointer, int]:
        """The right-hand sides, copied to where the solution will be; and how many there are."""
        vector = self.p.parameter("vector", False)
        x = self.result((rows,) if vector else (rows, self.p.k) if order == "F" else (self.p.k, rows), order)
        shape = (rows, self.p.k) if order == "F" else (self.p.k, rows)
        self.load("b", shape, order, x, core=1 if vector else 2)
        return x, self.p.k

    def solve(self) -> tuple[list[Pointer], Any]:
        n, left = self.p.n, self.p.parameter("left", True)
        lu = self.b.work(n * n * self.size)
        pivots = self.b.work(self.native.int_size * n)
        # X A = B is A^T X^T = B^T, and rows of B are columns of B^T. What is factored is the matrix of that system and never its
        # transpose, though copying it as it lies would be faster. Rows are exchanged by the size of elements in one column, so
        # factors of A times a diagonal matrix are those of A, times it: columns of different magnitudes cost no digits. Factors
        # of the transpose lose up to 7 bits of a solution there.
        self.load("a", (n, n), "F" if left else "C", lu)
        x, k = self.right_sides(n, "F" if left else "C")
        self.factor_lu(n, n, lu, pivots)
        self.solve_blocks("{t}getrs", ["N", n], k, [lu, n, pivots], x, n, self.b.work(8))
        return self.with_info([x], None, SolveEx)

    def lu_solve(self) -> tuple[list[Pointer], Any]:
        n, left, adjoint = self.p.n, self.p.parameter("left", True), self.p.parameter("adjoint", False)
        lu = self.b.work(n * n * self.size)
        self.load("a", (n, n), "F", lu)
        o = self.p.get("p")
        assert o is not None
        given = self.b.argument("p", self.p.where("p", 1))
        pivots = self.b.work(self.native.int_size * n)
        # getrs swaps rows by these numbers without looking at them: any other would reach memory that is not ours.
        self.clear_info()
        info = (self.info()[0], 0, 0) if self.in_parts else self.info()
        at = fixed_order.alone(given) if self.in_parts else given
        self.checks.append(lambda: self.b.within(n, o.strides[-1], 1, n, at, info, NOT_IN_RANGE))
        self.checked_again()
        kind = ("int32", "int64") if self.native.int_size == 8 else 4
        self.b.copy((1, n), given, (0, o.strides[-1]), pivots, (0, self.native.int_size), kind)
        x, k = self.right_sides(n, "F" if left else "C")
        # X A^H = B is conj(A) X^T = B^T: conjugate what goes in and what comes out.
        conjugate = self.complex and adjoint and not left
        packed = (n * self.size, self.size)
        if conjugate:
            self.b.copy((k, n), x, packed, x, packed, ("conj", self.size))
        trans = ("C" if adjoint else "N") if left else ("N" if adjoint else "T")
        self.solve_blocks("{t}getrs", [trans, n], k, [lu, n, pivots], x, n, self.info())
        if conjugate:
            self.b.copy((k, n), x, packed, x, packed, ("conj", self.size))
        return self.returned(x), None

    def cholesky_solve(self) -> tuple[list[Pointer], Any]:
        n, upper = self.p.n, self.p.parameter("upper", False)
        factor, order, ld = self.as_it_lies()
        x, k = self.right_sides(n, "F")
        # Rows taken for columns are the factor's transpose: a factor of the conjugate matrix, in the other triangle.
        flip, packed = order == "C", (n * self.size, self.size)
        conjugate = self.complex and flip
        if conjugate:
            self.b.copy((k, n), x, packed, x, packed, ("conj", self.size))
        triangle = "U" if upper != flip else "L"
        if self.by_threads:
            self.solve_in_panels(triangle == "U", n, k, factor, ld, x)
        else:
            self.clear_info()
            self.solve_blocks("{t}potrs", [triangle, n], k, [factor, ld], x, n, self.info())
        if conjugate:
            self.b.copy((k, n), x, packed, x, packed, ("conj", self.size))
        return self.returned(x), None

    def as_it_lies(self) -> tuple[Pointer, str, int]:
        """Returns a square matrix that is only read, its order, and its leading dimension; a copy where it has no such order."""
        n, o = self.p.n, self.p.get("a")
        assert o is not None
        a, strides, layout = self.source("a")
        ld = matrix_layout(o.shape[-2:], strides, self.size, o.aligned)[1]
        if layout != "X":
            return a, layout, ld
        target = self.b.work(n * n * self.size)
        self.b.copy((n, n), a, strides, target, self.packed((n, n), "C"), self.size)
        return target, "C", n

    def cholesky_inverse(self) -> tuple[list[Pointer], Any]:
        n, upper = self.p.n, self.p.parameter("upper", False)
        order = self.own_order()
        out = self.result((n, n), order)
        self.load("a", (n, n), order, out)
        self.lapack("{t}potri", "U" if upper == (order == "F") else "L", n, out, n, self.info())
        mode = "mirror_upper" if upper else "mirror_lower"
        self.b.triangle(mode, (n, n), self.packed((n, n), order), self.dtype, out)
        return self.returned(out), None

    def solve_triangular(self) -> tuple[list[Pointer], Any]:
        p, n, k = self.p, self.p.n, self.p.k
        left, upper = p.parameter("left", True), p.parameter("upper", False)
        a, layout, ld = self.as_it_lies()
        order = self.own_order("b")
        shape = (n, k) if left else (k, n)
        x = self.result(shape, order)
        self.load("b", shape, order, x)
        # A in the other order is its transpose, with the other triangle.
        flip = layout != order
        head = [
            101 if order == "C" else 102, 141 if left else 142, 121 if upper != flip else 122, 112 if flip else 111,
            132 if p.parameter("unitriangular", False) else 131,
        ]  # fmt: skip
        ld_x = shape[1] if order == "C" else shape[0]
        blocks = self.right_blocks(k)
        sizes = k if len(blocks) == 1 else same([s for _, s in blocks])
        step = self.size if (order == "C") == left else ld_x * self.size  # from one right-hand side to the next
        at = x
        if len(blocks) > 1:
            self.b.each()
            at, a = fixed_order.places(x, 1, [c * step for c, _ in blocks]), fixed_order.alone(a)
        sides = (n, sizes) if left else (sizes, n)
        self.cblas("trsm", *head, *sides, self.factor(1), a, ld, at, ld_x)
        if len(blocks) > 1:
            self.share(len(blocks))
        return self.returned(x), None

    def lstsq(self) -> tuple[list[Pointer], Any]:
        p, m, n, k, driver = self.p, self.p.m, self.p.n, self.p.k, self.routine
        rows, least = max(m, n), min(m, n)
        a = self.b.work(m * n * self.size)
        x = self.result((rows, k), "F")
        rank = self.result((), dtype=np.int32 if self.native.int_size == 4 else np.int64)
        s = self.result((least,), dtype=self.real)
        self.load("a", (m, n), "F", a)
        self.load("b", (m, k), "F", x, ld=rows, core=1 if p.parameter("vector", False) else 2)
        # For every driver: MKL prints a complaint and stops at NaN, others compute on, and ranks lose their meaning.
        self.finite(m * n, a)
        self.b.finite((k, m), (rows * self.size, self.size), self.dtype, x, self.info(), NOT_FINITE)
        rcond = self.b.constant(np.array(p.parameter("rcond"), self.real).tobytes())
        # The largest of the three drivers' documented sizes (gelsd's, for up to 32 levels of its tree).
        rsize = 10 * rows + 2 * 25 * rows + 8 * 32 * rows + 3 * 25 * k + max(26**2, rows * (1 + k) + 2 * k)
        rwork = [self.b.work(self.real.itemsize * rsize)] if self.complex else []
        spare = [None] if self.complex else []
        if driver == "gels":
            lwork, _ = self.workspace("{t}gels", "N", m, n, k, None, m, None, rows, "work", "lwork", None)
            self.lapack("{t}gels", "N", m, n, k, a, m, x, rows, self.b.work(lwork * self.size), lwork, self.info())
        elif driver == "gelsy":
            jpvt = self.b.work(self.native.int_size * n)
            zeros = self.b.constant(bytes(8))
            self.b.copy((1, n), zeros, (0, 0), jpvt, (0, self.native.int_size), self.native.int_size)
            lwork, _ = self.workspace("{t}gelsy", m, n, k, None, m, None, rows, None, None, None, "work", "lwork", *spare, None)
            self.lapack(
                "{t}gelsy", m, n, k, a, m, x, rows, jpvt, rcond, rank, self.b.work(lwork * self.size), lwork, *rwork, self.info()
            )
        else:
            extra: list[Any] = []
            asked: list[Any] = list(spare)
            if driver == "gelsd":
                extra = [self.b.work(self.native.int_size * (3 * least * 32 + 11 * least + 64))]
                asked.append("iwork")
            lwork, _ = self.workspace(
                "{t}" + driver, m, n, k, None, m, None, rows, None, None, None, "work", "lwork", *asked, None
            )
            self.lapack(
                "{t}" + driver, m, n, k, a, m, x, rows, s, rcond, rank, self.b.work(lwork * self.size), lwork, *rwork, *extra,
                self.info(),
            )  # fmt: skip
        return self.returned(x, rank, s), partial(_least_squares, driver, m, n, p.parameter("vector", False))


def _least_squares(driver: str, m: int, n: int, vector: bool, x: Any, rank: Any, s: Any) -> Lstsq:
    solution = x[..., :n, :]
    residuals = np.empty(0, s.dtype)
    full = driver == "gels" or bool(np.all(rank == n))
    if m > n and driver != "gelsy" and full:
        residuals = np.sum(np.abs(x[..., n:, :]) ** 2, axis=-2).astype(s.dtype, copy=False)  # of a vector too, one
    if vector:
        solution = solution[..., 0]
    ranks = np.empty(0, np.int64) if driver == "gels" else np.asarray(rank, np.int64)[()]
    values = s if driver in ("gelsd", "gelss") else np.empty(0, s.dtype)
    return Lstsq(solution, residuals, ranks, values)
