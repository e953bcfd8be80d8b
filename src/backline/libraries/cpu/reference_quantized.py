"""Operations on int8 in exact integers: what every engine is held against, and the engine "reference".

Integers are multiplied and added as float64 by NumPy's BLAS. That is exact whatever the order: with at most `MOST_TERMS` terms no
sum reaches 2**53. The algorithm without a BLAS takes int64, and gives the same bits.

What comes after the sums is defined here, for all engines:

* the factor from sums to the result, ``input scale * weight scale / output scale``, is rounded to 24 bits, as a float32 has;
* ``sum * factor`` is rounded to the nearest integer, a tie to the even one, without an error before that;
* a bias is ``bias / (input scale * weight scale)`` in float64, rounded the same way, within int32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems import Operand
from ...problems.conv import ConvProblem
from ...problems.quantized import QuantizedProblem
from ..base import Algorithm, Refusal
from . import reference_conv
from .reference import blas_threads

__all__ = ["ENGINE", "MOST_TERMS", "Factor", "algorithms", "plan", "to_integers"]

Array = Any

ENGINE = "reference"
MOST_TERMS = 1 << 20  # of one sum: it then is below 2**36, and times a factor of 24 bits below 2**61
CHUNK = 32 << 20  # bytes of widened operands at a time
BITS = 24  # of a factor
NONE = np.zeros(1, np.int32)


def algorithms(p: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The two ways: sums by NumPy's BLAS in float64, or by NumPy's own loops in int64."""
    if p.engine != ENGINE:
        yield Refusal("numpy", ENGINE, f"the weight is packed by engine {p.engine!r}, and NumPy has {ENGINE!r}")
        return
    if threads == 1 and p.flops > 1e6 and blas_threads() > 1:
        yield Refusal("numpy", "exact", "NumPy's BLAS takes no thread count for one call, and uses more than one")
    else:
        pool = "numpy" if threads > 1 else ""
        yield Algorithm("numpy", "exact", threads, True, "", "threads", "construction", pool, "integers in float64, exact")
    yield Algorithm("numpy", "loops", 1, False, "", "threads", "construction", "", "without a BLAS: slow")


# From real numbers to integers and back ----------------------------------------------------------------------------------


def to_integers(x: Array, scale: Array, zero: Array, dtype: np.dtype[Any]) -> Array:
    """The integers nearest to ``x / scale`` as real numbers, ties to even, plus `zero`, within the dtype.

    `scale` is float32 and broadcasts; `x` has any floating-point dtype and no NaN.

    Examples
    --------
    >>> import numpy as np
    >>> to_integers(np.array([0.25, 0.75, 9e9]), np.float32(0.5), np.int32(3), np.dtype("uint8"))
    array([  3,   5, 255], dtype=uint8)
    """
    limits = np.iinfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        wide, step = x.astype(np.float64), np.asarray(scale, np.float64)
        near = np.clip(np.rint(wide / step), -1024, 1024)  # further away it saturates anyway
        # The quotient was rounded before it was rounded to an integer. The middles between integers times the scale are exact.
        above, below = (near + 0.5) * step, (near - 0.5) * step
        odd = near % 2 != 0
        near += (wide > above) | ((wide == above) & odd)
        near -= (wide < below) | ((wide == below) & odd)
    result: Array = np.clip(near + zero, limits.min, limits.max).astype(dtype)
    return result


class Factor:
    """What sums are multiplied by on the way to integers of another scale: 24 bits and a power of two.

    Examples
    --------
    >>> import numpy as np
    >>> halves = Factor(np.float64(1), np.float64(2))
    >>> halves.rescale(np.array([1, 3, 5, -3]), 0, np.dtype("int8"))
    array([ 0,  2,  2, -2], dtype=int8)
    """

    def __init__(self, inputs: Array, output: Array) -> None:
        fraction, exponent = np.frexp(np.asarray(inputs, np.float64) / np.asarray(output, np.float64))
        self.mantissa: Array = np.rint(np.ldexp(fraction, BITS)).astype(np.int64)
        # With a shift below 1 every sum but 0 is far outside any dtype, as with 1; with one above 62 nothing is left, as with 62.
        self.shift: Array = np.clip(BITS - exponent.astype(np.int64), 1, 62)

    def rescale(self, sums: Array, zero: Any, dtype: np.dtype[Any]) -> Array:
        """``sums * factor`` rounded, ties to even, plus `zero`, within the dtype; `sums` are integers."""
        limits = np.iinfo(dtype)
        product = sums.astype(np.int64) * self.mantissa
        whole = product >> self.shift
        rest = product - (whole << self.shift)
        half = np.int64(1) << (self.shift - 1)
        whole += (rest > half) | ((rest == half) & (whole % 2 != 0))
        result: Array = np.clip(whole + np.int64(zero), limits.min, limits.max).astype(dtype)
        return result


