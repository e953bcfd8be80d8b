"""A linear layer by a BLAS in one plan: its product, then residual, bias and activation by a compiled loop, then one rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES, compute_dtype
from ...problems.linear_problem import LinearProblem
from ...problems.memory_layout import batch_offsets
from ..base import Algorithm, Library, Refusal
from ..kernels.pointwise_loops import pointwise_fields
from ..kernels.shares import Share, even_share, in_shares, vector
from ..linear_epilogue import SUFFIX, linear_algorithms, prepare_linear
from .blas_product import BlasProduct
from .cblas import BlasTraits, guard_of, product_threads, write_product

__all__ = ["fused_linear_algorithms", "prepare_fused_linear"]

NOT_WRITTEN = ("empty", "dot", "jit")  # products that are no steps of a BLAS call with a target
SHARE = 1 << 13  # elements of the result that an item finishes
# Below so many elements the loop after the product runs on one thread.
THREADED = 1 << 14


def fused_linear_algorithms(library: Library, problem: LinearProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Lists the ways of a library for the product inside, each followed by the rest."""
    product = problem.product
    if problem.halves:  # as they are given: the library may have products of them
        product = problem.given_product
        product = replace(product, operands=tuple(o for o in product.operands if o.role not in ("bias", "out")))
    for found in linear_algorithms(library, problem, threads, product, "a compiled loop"):
        if isinstance(found, Algorithm) and problem.halves:  # 16-bit floats have one such name, whatever they are widened by
            found = replace(found, name=found.name.replace("gemm_f32", "gemm"))
        yield found


def _is_fused(p: LinearProblem, algorithm: Algorithm) -> bool:
    return algorithm.name.removesuffix(SUFFIX) not in NOT_WRITTEN and not p.empty


def prepare_fused_linear(
    library: Library, blas: BlasTraits, kind: type[BlasProduct], p: LinearProblem, algorithm: Algorithm
) -> Any:  # fmt: skip
    """Returns the Plan of an Algorithm that `fused_linear_algorithms` listed; `kind` writes the steps of the product."""
    if not _is_fused(p, algorithm):
        return prepare_linear(library, p, algorithm)
    inside = replace(algorithm, name=algorithm.name.removesuffix(SUFFIX))
    product = p.given_product
    b = Builder(product, blas.native.int_size)
    wide, halves, out = compute_dtype(p.dtype), p.dtype.name in HALVES, p.get("out")
    one = p.m * p.n
    direct = out is None or out.is_contiguous()
    if out is None:
        result = b.result(p.dtype, p.result, "C", one * p.dtype.itemsize)
    else:
        result = b.argument("out", one * p.dtype.itemsize)
    computed = (
        result if direct and not halves else shifted(b.work(p.items * one * wide.itemsize, shared=True), one * wide.itemsize)
    )
    team = product_threads(blas, inside)
    count, threads = write_product(kind(blas, product, b, team, computed), inside)
    b.each(count, threads)
    bias = vector(b, p.bias_row, "bias", p.dtype, computed)
    b.each()
    rows = p.items * p.m
    words = (p.get("bias") is not None, p.n, p.n * wide.itemsize)
    description = b.constant(pointwise_fields(p.parameter("activation") or "none", wide.itemsize, *words))
    many = team if rows * p.n >= THREADED else 1

    def write(at: Share) -> None:
        place = at.place(computed, p.n * wide.itemsize)
        b.call(_kernels.addresses["finish_rows"], [description, at.units, place, bias])
        if direct and halves:
            at.store(place, result, p.dtype, p.n)

    count = in_shares(b, rows, even_share(rows, p.n, SHARE), many, write)
    if not direct:
        assert out is not None
        b.each(count, many)
        place = b.argument("out", batch_offsets(p.batch, out.shape[:-2], out.strides[:-2]) if p.batch else 0)
        steps = tuple(0 if n == 1 else s for n, s in zip(out.shape[-2:], out.strides[-2:], strict=True))
        element = ("float32", p.dtype.name) if halves else wide.itemsize
        b.copy((p.m, p.n), computed, (p.n * wide.itemsize, wide.itemsize), place, (steps[0], steps[1]), element)
        count, many = p.items, 1
    return b.plan(result, count=count, threads=many, same=("c",), **guard_of(blas, product, inside))


def shifted(pointer: Pointer, step: int) -> Pointer:
    """Returns the pointer with another step from one item to the next."""
    return pointer[0], pointer[1], step
