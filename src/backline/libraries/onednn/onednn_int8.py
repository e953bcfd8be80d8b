"""Products and convolutions of int8 by oneDNN: exact sums in int32, which compiled code of ours brings to the result's scale.

oneDNN's own way from sums to int8 goes through float32 and rounds twice. Its sums are taken instead: those of the integers as
they are, with the zero point of the input inside the convolution only where padding makes it a matter of place. What else zero
points and biases add is added with the scale.

Weights are kept in the order that the kernel wants (`Packing`), beside the sums of each output's weights, by the object that was
packed: plans get them with each call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Pointer, shift
from ...problems.quantized_problem import QuantizedProblem
from .. import capability
from ..base import Algorithm, PythonPlan, Refusal
from ..reference import reference_quantized
from ..reference.reference_requantize import FLOAT32
from . import abi
from .onednn_products import THREAD_FLOPS, is_reference
from .plan_writer import Place, Writer, dense_strides, image_strides
from .primitives import Desc, Engine, PrimitiveDesc, why

__all__ = ["ENGINES", "MOST_TERMS", "Packing", "packing", "prepare_quantized", "quantized_algorithms", "quantized_refusal"]

Array = Any

ENGINES = ("x86", "onednn", *FLOAT32)
ROUNDINGS = {"fbgemm": 1, "qnnpack": 2}  # of requantize.hpp; 0 for the others, which round exactly
MOST_TERMS = (2**31 - 1) // 255**2  # of one sum, so that int32 holds it whatever the zero points
# Integers are done several times as fast as real numbers.
INT8_THREAD_FLOPS, INT8_SMALL_FLOPS = 4 * THREAD_FLOPS, 2.4e5
SHARE = 1 << 15  # sums that are worth a thread to bring them to their scale
VECTOR, LONG_ROW = 16, 512  # sums that are done at once, and of a row
# Bytes of sums that stay in a cache until they are brought to their scale: images are done in parts of about so many.
CACHED = 1 << 19
ROWS = 64  # for which the order of the weights of a linear layer is asked

U8, S8, S32, F32 = (np.dtype(t) for t in (np.uint8, np.int8, np.int32, np.float32))


def quantized_refusal(engine: Engine) -> str:
    """Returns the reason why int8 products cannot be summed exactly here, or an empty string.

    Without instructions that accumulate int8 products in int32, kernels first add pairs of products in int16, which saturates.
    """
    if engine.isa & abi.Isa.AVX512_VNNI:
        needed = "avx512"
    elif engine.isa & abi.Isa.AVX2_VNNI:
        needed = "avx2"
    else:
        return "the processor has, or oneDNN may use, no instructions that add up products of int8 exactly (VNNI)"
    if not capability.allows(needed):
        return f"needs {needed}, and the processor has, or may use, {capability.effective()}"
    return ""


def quantized_algorithms(engine: Engine, p: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """oneDNN's ways for an operation on int8."""
    reason = _refusal(engine, p)
    if reason:
        yield Refusal("onednn", p.op, reason)
        return
    if p.empty:
        yield Algorithm(library="onednn", name="empty", level="threads", basis="construction", note="nothing to multiply")
        return
    many = threads if p.flops >= INT8_THREAD_FLOPS else 1
    try:
        kernel = engine.describe(_Layer, p, many).kernel.implementation
    except RuntimeError as error:
        yield Refusal("onednn", "int8", why(error, f"this {p.op}"))
        return
    note = f"{kernel}: its reference code, slow" if is_reference(kernel) else kernel
    if p.engine in FLOAT32:
        note += f"; {FLOAT32[p.engine]}"
    isa = "avx512" if engine.isa & abi.Isa.AVX512_VNNI else "avx2"
    # Sums of integers are the same in any order.
    if many > 1:
        yield Algorithm(
            library="onednn", name="int8", threads=many, scaled=True, level="threads", basis="construction", pool=engine.pool,
            note=note, isa=isa,
        )  # fmt: skip
    yield Algorithm(library="onednn", name="int8", level="threads", basis="construction", note=note, isa=isa)


