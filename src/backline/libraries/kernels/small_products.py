"""Products of small matrices, and batches of them, by a compiled loop.

A BLAS is made for one large product: of small ones, its copies and its calls take most of the time. Here a product is made in
registers from where its matrices lie; a right factor whose rows are no neighbours in memory is copied first, and matrices of
16-bit floats are widened first, those of some products at a time. A thread takes some products of the batch at a time, and each
element is summed up in the order of its terms, so that the bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES, compute_dtype
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem, View
from ..base import Algorithm, Refusal
from .shares import Share, even_share, in_shares
from .vector_level import vector_level

__all__ = ["SMALL_PRODUCTS", "prepare_small_products", "small_product_algorithms"]

SMALL_PRODUCTS = "small_products"
DTYPES = ("float32", "float64", "complex64", "complex128", *HALVES)
MOST_COPIED = 1 << 11  # elements of a right matrix whose rows are no neighbours in memory: kCopied of small_products.cpp
MOST_TERMS = 1 << 18  # of all elements of a product: beyond, its matrices do not fit into the nearest cache
MOST_ALONE = 1 << 15  # the same of one that is no batch
MOST_NARROW = 16  # terms of a sum where vectors would have one element
THREADED = 1 << 17  # operations below which threads cost more than they bring
SMALL_FLOPS = 6e4  # below which releasing the GIL costs more than it brings
SHARE = 1 << 15  # terms that a thread takes at a time; a number of a matrix that is widened counts as two
HALF, SINGLE = 2, 4  # bytes of a 16-bit float, and of one of 32 bits


def small_product_algorithms(p: MatmulProblem | LinearProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loop on all threads and on one, or the reason why there is none."""
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", SMALL_PRODUCTS, reason)
        return
    note, precision = "each product in registers", "f32 accumulation" if p.dtype.name in HALVES else ""
    if threads > 1 and p.flops >= THREADED:
        yield Algorithm(
            library="kernels", name=SMALL_PRODUCTS, threads=threads, scaled=True, level="threads", basis="construction",
            precision=precision, pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=SMALL_PRODUCTS, level="threads", basis="construction", precision=precision, note=note)


