"""Matrix products and linear layers: oneDNN's matmul, with what follows the product done to each tile of it.

Matrices with strides go in as they are, transposed ones too; packed ones as the kernel likes them best. Where an algorithm
computes in bfloat16, operands are rounded by reorders inside the plan: the hardware multiplies bfloat16 and adds up in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...native.plan_builder import Pointer, same_place
from ...problems import Operand, Problem
from ...problems.dtypes import bfloat16, is_bfloat16
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.memory_layout import batch_offsets, dense_strides, matrix_layout
from ..base import Algorithm, Refusal
from ..kernels.pointwise_loops import relu_of_halves
from . import abi
from .plan_writer import Place, Writer, fits
from .primitives import Desc, Engine, why

__all__ = [
    "F16", "F32", "PACKED", "SMALL_FLOPS", "THREAD_FLOPS", "is_reference", "prepare_product", "product_algorithms", "without",
]  # fmt: skip

Product = MatmulProblem | LinearProblem

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
# Below this many operations a thread team costs more than it brings, and so does releasing the GIL.
THREAD_FLOPS, SMALL_FLOPS = 1e6, 6e4
RELU_THREADED = 1 << 18  # elements of a result
COPY_THREADED = 1 << 16  # elements of an operand
REDUCED = "bf16"
PACKED = "; weights packed once"
# Inner sizes from which kernels take tiles, and what they are multiples of at full speed. With other sizes they take twice as
# long; below the first ones oneDNN 3.2 has kernels without tiles, a tenth as fast (measured on an Intel Xeon with AMX, 2026-11).
TILE_SIZES, TILE = (64, 96, 128), 32
# From so many rows of A on, a B by rows that a level-2 cache does not hold is laid in blocks before the product: with its own way
# of copying B, oneDNN 3.2 takes 1.2 to 1.4 times as long. It does better with a B by columns (measured there too).
BLOCKED_ROWS, BLOCKED_BYTES = 640, 2 << 20
ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "relu": ("prelu",), "gelu": (abi.Alg.GELU_ERF, 0.0, 0.0), "gelu_tanh": (abi.Alg.GELU_TANH, 0.0, 0.0),
    "silu": (abi.Alg.SWISH, 1.0, 0.0), "tanh": (abi.Alg.TANH, 0.0, 0.0), "sigmoid": (abi.Alg.LOGISTIC, 0.0, 0.0),
}  # fmt: skip


def product_algorithms(engine: Engine, p: Product, threads: int) -> Iterator[Algorithm | Refusal]:
    """oneDNN's ways for a product."""
    reason = _refusal(engine, p)
    if reason:
        yield Refusal("onednn", "matmul", reason)
        return
    many = threads if p.flops >= THREAD_FLOPS else 1
    for name in ("matmul", REDUCED) if p.dtype == F32 else ("matmul",):
        if name == REDUCED and not engine.bf16:
            yield Refusal("onednn", name, "the processor has, or may use, no instructions for bfloat16")
            continue
        try:
            made = engine.describe(_Product, p, many, name)
            kernel = made.kernel.implementation
        except RuntimeError as error:
            yield Refusal("onednn", name, why(error, "a product of these"))
            continue
        if is_reference(kernel):
            yield Refusal("onednn", name, f"oneDNN has only its reference code for this ({kernel})")
            continue
        precision = REDUCED if name == REDUCED else "f32 accumulation" if p.dtype != F32 else ""
        isa = "avx512" if precision else ""
        note = kernel + ("; NaN for infinity" if p.parameter("activation") == "gelu" else "") + (PACKED if p.packed else "")
        note += f"; inner size padded to {made.padded}" if made.padded else ""
        note += "; B laid in blocks" if made.blocked else ""
        if many > 1:
            yield Algorithm(
                library="onednn", name=name, threads=many, scaled=True, precision=precision, pool=engine.pool, note=note, isa=isa
            )
        yield Algorithm(
            library="onednn", name=name, precision=precision, level="threads", basis="construction", note=note, isa=isa
        )


def _refusal(engine: Engine, p: Product) -> str:
    if p.dtype not in (F32, F16) and not is_bfloat16(p.dtype):
        return f"no product of {p.dtype.name}"
    if any(o.dtype != p.dtype for o in p.operands):
        return "operands of several dtypes"
    if p.empty:
        return "an empty product needs no library"
    if is_bfloat16(p.dtype) and not engine.bf16:
        return "the processor has, or may use, no instructions for bfloat16: oneDNN would be slow"
    if p.dtype == F16 and not engine.f16:
        return "the processor has, or may use, no instructions for float16"
    if len(p.batch) + 2 > abi.MAX_NDIMS:
        return f"more than {abi.MAX_NDIMS} dimensions"
    if isinstance(p, MatmulProblem):
        return "with alpha = 0 the operands must not matter; here they would" if p.alpha == 0 else ""
    return "" if p.get("bias") is None or _row(p.get("bias")) is not None else "the bias is not one row"


