"""Relu, softmax, and gradients of relu and of pooling by compiled loops.

No vendor library has these as they are wanted here: NaN stays one, and nothing has to be looked for before or after. An item is a
share of an array, some rows, or a few channels of an image, computed by one thread in one order. Those of pooling take sums in
float64 and round once; softmax is computed in the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder
from ...problems import Operand
from ...problems.neural_problem import NeuralProblem
from ..base import Algorithm, Refusal
from .vector_level import vector_level

__all__ = ["COMPILED", "compiled_algorithms", "prepare_compiled"]

COMPILED = "compiled"
RELU = ("relu", "relu_grad")
SOFTMAX = ("softmax", "log_softmax")
POOLS = ("max_pool_grad", "avg_pool_grad", "avg_pool_divided_grad")
DTYPES = ("float32", "float64")
MOST_ITEMS = 1 << 20
ROW_ELEMENTS = 1 << 13  # of softmax, in an item
AXES = 4  # that the loop over a relu has
SHARES = 16  # into which a large array is divided, whatever the number of threads
# Below so many elements, threads and the release of the GIL cost more than they bring.
RELU_THREADED, THREADED, SMALL_ELEMENTS = 1 << 18, 1 << 16, 1 << 13
MOST_POINTS = 1 << 30  # of an image: places in it are int32 beside float32
CACHE_LINE = 64
MOST_LANES, WORK_BYTES = 64, 256 << 10  # channels of an item where they are neighbours in memory, and what its sums may take


def compiled_algorithms(p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the compiled loop for a Problem, on all threads and on one, or the reason why there is none."""
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", COMPILED, reason)
        return
    size, note = max(prod(o.shape) for o in p.operands), "a loop compiled for this"
    if threads > 1 and size >= (RELU_THREADED if p.op in RELU else THREADED):
        yield Algorithm(
            library="kernels", name=COMPILED, threads=threads, scaled=True, level="threads", basis="construction",
            pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=COMPILED, level="threads", basis="construction", note=note)


def _refusal(p: NeuralProblem) -> str:
    """Returns the reason why there is no loop for a Problem, or an empty string."""
    if p.op not in (*RELU, *SOFTMAX, *POOLS):
        return f"there is no compiled loop for {p.op}"
    if p.dtype.name not in DTYPES:
        return f"its loops are for {' and '.join(DTYPES)}, not {p.dtype.name}"
    if p.empty or not p.result:
        return "an array without elements, or without axes, needs no loop"
    if not all(o.aligned for o in p.operands):
        return "an array is not aligned"
    if p.op in RELU and _merged(p) is None:
        return f"the layout needs more than {AXES} axes, or too many items"
    if p.op in SOFTMAX and not _rows(p) and _columns(p) is None:
        return "the axis is not the innermost in memory, or there are gaps between elements"
    if p.op in POOLS and not _indexed(p):
        return f"an image has more than {MOST_POINTS} points, or there are more than {MOST_ITEMS} images"
    return ""


