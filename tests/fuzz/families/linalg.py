"""Linear algebra: judged by backward error, orthogonality and reconstruction, each within c n eps norm (Higham; LAPACK Users' Guide)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backline.errors import LinAlgError

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import Wrong, like

DTYPES = ("float32", "float64", "complex64", "complex128")


def adjoint(x: Array) -> Array:
    return x.conj().swapaxes(-1, -2)


def size_of(x: Array) -> Array:
    """Frobenius norm of each matrix."""
    return np.sqrt(np.sum(np.abs(x) ** 2, axis=(-1, -2), keepdims=True))


def small(residual: Array, scale: Any, n: int, dtype: Any, name: str, factor: float = 30) -> None:
    if not residual.size:
        return
    f = FORMATS[np.dtype(dtype).name]
    with np.errstate(all="ignore"):
        error = size_of(residual)
        limit = factor * max(n, 1) * f.eps * scale + f.tiny * 16 * max(n, 1) * (1 + np.asarray(scale))
        wrong = ~(error <= limit)
    if wrong.any():
        kind = "value" if np.isfinite(residual).all() else "not finite"
        ratio = float(np.max(np.where(np.isfinite(error), error / limit, 0)))
        raise Wrong(kind, f"{name}: {ratio:.3g} times the bound in {int(wrong.sum())} of {wrong.size} matrices")


class Case:
    """A random matrix, or a batch of them."""

    def __init__(self, draw: Draw, *, batch: bool = True, square: bool = True, hermitian: bool = False, definite: bool = False) -> None:
        draw.values = draw.choice(("normal",) * 6 + ("whole", "zeros", "graded", "special"))
        self.dtype = draw.choice(DTYPES)
        self.draw = draw
        self.special = draw.values == "special" and not draw.plain.values
        r = draw.random.random()
        most = 9 if r < 0.5 else 33 if r < 0.9 else 65
        self.m = draw.size(most, 0.01)
        self.n = self.m if square else draw.size(most, 0.01)
        if draw.chance(0.015) and not draw.plain.size:
            self.m, self.n = (self.m + 70, self.n + 70) if square else (self.m + 70, self.n)
        self.batch = tuple(draw.size(4) for _ in range(draw.choice((0, 0, 0, 1, 1, 2)))) if batch and self.m < 40 else ()
        x = draw.fill((*self.batch, self.m, self.n), self.dtype)
        self.factor = 2.0 ** draw.choice((0, 0, 0, 0, 10, -10)) if draw.values == "normal" else 1.0
        with np.errstate(all="ignore"):
            if definite:
                w = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
                x = (w @ adjoint(w) + max(self.n, 1) * np.eye(self.n)).astype(x.dtype)
            elif hermitian:
                x = x + adjoint(x)
            x = (x * x.dtype.type(self.factor)).astype(x.dtype)
        self.a = draw.lay_out(x)

    def right(self, left: bool = True) -> Array:
        k = self.draw.choice((1, 1, 2, 3, 5, 8, 17, 0)) if not self.draw.plain.size else 1
        shape = (*self.batch, self.m, k) if left else (*self.batch, k, self.n)
        return self.draw.array(shape, self.dtype, "normal")

    def call(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], check: Callable[[Any], None]) -> Call:
        """Matrices with NaN or infinity may raise or give NaN, and are not looked at further."""
        special = not all(np.isfinite(a).all() for a in args if isinstance(a, np.ndarray) and a.dtype.kind in "fc")
        return Call(op, args, kwargs, (lambda result: None) if special else check, raises=(LinAlgError,))


def condition(a: Array) -> Array:
    """2-norm condition number of each matrix; infinite where it has no value."""
    if 0 in a.shape[-2:] or not a.size:
        return np.ones(a.shape[:-2])
    with np.errstate(all="ignore"):
        s = np.linalg.svd(a.astype(np.complex128), compute_uv=False)
        k = s[..., 0] / s[..., -1]
        return np.where(np.isfinite(k), k, np.inf)


def _info(result: Any, batch: tuple[int, ...]) -> Array:
    return like(result, batch, np.dtype(np.int32), "info")


@generates("linalg", "linalg.cholesky", "linalg.cholesky_ex", weight=2)
def cholesky(draw: Draw, op: str) -> Call:
    c = Case(draw, definite=draw.chance(0.7), hermitian=True)
    upper = draw.chance(0.5)
    a = wide(c.a)
    kept = np.triu(a, 1) if upper else np.tril(a, -1)
    diagonal = np.einsum("...ii->...i", a).real[..., None] * np.eye(c.n)
    whole = kept + adjoint(kept) + diagonal

    def check(result: Any) -> None:
        factor = result if isinstance(result, np.ndarray) else result.L
        like(factor, c.a.shape, c.a.dtype)
        good = np.ones(c.batch, bool)
        if not isinstance(result, np.ndarray):
            good = _info(result.info, c.batch) == 0
        if (np.tril(factor, -1) if upper else np.triu(factor, 1))[good].any():
            raise Wrong("value", "the other triangle is not zero")
        f = wide(factor)
        residual = (adjoint(f) @ f if upper else f @ adjoint(f)) - whole
        small(residual[good], size_of(whole)[good], c.n, c.dtype, "L L* - A")
        if not good.all():
            least = np.linalg.eigvalsh(whole[~good].astype(np.complex128))[..., 0]
            if (least > 100 * c.n * FORMATS[c.dtype].eps * size_of(whole[~good])[..., 0, 0]).any():
                raise Wrong("refused", "info of a matrix that is positive definite")

    return c.call(op, (c.a,), {"upper": upper} if upper else {}, check)


def unpivot(pivots: Array, x: Array) -> Array:
    """P X, for pivots as LAPACK counts them."""
    x = np.array(x)
    for item in np.ndindex(*x.shape[:-2]):
        rows = x[item]
        for i in reversed(range(pivots.shape[-1])):
            j = int(pivots[item][i]) - 1
            rows[[i, j]] = rows[[j, i]]
    return x


@generates("linalg", "linalg.lu_factor", "linalg.lu_factor_ex", "linalg.lu", weight=2)
def lu(draw: Draw, op: str) -> Call:
    c = Case(draw, square=False)
    a, k = wide(c.a), min(c.m, c.n)

    def check(result: Any) -> None:
        if op == "linalg.lu":
            p, low, up = wide(result.P), wide(result.L), wide(result.U)
            if np.triu(low, 1).any() or np.tril(up, -1).any():
                raise Wrong("value", "L or U is not triangular")
            small(p @ low @ up - a, size_of(low) * size_of(up), k, c.dtype, "P L U - A")
            return
        pivots = like(result.pivots, (*c.batch, k), np.dtype(np.int32), "pivots")
        low = np.tril(wide(result.LU)[..., :k], -1) + np.eye(c.m, k)
        up = np.triu(wide(result.LU)[..., :k, :])
        small(unpivot(pivots, low @ up) - a, size_of(low) * size_of(up), k, c.dtype, "P L U - A")

    return c.call(op, (c.a,), {}, check)


@generates("linalg", "linalg.inv", "linalg.inv_ex", weight=2)
def inverse(draw: Draw, op: str) -> Call:
    c = Case(draw)
    a = wide(c.a)

    def check(result: Any) -> None:
        x = result if isinstance(result, np.ndarray) else result.inverse
        like(x, c.a.shape, c.a.dtype)
        good = condition(c.a) < 0.01 / FORMATS[c.dtype].eps / max(c.n, 1)
        if not isinstance(result, np.ndarray) and (_info(result.info, c.batch) != 0)[good].any():
            raise Wrong("refused", "info of a matrix that is not singular")
        w, m = wide(x)[good], a[good]
        one = np.eye(c.n)
        right, left = m @ w - one, w @ m - one
        with np.errstate(all="ignore"):
            better = np.where(size_of(right) < size_of(left), right, left)
        small(better, size_of(m) * size_of(w), c.n, c.dtype, "A X - 1")

    return c.call(op, (c.a,), {}, check)


def _residual(c: Case, a: Array, b: Array, x: Array, left: bool, name: str = "A X - B", grow: Any = 1.0) -> None:
    good = condition(a) < 0.01 / FORMATS[c.dtype].eps / max(a.shape[-1], 1)
    if good.shape != c.batch:
        good = np.broadcast_to(good, c.batch)
    m, w, r = (np.broadcast_to(v, (*c.batch, *v.shape[-2:]))[good] for v in (a, x, b))
    small((m @ w if left else w @ m) - r, size_of(m) * size_of(w) * grow, c.n, c.dtype, name)


@generates("linalg", "linalg.solve", "linalg.solve_ex", weight=3)
def solve(draw: Draw, op: str) -> Call:
    c = Case(draw)
    left = draw.chance(0.8)
    b = c.right(left)
    vector = left and draw.chance(0.15)
    if vector:
        b = draw.array((*c.batch, c.n), c.dtype, "normal")
    a, w = wide(c.a), wide(b)

    def check(result: Any) -> None:
        x = wide(like(result if isinstance(result, np.ndarray) else result.result, b.shape, b.dtype))
        if not isinstance(result, np.ndarray):
            _info(result.info, c.batch)
        _residual(c, a, w[..., None] if vector else w, x[..., None] if vector else x, left)

    return c.call(op, (c.a, b), {} if left else {"left": False}, check)


@generates("linalg", "linalg.solve_triangular", weight=3)
def triangular(draw: Draw, op: str) -> Call:
    c = Case(draw)
    left, upper, unit = draw.chance(0.6), draw.chance(0.5), draw.chance(0.3)
    b = c.right(left)
    t = np.array(np.triu(c.a) if upper else np.tril(c.a))
    if unit:
        t[..., range(c.n), range(c.n)] = 1
    a, w = wide(t), wide(b)

    def check(result: Any) -> None:
        _residual(c, a, w, wide(like(result, b.shape, b.dtype)), left, "T X - B")

    kwargs: dict[str, Any] = {"upper": upper}
    kwargs |= {k: v for k, v, d in (("left", left, True), ("unitriangular", unit, False)) if v != d}
    # What lies in the other triangle does not count, NaN included.
    call = c.call(op, (c.a, b), kwargs, check)
    return call


@generates("linalg", "linalg.lu_solve", "cholesky_solve", "cholesky_inverse", weight=2)
def by_factors(draw: Draw, op: str) -> Call:
    c = Case(draw)
    strong = (wide(c.a) + 3 * max(c.n, 1) * c.factor * np.eye(c.n)).astype(c.a.dtype)
    if op != "linalg.lu_solve":  # the diagonal of a Cholesky factor is real
        strong[..., range(c.n), range(c.n)] = strong[..., range(c.n), range(c.n)].real
    # Strides of 0 would repeat what is off the diagonal there.
    a = draw.lay_out(strong, "" if op == "linalg.lu_solve" else draw.choice(("C", "F", "steps", "negative")))
    upper = draw.chance(0.5)
    if op == "linalg.lu_solve":
        left, turned = draw.chance(0.7), draw.chance(0.3)
        b = c.right(left)
        pivots = np.zeros((*c.batch, c.n), np.int32)
        for i in range(c.n):
            pivots[..., i] = i + 1 + np.array([draw.whole(0, c.n - 1 - i) for _ in range(int(np.prod(c.batch, dtype=int)))]).reshape(c.batch)
        pivots = draw.lay_out(pivots)
        w = unpivot(pivots, (np.tril(wide(a), -1) + np.eye(c.n)) @ np.triu(wide(a)))
        w = adjoint(w) if turned else w
        grow = 1 + size_of(wide(a)) ** 2 / (size_of(w) + 1e-300) if a.size else 1.0

        def check_lu(result: Any) -> None:
            _residual(c, w, wide(b), wide(like(result, b.shape, b.dtype)), left, "A X - B", grow if np.ndim(grow) == 0 else np.max(grow, initial=1))

        kwargs = {k: v for k, v, d in (("left", left, True), ("adjoint", turned, False)) if v != d}
        return c.call(op, (a, pivots, b), kwargs, check_lu)
    factor = wide(np.triu(a) if upper else np.tril(a))
    whole = adjoint(factor) @ factor if upper else factor @ adjoint(factor)
    b = c.right()

    def check(result: Any) -> None:
        if op == "cholesky_solve":
            _residual(c, whole, wide(b), wide(like(result, b.shape, b.dtype)), True)
            return
        x = wide(like(result, a.shape, a.dtype))
        good = condition(whole) < 0.01 / FORMATS[c.dtype].eps / max(c.n, 1)
        x, m = x[good], whole[good]
        root = np.sqrt(condition(m))[..., None, None]
        small(m @ x - np.eye(c.n), size_of(m) * size_of(x) * root, c.n, c.dtype, "A X - 1")
        small(x - adjoint(x), size_of(x), c.n, c.dtype, "X - X*")

    kwargs = {"upper": True} if upper else {}
    return c.call(op, (b, a) if op == "cholesky_solve" else (a,), kwargs, check)


@generates("linalg", "linalg.qr", weight=2)
def qr(draw: Draw, op: str) -> Call:
    c = Case(draw, square=False)
    mode = draw.choice(("reduced", "reduced", "complete", "r"))
    a, k = wide(c.a), min(c.m, c.n)

    def check(result: Any) -> None:
        r = wide(like(result.R, (*c.batch, c.m if mode == "complete" else k, c.n), c.a.dtype, "R"))
        if np.tril(r, -1).any():
            raise Wrong("value", "R is not triangular")
        if mode == "r":
            small(adjoint(r) @ r - adjoint(a) @ a, size_of(a) ** 2, c.m, c.dtype, "R* R - A* A")
            return
        q = wide(like(result.Q, (*c.batch, c.m, c.m if mode == "complete" else k), c.a.dtype, "Q"))
        small(q @ r - a, size_of(a), c.m, c.dtype, "Q R - A")
        small(adjoint(q) @ q - np.eye(q.shape[-1]), 1, c.m, c.dtype, "Q* Q - 1")

    return c.call(op, (c.a,), {"mode": mode} if mode != "reduced" else {}, check)


@generates("linalg", "linalg.lstsq", weight=2)
def least_squares(draw: Draw, op: str) -> Call:
    c = Case(draw, square=False)
    driver = draw.choice((None, "gelsy", "gels", "gelsd", "gelss"))
    b = c.right()
    a, w = wide(c.a), wide(b)

    def check(result: Any) -> None:
        x = wide(like(result.solution, (*c.batch, c.n, b.shape[-1]), b.dtype))
        if not c.a.size or not b.size:
            return
        good = condition(c.a) < 1e-3 / FORMATS[c.dtype].eps**0.5
        m, y, r = a[good], x[good], w[good]
        if c.m >= c.n:
            small(adjoint(m) @ (m @ y - r), size_of(m) * (size_of(m) * size_of(y) + size_of(r)), max(c.m, c.n), c.dtype, "A* (A X - B)")
        else:
            small(m @ y - r, size_of(m) * size_of(y), max(c.m, c.n), c.dtype, "A X - B")
        if driver != "gels" and (np.asarray(result.rank)[good] != min(c.m, c.n)).any():
            raise Wrong("value", f"rank is {result.rank}, not {min(c.m, c.n)}")

    return c.call(op, (c.a, b), {"driver": driver} if driver else {}, check)


def from_ldl(ld: Array, pivots: Array, hermitian: bool) -> Array:
    """The matrix of LDL factors, the last rows first."""
    n = ld.shape[-1]
    whole = np.zeros(ld.shape, np.result_type(ld.dtype, np.longdouble))
    for item in np.ndindex(*ld.shape[:-2]):
        x, rows = ld[item].astype(whole.dtype), pivots[item]
        blocks, k = [], 0
        while k < n:
            blocks.append((k, k + (1 if rows[k] > 0 else 2)))
            k = blocks[-1][1]
        left, middle = np.eye(n, dtype=x.dtype), np.zeros_like(x)
        for first, end in reversed(blocks):
            left[end:] += x[end:, first:end] @ left[first:end]
            other = abs(int(rows[end - 1])) - 1
            left[[end - 1, other]] = left[[other, end - 1]]
            block = np.tril(x[first:end, first:end])
            low = np.tril(block, -1)
            middle[first:end, first:end] = block + (adjoint(low) if hermitian else low.T)
        whole[item] = left @ middle @ (adjoint(left) if hermitian else left.T)
    return whole


@generates("linalg", "linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve", weight=2)
def indefinite(draw: Draw, op: str) -> Call:
    c = Case(draw, hermitian=True)
    turned = draw.chance(0.5)
    low = np.tril(wide(c.a), -1)
    diagonal = np.einsum("...ii->...i", wide(c.a))
    a = low + (adjoint(low) if turned else low.swapaxes(-1, -2)) + (diagonal.real if turned else diagonal)[..., None] * np.eye(c.n)
    words = {"hermitian": True} if turned else {}

    def check(result: Any) -> None:
        ld, pivots = like(result.LD, c.a.shape, c.a.dtype, "LD"), like(result.pivots, (*c.batch, c.n), np.dtype(np.int32), "pivots")
        if np.triu(ld, 1).any():
            raise Wrong("value", "what is above the diagonal is not zero")
        grown = size_of(from_ldl(np.abs(ld), pivots, False))  # elements of L have no bound (Higham, section 11.1)
        small(from_ldl(ld, pivots, turned) - a, grown, c.n, c.dtype, "P L D L* P* - A")

    if op != "linalg.ldl_solve":
        return c.call(op, (c.a,), words, check)
    # Strides of 0 would repeat what is off the diagonal there.
    layout = draw.choice(("C", "F", "steps", "negative"))
    factors = draw.lay_out((np.tril(wide(c.a)) / (1 + size_of(wide(c.a))) + 3 * np.eye(c.n)).astype(c.a.dtype), layout)
    pivots = np.zeros((*c.batch, c.n), np.int32)
    for i in range(c.n):
        pivots[..., i] = draw.whole(i + 1, c.n)
    pivots, b = draw.lay_out(pivots, layout), c.right()
    strong = np.tril(wide(factors))
    if turned:
        strong[..., range(c.n), range(c.n)] = strong[..., range(c.n), range(c.n)].real
    whole = from_ldl(strong, pivots, turned)

    def check_solution(result: Any) -> None:
        _residual(c, whole, wide(b), wide(like(result, b.shape, b.dtype)), True, "A X - B", 10)

    return c.call(op, (factors, pivots, b), words, check_solution)


@generates("linalg", "linalg.householder_product")
def reflectors(draw: Draw, op: str) -> Call:
    c = Case(draw, square=False)
    m, n = max(c.m, c.n), min(c.m, c.n)
    k = draw.whole(0, n)
    with np.errstate(all="ignore"):
        x = draw.fill((*c.batch, m, n), c.dtype, "normal")
        x = (x / max(m, 1) ** 0.5).astype(x.dtype)
    a, tau = draw.lay_out(x), draw.array((*c.batch, k), c.dtype, "normal")
    columns, grow = np.zeros((*c.batch, m, n), wide(a).dtype) + np.eye(m, n), np.ones((*c.batch, 1, 1))
    for i in reversed(range(k)):
        v = np.where(np.arange(m)[:, None] < i, 0, np.where(np.arange(m)[:, None] == i, 1, wide(a)[..., i : i + 1]))
        columns = columns - wide(tau)[..., i, None, None] * (v @ (adjoint(v) @ columns))
        grow = grow * (1 + np.abs(tau[..., i, None, None]) * size_of(v) ** 2)

    def check(result: Any) -> None:
        got = wide(like(result, a.shape, a.dtype))
        if a.size and np.max(grow) < 0.1 / FORMATS[c.dtype].eps:
            small(got - columns, grow * n**0.5, m, c.dtype, "Q")

    return Call(op, (a, tau), {}, check)
