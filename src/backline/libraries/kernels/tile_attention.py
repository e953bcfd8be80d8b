"""Attention of bfloat16 on processors with AMX: both products by tiles, with the softmax between them in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...native import thread_team
from ...native.plan_builder import Builder
from ...problems.attention_problem import AttentionProblem
from ..attention_constraints import facts_of, refusal
from ..base import Algorithm, Refusal
from .attention_items import FLASH, Shape, of_nothing, too_much, write_attention
from .matrix_tiles import BFLOAT16, NO_TILES, THREADED, has_tiles

__all__ = ["attention_algorithms", "prepare_attention"]

DTYPE, TRAIT = "bfloat16", "flash_attention"
LEAST_QUERIES = 16  # fewer fill no tile, and keys would be packed for little


def attention_algorithms(p: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the kernel on all threads and on one, or the reason why there is none; nothing for other dtypes."""
    if p.dtype.name != DTYPE:
        return
    reason = refusal(TRAIT, p, facts_of(p.device)) or too_much(p) or _refusal(p)
    if reason:
        yield Refusal("kernels", FLASH, reason)
        return
    note = "products by AMX, of weights rounded to bfloat16; subnormal numbers may count as 0"
    items = Shape(p, FLASH).items
    for count in (min(threads, items), 1) if threads > 1 and items > 1 and p.flops >= THREADED else (1,):
        yield Algorithm(
            library="kernels", name=FLASH, threads=count, scaled=count > 1, precision="f32 accumulation", level="threads",
            basis="construction", pool=thread_team.name() if count > 1 else "", note=note, traits=(TRAIT,),
        )  # fmt: skip


def _refusal(p: AttentionProblem) -> str:
    """Returns the reason why tiles do not compute an attention, or an empty string."""
    if not has_tiles(BFLOAT16):
        return NO_TILES.format(DTYPE)
    if p.lengths[0] < LEAST_QUERIES:
        return f"fewer than {LEAST_QUERIES} queries fill no tile"
    return "" if all(o.aligned for o in p.qkv) else "an operand is not aligned"


def prepare_attention(p: AttentionProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `attention_algorithms` listed."""
    s = Shape(p, FLASH)
    nothing = of_nothing(p, s)
    if nothing is not None:
        return nothing
    b = Builder(p)
    results, wrap = write_attention(b, p, s)
    return b.plan(*results, count=s.items, threads=algorithm.threads, wrap=wrap, release_gil=True)
