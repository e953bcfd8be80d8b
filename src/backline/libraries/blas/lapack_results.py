"""Results made of LAPACK's factors and spectra in one plan: determinants, P L U, ranks, condition numbers, inverses, powers.

Each method returns its results and what wraps them, as those of the operations it goes on from.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ... import _kernels
from ...native.plan_builder import Pointer
from ...problems.contraction_planner import chain_path
from ...problems.result_tuples import LU, Slogdet
from ...problems.taylor_polynomials import NORMS as TAYLOR_NORMS
from ...problems.taylor_polynomials import T8_INNER, T8_OUTER, T8_SQUARE, T12, T18, X3
from .cblas import LETTER
from .lapack_spectra import Spectra

__all__ = ["INVERSE_NORMS", "Results"]

# Kinds of what is read off singular values, in the order of matrix_results.cpp.
RANK, CONDITION, INVERSE_CONDITION, NUCLEAR_CONDITION, NUCLEAR, LARGEST, SMALLEST = range(7)
CONDITIONS = {None: CONDITION, 2: CONDITION, -2: INVERSE_CONDITION, "nuc": NUCLEAR_CONDITION}
NORMS = {"nuc": NUCLEAR, 2: LARGEST, -2: SMALLEST}
# Norms of a matrix and its inverse, in the order of matrix_results.cpp; and what is added where the inverse lies in columns.
INVERSE_NORMS, IN_COLUMNS = (1, -1, math.inf, -math.inf, "fro"), 8
TOLERANT = ("linalg.matrix_rank", "linalg.pinv")  # small singular values count as 0


class Results(Spectra):
    """One method for each operation, named as the operation is."""

    def described(self, *, kind: int = 0, row: int = 0, column: int = 0) -> Pointer:
        """The constants of a kernel in matrix_results.cpp; strides are the matrix' own unless they are given."""
        o = self.p.operands[0]
        steps = (row, column) if row else o.strides[-2:]
        atol, rtol = self.p.parameter("atol"), self.p.parameter("rtol")
        if rtol is None:  # torch's default
            takes = self.p.op in TOLERANT and not (atol is not None and atol > 0)
            rtol = max(self.p.m, self.p.n) * float(np.finfo(self.real).eps) if takes else 0.0
        integers = (self.real.itemsize, self.complex, self.p.m, self.p.n, self.native.int_size, *steps, kind)
        return self.b.packed("<8q2d", *integers, atol or 0.0, rtol)

    def factors(self, order: str) -> tuple[Pointer, Pointer]:
        """LU factors and pivots in workspace."""
        m, n = self.p.m, self.p.n
        lu, pivots = self.b.work(m * n * self.size), self.b.work(self.native.int_size * min(m, n))
        self.load("a", (m, n), order, lu)
        self.factor_lu(m, n, lu, pivots)
        return lu, pivots

    def determinant(self, logarithm: bool) -> list[Pointer]:
        # The matrix or its transpose, as it lies.
        lu, pivots = self.factors(self.own_order())
        results = [self.result(())] + ([self.result((), dtype=self.real)] if logarithm else [])
        to = [*results, 0][:2]
        source = self.source("a")[0]
        self.b.call(_kernels.addresses["determinant"], [self.described(kind=logarithm), source, lu, pivots, self.info(), *to])
        return results

    def det(self) -> tuple[list[Pointer], Any]:
        return self.determinant(False), None

    def slogdet(self) -> tuple[list[Pointer], Any]:
        return self.determinant(True), Slogdet

    def lu(self) -> tuple[list[Pointer], Any]:
        m, n = self.p.m, self.p.n
        k = min(m, n)
        lu, pivots = self.factors("F")
        results = [self.result((m, m)), self.result((m, k)), self.result((k, n))]
        arguments = [self.described(), self.source("a")[0], lu, pivots, self.info(), *results, self.b.work(8 * m)]
        self.b.call(_kernels.addresses["lu_triangles"], arguments)
        return results, LU

    def summary(self, kind: int, dtype: Any, shape: tuple[int, ...] = ()) -> tuple[list[Pointer], Any]:
        """A number for each matrix, from its singular values."""
        (values,), _ = self.singular(False, shown=False)
        result = self.b.result(np.dtype(dtype), (*self.p.batch, *shape), "C", np.dtype(dtype).itemsize)
        self.b.call(_kernels.addresses["singular_summary"], [self.described(kind=kind), values, result])
        return [result], None

    def matrix_rank(self) -> tuple[list[Pointer], Any]:
        return self.summary(RANK, np.int64)

    def cond(self) -> tuple[list[Pointer], Any]:
        norm = self.p.parameter("p")
        return self.summary(CONDITIONS[norm], self.real) if norm in CONDITIONS else self.condition_of_inverse(norm)

    def condition_of_inverse(self, norm: Any) -> tuple[list[Pointer], Any]:
        n, order = self.p.n, self.own_order()
        inverse, pivots = self.b.work(n * n * self.size), self.b.work(self.native.int_size * n)
        self.load("a", (n, n), order, inverse)
        self.invert(inverse, pivots)
        result = self.result((), dtype=self.real)
        kind = INVERSE_NORMS.index(norm) + (IN_COLUMNS if order == "F" else 0)
        arguments = [self.described(kind=kind), self.source("a")[0], inverse, self.info(), result]
        self.b.call(_kernels.addresses["inverse_condition"], arguments)
        return [result], None

    def matrix_norm(self) -> tuple[list[Pointer], Any]:
        return self.summary(NORMS[self.p.parameter("ord")], self.real, (1, 1) if self.p.parameter("keepdim") else ())

    def pinv(self) -> tuple[list[Pointer], Any]:
        m, n = self.p.m, self.p.n
        k = min(m, n)
        (u, s, vh), _ = self.singular(True, shown=False, order="C")
        result = self.result((n, m))
        self.b.call(_kernels.addresses["divided_rows"], [self.described(kind=n, row=n, column=1), s, vh])
        self.gemm((n, m, k), (vh, n), (u, k), result, adjoint=True)
        return [result], None

    def gemm(
        self, sizes: tuple[int, int, int], a: tuple[Pointer, int], b: tuple[Pointer, int], c: Pointer, *, adjoint: bool = False
    ) -> None:
        """The product of two matrices of rows, or with `adjoint` of their adjoints."""
        m, n, k = sizes
        flag = (113 if self.complex else 112) if adjoint else 111
        one, zero = (self.b.number(v, self.dtype) if self.complex else self.dtype.type(v) for v in (1, 0))
        function = self.native.cblas(LETTER[self.dtype.name] + "gemm")
        self.b.call(function, [101, flag, flag, m, n, k, one, *a, *b, zero, c, n])

    def matrix_power(self) -> tuple[list[Pointer], Any]:
        n, left = self.p.n, self.p.parameter("n")
        nbytes = n * n * self.size
        square = self.b.work(nbytes)
        self.load("a", (n, n), "C", square)
        spare = [self.b.work(nbytes) for _ in range(3)]
        out = self.result((n, n))
        product: Pointer | None = None
        sizes = (n, n, n)
        while True:
            if left & 1:
                last = left == 1
                if product is None:
                    product = square
                else:
                    target = out if last else next(w for w in spare if w not in (product, square))
                    self.gemm(sizes, (product, n), (square, n), target)
                    product = target
            left >>= 1
            if not left:
                break
            target = out if left == 1 and product is None else next(w for w in spare if w not in (product, square))
            self.gemm(sizes, (square, n), (square, n), target)
            square = target
        return [out], None

    def multi_dot(self) -> tuple[list[Pointer], Any]:
        out = self.result((self.p.m, self.p.n))
        parts = []  # partial products: pointer, rows, columns
        for o in self.p.operands:
            rows, columns = o.shape
            packed = self.b.work(rows * columns * self.size)
            self.load(o.role, (rows, columns), "C", packed)
            parts.append((packed, rows, columns))
        path = chain_path((parts[0][1], *(columns for *_, columns in parts)))
        for step in path:
            left, right = (parts[i] for i in step)
            (one, m, k), (other, _, n) = left, right
            target = out if len(parts) == 2 else self.b.work(m * n * self.size)
            self.gemm((m, n, k), (one, k), (other, n), target)
            parts = [part for part in parts if part is not left and part is not right] + [(target, m, n)]
        return [out], None

    def matrix_exp(self) -> tuple[list[Pointer], Any]:
        n = self.p.n
        result, strides = self.result((n, n)), self.p.operands[0].strides[-2:]
        norms = TAYLOR_NORMS["single" if self.real.itemsize == 4 else "double"]
        factors = (*norms, *T8_INNER, *T8_OUTER, T8_SQUARE, X3, *itertools.chain(*T12), *itertools.chain(*T18))
        gemm = self.native.cblas(LETTER[self.dtype.name] + "gemm")
        fields = self.b.packed(f"<6q{len(factors)}d", self.real.itemsize, self.complex, n, *strides, gemm, *factors)
        work = self.b.work(self.size * 9 * n * n + 8 * n)  # nine matrices, and the sums of columns
        self.b.call(_kernels.addresses["matrix_exponential"], [fields, self.source("a")[0], work, result])
        return [result], None