def prepare_quantized(engine: Engine, p: QuantizedProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `quantized_algorithms` listed."""
    if algorithm.name == "empty":
        return PythonPlan(reference_quantized.plan(p))
    with engine.threads(algorithm.threads):
        return engine.described(_Layer, p, algorithm.threads).plan()


def _refusal(engine: Engine, p: QuantizedProblem) -> str:
    if p.engine not in ENGINES:
        return f"the weight is packed by engine {p.engine!r}, and oneDNN has {', '.join(map(repr, ENGINES))}"
    weight = p.get("weight")
    assert weight is not None
    if weight.dtype != S8:
        return f"no weights of {weight.dtype}"
    if p.terms > MOST_TERMS:
        return f"sums of {p.terms} products may not fit int32, those of {MOST_TERMS} do"
    reason = quantized_refusal(engine)
    if reason or p.empty or p.get("form") is not None:
        return reason
    return "the weight is not in the order of its kernel"


# Primitives -------------------------------------------------------------------------------------------------------------


def _shapes(p: QuantizedProblem, outs: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of input, weights and result as oneDNN has them, with so many outputs for each group."""
    weight = p.shape("weight")
    if p.op != "quantized.conv2d":
        rows = prod(p.result[:-1])
        return (rows, weight[1]), (weight[1], outs), (rows, outs)
    parts = p.groups
    inner = (outs, *weight[1:])
    return p.shape("input"), (parts, *inner) if parts > 1 else inner, (p.result[0], parts * outs, *p.result[2:])


def _padded(p: QuantizedProblem) -> bool:
    """Tells whether a convolution is padded, so that the sums depend on the zero point of the input."""
    return p.op == "quantized.conv2d" and any(p.parameter("padding"))


def _primitive(engine: Engine, p: QuantizedProblem, outs: int, weights: Desc | None = None, parts: int = 1) -> PrimitiveDesc:
    """Returns the primitive of the sums for `outs` outputs of each group, of all images or of one in `parts` parts of them.

    Without `weights`, the kernel chooses their layout.
    """
    source, given, result = _shapes(p, outs)
    source, result = (source[0] // parts, *source[1:]), (result[0] // parts, *result[1:])
    attr = engine.attributes()
    if _padded(p):
        engine.call(
            "dnnl_primitive_attr_set_zero_points_mask", ctypes.c_void_p(attr.address), ctypes.c_int(abi.Arg.SRC), ctypes.c_int(0)
        )
    weights = weights or engine.desc(given, S8)
    if p.op != "quantized.conv2d":
        return engine.primitive_desc(
            "matmul", engine.desc(source, p.dtype, dense_strides(source)), weights, None,
            engine.desc(result, S32, dense_strides(result)), attr=attr,
        )  # fmt: skip
    around, dilation = p.parameter("padding"), p.parameter("dilation")
    spread = tuple(n - 1 for n in dilation)
    return engine.primitive_desc(
        "convolution_forward", abi.Prop.FORWARD_INFERENCE, abi.Alg.CONVOLUTION_DIRECT,
        engine.desc(source, p.dtype, image_strides(source, True)), weights, None,
        engine.desc(result, S32, image_strides(result, True)), p.parameter("stride"), spread, around, around, attr=attr,
    )  # fmt: skip


def _plain(engine: Engine, p: QuantizedProblem, outs: int) -> Desc:
    """Weights as NumPy has them, in the shape that oneDNN has."""
    _, shape, _ = _shapes(p, outs)
    return engine.desc(shape, S8, (1, shape[0]) if p.op != "quantized.conv2d" else dense_strides(shape))


def _run(engine: Engine, desc: PrimitiveDesc, arrays: dict[int, tuple[Desc, Array]]) -> None:
    """Execute a primitive once, now, on one thread."""
    scratch = desc.desc(abi.Query.SCRATCHPAD)
    if scratch is not None and scratch.nbytes:
        arrays = {**arrays, abi.Arg.SCRATCHPAD: (scratch, np.empty(scratch.nbytes, np.uint8))}
    primitive, stream, memories, pairs = engine.primitive(desc), engine.stream(), [], []
    for arg, (layout, array) in arrays.items():
        memory = engine.memory(layout)
        address = ctypes.c_void_p(array.__array_interface__["data"][0])
        engine.call("dnnl_memory_set_data_handle", ctypes.c_void_p(memory.address), address)
        memories.append(memory)
        pairs.append((int(arg), memory.address))
    given = abi.exec_args(pairs)
    engine.call(
        "dnnl_primitive_execute", ctypes.c_void_p(primitive.address), ctypes.c_void_p(stream.address), ctypes.c_int(len(pairs)),
        ctypes.create_string_buffer(given, len(given)),
    )  # fmt: skip


# Weights ----------------------------------------------------------------------------------------------------------------


class Packing:
    """An order of weights in memory: two that are equal serve the same packed weights.

    Attributes
    ----------
    nbytes
        Of an array that holds them: oneDNN's part, then an int32 for each output, the sum of its weights.
    """

    def __init__(self, engine: Engine, p: QuantizedProblem) -> None:
        if p.op != "quantized.conv2d":
            p = replace(p, result=(ROWS, p.outs))  # one order for any number of rows
        self._engine, self._p = engine, p
        with engine.threads(1):  # so that it is the same whatever a call may use
            self.desc = _primitive(engine, p, p.outs // p.groups).desc(abi.Query.WEIGHTS)
        assert self.desc is not None
        self.sums_at = -(-self.desc.nbytes // 64) * 64
        self.nbytes = self.sums_at + 4 * p.outs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packing) and self.nbytes == other.nbytes and self.desc == other.desc

    __hash__ = None  # type: ignore[assignment]  # how Python says that equal ones have no hash

    def pack(self, weight: Array) -> Array:
        """Weights, as NumPy has them, in this order: a read-only array of bytes."""
        assert self.desc is not None
        memory = np.zeros(self.nbytes + 64, np.uint8)
        start = -memory.__array_interface__["data"][0] % 64
        packed = memory[start : start + self.nbytes]
        source = _plain(self._engine, self._p, self._p.outs // self._p.groups)
        with self._engine.threads(1):
            reorder = self._engine.reorder_desc(source, self.desc)
            _run(self._engine, reorder, {abi.Arg.SRC: (source, weight), abi.Arg.DST: (self.desc, packed)})
        packed[self.sums_at :].view(np.int32)[:] = weight.reshape(len(weight), -1).sum(1, dtype=np.int32)
        packed.flags.writeable = False
        return packed


def packing(engine: Engine, p: QuantizedProblem) -> Packing | None:
    """The order of the weights for a Problem, which does not depend on how they were packed; None where it has no kernel."""
    if p.empty or p.terms > MOST_TERMS or quantized_refusal(engine):
        return None
    try:
        return Packing(engine, p)
    except RuntimeError:
        return None  # the reason is told by those who list the algorithms


# The plan ---------------------------------------------------------------------------------------------------------------


class _Layer:
    """One operation: sums, then what they stand for."""

    def __init__(self, engine: Engine, p: QuantizedProblem, threads: int) -> None:
        self.engine, self.p, self.threads = engine, p, threads
        self.order = Packing(engine, p)
        form = p.get("form")
        if form is None or form.shape != (self.order.nbytes,):
            raise RuntimeError("the weight is packed in another order")
        self.outs, self.rows = p.outs, prod(p.result) // p.outs
        self.conv = p.op == "quantized.conv2d"
        self.real = p.op == "quantized.linear_dynamic"
        self.narrow = p.engine in FLOAT32
        # Where a kernel has no such order for this number of threads, and would be slow, it gets weights in its own.
        self.parts = self._image_parts()
        self.kernel = self._sums(self.order.desc)
        if self.parts > 1 and is_reference(self.kernel.implementation):
            self.parts = 1
            self.kernel = self._sums(self.order.desc)
        self.own = is_reference(self.kernel.implementation)
        if self.own:
            self.parts = 1
            self.kernel = self._sums(None)
        # A weight's zero point is multiplied by the sum of what a kernel sees.
        self.windows = _primitive(engine, p, 1) if p.get("weight_zero") is not None else None

    def _sums(self, weights: Desc | None) -> PrimitiveDesc:
        return _primitive(self.engine, self.p, self.outs // self.p.groups, weights, self.parts)

    def _image_parts(self) -> int:
        """Returns the number of equal parts of the images whose sums fit a cache, one after the other."""
        if not self.conv or self.p.get("weight_zero") is not None:
            return 1
        images = self.p.result[0]
        least = -(-4 * self.rows * self.outs // CACHED)
        return next((n for n in range(1, images + 1) if images % n == 0 and n >= least), images)

    def plan(self) -> Any:
        p = self.p
        self.w = Writer(self.engine, p, self.threads)
        layer = self._constants()
        numbers = self._numbers(layer)
        source, weights = self._source(), self._weights()
        finish = _kernels.addresses["requantize_real" if self.real else "requantize_finish"]
        result, inner = self._result()
        images, sums, rows = source.desc.nbytes, self._work(self.kernel), self.rows // self.parts
        for n in range(self.parts):
            self._run(self.kernel, Place(source.desc, shift(source.pointer, n * images)), weights, sums)
            windows = None
            if self.windows is not None:
                ones, windows = self._ones(), self._work(self.windows)
                self._run(self.windows, source, ones, windows)
            self.w.b.each()
            target = shift(inner, n * rows * self.outs * (4 if self.real else 1))
            self._finish(finish, layer, numbers, sums, windows, target, rows)
        if inner != result:
            self._turn(inner, result)
        return self.w.plan(result, release_gil=p.flops >= INT8_SMALL_FLOPS)

    # operands

    def _given(self, role: str) -> Any:
        return self.w.argument(role) if self.p.get(role) is not None else 0

    def _constants(self) -> Pointer:
        p = self.p
        plain = self.windows is None and not self.real and not self.narrow
        # Rows are brought to their scale as if they were longer ones, which fill vectors and are worth a loop of their own.
        even, most = VECTOR // gcd(self.outs, VECTOR), min(LONG_ROW // self.outs, self.rows)
        self.repeats = max(most // even, 1) * even if plain and most > 1 else 1
        limits = np.iinfo(p.dtype)
        zero = p.get("weight_zero")
        fields = (
            self.outs, self.repeats, p.terms, int(p.shape("weight_scale")[0] > 1), int(zero is not None and zero.shape[0] > 1),
            int(not _padded(p)), p.groups, int(limits.min), int(limits.max), _level(),
            ROUNDINGS.get(p.engine, 0),
        )  # fmt: skip
        return self.w.b.constant(struct.pack(f"<{len(fields)}q", *fields))

    def _numbers(self, layer: Pointer) -> Pointer:
        """Work out what follows from scales, zero points and the bias."""
        wide = self.outs * self.repeats
        numbers = self.w.b.work(_kernels.requantize_header + (20 if self.real or self.narrow else 12) * wide, shared=True)
        form = self.w.argument("form")
        roles = ("input_scale", "input_zero", "weight_scale", "weight_zero", "bias", "result_scale", "result_zero")
        given = [self._given(role) for role in roles]
        self.w.b.call(_kernels.addresses["requantize_numbers"], [layer, numbers, *given, shift(form, self.order.sums_at)])
        return numbers

    def _source(self) -> Place:
        """Returns the input, or its first part."""
        wanted = self.kernel.desc(abi.Query.SRC)
        assert wanted is not None
        pointer = self.w.argument("input")
        if not self.conv or self.p.last:
            return Place(wanted, pointer)
        shape, desc = self.p.shape("input"), self.engine.desc
        first = Place(desc(shape, self.p.dtype, image_strides(shape, False)), pointer)
        return Place(wanted, self.w.reorder(first, desc(shape, self.p.dtype, image_strides(shape, True))).pointer)

    def _weights(self) -> Place:
        if not self.own:
            assert self.order.desc is not None
            return Place(self.order.desc, self.w.argument("form"))
        wanted = self.kernel.desc(abi.Query.WEIGHTS)
        assert wanted is not None
        plain = _plain(self.engine, self.p, self.outs // self.p.groups)
        return self.w.reorder(Place(plain, self.w.argument("weight")), wanted)

    def _ones(self) -> Place:
        """Weights of 1 in the order of the kernel that sums up what the weights see."""
        assert self.windows is not None
        wanted = self.windows.desc(abi.Query.WEIGHTS)
        assert wanted is not None
        plain = _plain(self.engine, self.p, 1)
        ones, ordered = np.ones(plain.nbytes, np.int8), np.zeros(wanted.nbytes, np.uint8)
        with self.engine.threads(1):
            reorder = self.engine.reorder_desc(plain, wanted)
            _run(self.engine, reorder, {abi.Arg.SRC: (plain, ones), abi.Arg.DST: (wanted, ordered)})
        return Place(wanted, self.w.b.constant(ordered.tobytes()))

    def _work(self, kernel: PrimitiveDesc) -> dict[int, Place]:
        """Returns where a kernel puts its sums, as rows of outputs, and its scratchpad."""
        wanted, scratch = kernel.desc(abi.Query.DST), kernel.desc(abi.Query.SCRATCHPAD)
        assert wanted is not None
        places: dict[int, Place] = {abi.Arg.DST: self.w.work(wanted)}
        if scratch is not None and scratch.nbytes:
            places[abi.Arg.SCRATCHPAD] = self.w.work(scratch)
        return places

    def _run(self, kernel: PrimitiveDesc, source: Place, weights: Place, work: dict[int, Place]) -> None:
        """Compute sums."""
        places: dict[int, Place] = {abi.Arg.SRC: source, abi.Arg.WEIGHTS: weights, **work}
        if _padded(self.p):
            places[abi.zero_points(abi.Arg.SRC)] = Place(self.engine.desc((1,), S32, (1,)), self.w.argument("input_zero"))
        self.w.run(kernel, places)

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

    def _turn(self, inner: Pointer, result: Pointer) -> None:
        """Copy images with channels last to those with channels first."""
        shape, desc = self.p.result, self.engine.desc
        source = Place(desc(shape, self.dtype, image_strides(shape, True)), inner)
        self.w.move(source, Place(desc(shape, self.dtype, dense_strides(shape)), result))

    def _finish(
        self, address: int, layer: Pointer, numbers: Pointer, sums: dict[int, Place], windows: dict[int, Place] | None,
        target: Pointer, rows: int,
    ) -> None:  # fmt: skip
        """Bring rows of sums to their scale, on all threads."""
        starts = self._parts(rows)
        counts = [end - start for start, end in zip(starts, [*starts[1:], rows], strict=True)]
        many = len(starts) > 1

        def part(pointer: Pointer, size: int) -> Pointer:
            return (pointer[0], pointer[1], tuple(start * size for start in starts)) if many else pointer

        item = 4 if self.real else 1
        parted = 0 if windows is None else part(windows[abi.Arg.DST].pointer, 4 * self.p.groups)
        given = part(sums[abi.Arg.DST].pointer, 4 * self.outs)
        self.w.b.call(
            address, [layer, numbers, given, parted, part(target, item * self.outs), counts if many else rows],
        )  # fmt: skip
        self.w.b.each(len(starts), len(starts))

    def _parts(self, rows: int) -> list[int]:
        """Returns the first row of each thread's part, a multiple of `repeats`."""
        parts = min(thread_team.items_threads(self.threads), max(rows * self.outs // SHARE, 1))
        blocks = -(-rows // self.repeats)
        return sorted({blocks * i // parts * self.repeats for i in range(parts)})


def _level() -> int:
    """Returns the level of vector instructions that are available and allowed: 2 for AVX-512, 1 for AVX2, else 0."""
    return 2 if capability.allows("avx512") else 1 if capability.allows("avx2") else 0
