"""Products over axes of two arrays as one product of matrices, where their memory can be looked at as matrices."""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from ..problems import Operand, Problem
from ..problems.matmul_problem import MatmulProblem

__all__ = ["product_along"]

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def product_along(a: Array, b: Array, left: Axes, right: Axes) -> Problem | None:
    """Returns the Problem of the sum of products along axes, the others of `a` first in the result; None where copies are needed.

    >>> a, b = np.ones((2, 3, 4)), np.ones((3, 4, 5))
    >>> product_along(a, b, (1, 2), (0, 1)).key
    'matmul f64 2x12 12x5'
    >>> product_along(a, b.transpose(1, 0, 2), (1, 2), (1, 0)).key
    'matmul f64 2x12 12x5'
    """
    if not a.flags.aligned or not b.flags.aligned or 0 in (*a.shape, *b.shape):
        return None
    free = tuple(i for i in range(a.ndim) if i not in left), tuple(i for i in range(b.ndim) if i not in right)
    rows, columns = _merged(a, free[0]), _merged(b, free[1])
    if rows is None or columns is None:
        return None
    places = range(len(left))
    orders = permutations(places) if len(left) <= 3 else (tuple(places),)
    for order in orders:
        inner = _merged(a, tuple(left[i] for i in order)), _merged(b, tuple(right[i] for i in order))
        if inner[0] is not None and inner[1] is not None:
            break
    else:
        return None
    (m, down), (n, across), k = rows, columns, prod(a.shape[i] for i in left)
    operands = (
        Operand("a", a.dtype, (m, k), (down, inner[0][1])), Operand("b", b.dtype, (k, n), (inner[1][1], across)),
    )  # fmt: skip
    result = (*(a.shape[i] for i in free[0]), *(b.shape[i] for i in free[1]))
    return MatmulProblem("matmul", operands, (), "matmul", m=m, n=n, k=k, batch=(), result=result)


def _merged(array: Array, axes: Axes) -> tuple[int, int] | None:
    """Size and stride of the one axis that axes are, the outermost first; None where they are not one."""
    size, stride = 1, array.dtype.itemsize
    for axis in reversed(axes):
        n, step = array.shape[axis], array.strides[axis]
        if n == 1:
            continue
        if size > 1 and step != size * stride:
            return None
        stride = step if size == 1 else stride
        size *= n
    return size, stride
