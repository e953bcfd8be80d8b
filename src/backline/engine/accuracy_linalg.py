"""Relative errors of linear algebra: compared with a reference where the answer is unique, by residual where it is not.

Solutions, Cholesky factors, eigenvalues and singular values are unique: float64 ones are compared with references that are
refined until their own errors do not show, float32 ones with NumPy's in float64. Where operands are too ill-conditioned for
such a reference, the error is the backward error (`accuracy_backward`). LU and QR factors and vectors are not unique, and
large solutions would take too long to refine: those are multiplied out, times a few random vectors, which no wrong element
escapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..problems.linalg_problem import LinalgProblem
from ..problems.op_registry import operations
from . import accuracy_backward, accuracy_indefinite, refinement
from .accuracy_wide import EPS, ProblemReference, computed, may_hold
from .double_double import Pair, difference, exponent, pair, probes, product, relative, scaled, times, widened
from .refinement import adjoint

__all__ = ["FORMS", "Form", "LinalgReference", "matched"]

Array = Any

FLOPS = 2e9  # of a float64 Problem that a refined reference is computed for; it takes about ten times as many
CHUNK = 1 << 20  # elements compared at a time
UNTOLD = 64 * EPS  # error of a reference from which on results are not compared with it


@dataclass(frozen=True)
class Form:
    """The judgement of the results of one operation. Each function is given the LinalgReference first where it is a method.

    Attributes
    ----------
    residual
        Relative error of the parts of a result, which are multiplied out.
    system
        Operands as the next two take them, such as a matrix and right-hand sides in columns. None where no answer is unique.
    refined
        Improves NumPy's result in float64 for a system until its error does not show.
    backward
        Backward error of a result for a system.
    values
        Improved eigenvalues or singular values of a matrix, for operations whose result those are.
    """

    residual: Callable[..., float] | None = None
    system: Callable[[LinalgReference, Array], tuple[Any, ...]] | None = None
    refined: Callable[..., refinement.Refined] = refinement.solution
    backward: Callable[..., float] = accuracy_backward.solution
    values: Callable[[LinalgReference, Array], refinement.Spectrum] | None = None


class LinalgReference(ProblemReference):
    """The reference of linear algebra: a refined result, a spectrum, or the operands that results are multiplied out to."""

    problem: LinalgProblem

    def __init__(self, problem: LinalgProblem, arrays: list[Array]) -> None:
        super().__init__(problem, arrays)
        self.given = arrays
        self.row, self.form = operations[problem.op], FORMS[problem.op]
        # Whether float64 copies of operands and results may be held.
        scale = 16 // problem.dtype.itemsize if problem.dtype.kind == "c" else max(8 // problem.dtype.itemsize, 1)
        wide = scale * sum(o.nbytes for o in problem.operands) * (1 if self.row.check == "residual" else 3)
        self.small = may_hold(wide) and not (self.double and problem.flops > FLOPS)
        self._rng = np.random.default_rng(1)
        self._wanted: Any = None
        self._part, self._power = 0, 0
        if self.double and self.row.powers is not None and not problem.parameter("unitriangular", False):
            self._moderate(*self.row.powers)

    def _moderate(self, part: int, *powers: float) -> None:
        """Multiply operands by powers of two such that nothing overflows, and results later on by what that makes of them."""
        self.arrays = list(self.arrays)
        for role, power in zip("ab", powers, strict=True):
            if power:
                i = self.problem.index(role)
                assert i is not None
                shift = exponent(self.arrays[i])
                shift += shift % 2  # half of it is a whole number, too
                self.arrays[i] = scaled(self.arrays[i], -shift)
                self._power -= int(power * shift)
        self._part = part

    def _scaled(self, parts: tuple[Array, ...]) -> tuple[Array, ...]:
        if not self._power:
            return parts
        return tuple(scaled(x, self._power) if i == self._part else x for i, x in enumerate(parts))

    def error(self, parts: tuple[Array, ...]) -> float:
        if self.problem.empty:
            return 0.0
        parts = self._scaled(parts)
        if self.row.check == "values":
            return self._spectrum(parts[0])
        if self.row.check == "unique" and self.small:
            return self._against(parts[0])
        assert self.form.residual is not None
        return float(self.form.residual(self, *parts))

    # Compared with a reference -----------------------------------------------------------------------------------------

    def _first(self) -> Array:
        found = computed(self.problem, self.given)
        return self._scaled((np.asarray(found[0] if isinstance(found, tuple) else found),))[0]

    def _against(self, got: Array) -> float:
        if self.backward:
            return self.form.backward(*self._system(), self._oriented(widened(got)))
        if self._wanted is None:
            start = self._first()
            refined = refinement.Refined(pair(start), 0.0)
            self._wanted = start.shape, self.form.refined(*self._system(), self._oriented(start)) if self.double else refined
        shape, (wanted, unknown) = self._wanted
        if got.shape != shape:
            return float("inf")
        got = widened(got)
        if not unknown <= UNTOLD:
            return self.form.backward(*self._system(), self._oriented(got))
        found = relative(pair(self._oriented(got) if self.double else got), wanted)
        return max(found, unknown) if unknown > EPS / 64 else found

    def _system(self) -> tuple[Any, ...]:
        assert self.form.system is not None
        return self.form.system(self, widened(self._get("a")))

    def _oriented(self, x: Array) -> Array:
        """Right-hand sides and solutions as columns, a Cholesky factor as the lower one."""
        p = self.problem
        if p.op == "linalg.cholesky":
            return adjoint(x) if p.parameter("upper", False) else x
        if p.parameter("vector"):
            x = x[..., None]
        return x if p.parameter("left", True) else np.swapaxes(x, -1, -2)

    def _right(self) -> Array:
        return self._oriented(widened(self._get("b")))

    def _factored(self, a: Array) -> Pair:
        """The matrix of a Cholesky factor."""
        factor = adjoint(np.triu(a)) if self.problem.parameter("upper", False) else np.tril(a)
        return product(factor, adjoint(factor))

    def _solved(self, matrix: Any) -> tuple[Any, Array]:
        """A solution as that of ``matrix @ X = right``, X in columns."""
        if self.problem.parameter("left", True):
            return matrix, self._right()
        return (matrix.each if isinstance(matrix, Pair) else lambda f: f(matrix))(lambda x: np.swapaxes(x, -1, -2)), self._right()

    def _whole(self, a: Array) -> tuple[Array]:
        """The matrix that a triangle of a is that of."""
        return (_mirrored(a, bool(self.problem.parameter("upper", False))),)

    def _triangle(self, a: Array) -> tuple[Any, Array]:
        matrix = np.triu(a) if self.problem.parameter("upper", False) else np.tril(a)
        if self.problem.parameter("unitriangular", False):
            rows = np.arange(self.problem.n)
            matrix[..., rows, rows] = 1
        return self._solved(matrix)

    def _permuted(self, a: Array) -> tuple[Any, Array]:
        p = self.problem
        rows = np.argsort(order(self._get("p"), p.n), axis=-1)[..., None]
        whole = product(np.tril(a, -1) + np.eye(p.n), np.triu(a))
        matrix = whole.each(lambda x: np.take_along_axis(x, np.broadcast_to(rows, (*x.shape[:-1], 1)), axis=-2))
        return self._solved(adjoint(matrix) if p.parameter("adjoint", False) else matrix)

    # Spectra -------------------------------------------------------------------------------------------------------------

    @property
    def _matched(self) -> bool:
        """Tells if the values are those of a general matrix."""
        return self.problem.op in ("linalg.eigvals", "linalg.eig")

    def _spectrum(self, got: Array) -> float:
        """Value by value, against the reference in the same order; the values of a general matrix have none and are matched."""
        if self._wanted is None:
            self._wanted = self._values()
        values, unknown, conditions = self._wanted
        if got.shape != values.high.shape:
            return float("inf")
        got, size = widened(got), float(np.max(np.abs(values.high), initial=0.0))
        if self.small and not unknown <= UNTOLD:
            return accuracy_backward.eigenvalues(widened(self._get("a")), got)
        if self._matched:
            # A change of the matrix by one part in its size changes a value by as many as its condition number, and no
            # algorithm can do better: an error is judged by that, as one of a sum is by its terms.
            if self.small:
                size = max(size, _root_mean_square(widened(self._get("a"))))
            places = matched(got, values.high)
            values = values.each(lambda x: np.take_along_axis(x, places, axis=-1))
            if isinstance(conditions, np.ndarray):
                conditions = np.take_along_axis(conditions, places, axis=-1)
        distance = float(np.max(difference(pair(got), values) / conditions, initial=0.0))
        found = distance / size if size else (0.0 if distance == 0.0 else float("inf"))
        return max(found, unknown) if unknown > EPS / 64 else found

    def _values(self) -> refinement.Spectrum:
        p = self.problem
        if not self.small:
            # NumPy's values in float64, which take as long as one more candidate. How far those of a float64 problem are from
            # the right ones is not known, and nothing below that is told apart.
            unknown = EPS * max(p.m, p.n) ** 0.5 if self.double else 0.0
            return refinement.Spectrum(pair(self._first()), unknown, 1.0)
        if self.form.values is None or not (self.double or self._matched):
            return refinement.Spectrum(pair(self._first()), 0.0, 1.0)
        return self.form.values(self, widened(self._get("a")))

    def _hermitian(self, a: Array) -> refinement.Spectrum:
        full = _mirrored(a, self.problem.parameter("UPLO", "L") != "L")
        rows = np.arange(self.problem.n)
        full[..., rows, rows] = full[..., rows, rows].real
        return refinement.hermitian_values(full)

    # By residual -----------------------------------------------------------------------------------------------------------

    def _vectors(self, n: int, dtype: np.dtype[Any]) -> Pair:
        return pair(probes(self._rng, n, dtype))

    def _get(self, role: str) -> Array:
        i = self.problem.index(role)
        assert i is not None
        return self.arrays[i]

    def _times(self, a: Array, x: Any, keep: str = "") -> Pair:
        return times(a, pair(x), keep, exact=self.double)

    def _restored(self, restored: Callable[[Pair], Pair], matrix: Array, n: int) -> float:
        v = self._vectors(n, self.problem.dtype)
        return relative(restored(v), self._times(matrix, v))

    def _identity(self, shown: Pair, v: Pair) -> float:
        return relative(shown, v.each(lambda x: np.broadcast_to(x, shown.high.shape)))

    def _orthonormal(self, q: Array) -> float:
        v = self._vectors(q.shape[-1], q.dtype)
        return self._identity(self._times(adjoint(q), self._times(q, v)), v)

    def _cholesky(self, factor: Array, *info: Array) -> float:
        turned = adjoint(factor)
        first, then = (factor, turned) if self.problem.parameter("upper", False) else (turned, factor)
        return self._restored(lambda v: self._times(then, self._times(first, v)), self._get("a"), factor.shape[-1])

    def _lu_factor(self, lu: Array, pivots: Array, *info: Array) -> float:
        a = self._get("a")
        m, n = a.shape[-2:]
        least = min(m, n)
        rows = np.argsort(order(pivots, m), axis=-1)[..., None]

        def restored(v: Pair) -> Pair:
            x = self._times(lu[..., :least, :], v, keep="upper")
            y = self._times(lu[..., :, :least], x, keep="unit")
            return y.each(lambda part: np.take_along_axis(part, rows, axis=-2))

        return self._restored(restored, a, n)

    def _qr(self, q: Array, r: Array) -> float:
        a = self._get("a")
        if self.problem.parameter("mode") == "r":
            v = self._vectors(a.shape[-1], a.dtype)
            return relative(self._times(adjoint(r), self._times(r, v)), self._times(adjoint(a), self._times(a, v)))
        restored = self._restored(lambda v: self._times(q, self._times(r, v)), a, a.shape[-1])
        return max(restored, self._orthonormal(q))

    def _eigh(self, values: Array, vectors: Array) -> float:
        def restored(v: Pair) -> Pair:
            return self._times(vectors, self._times(adjoint(vectors), v).times(widened(values)[..., None]))

        return max(self._restored(restored, self._get("a"), vectors.shape[-1]), self._orthonormal(vectors))

    def _svd(self, u: Array, s: Array, vh: Array) -> float:
        k = s.shape[-1]

        def restored(v: Pair) -> Pair:
            return self._times(u[..., :, :k], self._times(vh[..., :k, :], v).times(widened(s)[..., None]))

        a = self._get("a")
        return max(self._restored(restored, a, a.shape[-1]), self._orthonormal(u), self._orthonormal(adjoint(vh)))

    def _eig(self, values: Array, vectors: Array) -> float:
        v = self._vectors(vectors.shape[-1], np.dtype(np.complex128))
        shape = (*vectors.shape[:-2], *v.high.shape)
        scaled = v.each(lambda x: np.broadcast_to(x, shape)).times(widened(values)[..., None])
        residual = relative(self._times(vectors, scaled), self._times(self._get("a"), self._times(vectors, v)))
        lengths = np.sqrt(np.sum(np.abs(widened(vectors)) ** 2, axis=-2))  # one pair many times over would pass, or zeros
        if np.max(np.abs(lengths - 1)) > 1e-3:
            return float("inf")
        return max(residual, self._spectrum(values))

    def _inv(self, x: Array, *info: Array) -> float:
        v = self._vectors(x.shape[-1], x.dtype)
        return self._identity(self._times(self._get("a"), self._times(x, v)), v)

    def _cholesky_inverse(self, x: Array) -> float:
        v = self._vectors(x.shape[-1], x.dtype)
        return self._identity(self._from_factor(self._times(x, v)), v)

    def _from_factor(self, x: Any) -> Pair:
        """The matrix whose Cholesky factor is given, times x."""
        a = self._get("a")
        if self.problem.parameter("upper", False):
            return self._times(adjoint(a), self._times(a, x, keep="upper"), keep="lower")
        return self._times(a, self._times(adjoint(a), x, keep="upper"), keep="lower")

    def _cholesky_solve(self, x: Array) -> float:
        return relative(self._from_factor(widened(x)), pair(widened(self._get("b"))))

    def _solve(self, x: Array, *info: Array) -> float:
        a = self._get("a") if self.problem.parameter("left", True) else np.swapaxes(self._get("a"), -1, -2)
        return relative(self._times(a, self._oriented(widened(x))), pair(self._right()))

    def _solve_triangular(self, x: Array) -> float:
        a, left = self._get("a"), self.problem.parameter("left", True)
        upper = bool(self.problem.parameter("upper", False)) == bool(left)
        unit = self.problem.parameter("unitriangular", False)
        keep = ("unit_upper" if upper else "unit") if unit else ("upper" if upper else "lower")
        shown = self._times(a if left else np.swapaxes(a, -1, -2), self._oriented(widened(x)), keep=keep)
        return relative(shown, pair(self._right()))

    def _lu_solve(self, x: Array) -> float:
        lu, right = self._get("a"), not self.problem.parameter("left", True)
        x, b = self._oriented(widened(x)), pair(self._right())
        rows = order(self._get("p"), lu.shape[-1])[..., None]
        turn = self.problem.parameter("adjoint", False)
        if turn != right:  # the factors in the other order
            turned = adjoint(lu) if turn else np.swapaxes(lu, -1, -2)
            y = self._times(turned, np.take_along_axis(x, np.broadcast_to(rows, (*x.shape[:-1], 1)), axis=-2), keep="unit_upper")
            return relative(self._times(turned, y, keep="lower"), b)
        y = self._times(lu.conj() if turn else lu, x, keep="upper")
        y = self._times(lu.conj() if turn else lu, y, keep="unit")
        back = np.argsort(rows, axis=-2)
        return relative(y.each(lambda part: np.take_along_axis(part, back, axis=-2)), b)

    def _ldl_factor(self, ld: Array, pivots: Array, *info: Array) -> float:
        v, hermitian = self._vectors(ld.shape[-1], ld.dtype), bool(self.problem.parameter("hermitian"))
        whole = accuracy_indefinite.symmetric(self._get("a"), hermitian)
        return relative(accuracy_indefinite.by_factors(ld, pivots, v.high, hermitian), self._times(whole, v))

    def _ldl_solve(self, x: Array) -> float:
        hermitian = bool(self.problem.parameter("hermitian"))
        shown = accuracy_indefinite.by_factors(self._get("a"), self._get("p"), x, hermitian)
        return relative(shown, pair(widened(self._get("b"))))

    def _householder_product(self, q: Array) -> float:
        v = self._vectors(q.shape[-1], q.dtype)
        return relative(self._times(q, v), accuracy_indefinite.by_reflectors(self._get("a"), self._get("t"), v.high))

    def _lstsq(self, x: Array, *rest: Array) -> float:
        """The residual is orthogonal to the columns."""
        a, turned = self._get("a"), adjoint(self._get("a"))
        fitted = self._times(turned, self._times(a, self._oriented(widened(x))))
        return relative(fitted, self._times(turned, self._right()))


def order(pivots: Array, n: int) -> Array:
    """Row numbers after the interchanges that LAPACK's pivots, counted from 1, stand for."""
    found = np.broadcast_to(np.arange(n), (*pivots.shape[:-1], n)).copy()
    for i in range(pivots.shape[-1]):
        other = pivots[..., i : i + 1].astype(np.int64) - 1
        there = np.take_along_axis(found, other, axis=-1)
        np.put_along_axis(found, other, found[..., i : i + 1], axis=-1)
        found[..., i : i + 1] = there
    return found