def is_reference(kernel: str) -> bool:
    """Tells whether a kernel is a reference implementation, which is many times slower than NumPy.

    >>> is_reference("ref:any"), is_reference("brgconv:avx512_core")
    (True, False)
    """
    return "ref" in re.split("[:+_]", kernel)


def without(p: Problem, *names: str) -> tuple[tuple[str, Any], ...]:
    """The parameters of a Problem, less these."""
    return tuple((k, v) for k, v in p.parameters if k not in names)


def _row(o: Operand | None) -> Operand | None:
    """A bias as the one row that it repeats; None if it is more."""
    if o is None or any(n > 1 and s != 0 for n, s in zip(o.shape[:-1], o.strides[:-1], strict=True)):
        return None
    return replace(o, shape=(*[1] * (len(o.shape) - 1), o.shape[-1]))


def prepare_product(engine: Engine, p: Product, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `product_algorithms` listed."""
    with engine.threads(algorithm.threads):
        return engine.described(_Product, p, algorithm.threads, algorithm.name).plan()


@dataclass(slots=True)
class _Matrices:
    """A batch of matrices: sizes and strides in elements; batch axes that are only repeated have size 1."""

    pointer: Pointer
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def offsets(self, batch: tuple[int, ...], size: int) -> int | tuple[int, ...]:
        """Bytes to each matrix of the batch."""
        return batch_offsets(batch, self.shape[:-2], tuple(s * size for s in self.strides[:-2]))


class _Product:
    """Layouts and primitive of one product, from which `plan` builds the plan."""

    def __init__(self, engine: Engine, p: Product, threads: int, name: str) -> None:
        self.engine, self.p = engine, p
        self.w = Writer(engine, p, threads)
        self.reduced = name == REDUCED
        self.activation = p.parameter("activation")
        self.relu = self.activation == "relu"
        self.added = "residual" if p.get("residual") else "c" if p.parameter("beta", 0) != 0 and p.get("c") else ""
        self.row = "bias"
        if self.added == "c" and self._is_bias():
            self.added, self.row = "", "c"
        with self.w.b.first() if p.packed else nullcontext():
            b = self._given("b")
        a, self.target = self._given("a"), self._target()
        # One axis for the whole batch where that can be: kernels are made for it.
        steps = [m.offsets(p.batch, 1) for m in (a, b, self.target)]
        self.flat = len(p.batch) > 1 and all(isinstance(step, int) for step in steps)
        self.dst, self.bias = self._place(self.target), self._bias()
        tiles = engine.amx and is_bfloat16(p.dtype) and not p.batch and not p.packed
        by_rows = b.strides[-1] == 1 and b.shape[-1] > 1
        large = p.m >= BLOCKED_ROWS and p.k * p.n * p.dtype.itemsize >= BLOCKED_BYTES
        self.blocked = tiles and by_rows and large
        self.laid: Desc | None = None  # how B is laid in blocks, where that is not as the kernel is told
        self._describe(a, b)
        self.padded = 0
        if tiles:
            self._pad(a, b)

    def _describe(self, a: _Matrices, b: _Matrices) -> None:
        """Makes the primitive descriptor."""
        self.a, self.b = self._place(a), self._place(b)
        self.source, weights = self.a.desc, self.b.desc
        if self.reduced:
            shape = self._laid(a)[0]
            self.source = self.engine.desc(shape, bfloat16(), dense_strides(shape))
        if self.reduced or self.p.packed or self.blocked:
            weights = self.engine.desc(self._laid(b)[0], bfloat16() if self.reduced else self.p.dtype)
        self.kernel = self.engine.primitive_desc(
            "matmul", self.source, weights, self.bias.desc if self.bias else None, self.dst.desc,
            attr=self.engine.attributes(self._post()),
        )  # fmt: skip

    # inner sizes that kernels like better

    def _pad(self, a: _Matrices, b: _Matrices) -> None:
        """Takes copies of A and B with zeros up to another inner size, where a kernel for that is so much faster."""
        (m, k), n = a.shape, b.shape[-1]
        plain = a, b, self.kernel
        tiles = "amx" in self.kernel.implementation
        if tiles and k % TILE == 0:
            return
        for size in sorted({-(-k // TILE) * TILE, *TILE_SIZES} - {k}):
            # A kernel without tiles does 120 operations in a nanosecond and one with them 800 to 1400; a copy moves some bytes.
            if size < k or m * n * k < (200 if tiles else 60) * (m + n) * size:
                continue
            made = tuple(_Matrices((0, 0, 0), shape, strides) for shape, strides in (
                ((m, size), (size, 1) if a.strides[-1] == 1 else (1, m)), ((size, n), (n, 1) if b.strides[-1] == 1 else (1, size))
            ))  # fmt: skip
            self._describe(*made)
            if "amx" in self.kernel.implementation:
                self.padded = size
                laid = plain[2].desc(abi.Query.WEIGHTS) if self.blocked else None
                wanted = self.kernel.desc(abi.Query.WEIGHTS)
                if laid and wanted and laid.layout == wanted.layout:  # its blocks end in zeros already
                    self._describe(self._copied(a, made[0], 1), made[1])
                    self.b, self.laid = self._place(b), laid
                else:
                    self._describe(self._copied(a, made[0], 1), self._copied(b, made[1], 0))
                return
        self._describe(*plain[:2])

    def _copied(self, given: _Matrices, wanted: _Matrices, axis: int) -> _Matrices:
        """A copy in workspace that is larger along an axis, filled with zeros."""
        w, size = self.w, self.p.dtype.itemsize
        wanted.pointer = w.b.work(wanted.shape[0] * wanted.shape[1] * size, shared=True)
        from_, to = (tuple(s * size for s in m.strides) for m in (given, wanted))
        source, target = given.pointer, wanted.pointer
        # By rows of memory, some to each thread.
        rows = 0 if from_[1] == size else 1
        count = given.shape[rows]
        parts = w.threads if given.shape[0] * given.shape[1] >= COPY_THREADED else 1
        each = -(-count // parts)
        starts = [min(i * each, count - each) for i in range(parts)]
        w.b.each()
        shape = [each, each]
        shape[1 - rows] = given.shape[1 - rows]
        w.b.copy(
            (shape[0], shape[1]), (source[0], source[1], tuple(s * from_[rows] for s in starts)), (from_[0], from_[1]),
            (target[0], target[1], tuple(s * to[rows] for s in starts)), (to[0], to[1]), size,
        )  # fmt: skip
        w.b.each(parts, parts)
        rest = list(given.shape)
        rest[axis] = wanted.shape[axis] - given.shape[axis]
        at = target[1] + given.shape[axis] * to[axis]
        inner = 0 if to[0] == size else 1  # a row of memory is one copy
        zeros = w.b.constant(bytes(size * rest[inner]))
        w.b.copy((rest[0], rest[1]), zeros, (size * (inner == 0), size * (inner == 1)), (target[0], at, 0), (to[0], to[1]), size)
        w.b.each()
        return wanted

    # operands

    def _given(self, role: str) -> _Matrices:
        """A or B: as it lies if its rows or its columns have no gaps, else copied."""
        o = self.p.get(role)
        assert o is not None
        batch = len(o.shape) - 2
        o = replace(o, shape=tuple(1 if i < batch and o.strides[i] == 0 else n for i, n in enumerate(o.shape)))
        spread = self.w.spread(role, o, copied=not _tight(o))
        return _Matrices(spread.pointer, o.shape, _canonical(o.shape, spread.strides))

    def _target(self) -> _Matrices:
        """Returns the matrices that the product is written to: the result, or workspace that is copied to it at the end."""
        p, o = self.p, self.p.get("out")
        full = (*p.batch, p.m, p.n)
        added = p.get(self.added) if self.added else None
        # Where what is added is overwritten, relu must not be in the product: its way out would need the operand again.
        # Relu of 16-bit floats is a compiled loop after it: that of oneDNN makes 0 of NaN.
        overwritten = o is not None and added is not None and same_place(added, o)
        self.fused = not (self.relu and (overwritten or p.dtype != F32))
        self.scattered = False
        if o is None:
            self.result = self.w.result(p.result, p.dtype, dense_strides(p.result))
            return _Matrices(self.result, full, dense_strides(full))
        self.result = self.w.argument("out")
        strides = _canonical(o.shape, tuple(max(s // o.dtype.itemsize, 1) for s in o.strides))
        if fits(o) and _tight(o) and (not self.relu or strides == dense_strides(full)):
            return _Matrices(self.result, o.shape, strides)
        self.scattered = True
        return _Matrices(self.w.b.work(p.items * p.m * p.n * p.dtype.itemsize, shared=True), full, dense_strides(full))

    def _laid(self, m: _Matrices) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides as oneDNN gets them."""
        batch, inner = self.p.batch, m.shape[-2] * m.shape[-1]
        if not self.flat:
            missing = len(batch) + 2 - len(m.shape)
            return (1,) * missing + m.shape, (inner,) * missing + m.strides
        step = m.offsets(batch, 1)
        assert isinstance(step, int)
        return (self.p.items if step else 1, *m.shape[-2:]), (step or inner, *m.strides[-2:])

    def _place(self, m: _Matrices) -> Place:
        shape, strides = self._laid(m)
        return Place(self.engine.desc(shape, self.p.dtype, strides), m.pointer)

    @property
    def _ndim(self) -> int:
        return 3 if self.flat else len(self.p.batch) + 2

    def _is_bias(self) -> bool:
        """Tells whether C is one row, added unscaled to every row of an unscaled product that does not overwrite it."""
        p, c, out = self.p, self.p.get("c"), self.p.get("out")
        assert c is not None
        apart = out is None or not same_place(c, out)
        return apart and p.parameter("alpha", 1) == 1 and p.parameter("beta") == 1 and p.m > 1 and _row(c) is not None

    def _bias(self) -> Place | None:
        o = _row(self.p.get(self.row))
        if o is None:
            return None
        shape = (*[1] * (self._ndim - 1), o.shape[-1])
        if o.dtype == F16:
            return Place(self.engine.desc(shape, F32, dense_strides(shape)), self.w.widened(self.row, o).pointer)
        spread = self.w.spread(self.row, o, copied=o.strides[-1] != o.dtype.itemsize)
        return Place(self.engine.desc(shape, o.dtype, dense_strides(shape)), spread.pointer)

    # what is done

    def _post(self) -> list[tuple[Any, ...]]:
        post: list[tuple[Any, ...]] = []
        alpha = self.p.parameter("alpha", 1)
        if alpha != 1:
            post.append((abi.Alg.LINEAR, float(alpha), 0.0))
        if self.added:
            post.append(("sum", float(self.p.parameter("beta", 1))))
        if self.activation and self.fused:
            post.append(ACTIVATIONS[self.activation])
        return post

    def _load(self) -> None:
        """Put what is added where the product will be."""
        p, size = self.p, self.p.dtype.itemsize
        o, t = p.get(self.added), self.target
        assert o is not None
        first, second = (0 if n == 1 else s for n, s in zip(o.shape[-2:], o.strides[-2:], strict=True))
        pointer = self.w.argument(self.added)
        source = (pointer[0], pointer[1], batch_offsets(p.batch, o.shape[:-2], o.strides[:-2]))
        target = (t.pointer[0], t.pointer[1], t.offsets(p.batch, size))
        strides = (t.strides[-2] * size, t.strides[-1] * size)
        self.w.b.each()
        self.w.b.copy((p.m, p.n), source, (first, second), target, strides, size)
        self.w.b.each(p.items)

    def plan(self) -> Any:
        p, w = self.p, self.w
        if self.added:
            self._load()
        source, weights = self.a, self.b
        if self.reduced:
            source = w.reorder(self.a, self.source)
        if self.reduced or p.packed or self.blocked:
            wanted = self.kernel.desc(abi.Query.WEIGHTS)
            assert wanted is not None
            weights = w.pack(lambda: self.b, self.laid or wanted)._replace(desc=wanted)
        places: dict[int, Place] = {abi.Arg.SRC: source, abi.Arg.WEIGHTS: weights, abi.Arg.DST: self.dst}
        if self.bias:
            places[abi.Arg.BIAS] = self.bias
        if self.relu and self.fused:
            places[abi.post_op_arg(len(self._post()) - 1, abi.Arg.WEIGHTS)] = w.scalar(0.0, self._ndim)
        w.run(self.kernel, places)
        exact = None
        if self.relu and p.dtype != F32:
            self._relu_of_halves(p.items * p.m * p.n)
        elif self.relu:
            exact = w.guard_relu(self.dst, p.items * p.m * p.n, _plain_again(self) if self.fused else None)
        if self.scattered:
            w.scattered("out", self.dst.pointer, self.target.strides)
        same = (self.added,) if self.added else ()
        return w.plan(self.result, release_gil=p.flops >= SMALL_FLOPS, same=same, exact=exact)

    def _relu_of_halves(self, size: int) -> None:
        b, pointer = self.w.b, self.dst.pointer
        threads = self.w.threads if size >= RELU_THREADED else 1
        b.each()
        count = relu_of_halves(b, self.p.dtype, pointer, pointer, size, threads)
        b.each(count, threads)


def _plain_again(product: _Product) -> Callable[[], Any]:
    """Makes the plan of the same product without its activation."""
    engine, threads, name = product.engine, product.w.threads, REDUCED if product.reduced else "matmul"
    plain = replace(product.p, parameters=without(product.p, "activation", "packed"))

    def make() -> Any:
        with engine.threads(threads):
            return _Product(engine, plain, threads, name).plan()

    return make


def _tight(o: Operand) -> bool:
    """Tells whether a matrix is aligned and its rows or its columns are contiguous."""
    return matrix_layout(o.shape[-2:], o.strides[-2:], o.dtype.itemsize, o.aligned)[0] != "X"


def _canonical(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides where those of axes of size 1 are what they would be without gaps."""
    layout, ld = matrix_layout(shape[-2:], strides[-2:], 1)
    return (*strides[:-2], *((ld, 1) if layout == "C" else (1, ld)))
