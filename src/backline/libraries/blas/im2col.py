"""Convolutions as matrix products of a BLAS: images are spread into columns, a block of points at a time, and multiplied.

A block's columns stay in cache until the product has read them. Blocks, images and groups are independent items that threads
share; how they are cut does not depend on the number of threads, and so neither do the bits. Channels-last images give results
with channels last, and columns in which channels are neighbours. A kernel of one element reads the images where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as every
from math import prod
from typing import Any

from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems import Operand
from ...problems.conv_problem import ConvProblem, channels_last
from ..base import Algorithm, Refusal
from ..kernels.conv_steps import ConvSteps, cut, same, uniform
from .cblas import LETTER, PLAIN, ROW, THREAD_FLOPS, TRANSPOSED, BlasTraits

__all__ = ["conv_algorithms", "prepare_conv"]

BLOCK_BYTES = 1 << 20  # columns of one item: about an L2
LEAST_POINTS = 128  # in a block, where there are so many: a product with fewer columns loses speed
LEAST_ITEMS = 4  # so that there is something to share; then half as many points will do, and so many features
LEAST_FEATURES = 32
MOST = 2**31 - 1  # what 32-bit integers of a BLAS hold


def conv_algorithms(blas: BlasTraits, p: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The ways of a BLAS for a convolution: on one thread, and with the items divided among all."""
    if p.dtype.name not in LETTER:
        yield Refusal(blas.name, "im2col", f"BLAS has no product of {p.dtype.name}")
    elif p.dtype.kind == "c" and p.op.startswith("conv_grad"):
        yield Refusal(blas.name, "im2col", "gradients of complex convolutions are conjugated, which this does not do")
    elif p.empty:
        yield Algorithm(library=blas.name, name="empty", level="threads", basis="construction", note="nothing to compute")
    elif _largest(p) > MOST:
        yield Refusal(blas.name, "im2col", f"an image, or the weights of a feature, have more than {MOST} elements")
    else:
        note = "images spread into columns, block by block"
        if threads > 1 and p.flops >= THREAD_FLOPS and blas.pool:
            yield Algorithm(
                library=blas.name, name="im2col", threads=thread_team.items_threads(threads), scaled=True, level="threads",
                basis="construction", pool=blas.pool, note=f"{note}, divided among the threads",
            )  # fmt: skip
        yield Algorithm(library=blas.name, name="im2col", level="threads", basis=blas.run_basis, note=note)


def _largest(p: ConvProblem) -> int:
    """Largest size or leading dimension of a product."""
    taps = prod(p.kernel)
    return max(p.channels * taps, p.features * taps, prod(p.image), prod(p.points))


