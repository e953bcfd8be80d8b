"""Attention of 16-bit floats whose two products are loops of ours: of few queries, and of bfloat16 on processors with AMX.

When one token after the other is generated there is one query for many keys: these and the values are read once, as they lie in
memory. The softmax between the products is that of `attention_items`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...native import thread_team
from ...native.plan_builder import Builder
from ...problems.attention_problem import AttentionProblem
from ...problems.dtypes import HALVES
from ..attention_constraints import facts_of, refusal
from ..base import Algorithm, Refusal
from .attention_items import BY_ROWS, BY_TILES, FLASH, Shape, of_nothing, too_much, write_attention
from .matrix_tiles import BFLOAT16, NO_TILES, THREADED, has_tiles

__all__ = ["attention_algorithms", "prepare_attention"]

DTYPE, TRAIT = "bfloat16", "flash_attention"
FEW = 4  # queries at most: with more, products of a BLAS, or tiles, are faster (measured on an Intel Xeon, 2026-11)
FEW_THREADED = 1 << 20  # operations of few queries below which a thread team costs more than it brings: they wait for memory


def attention_algorithms(p: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the kernel on all threads and on one, or the reason why there is none; nothing for other dtypes."""
    few = p.lengths[0] <= FEW
    if p.dtype.name not in HALVES or not (few or p.dtype.name == DTYPE):
        return
    reason = refusal(TRAIT, p, facts_of(p.device)) or too_much(p) or _refusal(p, few)
    if reason:
        yield Refusal("kernels", FLASH, reason)
        return
    note = "products by AMX, of weights rounded to bfloat16; subnormal numbers may count as 0"
    items, least = Shape(p, FLASH).items, FEW_THREADED if few else THREADED
    for count in (min(threads, items), 1) if threads > 1 and items > 1 and p.flops >= least else (1,):
        yield Algorithm(
            library="kernels", name=FLASH, threads=count, scaled=count > 1, level="threads", basis="construction",
            precision="f32 accumulation", pool=thread_team.name() if count > 1 else "", traits=(TRAIT,),
            note="reads keys and values once" if few else note,
        )  # fmt: skip


def _refusal(p: AttentionProblem, few: bool) -> str:
    """Returns the reason why the loops do not compute an attention, or an empty string."""
    if not few and not has_tiles(BFLOAT16):
        return NO_TILES.format(DTYPE)
    return "" if all(o.aligned for o in p.qkv) else "an operand is not aligned"


def prepare_attention(p: AttentionProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `attention_algorithms` listed."""
    s = Shape(p, FLASH)
    nothing = of_nothing(p, s)
    if nothing is not None:
        return nothing
    b = Builder(p)
    results, wrap = write_attention(b, p, s, BY_ROWS if s.queries <= FEW else BY_TILES)
    return b.plan(*results, count=s.items, threads=algorithm.threads, wrap=wrap, release_gil=True)
