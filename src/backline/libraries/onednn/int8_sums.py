"""Sums of int8 products by oneDNN: the primitives, and the order in memory that weights are packed in for them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ... import switches
from ...problems.memory_layout import dense_strides, image_strides
from ...problems.quantized_problem import QuantizedProblem
from .. import capability
from ..kernels.int8_steps import MOST_TERMS
from . import abi
from .int8_tiles import packed_tiles, packs_tiles, tile_bytes
from .primitives import Desc, Engine, PrimitiveDesc, defective

__all__ = [
    "S8",
    "S32",
    "Packing",
    "numpy_order",
    "order_for",
    "packing",
    "padded",
    "quantized_refusal",
    "run_once",
    "sums_of",
]

Array = Any

ROWS = 64  # for which the order of the weights of a linear layer is asked
MOST_KNOWN = 256  # orders that are kept

S8, S32 = np.dtype(np.int8), np.dtype(np.int32)

_known: dict[Any, Packing] = {}


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


def padded(p: QuantizedProblem) -> bool:
    """Tells whether a convolution is padded so that the sums depend on the zero point of the input."""
    return p.op == "quantized.conv2d" and any(p.parameter("padding")) and not p.parameter("from_zero", False)


def sums_of(engine: Engine, p: QuantizedProblem, outs: int, weights: Desc | None = None, parts: int = 1) -> PrimitiveDesc:
    """Returns the primitive of the sums for `outs` outputs of each group, of all images or of one in `parts` parts of them.

    Without `weights`, the kernel chooses their layout.
    """
    source, given, result = _shapes(p, outs)
    source, result = (source[0] // parts, *source[1:]), (result[0] // parts, *result[1:])
    attr = engine.attributes()
    if padded(p):
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
        avoided=defective(p, "int8"),
    )  # fmt: skip


def numpy_order(engine: Engine, p: QuantizedProblem, outs: int) -> Desc:
    """Weights as NumPy has them, in the shape that oneDNN has."""
    _, shape, _ = _shapes(p, outs)
    return engine.desc(shape, S8, (1, shape[0]) if p.op != "quantized.conv2d" else dense_strides(shape))


def run_once(engine: Engine, desc: PrimitiveDesc, arrays: dict[int, tuple[Desc, Array]]) -> None:
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
        Of an array that holds them: oneDNN's part, then an int32 for each output, the sum of its weights, then where the
        processor multiplies tiles those (`int8_tiles`).
    """

    def __init__(self, engine: Engine, p: QuantizedProblem) -> None:
        if p.op != "quantized.conv2d":
            p = replace(p, result=(ROWS, p.outs))  # one order for any number of rows
        self.engine, self._p = engine, p
        with engine.threads(1):  # so that it is the same whatever a call may use
            self.desc = sums_of(engine, p, p.outs // p.groups).desc(abi.Query.WEIGHTS)
        assert self.desc is not None
        self.sums_at = -(-self.desc.nbytes // 64) * 64
        self.nbytes = self.sums_at + 4 * p.outs
        self.tiles = packs_tiles(engine, p)
        self.tiles_at = -(-self.nbytes // 64) * 64
        if self.tiles:
            self.nbytes = self.tiles_at + tile_bytes(p)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packing) and self.nbytes == other.nbytes and self.desc == other.desc

    __hash__ = None  # type: ignore[assignment]  # how Python says that equal ones have no hash

    def pack(self, weight: Array) -> Array:
        """Weights, as NumPy has them, in this order: a read-only array of bytes."""
        assert self.desc is not None
        memory = np.zeros(self.nbytes + 64, np.uint8)
        start = -memory.__array_interface__["data"][0] % 64
        packed = memory[start : start + self.nbytes]
        source = numpy_order(self.engine, self._p, self._p.outs // self._p.groups)
        with self.engine.threads(1):
            reorder = self.engine.reorder_desc(source, self.desc)
            run_once(self.engine, reorder, {abi.Arg.SRC: (source, weight), abi.Arg.DST: (self.desc, packed)})
        sums = packed[self.sums_at : self.sums_at + 4 * len(weight)].view(np.int32)
        sums[:] = weight.reshape(len(weight), -1).sum(1, dtype=np.int32)
        if self.tiles:
            packed[self.tiles_at :] = packed_tiles(self._p, weight).view(np.uint8)
        packed.flags.writeable = False
        return packed


def order_for(engine: Engine, p: QuantizedProblem) -> Packing:
    """The order of the weights for a Problem, from those that were asked for before.

    That of a linear layer is one for any number of rows, that of a convolution one for images of about the same size: to ask
    takes as long as to describe the convolution itself, and where a kernel wants another order, it makes that for itself.
    """
    image = tuple(n.bit_length() for n in p.shape("input")) if p.op == "quantized.conv2d" else ()
    key = switches.current(), p.op, p.dtype, image, p.shape("weight"), p.parameters
    found = _known.get(key)
    if found is None or found.engine is not engine:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        found = _known[key] = Packing(engine, p)
    return found


def packing(engine: Engine, p: QuantizedProblem) -> Packing | None:
    """The order of the weights for a Problem, which does not depend on how they were packed; None where it has no kernel."""
    if p.empty or p.terms > MOST_TERMS or quantized_refusal(engine):
        return None
    try:
        return order_for(engine, p)
    except RuntimeError:
        return None  # the reason is told by those who list the algorithms
