"""Products of a few rows with a large matrix by a compiled loop, and linear layers of them.

A batch of one, or of a few, is most of what a trained model is asked for. The matrix is read once, in the order of memory, and
16-bit floats as they are. An item is some of the results of each row. A result is summed up in the same order however they are
cut, and so the bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES, compute_dtype
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MOST_ROWS, MatmulProblem, View
from ..base import Algorithm, Refusal
from .pointwise_loops import pointwise_fields
from .shares import Share, even_share, in_shares, vector
from .vector_level import vector_level

__all__ = ["FEW_ROWS", "few_rows_algorithms", "prepare_few_rows"]

FEW_ROWS = "few_rows"
DTYPES = ("float32", "float64", "float16", "bfloat16")  # in the order of few_rows.cpp
# Elements of the matrix: below the first number a BLAS is as fast, below the second threads cost more than they bring.
LEAST, THREADED = 1 << 12, 1 << 17
SMALL_FLOPS = 6e4  # below which releasing the GIL costs more than it brings
SHARE, TOGETHER = 1 << 15, 8  # elements of an item whose columns lie one behind the other, and how many columns are taken at once
# Bytes of a row of an item whose columns lie side by side: at most, at least, and those of a line of the cache.
MOST_BYTES, LEAST_BYTES, LINE = 1 << 11, 1 << 9, 64


def few_rows_algorithms(p: MatmulProblem | LinearProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loop on all threads and on one, or the reason why there is none."""
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", FEW_ROWS, reason)
        return
    note, precision = "reads the matrix once", "f32 accumulation" if p.dtype.name in HALVES else ""
    if threads > 1 and max(p.m, p.n) * p.k >= THREADED:
        yield Algorithm(
            library="kernels", name=FEW_ROWS, threads=threads, scaled=True, level="threads", basis="construction",
            precision=precision, pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=FEW_ROWS, level="threads", basis="construction", precision=precision, note=note)


class _Sides(NamedTuple):
    """A product as that of few rows and a matrix, which the operands or their transposes are, and how results lie.

    Attributes
    ----------
    rows, columns
        Rows, and columns of the matrix.
    few, matrix
        Roles of the operands.
    row, element
        Bytes from one row, and from one element of a row, to the next.
    column, along
        Bytes from one column of the matrix, and from one element of a column, to the next.
    transposed
        Whether these are the transposes, and their product that of the result.
    """

    rows: int
    columns: int
    few: str
    matrix: str
    row: int
    element: int
    column: int
    along: int
    transposed: bool

    def steps(self, v: View) -> tuple[int, int]:
        """Returns the strides of an operand of the result's shape, as rows and columns are here."""
        return (v.stride1, v.stride0) if self.transposed else (v.stride0, v.stride1)


def _sides(p: MatmulProblem) -> _Sides:
    a, b = p.views["a"], p.views["b"]
    if p.m <= p.n:
        return _Sides(p.m, p.n, "a", "b", a.stride0, a.stride1, b.stride1, b.stride0, False)
    return _Sides(p.n, p.m, "b", "a", b.stride1, b.stride0, a.stride0, a.stride1, True)


def _refusal(p: MatmulProblem | LinearProblem) -> str:
    """Returns the reason why the loop does not compute a product, or an empty string."""
    if p.dtype.name not in DTYPES:
        return f"its loops are for {', '.join(DTYPES)}, not {p.dtype.name}"
    if p.empty or p.items > 1:
        return "an empty product needs no loop" if p.empty else "there is a batch of products"
    if min(p.m, p.n) > MOST_ROWS or p.m == p.n == 1:
        return f"neither operand is a matrix beside one of 1 to {MOST_ROWS} rows or columns"
    if max(p.m, p.n) * p.k < LEAST:
        return f"a matrix of fewer than {LEAST} elements is no work for it"
    if any(o.dtype != p.dtype or not o.aligned for o in p.operands):
        return "an operand is not aligned, or of another dtype"
    product = p.given_product if isinstance(p, LinearProblem) else p
    if product.alpha != 1 or product.beta not in (0, 1):
        return "the loop multiplies by no factor"
    sides = _sides(product)
    if isinstance(p, LinearProblem) and sides.transposed:
        return "bias and activation are added to rows, and here there are few columns"
    if p.dtype.itemsize not in (sides.column, sides.along) or product.views[sides.matrix].layout == "X":
        return "elements of the matrix are no neighbours in memory"
    return ""


