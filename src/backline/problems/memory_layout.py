"""Memory layouts: strides of contiguous arrays, and matrices and batches as BLAS and LAPACK address them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .symbolic_sizes import is_symbolic

__all__ = [
    "batch_offsets", "broadcast_batch", "broadcast_strides", "contiguous_strides", "dense_strides", "image_strides",
    "is_contiguous", "matrix_layout",
]  # fmt: skip


def contiguous_strides(shape: Sequence[int], itemsize: int, order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns the strides of a contiguous array.

    Parameters
    ----------
    shape
        Elements along each axis.
    itemsize
        Bytes of an element; 1 for strides in elements.
    order
        The axes from the outermost in memory to the innermost; in order (C) without it.

    Examples
    --------
    >>> contiguous_strides((2, 3, 4), 8), contiguous_strides((2, 3, 4), 1, (0, 2, 1))
    ((96, 32, 8), (12, 1, 3))
    """
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(range(len(shape)) if order is None else order):
        strides[axis] = step
        size = shape[axis]
        step *= max(size if is_symbolic(size) else int(size), 1)
    return tuple(strides)


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns the strides in elements of an array without gaps; `order` lists its axes from the outermost to the innermost.

    Examples
    --------
    >>> dense_strides((2, 3, 4)), dense_strides((2, 3, 4), (0, 2, 1))
    ((12, 4, 1), (12, 1, 3))
    """
    return contiguous_strides(shape, 1, order)


def image_strides(shape: Sequence[int], last: bool) -> tuple[int, ...]:
    """Returns the strides in elements of images (N, C, ...) without gaps, with channels last or first.

    Examples
    --------
    >>> image_strides((2, 3, 4, 5), True), image_strides((2, 3, 4, 5), False)
    ((60, 1, 15, 3), (60, 20, 5, 1))
    """
    axes = range(len(shape))
    return dense_strides(shape, (0, *axes[2:], 1) if last else axes)


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int, order: Sequence[int] | None = None) -> bool:
    """Tells if an array has these strides when it is contiguous with its axes in `order`; axes of size 1 may have any.

    Examples
    --------
    >>> is_contiguous((2, 1, 4), (32, 5, 8), 8), is_contiguous((2, 3), (8, 16), 8), is_contiguous((2, 3), (8, 16), 8, (1, 0))
    (True, False, True)
    """
    expected = contiguous_strides(shape, itemsize, order)
    return all(n == 1 or s == e for n, s, e in zip(shape, strides, expected, strict=True))


def matrix_layout(shape: Sequence[int], strides: Sequence[int], itemsize: int, aligned: bool = True) -> tuple[str, int]:
    """Returns class and leading dimension of a matrix: ("C", ld), ("F", ld), or ("X", 0) where BLAS would need a copy.

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
    """Returns the batch shape that all of these broadcast to, or None."""
    longest = max((len(s) for s in shapes), default=0)
    result = []
    for axis in range(-longest, 0):
        size = 1
        for n in (s[axis] for s in shapes if -axis <= len(s)):
            if n == 1 or n == size:
                continue
            if size != 1:
                return None
            size = n
        result.append(size)
    return tuple(result)


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], result: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the strides with which an array is read as one of another shape, or None where it does not broadcast to that.

    Examples
    --------
    >>> broadcast_strides((3, 1), (16, 8), (2, 3, 5)), broadcast_strides((3,), (8,), (2,))
    ((0, 16, 0), None)
    """
    missing = len(result) - len(shape)
    if missing < 0 or any(n != m and n != 1 for n, m in zip(shape, result[missing:], strict=True)):
        return None
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def batch_offsets(batch: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> int | tuple[int, ...]:
    """Returns the offsets of a batch's items: one stride in bytes if it is uniform, else every offset.

    ``shape`` and ``strides`` are the operand's own batch dimensions; missing ones and those of size 1 are repeated.

    >>> batch_offsets((2, 3), (2, 3), (24, 8))
    8
    >>> batch_offsets((2, 3), (2, 1), (24, 8))
    (0, 0, 0, 24, 24, 24)
    """
    missing = len(batch) - len(shape)
    steps = [0] * missing + [0 if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    axes = [(n, step) for n, step in zip(batch, steps, strict=True) if n != 1]
    if len(axes) < 2:
        return axes[0][1] if axes and axes[0][0] > 1 else 0
    offsets = [0]
    for n, step in axes:
        offsets = [o + i * step for o in offsets for i in range(n)]
    if len(offsets) < 2:
        return 0
    step = offsets[1] - offsets[0]
    if all(b - a == step for a, b in pairwise(offsets)):
        return step
    return tuple(offsets)
