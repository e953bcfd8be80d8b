"""Products and convolutions of int8 by a compiled loop with exact sums, on every processor.

Where a processor has no instructions that add up products of bytes in 32 bits (VNNI), vendors' kernels add pairs of them in 16
bits, which saturates. The loop does that only for rows of bytes up to 127, where it is exact, and widens others to 16 bits.

Weights are packed once (`Packing`). Where those of a call are packed for another library, or not at all, it packs them itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer, shift
from ...problems.quantized_problem import QuantizedProblem
from ..base import Algorithm, PythonPlan, Refusal
from ..reference import reference_quantized
from ..reference.reference_requantize import FLOAT32
from .conv_steps import cut, same, uniform
from .int8_steps import LEAST_ITEMS, LEAST_POINTS, ByteSteps, is_depthwise, refusal
from .vector_level import vector_level

__all__ = [
    "LINE", "OUTS", "PRODUCT", "TERMS", "Packing", "call_product", "loop_algorithms", "packed_here", "packing",
    "prepare_quantized", "quantized_algorithms", "rows_together", "up_to",
]  # fmt: skip

PRODUCT, EMPTY = "int8_product", "empty"
ENGINES = ("x86", "onednn", *FLOAT32)
THREAD_FLOPS = 2e6  # below this a thread team costs more than it brings
OUTS, TERMS, LINE = 16, 4, 64  # as int8_products.cpp has them, and bytes of a line of the cache
MARK = 2  # bytes behind the packed weights, by which no other library's order has as many
TOGETHER = 60  # of which the rows that are copied at once are a multiple,
COPIED = 1 << 17  # and bytes that they have at most

Array = np.ndarray[Any, Any]


def up_to(number: int, multiple: int) -> int:
    """Returns the least multiple that is no less than a number."""
    return -(-number // multiple) * multiple


def rows_together(terms: int, most: int) -> tuple[int, int]:
    """Returns how many rows of at most so many the loop copies at once, and the bytes that they have."""
    row = 2 * up_to(terms, LINE)
    together = min(max(COPIED // row // TOGETHER, 1) * TOGETHER, most)
    return together, together * row


def call_product(
    b: Builder, dtype: np.dtype[Any], terms: int, step: int, together: int, given: list[Any], groups: int = 1
) -> None:
    """Writes a call of the loop; `step` sums lie from one row to the next, and the sums of rows `groups` apart."""
    words = (vector_level(), terms, int(dtype == np.int8), step, together, groups)
    b.call(_kernels.addresses["byte_product"], [b.constant(struct.pack(f"<{len(words)}q", *words)), *given])


@dataclass(frozen=True)
class Packing:
    """The order of weights in memory: those of each group, then an int32 for each output, the sum of its weights.

    Attributes
    ----------
    outs, channels, taps
        Of one group.
    groups
        One behind the other.
    """

    outs: int
    channels: int
    taps: int
    groups: int

    @property
    def group_bytes(self) -> int:
        """Bytes of the weights of a group."""
        return up_to(self.outs, OUTS) * up_to(self.channels * self.taps, TERMS)

    @property
    def sums_at(self) -> int:
        """Bytes from the weights to their sums."""
        return up_to(self.groups * self.group_bytes, LINE)

    @property
    def nbytes(self) -> int:
        """Bytes of an array that holds both."""
        return self.sums_at + 4 * self.groups * self.outs + MARK

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Yields where the weights of each group are, where they are packed, and where their sums are, in bytes."""
        for group in range(self.groups):
            outs = group * self.outs
            yield outs * self.channels * self.taps, group * self.group_bytes, self.sums_at + 4 * outs

    def pack(self, weight: Array) -> Array:
        """Returns weights, as NumPy has them, in this order: a read-only array of bytes."""
        memory = np.zeros(self.nbytes + LINE, np.uint8)
        start = -memory.__array_interface__["data"][0] % LINE
        packed = memory[start : start + self.nbytes]
        run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)(_kernels.addresses["pack_bytes"])
        source, target = weight.__array_interface__["data"][0], packed.__array_interface__["data"][0]
        for at, to, sums in self.parts():
            run(source + at, target + to, target + sums, self.outs, self.channels, self.taps)
        packed.flags.writeable = False
        return packed