def _root_mean_square(a: Array) -> float:
    """Returns the root mean square of the lengths of a matrix's columns."""
    return float(np.sqrt(np.sum(np.abs(a) ** 2) / max(a.size / a.shape[-2], 1)))


def matched(got: Array, wanted: Array) -> Array:
    """Returns the place of each number's partner among others: the nearest one, and none twice.

    Examples
    --------
    >>> matched(np.array([2.0, 1.05]), np.array([1.0, 1.2]))
    array([1, 0])
    """
    if got.ndim > 1:
        return np.stack([matched(x, y) for x, y in zip(got, wanted, strict=True)])
    n = got.size
    step = max(CHUNK // max(n, 1), 1)
    places, distances = np.empty(n, np.int64), np.empty(n)
    for first in range(0, n, step):
        gaps = np.abs(got[first : first + step, None] - wanted)
        places[first : first + step], distances[first : first + step] = np.argmin(gaps, axis=1), np.min(gaps, axis=1)
    free = np.ones(n, bool)
    for i in np.argsort(distances):  # the surest first
        if not free[places[i]]:
            places[i] = np.argmin(np.where(free, np.abs(got[i] - wanted), np.inf))
        free[places[i]] = False
    return places


def _mirrored(a: Array, upper: bool) -> Array:
    """The Hermitian matrix that one triangle of a is that of."""
    low = adjoint(np.triu(a)) if upper else np.tril(a)
    return low + adjoint(np.tril(low, -1))


_R = LinalgReference
FORMS: dict[str, Form] = {
    "linalg.cholesky": Form(_R._cholesky, _R._whole, refinement.cholesky, accuracy_backward.cholesky),
    "cholesky_inverse": Form(_R._cholesky_inverse, lambda r, a: (r._factored(a), np.eye(r.problem.n))),
    "cholesky_solve": Form(_R._cholesky_solve, lambda r, a: r._solved(r._factored(a))),
    "linalg.inv": Form(_R._inv, lambda r, a: (a, np.eye(r.problem.n)), backward=accuracy_backward.inverse),
    "linalg.solve": Form(_R._solve, _R._solved),
    "linalg.solve_triangular": Form(_R._solve_triangular, _R._triangle),
    "linalg.lu_solve": Form(_R._lu_solve, _R._permuted),
    "linalg.lstsq": Form(
        _R._lstsq, lambda r, a: (a, r._right()), refinement.least_squares, accuracy_backward.least_squares
    ),
    "linalg.lu_factor": Form(_R._lu_factor), "linalg.qr": Form(_R._qr), "linalg.svd": Form(_R._svd),
    "linalg.ldl_factor": Form(_R._ldl_factor), "linalg.ldl_solve": Form(_R._ldl_solve),
    "linalg.householder_product": Form(_R._householder_product), "linalg.eigh": Form(_R._eigh),
    "linalg.eig": Form(_R._eig, values=lambda r, a: refinement.general_values(a, refine=r.double)),
    "linalg.eigvals": Form(values=lambda r, a: refinement.general_values(a, refine=r.double)),
    "linalg.eigvalsh": Form(values=_R._hermitian),
    "linalg.svdvals": Form(values=lambda r, a: refinement.singular_values(a)),
}  # fmt: skip
