"""A constant right operand, laid out once for many products with few rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries import host_arrays
from ..problems import short
from . import matrix_products as products
from .array_arguments import check_array

__all__ = ["Packed", "prepack"]

Array = np.ndarray[Any, Any]


class Packed:
    """A matrix copied into the order in which products with few rows read it. Made by `prepack`.

    It is a copy: writing to the array it was made from changes nothing here, and its own memory is read-only, so a packed
    operand is never out of date without anybody knowing. To use new values, pack again.

    Attributes
    ----------
    shape, dtype
        Those of the matrix.
    nbytes
        Bytes the copy takes.
    """

    __slots__ = ("_array",)
    __array_ufunc__ = None  # so that `a @ packed` comes here instead of to NumPy

    def __init__(self, array: Array) -> None:
        columns = np.array(array.T, order="C", copy=True)  # each column of the matrix contiguous, 64-byte rows where they fit
        columns.flags.writeable = False
        self._array = columns.T

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def unpack(self) -> Array:
        """A new array with the matrix's values.

        >>> import numpy as np, backline
        >>> backline.prepack(np.eye(2)).unpack()
        array([[1., 0.],
               [0., 1.]])
        """
        return np.ascontiguousarray(self._array)

    def product(self, input: Array, *, out: Array | None = None) -> Array:
        """``input @ matrix``; shapes and errors as `matmul`."""
        if type(input) is not np.ndarray:
            other = host_arrays.call(self.product, (input,), {} if out is None else {"out": out})
            if other is not NotImplemented:
                return other  # type: ignore[no-any-return]  # an array of the kind that the input is of
        return products.matmul(input, self._array) if out is None else products.matmul(input, self._array, out=out)

    def __rmatmul__(self, input: Array) -> Array:
        return self.product(input)

    def __repr__(self) -> str:
        return f"<packed {short(self.dtype)} {self.shape[0]}x{self.shape[1]}>"


def prepack(other: Array) -> Packed:
    """Lay a constant right operand out once, for many products with few rows on the left.

    Parameters
    ----------
    other
        Matrix of shape (k, n), such as the weights of a linear layer.

    Returns
    -------
    Packed
        Use it as ``a @ packed`` or ``packed.product(a, out=...)`` with a of shape (..., m, k).

    Raises
    ------
    BadValue, BadType
        Not a matrix of numbers.

    Notes
    -----
    It pays from the second product on where m is about 2 to 16 and the matrix is larger than the cache of a core: each part
    of it is then read from memory once for all rows. For many rows it makes no difference. The copy takes `nbytes`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> weights = backline.prepack(np.ones((3, 4), np.float32))
    >>> np.ones((2, 3), np.float32) @ weights
    array([[3., 3., 3., 3.],
           [3., 3., 3., 3.]], dtype=float32)
    """
    if isinstance(other, Packed):
        return other
    array = check_array(host_arrays.view_of(other, "prepack: other"), "prepack: other")
    if array.ndim != 2:
        raise BadValue(f"prepack takes a matrix, not an array of shape {array.shape}")
    if array.dtype.kind not in "fcV":
        raise BadType(f"prepack: other has dtype {array.dtype}", remedy="a floating-point or complex dtype")
    return Packed(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