class _Matrix(NamedTuple):
    """A batch of matrices: the role in the call, and bytes from one row, one column and one matrix of the batch to the next."""

    role: str
    row: int
    column: int
    step: int

    def in_float32(self, numbers: int) -> _Matrix:
        """Returns where matrices of so many 16-bit floats are once they are widened: as they lie, one behind the other."""
        return _Matrix(self.role, 2 * self.row, 2 * self.column, SINGLE * numbers if self.step else 0)

    def copied_as(self, numbers: int, units: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Returns rows and columns by which those of some products are widened or rounded, and their strides here and there."""
        if self.step == HALF * numbers:
            return (1, units * numbers), (0, HALF), (0, SINGLE)
        return (units if self.step else 1, numbers), (self.step, HALF), (SINGLE * numbers, SINGLE)


class _Batch(NamedTuple):
    """The products as the loop makes them: as they are given, or all matrices transposed and the factors exchanged."""

    rows: int
    columns: int
    left: _Matrix
    right: _Matrix
    target: _Matrix
    copied: bool


def _matrix(v: View, role: str, transposed: bool) -> _Matrix:
    assert not isinstance(v.items, tuple)
    return _Matrix(role, *((v.stride1, v.stride0) if transposed else (v.stride0, v.stride1)), v.items)


def _batch(p: MatmulProblem) -> _Batch | None:
    """Returns how the loop makes the products; None where the elements of no row and of no column of results are neighbours."""
    size, a, out = p.dtype.itemsize, p.views["a"], p.views.get("out")
    if out is None:
        target = _Matrix("", p.n * size, size, p.m * p.n * size)
        transposed = p.n == 1 and a.stride0 == size  # a column of results is a row, too
        if transposed:
            target = target._replace(row=p.m * size)
    else:
        transposed = p.m > 1 and out.stride0 == size and (p.n > 1 or a.stride0 == size)
        target = _matrix(out, "out", transposed)
        if not transposed and p.n > 1 and out.stride1 != size:
            return None
    rows, columns = (p.n, p.m) if transposed else (p.m, p.n)
    left, right = (_matrix(p.views[role], role, transposed) for role in (("b", "a") if transposed else ("a", "b")))
    return _Batch(rows, columns, left, right, target, columns > 1 and right.column != size)


def _refusal(p: MatmulProblem | LinearProblem) -> str:
    """Returns the reason why the loop does not compute a product, or an empty string."""
    if isinstance(p, LinearProblem) or p.dtype.name not in DTYPES:
        return f"its loops are for products of {', '.join(DTYPES)}"
    if p.empty:
        return "an empty product needs no loop"
    if p.items == 1 and (p.m == 1 or p.n == 1):
        return "a single product with a vector"
    most = MOST_TERMS if p.items > 1 else MOST_ALONE
    if p.m * p.n * p.k > most:
        return f"more than {most} terms of a product: its matrices are no longer small"
    if p.m == p.n == 1:
        return "each product is one number"
    if any(o.dtype != p.dtype or not o.aligned for o in p.operands):
        return "an operand is not aligned, or of another dtype"
    if p.alpha != 1 or p.beta != 0:
        return "the loop multiplies by no factor, and adds nothing"
    if any(isinstance(v.items, tuple) for v in p.views.values()):
        return "the matrices of the batch do not lie at equal distances"
    if p.dtype.name in HALVES and not all(map(_dense, p.views.values())):
        return "the 16-bit floats of a matrix do not lie one behind the other"
    batch = _batch(p)
    if batch is None:
        return "the elements of neither rows nor columns of the result are neighbours in memory"
    if batch.columns == 1 and p.k > MOST_NARROW:
        return f"sums of more than {MOST_NARROW} terms for one column"
    if batch.copied and p.k * batch.columns > MOST_COPIED:
        return f"a matrix of more than {MOST_COPIED} elements, those of a row no neighbours in memory"
    return ""


def _dense(v: View) -> bool:
    """Tells whether the elements of each matrix lie one behind the other."""
    return v.layout != "X" and v.ld == (v.cols if v.layout == "C" else v.rows)


def prepare_small_products(p: MatmulProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `small_product_algorithms` listed."""
    batch = _batch(p)
    assert batch is not None
    b = Builder(p)
    result = b.argument("out") if batch.target.role else b.result(p.dtype, p.result, "C")
    arrays = b.argument(batch.left.role), b.argument(batch.right.role), result
    given = batch.left, batch.right, batch.target
    numbers = batch.rows * p.k, p.k * batch.columns, batch.rows * batch.columns
    dtype, wide = p.dtype.name, compute_dtype(p.dtype)
    widened = wide != p.dtype
    left, right, target = (m.in_float32(n) if widened else m for m, n in zip(given, numbers, strict=True))
    parts = 2 if wide.kind == "c" else 1
    words = (
        wide.itemsize // parts, parts, vector_level(), batch.rows, batch.columns, p.k,
        left.row, left.column, left.step,
        right.row, right.column, right.step, batch.copied,
        target.row, target.step,
    )  # fmt: skip
    fields = b.packed(f"<{len(words)}q", *words)

    def write(at: Share) -> None:
        places: list[Pointer] = [at.place(array, m.step) for array, m in zip(arrays, given, strict=True)]
        copies = [m.copied_as(n, at.units) for m, n in zip(given, numbers, strict=True)] if widened else []
        floats = [b.work(at.units * n * SINGLE) for n in numbers] if widened else places
        for (shape, here, there), source, work in zip(copies[:2], places, floats, strict=False):
            b.copy(shape, source, here, work, there, (dtype, wide.name))
        b.call(_kernels.addresses["small_products"], [fields, at.units, *floats])
        for shape, here, there in copies[2:]:
            b.copy(shape, floats[2], there, places[2], here, (wide.name, dtype))

    terms = p.m * p.n * p.k + (2 * sum(numbers) if widened else 0)
    share = even_share(p.items, terms, SHARE)
    count = in_shares(b, p.items, share, algorithm.threads, write)
    return b.plan(result, count=count, threads=algorithm.threads, release_gil=p.flops >= SMALL_FLOPS)
