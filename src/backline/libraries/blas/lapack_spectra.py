"""LAPACK's QR, eigenvalues and singular values, as steps.

Each method returns its results and what wraps them. Where the mathematics allows, a row-major matrix is handed over as it lies,
and the transposed problem is solved (SVD, symmetric eigenproblems); QR and general eigenproblems take a transposing copy.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native.plan_builder import Pointer
from ...problems.result_tuples import QR, SVD, Eig, Eigh
from .lapack_parts import Parts

__all__ = ["Spectra"]


class Spectra(Parts):
    """One method for each operation, named as the operation is."""

    def qr(self) -> tuple[list[Pointer], Any]:
        m, n, mode = self.p.m, self.p.n, self.p.parameter("mode", "reduced")
        k = min(m, n)
        columns = m if mode == "complete" else k
        rows = m if mode == "complete" else k
        if mode == "r":
            factored = self.b.work(m * n * self.size)
        else:
            q = self.result((m, columns), "F")
            factored = q if columns >= n and not self.in_parts else self.b.work(m * n * self.size)
        r = self.result((rows, n), "F")
        tau = self.b.work(k * self.size)
        self.load("a", (m, n), "F", factored)
        lwork, _ = self.workspace("{t}geqrf", m, n, None, m, None, "work", "lwork", None)
        if mode != "r":
            lwork = max(lwork, self.workspace("{q}gqr", m, columns, k, None, m, None, "work", "lwork", None)[0])
        work = self.b.work(lwork * self.size)
        if self.in_parts:
            triangles = self.factor_qr(m, n, factored, tau, work, lwork)
        else:
            self.lapack("{t}geqrf", m, n, factored, m, tau, work, lwork, self.info())
        column = (self.size, m * self.size)
        self.b.copy((rows, n), factored, column, r, self.packed((rows, n), "F"), self.size)
        self.b.triangle("zero_lower", (rows, n), self.packed((rows, n), "F"), self.dtype, r)
        if mode == "r":
            return self.returned(r), partial(_only_r, self.dtype)
        if self.in_parts:
            self.form_q(m, columns, k, factored, triangles, q)
            return self.returned(q, r), QR
        if factored != q:
            self.b.copy((m, k), factored, column, q, column, self.size)
        self.lapack("{q}gqr", m, columns, k, q, m, tau, work, lwork, self.info())
        return self.returned(q, r), QR

    def symmetric(self, vectors: bool) -> tuple[list[Pointer], Any]:
        n, lower = self.p.n, self.p.parameter("UPLO", "L") == "L"
        w = self.result((n,), dtype=self.real)
        a = self.result((n, n), "F") if vectors else self.b.work(n * n * self.size)
        pointer, strides, layout = self.source("a")
        if layout == "C" and not (self.complex and vectors):
            # As it lies: columns of memory are rows of A, so the other triangle; eigenvectors of conj(A) are conjugated.
            strides, lower = (strides[1], strides[0]), not lower
        self.b.copy((n, n), pointer, strides, a, self.packed((n, n), "F"), self.size)
        # The triangle that is not read may hold anything, NaN included.
        faster = self.blas.faster_triangle.get(self.dtype.char, "L" if lower else "U") == "L"
        mode = ("zero_upper" if lower else "zero_lower") if faster == lower else ("mirror_lower" if lower else "mirror_upper")
        self.b.triangle(mode, (n, n), self.packed((n, n), "F"), self.dtype, a)
        lower = faster
        self.finite(n * n, a)
        job, uplo = "V" if vectors else "N", "L" if lower else "U"
        # 0-size complex rwork formulas are those of the LAPACK documentation.
        rsize = (1 + 5 * n + 2 * n * n if vectors else max(n, 1)) if self.routine == "syevd" else max(1, 3 * n - 2)
        rwork = [self.b.work(self.real.itemsize * rsize)] if self.complex else []
        none: list[Any] = [None] if self.complex else []
        if self.routine == "syev":
            lwork, _ = self.workspace("{s}ev", job, uplo, n, None, n, None, "work", "lwork", *none, None)
            self.lapack("{s}ev", job, uplo, n, a, n, w, self.b.work(lwork * self.size), lwork, *rwork, self.info())
        else:
            asked = [*none, "lwork"] if self.complex else []
            lwork, liwork = self.workspace(
                "{s}evd", job, uplo, n, None, n, None, "work", "lwork", *asked, "iwork", "liwork", None
            )
            liwork = max(liwork, 3 + 5 * n if vectors else 1)
            sized = [*rwork, rsize] if self.complex else []
            self.lapack(
                "{s}evd", job, uplo, n, a, n, w, self.b.work(lwork * self.size), lwork, *sized,
                self.b.work(self.native.int_size * liwork), liwork, self.info(),
            )  # fmt: skip
        return (self.returned(w, a), Eigh) if vectors else (self.returned(w), None)

    def eigh(self) -> tuple[list[Pointer], Any]:
        return self.symmetric(True)

    def eigvalsh(self) -> tuple[list[Pointer], Any]:
        return self.symmetric(False)

    def general(self, vectors: bool) -> tuple[list[Pointer], Any]:
        n = self.p.n
        a = self.b.work(n * n * self.size)
        self.load("a", (n, n), "F", a)
        self.finite(n * n, a)
        exact = np.result_type(self.dtype, np.complex64)
        results = [self.result((n,), dtype=exact)] + ([self.result((n, n), "F", exact)] if vectors else [])
        # A real matrix has them in real numbers, pairs packed.
        values = results[:1] if self.complex else [self.b.work(n * self.size) for _ in range(2)]
        spare = self.b.work(self.size)
        v = spare if not vectors else results[1] if self.complex else self.b.work(n * n * self.size)
        job = "V" if vectors else "N"
        none: list[Any] = [None] if self.complex else []
        lwork, _ = self.workspace(
            "{t}geev", "N", job, n, None, n, *[None] * len(values), None, 1, None, n, "work", "lwork", *none, None
        )
        rwork = [self.b.work(self.real.itemsize * 2 * n)] if self.complex else []
        self.lapack(
            "{t}geev", "N", job, n, a, n, *values, spare, 1, v, n, self.b.work(lwork * self.size), lwork, *rwork, self.info()
        )
        if not self.complex:
            fields = self.b.packed("<8q2d", self.size, 0, n, n, 0, 0, 0, vectors, 0.0, 0.0)
            self.b.call(_kernels.addresses["eigen_pairs"], [fields, *values, v, *results])
        return results, Eig if vectors else None

    def eig(self) -> tuple[list[Pointer], Any]:
        return self.general(True)

    def eigvals(self) -> tuple[list[Pointer], Any]:
        return self.general(False)

    def singular(self, vectors: bool, *, shown: bool = True, order: str = "") -> tuple[list[Pointer], Any]:
        """Singular values and vectors, as results of the plan; else in workspace, with the fewest vectors."""
        m, n = self.p.m, self.p.n
        order = order or self.own_order()
        k, full = min(m, n), shown and self.p.parameter("full_matrices", True)

        def result(shape: tuple[int, ...], dtype: Any) -> Pointer:
            return self.result(shape, order, dtype) if shown else self.b.work(prod(shape) * dtype.itemsize)

        a = self.b.work(m * n * self.size)
        self.load("a", (m, n), order, a)
        self.finite(m * n, a)
        # Row-major memory is A^T in columns: A^T = conj(V) S U^T, so LAPACK's U is Vh and its VT is U, as they lie.
        rows, cols = (m, n) if order == "F" else (n, m)
        left = right = self.b.work(self.size)
        job, results = "N", []
        if vectors:
            job = "A" if full else "S"
            u = result((m, m if full else k), self.dtype)
            s = result((k,), self.real)
            vh = result((n if full else k, n), self.dtype)
            left, right = (u, vh) if order == "F" else (vh, u)
            results = [u, s, vh]
        else:
            s = result((k,), self.real)
            results = [s]
        ldvt = cols if job == "A" else k if job == "S" else 1
        largest = max(m, n)
        none: list[Any] = [None] if self.complex else []
        head: list[Any] = [rows, cols, None, rows, None, None, rows, None, ldvt, "work", "lwork", *none]
        if self.routine == "gesdd":
            lwork, _ = self.workspace("{t}gesdd", job, *head, None, None)
            rsize = 7 * k if job == "N" else max(5 * k * k + 5 * k, 2 * largest * k + 2 * k * k + k)
            after = [self.b.work(self.native.int_size * 8 * k)]
            jobs = [job]
        else:
            lwork, _ = self.workspace("{t}gesvd", job, job, *head, None)
            rsize, after, jobs = 5 * k, [], [job, job]
        rwork = [self.b.work(self.real.itemsize * rsize)] if self.complex else []
        self.lapack(
            "{t}" + self.routine, *jobs, rows, cols, a, rows, s, left, rows, right, ldvt, self.b.work(lwork * self.size), lwork,
            *rwork, *after, self.info(),
        )  # fmt: skip
        return self.returned(*results), SVD if vectors else None

    def svd(self) -> tuple[list[Pointer], Any]:
        return self.singular(True)

    def svdvals(self) -> tuple[list[Pointer], Any]:
        return self.singular(False)


# What is left to do in Python, once per call ------------------------------------------------------------------------


def _only_r(dtype: Any, r: Any) -> QR:
    return QR(np.empty(0, dtype), r)
