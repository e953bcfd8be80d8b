"""Products as numpy has them, run by Backline: `matmul`, `dot`, `einsum` and their like."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops import matrix_chains, matrix_products, small_products
from ..ops.einsum import einsum_operation
from .arguments import alike, also_named, arrays, scalar
from .doc_texts import documented

__all__ = ["dot", "einsum", "inner", "matmul", "matvec", "tensordot", "vdot", "vecmat"]


def _fits(out: Any, operands: Any, shape: tuple[int, ...]) -> bool:
    """Tells if a library may write to `out` as it stands; elsewhere NumPy's own function casts, copies, or says what is wrong."""
    return (
        type(out) is np.ndarray and out.dtype == operands[0].dtype and out.shape == shape and out.flags.writeable
        and not any(np.may_share_memory(out, x) for x in operands)
    )  # fmt: skip


@documented
def matmul(x1: Any, x2: Any, /, out: Any = None, **keywords: Any) -> Any:
    """Matrix product, as numpy.matmul.

    Parameters
    ----------
    x1, x2 : array_like
        Shapes (..., m, k) and (..., k, n), or vectors. Floats of mixed dtypes are promoted as NumPy does.
    {out}
    **keywords
        Further parameters of numpy.matmul (`axes`, `casting`, `dtype`, ...). With one of them NumPy computes.

    Returns
    -------
    ndarray or scalar
        As numpy.matmul returns it.

    {shapes}

    Notes
    -----
    The ``@`` of arrays is NumPy's own operator, which no module can replace.

    {example}
    >>> np.matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1., 2.],
           [3., 4.]])
    """
    if out is None and not keywords and alike(x1, x2) and x1.ndim > 1 < x2.ndim:
        return matrix_products.matmul(x1, x2)
    if isinstance(out, tuple) and len(out) == 1:
        out = out[0]
    given = None if keywords else arrays(x1, x2)
    if given is None or not min(x.ndim for x in given):
        return np.matmul(x1, x2, out, **keywords)
    if out is None:
        return scalar(matrix_products.matmul(*given))
    a, b = given
    if a.ndim > 1 < b.ndim and a.shape[:-2] == b.shape[:-2] and _fits(out, given, (*a.shape[:-1], b.shape[-1])):
        return matrix_products.matmul(a, b, out=out)
    return np.matmul(x1, x2, out=out)


