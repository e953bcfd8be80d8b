"""Products and convolutions of int8 by oneDNN's functions for matrices of integers, which want no primitive.

A Plan of them is made in a fraction of the time that primitives take: it is for shapes that may never come again. Convolutions
are products of columns that images are spread into, a block of points at a time. The sums are exact, as those of primitives are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product as every
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems.quantized_problem import QuantizedProblem
from ..base import Algorithm, Refusal
from ..kernels.conv_steps import cut, geometry_words, same, uniform
from . import abi
from .int8_results import SMALL_FLOPS, Finish, finish_for
from .int8_sums import order_for
from .plan_writer import dense_strides, image_strides, status_failure
from .primitives import Engine

__all__ = ["GEMM", "gemm_algorithms", "prepare_gemm"]

GEMM = "int8_gemm"
FUNCTIONS = {"uint8": "dnnl_gemm_u8s8s32", "int8": "dnnl_gemm_s8s8s32"}  # by the dtype of the input
MOST_GROUPS = 16  # each of which is a product of its own
BLOCK_BYTES = 1 << 18  # of columns and sums that a block has
LEAST_POINTS = 64  # in a block, where there are so many
LEAST_ITEMS = 4  # for threads to share
PLAIN, TRANSPOSED, ONE_OFFSET = map(ord, "NTF")

F32 = np.dtype(np.float32)


def gemm_algorithms(
    engine: Engine, p: QuantizedProblem, threads: int, isa: str, note: str
) -> Iterator[Algorithm | Refusal]:  # fmt: skip
    """oneDNN's products of integers for an operation on int8 that is not empty, on so many threads and on one."""
    function = FUNCTIONS[p.dtype.name]
    if not engine.native.address(function):
        yield Refusal("onednn", GEMM, f"this oneDNN has no {function}")
    elif p.get("weight_zero") is not None:
        yield Refusal("onednn", GEMM, "the weight has zero points, for which its inputs would have to be added up as well")
    elif p.groups > MOST_GROUPS and not _is_depthwise(p):
        yield Refusal("onednn", GEMM, f"{p.groups} groups would be as many products, and {MOST_GROUPS} are worth it")
    else:
        made = partial(Algorithm, library="onednn", name=GEMM, level="threads", basis="construction", isa=isa)
        text = f"{'a loop over channels' if _is_depthwise(p) else function}, without a primitive{note}"
        if threads > 1:
            yield made(threads=thread_team.items_threads(threads), scaled=True, pool=engine.pool, note=text)
        yield made(note=text)


def _is_depthwise(p: QuantizedProblem) -> bool:
    """Tells whether every channel of the images is a group with one output."""
    return p.groups > 1 and p.groups == p.outs and p.shape("weight")[1] == 1


