"""Steps of a convolution by loops of `_kernels`: copies of layouts, weights as a matrix, bias and activation.

What stands between them is a subclass's: a product of a BLAS, or a loop.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems import Operand
from ...problems.conv_problem import ConvProblem
from ...problems.memory_layout import batch_offsets, contiguous_strides
from ..reference.reference_conv import result_order
from .vector_level import vector_level

__all__ = ["ConvSteps", "cut", "geometry_words", "same", "uniform"]


def uniform(offsets: Sequence[int]) -> int | tuple[int, ...]:
    """Offsets of items as one stride where they have one."""
    if len(offsets) < 2:
        return 0 if not offsets or not offsets[0] else tuple(offsets)
    step = offsets[1] - offsets[0]
    return step if not offsets[0] and all(b - a == step for a, b in pairwise(offsets)) else tuple(offsets)


def same(values: list[int]) -> Any:
    """Values of items as one where they are."""
    return values[0] if len(set(values)) == 1 else values


def cut(total: int, size: int) -> list[tuple[int, int]]:
    """(first, count) of equal parts of at most about that size."""
    parts = max(-(-total // max(size, 1)), 1)
    bounds = [total * i // parts for i in range(parts + 1)]
    return [(a, b - a) for a, b in pairwise(bounds) if b > a]


def _three(values: Sequence[int], missing: int) -> tuple[int, ...]:
    return (*[missing] * (3 - len(values)), *values)


def geometry_words(
    item: int, channels: int, image: Sequence[int], kernel: Sequence[int], points: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int], before: Sequence[int], strides: Sequence[int], *, kind: int = 0, keep: bool = False,
    features: int = 1, step: int = 0,
) -> bytes:  # fmt: skip
    """The Geometry of convolution.hpp: `strides` are those of the images in bytes, `step` those of a result."""
    words = [
        item, kind, channels, *_three(image, 1), *_three(kernel, 1), *_three(points, 1), *_three(stride, 1),
        *_three(dilation, 1), *_three(before, 0), strides[1], *_three(strides[2:], 0), int(keep), vector_level(), features, step,
    ]  # fmt: skip
    return struct.pack(f"<{len(words)}q", *words)


class ConvSteps:
    """Writes the steps of one convolution down; `result` is what is returned.

    Attributes
    ----------
    most
        Largest leading dimension that the weights may have as a matrix.
    """

    most = (1 << 63) - 1

    def __init__(self, p: ConvProblem, b: Builder, threads: int) -> None:
        self.p, self.b, self.threads = p, b, threads
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
        most = self.most * self.item
        if inside.is_contiguous((0, *order)) and step % self.item == 0 and columns * self.item <= step <= most:
            return pointer, step // self.item
        return self.copied(w, pointer, (0, *order)), columns

    def copied(self, o: Operand, source: Pointer, order: Sequence[int]) -> Pointer:
        """A dense copy of an operand, its axes in this order in memory, in workspace that all threads share."""
        copy = self.b.work(o.nbytes, shared=True)
        self.move(o.shape, source, o.strides, copy, contiguous_strides(o.shape, self.item, order))
        return copy

    # parts of steps ---------------------------------------------------------------------------------------------------

    def geometry(
        self, image: Sequence[int], points: Sequence[int], channels: int, strides: Sequence[int], keep: bool = False
    ) -> Pointer:
        """Returns the mapping between kernel taps, output points and image elements, packed as im2col.cpp reads it."""
        p = self.p
        before = [pair[0] for pair in p.padding]
        return self.b.constant(geometry_words(
            self.item, channels, image, p.kernel, points, p.stride, p.dilation, before, strides, kind=self.kind, keep=keep,
            features=p.features // max(p.channels, 1), step=self.steps[-1] if self.last else self.steps[1],
        ))  # fmt: skip

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
            source = (source[0], source[1], uniform([f * step for f in bias]))
        row_step = self.steps[-1] if self.last else self.steps[1]
        words = [self.kind, int(relu), 0 if self.last else step, step if self.last else 0, row_step]
        self.call("im2col_finish", [self.b.constant(struct.pack("<5q", *words)), target, source, rows, columns])

    def call(self, kernel: str, arguments: list[Any]) -> None:
        self.b.call(_kernels.addresses[kernel], arguments)
