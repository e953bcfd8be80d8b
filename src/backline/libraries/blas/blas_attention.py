"""Attention by the compiled kernel, with the two products of a BLAS library: `attention_items` says how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...native.plan_builder import Builder
from ...problems.attention_problem import AttentionProblem
from ...problems.dtypes import HALVES
from ..attention_constraints import facts_of, refusal
from ..base import Algorithm, Refusal
from ..kernels.attention_items import FLASH, MATH, Products, Shape, of_nothing, too_much, write_attention
from .cblas import LETTER, THREAD_FLOPS, BlasTraits

__all__ = ["attention_algorithms", "prepare_attention", "products_of"]

TRAITS = {FLASH: "flash_attention", MATH: "math"}


def attention_algorithms(blas: BlasTraits, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The kernels with this BLAS, or why they cannot run."""
    precision = "f32 accumulation" if problem.dtype.name in HALVES else ""
    for name, trait in TRAITS.items():
        reason = refusal(trait, problem, facts_of(problem.device)) or too_much(problem)
        if reason:
            yield Refusal(blas.name, name, reason)
            continue
        if blas.pool and blas.thread_guard is None:  # its threads are NumPy's: as many as that was told
            yield Algorithm(
                library=blas.name, name=name, precision=precision, basis=blas.run_basis, pool=blas.pool, traits=(trait,)
            )
            continue
        count = Shape(problem, name).items
        if threads > 1 and count > 1 and problem.flops >= THREAD_FLOPS and blas.pool:
            yield Algorithm(
                library=blas.name, name=name, threads=min(threads, count), scaled=True, precision=precision, level="threads",
                basis="construction", pool=blas.pool, note="blocks of query rows divided among the threads", traits=(trait,),
            )  # fmt: skip
        yield Algorithm(library=blas.name, name=name, precision=precision, level="threads", basis="construction", traits=(trait,))


def products_of(blas: BlasTraits, s: Shape) -> Products:
    """The products that a BLAS has for an attention."""
    letter = LETTER[s.compute.name]
    return Products(blas.native.cblas(letter + "gemm"), blas.native.cblas(letter + "gemv"), blas.native.max_integer)


def prepare_attention(blas: BlasTraits, p: AttentionProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `attention_algorithms` listed."""
    s = Shape(p, algorithm.name)
    b = Builder(p, blas.native.int_size)
    nothing = of_nothing(p, s)
    if nothing is not None:
        return nothing
    results, wrap = write_attention(b, p, s, products_of(blas, s))
    return b.plan(
        *results, count=s.items, threads=algorithm.threads, guard_threads=1, wrap=wrap,
        **blas.guard(p.flops, vector=s.queries == 1),
    )  # fmt: skip
