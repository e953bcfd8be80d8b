"""Linear algebra of MLX's arrays, on its CPU stream.

Where MLX would fail, at some later time and with numbers left that mean nothing, it is given another matrix, and the result is
NaN. Operations that raise find out before they return, which takes an evaluation of what they ask; those that return an info stay
lazy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import BadValue, LinAlgError
from ...problems.linalg_problem import LinalgProblem, not_definite, not_finite
from ..numpy.library import WRAP
from ..reference.empty_results import empty
from .mlx_names import names

__all__ = ["function", "note", "refusal"]

Array = Any
Run = Callable[..., Any]

REAL = ("float32", "float64")
COMPLEX = ("linalg.eigh", "linalg.eigvalsh", "linalg.svd", "linalg.svdvals", "linalg.eig", "linalg.eigvals", "linalg.lstsq")
SINGLE = ("linalg.eig", "linalg.eigvals")


def refusal(p: LinalgProblem) -> str:
    """Returns the reason why MLX does not support a linear algebra operation, or an empty string."""
    if p.op not in OPERATIONS:
        return f"there is no {p.op} for arrays of MLX"
    if p.op in SINGLE and p.dtype.name == "float64":
        return "MLX gives eigenvalues of float64 in single precision"
    if p.op == "linalg.eig" and p.dtype.name == "complex64":
        return "MLX gives the conjugates of a complex matrix's eigenvectors (0.32)"
    if p.dtype.name not in REAL and not (p.dtype.name == "complex64" and p.op in COMPLEX):
        return f"MLX has {p.op} of {', '.join(REAL)}{' and complex64' if p.op in COMPLEX else ''}, not of {p.dtype.name}"
    if p.parameter("driver") is not None:
        return f"the call asks for driver={p.parameter('driver')!r}, and MLX has no choice of one"
    if p.op == "linalg.qr" and p.parameter("mode") == "complete" and p.m > p.n:
        return "MLX has the reduced factors only"
    return ""


def note(p: LinalgProblem) -> str:
    """Returns a note for users on waiting for results or on singular matrices, or an empty string."""
    if p.op in WAITS or (p.op in CHECKED and p.parameter("check", True)):
        return "waits for what it may have to raise an error for"
    return "a zero on the diagonal gives NaN" if p.op == "linalg.solve_triangular" else ""


def function(p: LinalgProblem, mx: Any, metal: bool) -> Run:
    """The function of the arrays of a call."""
    compute = OPERATIONS[p.op]
    index = {o.role: i for i, o in enumerate(p.operands)}
    nothing = p.empty and p.op not in ("linalg.lu_solve", "linalg.lstsq")  # the one looks at pivots, the other tells a rank
    wrap = WRAP.get((p.op, p.parameter("check", True)))

    def run(*arrays: Array) -> Any:
        if nothing:
            parts = empty(p, {}, names())
        else:
            result = compute(p, mx, *(arrays[index[role]] for role in ("a", "p", "b") if role in index))
            parts = result if isinstance(result, tuple) else (result,)
        return wrap(*parts) if wrap else parts[0]

    return run


# Helpers -------------------------------------------------------------------------------------------------------------


def _adjoint(mx: Any, x: Array) -> Array:
    return mx.conjugate(mx.swapaxes(x, -1, -2)) if x.dtype == mx.complex64 else mx.swapaxes(x, -1, -2)


def _turned(mx: Any, x: Array) -> Array:
    return mx.swapaxes(x, -1, -2)


def _diagonal(mx: Any, x: Array) -> Array:
    return mx.diagonal(x, 0, -2, -1)


def _eye(mx: Any, like: Array) -> Array:
    return mx.eye(like.shape[-1], dtype=like.dtype)


def _first(mx: Any, wrong: Array) -> Array:
    """Index from 1 of the first element that is wrong, 0 where none is."""
    size = wrong.shape[-1]
    if size == 0:
        return mx.zeros(wrong.shape[:-1], mx.int32)
    return mx.where(mx.any(wrong, axis=-1), mx.argmax(wrong.astype(mx.int32), axis=-1).astype(mx.int32) + 1, 0).astype(mx.int32)


def _matrices(x: Array) -> Array:
    """A number for each matrix as one for each of its elements."""
    return x[..., None, None]


def _raise(p: LinalgProblem, info: Array, text: str) -> None:
    """Wait for info, and raise the error where one is not 0."""
    worst = int(np.asarray(info).max(initial=0))
    if worst:
        raise LinAlgError(f"{p.op}: {text.format(worst)}")


ZERO_PIVOT = "the input matrix is singular (element {} of the diagonal of U is zero)"


def _require_finite(p: LinalgProblem, mx: Any, *arrays: Array) -> None:
    if not all(bool(mx.all(mx.isfinite(x))) for x in arrays):
        raise LinAlgError(f"{p.op}: {not_finite(p.op)}")


def _spread(p: LinalgProblem, mx: Any, x: Array, core: int = 2) -> Array:
    """With the whole batch."""
    return mx.broadcast_to(x, (*p.batch, *x.shape[x.ndim - core :]))


def _zeros(p: LinalgProblem, mx: Any, *core: int, like: Array) -> Array:
    return mx.zeros((*p.batch, *core), like.dtype)


def _with_info(p: LinalgProblem, result: Any, info: Array, text: str) -> Any:
    if p.parameter("check", True):
        _raise(p, info, text)
        return result
    return (*result, info) if isinstance(result, tuple) else (result, info)


# Factorisations ------------------------------------------------------------------------------------------------------


def cholesky(p: LinalgProblem, mx: Any, a: Array) -> Any:
    factor = mx.linalg.cholesky(a, upper=p.parameter("upper", False))
    # LAPACK stops at the first pivot that is not positive, and leaves it there.
    return _with_info(p, factor, _first(mx, mx.logical_not(_diagonal(mx, factor) > 0)), not_definite("{}"))


def lu_factor(p: LinalgProblem, mx: Any, a: Array) -> Any:
    lu, pivots = mx.linalg.lu_factor(a)
    info = _first(mx, _diagonal(mx, lu) == 0)
    return _with_info(p, (lu, pivots.astype(mx.int32) + 1), info, ZERO_PIVOT)


def qr(p: LinalgProblem, mx: Any, a: Array) -> Any:
    q, r = mx.linalg.qr(a)
    return (mx.zeros((0,), a.dtype), r) if p.parameter("mode") == "r" else (q, r)


# Solving -------------------------------------------------------------------------------------------------------------


def _regular(p: LinalgProblem, mx: Any, a: Array) -> tuple[Array, Array]:
    """The matrices, the identity in the place of singular ones, and the info of each."""
    info = _first(mx, _diagonal(mx, mx.linalg.lu_factor(a)[0]) == 0)
    return mx.where(_matrices(info) == 0, a, _eye(mx, a)), info


def inv(p: LinalgProblem, mx: Any, a: Array) -> Any:
    safe, info = _regular(p, mx, a)
    result = mx.where(_matrices(info) == 0, mx.linalg.inv(safe), float("nan"))
    return _with_info(p, result, info, ZERO_PIVOT)


def solve(p: LinalgProblem, mx: Any, a: Array, b: Array) -> Any:
    vector, left = p.parameter("vector", False), p.parameter("left", True)
    b = b[..., None] if vector else b if left else _turned(mx, b)
    a = a if left else _turned(mx, a)
    safe, info = _regular(p, mx, a)
    rows, low, up = mx.linalg.lu(safe)
    x = _by_factors(mx, rows, low, up, _spread(p, mx, b))
    info = mx.broadcast_to(info, p.batch)
    x = mx.where(_matrices(info) == 0, x, float("nan"))
    x = x[..., 0] if vector else x if left else _turned(mx, x)
    return _with_info(p, x, info, ZERO_PIVOT)


def _by_factors(mx: Any, rows: Array, low: Array, up: Array, b: Array) -> Array:
    """X with A X = B, where A is the product of low and up with its rows taken in that order."""
    order = mx.broadcast_to(mx.argsort(rows, axis=-1)[..., None], b.shape)
    y = mx.linalg.solve_triangular(low, mx.take_along_axis(b, order, axis=-2), upper=False)
    return mx.linalg.solve_triangular(up, y, upper=True)


def lu_solve(p: LinalgProblem, mx: Any, lu: Array, pivots: Array, b: Array) -> Array:
    left, adjoint = p.parameter("left", True), p.parameter("adjoint", False)
    order = mx.array(_order(p, np.asarray(pivots)))
    if p.empty:
        return _zeros(p, mx, *b.shape[-2:], like=b)
    b = _spread(p, mx, b if left else _turned(mx, b))
    back = adjoint == left  # A X = B by its adjoint, or X A = B by itself: with the factors turned round
    up, low = mx.triu(lu), mx.tril(lu, -1) + _eye(mx, lu)
    order = mx.broadcast_to(order[..., None], b.shape)
    if back:
        y = _triangular(mx, _turned(mx, low), _triangular(mx, _turned(mx, up), b, False), True)
        x = mx.take_along_axis(y, mx.argsort(order, axis=-2), axis=-2)
    else:
        x = _triangular(mx, up, _triangular(mx, low, mx.take_along_axis(b, order, axis=-2), False), True)
    return x if left else _turned(mx, x)


def _order(p: LinalgProblem, pivots: Any) -> Any:
    """The order of rows that interchanges make, on the host: an index out of range would stop the process."""
    if np.any((pivots < 1) | (pivots > p.n)):
        raise BadValue(
            "linalg.lu_solve: a pivot is not one of the rows, which are counted from 1", remedy="pivots as lu_factor returns them"
        )
    order = np.broadcast_to(np.arange(p.n, dtype=np.int32), pivots.shape).copy()
    for item in np.ndindex(*pivots.shape[:-1]):
        rows = order[item]
        for i, j in enumerate(pivots[item] - 1):
            rows[[i, j]] = rows[[j, i]]
    return order


def _triangular(mx: Any, a: Array, b: Array, upper: bool) -> Array:
    """X with A X = B; NaN where the diagonal has a zero."""
    bad = mx.any(_diagonal(mx, a) == 0, axis=-1)
    x = mx.linalg.solve_triangular(mx.where(_matrices(bad), _eye(mx, a), a), b, upper=upper)
    return mx.where(_matrices(bad), float("nan"), x)


def _triangle(mx: Any, a: Array, upper: bool) -> Array:
    return mx.triu(a) if upper else mx.tril(a)


def solve_triangular(p: LinalgProblem, mx: Any, a: Array, b: Array) -> Array:
    upper, left = p.parameter("upper", False), p.parameter("left", True)
    t = _triangle(mx, a, upper)
    if p.parameter("unitriangular", False):
        t = mx.where(_eye(mx, t) != 0, mx.ones((), t.dtype), t)  # not by arithmetic: what is on the diagonal may be NaN
    if left:
        return _triangular(mx, t, _spread(p, mx, b), upper)
    return _turned(mx, _triangular(mx, _turned(mx, t), _turned(mx, _spread(p, mx, b)), not upper))


def cholesky_solve(p: LinalgProblem, mx: Any, a: Array, b: Array) -> Array:
    low = _turned(mx, mx.triu(a)) if p.parameter("upper", False) else mx.tril(a)
    return _triangular(mx, _turned(mx, low), _triangular(mx, low, _spread(p, mx, b), False), True)


def cholesky_inverse(p: LinalgProblem, mx: Any, a: Array) -> Array:
    _raise(p, _first(mx, _diagonal(mx, a) == 0), "element {} of the diagonal is zero, the factor is singular")
    low = _turned(mx, mx.triu(a)) if p.parameter("upper", False) else mx.tril(a)
    half = mx.linalg.tri_inv(low)
    return mx.matmul(_turned(mx, half), half)


def lstsq(p: LinalgProblem, mx: Any, a: Array, b: Array) -> Any:
    vector = p.parameter("vector", False)
    b = b[..., None] if vector else b
    nothing, k = mx.zeros((0,), _real(mx, a)), min(p.m, p.n)
    if p.empty:
        x, rank = _zeros(p, mx, p.n, p.k, like=a), mx.zeros(p.batch, mx.int64)
    else:
        _require_finite(p, mx, a, b)
        u, s, vh = mx.linalg.svd(a)
        kept = s > p.parameter("rcond", 0.0) * s[..., :1]
        inverse = mx.where(kept, 1 / mx.where(kept, s, mx.ones((), s.dtype)), mx.zeros((), s.dtype))
        x = mx.matmul(_adjoint(mx, u[..., :k]), b) * inverse[..., None]
        x = _spread(p, mx, mx.matmul(_adjoint(mx, vh[..., :k, :]), x))
        rank = mx.broadcast_to(mx.sum(kept, axis=-1), p.batch).astype(mx.int64)
    return x[..., 0] if vector else x, nothing, rank, nothing


# Eigenvalues and singular values -------------------------------------------------------------------------------------


def _real(mx: Any, a: Array) -> Any:
    return mx.float32 if a.dtype == mx.complex64 else a.dtype


def _hermitian(p: LinalgProblem, mx: Any, a: Array) -> str:
    """Returns the triangle that is read, "L" or "U", after checking that its elements are finite."""
    uplo = str(p.parameter("UPLO", "L"))
    _require_finite(p, mx, _triangle(mx, a, uplo == "U"))
    return uplo


def eigh(p: LinalgProblem, mx: Any, a: Array) -> Any:
    return tuple(mx.linalg.eigh(a, _hermitian(p, mx, a)))


def eigvalsh(p: LinalgProblem, mx: Any, a: Array) -> Array:
    return mx.linalg.eigvalsh(a, _hermitian(p, mx, a))


def eig(p: LinalgProblem, mx: Any, a: Array) -> Any:
    _require_finite(p, mx, a)
    return tuple(mx.linalg.eig(a))


def eigvals(p: LinalgProblem, mx: Any, a: Array) -> Array:
    _require_finite(p, mx, a)
    return mx.linalg.eigvals(a)


def svd(p: LinalgProblem, mx: Any, a: Array) -> Any:
    k, full = min(p.m, p.n), p.parameter("full_matrices", True)
    _require_finite(p, mx, a)
    u, s, vh = mx.linalg.svd(a)
    return (u, s, vh) if full else (u[..., :k], s, vh[..., :k, :])


def svdvals(p: LinalgProblem, mx: Any, a: Array) -> Array:
    _require_finite(p, mx, a)
    return mx.linalg.svd(a, compute_uv=False)


CHECKED = ("linalg.cholesky", "linalg.lu_factor", "linalg.inv", "linalg.solve")
WAITS = (
    "linalg.lu_solve", "cholesky_inverse", "linalg.lstsq", "linalg.eigh", "linalg.eigvalsh", "linalg.eig", "linalg.eigvals",
    "linalg.svd", "linalg.svdvals",
)  # fmt: skip
OPERATIONS: dict[str, Run] = {
    "linalg.cholesky": cholesky, "linalg.lu_factor": lu_factor, "linalg.qr": qr, "linalg.inv": inv, "linalg.solve": solve,
    "linalg.lu_solve": lu_solve, "linalg.solve_triangular": solve_triangular, "cholesky_solve": cholesky_solve,
    "cholesky_inverse": cholesky_inverse, "linalg.lstsq": lstsq, "linalg.eigh": eigh, "linalg.eigvalsh": eigvalsh,
    "linalg.eig": eig, "linalg.eigvals": eigvals, "linalg.svd": svd, "linalg.svdvals": svdvals,
}  # fmt: skip