def prepare_compiled(p: NeuralProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `compiled_algorithms` listed."""
    like = p.operands[0]
    order = _order(like)
    steps, strides = p.dtype.itemsize, [0] * len(p.result)
    for axis in reversed(order):
        strides[axis] = steps
        steps *= max(p.result[axis], 1)
    b = Builder(p)
    out = b.result(p.dtype, p.result, strides)
    if p.op in SOFTMAX:
        count = _softmax(b, p, out) if _rows(p) else _softmax_columns(b, p, out, algorithm.threads)
    else:
        count = _relu(b, p, out) if p.op in RELU else _pooling(b, p, tuple(strides), out)
    big = prod(p.result) >= SMALL_ELEMENTS
    return b.plan(out, count=count, threads=algorithm.threads, release_gil=big)


def _order(o: Operand) -> tuple[int, ...]:
    """Axes of an operand from the outermost in memory to the innermost, those of one element first."""
    return tuple(sorted(range(len(o.shape)), key=lambda i: (o.shape[i] != 1, -abs(o.strides[i]))))


def _merged(p: NeuralProblem) -> list[list[int]] | None:
    """Sizes and strides of input, gradient and result along as few axes as they have together; None where they are too many."""
    # Relu is its own gradient where that comes in as the input.
    inputs = [next(o for o in p.operands if o.role == role) for role in ("input", "grad" if p.get("grad") else "input")]
    axes: list[list[int]] = []
    for axis in _order(inputs[0]):
        here = [p.result[axis], *(o.strides[axis] for o in inputs)]
        if here[0] == 1:
            continue
        if axes and all(outer == here[0] * inner for outer, inner in zip(axes[-1][1:], here[1:], strict=True)):
            axes[-1] = [axes[-1][0] * here[0], *here[1:]]
        else:
            axes.append(here)
    axes = axes or [[1, *(p.dtype.itemsize for _ in inputs)]]
    return axes if len(axes) <= AXES and (len(axes) == 1 or axes[0][0] <= MOST_ITEMS) else None


def _indexed(p: NeuralProblem) -> bool:
    """Tells whether the points of an image and the number of images are within the limits of the loop's integers."""
    rank = len(p.parameter("kernel"))
    return prod(p.result[-rank:]) <= MOST_POINTS and prod(p.result[:-rank]) <= MOST_ITEMS


def _rows(p: NeuralProblem) -> bool:
    """Tells whether the axis is the innermost in memory, has more than one element, and there are no gaps."""
    o, step = p.operands[0], p.dtype.itemsize
    order = _order(o)
    axis = p.parameter("axis")
    if o.shape[axis] > 1 and order[-1] != axis:
        return False
    for i in reversed(order):
        if o.shape[i] > 1 and o.strides[i] != step:
            return False
        step *= o.shape[i]
    return bool(o.shape[axis] > 1)


def _columns(p: NeuralProblem) -> tuple[int, int, int] | None:
    """Size before the axis, along it and after it in memory, where the axis is not the innermost and there are no gaps.

    Only for logarithms: oneDNN has a softmax that needs no copies, but its logarithms may be positive.
    """
    o, axis = p.operands[0], p.parameter("axis")
    if p.op != "log_softmax" or o.shape[axis] < 2:
        return None
    order, step = _order(o), p.dtype.itemsize
    for i in reversed(order):
        if o.shape[i] > 1 and o.strides[i] != step:
            return None
        step *= o.shape[i]
    at = order.index(axis)
    before, after = (prod(o.shape[i] for i in axes) for axes in (order[:at], order[at + 1 :]))
    return (before, o.shape[axis], after) if before * after <= MOST_ITEMS else None


def _softmax_columns(b: Builder, p: NeuralProblem, out: Any, threads: int) -> int:
    """Some columns at a time are brought into rows that stay in cache; returns the number of items of the last group."""
    sizes, item = _columns(p), p.dtype.itemsize
    assert sizes is not None
    before, width, after = sizes
    share = min(after, max(WORK_BYTES // (width * item), CACHE_LINE // item))
    given, work = b.argument("input"), b.work(share * width * item)
    count = before
    for columns, starts in ((share, range(0, after - share + 1, share)), (after % share, (after - after % share,))):
        if not columns:
            continue
        b.each(count, threads)  # what the round before has written down
        at = tuple((i * width * after + start) * item for i in range(before) for start in starts)
        source, target = (given[0], given[1], at), (out[0], out[1], at)
        fields = [item, vector_level(), True, columns, width, columns]
        description = b.packed(f"<{len(fields)}q", *fields)
        b.copy((columns, width), source, (item, after * item), work, (width * item, item), item)
        b.call(_kernels.addresses["softmax_rows"], [description, 0, work, work])
        b.copy((columns, width), work, (width * item, item), target, (item, after * item), item)
        count = len(at)
    return count


def _softmax(b: Builder, p: NeuralProblem, out: Any) -> int:
    """Write the loop down; returns the number of its items."""
    width: int = p.operands[0].shape[p.parameter("axis")]
    rows = prod(p.result) // width
    share = max(ROW_ELEMENTS // width, 1)
    fields = [p.dtype.itemsize, vector_level(), p.op == "log_softmax", rows, width, share]
    description = b.packed(f"<{len(fields)}q", *fields)
    count = -(-rows // share)
    b.call(_kernels.addresses["softmax_rows"], [description, list(range(count)), b.argument("input"), out])
    return count


def _relu(b: Builder, p: NeuralProblem, out: Any) -> int:
    """Write the loop down; returns the number of its items."""
    axes = _merged(p)
    assert axes is not None
    # The result has no gaps: its strides follow from the order of the axes, which is that of the input.
    step = p.dtype.itemsize
    for axis in reversed(axes):
        axis.append(step)
        step *= axis[0]
    if len(axes) == 1:  # a share for each thread: the last one begins early enough to be as long as the others
        n, *strides = axes[0]
        share = max(-(-n // SHARES), min(n, 1 << 12))
        starts = [min(i * share, n - share) for i in range(-(-n // share))]
        axes = [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [share, *strides]]
        first = [tuple(start * s for start in starts) for s in strides]
        items, count = [0] * len(starts), len(starts)
    else:
        axes = [axes[0], *[[1, 0, 0, 0]] * (AXES - len(axes)), *axes[1:]]
        first = [(0,) * axes[0][0]] * 3
        items, count = list(range(axes[0][0])), axes[0][0]
    fields = [p.dtype.itemsize, *(axis[i] for i in range(4) for axis in axes)]
    description = b.packed(f"<{len(fields)}q", *fields)
    grad = "grad" if p.get("grad") else "input"
    pointers = [b.argument("input", first[0]), b.argument(grad, first[1]), (out[0], out[1], first[2])]
    b.call(_kernels.addresses["relu_grad"], [description, items, *pointers])
    return count


def _pooling(b: Builder, p: NeuralProblem, strides: tuple[int, ...], out: Any) -> int:
    """Write the loop down; returns the number of its items."""
    kernel = p.parameter("kernel")
    rank = len(kernel)
    grad, given = p.get("grad"), p.get("input")
    assert grad is not None
    image, points = p.result[len(p.result) - rank :], grad.shape[len(grad.shape) - rank :]
    padding = p.parameter("padding")
    overhang = p.parameter("overhang") or (0,) * rank
    counted = tuple(n + after - more for n, (_, after), more in zip(image, padding, overhang, strict=True))
    batch, channels = (1, *p.result)[-rank - 2 :][:2]
    average = p.op != "max_pool_grad"
    near = sorted(strides)[0] == strides[-rank - 1] if channels > 1 else False
    lanes = max(min(channels, MOST_LANES, WORK_BYTES // (8 * prod(image))), min(channels, 8)) if near else 1

    def three(values: Any, fill: int) -> list[int]:
        return [fill] * (3 - rank) + [int(v) for v in values]

    def five(steps: tuple[int, ...]) -> list[int]:
        lead = (0, *steps[:-rank])[-2:]
        return [*lead, *three(steps[-rank:], 0)]

    fields = [
        p.dtype.itemsize, average, channels, lanes, *three(image, 1), *three(points, 1), *three(kernel, 1),
        *three(p.parameter("stride"), 1), *three(p.parameter("dilation") or (1,) * rank, 1),
        *three([before for before, _ in padding], 0), *three(counted, 1), bool(p.parameter("count_include_pad", True)),
        p.parameter("divisor") or 0, *five(given.strides if given else grad.strides), *five(grad.strides), *five(strides),
    ]  # fmt: skip
    description = b.packed(f"<{len(fields)}q", *fields)
    gradient = b.argument("grad")
    source = b.argument("input") if given else gradient
    count: int = batch * -(-channels // lanes)
    work = b.work(8 * prod(image) * lanes)
    b.call(_kernels.addresses["pooling_grad"], [description, list(range(count)), source, gradient, out, work])
    return count
