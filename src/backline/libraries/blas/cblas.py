"""Matrix products through the C interface of BLAS, for every library that has it.

References: BLAS Technical Forum Standard, chapter 2 and appendix B (C interface); the `gemm_batch_strided` extension as
MKL and OpenBLAS have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...native import thread_team
from ...native.plan_builder import Builder
from ...problems.dtypes import HALVES
from ...problems.matmul_problem import MatmulProblem, View
from ...problems.names import name_of
from ..base import Algorithm, Refusal
from .blas_product import SLAB_BYTES, BlasProduct
from .blas_traits import COLUMN, LETTER, PLAIN, ROW, TRANSPOSED, BlasTraits
from .dot_in_parts import can_be_divided
from .product_parts import PARTS, parts_algorithms

__all__ = [
    "COLUMN", "LETTER", "PLAIN", "ROW", "SLAB_BYTES", "THREAD_FLOPS", "TRANSPOSED", "BlasTraits", "guard_of",
    "matmul_algorithms", "prepare_matmul", "product_threads", "takes", "write_product",
]  # fmt: skip

THREAD_FLOPS = 1e6  # below this many operations a thread team costs more than it brings
VECTOR_FLOPS = 9e5  # the same in products with a vector: OpenBLAS divides them from 460,800 elements on
# A divided product or batch needs no team inside the library, only one fork and join.
SPLIT_FLOPS = 4e5
IN_PARTS = ("gemm_split", "gemv_slabs", "dot_split", *PARTS)  # divided by us: every call of the library takes one thread
SLAB_ROWS = 16  # of the left operand in gemv_slabs, at most


def matmul_algorithms(blas: BlasTraits, problem: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Every way of this BLAS for a product."""
    refusal = _refusal(blas, problem)
    if refusal:
        yield Refusal(blas.name, "gemm", refusal)
        return
    half = name_of(problem.dtype) in HALVES
    precision = "f32 accumulation" if half else ""
    vector = not half and (problem.m == 1 or problem.n == 1)
    parts = list(parts_algorithms(blas, problem, threads, half, vector))
    if vector and problem.m == problem.n == 1 and problem.alpha == 1 and problem.beta == 0:
        yield from parts
        if not parts and threads > 1 and blas.pool and can_be_divided(problem):
            yield Algorithm(
                library=blas.name, name="dot_split", threads=threads, scaled=True, basis="construction",
                pool=blas.pool, note="parts of a fixed size divided among the threads, and their sums added up",
            )  # fmt: skip
        yield Algorithm(library=blas.name, name="dot", level="threads", basis="construction")
        return
    names = ["gemv"] if vector else []
    if not vector or problem.parameter("conj"):
        names = ["gemm_f32" if half else "gemm"]
    for name in names:
        if threads > 1 and problem.flops >= (VECTOR_FLOPS if vector else THREAD_FLOPS):
            yield Algorithm(
                library=blas.name, name=name, threads=threads, scaled=True, precision=precision,
                level="threads" if blas.any_thread_count else "run", basis=blas.any_thread_count or blas.run_basis,
                pool=blas.pool,
            )  # fmt: skip
        yield Algorithm(library=blas.name, name=name, precision=precision, level="threads", basis=blas.run_basis)
    yield from parts
    if problem.items == 1 and not vector:
        yield from _divided(blas, problem, threads, half)
    if problem.items > 1 and not vector:
        least = blas.least_item.get(LETTER.get(problem.dtype.name, LETTER["float32"]), 0.0)
        if threads > 1 and problem.flops >= SPLIT_FLOPS and blas.pool and problem.flops >= least * problem.items:
            yield Algorithm(
                library=blas.name, name=f"{names[0]}_items", threads=thread_team.items_threads(threads), scaled=True,
                precision=precision, level="threads", basis="construction", pool=blas.pool,
                note="items of the batch divided among the threads",
            )  # fmt: skip
        if not half and _strided(blas, problem):
            yield Algorithm(library=blas.name, name="gemm_batch", precision=precision, level="threads", basis=blas.run_basis)
            if threads > 1 and problem.flops >= THREAD_FLOPS and blas.divides_batches:
                yield Algorithm(
                    library=blas.name, name="gemm_batch", threads=threads, scaled=True, precision=precision,
                    basis=blas.run_basis, pool=blas.pool,
                )  # fmt: skip


