"""Random operands: sizes near the edges of kernels, values of many magnitudes, every kind of stride, memory beside guard pages."""

from __future__ import annotations

import ctypes
import math
import mmap
import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 19, 23, 31, 32, 33, 37, 48, 63, 64, 65)
PAGE = mmap.PAGESIZE
POOL = 1 << 16

# Random numbers that every case takes a stretch of: drawing them anew would take longer than most calls.
_rng = np.random.default_rng(20_240_229)
_NORMAL = _rng.standard_normal(POOL)
_WHOLE = _rng.integers(-4, 5, POOL).astype(np.float64)
_EXPONENT = _rng.uniform(-1, 1, POOL)


def dtype_of(name: str) -> np.dtype[Any]:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


@dataclass(frozen=True, slots=True)
class Format:
    """The numbers a dtype has, and those its sums are formed in."""

    eps: float
    accumulate: float
    tiny: float  # smallest normal number of the arithmetic
    largest: float
    wide: Any

    @staticmethod
    def of(dtype: np.dtype[Any]) -> Format:
        return FORMATS[dtype.name]


_F32, _F64 = np.finfo(np.float32), np.finfo(np.float64)
_LARGEST16 = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
FORMATS = {
    "float16": Format(2.0**-10, 2.0**-23, 2.0**-24, 65504.0, np.float64),
    # The products of 16-bit floats that processors have flush denormals to zero.
    "bfloat16": Format(2.0**-7, 2.0**-23, 2.0**-126, _LARGEST16["bfloat16"], np.float64),
    "float32": Format(2.0**-23, 2.0**-23, 2.0**-126, float(_F32.max), np.float64),
    "complex64": Format(2.0**-23, 2.0**-23, 2.0**-126, float(_F32.max), np.complex128),
    "float64": Format(2.0**-52, 2.0**-52, 2.0**-1022, float(_F64.max), np.longdouble),
    "complex128": Format(2.0**-52, 2.0**-52, 2.0**-1022, float(_F64.max), np.clongdouble),
}


def wide(x: Array) -> Array:
    """In arithmetic with at least 11 more bits."""
    return x.astype(np.int64) if x.dtype.kind in "biu" else x.astype(FORMATS[x.dtype.name].wide)


class Guarded:
    """Stretches of memory between two pages that nobody may touch."""

    def __init__(self, count: int = 6, size: int = 1 << 16) -> None:
        self.size = size
        libc = ctypes.CDLL(None, use_errno=True)
        self._maps = []
        for _ in range(count):
            area = mmap.mmap(-1, size + 2 * PAGE)
            start = ctypes.addressof(ctypes.c_char.from_buffer(area))
            for page in (start, start + PAGE + size):
                if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
                    raise OSError(ctypes.get_errno(), "mprotect")
            self._maps.append(area)
        self.used = 0

    def reset(self) -> None:
        self.used = 0

    def take(self, count: int, at_end: bool) -> Array | None:
        """So many bytes, flush against the page behind them or before them; None where there is no room."""
        if self.used == len(self._maps) or count > self.size:
            return None
        offset = PAGE + (self.size - count if at_end else 0)
        area = np.frombuffer(self._maps[self.used], np.uint8, count, offset)
        self.used += 1
        return area


@dataclass(frozen=True, slots=True)
class Plain:
    """The part of a case that is left out while it is shrunk."""

    size: int = 0  # sizes above this are cut; 0: none is
    layout: bool = False  # every operand is contiguous
    values: bool = False  # every value is normal
    out: bool = False  # no out=

    def text(self) -> str:
        return f"{self.size}{'L' * self.layout}{'V' * self.values}{'O' * self.out}"

    @staticmethod
    def parse(text: str) -> Plain:
        digits = text.rstrip("LVO")
        return Plain(int(digits or 0), "L" in text, "V" in text, "O" in text)


