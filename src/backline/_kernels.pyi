"""Numeric loops that no vendor library has: addresses for plans, and functions of arrays. The sources are in ``_kernels/``."""

from typing import Any

# Functions by name; the sources say what arguments they take.
addresses: dict[str, int]

# Vector instructions of this processor: 0 for what every processor has, 1 for AVX2 with FMA, 2 for AVX-512.
instruction_level: int

# Bytes before the factors in the workspace of a requantization.
requantize_header: int

def attention_workspace(description: bytes, /) -> int:
    """Bytes of workspace that a thread needs."""

def attention_exp(source: int, target: int, count: int, itemsize: int, level: int, /) -> None:
    """e^x of numbers <= 0 at an address, as attention computes it."""

def quantize(x: Any, to: Any, scale: float, zero: int, level: int, threads: int, /) -> bool:
    """Round float32 to uint8 or int8 into `to`, of the same order in memory; False if there is NaN, and `to` unfinished."""

def quantize_by_range(
    x: Any, to: Any, scale: Any, zero: Any, least: int, most: int, smallest: float, largest: float, level: int, threads: int, /
) -> bool:
    """Round float32 to uint8 or int8 by the range of the elements, and write scale and zero point; False if one is not finite."""

def dequantize(x: Any, to: Any, scale: float, zero: int, level: int, threads: int, /) -> None:
    """Convert uint8 or int8 to float32 into `to`, of the same order in memory."""

def blend(to: Any, source: Any, keep: float, share: float, /) -> bool:
    """Write keep times `to` and share times `source` into `to`; False where they are no vectors of one of its dtypes."""

def tiles_permitted() -> bool:
    """Tell whether this process may multiply tiles of int8 by AMX; asks the system for it."""

def bfloat16_tiles_permitted() -> bool:
    """Tell whether this process may multiply tiles of bfloat16 by AMX; asks the system for it."""

def value_range(x: Any, level: int, /) -> tuple[float, float]:
    """The least and the greatest of 0 and the elements of a float32 array; NaN if one is."""

def ufunc_loop(ufunc: Any, dtypes: bytes, /) -> tuple[int, int] | None:
    """Addresses of the loop of a ufunc for dtypes, as bytes of their numbers, and of its data; None where it has none."""

def clipped_roots(x: Any, level: int, threads: int, /) -> None:
    """Square roots of a dense array of float32 or float64, in place; what is below 0 counts as 0."""

def windowed_frames(
    x: Any, window: Any, to: Any, frames: int, hop: int, first: int, level: int, threads: int, /
) -> None:
    """Write the rows of `to`: frames of the rows of `x` times `window`, from frame number `first` on.

    Each row of `x` has `frames`, which begin `hop` elements apart.
    """

def squared_magnitudes(x: Any, to: Any, level: int, threads: int, /) -> None:
    """Write real**2 + imag**2 of a dense array of two axes into a real one."""