def _divided(blas: BlasTraits, p: MatmulProblem, threads: int, half: bool) -> Iterator[Algorithm]:
    """One product cut into independent ones, each on one thread: no waiting for each other inside the library."""
    if half or any(v.layout == "X" for v in p.views.values()):
        return
    if threads > 1 and p.flops >= SPLIT_FLOPS and (p.m >= 16 * threads or p.n >= 16 * threads) and blas.pool:
        yield Algorithm(
            library=blas.name, name="gemm_split", threads=threads, scaled=True, basis="construction", pool=blas.pool,
            note="rows or columns divided among the threads, each part a product of its own",
        )  # fmt: skip
    a, b, out = p.views.get("a"), p.views.get("b"), p.views.get("out")
    assert a is not None and b is not None
    if 2 <= p.m <= SLAB_ROWS and b.layout == "F" and a.layout == "C" and (out is None or out.layout == "C") and p.beta == 0:
        if p.k * p.n * p.dtype.itemsize <= SLAB_BYTES:
            return
        note = "row by row over slabs of the right operand that stay in cache"
        if threads > 1 and blas.pool:
            yield Algorithm(
                library=blas.name, name="gemv_slabs", threads=threads, scaled=True, basis="construction", pool=blas.pool,
                note=note,
            )  # fmt: skip
        yield Algorithm(library=blas.name, name="gemv_slabs", level="threads", basis="construction", note=note)


def takes(dtype: np.dtype[Any]) -> bool:
    """Tells whether BLAS has products of a dtype, including 16-bit floats converted to float32."""
    return name_of(dtype) in LETTER or name_of(dtype) in HALVES


def _refusal(blas: BlasTraits, p: MatmulProblem) -> str:
    if not takes(p.dtype):
        return f"BLAS has no product of {p.dtype.name}"
    if p.empty:
        return "an empty product needs no BLAS"
    if p.parameter("conj") and not p.m == p.n == 1:
        return "BLAS conjugates without transposing only in a dot product"
    limit = blas.native.max_integer
    if any(size > limit for size in (p.m, p.n, p.k, *(v.ld for v in p.views.values()))):
        return f"sizes past {limit} need 64-bit integers, this library has {8 * blas.native.int_size}-bit ones"
    return ""


def _strided(blas: BlasTraits, p: MatmulProblem) -> bool:
    if not blas.native.cblas(f"{LETTER[p.dtype.name]}gemm_batch_strided") or not blas.batches(p.dtype):
        return False
    views = [p.views.get("a"), p.views.get("b"), p.views.get("out")]
    size = p.dtype.itemsize

    def fits(v: View) -> bool:
        return v.layout != "X" and not isinstance(v.items, tuple) and v.items >= 0 and v.items % size == 0

    def apart(v: View) -> bool:
        """Tells whether the results of a batch do not interleave in memory.

        MKL computes nothing where they do, and reports no error.
        """
        return not isinstance(v.items, tuple) and v.items >= v.ld * (v.rows if v.layout == "C" else v.cols) * size

    out = views[2]
    return all(v is None or fits(v) for v in views) and (out is None or apart(out))


# Preparing ----------------------------------------------------------------------------------------------------------


def prepare_matmul(blas: BlasTraits, p: MatmulProblem, algorithm: Algorithm, kind: type[BlasProduct] = BlasProduct) -> Any:
    """The PreparedCall of an Algorithm that `matmul_algorithms` listed; `kind` writes the steps of the product."""
    b = Builder(p, blas.native.int_size)
    product = kind(blas, p, b, product_threads(blas, algorithm))
    count, threads = write_product(product, algorithm)
    return b.plan(product.result, count=count, threads=threads, same=("c",), **guard_of(blas, p, algorithm))


def product_threads(blas: BlasTraits, algorithm: Algorithm) -> int:
    """Returns the threads of the team that may copy for a product: those of its library, where they are the team's."""
    return algorithm.threads if blas.pool and blas.pool == thread_team.name() else 1


def write_product(product: BlasProduct, algorithm: Algorithm) -> tuple[int, int]:
    """Writes the steps of a product; returns the number of items of the last group, and its threads."""
    if algorithm.name in IN_PARTS:
        return getattr(product, algorithm.name)(algorithm.threads), algorithm.threads
    name = algorithm.name.removesuffix("_items")
    divided = name != algorithm.name
    if divided:
        thread_team.items_run()
    if name == "gemm_batch":
        product.batched()
        return 1, 1
    getattr(product, name)()
    return product.p.items, algorithm.threads if divided else 1


def guard_of(blas: BlasTraits, p: MatmulProblem, algorithm: Algorithm) -> dict[str, Any]:
    """Returns the arguments of a plan that keep the library to the threads of an Algorithm."""
    alone = algorithm.name in IN_PARTS or algorithm.name.endswith("_items")
    # OpenBLAS and MKL divide batches of any size among their threads.
    always, divided = algorithm.name == "gemm_batch", algorithm.name in IN_PARTS
    guard = blas.guard(p.flops, vector=p.m == 1 or p.n == 1, divided=divided, always=always)
    return {**guard, "guard_threads": 1 if alone else algorithm.threads}
