"""Fourier transforms of dask arrays along axes that are not cut: the functions of `backline.fft`, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.families import function_family
from ...ops.fft_checks import Sizes
from ...ops.fourier import KINDS, RANKS
from ...problems.fft_problem import FftProblem
from ...problems.op_registry import operations
from .block_function import BlockFunction
from .chunk_checks import dask_array, stand_in, uncut

__all__ = [
    "fft", "fft2", "fftn", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2",
    "irfftn", "rfft", "rfft2", "rfftn",
]  # fmt: skip

Array = Any
TEXT = """{title}

Parameters
----------
input
    A dask array with one chunk along each axis that is transformed.
{size}, dim, norm
    As for `backline.fft.{name}`.

Returns
-------
dask.array.Array
    With the chunks of `input` along the other axes.

Raises
------
BadType, BadValue
    What `backline.fft.{name}` refuses; an axis that is cut: the text has the call of ``rechunk`` that helps.

Examples
--------
>>> import dask.array as da
>>> from backline.interop import dask as blocks
>>> blocks.fft.{name}(da.ones((4, {shape}), chunks=({first}, {chunks}))).compute(scheduler="synchronous").shape
{result}
"""


def _text(name: str) -> str:
    kind, rank = name.rstrip("2n"), name[len(name.rstrip("2n")) :]
    points = {"c2c": 8, "r2c": 5, "c2r": 14}[KINDS[kind].op]
    several = "" if rank == "" else "4, "
    return TEXT.format(
        name=name, title=KINDS[kind].title.format(along=RANKS[rank], rank=rank), size="n" if rank == "" else "s",
        shape=f"{several}8", chunks=f"{several}8", first=4 if rank == "n" else 2, result=f"(4, {several}{points})",
    )  # fmt: skip


def _one(name: str, input: Array, n: int | None = None, dim: int = -1, norm: str | None = None) -> Array:
    return _transform(name, input, {"n": n, "dim": dim, "norm": norm})


def _two(name: str, input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None) -> Array:
    return _transform(name, input, {"s": s, "dim": dim, "norm": norm})


def _several(name: str, input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None) -> Array:
    return _transform(name, input, {"s": s, "dim": dim, "norm": norm})


def _transform(name: str, input: Array, keywords: dict[str, Any]) -> Array:
    where = f"fft.{name}"
    array = dask_array(where, "input", input)
    problem: FftProblem = _problem(where, array, (2,) * array.ndim, keywords)  # which axes does not depend on the sizes
    uncut(where, "input", array, problem.axes)
    # One point along the others: what is checked of sizes is the size of a block.
    one_each = tuple(size if axis in problem.axes else 1 for axis, size in enumerate(array.shape))
    result = _problem(where, array, one_each, keywords)
    chunks = tuple((result.result[axis],) if axis in problem.axes else array.chunks[axis] for axis in range(array.ndim))
    dtype = result.result_dtype
    named = {key: value for key, value in keywords.items() if value is not None}
    return array.map_blocks(BlockFunction(where, named), dtype=dtype, chunks=chunks, meta=np.empty((0,) * array.ndim, dtype))


def _problem(where: str, array: Array, shape: tuple[int, ...], keywords: dict[str, Any]) -> Any:
    return operations[where].build(stand_in(array.dtype, shape), **keywords)


def _names(rank: str) -> dict[str, str]:
    return {kind + rank: kind + rank for kind in KINDS}


fft, ifft, rfft, irfft, hfft, ihfft = function_family(_one, _names(""), _text, module=__name__)
fft2, ifft2, rfft2, irfft2, hfft2, ihfft2 = function_family(_two, _names("2"), _text, module=__name__)
fftn, ifftn, rfftn, irfftn, hfftn, ihfftn = function_family(_several, _names("n"), _text, module=__name__)