def _order(p: QuantizedProblem) -> Packing:
    _, channels, *window = p.shape("weight")
    return Packing(p.outs // p.groups, channels, prod(window), p.groups)


def packing(p: QuantizedProblem) -> Packing | None:
    """The order of the weights of a Problem; None where they need none."""
    return None if p.empty or refusal(p, ENGINES) else _order(p)


def packed_here(p: QuantizedProblem) -> bool:
    """Tells whether the weights of a Problem are packed for the loop."""
    form = p.get("form")
    return form is not None and form.shape == (_order(p).nbytes,)


def quantized_algorithms(p: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loop on all threads and on one, or the reason why there is none."""
    reason = refusal(p, ENGINES)
    if reason:
        yield Refusal("kernels", PRODUCT, reason)
        return
    if p.empty:
        yield Algorithm(library="kernels", name=EMPTY, level="threads", basis="construction", note="nothing to multiply")
        return
    note = "channel by channel" if is_depthwise(p) else "exact sums of bytes"
    if p.engine in FLOAT32:
        note += f"; {FLOAT32[p.engine]}"
    yield from loop_algorithms(p.flops, threads, note)


def loop_algorithms(flops: float, threads: int, note: str) -> Iterator[Algorithm]:
    """Yields the loop on all threads, where there is work enough for them, and on one."""
    if threads > 1 and flops >= THREAD_FLOPS:
        yield Algorithm(
            library="kernels", name=PRODUCT, threads=thread_team.items_threads(threads), scaled=True, level="threads",
            basis="construction", pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=PRODUCT, level="threads", basis="construction", note=note)


def prepare_quantized(p: QuantizedProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `quantized_algorithms` listed."""
    if algorithm.name == EMPTY:
        return PythonPlan(reference_quantized.plan(p))
    return _Products(p, algorithm.threads).plan()


class _Products(ByteSteps):
    """Steps whose products are the loop's."""

    block_bytes = 1 << 17
    channels_last = True

    def __init__(self, p: QuantizedProblem, threads: int) -> None:
        super().__init__(p, threads)
        self.order = _order(p)

    def weight_sums(self) -> Pointer:
        return shift(self.packed, self.order.sums_at)

    @cached_property
    def packed(self) -> Pointer:
        """The packed weights, which come with the call or are packed in it."""
        if packed_here(self.p):
            return self.argument("form")
        order, weight = self.order, self.argument("weight")
        packed = self.b.work(order.nbytes, shared=True)
        for at, to, sums in order.parts():
            given = [shift(weight, at), shift(packed, to), shift(packed, sums), order.outs, order.channels, order.taps]
            self.b.call(_kernels.addresses["pack_bytes"], given)
        return packed

    def begin(self, items: int, most: int) -> None:
        p, b = self.p, self.b
        self.together, copied = rows_together(p.terms, most)
        self.copy = b.work(copied)
        if p.get("weight_zero") is not None:
            self.windows = b.work(4 * most * p.groups)

    def linear(self) -> int:
        """Few rows are divided among the threads by outputs: they are one block."""
        p, b, rows = self.p, self.b, prod(self.p.result[:-1])
        if self.threads == 1 or rows >= LEAST_POINTS or p.get("weight_zero") is not None:
            return super().linear()
        self.returned()
        finish = self.prepared(rows)
        parts = cut(-(-p.outs // OUTS), max(p.outs // OUTS // LEAST_ITEMS, 1))
        firsts, counts = [first * OUTS for first, _ in parts], [count * OUTS for _, count in parts]
        counts[-1] = p.outs - firsts[-1]
        sums = b.work(4 * rows * p.outs, shared=True)
        self.begin(len(parts), rows)
        weights = self.packed[0], self.packed[1], uniform([first * up_to(p.terms, TERMS) for first in firsts])
        made = sums[0], sums[1], uniform([4 * first for first in firsts])
        self.product(same(counts), [b.argument("input"), p.terms, weights, self.copy, made, 0, rows])
        b.each(len(parts), self.threads)
        b.call(finish.address, [finish.layer, finish.numbers, sums, 0, self.result, rows])
        return 1

    def multiply(self, rows: Any, x: Pointer, step: Any, last: bool, group: int, sums: Pointer) -> None:
        windows = 0 if self.windows is None else shift(self.windows, 4 * group)
        weights = shift(self.packed, group * self.order.group_bytes)
        self.product(self.order.outs, [x, step, weights, self.copy, sums, windows, rows])

    def product(self, outs: Any, given: list[Any]) -> None:
        """Writes a call for so many outputs."""
        p = self.p
        call_product(self.b, p.dtype, p.terms, p.outs, self.together, [*given, outs], p.groups)
