"""Steps of products and convolutions of int8 without a primitive: columns, products, results.

A Plan of them is made in a fraction of the time that primitives take. Convolutions are products of columns that images are spread
into, a block of points at a time; depthwise ones are a loop. What multiplies is a subclass's. Sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as every
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems.memory_layout import dense_strides, image_strides
from ...problems.quantized_problem import QuantizedProblem
from .conv_steps import cut, geometry_words, same, uniform
from .int8_results import SMALL_FLOPS, Finish, finish_for

__all__ = ["MOST_TERMS", "ByteSteps", "is_depthwise", "refusal"]

MOST_TERMS = (2**31 - 1) // 255**2  # of one sum, so that int32 holds it whatever the zero points
LEAST_POINTS = 64  # in a block, where there are so many
LEAST_ITEMS = 4  # for threads to share
BLOCK = 32  # channels that depthwise_bytes.cpp takes together, at most

F32 = np.dtype(np.float32)


def is_depthwise(p: QuantizedProblem) -> bool:
    """Tells whether every channel of the images is a group with one output, whose weights have no zero point."""
    one = p.groups > 1 and p.groups == p.outs and p.shape("weight")[1] == 1
    return one and p.get("weight_zero") is None


def refusal(p: QuantizedProblem, engines: Sequence[str]) -> str:
    """Returns the reason why sums of int32 are not what an operation by one of some engines wants, or an empty string."""
    if p.engine not in engines:
        return f"the weight is packed by engine {p.engine!r}, not {' or '.join(map(repr, engines))}"
    weight = p.get("weight")
    assert weight is not None
    if weight.dtype != np.int8:
        return f"no weights of {weight.dtype}"
    if p.terms > MOST_TERMS:
        return f"sums of {p.terms} products may not fit int32, those of {MOST_TERMS} do"
    return ""


class ByteSteps:
    """Writes the steps of one operation down; `result` is what is returned.

    Attributes
    ----------
    block_bytes
        Of columns and sums that a block has.
    channels_last
        Whether products want images with their channels last: those that have them first are turned.
    windows
        Where the sums of what each window sees are, which a weight's zero point is multiplied by; None without one.
    """

    block_bytes = 1 << 18
    channels_last = False

    def __init__(self, p: QuantizedProblem, threads: int) -> None:
        self.p, self.threads = p, threads
        self.b = Builder(p)
        self.windows: Pointer | None = None
        self._arguments: dict[str, Pointer] = {}

    # what a subclass has

    def weight_sums(self) -> Pointer:
        """Returns where the sums of each output's weights are."""
        raise NotImplementedError

    def weights(self, channels: int, taps: int, last: bool) -> None:
        """Brings the weights into the order of the products, where that depends on whether columns have channels last."""

    def multiply(self, rows: Any, x: Pointer, step: Any, last: bool, group: int, sums: Pointer) -> None:
        """Writes the product of some rows with the weights of a group: `step` bytes from one row, or term, to the next."""
        raise NotImplementedError

    def begin(self, items: int, most: int) -> None:
        """Prepares for so many blocks of at most `most` rows."""

    # steps

    def argument(self, role: str) -> Pointer:
        found = self._arguments.get(role)
        if found is None:
            found = self._arguments[role] = self.b.argument(role)
        return found

    def blocks(self, rows: int, batch: int = 1) -> list[tuple[int, int]]:
        """Returns first row and number of rows of each block: what it needs fits a cache, and threads have some to share."""
        most = max(self.block_bytes // (4 * self.p.outs + self.p.terms), LEAST_POINTS)
        share = -(-rows * batch // LEAST_ITEMS) if self.threads > 1 else rows
        return cut(rows, min(most, max(share, LEAST_POINTS // 2)))

    def write(self) -> int:
        """Writes all steps; returns the number of items of the last group."""
        if self.p.op != "quantized.conv2d":
            return self.linear()
        return self.depthwise() if is_depthwise(self.p) else self.convolution()

    def prepared(self, rows: int) -> Finish:
        """Writes what every item needs before it: the numbers of the call."""
        made = finish_for(self.b, self.p, self.weight_sums(), self.argument, rows, True)
        self.b.each()
        return made

    def returned(self) -> np.dtype[Any]:
        """Makes the result of a linear layer; returns its dtype."""
        p = self.p
        dtype = F32 if p.op == "quantized.linear_dynamic" else p.dtype
        self.result = self.b.result(dtype, p.result, [n * dtype.itemsize for n in dense_strides(p.result)])
        return dtype

    def linear(self) -> int:
        p, b = self.p, self.b
        outs, terms, size = p.outs, p.terms, self.returned().itemsize
        blocks = self.blocks(prod(p.result[:-1]))
        firsts, counts, most = [i for i, _ in blocks], same([n for _, n in blocks]), max(n for _, n in blocks)
        self.weights(terms, 1, True)
        finish = self.prepared(most)
        sums = b.work(4 * most * outs)
        self.begin(len(blocks), most)
        self.multiply(counts, b.argument("input", uniform([i * terms for i in firsts])), terms, True, 0, sums)
        target = self.result[0], 0, uniform([i * outs * size for i in firsts])
        b.call(finish.address, [finish.layer, finish.numbers, sums, self.windows or 0, target, counts])
        return len(blocks)

    def convolution(self) -> int:
        p, b, outs = self.p, self.b, self.p.outs
        shape, (_, channels, *window) = p.shape("input"), p.shape("weight")
        points, taps, image, last = prod(p.result[2:]), prod(window), prod(shape[1:]), p.last or self.channels_last
        steps = image_strides(shape, last)  # of an axis of one element an array's own may be anything
        self.result = b.result(p.dtype, p.result, image_strides(p.result, p.last))
        items = [(n, *block) for n, block in every(range(shape[0]), self.blocks(points, shape[0]))]
        firsts, counts, most = [i[1] for i in items], same([i[2] for i in items]), max(i[2] for i in items)
        given = b.argument("input") if p.last == last else self.turned()
        self.weights(channels, taps, last)
        finish = self.prepared(most)
        there = taps == 1 and p.parameter("stride") == (1, 1) and not any(p.parameter("padding"))
        sums, columns = b.work(4 * most * outs), None if there else b.work(p.terms * most)
        what = None if there else self.geometry(channels, steps)
        point = shape[1] if last else 1
        images = given[0], given[1], uniform([n * image + (i * point if there else 0) for n, i, _ in items])
        self.begin(len(items), most)
        for group in range(p.groups):
            x, step = shift(images, group * channels * steps[1]), shape[1] if last else prod(shape[2:])
            if columns is not None:
                kernel = "im2col_byte_points" if last else "im2col_byte_rows"
                b.call(_kernels.addresses[kernel], [what, x, columns, channels, firsts, counts, self.argument("input_zero")])
                x, step = columns, p.terms if last else counts
            self.multiply(counts, x, step, last, group, shift(sums, 4 * group * (outs // p.groups)))
        self.finished(finish, sums, items, points)
        return len(items)

    def depthwise(self) -> int:
        """Each channel for itself, by a loop over images with channels last."""
        p, b, channels, shape = self.p, self.b, self.p.outs, self.p.shape("input")
        points, image = prod(p.result[2:]), prod(shape[1:])
        self.result = b.result(p.dtype, p.result, image_strides(p.result, p.last))
        items = [(n, *block) for n, block in every(range(shape[0]), self.blocks(points, shape[0]))]
        firsts, counts, most = [i[1] for i in items], same([i[2] for i in items]), max(i[2] for i in items)
        what, turned = self.geometry(channels, image_strides(shape, True)), b.work(channels * p.terms, shared=True)
        weights = b.work(2 * -(-channels // BLOCK) * BLOCK * (p.terms + 1), shared=True)
        self.turn(self.argument("weight"), turned, channels, p.terms)
        b.call(_kernels.addresses["pair_weights"], [what, turned, weights])
        finish = self.prepared(most)
        given = b.argument("input") if p.last else self.turned()
        images = given[0], given[1], uniform([n * image for n, _, _ in items])
        sums = b.work(4 * most * channels)
        rooms = b.work(8 * (p.terms + 1)), b.work(8 * (p.terms + 1)), b.work(channels)
        kernel = _kernels.addresses[f"depthwise_{p.dtype.name}"]
        b.call(kernel, [what, images, weights, sums, firsts, counts, self.argument("input_zero"), *rooms])
        self.finished(finish, sums, items, points)
        return len(items)

    def finished(self, finish: Finish, sums: Pointer, items: list[tuple[int, int, int]], points: int) -> None:
        """Results of each item's sums, which have channels last, where they belong."""
        p, b, outs = self.p, self.b, self.p.outs
        counts, most, image = same([i[2] for i in items]), max(i[2] for i in items), outs * points
        if p.last:
            target: Pointer = self.result[0], 0, uniform([n * image + i * outs for n, i, _ in items])
            b.call(finish.address, [finish.layer, finish.numbers, sums, self.windows or 0, target, counts])
            return
        inner, target = b.work(most * outs), (self.result[0], 0, uniform([n * image + i for n, i, _ in items]))
        b.call(finish.address, [finish.layer, finish.numbers, sums, self.windows or 0, inner, counts])
        b.call(_kernels.addresses["turn_bytes"], [inner, target, counts, outs, outs, points])

    def turn(self, source: Pointer, target: Pointer, rows: int, columns: int) -> None:
        """Copies rows of bytes as columns."""
        self.b.call(_kernels.addresses["turn_bytes"], [source, target, rows, columns, columns, rows])

    def turned(self) -> Pointer:
        """Returns a copy of the images with their channels last, which all threads make."""
        p, b = self.p, self.b
        shape = p.shape("input")
        image, copy = prod(shape[1:]), b.work(prod(shape), shared=True)
        b.each()
        self.turn(b.argument("input", image), (copy[0], copy[1], image), shape[1], prod(shape[2:]))
        b.each(shape[0], self.threads)
        return copy

    def geometry(self, channels: int, steps: tuple[int, ...]) -> Pointer:
        p = self.p
        sizes = p.shape("input")[2:], p.shape("weight")[2:], p.result[2:]
        return self.b.constant(
            geometry_words(1, channels, *sizes, p.parameter("stride"), p.parameter("dilation"), p.parameter("padding"), steps)
        )

    def plan(self, **more: Any) -> Any:
        """Writes the steps and returns the PreparedCall."""
        items = self.write()
        if self.threads > 1:
            thread_team.items_run()
        self.b.each(items, self.threads)
        return self.b.plan(self.result, release_gil=self.p.flops >= SMALL_FLOPS, **more)
