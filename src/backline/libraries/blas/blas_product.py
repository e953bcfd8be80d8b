"""The steps of one product by BLAS: operands that it can read, the call, and the result where it is wanted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES
from ...problems.matmul_problem import MatmulProblem, View
from ...problems.names import name_of
from .blas_traits import COLUMN, LETTER, PLAIN, ROW, TRANSPOSED, BlasTraits
from .dot_in_parts import dot_in_parts

__all__ = ["SLAB_BYTES", "BlasProduct", "VectorOperands"]

SLAB_BYTES = 1 << 19  # of the right operand in gemv_slabs: half an L2
CONVERTED = 1 << 16  # elements that are worth all threads to copy them

Strides = tuple[int, int]


class VectorOperands(NamedTuple):
    """Matrix and vectors of a product with one row or one column: pointers, leading dimension, layout and increments."""

    column: bool
    at: Pointer
    matrix: View
    layout: str
    ld: int
    x: Pointer
    incx: int
    y: Pointer
    incy: int


class BlasProduct:
    """Writes the steps of one product down; `result` is where the result is to be found.

    Parameters
    ----------
    blas, p, b
        The library, the Problem, and what writes the steps.
    threads
        Threads of the team that may convert and copy operands of a single product, in groups of their own.
    target
        Where the product goes, row by row without gaps and in the dtype that is computed in; without it to `out`, or a new array.
    """

    def __init__(self, blas: BlasTraits, p: MatmulProblem, b: Builder, threads: int = 1, target: Pointer | None = None) -> None:
        self.blas, self.p, self.b = blas, p, b
        self.threads = threads if p.items == 1 else 1
        self.size = p.dtype.itemsize
        self.half = name_of(p.dtype) in HALVES
        self.compute = np.dtype(np.float32) if self.half else p.dtype
        self.read = self.compute  # what the library is given
        self.given_target = target
        self.out = p.views.get("out") if target is None else None
        if target is not None:
            self.result: Pointer = target
        elif self.out is not None:
            self.result = b.argument("out", self.out.items)
        else:
            self.result = b.result(p.dtype, p.result, "C", p.m * p.n * self.size)

    # operands

    def operand(self, role: str) -> tuple[Pointer, View, str, int]:
        """Pointer, view, layout and leading dimension of A or B, copied to workspace where BLAS could not read it."""
        v = self.p.views.get(role)
        assert v is not None
        source = self.b.argument(role, v.items)
        if v.layout != "X" and self.read == self.p.dtype:
            return source, v, v.layout, v.ld
        item = self.read.itemsize
        order = "F" if abs(v.stride0) < abs(v.stride1) else "C"  # copy along memory, transpose by flag
        ld = v.rows if order == "F" else v.cols
        strides = (item, ld * item) if order == "F" else (ld * item, item)
        target = self.work(v.rows * v.cols * item)
        element = item if self.read == self.p.dtype else (self.p.dtype.name, self.read.name)
        self.copy((v.rows, v.cols), source, (v.stride0, v.stride1), target, strides, element)
        return target, v, order, ld

    def work(self, nbytes: int) -> Pointer:
        """Returns workspace of one product: that of its thread, or of all threads where they copy for it."""
        return self.b.work(nbytes, shared=self.threads > 1)

    def copy(self, shape: tuple[int, int], source: Pointer, from_: Strides, target: Pointer, to: Strides, element: Any) -> None:
        """Copies a matrix; a large one by all threads, along the axis that is longer in memory."""
        if self.threads == 1 or shape[0] * shape[1] < CONVERTED:
            self.b.copy(shape, source, from_, target, to, element)
            return
        self.b.each()
        axis = 0 if abs(to[0]) >= abs(to[1]) else 1
        step = -(-shape[axis] // self.threads)
        starts = [min(i * step, shape[axis] - step) for i in range(self.threads)]  # the last part is as long as the others
        part = (step, shape[1]) if axis == 0 else (shape[0], step)
        source, target = ((at[0], at[1], tuple(s * steps[axis] for s in starts)) for at, steps in ((source, from_), (target, to)))
        self.b.copy(part, source, from_, target, to, element)
        self.b.each(self.threads, self.threads)

    def target(self) -> tuple[Pointer, str, int]:
        """Returns where BLAS writes: the result itself if its layout allows it, else workspace that `store` copies from."""
        p, item = self.p, self.compute.itemsize
        if self.given_target is None and (self.half or (self.out is not None and self.out.layout == "X")):
            return self.work(p.m * p.n * item), "C", p.n
        if self.out is not None:
            return self.result, self.out.layout, self.out.ld
        return self.result, "C", p.n

    def out_strides(self) -> tuple[int, int]:
        return (self.out.stride0, self.out.stride1) if self.out is not None else (self.p.n * self.size, self.size)

    def load(self, target: Pointer, layout: str, ld: int) -> None:
        """Put C where BLAS will add to it."""
        p, item = self.p, self.compute.itemsize
        v = p.views.get("c")
        if v is None or p.beta == 0:
            return
        strides = (ld * item, item) if layout == "C" else (item, ld * item)
        element = (p.dtype.name, "float32") if self.half else item
        self.copy((p.m, p.n), self.b.argument("c", v.items), (v.stride0, v.stride1), target, strides, element)

    def store(self, target: Pointer) -> None:
        """Copy from workspace to the result, if that is where BLAS wrote."""
        if target == self.result:
            return
        p, item = self.p, self.compute.itemsize
        element = ("float32", p.dtype.name) if self.half else item
        self.copy((p.m, p.n), target, (p.n * item, item), self.result, self.out_strides(), element)

    def scalars(self, *values: complex) -> list[Any]:
        """Returns alpha and beta as arguments: by reference for complex types, else by value."""
        if self.compute.kind == "c":
            return [self.b.number(complex(v), self.compute) for v in values]
        return [self.compute.type(v.real) for v in values]

    def function(self, name: str) -> int:
        return self.blas.native.cblas(LETTER[name_of(self.compute)] + name)

    # algorithms

    def gemm(self) -> None:
        p = self.p
        a, _, a_layout, lda = self.operand("a")
        bb, _, b_layout, ldb = self.operand("b")
        c, layout, ldc = self.target()
        self.load(c, layout, ldc)
        order = ROW if layout == "C" else COLUMN
        trans = [PLAIN if x == layout else TRANSPOSED for x in (a_layout, b_layout)]
        alpha, beta = self.scalars(p.alpha, p.beta)
        self.b.call(self.function("gemm"), [order, *trans, p.m, p.n, p.k, alpha, a, lda, bb, ldb, beta, c, ldc])
        self.store(c)

    gemm_f32 = gemm

    def gemv(self) -> None:
        """One row or one column: y = op(M) x."""
        p, v = self.p, self.vector_operands()
        # y = M x for a column, y = M^T x for a row: (x M)^T.
        trans = PLAIN if v.column else TRANSPOSED
        alpha, beta = self.scalars(p.alpha, p.beta)
        head = [ROW if v.layout == "C" else COLUMN, trans, v.matrix.rows, v.matrix.cols]
        self.b.call(self.function("gemv"), [*head, alpha, v.at, v.ld, v.x, v.incx, beta, v.y, v.incy])
        self.store_vector(v)

    def vector_operands(self) -> VectorOperands:
        """Returns the operands of a product with one row or one column, as BLAS can read and write them."""
        p, item = self.p, self.size
        column = p.n == 1
        matrix, mv, layout, ld = self.operand("a" if column else "b")
        xv = p.views.get("b" if column else "a")
        assert xv is not None
        x, incx = self.vector("b" if column else "a", xv, xv.stride0 if column else xv.stride1, p.k)
        length = p.m if column else p.n
        y, incy = self.result, 1
        if self.out is not None:
            step = self.out.stride0 if column else self.out.stride1
            # Negative increments start at the other end in BLAS; a workspace is simpler and as rare.
            if step % item or step <= 0 or not p.operands[self.out.argument].aligned:
                y = self.work(length * item) if length > 1 else self.result
            else:
                incy = step // item
        if p.beta != 0:
            cv = p.views.get("c")
            assert cv is not None
            step = cv.stride0 if column else cv.stride1
            self.b.copy((1, length), self.b.argument("c", cv.items), (0, step), y, (0, incy * item), item)
        return VectorOperands(column, matrix, mv, layout, ld, x, incx, y, incy)

    def store_vector(self, v: VectorOperands) -> None:
        """Copies a vector from workspace to the result, if that is where BLAS wrote."""
        if v.y != self.result:
            length, step = (self.p.m, self.out_strides()[0]) if v.column else (self.p.n, self.out_strides()[1])
            self.b.copy((1, length), v.y, (0, self.size), self.result, (0, step), self.size)

    def vector(self, role: str, v: View, step: int, length: int) -> tuple[Pointer, int]:
        """Pointer and increment of a vector; what BLAS could not stride over is copied."""
        source = self.b.argument(role, v.items)
        if step % self.size == 0 and step > 0 and self.p.operands[v.argument].aligned:
            return source, step // self.size
        if length == 1 and self.p.operands[v.argument].aligned:
            return source, 1
        target = self.work(length * self.size)
        self.b.copy((1, length), source, (0, step), target, (0, self.size), self.size)
        return target, 1

    def dot_split(self, threads: int) -> int:
        dot_in_parts(self.b, self.p, self.dot_function(), self.result, threads)
        return 1

    def dot_function(self) -> int:
        return self.function("dot" if self.compute.kind != "c" else "dotc_sub" if self.p.parameter("conj") else "dotu_sub")

    def dot(self) -> None:
        p = self.p
        av, bv = p.views.get("a"), p.views.get("b")
        assert av is not None and bv is not None
        a, inca = self.vector("a", av, av.stride1, p.k)
        bb, incb = self.vector("b", bv, bv.stride0, p.k)
        if self.compute.kind == "c":
            self.b.call(self.dot_function(), [p.k, a, inca, bb, incb, self.result])
        else:
            self.b.call(self.dot_function(), [p.k, a, inca, bb, incb], returns=1 if self.size == 4 else 2, to=self.result)

    def batched(self) -> None:
        p = self.p
        views = [p.views.get("a"), p.views.get("b")]
        assert views[0] is not None and views[1] is not None
        layout = self.out.layout if self.out is not None else "C"
        ldc = self.out.ld if self.out is not None else p.n
        step = self.out.items if self.out is not None else p.m * p.n * self.size
        assert not isinstance(step, tuple)
        pointers = [self.b.argument("a"), self.b.argument("b")]
        c: Pointer = (self.result[0], 0, 0)
        if p.beta != 0:
            self.load(self.result, layout, ldc)
            self.b.each(p.items)
        trans = [PLAIN if v.layout == layout else TRANSPOSED for v in views if v]
        alpha, beta = self.scalars(p.alpha, p.beta)
        head = [ROW if layout == "C" else COLUMN, *trans, p.m, p.n, p.k]
        steps = [v.items // self.size for v in views if v and not isinstance(v.items, tuple)]
        tail = [
            pointers[0], views[0].ld, steps[0], pointers[1], views[1].ld, steps[1],
        ]  # fmt: skip
        end = [c, ldc, step // self.size, p.items]
        self.b.call(self.function("gemm_batch_strided"), [*head, alpha, *tail, beta, *end])

    # one product in parts

    def gemm_split(self, parts: int) -> int:
        """Rows or columns of the result, whichever are more, in `parts` products."""
        p = self.p
        a, b = p.views.get("a"), p.views.get("b")
        assert a is not None and b is not None
        out_strides = self.out_strides()
        layout, ldc = (self.out.layout, self.out.ld) if self.out is not None else ("C", p.n)
        if p.beta != 0:
            self.load(self.result, layout, ldc)
            self.b.each(1)
        by_rows = p.m >= p.n
        total = p.m if by_rows else p.n
        step = -(-total // parts // 16) * 16 or total  # whole register tiles
        starts = [min(i * step, total) for i in range(parts)] if step * (parts - 1) < total else [0]
        sizes = [min(step, total - s) for s in starts[:-1]] + [total - starts[-1]]
        moved = a.stride0 if by_rows else b.stride1
        offsets = tuple(s * moved for s in starts)
        pa = self.b.argument("a", offsets if by_rows else 0)
        pb = self.b.argument("b", 0 if by_rows else offsets)
        to = (self.result[0], 0, tuple(s * out_strides[0 if by_rows else 1] for s in starts))
        order = ROW if layout == "C" else COLUMN
        trans = [PLAIN if v.layout == layout else TRANSPOSED for v in (a, b)]
        alpha, beta = self.scalars(p.alpha, p.beta)
        head = [order, *trans, sizes if by_rows else p.m, p.n if by_rows else sizes, p.k]
        self.b.call(self.function("gemm"), [*head, alpha, pa, a.ld, pb, b.ld, beta, to, ldc])
        return len(starts)

    def gemv_slabs(self, parts: int) -> int:
        """A few rows times a column-major matrix: each slab of columns is read from memory once and then from cache."""
        p, item = self.p, self.size
        a, b = p.views.get("a"), p.views.get("b")
        assert a is not None and b is not None
        width = max(1, SLAB_BYTES // (p.k * item))
        slabs = max(-(-p.n // width), parts)
        width = -(-p.n // slabs)
        starts = range(0, p.n, width)
        items = [(s, row) for s in starts for row in range(p.m)]
        row_step = self.out_strides()[0]
        x = self.b.argument("a", tuple(row * a.stride0 for _, row in items))
        m = self.b.argument("b", tuple(s * b.stride1 for s, _ in items))
        y = (self.result[0], 0, tuple(row * row_step + s * item for s, row in items))
        widths = [min(width, p.n - s) for s, _ in items]
        alpha, beta = self.scalars(p.alpha, 0)
        self.b.call(self.function("gemv"), [ROW, PLAIN, widths, p.k, alpha, m, b.ld, x, 1, beta, y, 1])
        return len(items)
