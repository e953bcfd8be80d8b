"""Matrix products through the C interface of BLAS, for every library that has it.

References: BLAS Technical Forum Standard, chapter 2 and appendix B (C interface); the `gemm_batch_strided` extension as
MKL and OpenBLAS have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...native.shared_library import NativeLibrary
from ...problems.dtypes import HALVES
from ...problems.matmul_problem import MatmulProblem, View
from ...problems.names import name_of
from ..base import Algorithm, Refusal

__all__ = ["LETTER", "BlasTraits", "matmul_algorithms", "prepare_matmul"]

LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
ROW, COLUMN = 101, 102
PLAIN, TRANSPOSED = 111, 112

# Below this many operations a thread team costs more than it brings, and so does releasing the GIL.
SMALL_FLOPS = 6e4
THREAD_FLOPS = 1e6
# OpenBLAS divides a dot product from 10 000 elements on and gemv from 9216: it must be told its count before that, or the
# bits of a product would depend on what ran last.
GUARDED_VECTOR_FLOPS = 1.5e4
# A divided product needs no team inside the library, only one fork and join.
SPLIT_FLOPS = 4e5
# gemv_slabs: at most so many rows on the left, and slabs of the right operand of about this size (half an L2).
SLAB_ROWS = 16
SLAB_BYTES = 1 << 19


class BlasTraits:
    """Properties of one BLAS library that the engine needs in addition to its symbols."""

    def __init__(
        self, name: str, native: NativeLibrary, thread_guard: Any, pool: str, *, run: str = "measured", threads: str = "",
        always_guarded: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.native, self.thread_guard, self.pool = name, native, thread_guard, pool
        self._batches: dict[str, bool] = {}
        self.run_basis = run
        self.always_guarded = always_guarded  # it starts its threads for a product of any size
        self.lu_pool = pool  # where LU runs, if not with the rest
        self.any_thread_count = threads  # basis on which GEMM's bits do not depend on the thread count, "" if they may

    def batches(self, dtype: np.dtype[Any]) -> bool:
        """Tells whether the library's gemm_batch_strided is correct, tested once for each dtype.

        OpenBLAS 0.3.34 halves the strides of complex batches, so that every product but the first is wrong.
        """
        known = self._batches.get(dtype.name)
        if known is None:
            known = self._batches[dtype.name] = _batch_is_right(self.native, dtype)
        return known

    def guarded_from(self, *, vector: bool) -> float:
        """Operations from which a call sets the library's thread count first: below, it takes one thread by itself."""
        return 0.0 if self.always_guarded else GUARDED_VECTOR_FLOPS if vector else SMALL_FLOPS


def _batch_is_right(native: NativeLibrary, dtype: np.dtype[Any]) -> bool:
    import ctypes

    a = np.arange(1, 13).reshape(3, 2, 2).astype(dtype)
    b = (a[::-1] * (1j if dtype.kind == "c" else 2)).astype(dtype)
    c = np.full(a.shape, np.nan, dtype)
    i, p = ctypes.c_int64, ctypes.c_void_p
    one, zero = (np.array(x, dtype) for x in (1, 0))
    real = ctypes.c_float if dtype.itemsize == 4 else ctypes.c_double
    alpha, beta = (p(x.ctypes.data) if dtype.kind == "c" else real(float(x)) for x in (one, zero))
    native.call(
        native.cblas(f"{LETTER[dtype.name]}gemm_batch_strided"), i(ROW), i(PLAIN), i(PLAIN), i(2), i(2), i(2), alpha,
        p(a.ctypes.data), i(2), i(4), p(b.ctypes.data), i(2), i(4), beta, p(c.ctypes.data), i(2), i(4), i(3),
    )  # fmt: skip
    return np.array_equal(c, np.matmul(a, b))


