"""Convolutions for tests: cases, layouts of images, and a result in the widest arithmetic with a bound of its rounding errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from support import LAYOUTS, assert_close, roundoff, smallest, wide

Array = Any


def channels_last(x: Array) -> Array:
    """A copy with channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if x.ndim > 2 else x.copy()


IMAGES: dict[str, Any] = {**LAYOUTS, "channels last": channels_last}
PLAIN = (("C", "C"), ("channels last", "C"), ("channels last", "channels last"))

# Shapes of images and of weights (O, C / groups, ...), and what else the call has.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 11), (4, 3, 3), {}),
    "1d strided": ((1, 2, 12), (4, 2, 4), {"stride": 3, "padding": 2}),
    "1d depthwise": ((2, 5, 9), (5, 1, 3), {"padding": 1, "groups": 5}),
    "3x3": ((2, 4, 6, 7), (5, 4, 3, 3), {"padding": 1}),
    "1x1": ((3, 8, 5, 4), (6, 8, 1, 1), {}),
    "1x1 grouped": ((2, 6, 4, 4), (4, 3, 1, 1), {"groups": 2}),
    "1x1 strided": ((2, 4, 5, 6), (3, 4, 1, 1), {"stride": 2}),
    "1x1 padded": ((2, 3, 4, 4), (2, 3, 1, 1), {"padding": (1, 0)}),
    "5x5": ((1, 3, 17, 15), (4, 3, 5, 5), {"padding": 2}),
    "9x12": ((1, 2, 21, 20), (3, 2, 9, 12), {"padding": (4, 5)}),
    "7x7 strided": ((1, 3, 15, 17), (4, 3, 7, 7), {"stride": 2, "padding": 3}),
    "sides differ": ((2, 3, 8, 9), (2, 3, 1, 4), {"stride": (2, 1), "padding": (0, 3), "dilation": (1, 2)}),
    "dilated": ((1, 2, 9, 9), (3, 2, 3, 3), {"padding": 2, "dilation": 2}),
    "grouped": ((2, 6, 5, 6), (4, 3, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((2, 4, 6, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
    "depthwise, many taps": ((1, 20, 9, 9), (20, 1, 7, 7), {"padding": 3, "groups": 20}),
    "depthwise, two features each": ((1, 3, 6, 5), (6, 1, 3, 2), {"groups": 3, "stride": (1, 2)}),
    "kernel of the image's size": ((3, 2, 4, 3), (5, 2, 4, 3), {}),
    "kernel larger than the image": ((2, 2, 2, 3), (3, 2, 4, 5), {"padding": 2}),
    "stride larger than the kernel": ((2, 3, 9, 9), (2, 3, 2, 2), {"stride": 4}),
    "padding past the kernel": ((1, 2, 3, 3), (2, 2, 2, 2), {"padding": 4, "stride": 3}),
    "one channel, one feature": ((1, 1, 5, 5), (1, 1, 3, 3), {}),
    "one point": ((2, 5, 1, 1), (3, 5, 1, 1), {}),
    "whole vectors": ((1, 32, 9, 8), (48, 32, 3, 3), {"padding": 1}),
    "threaded": ((2, 16, 16, 15), (24, 16, 3, 3), {"padding": 1}),
    "threaded 1x1": ((1, 40, 20, 20), (48, 40, 1, 1), {}),
    "threaded groups": ((1, 32, 14, 14), (128, 16, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    "few points": ((1, 6, 5, 4), (70, 6, 3, 3), {"padding": 1}),
    "few points 1x1": ((1, 6, 5, 4), (70, 6, 1, 1), {}),
    "few points, grouped": ((1, 6, 4, 4), (140, 3, 2, 3), {"groups": 2}),
}


def some_layouts(rng: np.random.Generator, count: int = 4) -> list[tuple[str, str]]:
    """Layouts of images and of weights: the usual ones and some others."""
    names = list(IMAGES)
    return [*PLAIN, *((names[i], names[j]) for i, j in rng.integers(0, len(names), (count, 2)))]


class Exact:
    """The result, and the sum of absolute products for each of its elements; `add` adds what a call adds."""

    def __init__(self, value: Array, size: Array, terms: int) -> None:
        self.value, self.size, self.terms = value, size, terms

    def add(self, what: Array) -> Exact:
        """With something more added."""
        return Exact(self.value + wide(what), self.size + np.abs(wide(what)), self.terms + 1)

    def relu(self) -> Exact:
        return Exact(np.maximum(self.value, 0), self.size, self.terms)

    def bound(self, dtype: str = "float32") -> Array:
        """Of rounding errors, for each element."""
        n, u = self.terms + 4, roundoff(np.dtype(dtype))
        return 1.01 * n * u / (1 - n * u) * self.size + n * smallest(np.dtype(dtype)) * 4

    def check(self, result: Array, what: str, *, of_largest: float = 0.0, dtype: str = "float32") -> None:
        """Within the bound, or within a part of the largest result there could be."""
        assert result.dtype == np.dtype(dtype), what
        bound = self.bound(dtype) + (of_largest * self.size.max() if self.size.size else 0)
        assert_close(result, self.value, bound, what)


def exact_conv(
    x: Array, w: Array, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, output_padding: Any = 0,
    transposed: bool = False,
) -> Exact:  # fmt: skip
    """A convolution or a transposed one: for each element of the kernel a product, at the places where it falls."""
    rank = x.ndim - 2
    stride, padding, dilation, extra = (v if isinstance(v, tuple) else (v,) * rank for v in (stride, padding, dilation, output_padding))
    kernel, sizes = w.shape[2:], zip(x.shape[2:], w.shape[2:], stride, padding, dilation, extra, strict=True)
    if transposed:
        points, features = tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, k, s, p, d, e in sizes), w.shape[1] * groups
    else:
        points, features = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes), w.shape[0]
    x, w = wide(x), wide(w)
    value, size = (np.zeros((x.shape[0], features, *points), np.longdouble) for _ in range(2))
    channels, part = x.shape[1] // groups, features // groups
    for tap in np.ndindex(kernel):
        meets = []  # along each axis: which places of the smaller grid and of the larger one meet here
        for axis in range(rank):
            small, large = (x.shape[2 + axis], points[axis]) if transposed else (points[axis], x.shape[2 + axis])
            at = np.arange(small) * stride[axis] - padding[axis] + tap[axis] * dilation[axis]
            inside = (at >= 0) & (at < large)
            meets.append((np.flatnonzero(inside), at[inside]))
        small_at, large_at = (np.ix_(*(m[i] for m in meets)) for i in (0, 1))
        for g in range(groups):
            cs, fs = slice(g * channels, (g + 1) * channels), slice(g * part, (g + 1) * part)
            here, there = (small_at, large_at) if transposed else (large_at, small_at)
            images, weights = x[:, cs][(..., *here)], w[cs if transposed else fs][(slice(None), slice(None), *tap)]
            rule = "nc...,co->no..." if transposed else "nc...,oc->no..."
            for target, a, b in ((value, images, weights), (size, np.abs(images), np.abs(weights))):
                view = target[:, fs]
                view[(..., *there)] += np.einsum(rule, a, b)
    return Exact(value, size, channels * int(np.prod(kernel)))
