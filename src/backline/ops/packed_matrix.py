"""A constant right operand, laid out once for many products with few rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries import host_arrays
from ..libraries.array_kinds import kind_of
from ..problems import short
from . import matrix_products as products
from .array_arguments import check_array, dtype_of

__all__ = ["Packed", "prepack"]

Array = np.ndarray[Any, Any]


class Packed:
    """A matrix copied into the order in which products with few rows read it. Made by `prepack`.

    It is a copy: writing to the array it was made from changes nothing here, and nothing writes to its own memory, so a packed
    operand is never out of date without anybody knowing. To use new values, pack again. A matrix of CuPy is packed on its device,
    for products with arrays of CuPy.

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
        self._array: Array = _columns(array).T  # each column of the matrix contiguous

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self._array.dtype
        return dtype

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
        return _copied(self._array)

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


def _copied(array: Array) -> Array:
    """Returns a copy in C order, where the array is."""
    if isinstance(array, np.ndarray):
        return np.array(array, order="C", copy=True)
    from ..libraries.cuda.common.lasting_arrays import owned

    copy: Array = owned(array, "prepack")
    return copy


def _columns(array: Array) -> Array:
    """Returns the columns of a matrix as the rows of a new one: in NumPy's memory one that cannot be written to."""
    columns = _copied(array.T)
    if isinstance(columns, np.ndarray):
        columns.flags.writeable = False
    return columns


def prepack(other: Array) -> Packed:
    """Lay a constant right operand out once, for many products with few rows on the left.

    Parameters
    ----------
    other
        Matrix of shape (k, n), such as the weights of a linear layer; also one of CuPy.

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
    packed = host_arrays.call(prepack, (other,), {})  # those of PyTorch, JAX and Numba, as their views
    if packed is not NotImplemented:
        return packed  # type: ignore[no-any-return]  # what this function returns of a view
    kind = kind_of(other)
    array: Any = other if kind is not None and kind.kind == "cuda" else check_array(other, "prepack: other")
    if array.ndim != 2:
        raise BadValue(f"prepack takes a matrix, not an array of shape {array.shape}")
    if dtype_of(array).kind not in "fcV":
        raise BadType(f"prepack: other has dtype {array.dtype}", remedy="a floating-point or complex dtype")
    return Packed(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))