# Plans -----------------------------------------------------------------------------------------------------------------


class _Numbers:
    """The operands of one call by role, and what follows from the scales."""

    def __init__(self, p: QuantizedProblem, arrays: tuple[Array, ...]) -> None:
        given = {o.role: a for o, a in zip(p.operands, arrays, strict=True)}
        self.input, self.weight = given["input"], given["weight"]
        self.input_zero = int(given["input_zero"].item())
        self.weight_zero = given.get("weight_zero", NONE).astype(np.int64)
        self.unit = given["input_scale"].astype(np.float64).reshape(1) * given["weight_scale"].astype(np.float64)
        self.bias = given.get("bias")
        if "result_scale" in given:
            self.factor = Factor(self.unit, given["result_scale"].reshape(1))
            self.out_zero = int(given["result_zero"].item())

    def added(self) -> Array:
        """The bias in units of the sums."""
        if self.bias is None:
            return np.int64(0)
        with np.errstate(over="ignore", under="ignore"):
            units = np.rint(self.bias.astype(np.float64) / self.unit)
        return np.clip(units, -(2**31), 2**31 - 1).astype(np.int64)

    def real(self, sums: Array) -> Array:
        """Sums as float32, with the bias."""
        with np.errstate(over="ignore", under="ignore"):
            values = sums.astype(np.float64) * self.unit
            if self.bias is not None:
                values += self.bias
            return values.astype(np.float32)


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
        n = _Numbers(p, arrays)
        rows = n.input.reshape(-1, terms) if n.input.size else np.zeros((int(np.prod(p.result[:-1])), terms), p.dtype)
        result = np.empty((len(rows), outs), dtype)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            _rows(n, rows[part], result[part], working, step)
        return result.reshape(p.result)

    return run


def _rows(n: _Numbers, rows: Array, result: Array, working: np.dtype[Any], step: int) -> None:
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
        result[...] = n.factor.rescale(sums + n.added(), n.out_zero, result.dtype)


def _dense(role: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operand:
    strides: list[int] = []
    step = dtype.itemsize
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return Operand(role, dtype, shape, tuple(strides))


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
        "conv", (_dense("input", (1, *image), working), _dense("weight", weight, working)), (), "conv",
        stride=p.parameter("stride"), padding=tuple((size, size) for size in around), dilation=p.parameter("dilation"),
        groups=p.parameter("groups"), output_padding=(0, 0), batch=1, channels=image[0], features=weight[0], image=image[1:],
        kernel=weight[2:], result=(1, *p.result[1:]),
    )  # fmt: skip
    convolve = reference_conv.function(inner, loops=loops)

    def run(*arrays: Array) -> Array:
        n = _Numbers(p, arrays)
        kernels = n.weight.astype(working) - n.weight_zero.astype(working).reshape(-1, 1, 1, 1)
        added = n.added().reshape(-1, 1, 1)
        factor = n.factor
        factor.mantissa, factor.shift = factor.mantissa.reshape(-1, 1, 1), factor.shift.reshape(-1, 1, 1)
        result = _images(p)
        for i in range(p.result[0]):
            # What is padded is a real zero, and that is the zero point.
            sums = convolve(n.input[i : i + 1].astype(working) - working.type(n.input_zero), kernels)[0]
            result[i] = factor.rescale(sums.astype(np.int64) + added, n.out_zero, p.dtype)
        return result

    return run
