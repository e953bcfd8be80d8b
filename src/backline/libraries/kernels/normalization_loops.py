"""Normalisation by compiled loops: layers, and batches by given or own statistics.

Statistics are computed in float64, and so are results, which are rounded once; those of 16-bit floats are computed in float32
where that is enough, or written there first. What is normalised together is one item's: rows of layer_norm, a channel of
batch_norm in training.
"""

from __future__ import annotations

from math import prod

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES, compute_dtype
from ...problems.neural_problem import NeuralProblem
from .shares import DTYPES, Share, dense, even_share, float_size, in_shares, memory_order, placed, vector, vector_is_dense
from .vector_level import vector_level

__all__ = ["NORMALIZATIONS", "normalization_refusal", "write_normalization"]

NORMALIZATIONS = ("layer_norm", "batch_norm", "batch_norm_train")
PARAMETERS = ("mean", "variance", "weight", "bias")
SHARE = 1 << 13  # elements of an item, or more where what is normalised together is longer
WORK_BYTES = 4 << 20  # that 16-bit floats may take in float32, of an item
FIRST_CACHE = 32 << 10  # bytes of rows whose elements are read some channels at a time


def normalization_refusal(p: NeuralProblem) -> str:
    """Returns the reason why there is no loop for a Problem, or an empty string."""
    if p.dtype.name not in DTYPES:
        return f"its loops are for {', '.join(DTYPES)}, not {p.dtype.name}"
    x = p.get("input")
    assert x is not None
    order, wide = memory_order(x), compute_dtype(p.dtype)
    if not dense(x):
        return "there are gaps between elements"
    given = [p.get(role) for role in PARAMETERS]
    if any(o is not None and (o.dtype not in (wide, p.dtype) or not vector_is_dense(o)) for o in given):
        return "a parameter has gaps, or another dtype"
    if p.op == "layer_norm":
        return "" if _last_axes(p, order) else "the axes that are normalised are not the innermost in memory, in order"
    if p.op == "batch_norm_train":
        first = [i for i in (0, 1) if x.shape[i] > 1]
        if [i for i in order if x.shape[i] > 1][: len(first)] != first or prod(x.shape[2:]) == 1:
            return "the axes in memory are not batch, channels, and the points of an image"
        if p.dtype.name in HALVES and x.shape[0] * prod(x.shape[2:]) * 4 > WORK_BYTES:
            return "a channel is too large to be widened"
    return ""


def _last_axes(p: NeuralProblem, order: tuple[int, ...]) -> bool:
    """Tells whether the axes that layer_norm is over are the innermost in memory, in order."""
    shape = p.result
    first = len(shape) - p.parameter("axes")
    real = [i for i in order if shape[i] > 1]
    last = [i for i in range(first, len(shape)) if shape[i] > 1]
    return real[len(real) - len(last) :] == last


def write_normalization(b: Builder, p: NeuralProblem, threads: int) -> tuple[tuple[Pointer, ...], int]:
    """Writes the loop down; returns the results, and the number of items of the last group."""
    x = p.get("input")
    assert x is not None
    source, out = b.argument("input"), placed(b, p, x)
    vectors = {role: vector(b, p.get(role), role, p.dtype, out) for role in PARAMETERS}
    b.each()
    write = {"layer_norm": _layer_norm, "batch_norm": _batch_norm, "batch_norm_train": _batch_norm_train}[p.op]
    return write(b, p, threads, source, out, vectors)


Vectors = dict[str, Pointer]
Written = tuple[tuple[Pointer, ...], int]


def _fields(
    b: Builder, p: NeuralProblem, *, item: int = 0, channels: int = 1, length: int = 1, segments: int = 1, step: int = 0
) -> Pointer:
    """Writes the description of the loop, as normalize.cpp has it."""
    has = [p.get(role) is not None for role in ("weight", "bias")]
    words = (*has, channels, length, segments, step, p.dtype.name in HALVES)
    return b.packed("<2qd7q", item or compute_dtype(p.dtype).itemsize, vector_level(), float(p.parameter("eps")), *words)


