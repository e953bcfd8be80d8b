"""Factorizations of tall and narrow dask arrays, whose rows are cut and whose columns are not."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np

from ...errors import BadValue
from ...problems.op_registry import operations
from .block_function import BlockFunction
from .chunk_checks import dask_array, uncut

__all__ = ["qr", "svd"]

Array = Any
STACKED = 8  # factors R that are put on top of each other and factorized as one


def qr(A: Array) -> tuple[Array, Array]:
    """QR factors of a tall array, by blocks of rows: each is factorized by itself, then the factors R, eight at a time.

    Parameters
    ----------
    A
        A dask array of two dimensions with one chunk along its columns: float32, float64, complex64 or complex128.

    Returns
    -------
    Q, R : dask.array.Array
        Q (m, k) with the chunks of `A` along its rows, and R (k, n) in one chunk; k = min(m, n). Rows of R, and the columns of Q
        with them, may have another sign than those of one factorization.

    Raises
    ------
    BadType
        `A` is no dask array of such numbers.
    BadValue
        It has not two dimensions, or its columns are cut.

    Examples
    --------
    >>> import dask.array as da
    >>> q, r = qr(da.ones((6, 2), chunks=(3, 2)))
    >>> q.chunks, r.shape
    (((3, 3), (2,)), (2, 2))
    """
    return _qr(_matrix("linalg.qr", A, "A.rechunk({1: -1}), which needs blocks of rows that fit into memory"))


def _matrix(where: str, A: Any, remedy: str, *, or_wide: bool = False) -> Array:
    """Returns a matrix whose columns are not cut, or one whose rows are not."""
    A = dask_array(where, "A", A)
    if A.ndim != 2:
        raise BadValue(f"{where}: A has shape {A.shape}", cause="it is for one matrix", remedy="an array of two dimensions")
    operations[where].build(np.empty((1, 1), A.dtype))  # which refuses other dtypes
    if not (or_wide and A.numblocks[0] == 1):
        uncut(where, "A", A, (1,), remedy=remedy)
    return A


def _qr(A: Array) -> tuple[Array, Array]:
    n = A.shape[1]
    factors = A.map_blocks(BlockFunction("linalg.qr"), dtype=A.dtype, meta=np.empty((0, 0), A.dtype))
    heights = tuple(min(rows, n) for rows in A.chunks[0])
    q = _part(factors, 0, (A.chunks[0], heights[:1]))  # along columns each block has its own size
    r = _part(factors, 1, (heights, (n,)))
    if len(heights) == 1:
        return q, r
    groups = [heights[i : i + STACKED] for i in range(0, len(heights), STACKED)]
    upper, r = _qr(r.rechunk({0: tuple(map(sum, groups))}))
    upper = upper.rechunk({0: heights})
    return _products(q, upper, (A.chunks[0], (r.shape[0],))), r


def _part(results: Array, index: int, chunks: tuple[tuple[int, ...], ...]) -> Array:
    """The array of one of the results that each block holds, a vector as a matrix of one column."""
    take = partial(_result, index=index)
    return results.map_blocks(take, dtype=results.dtype, chunks=chunks, meta=np.empty((0, 0), results.dtype))


def _result(results: tuple[Array, ...], index: int) -> Array:
    part = results[index]
    return part if part.ndim == 2 else part[:, None]


def _products(a: Array, b: Array, chunks: tuple[tuple[int, ...], ...]) -> Array:
    """The product of each block of `a` with the same block of `b`, or with the only one."""
    return da.map_blocks(BlockFunction("matmul"), a, b, dtype=a.dtype, chunks=chunks, meta=np.empty((0, 0), a.dtype))


def svd(A: Array) -> tuple[Array, Array, Array]:
    """Singular value decomposition of a tall or a wide array, ``A = U diag(S) Vh``, by way of `qr`.

    Parameters
    ----------
    A
        A dask array of two dimensions with one chunk along its columns, or with one chunk along its rows: float32, float64,
        complex64 or complex128.

    Returns
    -------
    U, S, Vh : dask.array.Array
        U (m, k), S (k,) and Vh (k, n), k = min(m, n). Singular values descend. The longer factor has the chunks of `A`, the
        others one chunk.

    Raises
    ------
    BadType
        `A` is no dask array of such numbers.
    BadValue
        It has not two dimensions, or is cut along both.

    Examples
    --------
    >>> import dask.array as da
    >>> u, s, vh = svd(da.ones((6, 2), chunks=(3, 2)))
    >>> s.compute(scheduler="synchronous").round(12)
    array([3.46410162, 0.        ])
    """
    A = _matrix("linalg.svd", A, "A.rechunk({1: -1}) for a tall array, A.rechunk({0: -1}) for a wide one", or_wide=True)
    if A.numblocks[1] > 1:
        u, s, vh = svd(A.T.conj())
        return vh.T.conj(), s, u.T.conj()
    q, r = _qr(A)
    k = r.shape[0]
    factors = r.map_blocks(BlockFunction("linalg.svd", {"full_matrices": False}), dtype=A.dtype, meta=np.empty((0, 0), A.dtype))
    u = _part(factors, 0, ((k,), (k,)))
    s = _part(factors, 1, ((k,), (1,)))[:, 0].astype(A.dtype.type(0).real.dtype)
    vh = _part(factors, 2, ((k,), (A.shape[1],)))
    return _products(q, u, (A.chunks[0], (k,))), s, vh
