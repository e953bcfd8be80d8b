"""Products of dask arrays, block by block; sums over blocks are taken in an order that the chunks alone decide."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from ...errors import BadValue
from ...problems.op_registry import operations
from .block_function import BlockFunction
from .chunk_checks import dask_array, same_cuts

__all__ = ["matmul"]

Array = Any
SPLIT = 8  # partial products that one task adds up


def matmul(a: Array, b: Array) -> Array:
    """Product of matrices or batches of them, by blocks.

    Parameters
    ----------
    a, b
        Dask arrays, of one dimension or more, with NumPy's rules for what fits. `b` is cut along its last but one axis as `a` is
        along its last; batches are cut alike. One of them may be a NumPy array.

    Returns
    -------
    dask.array.Array
        With the chunks of `a` along its rows and those of `b` along its columns. Where the axis that is summed over is cut,
        products of blocks are added up, eight at a time, in the order of the chunks; those of 16-bit floats in float32.

    Raises
    ------
    BadType
        Neither is a dask array, or the dtypes differ.
    BadValue
        The shapes do not fit, or the chunks do not; the text has the call of ``rechunk`` that helps.

    Examples
    --------
    >>> import dask.array as da
    >>> x = da.arange(6.0, chunks=3).reshape(3, 2)
    >>> matmul(x, x.T).compute(scheduler="synchronous")
    array([[ 1.,  3.,  5.],
           [ 3., 13., 23.],
           [ 5., 23., 41.]])
    """
    a, b = _operands(a, b)
    if a.ndim == 1:
        return matmul(a[None, :], b)[..., 0, :] if b.ndim > 1 else matmul(a[None, :], b[:, None])[0, 0]
    if b.ndim == 1:
        return matmul(a, b[:, None])[..., 0]
    if a.shape[-1] != b.shape[-2]:
        raise BadValue(
            f"matmul: a of shape {a.shape} and b of shape {b.shape}",
            cause=f"a has {a.shape[-1]} columns, b has {b.shape[-2]} rows",
        )
    same_cuts("matmul", ("a", a, -1), ("b", b, -2))
    _check_batches(a, b)
    # The checks of dtypes, and their promotion, are those of the operation itself.
    problem = operations["matmul"].build(np.empty((1, 1), a.dtype), np.empty((1, 1), b.dtype))
    return _product(a, b, problem.operands[0].dtype)


def _operands(a: Array, b: Array) -> tuple[Array, Array]:
    if isinstance(a, np.ndarray) and isinstance(b, da.Array) and a.ndim and b.ndim:
        a = da.from_array(a, chunks=(*[-1] * (a.ndim - 1), b.chunks[-2 if b.ndim > 1 else 0]))
    elif isinstance(b, np.ndarray) and isinstance(a, da.Array) and a.ndim and b.ndim:
        rows = a.chunks[-1]
        b = da.from_array(b, chunks=(*[-1] * (b.ndim - 2), rows, -1) if b.ndim > 1 else (rows,))
    a, b = dask_array("matmul", "a", a), dask_array("matmul", "b", b)
    for name, array in (("a", a), ("b", b)):
        if array.ndim == 0:
            raise BadValue(f"matmul: {name} has no dimensions", remedy="a * b for a product with a number")
    return a, b


def _check_batches(a: Array, b: Array) -> None:
    for axis in range(3, min(a.ndim, b.ndim) + 1):
        if 1 in (a.shape[-axis], b.shape[-axis]):
            continue
        if a.shape[-axis] != b.shape[-axis]:
            raise BadValue(f"matmul: batches of shapes {a.shape[:-2]} and {b.shape[:-2]} do not broadcast")
        same_cuts("matmul", ("a", a, -axis), ("b", b, -axis))


class _WholeProduct(BlockFunction):
    """The product of blocks that have all of the axis that is summed over: they come in lists of one."""

    __slots__ = ()

    def __call__(self, *blocks: Any, **more: Any) -> Any:
        return super().__call__(*map(_only, blocks), **more)


class _PartialProduct(BlockFunction):
    """The product of two blocks, with an axis of size 1 for its place in the sum; `into` is the dtype it is computed in."""

    __slots__ = ("into",)

    def __init__(self, operation: str, into: str) -> None:
        super().__init__(operation)
        self.into = into

    def __call__(self, *blocks: Any, **more: Any) -> Any:
        return super().__call__(*(block.astype(self.into, copy=False) for block in blocks), **more)

    def finish(self, result: Any) -> Any:
        return result[..., None, :, :]

    def __getstate__(self) -> tuple[Any, ...]:
        return *super().__getstate__(), self.into

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        super().__setstate__(state[:-1])
        self.into = state[-1]


def _only(block: Any) -> Any:
    while isinstance(block, list):
        (block,) = block
    return block


def _product(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    batch = max(a.ndim, b.ndim) - 2
    summed, row, column = batch, batch + 1, batch + 2  # labels of axes; those of the batch are before them
    arrays = (a, (*range(batch - a.ndim + 2, batch), row, summed), b, (*range(batch - b.ndim + 2, batch), summed, column))
    if a.numblocks[-1] == 1:
        out = (*range(batch), row, column)
        function = _WholeProduct("matmul")
        return da.blockwise(function, out, *arrays, dtype=dtype, meta=np.empty((0,) * len(out), dtype))
    short = dtype.itemsize == 2 and dtype.kind not in "iu"  # their sums would be rounded after every block
    computed = np.dtype(np.float32) if short else dtype
    partial = da.blockwise(
        _PartialProduct("matmul", computed.name), (*range(batch), summed, row, column), *arrays, dtype=computed,
        adjust_chunks={summed: lambda size: 1}, meta=np.empty((0,) * (batch + 3), computed),
    )  # fmt: skip
    total = da.reduction(
        partial, _as_it_is, _sum, axis=batch, dtype=computed, concatenate=False, split_every=SPLIT,
        meta=np.empty((0,) * (batch + 2), computed),
    )  # fmt: skip
    return total.astype(dtype) if short else total


def _as_it_is(block: Array, axis: Any, keepdims: bool) -> Array:
    return block


def _sum(blocks: Any, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Adds blocks up, in the order of the chunks."""
    first, *rest = _flat(blocks)
    total = first.copy() if rest else first
    for block in rest:
        np.add(total, block, out=total)
    return total if keepdims else total.squeeze(axis)


def _flat(blocks: Any) -> list[Array]:
    return [part for block in blocks for part in _flat(block)] if isinstance(blocks, list) else [blocks]
