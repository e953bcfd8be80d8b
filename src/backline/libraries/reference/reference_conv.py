"""Convolutions and their gradients in NumPy: plain, right for every dtype, and what other libraries are compared with.

Images are looked at through windows (`as_strided`), an image and a group at a time, and a window's elements times the weights are
a matrix product. float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product as every
from math import prod
from typing import Any

import numpy as np

from ...problems.conv_problem import ConvProblem
from ...problems.dtypes import HALVES, compute_dtype
from ..base import Algorithm, Refusal
from . import numpy_threads

__all__ = ["algorithms", "function", "new_result", "result_order", "two"]

Array = Any

BLAS = ("float32", "float64", "complex64", "complex128", "float16", "bfloat16")
CHUNK = 32 << 20  # bytes of windows that are copied at a time


def algorithms(p: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The two ways: products by NumPy's BLAS, or by NumPy's own loops on one thread and in one order."""
    precision = "f32 accumulation" if p.dtype.name in HALVES else ""
    if p.empty or p.dtype.name not in BLAS:  # no BLAS takes part
        yield Algorithm(library="numpy", name="windows", precision=precision, level="threads", basis="construction")
        return
    yield from numpy_threads.by_blas_or_loops("windows", p, threads, precision=precision)


def result_order(p: ConvProblem) -> tuple[int, ...]:
    """Axes of the result from the outermost in memory to the innermost: as the input lies, weights always in order."""
    axes = tuple(range(len(p.result)))
    return (0, *axes[2:], 1) if p.last and p.op != "conv_grad_weight" else axes


def two(values: Sequence[Any], missing: Any) -> tuple[Any, Any]:
    """Height and width, for libraries to which images of one dimension are one line high."""
    first, *rest = values
    return (first, rest[0]) if rest else (missing, first)


def new_result(p: ConvProblem) -> Array:
    """An array for the result, uninitialised."""
    order = result_order(p)
    return np.empty([p.result[axis] for axis in order], p.dtype).transpose(np.argsort(order))


def function(p: ConvProblem, *, loops: bool = False) -> Callable[..., Array]:
    """The convolution as a function of the arrays of the call; with `loops` no BLAS takes part."""
    index = {o.role: i for i, o in enumerate(p.operands)}
    dtype = compute_dtype(p.dtype)
    times = numpy_threads.loops_product if loops else np.matmul
    compute = {"conv_grad_weight": _weight, "conv_grad_input": _scattered, "conv_transpose": _scattered}.get(p.op, _gathered)

    def run(*arrays: Array) -> Array:
        given = {role: arrays[i].astype(dtype, copy=False) for role, i in index.items() if role != "out"}
        result = np.zeros(p.result, dtype)
        if not p.empty:
            compute(p, given, result, times)
        if "bias" in given:
            result += given["bias"].reshape(-1, *[1] * len(p.kernel))
        if "residual" in given:
            result += given["residual"]
        if p.parameter("activation") == "relu":
            np.maximum(result, 0, out=result)
        target = arrays[index["out"]] if "out" in index else new_result(p)
        target[...] = result
        return target

    return run


def _padded(p: ConvProblem, image: Array) -> Array:
    sizes = [n + before + after for n, (before, after) in zip(p.image, p.padding, strict=True)]
    padded = np.zeros((p.batch, p.channels, *sizes), image.dtype)
    inner = [slice(before, before + n) for n, (before, _) in zip(p.image, p.padding, strict=True)]
    where: tuple[Any, ...] = (..., *inner)
    padded[where] = image
    return padded


def _windows(p: ConvProblem, part: Array) -> Iterator[tuple[slice, Array]]:
    """The windows of one padded image as matrices (channels and taps, points), some of the points at a time."""
    rank = len(p.kernel)
    taps, steps = part.shape[0] * prod(p.kernel), part.strides[1:]
    row = prod(p.points[1:])
    step = max(CHUNK // max(taps * row * part.itemsize, 1), 1)
    strides = (*(s * d for s, d in zip(steps, p.dilation, strict=True)), *(s * d for s, d in zip(steps, p.stride, strict=True)))
    shape = (part.shape[0], *p.kernel, *p.points)
    windows = np.lib.stride_tricks.as_strided(part, shape, (part.strides[0], *strides), writeable=False)
    for first in range(0, p.points[0], step):
        where: tuple[Any, ...] = (*[slice(None)] * (rank + 1), slice(first, first + step))
        some = windows[where]
        yield slice(first * row, min(first + step, p.points[0]) * row), some.reshape(taps, -1)


def _parts(p: ConvProblem) -> Iterator[tuple[slice, slice]]:
    """Group by group: its channels and its features."""
    channels, features = p.channels // p.groups, p.features // p.groups
    for g in range(p.groups):
        yield slice(g * channels, (g + 1) * channels), slice(g * features, (g + 1) * features)


def _gathered(p: ConvProblem, given: dict[str, Array], result: Array, times: Callable[..., Array]) -> None:
    padded, weight = _padded(p, given["input"]), given["weight"]
    flat = result.reshape(p.batch, p.features, -1)
    for channels, features in _parts(p):
        matrix = weight[features].reshape(p.features // p.groups, -1)
        for n in range(p.batch):
            for points, windows in _windows(p, padded[n, channels]):
                flat[n, features, points] = times(matrix, windows)


def _scattered(p: ConvProblem, given: dict[str, Array], result: Array, times: Callable[..., Array]) -> None:
    """The transposed convolution, and the gradient by the input, which is the same: products, added where they belong."""
    gradient = p.op == "conv_grad_input"
    source, weight = given["grad" if gradient else "input"], given["weight"].conj() if gradient else given["weight"]
    places = source.shape[2:]
    sizes = [n + before + after for n, (before, after) in zip(p.result[2:], p.padding, strict=True)]
    for channels, features in _parts(p):
        rows, cols = (features, channels) if gradient else (channels, features)
        matrix = weight[rows].reshape(rows.stop - rows.start, -1).T
        for n in range(p.batch):
            columns = times(matrix, source[n, rows].reshape(rows.stop - rows.start, -1))
            columns = columns.reshape(-1, *p.kernel, *places)
            canvas = np.zeros((columns.shape[0], *sizes), result.dtype)
            for tap in every(*map(range, p.kernel)):
                where = (
                    slice(t * d, t * d + (count - 1) * s + 1, s)
                    for t, d, count, s in zip(tap, p.dilation, places, p.stride, strict=True)
                )
                canvas[(slice(None), *where)] += columns[(slice(None), *tap)]
            inner = (slice(before, before + n) for n, (before, _) in zip(result.shape[2:], p.padding, strict=True))
            result[n, cols] = canvas[(slice(None), *inner)]


def _weight(p: ConvProblem, given: dict[str, Array], result: Array, times: Callable[..., Array]) -> None:
    padded, grad = _padded(p, given["input"]), given["grad"]
    for channels, features in _parts(p):
        rows = result[features].reshape(p.features // p.groups, -1)
        for n in range(p.batch):
            flat = grad[n, features].reshape(p.features // p.groups, -1)
            for points, windows in _windows(p, padded[n, channels]):
                rows += times(flat[:, points], windows.conj().T)