VALUES = ("normal",) * 10 + ("whole",) * 3 + ("graded",) * 2 + ("zeros", "tiny", "huge", "special", "special", "equal")
TAME = ("normal", "normal", "normal", "whole", "zeros")
LAYOUTS = ("C",) * 8 + ("F", "F", "F", "steps", "steps", "negative", "negative", "spread", "misaligned", "odd", "wide", "permuted", "permuted")


class Draw:
    """Everything random about one case: the same seed and index give the same case."""

    guarded: Guarded | None = None

    def __init__(self, seed: int, index: int, plain: Plain | None = None) -> None:
        self.random = random.Random((seed << 40) ^ index)
        self.plain = plain or Plain()
        self.values = self.random.choice(VALUES)
        self.in_guard = self.random.random() < 0.5
        self.at_end = self.random.random() < 0.75
        self.layouts = self.random.random() < 0.6  # else every operand is contiguous
        self.placed: list[tuple[Array, bytes, Array]] = []  # memory of operands, what was in it, the operand
        self.target: tuple[Array, Array] | None = None  # memory of `out`, and out
        if Draw.guarded is None:
            Draw.guarded = Guarded()
        Draw.guarded.reset()

    # Numbers

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def choice(self, options: Any) -> Any:
        return options[int(self.random.random() * len(options))]

    def whole(self, low: int, high: int) -> int:
        """From `low` to `high`, which is included."""
        return low + int(self.random.random() * (high - low + 1))

    def size(self, most: int = 65, zero: float = 0.02, large: float = 0.0) -> int:
        """A size: small ones mostly, sometimes one up to `most`, with the chance `large` one up to 3000."""
        r = self.random.random()
        if r < zero:
            n = 0
        elif r < zero + large:
            n = self.whole(100, 3000)
        elif r < 0.55:
            n = self.whole(1, min(9, most))
        else:
            n = self.choice(SIZES)
            n = n if n <= most else self.whole(1, most)
        return min(n, self.plain.size) if self.plain.size else n

    def shape(self, rank: int, most: int = 65, items: int = 4000, zero: float = 0.01) -> tuple[int, ...]:
        """Sizes whose product is bounded, so that a reference in wide arithmetic stays cheap."""
        sizes: list[int] = []
        for _ in range(rank):
            n = self.size(most, zero)
            sizes.append(n if math.prod(sizes) * n <= items else max(1, items // max(math.prod(sizes), 1)) if items > math.prod(sizes) else 1)
        return tuple(sizes)

    # Arrays

    def array(self, shape: tuple[int, ...], dtype: str, values: Any = None, layout: str = "") -> Array:
        """An operand: `values` names a kind of values or is an array of them."""
        data = values if isinstance(values, np.ndarray) else self.fill(shape, dtype, values)
        return self.lay_out(data, layout)

    def fill(self, shape: tuple[int, ...], dtype: str, kind: str | None = None) -> Array:
        """Values alone, contiguous."""
        t, count = dtype_of(dtype), math.prod(shape)
        chosen = kind or (self.values if self.chance(0.8) else "normal")
        if self.plain.values:
            chosen = "normal"
        if t.kind in "biu":
            return self._normal(count, _WHOLE).reshape(shape).astype(t) if t.kind != "b" else (self._normal(count) > 0).reshape(shape)
        x = self._real(count, dtype, chosen)
        if t.kind == "c":
            x = x + 1j * self._real(count, dtype, chosen)
        with np.errstate(all="ignore"):
            return x.reshape(shape).astype(t)

    def _normal(self, count: int, pool: Array = _NORMAL) -> Array:
        start = self.whole(0, POOL - 1)
        if start + count <= POOL:
            return pool[start : start + count]
        return np.resize(np.concatenate([pool[start:], pool[:start]]), count)

    def _real(self, count: int, dtype: str, kind: str) -> Array:
        if kind == "whole":
            return self._normal(count, _WHOLE)
        x = self._normal(count)
        if kind in ("normal", "") or not count:
            return x
        f = FORMATS[dtype]
        if kind == "graded":
            return x * 2.0 ** np.round(self._normal(count, _EXPONENT) * (5 if dtype == "float16" else 20))
        if kind == "zeros":
            return np.where(self._normal(count) > 0.3, x, 0.0)
        if kind == "equal":
            return np.full(count, x[0])
        if kind == "tiny":
            return x * f.tiny * (2.0**8 if dtype == "float16" else 2.0**-4)
        if kind == "huge":
            return x * (f.largest * 2.0**-6)
        x = x.copy()
        for _ in range(self.whole(1, 2)):
            x[self.whole(0, count - 1)] = self.choice((np.nan, np.inf, -np.inf))
        return x

    def lay_out(self, x: Array, layout: str = "") -> Array:
        """A copy with strides of some kind, beside a guard page where there is room."""
        if not layout:
            layout = self.choice(LAYOUTS) if self.layouts else "C"
        if self.plain.layout:
            layout = "C"
        n, item = x.ndim, x.itemsize
        shape = x.shape
        if not n or not x.size:
            return x.copy()
        order, steps, pad, shift = list(range(n)), [1] * n, [0] * n, 0
        spread = -1
        if layout == "F":
            order = order[::-1]
        elif layout == "permuted":
            self.random.shuffle(order)
        elif layout == "steps":
            axis = self.whole(0, n - 1)
            steps[axis] = 2
        elif layout == "negative":
            for axis in range(n):
                if self.chance(0.5):
                    steps[axis] = -1
            if self.chance(0.3):
                self.random.shuffle(order)
        elif layout == "wide":
            pad[-1] = self.whole(1, 40)
        elif layout == "misaligned":
            shift = self.whole(1, item - 1) if item > 1 else 0
        elif layout == "spread":
            spread = self.whole(0, n - 1)
        # From the innermost axis outwards: strides in bytes.
        strides, size = [0] * n, item
        for axis in reversed(order):
            if axis == spread:
                continue
            strides[axis] = size * abs(steps[axis])
            size *= (shape[axis] + pad[axis]) * abs(steps[axis])
        last = sum(s * (m - 1) for s, m in zip(strides, shape, strict=True)) + item + shift
        base = None
        if self.in_guard and Draw.guarded is not None:
            base = Draw.guarded.take(last, self.at_end)
        if base is None:
            base = np.empty(last, np.uint8)
        start = shift
        for axis in range(n):
            if steps[axis] < 0:
                start += strides[axis] * (shape[axis] - 1)
                strides[axis] = -strides[axis]
            elif shape[axis] == 1 and layout == "odd":
                strides[axis] = self.choice((0, -item, item * 1000, item))
        if layout != "C" or shift:
            base[...] = 255  # what is read between the elements is NaN
        y = np.ndarray(shape, x.dtype, base, start, tuple(strides))
        if spread >= 0:
            first = x.take([0], spread)
            np.ndarray(first.shape, x.dtype, base, start, tuple(strides))[...] = first
        else:
            y[...] = x
        self.placed.append((base, base.tobytes(), y))
        return y

    def out(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for a result, filled with NaN or, for integers, a pattern."""
        x = np.full(shape, 85 if dtype.kind in "iub" else np.nan, dtype)
        layout = self.choice(("C", "C", "F", "steps", "negative", "wide", "permuted", "misaligned")) if self.layouts else "C"
        y = self.lay_out(x, layout)
        if y.ndim and y.size:
            base, _, _ = self.placed.pop()
            self.target = base, y
        return y

    def touched(self) -> str:
        """Names the memory that a call changed and must not: an operand's, or bytes between the elements of `out`."""
        for base, before, y in self.placed:
            if base.tobytes() != before:
                return f"an operand of shape {y.shape} was written to"
        if self.target is not None:
            base, y = self.target
            mine = np.zeros(len(base), np.uint8)
            start = y.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            np.ndarray(y.shape, f"V{y.itemsize}", mine, start, y.strides)[...] = np.void(b"\1" * y.itemsize)
            if (base[mine == 0] != 255).any() and len(base) != y.nbytes:
                return f"bytes between the elements of out, of shape {y.shape}, were written to"
        return ""