def prepare_gemm(engine: Engine, p: QuantizedProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `gemm_algorithms` listed."""
    steps = _Product(engine, p, algorithm.threads)
    if p.op != "quantized.conv2d":
        return steps.plan(steps.linear())
    return steps.plan(steps.depthwise() if _is_depthwise(p) else steps.convolution())


class _Product:
    """Writes the steps of one operation down; `result` is what is returned."""

    def __init__(self, engine: Engine, p: QuantizedProblem, threads: int) -> None:
        self.engine, self.p, self.threads = engine, p, threads
        self.b = Builder(p)
        self.function = engine.native.address(FUNCTIONS[p.dtype.name])
        self.no_offset = self.b.constant(bytes(4))
        self._arguments: dict[str, Pointer] = {}

    def argument(self, role: str) -> Pointer:
        found = self._arguments.get(role)
        if found is None:
            found = self._arguments[role] = self.b.argument(role)
        return found

    def blocks(self, rows: int, batch: int = 1) -> list[tuple[int, int]]:
        """The first row and the number of rows of each block: what it needs fits a cache, and threads have some to share."""
        most = max(BLOCK_BYTES // (4 * self.p.outs + self.p.terms), LEAST_POINTS)
        share = -(-rows * batch // LEAST_ITEMS) if self.threads > 1 else rows
        return cut(rows, min(most, max(share, LEAST_POINTS // 2)))

    def gemm(
        self, way: int, sizes: tuple[Any, Any, int], a: tuple[Pointer, Any], weights: Pointer, sums: Pointer, status: Pointer
    ) -> None:
        """Sums of each row's products with the weights of some outputs; `a` is pointer and leading dimension."""
        one, nothing = np.float32(1), np.float32(0)
        call = [
            way, TRANSPOSED, ONE_OFFSET, *sizes, one, *a, 0, weights, self.p.terms, 0, nothing, sums, self.p.outs,
            self.no_offset,
        ]  # fmt: skip
        self.b.call(self.function, call, returns=3, to=status)

    def prepared(self, rows: int) -> Finish:
        """Writes what every item needs before it: the numbers of the call."""
        made = finish_for(self.b, self.p, order_for(self.engine, self.p), self.argument, rows, True)
        self.b.each()
        return made

    def linear(self) -> int:
        p, b = self.p, self.b
        outs, terms = p.outs, p.terms
        dtype = F32 if p.op == "quantized.linear_dynamic" else p.dtype
        self.result = b.result(dtype, p.result, [n * dtype.itemsize for n in dense_strides(p.result)])
        blocks = self.blocks(prod(p.result[:-1]))
        firsts, counts, most = [i for i, _ in blocks], same([n for _, n in blocks]), max(n for _, n in blocks)
        finish = self.prepared(most)
        sums = b.work(4 * most * outs)
        x = b.argument("input", uniform([i * terms for i in firsts]))
        self.gemm(PLAIN, (counts, outs, terms), (x, terms), self.argument("weight"), sums, b.info(len(blocks)))
        target = self.result[0], 0, uniform([i * outs * dtype.itemsize for i in firsts])
        b.call(finish.address, [finish.layer, finish.numbers, sums, 0, target, counts])
        return len(blocks)

    def convolution(self) -> int:
        p, b, outs = self.p, self.b, self.p.outs
        shape, (_, channels, *window) = p.shape("input"), p.shape("weight")
        points = prod(p.result[2:])
        steps = image_strides(shape, p.last)  # of an axis of one element an array's own may be anything
        self.result = b.result(p.dtype, p.result, image_strides(p.result, p.last))
        items = [(n, *block) for n, block in every(range(shape[0]), self.blocks(points, shape[0]))]
        firsts, counts, most = [i[1] for i in items], same([i[2] for i in items]), max(i[2] for i in items)
        finish, status = self.prepared(most), b.info(len(items))
        there = prod(window) == 1 and p.parameter("stride") == (1, 1) and not any(p.parameter("padding"))
        weights = self.weights(channels, prod(window)) if p.last else self.argument("weight")
        sums, columns = b.work(4 * most * outs), None if there else b.work(p.terms * most)
        way, wide = PLAIN if p.last else TRANSPOSED, outs // p.groups
        what = None if there else self.geometry(channels, steps)
        point = shape[1] if p.last else 1
        images = b.argument("input", uniform([n * steps[0] + (i * point if there else 0) for n, i, _ in items]))
        for group in range(p.groups):
            x, ldx = shift(images, group * channels * steps[1]), shape[1] if p.last else prod(shape[2:])
            if columns is not None:
                kernel = "im2col_byte_points" if p.last else "im2col_byte_rows"
                b.call(_kernels.addresses[kernel], [what, x, columns, channels, firsts, counts, self.argument("input_zero")])
                x, ldx = columns, p.terms if p.last else counts
            own = shift(weights, group * wide * p.terms)
            self.gemm(way, (counts, wide, p.terms), (x, ldx), own, shift(sums, 4 * group * wide), status)
        self.finished(finish, sums, items, points)
        return len(items)

    def depthwise(self) -> int:
        """Each channel for itself, by a loop over images with channels last."""
        p, b, channels, shape = self.p, self.b, self.p.outs, self.p.shape("input")
        points, pixels, image = prod(p.result[2:]), prod(shape[2:]), prod(shape[1:])
        self.result = b.result(p.dtype, p.result, image_strides(p.result, p.last))
        items = [(n, *block) for n, block in every(range(shape[0]), self.blocks(points, shape[0]))]
        firsts, counts, most = [i[1] for i in items], same([i[2] for i in items]), max(i[2] for i in items)
        turn, weights = _kernels.addresses["turn_bytes"], b.work(channels * p.terms, shared=True)
        b.call(turn, [self.argument("weight"), weights, channels, p.terms, p.terms, channels])
        finish = self.prepared(most)
        images = b.argument("input", uniform([n * image for n, _, _ in items]))
        if not p.last:
            turned = b.work(prod(shape), shared=True)
            b.call(turn, [b.argument("input", image), (turned[0], 0, image), channels, pixels, pixels, channels])
            b.each(shape[0], self.threads)
            images = turned[0], 0, images[2]
        sums, what = b.work(4 * most * channels), self.geometry(channels, image_strides(shape, True))
        kernel = _kernels.addresses[f"depthwise_{p.dtype.name}"]
        b.call(kernel, [what, images, weights, sums, firsts, counts, self.argument("input_zero")])
        self.finished(finish, sums, items, points)
        return len(items)

    def finished(self, finish: Finish, sums: Pointer, items: list[tuple[int, int, int]], points: int) -> None:
        """Results of each item's sums, which have channels last, where they belong."""
        p, b, outs = self.p, self.b, self.p.outs
        counts, most, image = same([i[2] for i in items]), max(i[2] for i in items), outs * points
        if p.last:
            target: Pointer = self.result[0], 0, uniform([n * image + i * outs for n, i, _ in items])
            b.call(finish.address, [finish.layer, finish.numbers, sums, 0, target, counts])
            return
        inner, target = b.work(most * outs), (self.result[0], 0, uniform([n * image + i for n, i, _ in items]))
        b.call(finish.address, [finish.layer, finish.numbers, sums, 0, inner, counts])
        b.call(_kernels.addresses["turn_bytes"], [inner, target, counts, outs, outs, points])

    def weights(self, channels: int, taps: int) -> Pointer:
        """The weights of each output with channels last, as columns of images with channels last have them."""
        if channels == 1 or taps == 1:
            return self.argument("weight")
        turned = self.b.work(self.p.outs * self.p.terms, shared=True)
        places = self.b.argument("weight", self.p.terms), (turned[0], 0, self.p.terms)
        self.b.call(_kernels.addresses["turn_bytes"], [*places, channels, taps, taps, channels])
        self.b.each(self.p.outs, self.threads)
        return turned

    def geometry(self, channels: int, steps: tuple[int, ...]) -> Pointer:
        p = self.p
        sizes = p.shape("input")[2:], p.shape("weight")[2:], p.result[2:]
        return self.b.constant(
            geometry_words(1, channels, *sizes, p.parameter("stride"), p.parameter("dilation"), p.parameter("padding"), steps)
        )

    def plan(self, items: int) -> Any:
        if self.threads > 1:
            thread_team.items_run()
        self.b.each(items, self.threads)
        p, guard = self.p, self.engine.thread_guard

        def on_info(plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
            raise status_failure(plan, p, next(filter(None, infos), abi.OUT_OF_MEMORY))

        return self.b.plan(
            self.result, thread_guard=guard, guard_threads=1 if guard else 0, release_gil=p.flops >= SMALL_FLOPS, on_info=on_info,
        )  # fmt: skip
