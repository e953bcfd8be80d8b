"""2:4 sparse matrices: pruning, compression, and products with them."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.host_arrays import taking_host_arrays
from ..problems import operand, short
from ..problems.op_registry import operations
from ..problems.sparse_problem import DTYPES, GROUP, SparseProblem
from .array_arguments import check_array, check_out, native
from .linalg_checks import flag, whole
from .operation import operation

__all__ = ["CompressedMatrix", "ProductWay", "compress", "matmul", "prune_2_4", "search", "to_sparse_semi_structured"]

Array = np.ndarray[Any, Any]
MODULE = "backline.sparse"


class ProductWay(NamedTuple):
    """Algorithm of cuSPARSELt for a product, as `search` finds it.

    Attributes
    ----------
    alg_id
        Number of the algorithm; 0 is the library's first choice.
    split_k
        Parts that the inner dimension is divided into; 1: none.
    split_k_mode
        How their sums are added, as the library numbers it: 1 in the same kernel, 2 in another one.
    """

    alg_id: int = 0
    split_k: int = 1
    split_k_mode: int = 2


class CompressedMatrix:
    """A 2:4 sparse matrix without its zeros. Made by `compress`; ``compressed @ b`` multiplies by it.

    Attributes
    ----------
    shape, dtype
        Those of the matrix.
    parts
        The arrays it consists of. On the CPU two: the values, of shape (m, k / 2), and where they were, two bits for each: a
        byte has those of four values, the first in its lowest bits. On a GPU one of bytes, in an order that only the
        library there knows.
    nbytes
        Memory they take.
    """

    __slots__ = ("dtype", "parts", "shape")
    __array_ufunc__ = None  # so that `array @ compressed` is an error, and no product with what NumPy makes of this

    def __init__(self, parts: tuple[Any, ...], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.parts, self.shape, self.dtype = parts, shape, dtype

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self.parts)

    def __matmul__(self, other: Any) -> Any:
        return matmul(self, other)

    def __repr__(self) -> str:
        return f"<2:4 sparse {short(self.dtype)} {self.shape[0]}x{self.shape[1]}>"


def _matrix(where: str, value: Any, name: str = "input") -> Array:
    array = check_array(value, f"{where}: {name}")
    if array.ndim != 2:
        raise BadValue(f"{where}: {name} must be a matrix, it has shape {array.shape}")
    if array.dtype.name not in DTYPES:
        raise BadType(f"{where}: {name} has dtype {array.dtype}", remedy=f"one of {', '.join(DTYPES)}")
    return array


def _groups(where: str, value: Any) -> Array:
    array = _matrix(where, value)
    if array.shape[1] % GROUP:
        raise BadValue(
            f"{where}: input of shape {array.shape} has {array.shape[1]} columns",
            cause="two of four elements side by side stay", remedy="columns in a multiple of 4: fill up with zeros",
        )  # fmt: skip
    return array


@operation("prune_2_4", module=MODULE, family="sparse")
def prune_2_4(input: Array) -> SparseProblem:
    """The matrix with two of four elements side by side in a row set to zero: those of the smallest magnitude.

    Parameters
    ----------
    input
        Matrix of float16, bfloat16, float32, float64 or int8; its columns are a multiple of 4.

    Returns
    -------
    ndarray
        A new array of the same shape and dtype.

    Raises
    ------
    BadType, BadValue
        No such matrix.

    Notes
    -----
    A NaN counts as the largest. Of equal magnitudes the first ones stay; a GPU may keep others of them.

    {examples}
    >>> backline.sparse.prune_2_4(np.array([[1.0, -3.0, 2.0, 0.5]]))
    array([[ 0., -3.,  2.,  0.]])
    """
    array = _groups("prune_2_4", input)
    return SparseProblem("sparse.prune_2_4", (operand("input", array),), (), "sparse", m=array.shape[0], k=array.shape[1])


@operation("compress", module=MODULE, family="sparse")
def _compress(input: Array, check: bool = True) -> SparseProblem:
    """The arrays of a compressed matrix."""
    array = _groups("compress", input)
    parameters = (("check", flag("compress", "check", check)),)
    return SparseProblem("sparse.compress", (operand("input", array),), parameters, "sparse", m=array.shape[0], k=array.shape[1])


@taking_host_arrays
def compress(input: Array, *, check: bool = True) -> CompressedMatrix:
    """Leave out the zeros of a 2:4 sparse matrix.

    Parameters
    ----------
    input
        A matrix as `prune_2_4` gives it.
    check
        Whether to look if two of any four elements are zero. For arrays on a GPU this waits for the device; without it what
        a wrong matrix gives there is undefined.

    Returns
    -------
    CompressedMatrix
        A copy: about 9/16 of the memory for 16-bit floats.

    Raises
    ------
    BadType, BadValue
        No such matrix, or one with three elements of four that are not zero.

    Examples
    --------
    >>> import numpy as np, backline
    >>> a = backline.sparse.compress(np.array([[0.0, -3.0, 2.0, 0.0]]))
    >>> a
    <2:4 sparse f64 1x4>
    >>> a.parts[0], a.parts[1] # at 1 and at 2: 1 + 4 * 2
    (array([[-3.,  2.]]), array([[9]], dtype=uint8))
    """
    made = _compress(input, check)
    rows, columns = input.shape
    parts = made if isinstance(made, tuple) else (made,)
    return CompressedMatrix(parts, (int(rows), int(columns)), np.dtype(input.dtype))


def to_sparse_semi_structured(original_tensor: Array) -> CompressedMatrix:
    """The compressed form of a matrix that is 2:4 sparse already; torch's name of `compress`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.sparse.to_sparse_semi_structured(np.eye(4, dtype=np.float32))
    <2:4 sparse f32 4x4>
    """
    return compress(original_tensor)


def _product(where: str, parts: Any, other: Any, rows: int, columns: int, way: Any, out: Any) -> SparseProblem:
    b = _matrix(where, other, "other")
    if b.shape[0] != columns:
        raise BadValue(
            f"{where}: a matrix of shape ({rows}, {columns}) and other of shape {b.shape} do not fit",
            cause=f"other must have {columns} rows",
        )  # fmt: skip
    operands = [*(operand("part", part) for part in parts), operand("b", b)]
    parameters = () if way is None else tuple((name, int(value)) for name, value in zip(ProductWay._fields, way, strict=True))
    made = SparseProblem(f"sparse.{where}", tuple(operands), parameters, "sparse", m=rows, k=columns, n=b.shape[1])
    if out is not None:
        operands.append(operand("out", check_out(out, f"{where}: out", (rows, b.shape[1]), made.result_dtype)))
        made = SparseProblem(f"sparse.{where}", tuple(operands), parameters, "sparse", m=rows, k=columns, n=b.shape[1])
    return made


@operation("matmul", module=MODULE, family="sparse")
def _matmul(
    parts: tuple[Array, ...], other: Array, rows: int, columns: int, way: tuple[int, int, int] | None = None,
    out: Array | None = None,
) -> SparseProblem:  # fmt: skip
    """The product of a compressed matrix's arrays."""
    return _product("matmul", parts, other, rows, columns, way, out)


