"""Operations on int8 in exact integers: the reference of every engine, and those engines that NumPy runs itself.

Integers are multiplied and added as float64 by NumPy's BLAS. That is exact whatever the order: with at most `MOST_TERMS` terms no
sum reaches 2**53. The algorithm without a BLAS takes int64, and gives the same bits.

`reference_requantize` defines what comes after the sums, for each engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems import Operand
from ...problems.conv_problem import ConvProblem
from ...problems.quantized_problem import QuantizedProblem
from ..base import Algorithm, Refusal
from . import numpy_threads, reference_conv
from .reference_requantize import FLOAT32, Numbers, numbers

__all__ = ["ENGINE", "ENGINES", "MOST_TERMS", "algorithms", "plan"]

Array = Any

ENGINE = "reference"
MOST_TERMS = 1 << 20  # of one sum: it then is below 2**36, and times a factor of 24 bits below 2**61
ENGINES = (ENGINE, *FLOAT32)
CHUNK = 32 << 20  # bytes of widened operands at a time


def algorithms(p: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The two ways: sums by NumPy's BLAS in float64, or by NumPy's own loops in int64."""
    if p.engine not in ENGINES:
        has = ", ".join(map(repr, ENGINES))
        yield Refusal("numpy", ENGINE, f"the weight is packed by engine {p.engine!r}, and NumPy has {has}")
        return
    how = f"; {FLOAT32[p.engine]}" if p.engine in FLOAT32 else ""
    yield from numpy_threads.by_blas_or_loops(
        "exact", p, threads, note="integers in float64, exact", engine=how, level="threads", basis="construction"
    )


# Plans -----------------------------------------------------------------------------------------------------------------


def plan(p: QuantizedProblem, *, loops: bool = False) -> Callable[..., Array]:
    """The operation as a function of the arrays of the call; with `loops` no BLAS takes part."""
    working = np.dtype(np.int64 if loops else np.float64)
    compute = _conv2d(p, working, loops) if p.op == "quantized.conv2d" else _linear(p, working)

    def run(*arrays: Array) -> Array:
        with np.errstate(all="ignore"):  # what is measured has random numbers for scales, 0 among them
            return compute(*arrays)

    return run


def _linear(p: QuantizedProblem, working: np.dtype[Any]) -> Callable[..., Array]:
    dtype = np.dtype(np.float32) if p.op == "quantized.linear_dynamic" else p.dtype
    outs, terms = p.shape("weight")
    step = max(CHUNK // (8 * max(terms, outs, 1)), 1)

    def run(*arrays: Array) -> Array:
        n = numbers(p, arrays)
        rows = n.input.reshape(-1, terms) if n.input.size else np.zeros((int(np.prod(p.result[:-1])), terms), p.dtype)
        result = np.empty((len(rows), outs), dtype)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            _rows(n, rows[part], result[part], working, step)
        return result.reshape(p.result)

    return run


def _rows(n: Numbers, rows: Array, result: Array, working: np.dtype[Any], step: int) -> None:
    left = rows.astype(working) - working.type(n.input_zero)
    sums = np.empty(result.shape, np.int64)
    for start in range(0, result.shape[1], step):
        part = slice(start, start + step)
        zero = n.weight_zero if n.weight_zero.size == 1 else n.weight_zero[part]
        right = n.weight[part].astype(working) - zero.astype(working)[:, None]
        sums[:, part] = left @ right.T
    if result.dtype == np.float32:
        result[...] = n.real(sums)
    else:
        result[...] = n.rescale(sums, result.dtype)


def _images(p: QuantizedProblem) -> Array:
    """A new result, its channels where the input has them."""
    if not p.last:
        return np.empty(p.result, p.dtype)
    batch, channels, height, width = p.result
    return np.empty((batch, height, width, channels), p.dtype).transpose(0, 3, 1, 2)


def _conv2d(p: QuantizedProblem, working: np.dtype[Any], loops: bool) -> Callable[..., Array]:
    """One image at a time, each by the convolution of real numbers on operands without their zero points."""
    image, weight = p.shape("input")[1:], p.shape("weight")
    around: Any = p.parameter("padding")
    inner = ConvProblem(
        "conv", (Operand.contiguous("input", working, (1, *image)), Operand.contiguous("weight", working, weight)), (), "conv",
        stride=p.parameter("stride"), padding=tuple((size, size) for size in around), dilation=p.parameter("dilation"),
        groups=p.parameter("groups"), output_padding=(0, 0), batch=1, channels=image[0], features=weight[0], image=image[1:],
        kernel=weight[2:], result=(1, *p.result[1:]),
    )  # fmt: skip
    convolve = reference_conv.function(inner, loops=loops)

    def run(*arrays: Array) -> Array:
        n = numbers(p, arrays)
        kernels = n.weight.astype(working) - n.weight_zero.astype(working).reshape(-1, 1, 1, 1)
        result = _images(p)
        for i in range(p.result[0]):
            # What is padded is a real zero, and that is the zero point.
            sums = convolve(n.input[i : i + 1].astype(working) - working.type(n.input_zero), kernels)[0]
            result[i] = n.rescale(sums.astype(np.int64).transpose(1, 2, 0), p.dtype).transpose(2, 0, 1)
        return result

    return run