def prepare_conv(blas: BlasTraits, p: ConvProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `conv_algorithms` listed."""
    b = Builder(p, blas.native.int_size)
    steps = _ProductSteps(blas, p, b, algorithm.threads)
    count = {"conv": steps.forward, "conv_grad_weight": steps.by_weight}.get(p.op, steps.scattered)()
    if algorithm.threads > 1:
        thread_team.items_run()
    b.each(count, algorithm.threads)
    steps.store()
    return b.plan(steps.result, guard_threads=1, same=("residual",), **blas.guard(p.flops, vector=False))


class _ProductSteps(ConvSteps):
    """Writes the steps of one convolution by products of a BLAS down."""

    def __init__(self, blas: BlasTraits, p: ConvProblem, b: Builder, threads: int) -> None:
        super().__init__(p, b, threads)
        self.blas, self.most = blas, blas.native.max_integer

    # parts of steps ---------------------------------------------------------------------------------------------------

    def matrices(self, role: str) -> tuple[Pointer, tuple[int, int], bool]:
        """Images as matrices (channels, points) or with channels last (points, channels): where, bytes from one image and
        from one channel to the next, and which. A layout that is neither is copied to channels first."""
        o = self.p.get(role)
        assert o is not None
        last = channels_last(o)
        points = prod(o.shape[2:])
        image = prod(o.shape[1:]) * self.item
        if last:
            return self.b.argument(role), (image, self.item), True
        if last is None:
            copy = self.copied(o, self.b.argument(role), range(len(o.shape)))
            return copy, (image, points * self.item), False
        return self.b.argument(role), (image, points * self.item), False

    def scalar(self, value: float) -> Any:
        """Returns a factor as an argument: by reference for complex types, else by value."""
        return self.b.number(complex(value), self.p.dtype) if self.p.dtype.kind == "c" else self.p.dtype.type(value)

    def gemm(
        self, trans: tuple[int, int], sizes: Sequence[Any], a: Sequence[Any], b: Sequence[Any], c: Sequence[Any],
        beta: int,
    ) -> None:  # fmt: skip
        """C = A B + beta C in row order; a, b and c are pointer and leading dimension."""
        function = self.blas.native.cblas(LETTER[self.p.dtype.name] + "gemm")
        self.b.call(function, [ROW, *trans, *sizes, self.scalar(1), *a, *b, self.scalar(beta), *c])

    # operations -------------------------------------------------------------------------------------------------------

    def forward(self) -> int:
        """result = weights times columns, for every image, group and block of points."""
        p, item, last = self.p, self.item, self.last
        o = p.get("input")
        assert o is not None
        channels, features = p.channels // p.groups, p.features // p.groups
        depth, points = channels * self.taps, prod(p.points)
        keep = self.load()
        weights, ldw = self.weights(points=last)
        whole = all(k == s == 1 and pad == (0, 0) for k, s, pad in zip(p.kernel, p.stride, p.padding, strict=True))
        there = whole and channels_last(o) is not None
        share = -(-points * p.batch * p.groups // LEAST_ITEMS)
        blocks = cut(points, min(max(BLOCK_BYTES // (depth * item), LEAST_POINTS), max(share, LEAST_POINTS // 2)))
        images = [(n, g, first, count) for n, g, (first, count) in every(range(p.batch), range(p.groups), blocks)]
        # Of few points the features are divided, too: then the columns are made for all of them, and by all threads.
        most = -(-features * len(images) // LEAST_ITEMS) if len(images) < LEAST_ITEMS else features
        parts = cut(features, max(most, LEAST_FEATURES))
        items = [(*image, *part) for image, part in every(images, parts)]
        firsts, counts = [i[2] for i in items], same([i[3] for i in items])
        some = [g * features + feature for _, g, _, _, feature, _ in items]  # the first feature of each item
        widths = same([i[5] for i in items])
        point = p.features * item if last else item  # from one point of the result to the next
        at = [i[0] * self.steps[0] + f * self.steps[1] + i[2] * point for i, f in zip(items, some, strict=True)]
        target = (self.target[0], self.target[1], uniform(at))
        w = (weights[0], weights[1], uniform([f * ldw * item for f in some]))
        if there:
            step = p.channels * item if last else item
            inputs = [n * o.strides[0] + g * channels * (item if last else points * item) for n, g, *_ in items]
            x: Pointer = self.b.argument("input", uniform([i + f * step for i, f in zip(inputs, firsts, strict=True)]))
            ldx: Any = p.channels if last else points
        else:
            x = self.columns(o, images, channels, len(parts))
            ldx = depth if last else counts
        if last:
            self.gemm((PLAIN, TRANSPOSED), (counts, widths, depth), (x, ldx), (w, ldw), (target, p.features), int(keep))
            self.finish(target, some, counts, widths)
        else:
            self.gemm((PLAIN, PLAIN), (widths, counts, depth), (w, ldw), (x, ldx), (target, points), int(keep))
            self.finish(target, some, widths, counts)
        return len(items)

    def columns(self, o: Operand, images: Sequence[tuple[int, int, int, int]], channels: int, parts: int) -> Pointer:
        """Spreads blocks of images into columns; returns where the items of the product find theirs, `parts` of each block."""
        last, depth, most = self.last, channels * self.taps, max(i[3] for i in images)
        kernel = "im2col_points" if last else "im2col_rows"
        shape = self.geometry(self.p.image, self.p.points, channels, o.strides)
        sources = [n * o.strides[0] + g * channels * o.strides[1] for n, g, *_ in images]
        if parts == 1:  # in the item that multiplies them
            x = self.b.work(depth * most * self.item)
            firsts, counts = [i[2] for i in images], same([i[3] for i in images])
            self.call(kernel, [shape, self.b.argument("input", uniform(sources)), x, channels, firsts, counts])
            return x
        size = depth * most * self.item
        x = self.b.work(size * len(images), shared=True)
        # An item makes those of some channels of a block, or with channels last of some of its points.
        shares = []  # where they are in the image and among the columns; channels, the first point, and points
        for i, (source, (_, _, first, count)) in enumerate(zip(sources, images, strict=True)):
            total = count if last else channels
            for begin, n in cut(total, -(-total // LEAST_ITEMS)):
                if last:
                    shares.append((source, i * size + begin * depth * self.item, channels, first + begin, n))
                else:
                    to = i * size + begin * self.taps * count * self.item
                    shares.append((source + begin * o.strides[1], to, n, first, count))
        given, places, *numbers = (list(each) for each in zip(*shares, strict=True))
        self.call(kernel, [shape, self.b.argument("input", uniform(given)), (x[0], x[1], uniform(places)), *map(same, numbers)])
        self.b.each(len(shares), self.threads)
        return x[0], x[1], uniform([i * size for i in range(len(images)) for _ in range(parts)])

    def scattered(self) -> int:
        """Columns = weights, transposed, times images, added up where they belong; for every image, group and some features."""
        p, item = self.p, self.item
        by_input = p.op == "conv_grad_input"
        role = "grad" if by_input else "input"
        source_channels, result_channels = (p.features, p.channels) if by_input else (p.channels, p.features)
        rows, features = source_channels // p.groups, result_channels // p.groups
        places = p.points if by_input else p.image
        points = prod(places)
        keep = self.load()
        weights, ldw = self.weights(points=False)
        x, (image, channel), last = self.matrices(role)
        blocks = cut(features, max(BLOCK_BYTES // (self.taps * points * item), 1))
        items = [(n, g, first, count) for n, g, (first, count) in every(range(p.batch), range(p.groups), blocks)]
        counts, depths, most = same([i[3] for i in items]), same([self.taps * i[3] for i in items]), max(i[3] for i in items)
        w = (weights[0], weights[1], uniform([(g * rows * ldw + f * self.taps) * item for _, g, f, _ in items]))
        x = (x[0], x[1], uniform([n * image + g * rows * channel for n, g, _, _ in items]))
        columns = self.b.work(self.taps * most * points * item)
        at = [n * self.steps[0] + (g * features + f) * self.steps[1] for n, g, f, _ in items]
        target = (self.target[0], self.target[1], uniform(at))
        ldx = source_channels if last else points
        trans = (TRANSPOSED, TRANSPOSED if last else PLAIN)
        self.gemm(trans, (depths, points, rows), (w, ldw), (x, ldx), (columns, points), 0)
        shape = self.geometry(p.result[2:], places, features, self.steps, keep)
        self.call("im2col_add", [shape, columns, target, counts])
        size, firsts = prod(p.result[2:]), [g * features + f for _, g, f, _ in items]
        if self.last:
            self.finish(target, firsts, size, counts)
        else:
            self.finish(target, firsts, counts, size)
        return len(items)

    def by_weight(self) -> int:
        """gradient = images of the result times columns, transposed, summed over images; for every group and some channels."""
        p, item = self.p, self.item
        o = p.get("input")
        assert o is not None
        channels, features = p.channels // p.groups, p.features // p.groups
        points = prod(p.points)
        grad, (image, channel), last = self.matrices("grad")
        # A few blocks of channels to share, and where that is not small enough, of points.
        blocks = cut(channels, min(max(BLOCK_BYTES // (self.taps * points * item), 1), -(-channels // 4)))
        items = [(g, first, count) for g, (first, count) in every(range(p.groups), blocks)]
        counts, depths, most = same([i[2] for i in items]), same([self.taps * i[2] for i in items]), max(i[2] for i in items)
        some = cut(points, max(8 * BLOCK_BYTES // (self.taps * most * item), LEAST_POINTS))
        ldc = channels * self.taps
        at = [(g * features * channels + f) * self.taps * item for g, f, _ in items]
        target = (self.target[0], self.target[1], uniform(at))
        columns = self.b.work(self.taps * most * max(count for _, count in some) * item)
        source = self.b.argument("input", uniform([(g * channels + f) * o.strides[1] for g, f, _ in items]))
        rows = (grad[0], grad[1], uniform([g * features * channel for g, _, _ in items]))
        shape = self.geometry(p.image, p.points, channels, o.strides)
        point = p.features * item if last else item
        for n, (first, count) in every(range(p.batch), some):
            self.call("im2col_rows", [shape, shift(source, n * o.strides[0]), columns, counts, first, count])
            a = shift(rows, n * image + first * point), p.features if last else points
            trans = (TRANSPOSED if last else PLAIN, TRANSPOSED)
            self.gemm(trans, (features, depths, count), a, (columns, count), (target, ldc), int(n + first > 0))
        return len(items)