@documented
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Dot product of vectors, product of matrices, or the sum over the last axis of `a` and the last but one of `b`: numpy.dot.

    Parameters
    ----------
    a, b : array_like
        Operands; of complex vectors none is conjugated.
    {out}

    Returns
    -------
    ndarray or scalar
        As numpy.dot returns it.

    {shapes}

    {example}
    >>> np.dot(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    np.float64(11.0)
    """
    given = arrays(a, b)
    if out is not None or given is None or not min(x.ndim for x in given):
        return np.dot(a, b, out)
    x, y = given
    if y.ndim <= 2:
        return scalar(matrix_products.matmul(x, y))
    if x.shape[-1] != y.shape[-2]:
        return np.dot(a, b)
    return scalar(matrix_chains.tensordot(x, y, axes=((x.ndim - 1,), (y.ndim - 2,))))


@documented
def vdot(a: Any, b: Any, /) -> Any:
    """Dot product of all elements, those of `a` conjugated: numpy.vdot.

    Parameters
    ----------
    a, b : array_like
        Arrays of as many elements; they are flattened.

    Returns
    -------
    scalar
        The sum.

    Raises
    ------
    ValueError
        Unequal numbers of elements.

    {example}
    >>> np.vdot(np.array([1j]), np.array([1j]))
    np.complex128(1+0j)
    """
    given = arrays(a, b)
    if given is None or given[0].size != given[1].size:
        return np.vdot(a, b)
    return scalar(matrix_products.vdot(given[0].ravel(), given[1].ravel()))


@documented
def inner(a: Any, b: Any, /) -> Any:
    """Sums over the last axes of two arrays: numpy.inner.

    Parameters
    ----------
    a, b : array_like
        Shapes (..., k) and (..., k).

    Returns
    -------
    ndarray or scalar
        Shape ``a.shape[:-1] + b.shape[:-1]``.

    Raises
    ------
    ValueError
        Last axes of unequal lengths.

    {example}
    >>> np.inner(np.ones((2, 3)), np.ones(3))
    array([3., 3.])
    """
    given = arrays(a, b)
    if given is None or not min(x.ndim for x in given) or given[0].shape[-1] != given[1].shape[-1]:
        return np.inner(a, b)
    return scalar(small_products.inner(*given))


@also_named(dims="axes")
@documented
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sums over pairs of axes of two arrays: numpy.tensordot.

    Parameters
    ----------
    a, b : array_like
        Operands.
    axes : int or pair of sequences of int
        Number of axes, the last of `a` and the first of `b`; or which axes of each. ``dims`` is another name for it.

    Returns
    -------
    ndarray
        The axes that are left, those of `a` first.

    Raises
    ------
    ValueError
        Axes of unequal lengths.

    {example}
    >>> np.tensordot(np.ones((2, 3)), np.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    given = arrays(a, b)
    if given is None:
        return np.tensordot(a, b, axes)
    if isinstance(axes, (tuple, list)):
        axes = tuple((each,) if isinstance(each, int) else each for each in axes)
    return np.asarray(matrix_chains.tensordot(given[0], given[1], axes=axes))


@documented
def einsum(*operands: Any, out: Any = None, optimize: Any = False, **keywords: Any) -> Any:
    """Contraction by Einstein's notation: numpy.einsum, in an order that `backends.opt_einsum` decides.

    Parameters
    ----------
    *operands
        Subscripts and arrays, in either form of numpy.einsum. Of one array alone NumPy returns views, and computes.
    {out}
    optimize : bool, str or path
        Of no effect but for a path, which NumPy follows: the order is Backline's.
    **keywords
        `dtype`, `order`, `casting`: with one of them NumPy computes.

    Returns
    -------
    ndarray or scalar
        As numpy.einsum returns it.

    Raises
    ------
    ValueError
        Subscripts that do not fit the arrays.

    {example}
    >>> np.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 2)))
    array([[3., 3.],
           [3., 3.]])
    """
    planned = isinstance(optimize, (bool, str)) and not keywords and len(operands) > 2 and isinstance(operands[0], str)
    given = None if not planned else operands[1:] if alike(*operands[1:]) else arrays(*operands[1:])
    if given is not None and (out is None or (type(out) is np.ndarray and out.dtype == given[0].dtype)):
        result = einsum_operation.einsum(operands[0], *given)
        if out is None:
            return scalar(result)
        if out.shape == result.shape:
            np.copyto(out, result)
            return out
    return np.einsum(*operands, out=out, optimize=optimize, **keywords)


@documented
def matvec(x1: Any, x2: Any, /, out: Any = None, **keywords: Any) -> Any:
    """Products of matrices and vectors: numpy.matvec.

    Parameters
    ----------
    x1, x2 : array_like
        Shapes (..., m, k) and (..., k).
    {numpys}

    Returns
    -------
    ndarray
        Shape (..., m).

    {shapes}

    {example}
    >>> np.matvec(np.ones((2, 3)), np.ones(3))
    array([3., 3.])
    """
    given = arrays(x1, x2) if out is None and not keywords else None
    if given is None or given[0].ndim < 2 or not given[1].ndim:
        return np.matvec(x1, x2, out, **keywords)
    a, b = given
    return matrix_products.matmul(a, b) if b.ndim == 1 else matrix_products.matmul(a, b[..., None])[..., 0]


@documented
def vecmat(x1: Any, x2: Any, /, out: Any = None, **keywords: Any) -> Any:
    """Products of conjugated vectors and matrices: numpy.vecmat.

    Parameters
    ----------
    x1, x2 : array_like
        Shapes (..., k) and (..., k, n).
    {numpys}

    Returns
    -------
    ndarray
        Shape (..., n).

    {shapes}

    {example}
    >>> np.vecmat(np.ones(3), np.ones((3, 2)))
    array([3., 3.])
    """
    given = arrays(x1, x2) if out is None and not keywords else None
    if given is None or not given[0].ndim or given[1].ndim < 2:
        return np.vecmat(x1, x2, out, **keywords)
    a, b = given[0].conj(), given[1]
    return matrix_products.matmul(a, b) if a.ndim == 1 else matrix_products.matmul(a[..., None, :], b)[..., 0, :]
