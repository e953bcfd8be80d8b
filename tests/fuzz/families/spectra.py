"""Linear algebra by values of its own: eigenvalues, singular values, determinants, ranks and pseudo-inverses."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import Wrong, like, near
from .linalg import Case, adjoint, condition, size_of, small


@generates("linalg", "linalg.eigh", "linalg.eigvalsh", weight=2)
def hermitian(draw: Draw, op: str) -> Call:
    c = Case(draw, hermitian=draw.chance(0.7))
    side = draw.choice("LU")
    low = np.tril(wide(c.a), -1) if side == "L" else adjoint(np.triu(wide(c.a), 1))
    a = low + adjoint(low) + np.einsum("...ii->...i", wide(c.a)).real[..., None] * np.eye(c.n)

    def check(result: Any) -> None:
        values = result if isinstance(result, np.ndarray) else result.eigenvalues
        like(values, c.a.shape[:-1], np.zeros(0, c.dtype).real.dtype)
        if (np.diff(values) < 0).any():
            raise Wrong("order", "eigenvalues do not ascend")
        if c.n:
            reference = np.linalg.eigvalsh(a.astype(np.complex128))
            small((values - reference)[..., None], size_of(a), c.n, c.dtype, "eigenvalues")
        if not isinstance(result, np.ndarray):
            v = wide(like(result.eigenvectors, c.a.shape, c.a.dtype))
            small(a @ v - v * values[..., None, :], size_of(a), c.n, c.dtype, "A V - V L")
            small(adjoint(v) @ v - np.eye(c.n), 1, c.n, c.dtype, "V* V - 1")

    return c.call(op, (c.a,), {"UPLO": side} if side == "U" else {}, check)


@generates("linalg", "linalg.eig", "linalg.eigvals", weight=2)
def eigenvalues(draw: Draw, op: str) -> Call:
    c = Case(draw)
    a = wide(c.a)
    kind = np.result_type(c.a.dtype, np.complex64)

    def check(result: Any) -> None:
        values = result if isinstance(result, np.ndarray) else result.eigenvalues
        like(values, c.a.shape[:-1], kind)
        small((values.sum(-1) - np.einsum("...ii->...", a))[..., None, None], size_of(a), c.n, c.dtype, "trace")
        if not isinstance(result, np.ndarray):
            v = wide(like(result.eigenvectors, c.a.shape, kind))
            # Balancing: an eigenvalue's residual is relative to a matrix that is graded otherwise.
            small(a @ v - v * wide(values)[..., None, :], size_of(a), c.n, c.dtype, "A V - V L", 300)
        elif 0 < c.n < 20 and c.a.size:
            shifted = a.astype(np.complex128)[..., None, :, :] - values[..., None, None].astype(np.complex128) * np.eye(c.n)
            least = np.linalg.svd(shifted, compute_uv=False)[..., -1]
            small(least[..., None], size_of(a), c.n, c.dtype, "an eigenvalue's backward error", 100)

    return c.call(op, (c.a,), {}, check)


@generates("linalg", "linalg.svd", "linalg.svdvals", weight=2)
def singular(draw: Draw, op: str) -> Call:
    c = Case(draw, square=False)
    full = draw.chance(0.5)
    driver = draw.choice((None, None, None, "gesdd", "gesvd"))
    a, k, n = wide(c.a), min(c.m, c.n), max(c.m, c.n)

    def check(result: Any) -> None:
        values = result if isinstance(result, np.ndarray) else result.S
        like(values, (*c.batch, k), np.zeros(0, c.dtype).real.dtype)
        if (np.diff(values) > 0).any() or (values < 0).any():
            raise Wrong("order", "singular values do not descend, or are negative")
        if c.a.size:
            small((values - np.linalg.svd(a.astype(np.complex128), compute_uv=False))[..., None], size_of(a), n, c.dtype, "S")
        if isinstance(result, np.ndarray):
            return
        u = wide(like(result.U, (*c.batch, c.m, c.m if full else k), c.a.dtype, "U"))
        vh = wide(like(result.Vh, (*c.batch, c.n if full else k, c.n), c.a.dtype, "Vh"))
        small((u[..., :k] * values[..., None, :]) @ vh[..., :k, :] - a, size_of(a), n, c.dtype, "U S Vh - A")
        small(adjoint(u) @ u - np.eye(u.shape[-1]), 1, n, c.dtype, "U* U - 1")
        small(vh @ adjoint(vh) - np.eye(vh.shape[-2]), 1, n, c.dtype, "Vh Vh* - 1")

    kwargs: dict[str, Any] = {"driver": driver} if driver else {}
    if op == "linalg.svd" and not full:
        kwargs["full_matrices"] = False
    return c.call(op, (c.a,), kwargs, check)


def _exact_determinants(a: Array) -> tuple[Array, Array]:
    """Sign and logarithm of determinants by elimination in wide arithmetic."""
    a = np.array(a)
    n = a.shape[-1]
    sign, log = np.ones(a.shape[:-2], a.dtype), np.zeros(a.shape[:-2], np.longdouble)
    for item in np.ndindex(*a.shape[:-2]):
        m = a[item]
        for i in range(n):
            j = i + int(np.argmax(np.abs(m[i:, i])))
            if j != i:
                m[[i, j]] = m[[j, i]]
                sign[item] = -sign[item]
            p = m[i, i]
            if p == 0:
                sign[item], log[item] = 0, -np.inf
                break
            sign[item] *= p / np.abs(p)
            log[item] += np.log(np.abs(p))
            m[i + 1 :, i:] -= np.outer(m[i + 1 :, i] / p, m[i, i:])
    return sign, log


@generates("linalg", "linalg.det", "linalg.slogdet", weight=2)
def determinant(draw: Draw, op: str) -> Call:
    c = Case(draw)
    a = wide(c.a)
    f = FORMATS[c.dtype]

    def check(result: Any) -> None:
        sign, log = _exact_determinants(a)
        error = 30 * max(c.n, 1) * f.eps * condition(c.a)
        error = np.where(error > 0.3, np.inf, error)
        if op == "linalg.det":
            with np.errstate(all="ignore"):
                reference = np.asarray(sign * np.exp(log))
                near(np.asarray(result), reference, error * np.abs(reference) + np.where(np.isfinite(error), f.tiny * 4, np.inf), c.a.dtype)
            return
        near(np.asarray(result.sign), np.asarray(sign), np.asarray(error + 8 * f.eps), c.a.dtype, "sign")
        kind = np.zeros(0, c.dtype).real.dtype
        near(np.asarray(result.logabsdet), np.asarray(log), np.asarray(error + (c.n + 4) * f.eps * (np.abs(log) + c.n)), kind, "logabsdet")

    return c.call(op, (c.a,), {}, check)


@generates("linalg", "linalg.pinv", "linalg.matrix_rank")
def pseudo(draw: Draw, op: str) -> Call:
    symmetric = draw.chance(0.25)
    c = Case(draw, square=symmetric, hermitian=symmetric)
    a, n = wide(c.a), max(c.m, c.n)

    def check(result: Any) -> None:
        good = condition(c.a) < 0.001 / FORMATS[c.dtype].eps / max(n, 1)
        if op == "linalg.matrix_rank":
            if (np.asarray(result)[good] != min(c.m, c.n)).any():
                raise Wrong("value", f"rank is {result}, not {min(c.m, c.n)}")
            return
        x = wide(like(result, (*c.batch, c.n, c.m), c.a.dtype))[good]
        m = a[good]
        small(m @ x @ m - m, size_of(m) ** 2 * size_of(x), n, c.dtype, "A X A - A")
        small(x @ m @ x - x, size_of(x) ** 2 * size_of(m), n, c.dtype, "X A X - X")

    return c.call(op, (c.a,), {"hermitian": True} if symmetric else {}, check)
