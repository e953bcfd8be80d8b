"""How far a result is from float64: against a float64 result where there is one right answer, else by what it must satisfy.

The figure is a relative error in the maximum norm. Matrices too large for float64 copies are tested through their products
with a few random vectors, which any wrong element shows in. Layers of neural networks are another module's business.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ..libraries.rounding import STORED, unit
from ..problems import Problem, operand
from ..problems.linalg import LinalgProblem
from ..problems.matmul import MatmulProblem
from . import accuracy_layers

__all__ = ["Reference", "bound", "error", "reference"]

Array = Any

# Operations with one right answer, or whose first result has one.
UNIQUE = {
    "linalg.cholesky", "linalg.inv", "linalg.solve", "linalg.lu_solve", "linalg.solve_triangular", "linalg.lstsq",
    "linalg.eigvalsh", "linalg.svdvals", "cholesky_solve", "cholesky_inverse",
}  # fmt: skip
WIDE = 64 << 20  # bytes that float64 copies and results may take
CHUNK = 1 << 20  # elements converted at a time
PROBES = 4


def bound(problem: Problem, precision: str = "") -> float:
    """The largest relative error that is still rounding, for the dtype and size of a Problem and the precision computed in.

    It separates wrong from inaccurate; what accuracy is wanted is the `max_error` switch's business.
    """
    name = problem.dtype.name
    if name in ("float16", "bfloat16"):
        rounding, accumulated = (2.0**-10 if name == "float16" else 2.0**-7), 2.0**-23
    elif problem.dtype.kind in "fc":
        rounding = accumulated = float(np.finfo(problem.dtype).eps)
    else:
        return 0.0
    if precision in STORED:  # each of two operands is rounded once
        rounding = max(rounding, 2 * unit(precision))
    if precision == "f16 accumulation":
        accumulated = 2.0**-14  # four roundings of a sum for each root of a term, not 64: those would let anything pass
    length = accuracy_layers.terms(problem)
    if isinstance(problem, LinalgProblem):
        length = 16 * max(problem.m, problem.n, 1)
    return 4 * rounding + 64 * accumulated * math.sqrt(length)


def reference(problem: Problem, arrays: list[Array]) -> Any:
    """The result computed by NumPy in float64 or complex128, as the operation returns it."""
    from .. import libraries

    operands, copies = [], []
    for o, array in zip(problem.operands, arrays, strict=True):
        if o.role.startswith("out"):
            continue
        number = array.dtype.kind in "fc" or array.dtype.name == "bfloat16"
        wide = array.astype(_wide(array.dtype), copy=False) if number else array
        copies.append(wide)
        operands.append(operand(o.role, wide))
    wide_problem = replace(problem, operands=tuple(operands))
    library = libraries.get("numpy")
    plan = library.prepare(wide_problem, libraries.Algorithm("numpy", "reference"))
    return plan(*copies)


def error(problem: Problem, arrays: list[Array], result: Any) -> float:
    """Relative error of a result; infinite if it holds NaN or infinity.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.engine.explain import problem_builders
    >>> import backline
    >>> a = np.eye(3, dtype=np.float32)
    >>> error(problem_builders["matmul"](a, a), [a, a], a), error(problem_builders["matmul"](a, a), [a, a], a * np.nan)
    (0.0, inf)
    """
    return Reference(problem, arrays).error(result)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


class Reference:
    """What results of a Problem on given operands are held against; the float64 result is computed once."""

    def __init__(self, problem: Problem, arrays: list[Array]) -> None:
        self.problem, self.arrays = problem, arrays
        self._rng = np.random.default_rng(1)
        self._result: Array | None = None
        self._parts: list[Any] | None = None

    def error(self, result: Any) -> float:
        """Relative error of one result."""
        p = self.problem
        if p.dtype.kind not in "fc" and p.dtype.name != "bfloat16":
            return 0.0  # integers: only NumPy computes those, and exactly
        parts = result if isinstance(result, tuple) else (result,)
        parts = tuple(np.asarray(x) for x in parts)
        if not all(_finite(x) for x in parts):
            return math.inf
        if isinstance(p, MatmulProblem):
            return self._product(parts[0])
        if not isinstance(p, LinalgProblem):
            if self._parts is None:
                self._parts = [(part, reference(part.problem, part.arrays)) for part in accuracy_layers.parts(p, self.arrays)]
            return max((part.error(parts, wanted, _distance) for part, wanted in self._parts), default=0.0)
        if p.empty:
            return 0.0
        scale = 16 // p.dtype.itemsize if p.dtype.kind == "c" else max(8 // p.dtype.itemsize, 1)
        wide = scale * sum(o.nbytes for o in p.operands) * (3 if p.op in UNIQUE else 1)
        if p.op in UNIQUE and wide <= WIDE:
            return self._against(parts[0])
        return float(getattr(self, "_" + p.op.rpartition(".")[2])(*parts))

    # With a float64 result -------------------------------------------------------------------------------------------

    def _against(self, got: Array, least: float = 0.0) -> float:
        if self._result is None:
            found = reference(self.problem, self.arrays)
            self._result = np.asarray(found[0] if isinstance(found, tuple) else found)
        return _distance(got, self._result, least)

    def _product(self, got: Array) -> float:
        p = self.problem
        assert isinstance(p, MatmulProblem)
        if p.empty:
            return 0.0
        spread = math.sqrt(p.k) * abs(p.alpha)  # size of an element where the values have variance 1
        copies = 16 if p.dtype.kind == "c" else 8
        if copies * (sum(math.prod(o.shape) for o in p.operands) + p.m * p.n * p.items) <= WIDE:
            return self._against(got, spread)
        views = {
            o.role: np.lib.stride_tricks.as_strided(x, o.shape, o.strides) for o, x in zip(p.operands, self.arrays, strict=True)
        }
        v = self._vectors(p.n, p.dtype)
        wanted = p.alpha * _times(views["a"], _times(views["b"], v))
        if p.beta != 0:
            wanted = wanted + p.beta * _times(views["c"], v)
        shown = _times(got.reshape(*p.batch, p.m, p.n), v)
        # The product with v adds up n elements: an error of one of them must not drown in the sum.
        return _distance(shown, wanted, spread)

    # By what a result must satisfy --------------------------------------------------------------------------------------

    def _vectors(self, n: int, dtype: np.dtype[Any]) -> Array:
        v = self._rng.standard_normal((n, PROBES))
        return v + 1j * self._rng.standard_normal((n, PROBES)) if dtype.kind == "c" else v

    def _get(self, role: str) -> Array:
        i = self.problem.index(role)
        assert i is not None
        return self.arrays[i]

    def _restored(self, restored: Any, matrix: Array, n: int) -> float:
        v = self._vectors(n, self.problem.dtype)
        return _distance(restored(v), _times(matrix, v))

    def _orthonormal(self, q: Array) -> float:
        v = self._vectors(q.shape[-1], q.dtype)
        return _distance(_times(_adjoint(q), _times(q, v)), np.broadcast_to(v, (*q.shape[:-2], *v.shape)))

    def _cholesky(self, factor: Array, *info: Array) -> float:
        adjoint = _adjoint(factor)
        first, then = (factor, adjoint) if self.problem.parameter("upper", False) else (adjoint, factor)
        return self._restored(lambda v: _times(then, _times(first, v)), self._get("a"), factor.shape[-1])

    def _lu_factor(self, lu: Array, pivots: Array, *info: Array) -> float:
        a = self._get("a")
        m, n = a.shape[-2:]
        least = min(m, n)

        def restored(v: Array) -> Array:
            x = _times(lu[..., :least, :], v, keep="upper")
            y = _times(lu[..., :, :least], x, keep="unit")
            return np.take_along_axis(y, np.argsort(_order(pivots, m), axis=-1)[..., None], axis=-2)

        return self._restored(restored, a, n)

    def _qr(self, q: Array, r: Array) -> float:
        a = self._get("a")
        if self.problem.parameter("mode") == "r":
            v = self._vectors(a.shape[-1], a.dtype)
            return _distance(_times(_adjoint(r), _times(r, v)), _times(_adjoint(a), _times(a, v)))
        restored = self._restored(lambda v: _times(q, _times(r, v)), a, a.shape[-1])
        return max(restored, self._orthonormal(q))

    def _eigh(self, values: Array, vectors: Array) -> float:
        def restored(v: Array) -> Array:
            return _times(vectors, values[..., None] * _times(_adjoint(vectors), v))

        return max(self._restored(restored, self._get("a"), vectors.shape[-1]), self._orthonormal(vectors))

    def _svd(self, u: Array, s: Array, vh: Array) -> float:
        k = s.shape[-1]

        def restored(v: Array) -> Array:
            return _times(u[..., :, :k], s[..., None] * _times(vh[..., :k, :], v))

        a = self._get("a")
        return max(self._restored(restored, a, a.shape[-1]), self._orthonormal(u), self._orthonormal(_adjoint(vh)))

    def _eig(self, values: Array, vectors: Array) -> float:
        v = self._vectors(vectors.shape[-1], np.dtype(np.complex128))
        return _distance(_times(vectors, values[..., None] * v), _times(self._get("a"), _times(vectors, v)))

    def _eigvals(self, values: Array) -> float:
        """The sums of the eigenvalues and of their squares are traces."""
        a = self._get("a")
        wide = values.astype(np.complex128)
        trace = np.einsum("...ii->...", a.astype(_wide(a.dtype)) if a.size <= CHUNK else a, dtype=_wide(a.dtype))
        square = np.einsum("...ij,...ji->...", a, a, dtype=_wide(a.dtype), casting="unsafe")
        size = np.sqrt((np.abs(wide) ** 2).sum(-1))
        first = np.abs(wide.sum(-1) - trace) / (size * math.sqrt(values.shape[-1]))
        second = np.abs((wide**2).sum(-1) - square) / size**2
        return float(max(np.max(first), np.max(second)))

    def _eigvalsh(self, values: Array) -> float:
        return self._eigvals(values)

    def _svdvals(self, values: Array) -> float:
        a = self._get("a")
        real = np.einsum("...ij,...ij->...", a.real, a.real, dtype=np.float64, casting="unsafe")
        if a.dtype.kind == "c":
            real = real + np.einsum("...ij,...ij->...", a.imag, a.imag, dtype=np.float64, casting="unsafe")
        return float(np.max(np.abs((values.astype(np.float64) ** 2).sum(-1) / real - 1)))

    def _inv(self, x: Array, *info: Array) -> float:
        v = self._vectors(x.shape[-1], x.dtype)
        return _distance(_times(self._get("a"), _times(x, v)), np.broadcast_to(v, (*x.shape[:-2], *v.shape)))

    def _cholesky_inverse(self, x: Array) -> float:
        v = self._vectors(x.shape[-1], x.dtype)
        return _distance(self._from_factor(_times(x, v)), np.broadcast_to(v, (*x.shape[:-2], *v.shape)))

    def _from_factor(self, x: Array) -> Array:
        """The matrix whose Cholesky factor is given, times x."""
        a = self._get("a")
        if self.problem.parameter("upper", False):
            return _times(_adjoint(a), _times(a, x, keep="upper"), keep="lower")
        return _times(a, _times(_adjoint(a), x, keep="upper"), keep="lower")

    def _cholesky_solve(self, x: Array) -> float:
        return _distance(self._from_factor(x), self._get("b"))

    def _solve(self, x: Array, *info: Array) -> float:
        a, b = self._get("a"), self._get("b")
        if self.problem.parameter("vector"):
            x, b = x[..., None], b[..., None]
        if not self.problem.parameter("left", True):
            a, x, b = (np.swapaxes(y, -1, -2) for y in (a, x, b))
        return _distance(_times(a, x), b)

    def _solve_triangular(self, x: Array) -> float:
        a, b = self._get("a"), self._get("b")
        upper = bool(self.problem.parameter("upper", False))
        if not self.problem.parameter("left", True):
            a, x, b = (np.swapaxes(y, -1, -2) for y in (a, x, b))
            upper = not upper
        unit = self.problem.parameter("unitriangular", False)
        keep = ("unit_upper" if upper else "unit") if unit else ("upper" if upper else "lower")
        return _distance(_times(a, x, keep=keep), b)

    def _lu_solve(self, x: Array) -> float:
        lu, b = self._get("a"), self._get("b")
        if self.problem.parameter("vector"):
            x, b = x[..., None], b[..., None]
        right = not self.problem.parameter("left", True)
        if right:
            x, b = np.swapaxes(x, -1, -2), np.swapaxes(b, -1, -2)
        order = _order(self._get("p"), lu.shape[-1])[..., None]
        if self.problem.parameter("adjoint", False) or right:
            turned = np.swapaxes(lu, -1, -2)
            if self.problem.parameter("adjoint", False):
                turned = turned.conj() if not right else lu.conj()
            if not (right and self.problem.parameter("adjoint", False)):
                y = _times(turned, _times(turned, np.take_along_axis(x, order, axis=-2), keep="unit_upper"), keep="lower")
                return _distance(y, b)
            lu = turned
        y = _times(lu, _times(lu, x, keep="upper"), keep="unit")
        return _distance(np.take_along_axis(y, np.argsort(order, axis=-2), axis=-2), b)

    def _lstsq(self, x: Array, *rest: Array) -> float:
        """What is left over stands at right angles to the columns."""
        a, b = self._get("a"), self._get("b")
        if self.problem.parameter("vector"):
            x, b = x[..., None], b[..., None]
        adjoint = _adjoint(a)
        return _distance(_times(adjoint, _times(a, x)), _times(adjoint, b))


def _adjoint(a: Array) -> Array:
    turned = np.swapaxes(a, -1, -2)
    return turned.conj() if a.dtype.kind == "c" else turned


def _order(pivots: Array, n: int) -> Array:
    """Where each row comes from after the interchanges."""
    order = np.broadcast_to(np.arange(n), (*pivots.shape[:-1], n)).copy()
    for i in range(pivots.shape[-1]):
        with_ = pivots[..., i : i + 1].astype(np.int64) - 1
        there = np.take_along_axis(order, with_, axis=-1)
        np.put_along_axis(order, with_, order[..., i : i + 1], axis=-1)
        order[..., i : i + 1] = there
    return order


def _times(a: Array, x: Array, keep: str = "") -> Array:
    """Matrix times vectors in float64, some rows at a time; `keep` names the triangle that counts."""
    rows, cols = a.shape[-2:]
    items = max(a.size // max(rows * cols, 1), 1)
    step = max(CHUNK // max(items * cols, 1), 1)
    x = np.asarray(x, dtype=np.result_type(_wide(a.dtype), x.dtype))
    parts = []
    for first in range(0, rows, step):
        part = a[..., first : first + step, :].astype(_wide(a.dtype))
        if keep:
            part = np.triu(part, first) if "upper" in keep else np.tril(part, first)
            if keep.startswith("unit"):
                here = np.arange(min(part.shape[-2], cols - first))
                part[..., here, here + first] = 1
        parts.append(np.matmul(part, x))
    return np.concatenate(parts, axis=-2) if len(parts) != 1 else parts[0]


def _distance(got: Array, wanted: Array, least: float = 0.0) -> float:
    """Largest difference over the largest value; `least` is a size below which that value is not taken."""
    if wanted.size == 0:
        return 0.0
    if got.shape != wanted.shape:
        return math.inf
    size = max(float(np.max(np.abs(wanted))), least)
    # Row by row where it is large: the difference in float64 would be one more copy.
    pairs = zip(got, wanted, strict=True) if got.ndim and got.size > CHUNK else [(got, wanted)]
    difference = 0.0
    for x, y in pairs:
        here = float(np.max(np.abs(x.astype(_wide(x.dtype), copy=False) - y)))
        if not math.isfinite(here):
            return math.inf
        difference = max(difference, here)
    return difference / size if size else (0.0 if difference == 0.0 else math.inf)


def _finite(array: Array) -> bool:
    if array.dtype.kind not in "fc" and array.dtype.name != "bfloat16":
        return True
    if array.ndim and array.size > CHUNK:
        return all(_finite(part) for part in array)
    return bool(np.isfinite(array).all())