def prepare_few_rows(p: MatmulProblem | LinearProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `few_rows_algorithms` listed."""
    product = p.given_product if isinstance(p, LinearProblem) else p
    b, dtype, wide, sides = Builder(product), p.dtype, compute_dtype(p.dtype), _sides(product)
    item, size = dtype.itemsize, wide.itemsize
    rows = _rows(b, product, sides, wide)
    out = product.views.get("out")
    result = b.argument("out") if out is not None else b.result(dtype, p.result, "C")
    steps = (out.stride0, out.stride1) if out is not None else (p.n * item, item)
    target_row, target_column = steps[::-1] if sides.transposed else steps
    direct = dtype == wide and target_column == item
    bias = None
    if isinstance(p, LinearProblem):
        bias = vector(b, p.bias_row, "bias", dtype, rows)
        b.each()
    dots = sides.along == item
    added = product.views.get("c") if product.beta else None

    def write(at: Share, units: Any = None) -> None:
        place = at.place(result, target_column)
        target, step = (place, target_row) if direct else (b.work(sides.rows * at.units * size), at.units * size)
        if added is not None:
            row, column = sides.steps(added)
            element: Any = item if dtype == wide else (dtype.name, wide.name)
            b.copy((sides.rows, at.units), at.place(b.argument("c"), column), (row, column), target, (step, size), element)
        words = (
            DTYPES.index(dtype.name), vector_level(), sides.rows, p.k, dots, sides.column if dots else sides.along, step,
            added is not None,
        )  # fmt: skip
        matrix = at.place(b.argument(sides.matrix), sides.column)
        b.call(_kernels.addresses["few_rows"], [b.packed(f"<{len(words)}q", *words), units or at.units, rows, matrix, target])
        if bias is not None:
            has = p.get("bias") is not None
            more = b.constant(pointwise_fields(p.parameter("activation") or "none", size, has, at.units, step))
            here = at.place(bias, size) if has else bias
            b.call(_kernels.addresses["finish_rows"], [more, sides.rows, target, here])
        if not direct:
            element = item if dtype == wide else (wide.name, dtype.name)
            b.copy((sides.rows, at.units), target, (step, size), place, (target_row, target_column), element)

    columns, threads = sides.columns, algorithm.threads
    if not dots and direct and added is None and bias is None:  # nothing but the loop: the last item may be a smaller one
        share = _columns_of_item(columns, item, threads, whole=False)
        count = -(-columns // share)
        b.each()
        write(Share(b, share, count, 0), [share] * (count - 1) + [columns - (count - 1) * share])
    else:
        share = even_share(columns, p.k, SHARE, TOGETHER) if dots else _columns_of_item(columns, item, threads, whole=True)
        count = in_shares(b, columns, share, threads, write)
    return b.plan(result, count=count, threads=threads, release_gil=p.flops >= SMALL_FLOPS, same=("c",))


def _rows(b: Builder, p: MatmulProblem, sides: _Sides, wide: np.dtype[Any]) -> Pointer:
    """Returns the rows one behind the other, in the dtype that is computed in; those that do not lie so are copied."""
    dtype, size = p.dtype, wide.itemsize
    given = b.argument(sides.few)
    if dtype == wide and (p.k == 1 or sides.element == size) and (sides.rows == 1 or sides.row == p.k * size):
        return given
    work = b.work(sides.rows * p.k * size, shared=True)
    element: Any = size if dtype == wide else (dtype.name, wide.name)
    b.copy((sides.rows, p.k), given, (sides.row, sides.element), work, (p.k * size, size), element)
    b.each()
    return work


def _columns_of_item(columns: int, item: int, threads: int, *, whole: bool) -> int:
    """Returns how many columns that lie side by side an item takes: whole lines of the cache, about as many for each thread.

    If all items must be `whole`, some columns may be left over, which one thread computes after the others; else the last item is
    a smaller one.

    >>> _columns_of_item(1300, 8, 2, whole=True), _columns_of_item(1300, 8, 2, whole=False)
    (216, 224)
    """
    size, line = columns * item // threads, LINE // item
    parts = threads * max(-(-size // MOST_BYTES), min(size // LEAST_BYTES, 2), 1)
    share = columns // parts if whole else -(-columns // parts) + line - 1
    return min(max(share // line, 1) * line, columns)
