"""Products of vectors, diagonals, powers, tensor inverses, exponentials, distances, and the loss of sequences of labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import Wrong, like, near
from .linalg import Case, condition, size_of, small
from .products import DTYPES, finished

FOUR = ("float32", "float64", "complex64", "complex128")


@generates("matmul", "inner", "kron", "linalg.vecdot", weight=1)
def two(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    k = draw.size(65)
    first, second = (tuple(draw.size(7) for _ in range(draw.whole(0, 2))) for _ in "ab")
    if op == "kron":
        a, b = draw.array(first, dtype), draw.array(second, dtype)
        with np.errstate(all="ignore"):
            reference = np.asarray(np.kron(wide(a), wide(b)))
        return finished(draw, op, (a, b), {}, reference, np.abs(reference), 1, a.dtype, out=reference.ndim > 0)
    if op == "inner":
        a, b = draw.array((*first, k), dtype), draw.array((*second, k), dtype)
        rule: Any = np.inner
    else:
        a, b = draw.array((*first, k), dtype), draw.array((*first[:1], k) if len(first) == 1 else (k,), dtype)
        rule = lambda x, y: np.sum(x.conj() * y, axis=-1)  # noqa: E731  # a formula
    with np.errstate(all="ignore"):
        reference, size = np.asarray(rule(wide(a), wide(b))), np.asarray(rule(np.abs(wide(a)), np.abs(wide(b))))
    return finished(draw, op, (a, b), {}, reference, size, k, a.dtype, out=reference.ndim > 0)


@generates("matmul", "addbmm")
def summed(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    m, k, n, count = draw.size(17), draw.size(17), draw.size(17), draw.size(5)
    a, b, c = draw.array((count, m, k), dtype), draw.array((count, k, n), dtype), draw.array(draw.choice(((m, n), (n,), (1,))), dtype)
    alpha, beta = (draw.choice((1, 1, 0, -1, 2)) for _ in "ab")
    with np.errstate(all="ignore"):
        part = np.broadcast_to(wide(c) * beta if beta else np.zeros_like(wide(c)), (m, n))
        product = np.einsum("bij,bjk->ik", wide(a), wide(b)) if alpha else np.zeros((m, n), wide(a).dtype)
        size = np.einsum("bij,bjk->ik", np.abs(wide(a)), np.abs(wide(b))) if alpha else np.zeros((m, n), np.longdouble)
        reference, size = alpha * product + part, abs(alpha) * size + np.abs(part)
    kwargs = {} if (alpha, beta) == (1, 1) else {"alpha": alpha, "beta": beta}
    return finished(draw, op, (c, a, b), kwargs, reference, size, k * count + 2, a.dtype)


@generates("matmul", "cross", "linalg.cross")
def crossed(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    shape = [draw.size(5, 0) for _ in range(draw.whole(1, 3))]
    axis = draw.whole(0, len(shape) - 1)
    shape = [4 if n == 3 else n for n in shape]
    shape[axis] = 3
    a, b = draw.array(tuple(shape), dtype), draw.array(tuple(shape), dtype)
    x, y = np.moveaxis(wide(a), axis, 0), np.moveaxis(wide(b), axis, 0)
    with np.errstate(all="ignore"):
        terms = [(x[i] * y[j], x[j] * y[i]) for i, j in ((1, 2), (2, 0), (0, 1))]
        reference, size = (np.stack([f(p, q) for p, q in terms], axis) for f in (lambda p, q: p - q, lambda p, q: np.abs(p) + np.abs(q)))
    return finished(draw, op, (a, b), {} if op == "cross" else {"dim": axis}, reference, size, 2, a.dtype, 3)


@generates("matmul", "diagonal", "linalg.diagonal", "trace", "vander", "linalg.vander")
def one(draw: Draw, op: str) -> Call:
    dtype = draw.choice(FOUR if "vander" in op else (*DTYPES, "int32"))
    if "vander" in op:
        a = draw.array((*(draw.size(4) for _ in range(draw.whole(0, 2) if op[0] == "l" else 0)), draw.size(9)), dtype)
        count = draw.whole(2, 6)
        powers = [np.ones_like(wide(a))]
        with np.errstate(all="ignore"):
            while len(powers) < count:
                powers.append(powers[-1] * wide(a))
        reference = np.stack(powers if op[0] == "l" else powers[::-1], -1)
        return finished(draw, op, (a,), {"N": count}, reference, np.abs(reference), count, a.dtype, out=False)
    a = draw.array((draw.size(9), draw.size(9)), dtype)
    if op == "trace":
        with np.errstate(all="ignore"):
            reference, size = np.asarray(np.trace(wide(a))), np.asarray(np.trace(np.abs(wide(a))))
        kind = np.dtype(np.int64) if a.dtype.kind == "i" else a.dtype
        return finished(draw, op, (a,), {}, reference, size, min(a.shape), kind, out=False)
    offset = draw.whole(-10, 10)
    reference = wide(np.diagonal(a, offset))
    return Call(op, (a,), {"offset": offset}, lambda result: near(result, reference, 0, a.dtype))


@generates("linalg", "linalg.tensorinv", "linalg.tensorsolve")
def tensors(draw: Draw, op: str) -> Call:
    c = Case(draw, batch=False)
    part = next(d for d in (3, 2, 1) if c.n % d == 0)
    shape = (part, c.n // part)
    a, w = c.a.reshape(*shape, c.n), wide(c.a)
    b = draw.array(shape, c.dtype, "normal")

    def check(result: Any) -> None:
        good = condition(c.a) < 0.01 / FORMATS[c.dtype].eps / max(c.n, 1)
        if op == "linalg.tensorsolve":
            x, right = wide(like(result, (c.n,), c.a.dtype)).reshape(c.n, 1), wide(b).reshape(c.n, 1)
        else:
            x, right = wide(like(result, (c.n, *shape), c.a.dtype)).reshape(c.n, c.n), np.eye(c.n)
        if good and c.n:
            residual = w @ x - right
            if op == "linalg.tensorinv" and size_of(x @ w - right) < size_of(residual):
                residual = x @ w - right
            small(residual, size_of(w) * size_of(x), c.n, c.dtype, "A X - B")

    return c.call(op, (a,) if op == "linalg.tensorinv" else (a, b), {}, check)


@generates("linalg", "linalg.matrix_exp")
def exponential(draw: Draw, op: str) -> Call:
    draw.values = "normal"
    dtype = draw.choice(FOUR)
    n = draw.size(17)
    batch = tuple(draw.size(3) for _ in range(draw.choice((0, 0, 1))))
    x = draw.fill((*batch, n, n), dtype)
    norm = draw.choice((1e-9, 1e-4, 0.01, 0.3, 1.0, 3.0))
    with np.errstate(all="ignore"):
        x = (x * (norm / np.abs(x).sum(-2, keepdims=True).max(initial=1e-9))).astype(x.dtype)
    a = draw.lay_out(x)
    term = total = np.eye(n) + np.zeros_like(wide(a))
    for k in range(1, 50):
        term = term @ wide(a) / k
        total = total + term

    def check(result: Any) -> None:
        small(wide(like(result, a.shape, a.dtype)) - total, math.exp(2 * norm) * n**0.5, n, dtype, "exp(A)")

    return Call(op, (a,), {}, check)


@generates("matmul", "cdist")
def distances(draw: Draw, op: str) -> Call:
    draw.values = draw.choice(("normal", "normal", "whole", "zeros", "graded"))
    dtype = draw.choice(("float32", "float64"))
    m, n, k = (draw.size(33) for _ in "mnk")
    x, y = draw.array((m, k), dtype), draw.array((n, k), dtype)
    p = draw.choice((0, 0.5, 1, 2, 2, 3, math.inf))
    mode = draw.choice(("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"))
    product = p == 2 and ((mode.endswith("_dist") and mode[0] == "u") or (mode.endswith("necessary") and max(m, n) > 25))
    size = np.abs(wide(x)[:, None] - wide(y)[None])
    if p == 0:
        wanted = (size != 0).sum(-1).astype(np.longdouble)
    elif math.isinf(p):
        wanted = size.max(-1, initial=0)
    else:
        wanted = (size**p).sum(-1) ** (1 / np.longdouble(p))
    f = FORMATS[dtype]
    lengths = (wide(x) ** 2).sum(-1)[:, None] + (wide(y) ** 2).sum(-1)

    def check(result: Any) -> None:
        if product:  # squares cancel
            got = wide(like(result, (m, n), np.dtype(dtype)))
            if not (np.abs(got**2 - wanted**2) <= 8 * (k + 8) * f.eps * lengths).all():
                raise Wrong("value", "squares of distances are further off than the squares of lengths let them")
            return
        near(result, wanted, (4 * k + 40) * f.eps * wanted + f.tiny * 16, np.dtype(dtype))

    return Call(op, (x, y), {"p": p, "compute_mode": mode}, check)


@generates("neural", "nn.functional.ctc_loss")
def sequences(draw: Draw, op: str) -> Call:
    dtype = draw.choice(("float32", "float64"))
    times, count, labels, longest = draw.whole(1, 9), draw.whole(1, 4), draw.whole(2, 5), draw.whole(0, 4)
    x = draw.array((times, count, labels), dtype, "normal")
    targets = draw.lay_out(np.array([[draw.whole(1, labels - 1) for _ in range(longest)] for _ in range(count)], np.int64).reshape(count, longest))
    inputs, lengths = ([draw.whole(low, most) for _ in range(count)] for low, most in ((1, times), (0, longest)))
    wanted = np.array([_loss(wide(x)[: inputs[i], i], targets[i, : lengths[i]]) for i in range(count)])
    bound = 40 * times * FORMATS[dtype].eps * (1 + np.where(np.isfinite(wanted), np.abs(wanted), 0) + 4 * times)
    return Call(op, (x, targets, inputs, lengths), {"reduction": "none"}, lambda result: near(result, wanted, bound, x.dtype))


def _loss(x: Array, target: Array) -> Any:
    """Probabilities themselves, not their logarithms."""
    path = np.zeros(2 * len(target) + 1, int)
    path[1::2] = target
    alpha = np.zeros(len(path), np.longdouble)
    alpha[:2] = np.exp(x[0, path[:2]])
    for row in x[1:]:
        alpha = np.array([
            (alpha[s] + (alpha[s - 1] if s else 0) + (alpha[s - 2] if s > 1 and path[s] != path[s - 2] else 0)) * np.exp(row[path[s]])
            for s in range(len(path))
        ])  # fmt: skip
    with np.errstate(all="ignore"):
        return -np.log(alpha[-1] + (alpha[-2] if len(target) else 0))
