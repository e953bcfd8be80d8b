"""Maximum, average and adaptive pooling, and their gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import like, near
from .conv import _layout

DTYPES = ("float32",) * 4 + ("float16", "bfloat16", "float64", "float64")


class Windows:
    """A random pooling: which elements of an image each window has."""

    def __init__(self, draw: Draw, op: str) -> None:
        self.rank = rank = int(op[op.index("pool") + 4])
        self.max = "max" in op
        most = {1: 40, 2: 13, 3: 6}[rank]
        each = draw.chance(0.5)

        def several(pick: Any) -> tuple[int, ...]:
            return tuple(pick() for _ in range(rank)) if each else (pick(),) * rank

        self.kernel = several(lambda: draw.choice((1, 2, 2, 3, 3, 4, 5)))
        self.stride = several(lambda: draw.choice((1, 2, 2, 3, 4))) if draw.chance(0.7) else self.kernel
        self.dilation = several(lambda: draw.choice((1, 1, 1, 2, 3))) if self.max else (1,) * rank
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        self.padding = tuple(draw.whole(0, k // 2) if draw.chance(0.6) else 0 for k in self.kernel)
        self.ceil = draw.chance(0.3)
        low = [max(r - 2 * p, 1) for r, p in zip(reach, self.padding, strict=True)]
        self.image = tuple(n if draw.chance(0.25) else max(n, draw.whole(1, most)) for n in low)
        sizes = []
        for n, r, s, p in zip(self.image, reach, self.stride, self.padding, strict=True):
            room = n + 2 * p - r
            count = (-(-room // s) if self.ceil else room // s) + 1
            if self.ceil and (count - 1) * s >= n + p:
                count -= 1
            sizes.append(count)
        self.points = tuple(sizes)
        self.shape = (draw.choice((1, 1, 2, 3)), draw.choice((1, 2, 3, 8, 16, 17)), *self.image)
        if draw.chance(0.1):
            self.shape = self.shape[1:]
        self.include = draw.chance(0.6)
        self.divisor = draw.choice((None, None, None, 1, 2, 3)) if rank > 1 and not self.max else None

    def words(self, draw: Draw) -> dict[str, Any]:
        def short(v: tuple[int, ...]) -> Any:
            return v[0] if len(set(v)) == 1 and draw.chance(0.5) else v

        given = {"kernel_size": short(self.kernel), "stride": short(self.stride), "padding": short(self.padding), "ceil_mode": self.ceil}
        if self.stride == self.kernel and draw.chance(0.5):
            given["stride"] = None
        if self.max:
            given["dilation"] = short(self.dilation)
        else:
            given["count_include_pad"] = self.include
            if self.divisor is not None:
                given["divisor_override"] = self.divisor
        return given

    def index(self) -> tuple[Array, Array]:
        """For each tap and each window: the flat index of the element, and whether it lies in the image."""
        flat, inside = [], []
        for tap in itertools.product(*map(range, self.kernel)):
            at: Any = 0
            ok: Any = True
            for axis in range(self.rank):
                i = np.arange(self.points[axis]) * self.stride[axis] - self.padding[axis] + tap[axis] * self.dilation[axis]
                shape = [1] * self.rank
                shape[axis] = -1
                good = (i >= 0) & (i < self.image[axis])
                at = at * self.image[axis] + np.where(good, i, 0).reshape(shape)
                ok = ok & good.reshape(shape)
            flat.append(np.broadcast_to(at, self.points).ravel())
            inside.append(np.broadcast_to(ok, self.points).ravel())
        return np.array(flat), np.array(inside)

    def divisors(self, inside: Array) -> Array:
        """Returns what the sum of each window is divided by."""
        if self.divisor is not None:
            return np.full(math.prod(self.points), float(self.divisor))
        if not self.include:
            return inside.sum(0).astype(float)
        total: Any = 1.0
        for axis in range(self.rank):
            start = np.arange(self.points[axis]) * self.stride[axis] - self.padding[axis]
            end = np.minimum(start + self.kernel[axis], self.image[axis] + self.padding[axis])
            shape = [1] * self.rank
            shape[axis] = -1
            total = total * (end - start).reshape(shape)
        return np.broadcast_to(total, self.points).ravel()


RANKS = (1, 2, 3)


@generates("pooling", *(f"nn.functional.{k}_pool{d}d" for k in ("max", "avg") for d in RANKS), weight=4)
def pooling(draw: Draw, op: str) -> Call:
    w = Windows(draw, op)
    dtype = draw.choice(DTYPES)
    x = _layout(draw, draw.fill(w.shape, dtype))
    lead = w.shape[: -w.rank]
    at, inside = w.index()
    flat = wide(x).reshape(*lead, -1)
    values = flat[..., at]
    with np.errstate(all="ignore"):
        if w.max:
            values = np.where(inside, values, -np.inf)
            reference, bound = np.max(values, -2), np.zeros(())
        else:
            values = np.where(inside, values, 0)
            divisor = w.divisors(inside)
            f = FORMATS[dtype]
            reference = values.sum(-2) / divisor
            size = np.abs(values).sum(-2) / np.abs(divisor)
            bound = (len(at) + 4) * f.accumulate * size + f.eps * np.abs(reference) + f.tiny * 4 * len(at)
            limit = f.largest if dtype != "float16" else 1e38
            bound = np.where(np.abs(values).sum(-2) > limit / 4, np.inf, bound)
    reference = reference.reshape(*lead, *w.points)
    bound = bound.reshape(reference.shape) if bound.ndim else bound
    words = w.words(draw)
    if not w.max or draw.chance(0.7):
        return Call(op, (x,), words, lambda result: near(result, reference, bound, x.dtype))

    def both(result: Any) -> None:
        near(result[0], reference, bound, x.dtype)
        places = like(result[1], reference.shape, np.dtype(np.int64), "places").reshape(*lead, -1)
        some = np.broadcast_to(inside.any(0), places.shape)  # a window in padding has no element
        found = np.take_along_axis(x.reshape(*lead, -1), np.where(some, places, 0), -1)
        near(found[some], reference.reshape(places.shape)[some], np.zeros(()), x.dtype, "elements at the places")

    return Call(op, (x,), words | {"return_indices": True}, both)


@generates("pooling", *(f"nn.grad.{k}_pool{d}d_input" for k in ("max", "avg") for d in RANKS), weight=3)
def gradients(draw: Draw, op: str) -> Call:
    if draw.values in ("special", "huge"):
        draw.values = "normal"
    w = Windows(draw, op)
    dtype = draw.choice(DTYPES)
    lead = w.shape[: -w.rank]
    g = _layout(draw, draw.fill((*lead, *w.points), dtype))
    at, inside = w.index()
    count, points = math.prod(w.image), math.prod(w.points)
    grad = wide(g).reshape(-1, points)
    f = FORMATS[dtype]
    total = np.zeros((math.prod(lead), count), grad.dtype)
    size, terms = np.zeros_like(total), len(at) + 4
    rows = np.arange(len(grad))[:, None]
    if w.max:
        x = _layout(draw, draw.fill(w.shape, dtype))
        values = np.where(inside, wide(x).reshape(-1, count)[:, at], -np.inf)
        first = np.argmax(values, 1)  # the first of the largest elements takes it all
        chosen = at[first, np.arange(points)]
        grad = np.where(inside.any(0), grad, 0)  # a window in padding has no element
        np.add.at(total, (rows, chosen), grad)
        np.add.at(size, (rows, chosen), np.abs(grad))
        args: tuple[Any, ...] = (x, g)
    else:
        part = grad / w.divisors(inside)
        for tap, ok in zip(at, inside, strict=True):
            np.add.at(total, (rows, tap[None]), part * ok)
            np.add.at(size, (rows, tap[None]), np.abs(part) * ok)
        args = (w.shape, g)
    total, size = total.reshape(w.shape), size.reshape(w.shape)
    # Sums of 16-bit gradients may be kept as such.
    bound = terms * (f.eps if dtype in ("float16", "bfloat16") else f.accumulate) * size + f.eps * np.abs(total) + f.tiny * 4 * terms
    return Call(op, args, w.words(draw), lambda result: near(result, total, bound, g.dtype))


def _adaptive(n: int, out: int) -> list[tuple[int, int]]:
    return [((i * n) // out, -((-(i + 1) * n) // out)) for i in range(out)]


@generates("pooling", *(f"nn.functional.adaptive_avg_pool{d}d" for d in RANKS), *(f"nn.grad.adaptive_avg_pool{d}d_input" for d in RANKS), weight=2)
def adaptive(draw: Draw, op: str) -> Call:
    rank = int(op[op.index("pool") + 4])
    most = {1: 40, 2: 13, 3: 6}[rank]
    image = tuple(draw.size(most, 0) for _ in range(rank))
    points = tuple(draw.choice((1, 1, 2, 3, n, draw.whole(1, 9))) for n in image)
    lead = (draw.choice((1, 2)), draw.choice((1, 3, 8)))[draw.choice((0, 0, 0, 1)) :]
    dtype = draw.choice(DTYPES)
    f = FORMATS[dtype]
    backward = "grad" in op
    if backward and draw.values in ("special", "huge"):
        draw.values = "normal"
    matrices = []
    for n, p in zip(image, points, strict=True):
        m = np.zeros((p, n))
        for i, (a, b) in enumerate(_adaptive(n, p)):
            m[i, a:b] = 1 / (b - a)
        matrices.append(m)
    x = _layout(draw, draw.fill((*lead, *(points if backward else image)), dtype))
    reference = wide(x)
    size = np.abs(reference)
    with np.errstate(all="ignore"):
        for axis, m in enumerate(matrices, len(lead)):
            side = m.T if backward else m
            # Elements outside a window do not count, whatever they are.
            parts = [[np.moveaxis(v, axis, 0)[row != 0] for row in side] for v in (reference, size)]
            weights = [row[row != 0] for row in side]
            reference, size = (
                np.moveaxis(np.array([np.tensordot(w, part, (0, 0)) for w, part in zip(weights, both, strict=True)]), 0, axis)
                for both in parts
            )
        terms = math.prod(max(-(-n // p), -(-p // n)) + 2 for n, p in zip(image, points, strict=True))
        eps = f.eps if backward and dtype in ("float16", "bfloat16") else f.accumulate
        bound = (terms + 6) * max(eps, 2.0**-51) * size + f.eps * np.abs(reference) + f.tiny * 4 * terms
        bound = np.where(size * math.prod(image) > (f.largest if dtype != "float16" else 1e38) / 4, np.inf, bound)
    output: Any = points[0] if len(set(points)) == 1 and draw.chance(0.5) else points
    args: tuple[Any, ...] = ((*lead, *image), x, output) if backward else (x, output)
    return Call(op, args, {}, lambda result: near(result, reference, bound, x.dtype, special="any"))
