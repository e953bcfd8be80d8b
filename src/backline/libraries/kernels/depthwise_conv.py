"""Depthwise convolutions by a compiled loop, channel by channel, without columns or a product.

Images and some of their channels, or with channels last some of their points, are independent items that threads share; how they
are cut does not depend on the number of threads, and so neither do the bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as every
from math import prod
from typing import Any

from ...native import thread_team
from ...native.plan_builder import Builder
from ...problems.conv_problem import ConvProblem
from ..base import Algorithm, Refusal
from .conv_steps import ConvSteps, cut, same, uniform

__all__ = ["DEPTHWISE", "depthwise_algorithms", "prepare_depthwise"]

DEPTHWISE = "depthwise"
DTYPES = ("float32", "float64")
ITEMS = 32  # about so many: enough to share, each large enough to be worth it
LEAST_POINTS = 64  # of an item, where there are so many
# Below this many operations a thread team costs more than it brings, and so does releasing the GIL.
THREAD_FLOPS, SMALL_FLOPS = 1e6, 6e4


def depthwise_algorithms(p: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loop on all threads and on one, or the reason why there is none."""
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", DEPTHWISE, reason)
        return
    note = "channel by channel, without a product"
    if threads > 1 and p.flops >= THREAD_FLOPS:
        yield Algorithm(
            library="kernels", name=DEPTHWISE, threads=thread_team.items_threads(threads), scaled=True, level="threads",
            basis="construction", pool=thread_team.name(), note=f"{note}, divided among the threads",
        )  # fmt: skip
    yield Algorithm(library="kernels", name=DEPTHWISE, level="threads", basis="construction", note=note)


def _refusal(p: ConvProblem) -> str:
    """Returns the reason why the loop does not support a convolution, or an empty string."""
    if p.op != "conv":
        return f"there is no compiled loop for {p.op}"
    if not p.depthwise:
        return "its loop is for depthwise convolutions"
    if p.dtype.name not in DTYPES:
        return f"its loops are for {' and '.join(DTYPES)}, not {p.dtype.name}"
    if p.empty:
        return "an empty convolution needs no loop"
    if p.last and p.features != p.channels:
        return "with channels last its loop is for one feature of each channel"
    return ""


def prepare_depthwise(p: ConvProblem, algorithm: Algorithm) -> Any:
    """Returns the PreparedCall of an Algorithm that `depthwise_algorithms` listed."""
    b = Builder(p)
    steps = _DepthwiseSteps(p, b, algorithm.threads)
    count = steps.write()
    if algorithm.threads > 1:
        thread_team.items_run()
    b.each(count, algorithm.threads)
    steps.store()
    return b.plan(steps.result, release_gil=p.flops >= SMALL_FLOPS, same=("residual",))


class _DepthwiseSteps(ConvSteps):
    """Writes the steps of one depthwise convolution down."""

    def write(self) -> int:
        """Writes the loop down; returns the number of its items: images and some channels, or with channels last some points."""
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
            some = cut(p.channels, max(p.batch * p.channels // ITEMS, 1))
            items = [(n, first * each, count * each) for n, (first, count) in every(range(p.batch), some)]
            counts, firsts = same([i[2] for i in items]), [i[1] for i in items]
            source = self.b.argument("input", uniform([n * o.strides[0] + f // each * o.strides[1] for n, f, _ in items]))
            weights = (weights[0], weights[1], uniform([f * self.taps * item for f in firsts]))
            target = (self.target[0], self.target[1], uniform([n * self.steps[0] + f * self.steps[1] for n, f, _ in items]))
            self.call("depthwise_rows", [shape, source, weights, target, counts])
            self.finish(target, firsts, counts, points)
            return len(items)
        weights = self.copied(w, self.b.argument("weight"), (*range(2, len(w.shape)), 0, 1))
        some = cut(points, max(-(-p.batch * points // ITEMS), LEAST_POINTS))
        items = [(n, first, count) for n, (first, count) in every(range(p.batch), some)]
        counts, firsts = same([i[2] for i in items]), [i[1] for i in items]
        source = self.b.argument("input", uniform([n * o.strides[0] for n, _, _ in items]))
        target = (self.target[0], self.target[1], uniform([n * self.steps[0] + f * self.steps[-1] for n, f, _ in items]))
        self.call("depthwise_points", [shape, source, weights, target, same(firsts), counts])
        self.finish(target, [0] * len(items), counts, p.features)
        return len(items)
