"""Products: matmul and its relatives, linear and bilinear layers, their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import Array, Draw, wide
from ..call import Call, generates
from ..check import near, sums

DTYPES = ("float32",) * 5 + ("float64",) * 4 + ("complex64", "complex128") * 2 + ("float16", "bfloat16") * 2
FLOATS = ("float32",) * 4 + ("float64",) * 3 + ("float16", "bfloat16")


def product(a: Array, b: Array) -> tuple[Array, Array]:
    """a @ b in wide arithmetic, and of absolute values."""
    x, y = wide(a), wide(b)
    with np.errstate(all="ignore"):
        return np.matmul(x, y), np.matmul(np.abs(x), np.abs(y))


def _sizes(draw: Draw) -> tuple[int, int, int]:
    """m, k, n; one of them is sometimes large, then the others are small."""
    m, k, n = (draw.size(65) for _ in range(3))
    if draw.chance(0.04) and not draw.plain.size:
        large = draw.whole(100, 3000)
        which = draw.whole(0, 2)
        m, k, n = (large if which == i else min(x, 17) for i, x in enumerate((m, k, n)))
    return m, k, n


def _batches(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    batch = tuple(draw.size(4) for _ in range(draw.choice((0, 0, 0, 1, 1, 2))))
    if not batch or draw.chance(0.5):
        return batch, batch
    def part() -> tuple[int, ...]:
        kept = tuple(1 if draw.chance(0.3) else n for n in batch)
        return kept[draw.whole(0, len(kept)) :]
    return (part(), batch) if draw.chance(0.5) else (batch, part())


def finished(draw: Draw, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], reference: Array, size: Array, terms: int, dtype: Any, steps: int = 1, out: bool = True) -> Call:
    """The call, with `out` perhaps, and its check."""
    if dtype.kind in "biu":
        with np.errstate(all="ignore"):
            reference = reference.astype(dtype) if dtype.kind != "b" else reference != 0
        bound: Any = 0
    else:
        bound = sums(reference, size, terms, dtype, steps)
    target = None
    if out and draw.chance(0.15) and not draw.plain.out:
        target = draw.out(reference.shape, dtype)
        kwargs = {**kwargs, "out": target}
    call = Call(op, args, kwargs, lambda result: near(result, reference, bound + call.extra, dtype), out=target)
    if dtype.name in ("float32", "complex64"):
        with np.errstate(all="ignore"):
            call.reduced = 2.0**-6 * steps * size + terms * 2.0**-130
    return call


@generates("matmul", "matmul", "linalg.matmul", weight=4)
def matmul(draw: Draw, op: str) -> Call:
    dtype = draw.choice((*DTYPES, "int8", "int32", "int64", "uint8")) if draw.chance(0.5) else draw.choice(DTYPES)
    m, k, n = _sizes(draw)
    form = draw.choice(("mm", "mm", "mm", "batch", "batch", "mv", "vm", "vv"))
    left, right = _batches(draw) if form not in ("mm", "vv") else ((), ())
    a = draw.array((k,) if form[0] == "v" else (*left, m, k), dtype)
    b = draw.array((k,) if form[1] == "v" else (*right, k, n), dtype)
    reference, size = product(a, b)
    return finished(draw, op, (a, b), {}, reference, size, k, a.dtype, out=reference.ndim > 0)


@generates("matmul", "mm", "bmm", "mv", "dot", "vdot", "outer", weight=2)
def plain(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    m, k, n = _sizes(draw)
    batch = (draw.size(5),) if op == "bmm" else ()
    if op in ("dot", "vdot") and draw.chance(0.2):
        k = k * 50
    shapes = {"mv": ((m, k), (k,)), "dot": ((k,), (k,)), "vdot": ((k,), (k,)), "outer": ((m,), (n,))}
    first, second = shapes.get(op, ((*batch, m, k), (*batch, k, n)))
    a, b = draw.array(first, dtype), draw.array(second, dtype)
    with np.errstate(all="ignore"):
        if op == "outer":
            reference, terms = np.outer(wide(a), wide(b)), 1
            size = np.abs(reference)
        else:
            terms = k
            reference, size = product(a.conj() if op == "vdot" and a.dtype.kind == "c" else a, b)
    return finished(draw, op, (a, b), {}, reference, size, terms, a.dtype, out=reference.ndim > 0)


@generates("matmul", "addmm", "baddbmm", weight=2)
def added(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    m, k, n = _sizes(draw)
    batch = (draw.size(4),) if op == "baddbmm" else ()
    a, b = draw.array((*batch, m, k), dtype), draw.array((*batch, k, n), dtype)
    shape = draw.choice(((*batch, m, n), (*batch, m, n), (n,), (m, 1), (1, n), (1,)))
    c = draw.array(shape, dtype)
    alpha, beta = (draw.choice((1, 1, 0, -1, 2, 0.5, -1.5)) for _ in "ab")
    reference, size = product(a, b)
    with np.errstate(all="ignore"):
        # Where a factor is 0, what it multiplies does not count.
        c_part = wide(c) * beta if beta else np.zeros_like(wide(c))
        if not alpha:
            reference, size = np.zeros_like(reference), np.zeros_like(size)
        reference = alpha * reference + c_part
        size = abs(alpha) * size + np.abs(c_part)
    kwargs = {} if (alpha, beta) == (1, 1) else {"alpha": alpha, "beta": beta}
    return finished(draw, op, (c, a, b), kwargs, reference, size, k + 2, a.dtype)


@generates("matmul", "tensordot", weight=1)
def tensordot(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    shared = [draw.size(7) for _ in range(draw.whole(0, 2))]
    mine = [draw.size(7) for _ in range(draw.whole(0, 2))]
    theirs = [draw.size(7) for _ in range(draw.whole(0, 2))]
    n = len(shared)
    if draw.chance(0.5):
        a, b, dims = draw.array((*mine, *shared), dtype), draw.array((*shared, *theirs), dtype), n
        left, right = list(range(len(mine), len(mine) + n)), list(range(n))
    else:
        at, bt = list(range(n + len(mine))), list(range(n + len(theirs)))
        draw.random.shuffle(at), draw.random.shuffle(bt)
        left, right = at[:n], bt[:n]
        sa, sb = [0] * len(at), [0] * len(bt)
        for axis, size in zip(at, (*shared, *mine), strict=True):
            sa[axis] = size
        for axis, size in zip(bt, (*shared, *theirs), strict=True):
            sb[axis] = size
        a, b, dims = draw.array(tuple(sa), dtype), draw.array(tuple(sb), dtype), (left, right)
    x, y = wide(a), wide(b)
    with np.errstate(all="ignore"):
        reference = np.asarray(np.tensordot(x, y, (left, right)))
        size = np.asarray(np.tensordot(np.abs(x), np.abs(y), (left, right)))
    return finished(draw, op, (a, b, dims), {}, reference, size, math.prod(shared), a.dtype, out=False)


@generates("matmul", "chain_matmul", "linalg.multi_dot")
def chain(draw: Draw, op: str) -> Call:
    if draw.values in ("huge", "tiny", "special"):
        draw.values = "normal"
    dtype = draw.choice(DTYPES)
    count = draw.whole(2 if op[0] == "l" else 1, 5)
    sizes = [draw.size(33) for _ in range(count + 1)]
    parts = [draw.array((sizes[i], sizes[i + 1]), dtype) for i in range(count)]
    if op == "linalg.multi_dot" and draw.chance(0.2):
        parts[0] = draw.array((sizes[1],), dtype)
    if op == "linalg.multi_dot" and draw.chance(0.2):
        parts[-1] = draw.array((sizes[-2],), dtype)
        if len(parts) == 2 and parts[0].ndim == 1:
            parts[1] = draw.array((parts[0].shape[0],), dtype)
    reference, size = wide(parts[0]), np.abs(wide(parts[0]))
    with np.errstate(all="ignore"):
        for p in parts[1:]:
            reference, size = reference @ wide(p), size @ np.abs(wide(p))
    args = (parts,) if op == "linalg.multi_dot" else tuple(parts)
    reference, size = np.asarray(reference), np.asarray(size)
    return finished(draw, op, args, {}, reference, size, sum(sizes), parts[0].dtype, count, out=False)


@generates("matmul", "linalg.matrix_power")
def power(draw: Draw, op: str) -> Call:
    draw.values = "normal"
    dtype = draw.choice(("float32", "float64", "complex64", "complex128"))
    n = draw.size(17)
    batch = tuple(draw.size(3) for _ in range(draw.choice((0, 0, 1, 2))))
    a = draw.array((*batch, n, n), dtype)
    p = draw.choice((0, 1, 2, 3, 4, 5, 7))
    reference = np.broadcast_to(np.eye(n, dtype=wide(a).dtype), a.shape).copy()
    size = np.abs(reference)
    for _ in range(p):
        reference, size = reference @ wide(a), size @ np.abs(wide(a))
    return finished(draw, op, (a, p), {}, reference, size, n * max(p, 1), a.dtype, max(p, 1), out=False)


def activate(name: str, x: Array) -> Array:
    from .neural import FORMULAS

    return FORMULAS[name](x)


@generates("linear", "nn.functional.linear", "nn.functional.prepack_linear", weight=3)
def linear(draw: Draw, op: str) -> Call:
    packed = op.endswith("prepack_linear")
    dtype = draw.choice(FLOATS)
    m, k, n = _sizes(draw)
    lead = draw.choice(((m,), (m,), (), (2, m % 9), (1, m), (m, 1)))
    x, w = draw.array((*lead, k), dtype), draw.array((n, k), dtype)
    bias = draw.array((n,), dtype) if draw.chance(0.6) else None
    activation = draw.choice((None, None, None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"))
    residual = draw.array((*lead, n), dtype) if draw.chance(0.15) and not packed else None
    if activation and draw.values in ("huge", "special", "tiny"):
        draw.values = "normal"
        x, w = draw.array((*lead, k), dtype), draw.array((n, k), dtype)
        bias = draw.array((n,), dtype) if bias is not None else None
        residual = draw.array((*lead, n), dtype, "normal") if residual is not None else None
    reference, size = product(x, w.T)
    with np.errstate(all="ignore"):
        for extra in (bias, residual):
            if extra is not None:
                reference, size = reference + wide(extra), size + np.abs(wide(extra))
        if activation:
            # No activation has a slope above 1.13; its own error is a few units of its argument.
            value = activate(activation, reference)
            size = 1.2 * size + np.abs(value) + 1
            reference = value
    kwargs: dict[str, Any] = {"activation": activation} if activation else {}
    if residual is not None:
        kwargs["residual"] = residual
    if not packed:
        return finished(draw, op, (x, w, bias), kwargs, reference, size, k + 8, x.dtype, 2 if activation or residual is not None else 1)
    import backline.nn.functional as F

    def run(x: Array, w: Array, bias: Array | None) -> Any:
        layer = F.prepack_linear(w, bias, **({"activation": activation} if activation else {}))
        return layer(x)

    call = finished(draw, op, (x, w, bias), {}, reference, size, k + 8, x.dtype, 2 if activation else 1, out=False)
    call.function = run
    return call


@generates("linear", "nn.functional.bilinear")
def bilinear(draw: Draw, op: str) -> Call:
    if draw.values in ("huge", "tiny", "special"):
        draw.values = "normal"
    dtype = draw.choice(FLOATS)
    i, j, o = draw.size(9), draw.size(9), draw.size(9)
    lead = draw.choice(((), (3,), (2, 3), (0,)))
    x, y, w = draw.array((*lead, i), dtype), draw.array((*lead, j), dtype), draw.array((o, i, j), dtype)
    bias = draw.array((o,), dtype) if draw.chance(0.6) else None
    a, b, c = wide(x), wide(y), wide(w)
    reference = np.einsum("...i,oij,...j->...o", a, c, b)
    size = np.einsum("...i,oij,...j->...o", np.abs(a), np.abs(c), np.abs(b))
    if bias is not None:
        reference, size = reference + wide(bias), size + np.abs(wide(bias))
    return finished(draw, op, (x, y, w, bias), {}, reference, size, i + j + 1, x.dtype, 3, out=False)


@generates("linear", "nn.grad.linear_input", "nn.grad.linear_weight", "nn.grad.linear_bias")
def gradients(draw: Draw, op: str) -> Call:
    dtype = draw.choice(FLOATS)
    k, n = draw.size(33), draw.size(33)
    lead = draw.choice(((), (5,), (2, 3), (0,), (17,)))
    g = draw.array((*lead, n), dtype)
    rows = math.prod(lead)
    if op.endswith("linear_input"):
        w = draw.array((n, k), dtype)
        reference, size = product(g, w)
        return finished(draw, op, (w, g), {}, reference, size, n, g.dtype, out=False)
    if op.endswith("linear_bias"):
        flat = wide(g).reshape(rows, n)
        with np.errstate(all="ignore"):
            return finished(draw, op, (g,), {}, flat.sum(0), np.abs(flat).sum(0), rows, g.dtype, out=False)
    x = draw.array((*lead, k), dtype)
    reference, size = product(g.reshape(rows, n).T, x.reshape(rows, k))
    return finished(draw, op, (x, g), {}, reference, size, rows, g.dtype, out=False)


@generates("matmul", "prepack")
def packed_product(draw: Draw, op: str) -> Call:
    import backline

    dtype = draw.choice(("float32", "float64", "float32", "float16", "bfloat16"))
    m, k, n = _sizes(draw)
    a, b = draw.array((m, k), dtype), draw.array((k, n), dtype)
    reference, size = product(a, b)
    call = finished(draw, op, (a, b), {}, reference, size, k, a.dtype, out=False)
    call.function = lambda a, b: a @ backline.prepack(b)
    return call
