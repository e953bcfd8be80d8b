"""Convolutions of one to three dimensions, transposed ones, their gradients, with weights packed before."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ..arrays import Array, Draw, wide
from ..call import Call, generates
from .products import finished

DTYPES = ("float32",) * 6 + ("bfloat16",) * 3 + ("float16",) * 2 + ("float64",) * 3


def taps(x: int, y: int, stride: int, padding: int, dilation: int, tap: int) -> tuple[slice, slice] | None:
    """Returns where elements of the image and of the result meet in this tap of the kernel, along one axis."""
    offset = tap * dilation - padding  # image = result * stride + offset
    first = max(0, -(offset // stride))
    last = min(y - 1, (x - 1 - offset) // stride)
    if last < first:
        return None
    start = first * stride + offset
    return slice(start, last * stride + offset + 1, stride), slice(first, last + 1)


def correlate(x: Array, w: Array, points: tuple[int, ...], stride: Any, padding: Any, dilation: Any, groups: int, what: str) -> Array:
    """The three products of a convolution: "result" of image and weights, "image" of result (`x`) and weights, "weight".

    For "image" `points` are the image's sizes, and `x` is the gradient; for "weight" `w` is the gradient and `points` the kernel.
    """
    rank = len(points)
    batch = x.shape[0]
    if what == "weight":
        kernel, image, result = points, x.shape[2:], w.shape[2:]
        channels, part = x.shape[1] // groups, w.shape[1] // groups
        total = np.zeros((w.shape[1], channels, *kernel), x.dtype)
    else:
        kernel = w.shape[2:]
        image, result = (x.shape[2:], points) if what == "result" else (points, x.shape[2:])
        channels, part = w.shape[1], w.shape[0] // groups
        total = np.zeros((batch, w.shape[0] if what == "result" else channels * groups, *points), x.dtype)
    for tap in itertools.product(*map(range, kernel)):
        meets = [taps(image[i], result[i], stride[i], padding[i][0], dilation[i], tap[i]) for i in range(rank)]
        if any(m is None for m in meets):
            continue
        at_image, at_result = tuple(m[0] for m in meets), tuple(m[1] for m in meets)  # type: ignore[index]  # some meet, or it was skipped
        for g in range(groups):
            c, o = slice(g * channels, (g + 1) * channels), slice(g * part, (g + 1) * part)
            if what == "result":
                total[(slice(None), o, *at_result)] += _mix(x[(slice(None), c, *at_image)], w[(o, slice(None), *tap)])
            elif what == "image":
                total[(slice(None), c, *at_image)] += _mix(x[(slice(None), o, *at_result)], w[(o, slice(None), *tap)].T)
            else:
                a = np.moveaxis(w[(slice(None), o, *at_result)], 1, 0).reshape(part, batch * math.prod(w[(slice(None), o, *at_result)].shape[2:]))
                b = np.moveaxis(x[(slice(None), c, *at_image)], 1, 0).reshape(channels, a.shape[1])
                total[(o, slice(None), *tap)] += a @ b.T
    return total


def _mix(x: Array, m: Array) -> Array:
    """m @ x over the channels of images."""
    n, c = x.shape[:2]
    return np.matmul(m, x.reshape(n, c, math.prod(x.shape[2:]))).reshape(n, m.shape[0], *x.shape[2:])


def _layout(draw: Draw, x: Array) -> Array:
    """Channels last in a third of the cases."""
    if draw.layouts and draw.chance(0.3) and not draw.plain.layout and x.ndim > 2:
        return np.moveaxis(draw.lay_out(np.ascontiguousarray(np.moveaxis(x, 1, -1)), "C"), -1, 1)
    return draw.lay_out(x)


def _finite(draw: Draw, shape: tuple[int, ...], dtype: str) -> Array:
    """Values without NaN and infinity: libraries differ in whether what meets padding is multiplied by its zeros."""
    return draw.fill(shape, dtype, "normal" if draw.values == "special" else None)


class Sizes:
    """A random convolution."""

    def __init__(self, draw: Draw, rank: int) -> None:
        def limit(n: int) -> int:
            return min(n, draw.plain.size) if draw.plain.size else n

        self.rank = rank
        most, ks = {1: (40, 9), 2: (13, 5), 3: (7, 3)}[rank]
        kind = draw.choice(("any", "any", "grouped", "depthwise", "1x1"))
        self.groups = 1
        if kind == "grouped":
            self.groups = draw.choice((2, 3, 4))
            self.c, self.o = draw.choice((1, 2, 3, 8)), draw.choice((1, 2, 3, 8))
        elif kind == "depthwise":
            self.groups = draw.choice((2, 3, 4, 5, 8, 16, 17, 20))
            self.c, self.o = 1, draw.choice((1, 1, 1, 2))
        else:
            self.c, self.o = (draw.choice((1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 32, 33, 40, 48)) for _ in "co")
        self.c, self.o = limit(self.c), limit(self.o)
        self.n = limit(draw.choice((1, 1, 1, 2, 2, 3, 5)) if not draw.chance(0.01) else 0)
        each = draw.chance(0.5)  # parameters differ from axis to axis

        def several(pick: Any) -> tuple[int, ...]:
            return tuple(pick() for _ in range(rank)) if each else (pick(),) * rank

        self.kernel = (1,) * rank if kind == "1x1" else several(lambda: min(draw.choice((1, 2, 3, 3, 3, 4, 5, 7)), ks))
        self.stride = several(lambda: draw.choice((1, 1, 1, 2, 2, 3, 4)))
        if draw.chance(0.15):  # patches next to each other
            self.stride = self.kernel
        self.dilation = several(lambda: draw.choice((1, 1, 1, 2, 3)))
        self.padding = several(lambda: draw.choice((0, 0, 1, 1, 2, 3)))
        self.image = tuple(max(limit(draw.whole(1, most)), 1) for _ in range(rank))
        self.same = ""
        if draw.chance(0.1):
            self.same = draw.choice(("same", "valid"))
            if self.same == "same":
                self.stride = (1,) * rank
        # The dilated kernel fits into the padded image.
        grown = []
        for x, k, d, p in zip(self.image, self.kernel, self.dilation, self.padding, strict=True):
            reach = d * (k - 1) + 1
            grown.append(max(x, reach - 2 * p) if not self.same else max(x, reach))
        self.image = tuple(grown)
        self.dtype = draw.choice(DTYPES)

    def pads(self) -> list[tuple[int, int]]:
        if self.same == "valid":
            return [(0, 0)] * self.rank
        if self.same == "same":
            return [((d * (k - 1)) // 2, d * (k - 1) - (d * (k - 1)) // 2) for k, d in zip(self.kernel, self.dilation, strict=True)]
        return [(p, p) for p in self.padding]

    def points(self) -> tuple[int, ...]:
        return tuple(
            (x + sum(p) - d * (k - 1) - 1) // s + 1
            for x, k, s, p, d in zip(self.image, self.kernel, self.stride, self.pads(), self.dilation, strict=True)
        )

    def words(self, draw: Draw) -> dict[str, Any]:
        given = {"stride": self.stride, "padding": self.same or self.padding, "dilation": self.dilation, "groups": self.groups}
        plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        short = {}
        for name, value in given.items():
            if isinstance(value, tuple) and len(set(value)) == 1 and draw.chance(0.5):
                value = value[0]
            if value != plain[name] or draw.chance(0.2):
                short[name] = value
        return short


def _with_more(draw: Draw, c: Sizes, reference: Array, size: Array, channels: int) -> tuple[Any, dict[str, Any], Array, Array]:
    """Bias, residual and activation."""
    bias = draw.array((channels,), c.dtype) if draw.chance(0.5) else None
    words: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        if bias is not None:
            b = wide(bias).reshape(-1, *(1,) * c.rank)
            reference, size = reference + b, size + np.abs(b)
        if draw.chance(0.1):
            residual = draw.array(reference.shape, c.dtype)
            words["residual"] = residual
            reference, size = reference + wide(residual), size + np.abs(wide(residual))
        if draw.chance(0.15):
            words["activation"] = "relu"
            reference = np.where(np.isnan(reference), reference, np.maximum(reference, 0))
    return bias, words, reference, size


CONVS = tuple(f"nn.functional.{p}conv{t}{d}d" for p in ("", "prepack_") for t in ("", "_transpose") for d in (1, 2, 3))


@generates("conv", *(name for name in CONVS if "transpose" not in name and "prepack" not in name), weight=8)
@generates("conv", *(name for name in CONVS if "transpose" not in name and "prepack" in name), weight=2)
def convolution(draw: Draw, op: str) -> Call:
    c = Sizes(draw, int(op[-2]))
    x = _layout(draw, draw.fill((c.n, c.c * c.groups, *c.image), c.dtype))
    w = _layout(draw, _finite(draw, (c.o * c.groups, c.c, *c.kernel), c.dtype))
    a, b = wide(x), wide(w)
    with np.errstate(all="ignore"):
        more = c.points(), c.stride, c.pads(), c.dilation, c.groups, "result"
        reference, size = correlate(a, b, *more), correlate(np.abs(a), np.abs(b), *more)
    return _finish(draw, op, c, x, w, reference, size, c.words(draw))


def _transposed(draw: Draw, rank: int) -> tuple[Sizes, tuple[int, ...], tuple[int, ...]]:
    """A transposed convolution, its output padding and the sizes of its result."""
    c = Sizes(draw, rank)
    c.same = ""
    if draw.plain.size == 0 and c.rank == 3:
        c.image = tuple(min(n, 5) for n in c.image)
    extra = tuple(draw.whole(0, max(s, d) - 1) if draw.chance(0.5) else 0 for s, d in zip(c.stride, c.dilation, strict=True))
    points = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + e
        for n, s, p, d, k, e in zip(c.image, c.stride, c.padding, c.dilation, c.kernel, extra, strict=True)
    )
    if min(points) < 1:
        c.padding = tuple(0 for _ in points)
        points = tuple(
            (n - 1) * s + d * (k - 1) + 1 + e for n, s, d, k, e in zip(c.image, c.stride, c.dilation, c.kernel, extra, strict=True)
        )
    return c, extra, points


@generates("conv", *(name for name in CONVS if "transpose" in name and "prepack" not in name), weight=6)
@generates("conv", *(name for name in CONVS if "transpose" in name and "prepack" in name), weight=2)
def transposed(draw: Draw, op: str) -> Call:
    c, extra, points = _transposed(draw, int(op[-2]))
    x = _layout(draw, draw.fill((c.n, c.o * c.groups, *c.image), c.dtype))
    w = _layout(draw, _finite(draw, (c.o * c.groups, c.c, *c.kernel), c.dtype))
    a, b = wide(x), wide(w)
    with np.errstate(all="ignore"):
        more = points, c.stride, c.pads(), c.dilation, c.groups, "image"
        reference, size = correlate(a, b, *more), correlate(np.abs(a), np.abs(b), *more)
    words = c.words(draw)
    if any(extra):
        words["output_padding"] = extra
    c.c, c.o = c.o, c.c
    return _finish(draw, op, c, x, w, reference, size, words)


def _finish(draw: Draw, op: str, c: Sizes, x: Array, w: Array, reference: Array, size: Array, words: dict[str, Any]) -> Call:
    import backline.nn.functional as F

    packed = "prepack" in op
    bias, more, reference, size = _with_more(draw, c, reference, size, reference.shape[1])
    single = c.n == 1 and draw.chance(0.15)
    if single:
        x, reference, size = x[0], reference[0], size[0]
        if "residual" in more:
            more["residual"] = more["residual"][0]
    terms = c.c * math.prod(c.kernel)
    if packed:
        residual = more.pop("residual", None)
        if residual is not None:
            more.pop("activation", None)
            return convolution_again(draw, op)
        pack = getattr(F, op.rpartition(".")[2])
        call = finished(draw, op, (x, w, bias), {}, reference, size, terms + 2, x.dtype, 2, out=False)
        call.function = lambda x, w, bias: pack(w, bias, **words, **more)(x)
    else:
        call = finished(draw, op, (x, w, bias), words | more, reference, size, terms + 2, x.dtype, 2 if more else 1)
    call.direct = not single
    with np.errstate(all="ignore"):
        call.loose = float(np.nanmax(size[np.isfinite(size)], initial=0)) * 2.0**-16
    return call


def convolution_again(draw: Draw, op: str) -> Call:
    """Another one: what was drawn does not exist with packed weights."""
    return (transposed if "transpose" in op else convolution)(draw, op)


@generates("conv gradients", *(f"nn.grad.conv{d}d_{what}" for d in (1, 2, 3) for what in ("input", "weight")), weight=4)
def gradients(draw: Draw, op: str) -> Call:
    c = Sizes(draw, int(op[12]))
    points = c.points()
    fill = _finite if op.endswith("weight") else Draw.fill
    g = _layout(draw, fill(draw, (c.n, c.o * c.groups, *points), c.dtype))
    words = c.words(draw)
    if op.endswith("input"):
        w = _layout(draw, _finite(draw, (c.o * c.groups, c.c, *c.kernel), c.dtype))
        a, b, more = wide(g), wide(w), (c.image, c.stride, c.pads(), c.dilation, c.groups, "image")
        args: tuple[Any, ...] = ((c.n, c.c * c.groups, *c.image), w, g)
        terms = c.o * math.prod(c.kernel)
    else:
        x = _layout(draw, draw.fill((c.n, c.c * c.groups, *c.image), c.dtype))
        a, b, more = wide(x), wide(g), (c.kernel, c.stride, c.pads(), c.dilation, c.groups, "weight")
        args = (x, (c.o * c.groups, c.c, *c.kernel), g)
        terms = c.n * math.prod(points)
    with np.errstate(all="ignore"):
        reference, size = correlate(a, b, *more), correlate(np.abs(a), np.abs(b), *more)
    call = finished(draw, op, args, words, reference, size, terms + 2, g.dtype, out=False)
    with np.errstate(all="ignore"):
        call.loose = float(np.nanmax(size[np.isfinite(size)], initial=0)) * 2.0**-16
    return call




@generates("conv gradients", *(f"nn.grad.conv_transpose{d}d_{what}" for d in (1, 2, 3) for what in ("input", "weight")), weight=2)
def transposed_gradients(draw: Draw, op: str) -> Call:
    c, extra, points = _transposed(draw, int(op[22]))
    g = _layout(draw, _finite(draw, (c.n, c.c * c.groups, *points), c.dtype))
    more = c.stride, c.pads(), c.dilation, c.groups
    if op.endswith("input"):
        other = _layout(draw, _finite(draw, (c.o * c.groups, c.c, *c.kernel), c.dtype))
        args: tuple[Any, ...] = ((c.n, c.o * c.groups, *c.image), other, g)
        sizes, what, terms = c.image, "result", c.c * math.prod(c.kernel)
    else:
        other = _layout(draw, _finite(draw, (c.n, c.o * c.groups, *c.image), c.dtype))
        args = (other, (c.o * c.groups, c.c, *c.kernel), g)
        sizes, what, terms = c.kernel, "weight", c.n * math.prod(c.image)
    a, b = wide(g), wide(other)
    with np.errstate(all="ignore"):
        reference, size = correlate(a, b, sizes, *more, what), correlate(np.abs(a), np.abs(b), sizes, *more, what)
    words = c.words(draw)
    if any(extra):
        words["output_padding"] = extra
    call = finished(draw, op, args, words, reference, size, terms + 2, g.dtype, out=False)
    with np.errstate(all="ignore"):
        call.loose = float(np.nanmax(size[np.isfinite(size)], initial=0)) * 2.0**-16
    return call