@operation("search", module=MODULE, family="sparse", results=tuple[int, int, int])
def _search(parts: tuple[Array, ...], other: Array, rows: int, columns: int) -> SparseProblem:
    """The fastest way of a product."""
    return _product("search", parts, other, rows, columns, None, None)


def _arguments(where: str, input: Any, other: Any) -> tuple[tuple[Array, ...], Array, int, int]:
    if not isinstance(input, CompressedMatrix):
        raise BadType(f"{where}: input must be a CompressedMatrix, not {type(input).__name__}", remedy="compress(prune_2_4(x))")
    other = native(other)
    if getattr(other, "dtype", input.dtype) != input.dtype:
        raise BadType(
            f"{where}: other has dtype {other.dtype}, the compressed matrix has {input.dtype}",
            remedy=f"other.astype(np.{input.dtype.name})",
        )
    return input.parts, other, *input.shape


def _way(value: Any) -> tuple[int, int, int] | None:
    if value is None:
        return None
    if not isinstance(value, ProductWay):
        raise BadType(f"matmul: way must be a ProductWay, not {type(value).__name__}", remedy="what search returns")
    alg_id, split_k, mode = (whole("matmul", f"way.{n}", v) for n, v in zip(ProductWay._fields, value, strict=True))
    if alg_id < 0 or split_k < 1 or mode < 1:
        raise BadValue(f"matmul: way={value}", remedy="alg_id 0 or more, split_k 1 or more, split_k_mode 1 or more")
    return alg_id, split_k, mode


@taking_host_arrays
def matmul(input: CompressedMatrix, other: Array, *, way: ProductWay | None = None, out: Array | None = None) -> Array:
    """Product of a 2:4 sparse matrix and a dense one.

    Parameters
    ----------
    input
        A compressed matrix of m x k.
    other
        Matrix of k x n, of the same dtype.
    way
        How cuSPARSELt computes it, as `search` says. None: as the library chooses.
    out
        Array for the result.

    Returns
    -------
    ndarray
        Matrix of m x n; of int32 for int8, else of the operands' dtype. 16-bit floats are summed in float32 or wider.

    Raises
    ------
    BadType, BadValue
        No compressed matrix; another dtype; shapes that do not fit; a `way` or `out` that does not.

    Examples
    --------
    >>> import numpy as np, backline
    >>> a = backline.sparse.compress(np.array([[0.0, -3.0, 2.0, 0.0]]))
    >>> backline.sparse.matmul(a, np.ones((4, 2)))
    array([[-1., -1.]])
    """
    arguments = _arguments("matmul", input, other)
    return _matmul(*arguments, _way(way)) if out is None else _matmul(*arguments, _way(way), out=out)


@taking_host_arrays
def search(input: CompressedMatrix, other: Array) -> ProductWay:
    """Time the ways in which cuSPARSELt can compute a product, and tell the fastest; this waits for the device.

    Parameters
    ----------
    input, other
        As for `matmul`. Only how they lie and on which device matters, not what is in them.

    Returns
    -------
    ProductWay
        For `matmul`. On the CPU there is one way.

    Raises
    ------
    BadType, BadValue
        As `matmul`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> a = backline.sparse.compress(np.eye(4))
    >>> backline.sparse.search(a, np.ones((4, 2)))
    ProductWay(alg_id=0, split_k=1, split_k_mode=2)
    """
    return ProductWay(*_search(*_arguments("search", input, other)))


_matmul_problem, _search_problem = operations["sparse.matmul"].build, operations["sparse.search"].build


def _explained_matmul(input: Any, other: Any, *, way: Any = None, out: Any = None) -> Any:
    arguments = _arguments("matmul", input, other)
    return _matmul_problem(*arguments, _way(way)) if out is None else _matmul_problem(*arguments, _way(way), out=out)


def _explained_search(input: Any, other: Any) -> Any:
    return _search_problem(*_arguments("search", input, other))


# What `explain` is given is what the functions here are given.
for _name, _build in (("sparse.matmul", _explained_matmul), ("sparse.search", _explained_search)):
    operations[_name] = operations[_name].replaced(build=_build, signature=inspect.signature(_build))

for _each in (CompressedMatrix, ProductWay, compress, matmul, search, to_sparse_semi_structured):
    _each.__module__ = MODULE
