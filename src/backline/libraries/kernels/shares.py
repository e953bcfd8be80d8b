"""Dense arrays in shares: what the threads of a loop take in turn, and the conversions of 16-bit floats around it.

Loops compute in float32 and float64. 16-bit floats are widened share by share into workspace that stays in cache, and rounded
once on the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ...native.plan_builder import FLOAT16, Builder, Pointer
from ...problems import Operand
from ...problems.dtypes import HALVES, compute_dtype
from ...problems.memory_layout import contiguous_strides

__all__ = [
    "DTYPES", "Share", "dense", "even_share", "float_size", "in_shares", "memory_order", "placed", "vector", "vector_is_dense",
]  # fmt: skip

DTYPES = ("float32", "float64", *HALVES)
ITEMS = (1, 2, 4, 8, 16)  # into which an array is divided at least, whatever the number of threads,
FEW = 1 << 13  # and elements of an item: the least number of items is taken that have fewer


def memory_order(o: Operand) -> tuple[int, ...]:
    """Returns the axes of an operand from the outermost in memory to the innermost, those of one element first."""
    return tuple(sorted(range(len(o.shape)), key=lambda i: (o.shape[i] != 1, -abs(o.strides[i]))))


def dense(o: Operand, order: tuple[int, ...] | None = None) -> bool:
    """Tells whether an operand has no gaps between its elements, its axes in this order in memory or in their own."""
    return o.aligned and o.is_contiguous(memory_order(o) if order is None else order)


def float_size(dtype: np.dtype[Any]) -> int:
    """Returns the bytes of a float as loops are told them: FLOAT16 stands for float16, since bfloat16 has as many."""
    return FLOAT16 if dtype == np.float16 else dtype.itemsize


class Share:
    """Some of the units of dense arrays, in one item of a group: their places, and copies of 16-bit floats.

    Parameters
    ----------
    b
        Writes the steps.
    units, count, start
        Units of an item, items, and the first unit of the first item.
    """

    def __init__(self, b: Builder, units: int, count: int, start: int) -> None:
        self.b, self.units, self.count, self.start = b, units, count, start

    def place(self, array: Pointer, nbytes: int) -> Pointer:
        """Returns the place of the share in an array whose units have so many bytes."""
        return array[0], array[1] + self.start * nbytes, self.units * nbytes

    def firsts(self) -> list[int]:
        """Returns the first unit of every item."""
        return [self.start + i * self.units for i in range(self.count)]

    def load(self, array: Pointer, dtype: np.dtype[Any], length: int, work: Pointer) -> Pointer:
        """Returns where a loop finds the share of an array, whose units have `length` elements: itself, or widened in `work`."""
        place = self.place(array, length * dtype.itemsize)
        if dtype.name not in HALVES:
            return place
        self.b.copy((1, self.units * length), place, (0, 2), work, (0, 4), (dtype.name, "float32"))
        return work

    def store(self, work: Pointer, array: Pointer, dtype: np.dtype[Any], length: int) -> None:
        """Rounds what a loop left in `work` into the share of an array of 16-bit floats; others are written by the loop."""
        if dtype.name in HALVES:
            place = self.place(array, 2 * length)
            self.b.copy((1, self.units * length), work, (0, 4), place, (0, 2), ("float32", dtype.name))


def even_share(units: int, length: int, most: int, multiple: int = 1) -> int:
    """Returns how many units of an array an item takes: `most` elements at most, unless one unit is longer.

    What is left over is an item that one thread computes when the others are done: so it is few units.

    Parameters
    ----------
    units, length
        Units of the array, and elements of each.
    most
        Elements of an item.
    multiple
        Of which the number of units is a multiple, unless there are fewer.

    Examples
    --------
    >>> even_share(100000, 1, 1 << 14, 64), even_share(300, 700, 1 << 13), even_share(3, 10, 1 << 13)
    (6208, 10, 3)
    """
    fewest = next((number for number in ITEMS if units * length < number * FEW), ITEMS[-1])
    items = max(-(-units // max(most // length, 1)), min(fewest, units), 1)
    if items == 1:
        return units
    return max(units // items // multiple * multiple, min(multiple, units))


def in_shares(b: Builder, units: int, share: int, threads: int, write: Callable[[Share], None]) -> int:
    """Writes the steps for every whole share of some units, then for the rest; returns the number of items of the last group."""
    count = 1
    for size, number, start in ((share, units // share, 0), (units % share, int(units % share > 0), units - units % share)):
        if number:
            b.each(count, threads if count > 1 else 1)
            write(Share(b, size, number, start))
            count = number
    return count


def vector_is_dense(o: Operand | None) -> bool:
    """Tells whether `vector` can bring a parameter into order."""
    return o is None or dense(o, tuple(range(len(o.shape)))) or len(o.shape) == 1


def vector(b: Builder, o: Operand | None, role: str, dtype: np.dtype[Any], instead: Pointer) -> Pointer:
    """Returns a parameter without gaps, in the dtype that loops for `dtype` compute in; `instead` where there is none."""
    if o is None:
        return instead
    given, wide = b.argument(role), compute_dtype(dtype)
    size = prod(o.shape)
    if o.dtype == wide and dense(o, tuple(range(len(o.shape)))):
        return given
    step = o.strides[-1] if len(o.shape) == 1 else o.dtype.itemsize
    work = b.work(size * wide.itemsize, shared=True)
    element = wide.itemsize if o.dtype == wide else (o.dtype.name, wide.name)
    b.copy((1, size), given, (0, step), work, (0, wide.itemsize), element)
    return work


def placed(b: Builder, p: Any, like: Operand) -> Pointer:
    """Returns a new result of a Problem without gaps, its axes in the order in memory of an operand of the same shape."""
    return b.result(p.dtype, p.result, contiguous_strides(p.result, p.dtype.itemsize, memory_order(like)))