def matmul_algorithms(blas: BlasTraits, problem: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Every way of this BLAS for a product."""
    refusal = _refusal(blas, problem)
    if refusal:
        yield Refusal(blas.name, "gemm", refusal)
        return
    half = name_of(problem.dtype) in HALVES
    precision = "f32 accumulation" if half else ""
    vector = not half and (problem.m == 1 or problem.n == 1)
    if vector and problem.m == problem.n == 1 and problem.alpha == 1 and problem.beta == 0:
        yield Algorithm(library=blas.name, name="dot", level="threads", basis="construction")
        return
    names = ["gemv"] if vector else []
    if not vector or problem.parameter("conj"):
        names = ["gemm_f32" if half else "gemm"]
    for name in names:
        if threads > 1 and problem.flops >= THREAD_FLOPS:
            yield Algorithm(
                library=blas.name, name=name, threads=threads, scaled=True, precision=precision,
                level="threads" if blas.any_thread_count else "run", basis=blas.any_thread_count or blas.run_basis,
                pool=blas.pool,
            )  # fmt: skip
        yield Algorithm(library=blas.name, name=name, precision=precision, level="threads", basis=blas.run_basis)
    if problem.items == 1 and not vector:
        yield from _divided(blas, problem, threads, half)
    if problem.items > 1 and not vector:
        if threads > 1 and problem.flops >= THREAD_FLOPS and blas.pool:
            yield Algorithm(
                library=blas.name, name=f"{names[0]}_items", threads=thread_team.items_threads(threads), scaled=True,
                precision=precision, level="threads", basis="construction", pool=blas.pool,
                note="items of the batch divided among the threads",
            )  # fmt: skip
        if not half and _strided(blas, problem):
            yield Algorithm(library=blas.name, name="gemm_batch", precision=precision, level="threads", basis=blas.run_basis)
            if threads > 1 and problem.flops >= THREAD_FLOPS:
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


def prepare_matmul(blas: BlasTraits, p: MatmulProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `matmul_algorithms` listed."""
    b = Builder(p, blas.native.int_size)
    product = _Product(blas, p, b)
    if algorithm.name in ("gemm_split", "gemv_slabs"):
        count = getattr(product, algorithm.name)(algorithm.threads)
        return b.plan(
            product.result, count=count, threads=algorithm.threads, thread_guard=blas.thread_guard, guard_threads=1,
            release_gil=True, same=("c",),
        )
    name = algorithm.name.removesuffix("_items")
    divided = name != algorithm.name
    if divided:
        thread_team.items_run()
    if name == "gemm_batch":
        product.batched()
    else:
        getattr(product, name)()
    in_library = 1 if divided else algorithm.threads
    guarded = p.flops >= blas.guarded_from(vector=p.m == 1 or p.n == 1)
    return b.plan(
        product.result,
        count=1 if name == "gemm_batch" else p.items,
        threads=algorithm.threads if divided else 1,
        thread_guard=blas.thread_guard if guarded else None,
        guard_threads=in_library,
        release_gil=guarded,
        same=("c",),
    )


class _Product:
    """Writes the steps of one product down; `result` is where the result is to be found."""

    def __init__(self, blas: BlasTraits, p: MatmulProblem, b: Builder) -> None:
        self.blas, self.p, self.b = blas, p, b
        self.size = p.dtype.itemsize
        self.half = name_of(p.dtype) in HALVES
        self.compute = np.dtype(np.float32) if self.half else p.dtype
        self.out = p.views.get("out")
        if self.out is not None:
            self.result: Pointer = b.argument("out", self.out.items)
        else:
            self.result = b.result(p.dtype, p.result, "C", p.m * p.n * self.size)

    # operands

    def operand(self, role: str) -> tuple[Pointer, View, str, int]:
        """Pointer, view, layout and leading dimension of A or B, copied to workspace where BLAS could not read it."""
        v = self.p.views.get(role)
        assert v is not None
        source = self.b.argument(role, v.items)
        if v.layout != "X" and not self.half:
            return source, v, v.layout, v.ld
        item = self.compute.itemsize
        order = "F" if abs(v.stride0) < abs(v.stride1) else "C"  # copy along memory, transpose by flag
        ld = v.rows if order == "F" else v.cols
        strides = (item, ld * item) if order == "F" else (ld * item, item)
        target = self.b.work(v.rows * v.cols * item)
        element = (self.p.dtype.name, "float32") if self.half else item
        self.b.copy((v.rows, v.cols), source, (v.stride0, v.stride1), target, strides, element)
        return target, v, order, ld

    def target(self) -> tuple[Pointer, str, int]:
        """Returns where BLAS writes: the result itself if its layout allows it, else workspace that `store` copies from."""
        p, item = self.p, self.compute.itemsize
        if self.half or (self.out is not None and self.out.layout == "X"):
            return self.b.work(p.m * p.n * item), "C", p.n
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
        self.b.copy((p.m, p.n), self.b.argument("c", v.items), (v.stride0, v.stride1), target, strides, element)

    def store(self, target: Pointer) -> None:
        """Copy from workspace to the result, if that is where BLAS wrote."""
        if target == self.result:
            return
        p, item = self.p, self.compute.itemsize
        element = ("float32", p.dtype.name) if self.half else item
        self.b.copy((p.m, p.n), target, (p.n * item, item), self.result, self.out_strides(), element)

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
                y = self.b.work(length * item) if length > 1 else self.result
            else:
                incy = step // item
        if p.beta != 0:
            cv = p.views.get("c")
            assert cv is not None
            step = cv.stride0 if column else cv.stride1
            self.b.copy((1, length), self.b.argument("c", cv.items), (0, step), y, (0, incy * item), item)
        # y = M x for a column, y = M^T x for a row: (x M)^T.
        trans = PLAIN if column else TRANSPOSED
        alpha, beta = self.scalars(p.alpha, p.beta)
        head = [ROW if layout == "C" else COLUMN, trans, mv.rows, mv.cols]
        self.b.call(self.function("gemv"), [*head, alpha, matrix, ld, x, incx, beta, y, incy])
        if y != self.result:
            step = self.out_strides()[0 if column else 1]
            self.b.copy((1, length), y, (0, item), self.result, (0, step), item)

    def vector(self, role: str, v: View, step: int, length: int) -> tuple[Pointer, int]:
        """Pointer and increment of a vector; what BLAS could not stride over is copied."""
        source = self.b.argument(role, v.items)
        if step % self.size == 0 and step > 0 and self.p.operands[v.argument].aligned:
            return source, step // self.size
        if length == 1 and self.p.operands[v.argument].aligned:
            return source, 1
        target = self.b.work(length * self.size)
        self.b.copy((1, length), source, (0, step), target, (0, self.size), self.size)
        return target, 1

    def dot(self) -> None:
        p = self.p
        av, bv = p.views.get("a"), p.views.get("b")
        assert av is not None and bv is not None
        a, inca = self.vector("a", av, av.stride1, p.k)
        bb, incb = self.vector("b", bv, bv.stride0, p.k)
        if self.compute.kind == "c":
            name = "dotc_sub" if p.parameter("conj") else "dotu_sub"
            self.b.call(self.function(name), [p.k, a, inca, bb, incb, self.result])
        else:
            self.b.call(
                self.function("dot"), [p.k, a, inca, bb, incb], returns=1 if self.size == 4 else 2, to=self.result
            )

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
