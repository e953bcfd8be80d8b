"""Memory layouts of matrices, as BLAS and LAPACK see them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["batch_offsets", "broadcast_batch", "matrix_layout"]


def matrix_layout(shape: Sequence[int], strides: Sequence[int], itemsize: int, aligned: bool = True) -> tuple[str, int]:
    """Class and leading dimension of a matrix: ("C", ld), ("F", ld), or ("X", 0) where BLAS would need a copy.

    Parameters
    ----------
    shape, strides
        Rows and columns; strides in bytes.
    itemsize
        Bytes of an element.
    aligned
        False makes it "X": vendor libraries read whole elements.

    Examples
    --------
    >>> matrix_layout((3, 4), (32, 8), 8)
    ('C', 4)
    >>> matrix_layout((3, 4), (8, 24), 8)
    ('F', 3)
    >>> matrix_layout((3, 4), (-32, 8), 8)
    ('X', 0)
    """
    rows, cols = shape
    s0, s1 = strides
    if not aligned or s0 % itemsize or s1 % itemsize:
        return "X", 0
    if s1 == itemsize or cols == 1:
        if rows == 1:
            return "C", max(cols, 1)
        if s0 // itemsize >= max(cols, 1):
            return "C", s0 // itemsize
    if s0 == itemsize or rows == 1:
        if cols == 1:
            return "F", max(rows, 1)
        if s1 // itemsize >= max(rows, 1):
            return "F", s1 // itemsize
    return "X", 0


def broadcast_batch(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The batch shape that all of these broadcast to, or None."""
    longest = max((len(s) for s in shapes), default=0)
    result = []
    for axis in range(-longest, 0):
        sizes = {s[axis] for s in shapes if -axis <= len(s)} - {1}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def batch_offsets(batch: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> int | tuple[int, ...]:
    """Returns where the items of a batch lie: one stride in bytes if it is uniform, else every offset.

    ``shape`` and ``strides`` are the operand's own batch dimensions; missing ones and those of size 1 are repeated.

    >>> batch_offsets((2, 3), (2, 3), (24, 8))
    8
    >>> batch_offsets((2, 3), (2, 1), (24, 8))
    (0, 0, 0, 24, 24, 24)
    """
    missing = len(batch) - len(shape)
    steps = [0] * missing + [0 if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    offsets = [0]
    for n, step in zip(batch, steps, strict=True):
        offsets = [o + i * step for o in offsets for i in range(n)]
    if len(offsets) < 2:
        return 0
    step = offsets[1] - offsets[0]
    if all(b - a == step for a, b in pairwise(offsets)):
        return step
    return tuple(offsets)
