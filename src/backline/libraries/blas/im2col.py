"""Convolutions as matrix products of a BLAS: images are spread into columns, a block of points at a time, and multiplied.

A block's columns stay in cache until the product has read them. Blocks, images and groups are independent items that threads
share; how they are cut does not depend on the number of threads, and so neither do the bits. Channels-last images give results
with channels last, and columns in which channels are neighbours. A kernel of one element reads the images where they are.
Depthwise convolutions have a compiled kernel without columns or a product.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from itertools import product as every
from math import prod
from typing import Any

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems import Operand
from ...problems.conv_problem import ConvProblem, channels_last
from ...problems.memory_layout import batch_offsets, contiguous_strides
from .. import capability
from ..base import Algorithm, Refusal
from ..reference.reference_conv import result_order
from .cblas import LETTER, PLAIN, ROW, THREAD_FLOPS, TRANSPOSED, BlasTraits

__all__ = ["conv_algorithms", "prepare_conv"]

BLOCK_BYTES = 1 << 20  # columns of one item: about an L2
LEAST_POINTS = 128  # in a block, where there are so many: a product with fewer columns loses speed
LEAST_ITEMS = 4  # so that there is something to share; then half as many points will do
DEPTHWISE_ITEMS = 32  # about so many: enough to share, each large enough to be worth it
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
        name, basis, note = "im2col", blas.run_basis, "images spread into columns, block by block"
        if _by_channel(p):
            name, basis, note = "depthwise", "construction", "channel by channel, without a product"
        if threads > 1 and p.flops >= THREAD_FLOPS and blas.pool:
            yield Algorithm(
                library=blas.name, name=name, threads=thread_team.items_threads(threads), scaled=True, level="threads",
                basis="construction", pool=blas.pool, note=f"{note}, divided among the threads",
            )  # fmt: skip
        yield Algorithm(library=blas.name, name=name, level="threads", basis=basis, note=note)


def _by_channel(p: ConvProblem) -> bool:
    """Tells whether the compiled depthwise kernel supports a convolution; channels-last needs one feature for each channel."""
    plain = p.op == "conv" and p.depthwise and p.dtype.kind == "f"
    return plain and (p.features == p.channels or not p.last)


def _largest(p: ConvProblem) -> int:
    """Largest size or leading dimension of a product."""
    taps = prod(p.kernel)
    return max(p.channels * taps, p.features * taps, prod(p.image), prod(p.points))


def prepare_conv(blas: BlasTraits, p: ConvProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `conv_algorithms` listed."""
    b = Builder(p, blas.native.int_size)
    steps = _Steps(blas, p, b, algorithm.threads)
    if algorithm.name == "depthwise":
        count = steps.depthwise()
    else:
        count = {"conv": steps.forward, "conv_grad_weight": steps.by_weight}.get(p.op, steps.scattered)()
    if algorithm.threads > 1:
        thread_team.items_run()
    guarded = p.flops >= blas.guarded_from(vector=False)
    b.each(count, algorithm.threads)
    steps.store()
    thread_guard = blas.thread_guard if guarded and algorithm.name != "depthwise" else None  # which calls no BLAS
    return b.plan(steps.result, thread_guard=thread_guard, guard_threads=1, release_gil=guarded, same=("residual",))


def _level() -> int:
    """Returns the level of vector instructions that are available and allowed: 2 for AVX-512, 1 for AVX2, else 0."""
    return 2 if capability.allows("avx512") else 1 if capability.allows("avx2") else 0


def _uniform(offsets: Sequence[int]) -> int | tuple[int, ...]:
    """Offsets of items as one stride where they have one."""
    if len(offsets) < 2:
        return 0 if not offsets or not offsets[0] else tuple(offsets)
    step = offsets[1] - offsets[0]
    return step if not offsets[0] and all(b - a == step for a, b in pairwise(offsets)) else tuple(offsets)


def _same(values: list[int]) -> Any:
    """Values of items as one where they are."""
    return values[0] if len(set(values)) == 1 else values


