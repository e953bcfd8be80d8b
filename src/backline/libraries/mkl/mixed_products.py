"""MKL's products of 16-bit floats that are added up in float32: the result is rounded once, at the end.

Where the processor has instructions for them (AVX512-BF16, AVX512-FP16, AMX) nothing is widened first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES
from ...problems.matmul_problem import MatmulProblem
from ...problems.names import name_of
from ..base import Algorithm, Refusal
from ..blas.blas_product import BlasProduct
from ..blas.cblas import THREAD_FLOPS, BlasTraits

__all__ = ["MIXED", "MixedProduct", "mixed_algorithms"]

MIXED = "gemm_mixed"
ROUTINES = {"float16": "gemm_f16f16f32", "bfloat16": "gemm_bf16bf16f32"}


def mixed_algorithms(blas: BlasTraits, p: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the product of 16-bit floats, on all threads and on one; nothing for other dtypes."""
    if name_of(p.dtype) not in HALVES or p.empty:
        return
    routine = ROUTINES[name_of(p.dtype)]
    if not blas.native.cblas(routine):
        yield Refusal("mkl", MIXED, f"this MKL exports no cblas_{routine}")
        return
    note = f"{routine}, then rounded"
    if name_of(p.dtype) == "bfloat16":
        note += "; subnormal numbers may count as 0"
    if threads > 1 and p.flops >= THREAD_FLOPS:
        yield Algorithm(
            library="mkl", name=MIXED, threads=threads, scaled=True, precision="f32 accumulation", pool=blas.pool, note=note
        )
        if p.items > 1 and blas.pool:
            yield Algorithm(
                library="mkl", name=f"{MIXED}_items", threads=thread_team.items_threads(threads), scaled=True,
                precision="f32 accumulation", level="threads", basis="construction", pool=blas.pool,
                note=f"{note}; items of the batch divided among the threads",
            )  # fmt: skip
    yield Algorithm(library="mkl", name=MIXED, precision="f32 accumulation", level="threads", basis="measured", note=note)


class MixedProduct(BlasProduct):
    """Writes the steps of a product whose operands MKL reads as 16-bit floats."""

    def __init__(self, blas: BlasTraits, p: MatmulProblem, b: Builder, threads: int = 1, target: Pointer | None = None) -> None:
        super().__init__(blas, p, b, threads, target)
        self.read = p.dtype

    def function(self, name: str) -> int:
        return self.blas.native.cblas(ROUTINES[name_of(self.p.dtype)])

    gemm_mixed: Any = BlasProduct.gemm
