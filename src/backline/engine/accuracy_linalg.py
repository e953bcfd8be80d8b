"""Relative errors of linear algebra: compared with a reference where the answer is unique, by residual where it is not.

Solutions, Cholesky factors, eigenvalues and singular values are unique: float64 ones are compared with references that are
refined until their own errors do not show, float32 ones with NumPy's in float64. Where operands are too ill-conditioned for
such a reference, the error is the backward error (`accuracy_backward`). LU and QR factors and vectors are not unique, and
large solutions would take too long to refine: those are multiplied out, times a few random vectors, which no wrong element
escapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..problems.linalg_problem import LinalgProblem
from ..problems.op_registry import operations
from . import accuracy_backward, accuracy_indefinite, refinement
from .double_double import Pair, difference, exponent, pair, product, scaled, widened
from .refinement import adjoint

__all__ = ["LinalgReference", "matched"]

Array = Any

FLOPS = 2e9  # of a float64 Problem that a refined reference is computed for; it takes about ten times as many
CHUNK = 1 << 20  # elements converted at a time
PROBES = 4
EPS = float(np.finfo(np.float64).eps)
UNTOLD = 64 * EPS  # error of a reference from which on results are not compared with it


class LinalgReference:
    """The reference that results of a LinalgProblem on given operands are compared with.

    Parameters
    ----------
    problem, arrays
        The Problem and its operands.
    small
        Whether float64 copies of operands and results may be held.
    compute
        Returns NumPy's results in float64.
    """

    def __init__(self, problem: LinalgProblem, arrays: list[Array], small: bool, compute: Callable[[], Any]) -> None:
        self.problem, self.arrays, self.compute = problem, arrays, compute
        self.double = problem.dtype.name in ("float64", "complex128")
        self.small = small and not (self.double and problem.flops > FLOPS)
        self._rng = np.random.default_rng(1)
        self._wanted: Any = None
        self._part, self._power = 0, 0
        self.row = operations[problem.op]
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
        """Relative error of one result."""
        parts = self._scaled(parts)
        if self.row.check == "values":
            return self._spectrum(parts[0])
        if self.row.check == "unique" and self.small:
            return self._against(parts[0])
        return float(getattr(self, "_" + self.problem.op.rpartition(".")[2])(*parts))

    # Compared with a reference -----------------------------------------------------------------------------------------

    def _first(self) -> Array:
        found = self.compute()
        return self._scaled((np.asarray(found[0] if isinstance(found, tuple) else found),))[0]

    def _against(self, got: Array) -> float:
        if self._wanted is None:
            start = self._first()
            self._wanted = start.shape, self._refined(start) if self.double else refinement.Refined(pair(start), 0.0)
        shape, (wanted, unknown) = self._wanted
        if got.shape != shape:
            return float("inf")
        got = widened(got)
        if not unknown <= UNTOLD:
            return self._backward(self._oriented(got))
        found = relative(pair(self._oriented(got) if self.double else got), wanted)
        return max(found, unknown) if unknown > EPS / 64 else found

    def _backward(self, got: Array) -> float:
        p = self.problem
        a = widened(self._get("a"))
        if p.op == "linalg.cholesky":
            return accuracy_backward.cholesky(self._whole(a), got)
        if p.op == "linalg.lstsq":
            return accuracy_backward.least_squares(a, got, self._oriented(widened(self._get("b"))))
        matrix, right = self._system(a)
        found = accuracy_backward.solution(matrix, got, right)
        if p.op == "linalg.inv":  # by rows or by columns: algorithms that work by either are as good
            found = min(found, accuracy_backward.solution(adjoint(matrix), adjoint(got), right))
        return found

    def _whole(self, a: Array) -> Array:
        """The matrix that a triangle of a is that of."""
        low = adjoint(np.triu(a)) if self.problem.parameter("upper", False) else np.tril(a)
        return low + adjoint(np.tril(low, -1))

    def _refined(self, start: Array) -> refinement.Refined:
        p = self.problem
        a = widened(self._get("a"))
        if p.op == "linalg.cholesky":
            found = refinement.cholesky(self._whole(a), self._oriented(start))
        elif p.op == "linalg.lstsq":
            found = refinement.least_squares(a, self._oriented(widened(self._get("b"))), self._oriented(start))
        else:
            found = refinement.solution(*self._system(a), self._oriented(start))
        return found

    def _oriented(self, x: Array) -> Array:
        """Right-hand sides and solutions as columns, a Cholesky factor as the lower one."""
        p = self.problem
        if p.op == "linalg.cholesky":
            return adjoint(x) if p.parameter("upper", False) else x
        if p.parameter("vector"):
            x = x[..., None]
        return x if p.parameter("left", True) else np.swapaxes(x, -1, -2)

    def _system(self, a: Array) -> tuple[Any, Array]:
        """A solution as that of ``matrix @ X = right``, X in columns."""
        p = self.problem
        op, left = p.op, p.parameter("left", True)
        if op in ("linalg.inv", "cholesky_inverse"):
            right = np.eye(p.n)
        else:
            right = self._oriented(widened(self._get("b")))
        matrix: Any = a
        if op.startswith("cholesky"):
            factor = adjoint(np.triu(a)) if p.parameter("upper", False) else np.tril(a)
            matrix = product(factor, adjoint(factor))
        elif op == "linalg.solve_triangular":
            matrix = np.triu(a) if p.parameter("upper", False) else np.tril(a)
            if p.parameter("unitriangular", False):
                rows = np.arange(p.n)
                matrix[..., rows, rows] = 1
        elif op == "linalg.lu_solve":
            rows = np.argsort(order(self._get("p"), p.n), axis=-1)[..., None]
            whole = product(np.tril(a, -1) + np.eye(p.n), np.triu(a))
            matrix = whole.each(lambda x: np.take_along_axis(x, np.broadcast_to(rows, (*x.shape[:-1], 1)), axis=-2))
            matrix = adjoint(matrix) if p.parameter("adjoint", False) else matrix
        if left:
            return matrix, right
        return (matrix.each if isinstance(matrix, Pair) else lambda f: f(matrix))(lambda x: np.swapaxes(x, -1, -2)), right

    # Spectra -------------------------------------------------------------------------------------------------------------

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
        if self.problem.op in ("linalg.eigvals", "linalg.eig"):
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
        a = widened(self._get("a"))
        if p.op == "linalg.eigvals" or p.op == "linalg.eig":
            return refinement.general_values(a, refine=self.double)
        if not self.double:
            return refinement.Spectrum(pair(self._first()), 0.0, 1.0)
        if p.op == "linalg.svdvals":
            return refinement.singular_values(a)
        low = np.tril(a) if p.parameter("UPLO", "L") == "L" else adjoint(np.triu(a))
        full = low + adjoint(np.tril(low, -1))
        rows = np.arange(p.n)
        full[..., rows, rows] = full[..., rows, rows].real
        return refinement.hermitian_values(full)

    # By residual -----------------------------------------------------------------------------------------------------------

    def _vectors(self, n: int, dtype: np.dtype[Any]) -> Pair:
        """Random integers of eight bits, none near 0: a product with them is exact, and no single wrong element is missed."""

        def draw() -> Array:
            return self._rng.integers(128, 256, (n, PROBES)) * self._rng.choice((-1.0, 1.0), (n, PROBES)) / 128

        return pair(draw() + 1j * draw() if dtype.kind == "c" else draw())

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
        return relative(self._times(a, self._oriented(widened(x))), pair(self._oriented(widened(self._get("b")))))

    def _solve_triangular(self, x: Array) -> float:
        a, left = self._get("a"), self.problem.parameter("left", True)
        upper = bool(self.problem.parameter("upper", False)) == bool(left)
        unit = self.problem.parameter("unitriangular", False)
        keep = ("unit_upper" if upper else "unit") if unit else ("upper" if upper else "lower")
        shown = self._times(a if left else np.swapaxes(a, -1, -2), self._oriented(widened(x)), keep=keep)
        return relative(shown, pair(self._oriented(widened(self._get("b")))))

    def _lu_solve(self, x: Array) -> float:
        lu, right = self._get("a"), not self.problem.parameter("left", True)
        x, b = self._oriented(widened(x)), pair(self._oriented(widened(self._get("b"))))
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
        return relative(fitted, self._times(turned, self._oriented(widened(self._get("b")))))


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


def times(a: Array, x: Pair, keep: str = "", *, exact: bool = True, power: int = 0) -> Pair:
    """Matrix times vectors in double-double arithmetic or float64, some rows at a time; `keep` is the triangle that counts.

    The matrix is multiplied by two to the `power` first.
    """
    rows, cols = a.shape[-2:]
    items = max(a.size // max(rows * cols, 1), 1)
    step = max(CHUNK // max(items * cols, 1), 1)
    parts = []
    for first in range(0, rows, step):
        part = widened(scaled(a[..., first : first + step, :], power))
        if keep:
            part = np.triu(part, first) if "upper" in keep else np.tril(part, first)
            if keep.startswith("unit"):
                here = np.arange(min(part.shape[-2], cols - first))
                part[..., here, here + first] = 1
        parts.append(product(part, x) if exact else pair(np.matmul(part, x.high)))
    if len(parts) == 1:
        return parts[0]
    lows = [np.broadcast_to(part.low, part.high.shape) for part in parts]
    return Pair(np.concatenate([part.high for part in parts], axis=-2), np.concatenate(lows, axis=-2))


def relative(got: Pair, wanted: Pair, least: float = 0.0) -> float:
    """Largest difference over the largest value; `least` is a size below which that value is not taken."""
    if got.high.shape != wanted.high.shape:
        return float("inf")
    if got.high.size == 0:
        return 0.0
    size, distance = max(float(np.max(np.abs(wanted.high))), least), float(np.max(difference(got, wanted)))
    if not np.isfinite(distance):
        return float("inf")
    return distance / size if size else (0.0 if distance == 0.0 else float("inf"))
