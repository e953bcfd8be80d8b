"""The Problem of discrete Fourier transforms, and of the cosine and sine transforms made like them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, prod, sqrt
from typing import Any

import numpy as np

from . import Problem, short
from .length_factors import factors_of, largest_factor
from .symbolic_sizes import rough
from .symbolic_values import SymbolicFactor

__all__ = ["FftProblem"]

SHORT, SHORT_BESIDE = 128, 256  # points up to which a convolution in float32 loses few digits, and beside another axis


@dataclass(frozen=True)
class FftProblem(Problem):
    """Transforms of an array along some of its axes; all 22 public functions are one of four operations.

    Operations: ``fft.c2c`` (the input may be real: its imaginary parts are then 0), ``fft.r2c`` (the last of `axes` is kept to
    its first half, ``n // 2 + 1``), ``fft.c2r`` (the input has that half, the rest is its mirror image; it may be real as well),
    and ``fft.r2r`` (parameter ``kind``: "dct1" to "dct4", "dst1" to "dst4", the same for all axes, as SciPy and FFTW define them;
    parameter ``ortho``: whether the matrix is orthogonal but for `scale`; of a complex input both parts are transformed).
    Roles: ``input`` and, if given, ``out``, which never overlaps it. Parameter ``overwrite``: the input may be destroyed.

    The input may have any dtype that holds numbers: halves are computed in float32, integers in float64, and longdouble as it is.
    `axes` may be empty for ``fft.c2c``; the input may be empty where the result is not (it is filled up with
    zeros then).

    Parameters
    ----------
    axes
        Axes transformed, none negative, none twice, in the order of the call; the last is that which a real transform halves.
    lengths
        Points of the transform along each of `axes`, as the mathematics has it: n even where an array holds n // 2 + 1. An input
        that has more along an axis is cut, one that has fewer is filled with zeros behind.
    sign
        Of the exponent: -1 for the forward transform, +1 for the inverse; both occur with every operation (ihfft is a
        real-to-complex transform of sign +1, hfft a complex-to-real one of sign -1).
    scale
        What every element of the result is multiplied by.
    result
        Shape of the result.
    """

    axes: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    sign: int = -1
    scale: float = 1.0
    result: tuple[int, ...] = ()

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return next(o.dtype for o in self.operands if o.role == "input")

    @cached_property
    def plain(self) -> bool:
        """True if the input is float32, float64, complex64 or complex128: what libraries written in C take."""
        return self.dtype.name in ("float32", "float64", "complex64", "complex128")

    @cached_property
    def single(self) -> bool:
        """True if it is computed in float32."""
        return self.dtype.name in ("float32", "complex64", "float16", "bfloat16")

    @cached_property
    def real(self) -> np.dtype[Any]:
        """The real dtype it is computed in."""
        if self.dtype.char in "gG":
            return np.dtype(np.longdouble)
        return np.dtype(np.float32 if self.single else np.float64)

    @cached_property
    def complex(self) -> np.dtype[Any]:
        """The complex dtype it is computed in."""
        return np.dtype(self.real.char.upper())

    @cached_property
    def result_dtype(self) -> np.dtype[Any]:
        real = self.op == "fft.c2r" or (self.op == "fft.r2r" and self.dtype.kind != "c")
        return self.real if real else self.complex

    @cached_property
    def taken(self) -> tuple[int, ...]:
        """Elements of the input that a transform takes along each of `axes`; what is missing is 0."""
        if self.op != "fft.c2r":
            return self.lengths
        return (*self.lengths[:-1], self.lengths[-1] // 2 + 1)

    @cached_property
    def points(self) -> int:
        """Of one transform."""
        return prod(self.lengths)

    @cached_property
    def period(self) -> int:
        """Of the sequence that is transformed: `points`, and about twice as many along each axis for cosines and sines."""
        if self.op != "fft.r2r":
            return self.points
        more = {"dct1": -1, "dst1": 1}.get(str(self.parameter("kind")), 0)
        return prod(2 * (n + more) for n in self.lengths)

    @cached_property
    def normalisation(self) -> int | None:
        """0 where `scale` is 1, 1 where it is 1 / sqrt(`period`), 2 where it is 1 / `period`; None for any other."""
        if self.scale == 1.0:
            return 0
        if isinstance(self.scale, SymbolicFactor):  # of the period, as `ops` makes it
            return 1 if self.scale.root else 2
        scales = (1.0, 1.0 / sqrt(self.period), 1.0 / self.period) if self.period else (1.0,)
        return scales.index(self.scale) if self.scale in scales else None

    @cached_property
    def items(self) -> int:
        """Number of transforms."""
        o = self.get("input")
        assert o is not None
        return prod(n for axis, n in enumerate(o.shape) if axis not in self.axes)

    @cached_property
    def summands(self) -> int:
        return ceil(log2(max(self.points, 2)))

    def shape_class(self) -> str:
        """Returns "1d", or "2d" for more axes, with "batch" behind it where there are several transforms."""
        return f"{min(len(self.axes), 2)}d{' batch' if rough(self.items) > 1 else ''}"

    def factors(self) -> tuple[float, ...]:
        return factors_of(tuple(map(rough, self.lengths)))

    @cached_property
    def flops(self) -> float:
        """As is usual: 5 n log2 n, half of it for real transforms."""
        points: int = rough(self.points)
        items: int = rough(self.items)
        whole = 5.0 * items * points * log2(max(points, 2))
        return whole if self.op == "fft.c2c" else whole / 2

    def needs_double(self, largest: int) -> bool:
        """Tells whether a float32 transform has to be computed in float64 to have at most ten times NumPy's error.

        Lengths with a prime factor above `largest` are transformed by way of a convolution, which in float32 has 8 to 14 times
        the error of NumPy, which computes in float64; the shorter, the less. Of several axes only one may be such.
        """
        if not self.single or self.op == "fft.r2r":
            return False
        rough = [n for n in self.lengths if largest_factor(n) > largest]
        beside = any(n >= 4 for n in self.lengths if n not in rough)
        return len(rough) > 1 or (len(rough) == 1 and rough[0] > (SHORT_BESIDE if beside else SHORT))

    @cached_property
    def empty(self) -> bool:
        return 0 in self.result

    @cached_property
    def key(self) -> str:
        """As the call of a public function that makes such a Problem; the scale costs no time, and is left out."""
        o, out = self.get("input"), self.get("out")
        assert o is not None
        one = len(self.axes) == 1
        if self.op == "fft.r2r":
            kind = str(self.parameter("kind"))
            name, rest = kind[:3], [f"type={kind[3]}"]
        else:
            name, rest = FUNCTIONS[self.op, self.sign], []
        whole = tuple(o.shape[axis] for axis in self.axes)
        if self.op == "fft.c2r":
            whole = (*whole[:-1], 2 * (whole[-1] - 1))
        if self.lengths != whole:
            rest.append(f"n={self.lengths[0]}" if one else f"s={_text(self.lengths)}")
        if self.axes != ((len(o.shape) - 1,) if one else tuple(range(len(o.shape)))):
            rest.append(f"dim={self.axes[0] if one else _text(self.axes)}")
        if self.parameter("ortho"):
            rest.append("orthogonalize=True")
        if self.parameter("overwrite"):
            rest.append("overwrite_input=True")
        if out is not None:
            rest.append("out" if out.layout() == "C" else f"out:{out.layout()}")
        if self.device != "cpu":
            rest.append(f"on {self.device}")
        return " ".join([f"fft.{name}{'' if one else 'n'}", short(self.dtype), o.text(), *rest])


# Operation and sign -> the function of one dimension; with an n behind it, that of several.
FUNCTIONS = {
    ("fft.c2c", -1): "fft", ("fft.c2c", 1): "ifft", ("fft.r2c", -1): "rfft", ("fft.r2c", 1): "ihfft",
    ("fft.c2r", -1): "hfft", ("fft.c2r", 1): "irfft",
}  # fmt: skip


def _text(numbers: tuple[int, ...]) -> str:
    """A tuple without blanks: a key is split at those."""
    return f"({','.join(map(str, numbers))}{',' if len(numbers) == 1 else ''})"