def _cut(total: int, size: int) -> list[tuple[int, int]]:
    """(first, count) of equal parts of at most about that size."""
    parts = max(-(-total // max(size, 1)), 1)
    bounds = [total * i // parts for i in range(parts + 1)]
    return [(a, b - a) for a, b in pairwise(bounds) if b > a]


def _three(values: Sequence[int], missing: int) -> tuple[int, ...]:
    return (*[missing] * (3 - len(values)), *values)


class _Steps:
    """Writes the steps of one convolution down; `result` is what is returned."""

    def __init__(self, blas: BlasTraits, p: ConvProblem, b: Builder, threads: int) -> None:
        self.blas, self.p, self.b, self.threads = blas, p, b, threads
        self.item = p.dtype.itemsize
        self.kind = ("float32", "float64", "complex64", "complex128").index(p.dtype.name)
        self.taps = prod(p.kernel)
        order = result_order(p)
        self.last = order[-1] != len(order) - 1
        self.steps = contiguous_strides(p.result, self.item, order)
        self.out = out = p.get("out")
        self.result: Pointer = b.result(p.dtype, p.result, self.steps) if out is None else b.argument("out")
        # Where the product is written: the result, or workspace of its layout.
        self.direct = out is None or out.is_contiguous(order)
        self.target = self.result if self.direct else b.work(prod(p.result) * self.item, shared=True)

    # copies before and after ------------------------------------------------------------------------------------------

    def move(self, shape: Sequence[int], source: Pointer, steps: Sequence[int], target: Pointer, to: Sequence[int]) -> None:
        """A group that copies an array (N, C, ...) with any strides on either side."""
        if all(steps[i] == shape[i + 1] * steps[i + 1] and to[i] == shape[i + 1] * to[i + 1] for i in range(2, len(shape) - 1)):
            # The points are in order on both sides: images as matrices of channels and points.
            outer, matrix = shape[:1], (shape[1], prod(shape[2:]))
            inner = (steps[1], steps[-1]), (to[1], to[-1])
        else:
            outer, matrix = shape[:-2], (shape[-2], shape[-1])
            inner = (steps[-2], steps[-1]), (to[-2], to[-1])
        rank = len(outer)
        source = (source[0], source[1], batch_offsets(outer, outer, steps[:rank]))
        target = (target[0], target[1], batch_offsets(outer, outer, to[:rank]))
        self.b.copy(matrix, source, inner[0], target, inner[1], self.item)
        self.b.each(prod(outer), self.threads)

    def load(self) -> bool:
        """Put the residual where the product will be added; False if there is none."""
        residual = self.p.get("residual")
        if residual is None:
            return False
        self.move(self.p.result, self.b.argument("residual"), residual.strides, self.target, self.steps)
        return True

    def store(self) -> None:
        """Copy the finished result to where it is wanted, if it is not there."""
        if not self.direct:
            assert self.out is not None
            self.move(self.p.result, self.target, self.steps, self.result, self.out.strides)

    def weights(self, *, points: bool) -> tuple[Pointer, int]:
        """The weights as a matrix, rows (channels, taps) or with `points` (taps, channels), and its leading dimension."""
        w = self.p.get("weight")
        assert w is not None
        rows, channels = w.shape[:2]
        columns = channels * self.taps
        order = (*range(2, len(w.shape)), 1) if points else tuple(range(1, len(w.shape)))
        pointer = self.b.argument("weight")
        step = columns * self.item if rows == 1 else w.strides[0]
        inside = Operand("row", w.dtype, (1, *w.shape[1:]), w.strides, w.aligned)
        most = self.blas.native.max_integer * self.item
        if inside.is_contiguous((0, *order)) and step % self.item == 0 and columns * self.item <= step <= most:
            return pointer, step // self.item
        return self.copied(w, pointer, (0, *order)), columns

    def copied(self, o: Operand, source: Pointer, order: Sequence[int]) -> Pointer:
        """A dense copy of an operand, its axes in this order in memory, in workspace that all threads share."""
        copy = self.b.work(o.nbytes, shared=True)
        self.move(o.shape, source, o.strides, copy, contiguous_strides(o.shape, self.item, order))
        return copy

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

    # parts of steps ---------------------------------------------------------------------------------------------------

    def geometry(
        self, image: Sequence[int], points: Sequence[int], channels: int, strides: Sequence[int], keep: bool = False
    ) -> Pointer:
        """Returns the mapping between kernel taps, output points and image elements, packed as im2col.cpp reads it."""
        p = self.p
        before = [pair[0] for pair in p.padding]
        words = [
            self.item, self.kind, channels, *_three(image, 1), *_three(p.kernel, 1), *_three(points, 1), *_three(p.stride, 1),
            *_three(p.dilation, 1), *_three(before, 0), strides[1], *_three(strides[2:], 0), int(keep),
            _level(), p.features // max(p.channels, 1), self.steps[-1] if self.last else self.steps[1],
        ]  # fmt: skip
        return self.b.constant(struct.pack(f"<{len(words)}q", *words))

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

    def finish(self, target: Pointer, bias: Sequence[int], rows: Any, columns: Any) -> None:
        """Bias and activation of a block of the result; `bias` holds the first feature of every item."""
        p = self.p
        o = p.get("bias")
        relu = p.parameter("activation") == "relu"
        if o is None and not relu:
            return
        step = 0 if o is None else o.strides[0] if o.shape[0] > 1 else self.item
        if o is not None and step == 0:  # one number for all: spread it, since 0 says that there is none
            spread = self.b.work(p.features * self.item)
            self.b.copy((1, p.features), self.b.argument("bias"), (0, 0), spread, (0, self.item), self.item)
            source, step = spread, self.item
        else:
            source = self.b.argument("bias") if o is not None else target
        if o is not None:
            source = (source[0], source[1], _uniform([f * step for f in bias]))
        row_step = self.steps[-1] if self.last else self.steps[1]
        words = [self.kind, int(relu), 0 if self.last else step, step if self.last else 0, row_step]
        self._call("im2col_finish", [self.b.constant(struct.pack("<5q", *words)), target, source, rows, columns])

    def _call(self, kernel: str, arguments: list[Any]) -> None:
        self.b.call(_kernels.addresses[kernel], arguments)

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
        blocks = _cut(points, min(max(BLOCK_BYTES // (depth * item), LEAST_POINTS), max(share, LEAST_POINTS // 2)))
        items = [(n, g, first, count) for n, g, (first, count) in every(range(p.batch), range(p.groups), blocks)]
        firsts, counts, most = [i[2] for i in items], _same([i[3] for i in items]), max(i[3] for i in items)
        point = p.features * item if last else item  # from one point of the result to the next
        at = [n * self.steps[0] + g * features * self.steps[1] + first * point for n, g, first, _ in items]
        target = (self.target[0], self.target[1], _uniform(at))
        w = (weights[0], weights[1], _uniform([g * features * ldw * item for _, g, _, _ in items]))
        if there:
            step = p.channels * item if last else item
            inputs = [n * o.strides[0] + g * channels * (item if last else points * item) for n, g, _, _ in items]
            x: Pointer = self.b.argument("input", _uniform([i + f * step for i, f in zip(inputs, firsts, strict=True)]))
            ldx: Any = p.channels if last else points
        else:
            x = self.b.work(depth * most * item)
            ldx = depth if last else counts
            source = self.b.argument("input", _uniform([n * o.strides[0] + g * channels * o.strides[1] for n, g, _, _ in items]))
            shape = self.geometry(p.image, p.points, channels, o.strides)
            self._call("im2col_points" if last else "im2col_rows", [shape, source, x, channels, firsts, counts])
        if last:
            self.gemm((PLAIN, TRANSPOSED), (counts, features, depth), (x, ldx), (w, ldw), (target, p.features), int(keep))
            self.finish(target, [g * features for _, g, _, _ in items], counts, features)
        else:
            self.gemm((PLAIN, PLAIN), (features, counts, depth), (w, ldw), (x, ldx), (target, points), int(keep))
            self.finish(target, [g * features for _, g, _, _ in items], features, counts)
        return len(items)

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
        blocks = _cut(features, max(BLOCK_BYTES // (self.taps * points * item), 1))
        items = [(n, g, first, count) for n, g, (first, count) in every(range(p.batch), range(p.groups), blocks)]
        counts, depths, most = _same([i[3] for i in items]), _same([self.taps * i[3] for i in items]), max(i[3] for i in items)
        w = (weights[0], weights[1], _uniform([(g * rows * ldw + f * self.taps) * item for _, g, f, _ in items]))
        x = (x[0], x[1], _uniform([n * image + g * rows * channel for n, g, _, _ in items]))
        columns = self.b.work(self.taps * most * points * item)
        at = [n * self.steps[0] + (g * features + f) * self.steps[1] for n, g, f, _ in items]
        target = (self.target[0], self.target[1], _uniform(at))
        ldx = source_channels if last else points
        trans = (TRANSPOSED, TRANSPOSED if last else PLAIN)
        self.gemm(trans, (depths, points, rows), (w, ldw), (x, ldx), (columns, points), 0)
        shape = self.geometry(p.result[2:], places, features, self.steps, keep)
        self._call("im2col_add", [shape, columns, target, counts])
        size, firsts = prod(p.result[2:]), [g * features + f for _, g, f, _ in items]
        if self.last:
            self.finish(target, firsts, size, counts)
        else:
            self.finish(target, firsts, counts, size)
        return len(items)

    def depthwise(self) -> int:
        """Every channel by itself, without columns; for every image and some channels, or with channels last some points."""
        p, item = self.p, self.item
        o, w = p.get("input"), p.get("weight")
        assert o is not None and w is not None
        points, each = prod(p.points), p.features // p.channels
        keep = self.load()
        shape = self.geometry(p.image, p.points, p.channels, o.strides, keep)
        if not self.last:
            weights, ldw = self.weights(points=False)
            if ldw != self.taps:  # features apart from each other
                weights = self.copied(w, weights, range(len(w.shape)))
            some = _cut(p.channels, max(p.batch * p.channels // DEPTHWISE_ITEMS, 1))
            items = [(n, first * each, count * each) for n, (first, count) in every(range(p.batch), some)]
            counts, firsts = _same([i[2] for i in items]), [i[1] for i in items]
            source = self.b.argument("input", _uniform([n * o.strides[0] + f // each * o.strides[1] for n, f, _ in items]))
            weights = (weights[0], weights[1], _uniform([f * self.taps * item for f in firsts]))
            target = (self.target[0], self.target[1], _uniform([n * self.steps[0] + f * self.steps[1] for n, f, _ in items]))
            self._call("depthwise_rows", [shape, source, weights, target, counts])
            self.finish(target, firsts, counts, points)
            return len(items)
        weights = self.copied(w, self.b.argument("weight"), (*range(2, len(w.shape)), 0, 1))
        some = _cut(points, max(-(-p.batch * points // DEPTHWISE_ITEMS), LEAST_POINTS // 2))
        items = [(n, first, count) for n, (first, count) in every(range(p.batch), some)]
        counts, firsts = _same([i[2] for i in items]), [i[1] for i in items]
        source = self.b.argument("input", _uniform([n * o.strides[0] for n, _, _ in items]))
        target = (self.target[0], self.target[1], _uniform([n * self.steps[0] + f * self.steps[-1] for n, f, _ in items]))
        self._call("depthwise_points", [shape, source, weights, target, _same(firsts), counts])
        self.finish(target, [0] * len(items), counts, p.features)
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
        blocks = _cut(channels, min(max(BLOCK_BYTES // (self.taps * points * item), 1), -(-channels // 4)))
        items = [(g, first, count) for g, (first, count) in every(range(p.groups), blocks)]
        counts, depths, most = _same([i[2] for i in items]), _same([self.taps * i[2] for i in items]), max(i[2] for i in items)
        some = _cut(points, max(8 * BLOCK_BYTES // (self.taps * most * item), LEAST_POINTS))
        ldc = channels * self.taps
        at = [(g * features * channels + f) * self.taps * item for g, f, _ in items]
        target = (self.target[0], self.target[1], _uniform(at))
        columns = self.b.work(self.taps * most * max(count for _, count in some) * item)
        source = self.b.argument("input", _uniform([(g * channels + f) * o.strides[1] for g, f, _ in items]))
        rows = (grad[0], grad[1], _uniform([g * features * channel for g, _, _ in items]))
        shape = self.geometry(p.image, p.points, channels, o.strides)
        point = p.features * item if last else item
        for n, (first, count) in every(range(p.batch), some):
            self._call("im2col_rows", [shape, shift(source, n * o.strides[0]), columns, counts, first, count])
            a = shift(rows, n * image + first * point), p.features if last else points
            trans = (TRANSPOSED if last else PLAIN, TRANSPOSED)
            self.gemm(trans, (features, depths, count), a, (columns, count), (target, ldc), int(n + first > 0))
        return len(items)
