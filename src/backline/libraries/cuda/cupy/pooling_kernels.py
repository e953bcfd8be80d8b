"""Pooling and its gradients on CUDA arrays as one kernel each: what it is compiled for, which launch it takes, and its Plan.

An image has five axes here: images, channels, depth, height, width; those that an array lacks have one element. What the kernels
are given of a Problem are numbers, so shapes of one rank and one layout share a kernel. What is computed stands in
`pooling_source`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ....problems import Operand
from ....problems.neural_problem import NeuralProblem
from ..common import bindings
from ..common.dense_views import Order, new
from . import pooling_source, row_source
from .row_kernels import MOST_BLOCKS, WARP, compiled

__all__ = ["NAME", "NOTE", "OPERATIONS", "average_launch", "function", "refusal", "result_order"]

Array = Any
Run = Callable[..., Any]
Axes = tuple[int, ...]


class _Kernel(NamedTuple):
    name: str
    text: str
    roles: tuple[str, ...] = ("input",)  # of the arrays that it is given, the one that the result lies like first


_MAXIMUM = _Kernel("max_pool", pooling_source.MAXIMUM)
_AVERAGE = _Kernel("avg_pool", pooling_source.AVERAGE)
_AVERAGE_GRAD = _Kernel("avg_pool_grad", pooling_source.AVERAGE_GRAD, ("grad",))
OPERATIONS = {
    "max_pool": _MAXIMUM, "max_pool_indices": _MAXIMUM,
    "max_pool_grad": _Kernel("max_pool_grad", pooling_source.MAXIMUM_GRAD, ("input", "grad")),
    "avg_pool": _AVERAGE, "avg_pool_divided": _AVERAGE, "adaptive_avg_pool": _AVERAGE,
    "avg_pool_grad": _AVERAGE_GRAD, "avg_pool_divided_grad": _AVERAGE_GRAD, "adaptive_avg_pool_grad": _AVERAGE_GRAD,
}  # fmt: skip
"""The operations that there are kernels for."""

NAME = "windows"
NOTE = "one kernel"
CHANNELS_FIRST, CHANNELS_LAST = (4, 3, 2, 1, 0), (1, 4, 3, 2, 0)  # orders of the five axes in memory, the innermost first
THREADS = 256  # of a block
FEW = 32  # elements of a window that one thread adds up
SHORT = 1 << 31  # from which on places and numbers take 64 bits
ADDED = 8  # elements that each of the threads of a window has at least


def refusal(p: NeuralProblem) -> str:
    """Returns why there is no kernel for a Problem; empty if there is."""
    if p.op not in OPERATIONS:
        return f"there is no kernel for {p.op}"
    legal = pooling_source.TYPES if p.op in ("max_pool", "max_pool_indices") else row_source.TYPES
    return "" if p.dtype.name in legal else f"the kernel of {p.op} is for {', '.join(legal)}, not {p.dtype.name}"


def result_order(o: Operand) -> Order:
    """Returns the axes of an array, the outermost in memory first: those of results.

    Axes of one element count as well, so that (N, C, 1, 1) may have its channels last.
    """
    if any(step == 0 and n != 1 for n, step in zip(o.shape, o.strides, strict=True)):
        return tuple(range(len(o.shape)))
    return tuple(sorted(range(len(o.shape)), key=lambda axis: -abs(o.strides[axis])))


def average_launch(count: int, taps: int, last: bool) -> tuple[int, int, tuple[int, int]]:
    """Returns how threads share a window of so many elements, blocks of the grid, and threads of a block.

    Examples
    --------
    >>> average_launch(100_000, 9, False), average_launch(2048, 49, False), average_launch(64, 200_000, False)
    ((0, 391, (256, 1)), (1, 64, (8, 32)), (1, 64, (1024, 1)))
    >>> average_launch(2048, 49, True)
    (2, 64, (32, 8))
    """
    if taps < FEW:
        share, beside, threads = 0, THREADS, (THREADS, 1)
    elif last:
        lanes = min(_power(-(-taps // ADDED)), 16)
        share, beside, threads = 2, WARP, (WARP, lanes)
    else:
        lanes = _power(-(-taps // ADDED)) if taps <= WARP * ADDED else max(min(_power(-(-taps // 64)), 1024), WARP)
        beside = max(THREADS // lanes, 1)
        share, threads = 1, (lanes, beside if lanes <= WARP else 1)
        beside = threads[1]
    return share, min(-(-count // beside), MOST_BLOCKS), threads


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _numbers(p: NeuralProblem, given: list[Operand], rank: int, merged: bool) -> tuple[Any, int]:
    """Returns the `Pool` of a Problem, as the kernels have it, and the largest number of an axis that is computed with."""
    shape = (1,) * (rank + 2 - len(p.result)) + p.result
    sizes = _five(shape, rank, 1)
    if merged:
        sizes = [1, sizes[0] * sizes[1], *sizes[2:]]
    steps = [_five((0,) * (rank + 2 - len(o.shape)) + tuple(s // o.dtype.itemsize for s in o.strides), rank, 0) for o in given]
    steps += [[0] * 5] * (2 - len(steps))
    of = p.get("input")
    image = p.result[-rank:] if of is None else of.shape[-rank:]
    points = p.result[-rank:] if p.get("grad") is None else given[-1].shape[-rank:]
    one = (1,) * rank
    kernel, padding = p.parameter("kernel", one), p.parameter("padding", ((0, 0),) * rank)
    overhang = p.parameter("overhang") or (0,) * rank
    ends = [n + after - beyond for n, (_, after), beyond in zip(image, padding, overhang, strict=True)]
    strides, dilation, before = p.parameter("stride", one), p.parameter("dilation") or one, tuple(first for first, _ in padding)
    rows = (image, points, kernel, strides, dilation, before, ends)
    axes = [[1, 1, 1, 1, 1, 0, 1]] * (3 - rank) + [list(each) for each in zip(*rows, strict=True)]
    most = max(n + 2 * first + k * d + s + max(end, 0) for n, _, k, s, d, first, end in axes)
    flags = [p.op.startswith("adaptive"), p.parameter("count_include_pad", True)]
    numbers = [*sizes, *steps[0], *steps[1], *(n for axis in axes for n in axis), *map(bool, flags), p.parameter("divisor") or 0]
    made = np.array(numbers, np.int64)
    return made.view(f"V{made.nbytes}"), most  # one element, which CuPy gives a kernel by its value


def _five(values: Axes, rank: int, missing: int) -> list[int]:
    """Numbers of axes (N, C, ...) for all five."""
    return [*values[:2], *[missing] * (3 - rank), *values[2:]]


def _fifth(axis: int, rank: int, count: int) -> int:
    """Returns which of the five axes an axis of (N, C, ...) or (C, ...) is, of so many axes."""
    return axis + 5 - count if axis >= count - rank else axis + rank + 2 - count


def _order_of_five(real: list[int]) -> Axes:
    """Returns an order of all five axes, the innermost first, in which those that have elements have theirs."""
    for order in (CHANNELS_FIRST, CHANNELS_LAST):
        if [axis for axis in order if axis in real] == real:
            return order
    return (*real, *(axis for axis in CHANNELS_FIRST if axis not in real))


def _merged(p: NeuralProblem, given: list[Operand], order: Order, rank: int) -> bool:
    """Tells whether images and channels are one axis: the results' and the given arrays', one after the other in memory."""
    if len(p.result) == rank + 1 or min(p.result[:2]) == 1 or order.index(1) != order.index(0) + 1:
        return False
    return all(o.strides[0] == o.shape[1] * o.strides[1] for o in given)


def function(p: NeuralProblem) -> Run:
    """Returns the function of the arrays of a call, for a Problem that `refusal` has nothing against, with elements."""
    kernel, cupy, shape, dtype = OPERATIONS[p.op], bindings.cupy(), p.result, p.dtype
    places = [i for role in kernel.roles if (i := p.index(role)) is not None]
    given = [p.operands[i] for i in places]
    adaptive, indices = p.op.startswith("adaptive"), p.op == "max_pool_indices"
    rank, order = len(p.parameter("output" if adaptive else "kernel")), result_order(given[0])
    merged = _merged(p, given, order, rank)
    numbers, most = _numbers(p, given, rank, merged)
    count = prod(shape)
    real = [axis for axis in reversed(order) if shape[axis] != 1 and not (merged and axis == 0)]
    order_of_five = _order_of_five([_fifth(axis, rank, len(shape)) for axis in real])
    share, blocks, threads = 0, min(-(-count // THREADS), MOST_BLOCKS), (THREADS, 1)
    if kernel is _AVERAGE:
        image, points, each = given[0].shape[-rank:], shape[-rank:], p.parameter("kernel")
        taps = prod(-(-n // m) if adaptive else min(k, n) for n, m, k in zip(image, points, each or points, strict=True))
        inner = next((axis for axis in reversed(order) if given[0].shape[axis] != 1), 0)
        share, blocks, threads = average_launch(count, taps, inner < len(shape) - rank)
    reached = [sum(abs(s) * (n - 1) for n, s in zip(o.shape, o.strides, strict=True)) // o.dtype.itemsize for o in given]
    short = max(most, count, *reached, *(prod(o.shape) for o in given)) < SHORT - 1
    element, compute = pooling_source.TYPES[dtype.name]
    facts = {
        "ORDER": ", ".join(map(str, order_of_five)), "PLACE": "unsigned" if short else "unsigned long long",
        "STEP": "int" if short else "long long", "SHARE": share,
        "LEAST": pooling_source.LEAST[dtype.name],
    }  # fmt: skip
    text = pooling_source.WINDOWS + kernel.text
    defined = "".join(f"#define {name} {value}\n" for name, value in facts.items() if name in text)
    head = row_source.HEAD.replace("ELEMENT", element).replace("COMPUTE", compute)
    text = defined + head + (row_source.STATISTICS if kernel is _AVERAGE else "") + text
    launched, total, grid = compiled(text, kernel.name), np.int64(count), (blocks,)

    def run(*arrays: Array) -> Any:
        first = [arrays[i] for i in places]
        y = new(cupy, shape, dtype, order)
        if kernel is not _MAXIMUM:
            launched(grid, threads, (*first, y, numbers, total))
            return y
        where = new(cupy, shape, np.dtype(np.int64), order) if indices else None
        launched(grid, threads, (*first, y, NOTHING if where is None else where, numbers, total))
        return y if where is None else (y, where)

    return run


NOTHING = np.uint64(0)  # a pointer to no array
