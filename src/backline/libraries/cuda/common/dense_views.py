"""Arrays in the order in which they lie in memory: images with channels last are a dense array with its axes in another order.

CuPy walks over the elements of an array in the order of its axes. Of a dense array whose axes lie in another order it computes
each place by divisions, and neighbouring threads touch memory that is far apart; of the same memory, seen as it lies, neither is
so.
"""

from __future__ import annotations

from typing import Any

from ....problems import Operand
from ....problems.memory_layout import is_contiguous

__all__ = ["is_dense", "memory_order", "new", "order_of", "seen"]

Array = Any
Order = tuple[int, ...]


def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> Order:
    """Returns the axes from the outermost in memory to the innermost; those of a repeated array in their own order.

    Examples
    --------
    >>> memory_order((2, 3, 4, 5), (240, 4, 60, 12)), memory_order((2, 3), (0, 4)), memory_order((2, 1, 3), (12, 4, 4))
    ((0, 2, 3, 1), (0, 1), (0, 1, 2))
    """
    real = [axis for axis, n in enumerate(shape) if n != 1]
    if any(strides[axis] == 0 for axis in real):
        return tuple(range(len(shape)))
    moved = iter(sorted(real, key=lambda axis: -abs(strides[axis])))
    return tuple(next(moved) if n != 1 else axis for axis, n in enumerate(shape))


def is_dense(o: Operand, order: Order) -> bool:
    """Tells whether an operand lies in one piece with its axes in an order."""
    return o.aligned and is_contiguous(o.shape, o.strides, o.dtype.itemsize, order)


def new(cupy: Any, shape: tuple[int, ...], dtype: Any, order: Order) -> Array:
    """New memory for an array of a shape, with its axes in an order in memory."""
    if order == tuple(range(len(order))):
        return cupy.empty(shape, dtype)
    made = cupy.empty(tuple(shape[axis] for axis in order), dtype)
    return made.transpose(tuple(order.index(axis) for axis in range(len(order))))


def order_of(array: Array) -> Order | None:
    """Returns the axes' order in memory of an array that lies in one piece, but not in the order of its axes; None for others."""
    if array.ndim < 2 or array.flags.c_contiguous:
        return None
    order = memory_order(array.shape, array.strides)
    return order if is_contiguous(array.shape, array.strides, array.itemsize, order) else None


def seen(array: Array, order: Order) -> Array:
    """An array that broadcasts against one of as many axes as `order` has, with its axes in that order."""
    missing = len(order) - array.ndim
    if not array.ndim:
        return array
    return (array[(None,) * missing] if missing else array).transpose(order)
