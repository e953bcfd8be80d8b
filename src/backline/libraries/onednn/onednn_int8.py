"""Products and convolutions of int8 by oneDNN: exact sums in int32, which compiled code of ours brings to the result's scale.

oneDNN's own way from sums to int8 goes through float32 and rounds twice. Its sums are taken instead: those of the integers as
they are, with the zero point of the input inside the convolution only where padding makes it a matter of place. What else zero
points and biases add is added with the scale.

Weights are kept in the order that the kernel wants (`Packing`), beside the sums of each output's weights, by the object that was
packed: plans get them with each call. Where the processor multiplies tiles (`int8_tiles`), most convolutions need no primitive.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as every
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Pointer, shift
from ...problems.memory_layout import dense_strides, image_strides
from ...problems.quantized_problem import QuantizedProblem
from ..base import ANY_SHAPE, Algorithm, PythonPlan, Refusal
from ..kernels.conv_steps import cut, same, uniform
from ..kernels.int8_products import packed_here
from ..kernels.int8_results import SMALL_FLOPS, finish_for
from ..kernels.int8_steps import refusal
from ..reference import reference_quantized
from ..reference.reference_requantize import FLOAT32
from . import abi
from .int8_gemm import GEMM, gemm_algorithms, prepare_gemm
from .int8_sums import S32, numpy_order, order_for, padded, quantized_refusal, run_once, sums_of
from .int8_tiles import MOST_SUMS, TileSteps, in_tiles
from .onednn_products import THREAD_FLOPS, is_reference
from .plan_writer import Execution, Place, Writer
from .primitives import Desc, Engine, PrimitiveDesc, why

__all__ = ["ENGINES", "prepare_quantized", "quantized_algorithms", "soon_prepared"]

ENGINES = ("x86", "onednn", *FLOAT32)
# Integers are done several times as fast as real numbers.
INT8_THREAD_FLOPS = 4 * THREAD_FLOPS
SHARE = 1 << 15  # sums that are worth a thread to bring them to their scale
TURNED = 1 << 16  # bytes that are worth one to copy them
# Bytes of sums that stay in a cache until they are brought to their scale: images are done in parts of at most about so many.
CACHED = 1 << 19

F32 = np.dtype(np.float32)


def quantized_algorithms(engine: Engine, p: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """oneDNN's ways for an operation on int8."""
    reason = _refusal(engine, p)
    if reason:
        yield Refusal("onednn", p.op, reason)
        return
    if p.empty:
        yield Algorithm(library="onednn", name="empty", level="threads", basis="construction", note="nothing to multiply")
        return
    many, isa, how = _ways(engine, p, threads)
    try:
        layer = engine.describe(_Layer, p, many)
    except RuntimeError as error:
        yield Refusal("onednn", "int8", why(error, f"this {p.op}"))
    else:
        kernel, traits = layer.implementation, (ANY_SHAPE,) if layer.tiled else ()
        note = f"{kernel}: its reference code, slow{how}" if is_reference(kernel) else kernel + how
        # Sums of integers are the same in any order.
        if many > 1:
            yield Algorithm(
                library="onednn", name="int8", threads=many, scaled=True, level="threads", basis="construction",
                pool=engine.pool, note=note, isa=isa, traits=traits,
            )  # fmt: skip
        yield Algorithm(
            library="onednn", name="int8", level="threads", basis="construction", note=note, isa=isa, traits=traits
        )  # fmt: skip
    yield from gemm_algorithms(engine, p, many, isa, how)


