"""Products and convolutions of int8 by oneDNN's functions for matrices of integers, which want no primitive.

A Plan of them is made in a fraction of the time that primitives take: it is for shapes that may never come again. The sums are
exact, as those of primitives are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...native import thread_team
from ...native.plan_builder import Pointer, shift
from ...problems.quantized_problem import QuantizedProblem
from ..base import Algorithm, Refusal
from ..kernels.int8_steps import ByteSteps, is_depthwise
from . import abi
from .int8_sums import order_for
from .plan_writer import status_failure
from .primitives import Engine

__all__ = ["GEMM", "gemm_algorithms", "prepare_gemm"]

GEMM = "int8_gemm"
FUNCTIONS = {"uint8": "dnnl_gemm_u8s8s32", "int8": "dnnl_gemm_s8s8s32"}  # by the dtype of the input
MOST_GROUPS = 16  # each of which is a product of its own
PLAIN, TRANSPOSED, ONE_OFFSET = map(ord, "NTF")


def gemm_algorithms(
    engine: Engine, p: QuantizedProblem, threads: int, isa: str, note: str
) -> Iterator[Algorithm | Refusal]:  # fmt: skip
    """oneDNN's products of integers for an operation on int8 that is not empty, on so many threads and on one."""
    function = FUNCTIONS[p.dtype.name]
    if not engine.native.address(function):
        yield Refusal("onednn", GEMM, f"this oneDNN has no {function}")
    elif p.get("weight_zero") is not None:
        yield Refusal("onednn", GEMM, "the weight has zero points, for which its inputs would have to be added up as well")
    elif p.groups > MOST_GROUPS and not is_depthwise(p):
        yield Refusal("onednn", GEMM, f"{p.groups} groups would be as many products, and {MOST_GROUPS} are worth it")
    else:
        made = partial(Algorithm, library="onednn", name=GEMM, level="threads", basis="construction", isa=isa)
        text = f"{'a loop over channels' if is_depthwise(p) else function}, without a primitive{note}"
        if threads > 1:
            yield made(threads=thread_team.items_threads(threads), scaled=True, pool=engine.pool, note=text)
        yield made(note=text)


def prepare_gemm(engine: Engine, p: QuantizedProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `gemm_algorithms` listed."""

    def on_info(plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
        raise status_failure(plan, p, next(filter(None, infos), abi.OUT_OF_MEMORY))

    guard = engine.thread_guard
    return _Products(engine, p, algorithm.threads).plan(thread_guard=guard, guard_threads=1 if guard else 0, on_info=on_info)


class _Products(ByteSteps):
    """Steps whose products are oneDNN's."""

    def __init__(self, engine: Engine, p: QuantizedProblem, threads: int) -> None:
        super().__init__(p, threads)
        self.engine = engine
        self.function = engine.native.address(FUNCTIONS[p.dtype.name])
        self.no_offset = self.b.constant(bytes(4))

    def weight_sums(self) -> Pointer:
        return shift(self.argument("form"), order_for(self.engine, self.p).sums_at)

    def weights(self, channels: int, taps: int, last: bool) -> None:
        self.given = self.argument("weight")
        if last and channels > 1 and taps > 1:
            turned = self.b.work(self.p.outs * self.p.terms, shared=True)
            self.turn(self.b.argument("weight", self.p.terms), (turned[0], 0, self.p.terms), channels, taps)
            self.b.each(self.p.outs, self.threads)
            self.given = turned

    def begin(self, items: int, most: int) -> None:
        self.status = self.b.info(items)

    def multiply(self, rows: Any, x: Pointer, step: Any, last: bool, group: int, sums: Pointer) -> None:
        p, one, nothing = self.p, np.float32(1), np.float32(0)
        outs = p.outs // p.groups
        weights = shift(self.given, group * outs * p.terms)
        call = [
            PLAIN if last else TRANSPOSED, TRANSPOSED, ONE_OFFSET, rows, outs, p.terms, one, x, step, 0, weights, p.terms, 0,
            nothing, sums, p.outs, self.no_offset,
        ]  # fmt: skip
        self.b.call(self.function, call, returns=3, to=self.status)
