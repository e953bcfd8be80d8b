"""Convolutions of dask arrays whose batch is cut: the functions of `backline.nn.functional`, block by block."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np

from ...errors import BadType, BadValue
from ...ops.families import RANKS, function_family, ranks
from ...problems.op_registry import operations
from .block_function import BlockFunction
from .chunk_checks import dask_array, stand_in, uncut

__all__ = ["conv1d", "conv2d", "conv3d"]

Array = Any
Sizes = int | tuple[int, ...]
TEXT = """Convolution of a batch of {images} (N, C, {sizes}) that is cut along N.

Parameters
----------
input
    A dask array with one chunk along every axis but the first.
weight, bias
    NumPy arrays, or dask arrays, which are put together: each worker has them once.
stride, padding, dilation, groups, activation
    As for `backline.nn.functional.conv{rank}d`.

Returns
-------
dask.array.Array
    Shape (N, O, {sizes}), with the chunks of `input` along N.

Raises
------
BadType, BadValue
    What `backline.nn.functional.conv{rank}d` refuses; no batch; an axis that is cut: the text has the call of ``rechunk`` that
    helps.

Examples
--------
>>> import dask.array as da, numpy as np
>>> from backline.interop import dask as blocks
>>> batch = da.ones((4, 1, {ones}), chunks=(2, 1, {ones}))
>>> blocks.nn.conv{rank}d(batch, np.ones((3, 1, {twos}))).compute(scheduler="synchronous").shape
(4, 3, {result})
"""


def _text(rank: int) -> str:
    repeated = {name: ", ".join([size] * rank) for name, size in (("ones", "5"), ("twos", "2"), ("result", "4"))}
    return TEXT.format(**RANKS[rank], **repeated)


def _conv(
    rank: int, input: Array, weight: Array, bias: Array | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1, *, activation: str | None = None,
) -> Array:  # fmt: skip
    where = f"nn.functional.conv{rank}d"
    array = dask_array(where, "input", input)
    if array.ndim != rank + 2:
        raise BadValue(
            f"{where}: input has shape {array.shape}",
            cause=f"the batch is what is divided among workers, so {rank + 2} dimensions are needed",
            remedy="input[None] for one image",
        )
    uncut(where, "input", array, range(1, array.ndim))
    keywords = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "activation": activation}
    keywords = {name: value for name, value in keywords.items() if value is not None}
    arrays = {"weight": weight} | ({} if bias is None else {"bias": bias})
    for name, value in arrays.items():
        if not isinstance(value, (np.ndarray, da.Array)):
            raise BadType(f"{where}: {name} is {type(value).__name__}", remedy="a NumPy or a dask array")
    one = stand_in(array.dtype, (1, *array.shape[1:]))
    problem = operations[where].build(one, **{name: stand_in(v.dtype, v.shape) for name, v in arrays.items()}, **keywords)
    dtype = next(o.dtype for o in problem.operands if o.role == "input")
    return array.map_blocks(
        BlockFunction(where, keywords), **{name: dask.delayed(value) for name, value in arrays.items()}, dtype=dtype,
        chunks=(array.chunks[0], *((size,) for size in problem.result[1:])), meta=np.empty((0,) * array.ndim, dtype),
    )  # fmt: skip


conv1d, conv2d, conv3d = function_family(_conv, ranks("conv{}d"), _text, module=__name__)