def soon_prepared(engine: Engine, p: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Those of them whose plans are made soon."""
    if not p.empty and not _refusal(engine, p):
        soon = quantized_algorithms if in_tiles(engine, p) else _gemms
        yield from soon(engine, p, threads)


def _gemms(engine: Engine, p: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return gemm_algorithms(engine, p, *_ways(engine, p, threads))


def _ways(engine: Engine, p: QuantizedProblem, threads: int) -> tuple[int, str, str]:
    """Returns the threads that are worth it, the instructions needed, and what a note says of results."""
    many = threads if p.flops >= INT8_THREAD_FLOPS else 1
    return many, "avx512" if engine.isa & abi.Isa.AVX512_VNNI else "avx2", f"; {FLOAT32[p.engine]}" if p.engine in FLOAT32 else ""


def prepare_quantized(engine: Engine, p: QuantizedProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `quantized_algorithms` or `soon_prepared` listed."""
    if algorithm.name == "empty":
        return PythonPlan(reference_quantized.plan(p))
    if algorithm.name == GEMM:
        return prepare_gemm(engine, p, algorithm)
    with engine.threads(algorithm.threads):
        return engine.described(_Layer, p, algorithm.threads).plan()


def _refusal(engine: Engine, p: QuantizedProblem) -> str:
    reason = refusal(p, ENGINES) or quantized_refusal(engine)
    if reason or p.empty or (p.get("form") is not None and not packed_here(p)):
        return reason
    return "the weight is not in the order of its kernel"


class _Layer:
    """One operation: sums, then what they stand for."""

    def __init__(self, engine: Engine, p: QuantizedProblem, threads: int) -> None:
        self.engine, self.p, self.threads = engine, p, threads
        self.order = order_for(engine, p)
        form = p.get("form")
        if form is None or form.shape != (self.order.nbytes,):
            raise RuntimeError("the weight is packed in another order")
        self.outs, self.rows = p.outs, prod(p.result) // p.outs
        self.conv = p.op == "quantized.conv2d"
        self.real = p.op == "quantized.linear_dynamic"
        self.tiled = in_tiles(engine, p)
        if self.tiled:
            self.implementation = "a loop over tiles by AMX, without a primitive"
            return
        # Where a kernel has no such order for this number of threads, and would be slow, it gets weights in its own.
        self.parts, self.shares = self._image_parts()
        self.kernel = self._sums(self.order.desc)
        if self.parts > 1 and is_reference(self.kernel.implementation):
            self.parts = self.shares = 1
            self.kernel = self._sums(self.order.desc)
        self.own = is_reference(self.kernel.implementation)
        if self.own:
            self.parts = self.shares = 1
            self.kernel = self._sums(None)
        self.implementation = self.kernel.implementation
        # A weight's zero point is multiplied by the sum of what a kernel sees.
        self.windows = sums_of(engine, p, 1) if p.get("weight_zero") is not None else None

    def _sums(self, weights: Desc | None) -> PrimitiveDesc:
        with self.engine.threads(1 if self.shares > 1 else self.threads):
            return sums_of(self.engine, self.p, self.outs // self.p.groups, weights, self.parts)

    def _image_parts(self) -> tuple[int, int]:
        """Returns the number of equal parts of the images whose sums fit a cache, and how many threads do parts of their own.

        Each thread does whole parts, sums and results, where there are as many for each; else all of them share each part.
        """
        if not self.conv or self.p.get("weight_zero") is not None:
            return 1, 1
        images, threads = self.p.result[0], thread_team.items_threads(self.threads)
        least = -(-4 * self.rows * self.outs // CACHED)
        parts = [n for n in range(1, images + 1) if images % n == 0]
        shared = [n for n in parts if n % threads == 0] if threads > 1 else []
        return next((n for n in shared or parts if n >= least), images), threads if shared else 1

    def plan(self) -> Any:
        p = self.p
        self.w = Writer(self.engine, p, self.threads, 0 if self.tiled or self.shares == 1 else self.shares)
        rows = MOST_SUMS if self.tiled else self.rows
        # Tiles see the zero point where images are padded, so that it can be taken out of all sums alike.
        weight_sums = shift(self.w.argument("form"), self.order.sums_at)
        self.finish = finish_for(self.w.b, p, weight_sums, self.w.argument, rows, self.tiled or not padded(p))
        if self.tiled:
            images = self._images()
            result, inner = self._result()
            self._by_tiles(images, inner)
        else:
            source, weights = self._source(), self._weights()
            result, inner = self._result()
            (self._in_shares if self.shares > 1 else self._together)(source, weights, inner)
        if inner != result:
            self._turn(p.result[0], prod(p.result[2:]), self.outs, inner, result)
        return self.w.plan(result, release_gil=p.flops >= SMALL_FLOPS)

    def _by_tiles(self, images: Pointer, target: Pointer) -> None:
        """Sums and results of some rows of an image by one thread."""
        weights = shift(self.w.argument("form"), self.order.tiles_at)
        steps = TileSteps(self.p, self.threads)
        steps.write(self.w.b, self.finish, images, weights, self.w.argument("input_zero"), target)

    def _together(self, source: Place, weights: Place, target: Pointer) -> None:
        """One part of the images after the other, each by all threads."""
        sums, rows = self._work(self.kernel), self.rows // self.parts
        for n in range(self.parts):
            self._run(self.kernel, Place(source.desc, shift(source.pointer, n * source.desc.nbytes)), weights, sums)
            windows = None
            if self.windows is not None:
                ones, windows = self._ones(), self._work(self.windows)
                self._run(self.windows, source, ones, windows)
            self.w.b.each()
            self._finish(sums, windows, shift(target, n * rows * self.outs * self.dtype.itemsize), rows)

    def _in_shares(self, source: Place, weights: Place, target: Pointer) -> None:
        """Parts of the images, each by one thread from its sums to its results: no other thread waits for it."""
        b, rows, rounds = self.w.b, self.rows // self.parts, self.parts // self.shares
        work = self._work(self.kernel, shared=False)
        places = {abi.Arg.SRC: source, abi.Arg.WEIGHTS: weights, **work, **self._zero()}
        address, layer, numbers, _ = self.finish
        b.each()
        with self.engine.threads(1):
            kernel = Execution(self.w, self.kernel, {arg: place.desc for arg, place in places.items()}, self.shares)

        def part(pointer: Pointer, n: int, size: int) -> Pointer:
            return pointer[0], pointer[1] + n * size, rounds * size

        pointers = {arg: place.pointer for arg, place in places.items()}
        for n in range(rounds):
            pointers[abi.Arg.SRC] = part(source.pointer, n, source.desc.nbytes)
            kernel.run(pointers)
            b.call(address, [layer, numbers, work[abi.Arg.DST].pointer, 0, part(target, n, rows * self.outs), rows])
            pointers = {}  # the others stay where they are
        thread_team.items_run()
        b.each(self.shares, self.shares)

    # operands

    def _source(self) -> Place:
        """Returns the input, or its first part."""
        wanted = self.kernel.desc(abi.Query.SRC)
        assert wanted is not None
        return Place(wanted, self._images())

    def _images(self) -> Pointer:
        """Returns the input, images with their channels last."""
        pointer = self.w.argument("input")
        if not self.conv or self.p.last:
            return pointer
        shape = self.p.shape("input")
        turned = self.w.b.work(prod(shape), shared=True)
        self._turn(shape[0], shape[1], prod(shape[2:]), pointer, turned)
        return turned

    def _weights(self) -> Place:
        if not self.own:
            assert self.order.desc is not None
            return Place(self.order.desc, self.w.argument("form"))
        wanted = self.kernel.desc(abi.Query.WEIGHTS)
        assert wanted is not None
        plain = numpy_order(self.engine, self.p, self.outs // self.p.groups)
        return self.w.reorder(Place(plain, self.w.argument("weight")), wanted)

    def _ones(self) -> Place:
        """Weights of 1 in the order of the kernel that sums up what the weights see."""
        assert self.windows is not None
        wanted = self.windows.desc(abi.Query.WEIGHTS)
        assert wanted is not None
        plain = numpy_order(self.engine, self.p, 1)
        ones, ordered = np.ones(plain.nbytes, np.int8), np.zeros(wanted.nbytes, np.uint8)
        with self.engine.threads(1):
            reorder = self.engine.reorder_desc(plain, wanted)
            run_once(self.engine, reorder, {abi.Arg.SRC: (plain, ones), abi.Arg.DST: (wanted, ordered)})
        return Place(wanted, self.w.b.constant(ordered.tobytes()))

    def _work(self, kernel: PrimitiveDesc, *, shared: bool = True) -> dict[int, Place]:
        """Returns where a kernel puts its sums, as rows of outputs, and its scratchpad: for all threads, or for each its own."""
        found = {abi.Arg.DST: kernel.desc(abi.Query.DST), abi.Arg.SCRATCHPAD: kernel.desc(abi.Query.SCRATCHPAD)}
        sizes = {arg: desc for arg, desc in found.items() if desc is not None and desc.nbytes}
        return {arg: Place(desc, self.w.b.work(desc.nbytes, shared=shared)) for arg, desc in sizes.items()}

    def _run(self, kernel: PrimitiveDesc, source: Place, weights: Place, work: dict[int, Place]) -> None:
        """Compute sums."""
        places: dict[int, Place] = {abi.Arg.SRC: source, abi.Arg.WEIGHTS: weights, **work}
        self.w.run(kernel, {**places, **self._zero()})

    def _zero(self) -> dict[int, Place]:
        """Returns the zero point of the input, where sums are to know it."""
        if not padded(self.p):
            return {}
        return {abi.zero_points(abi.Arg.SRC): Place(self.engine.desc((1,), S32, (1,)), self.w.argument("input_zero"))}

    # the result

    def _result(self) -> tuple[Pointer, Pointer]:
        """Returns the result and where it is computed: elsewhere if its channels come first, since the sums have them last."""
        p = self.p
        self.dtype = F32 if self.real else p.dtype
        strides = image_strides(p.result, True) if self.conv else dense_strides(p.result)
        if not self.conv or p.last:
            result = self.w.result(p.result, self.dtype, strides)
            return result, result
        return self.w.result(p.result, self.dtype, dense_strides(p.result)), self.w.b.work(prod(p.result), shared=True)

    def _turn(self, images: int, rows: int, columns: int, source: Pointer, target: Pointer) -> None:
        """Copy images as matrices of channels and points to the transposed ones."""
        b, image = self.w.b, rows * columns
        b.each()
        threads = thread_team.items_threads(self.threads)
        share = max(-(-images * image // threads), TURNED) if threads > 1 else images * image
        parts = cut(columns, max(share // rows, 8))
        items = [(n * image, first, count) for n, (first, count) in every(range(images), parts)]
        given = source[0], source[1], uniform([at + first for at, first, _ in items])
        made = target[0], target[1], uniform([at + first * rows for at, first, _ in items])
        b.call(_kernels.addresses["turn_bytes"], [given, made, rows, same([n for _, _, n in items]), columns, rows])
        b.each(len(items), threads)

    def _finish(self, sums: dict[int, Place], windows: dict[int, Place] | None, target: Pointer, rows: int) -> None:
        """Bring rows of sums to their scale, on all threads."""
        address, layer, numbers, repeats = self.finish
        starts = self._parts(rows, repeats)
        counts = [end - start for start, end in zip(starts, [*starts[1:], rows], strict=True)]
        many = len(starts) > 1

        def part(pointer: Pointer, size: int) -> Pointer:
            return (pointer[0], pointer[1], tuple(start * size for start in starts)) if many else pointer

        parted = 0 if windows is None else part(windows[abi.Arg.DST].pointer, 4 * self.p.groups)
        given = part(sums[abi.Arg.DST].pointer, 4 * self.outs)
        self.w.b.call(
            address, [layer, numbers, given, parted, part(target, self.dtype.itemsize * self.outs), counts if many else rows],
        )  # fmt: skip
        self.w.b.each(len(starts), len(starts))

    def _parts(self, rows: int, repeats: int) -> list[int]:
        """Returns the first row of each thread's part, a multiple of `repeats`."""
        parts = min(thread_team.items_threads(self.threads), max(rows * self.outs // SHARE, 1))
        blocks = -(-rows // repeats)
        return sorted({blocks * i // parts * repeats for i in range(parts)})
