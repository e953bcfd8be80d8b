"""Linear layers with int8 weights on CuPy's arrays: the input becomes int8 on the device, and an int8 product makes the sums.

The weight is packed once for each device: int8 whatever it was, and filled up with zeros to sizes that tensor cores take, so
that each call multiplies it as it lies. The product is an operation of its own, whose library the engine chooses. Before it two
kernels find the range of the input and quantize it, after it one makes the result; nothing waits for the device. What they
compute stands in `int8_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ....problems import Operand
from ....problems.quantized_problem import QuantizedProblem
from ....problems.scaled_problem import ScaledProblem
from ...base import Algorithm, Planner, Refusal
from ...reference.reference_requantize import FLOAT32
from ..common import bindings
from ..common.device_facts import device_info, index_of
from ..common.lasting_arrays import lasting
from .int8_source import BLOCK, MOST_PARTS, QUANTIZE, RANGE, REAL, SHIFT
from .row_kernels import compiled

__all__ = ["MULTIPLE", "PART", "Launches", "algorithms", "function", "launches", "on_device", "pack", "products", "sources"]

Array = Any

MULTIPLE = 16  # sizes of a packed weight are multiples of it: what int8 tensor cores read at a time, and cuBLASLt likes best
PART = 1 << 16  # terms of one product, whose sums fit int32; more are added up as int64
READ = 16  # elements that a thread reads to find the range, before there are more blocks
LONG = 1024  # terms of a row from which on a block has it, not a warp
BESIDE = 8  # blocks on a multiprocessor
ENGINES = {"fbgemm": 1, "qnnpack": 2}
NOTHING = np.uint64(0)  # a pointer to no array


# --- packing ----------------------------------------------------------------------------------------------------------


def pack(weight: Array, scales: Array, zeros: Array | None) -> tuple[Array, Array, Array, Array | None]:
    """Returns a weight (out, in) as int8 with sizes filled up, the sums of its rows, scales, and zero points; NumPy arrays.

    Zero points are None where all are 0, as those of int8 weights mostly are.

    Examples
    --------
    >>> packed = pack(np.array([[129, 127]], np.uint8), np.array([0.5], np.float32), None)
    >>> packed[0].shape, packed[0][0, :3].tolist(), packed[1].tolist(), packed[3].tolist()
    ((16, 16), [1, -1, 0], [0], [-128])
    """
    outs, terms = weight.shape
    shift = SHIFT if weight.dtype == np.uint8 else 0
    rows, width = (-(-n // MULTIPLE) * MULTIPLE for n in (outs, terms))
    whole = np.zeros((rows, width), np.int8)
    whole[:outs, :terms] = weight.astype(np.int16) - shift
    moved = None if zeros is None and not shift else (np.zeros(1, np.int32) if zeros is None else zeros) - np.int32(shift)
    return whole, whole[:outs].sum(1, dtype=np.int32), scales, moved


def on_device(parts: tuple[Array, Array, Array | None, Array | None], device: int) -> tuple[Array, ...]:
    """Returns weight, sums of its rows, scales, zero points and bias of a packed layer as arrays of a device; None for none."""
    weight, scales, zeros, bias = parts

    def make() -> tuple[Array, ...]:
        asarray = bindings.cupy().asarray
        return tuple(None if a is None else asarray(a) for a in (*pack(weight, scales, zeros), bias))

    return lasting(device, make, "packing int8 weights")  # type: ignore[no-any-return]  # what `make` returns


# --- the plan ---------------------------------------------------------------------------------------------------------


def algorithms(p: QuantizedProblem) -> Iterator[Algorithm | Refusal]:
    """Lists the one way, for a layer whose weight was packed for the device."""
    if p.op != "quantized.linear_dynamic" or p.get("weight_sums") is None:
        yield Refusal("cupy", p.op, "of layers with int8 weights there is linear_dynamic for CuPy's arrays")
        return
    how = f", {FLOAT32[p.engine]}" if p.engine in FLOAT32 else ""
    note = f"x is quantized on the device; the int8 product by the library that is chosen for it; then scales and bias{how}"
    yield Algorithm(library="cupy", name="int8", level="threads", basis="construction", note=note)


def products(p: QuantizedProblem) -> list[tuple[slice, ScaledProblem]]:
    """Returns the products of the quantized input and the packed weight, and the terms that each of them has."""
    rows, width = p.shape("weight")
    m, one, found = prod(p.result[:-1]), np.dtype(np.int8), []
    for start in range(0, width, PART):
        k = min(PART, width - start)
        operands = Operand("a", one, (m, k), (width, 1)), Operand("b", one, (k, rows), (1, width))
        part = ScaledProblem("quantized.int_mm", operands, (), "quantized", m=m, n=rows, k=k, result=(m, rows), device=p.device)
        found.append((slice(start, start + k), part))
    return found


class Launches(NamedTuple):
    """Blocks that find the range; grid and threads of the quantization and of the result."""

    find: int
    quantize: tuple[tuple[int, ...], tuple[int, ...]]
    real: tuple[tuple[int, ...], tuple[int, ...]]


def launches(rows: int, terms: int, outs: int, multiprocessors: int) -> Launches:
    """Returns the launches for an input of rows of so many terms.

    Examples
    --------
    >>> launches(1, 4096, 4096, 132)
    Launches(find=1, quantize=((1,), (256, 1)), real=((64, 1), (64, 4)))
    >>> launches(100_000, 64, 10, 132)
    Launches(find=1024, quantize=((1056,), (32, 8)), real=((1, 1056), (64, 4)))
    """
    most, lanes, across = BESIDE * multiprocessors, lanes_of(terms), -(-outs // 64)
    beside = BLOCK // lanes
    return Launches(
        max(min(-(-rows * terms // (BLOCK * READ)), MOST_PARTS), 1),
        ((min(-(-rows // beside), most),), (lanes, beside)),
        ((across, min(-(-rows // 4), max(most // across, 1))), (64, 4)),
    )


def lanes_of(terms: int) -> int:
    """Returns the number of threads that quantize a row of so many terms."""
    return BLOCK if terms > LONG else 32


def sources(p: QuantizedProblem) -> dict[str, str]:
    """Returns the sources of the kernels, by name."""
    scales, zeros = p.shape("weight_scale"), p.get("weight_zero")
    lanes = lanes_of(p.shape("input")[-1])
    facts = {
        "LANES": lanes, "SUMS": int(zeros is not None), "ROUNDED": int(p.engine in FLOAT32), "ENGINE": ENGINES.get(p.engine, 0),
        "BIAS": int(p.get("bias") is not None), "EACH": int(scales != (1,)),
        "EACH_ZERO": int(zeros is not None and zeros.shape != (1,)), "Sum": "long long" if len(products(p)) > 1 else "int",
    }  # fmt: skip

    def made(source: str, *names: str) -> str:
        return "".join(f"#define {name} {facts[name]}\n" for name in names) + source

    return {
        "value_range": RANGE, "quantize_rows": made(QUANTIZE, "LANES", "SUMS", "ROUNDED"),
        "real_rows": made(REAL, "Sum", "ENGINE", "BIAS", "SUMS", "EACH", "EACH_ZERO"),
    }  # fmt: skip


def function(p: QuantizedProblem, planner: Planner) -> Callable[..., Array]:
    """Returns the function of the arrays of a call, on the device that is current."""
    cupy, places = bindings.cupy(), {o.role: i for i, o in enumerate(p.operands)}
    x_index, weight_index, dense = places["input"], places["weight"], p.operands[places["input"]].is_contiguous()
    bias_index, zero_index = places.get("bias"), places.get("weight_zero")
    rows, outs, terms = prod(p.result[:-1]), p.result[-1], p.shape("input")[-1]
    width, f32 = p.shape("weight")[1], np.float32

    def nothing(*arrays: Array) -> Array:
        result = cupy.zeros(p.result, f32)
        if bias_index is not None:
            result += arrays[bias_index]
        return result

    if 0 in (rows, outs, terms):
        return nothing
    find, quantize, real = (compiled(text, name) for name, text in sources(p).items())
    multiply = [(part, planner.plan(each)) for part, each in products(p)]
    blocks, (quantize_grid, quantize_threads), (real_grid, real_threads) = launches(
        rows, terms, outs, device_info(index_of(p)).multiprocessors
    )
    count, sizes = np.int64(rows * terms), tuple(np.int64(n) for n in (rows, terms, width))
    bounds, last = tuple(np.int32(p.parameter(name)) for name in ("least", "most")), p.shape("weight")[0]
    after = tuple(np.int64(n) for n in (rows, outs, last, terms))
    sums_index, scale_index = places["weight_sums"], places["weight_scale"]

    def run(*arrays: Array) -> Array:
        x, weight = arrays[x_index], arrays[weight_index]
        if not dense:
            x = cupy.ascontiguousarray(x)
        parts, chosen = cupy.empty(2 * blocks, f32), cupy.empty(2, f32)
        find((blocks,), (BLOCK,), (x, count, parts))
        q = cupy.empty((rows, width), np.int8)
        of_rows = NOTHING if zero_index is None else cupy.empty(rows, np.int32)
        quantize(quantize_grid, quantize_threads, (x, parts, np.int32(blocks), q, of_rows, chosen, *sizes, *bounds))
        total: Array = None
        for part, product in multiply:
            found = product(q[:, part], weight[:, part].T) if len(multiply) > 1 else product(q, weight.T)
            total = found if len(multiply) == 1 else found.astype(np.int64) if total is None else total + found
        y = cupy.empty(p.result, f32)
        zeros = NOTHING if zero_index is None else arrays[zero_index]
        bias = NOTHING if bias_index is None else arrays[bias_index]
        given = (total, chosen, of_rows, arrays[sums_index], arrays[scale_index], zeros, bias, y, *after)
        real(real_grid, real_threads, given)
        return y

    return run