def _work(b: Builder, p: NeuralProblem, elements: int, out: Pointer) -> Pointer:
    """Returns workspace of an item for 16-bit floats in float32; others need none."""
    return b.work(4 * elements) if p.dtype.name in HALVES else out


def _layer_norm(b: Builder, p: NeuralProblem, threads: int, source: Pointer, out: Pointer, vectors: Vectors) -> Written:
    width = prod(p.result[len(p.result) - p.parameter("axes") :])
    rows = prod(p.result) // width
    share = even_share(rows, width, SHARE)
    description = _fields(b, p, item=float_size(p.dtype), length=width)

    def write(at: Share) -> None:
        given, target = (at.place(array, width * p.dtype.itemsize) for array in (source, out))
        b.call(_kernels.addresses["layer_norm"], [description, at.units, given, vectors["weight"], vectors["bias"], target])

    return (out,), in_shares(b, rows, share, threads, write)


def _batch_norm(b: Builder, p: NeuralProblem, threads: int, source: Pointer, out: Pointer, vectors: Vectors) -> Written:
    x = p.get("input")
    assert x is not None
    order, channels = memory_order(x), p.result[1]
    at_channels = order.index(1)
    length = prod(p.result[i] for i in order[at_channels + 1 :])
    parameters = [vectors[role] for role in PARAMETERS]
    if length == 1:
        return _batch_norm_last(b, p, threads, source, out, parameters)
    rows = prod(p.result) // length
    description = _fields(b, p, item=float_size(p.dtype), channels=channels, length=length)

    def write(at: Share) -> None:
        given, target = (at.place(array, length * p.dtype.itemsize) for array in (source, out))
        b.call(_kernels.addresses["batch_norm"], [description, at.firsts(), at.units, given, *parameters, target])

    return (out,), in_shares(b, rows, even_share(rows, length, SHARE), threads, write)


def _batch_norm_last(
    b: Builder, p: NeuralProblem, threads: int, source: Pointer, out: Pointer, parameters: list[Pointer]
) -> Written:
    """Writes the loop over images down whose channels are neighbours in memory."""
    channels = p.result[1]
    points = prod(p.result) // channels
    share = even_share(points, channels, FIRST_CACHE // p.dtype.itemsize)
    work, description = _work(b, p, share * channels, out), _fields(b, p, channels=channels)

    def write(at: Share) -> None:
        given = at.load(source, p.dtype, channels, work)
        target = work if p.dtype.name in HALVES else at.place(out, channels * p.dtype.itemsize)
        b.call(_kernels.addresses["batch_norm_last"], [description, at.units, given, *parameters, target])
        at.store(work, out, p.dtype, channels)

    return (out,), in_shares(b, points, share, threads, write)


def _batch_norm_train(b: Builder, p: NeuralProblem, threads: int, source: Pointer, out: Pointer, vectors: Vectors) -> Written:
    channels, images, points = p.result[1], p.result[0], prod(p.result[2:])
    item, wide = p.dtype.itemsize, compute_dtype(p.dtype)
    halves = p.dtype.name in HALVES
    mean, variance = (b.result(wide, (channels,)) for _ in range(2))
    work = _work(b, p, images * points, out)
    description = _fields(b, p, length=points, segments=images, step=points if halves else channels * points)

    def each(vector: Pointer) -> Pointer:
        return vector[0], vector[1], wide.itemsize

    given, target = ((array[0], array[1], points * item) for array in (source, out))
    layout = ((images, points), (channels * points * 2, 2), (points * 4, 4))
    if halves:
        b.copy(layout[0], given, layout[1], work, layout[2], (p.dtype.name, "float32"))
    here = [work, work] if halves else [given, target]
    b.call(
        _kernels.addresses["batch_norm_train"],
        [description, here[0], each(vectors["weight"]), each(vectors["bias"]), here[1], each(mean), each(variance)],
    )
    if halves:
        b.copy(layout[0], work, layout[2], target, layout[1], ("float32", p.dtype.name))
    return (out, mean, variance), channels
