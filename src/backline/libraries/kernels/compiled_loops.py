"""Layers by compiled loops: relu and its gradient, softmax, and gradients of pooling; others in modules of their own.

No vendor library has these as they are wanted here: NaN stays one, and nothing has to be looked for before or after. An item is a
share of an array, some rows, or a few channels of an image, computed by one thread in one order. Those of pooling take sums in
float64 and round once; softmax is computed in the dtype, of 16-bit floats in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES, compute_dtype
from ...problems.memory_layout import contiguous_strides
from ...problems.neural_problem import NeuralProblem
from ..base import Algorithm, Refusal
from .normalization_loops import NORMALIZATIONS, normalization_refusal, write_normalization
from .pointwise_loops import ACTIVATIONS, GRADIENTS, pointwise_refusal, write_pointwise
from .pooling_loops import pooling_refusal, write_pooling
from .shares import DTYPES, Share, even_share, in_shares, memory_order, placed
from .vector_level import vector_level

__all__ = ["COMPILED", "compiled_algorithms", "prepare_compiled"]

COMPILED = "compiled"
RELU = ("relu", "relu_grad")
SOFTMAX = ("softmax", "log_softmax")
POOLS = ("max_pool_grad", "avg_pool_grad", "avg_pool_divided_grad")
PLAIN = ("float32", "float64")
MOST_ITEMS = 1 << 20
ROW_ELEMENTS = 1 << 13  # of softmax, in an item
AXES = 4  # that the loop over a relu has
SHARES = 16  # into which a large array is divided, whatever the number of threads
# Elements below which threads and the release of the GIL cost more than they bring; and bytes, as they are computed, of
# activations, whose formulas take longer.
THREADED, SMALL_ELEMENTS, FORMULAS_THREADED = 1 << 15, 1 << 13, 1 << 16
MOST_POINTS = 1 << 30  # of an image: places in it are int32 beside float32
LINE = 64  # columns that are worth an item of their own
MOST_LANES, WORK_BYTES = 64, 256 << 10  # channels of an item where they are neighbours in memory, and what it may take of a cache


def compiled_algorithms(p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the compiled loop for a Problem, on all threads and on one, or the reason why there is none."""
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", COMPILED, reason)
        return
    size, note = max(prod(o.shape) for o in p.operands), "a loop compiled for this"
    formula = p.op in (*ACTIVATIONS, *GRADIENTS)
    if threads > 1 and (size * compute_dtype(p.dtype).itemsize >= FORMULAS_THREADED if formula else size >= THREADED):
        yield Algorithm(
            library="kernels", name=COMPILED, threads=threads, scaled=True, level="threads", basis="construction",
            pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=COMPILED, level="threads", basis="construction", note=note)


def _refusal(p: NeuralProblem) -> str:
    """Returns the reason why there is no loop for a Problem, or an empty string."""
    if p.op not in LOOPS:
        return f"there is no compiled loop for {p.op}"
    if p.empty or not p.result:
        return "an array without elements, or without axes, needs no loop"
    if not all(o.aligned for o in p.operands):
        return "an array is not aligned"
    return _loop(p)[0](p)


def _own_refusal(p: NeuralProblem) -> str:
    """Returns the reason why a loop of this module cannot compute a Problem, or an empty string."""
    names = DTYPES if p.op in SOFTMAX else PLAIN
    if p.dtype.name not in names:
        return f"its loops are for {', '.join(names)}, not {p.dtype.name}"
    if p.op in RELU and _merged(p) is None:
        return f"the layout needs more than {AXES} axes, or too many items"
    if p.op in SOFTMAX and not _rows(p) and _columns(p) is None:
        return "the axis is not the innermost in memory, or there are gaps between elements"
    if p.op in POOLS and not _indexed(p):
        return f"an image has more than {MOST_POINTS} points, or there are more than {MOST_ITEMS} images"
    return ""


def prepare_compiled(p: NeuralProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `compiled_algorithms` listed."""
    b = Builder(p)
    results, count = _loop(p)[1](b, p, algorithm.threads)
    big = prod(p.result) >= SMALL_ELEMENTS
    return b.plan(*results, count=count, threads=algorithm.threads, release_gil=big)


def _write_own(b: Builder, p: NeuralProblem, threads: int) -> tuple[tuple[Pointer, ...], int]:
    """Writes a loop of this module down; returns the result, and the number of items of the last group."""
    like = p.operands[0]
    out = placed(b, p, like)
    if p.op in SOFTMAX:
        return (out,), (_softmax if _rows(p) else _softmax_columns)(b, p, out, threads)
    strides = contiguous_strides(p.result, p.dtype.itemsize, memory_order(like))
    return (out,), _relu(b, p, out) if p.op in RELU else _pooling(b, p, strides, out)


Loop = tuple[Callable[[NeuralProblem], str], Callable[[Builder, NeuralProblem, int], tuple[tuple[Pointer, ...], int]]]
POINTWISE: Loop = (pointwise_refusal, write_pointwise)
# Operation -> why there is no loop for a Problem, and what writes it down.
LOOPS: dict[str, Loop] = {
    **dict.fromkeys((*ACTIVATIONS, *GRADIENTS), POINTWISE),
    **dict.fromkeys(NORMALIZATIONS, (normalization_refusal, write_normalization)),
    **dict.fromkeys((*RELU, *SOFTMAX, *POOLS), (_own_refusal, _write_own)),
    **dict.fromkeys(("max_pool", "avg_pool"), (pooling_refusal, write_pooling)),
}


def _loop(p: NeuralProblem) -> Loop:
    """Returns the loop of an operation that has one; that of relu which takes gaps is for those who need it."""
    return POINTWISE if p.op in RELU and (p.dtype.name in HALVES or not pointwise_refusal(p)) else LOOPS[p.op]


def _merged(p: NeuralProblem) -> list[list[int]] | None:
    """Sizes and strides of input, gradient and result along as few axes as they have together; None where they are too many."""
    # Relu is its own gradient where that comes in as the input.
    inputs = [next(o for o in p.operands if o.role == role) for role in ("input", "grad" if p.get("grad") else "input")]
    axes: list[list[int]] = []
    for axis in memory_order(inputs[0]):
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
    order = memory_order(o)
    axis = p.parameter("axis")
    if o.shape[axis] > 1 and order[-1] != axis:
        return False
    for i in reversed(order):
        if o.shape[i] > 1 and o.strides[i] != step:
            return False
        step *= o.shape[i]
    return bool(o.shape[axis] > 1)


def _columns(p: NeuralProblem) -> tuple[int, int, int] | None:
    """Size before the axis, along it and after it in memory, where the axis is not the innermost and there are no gaps."""
    o, axis = p.operands[0], p.parameter("axis")
    if o.shape[axis] < 2:
        return None
    order, step = memory_order(o), p.dtype.itemsize
    for i in reversed(order):
        if o.shape[i] > 1 and o.strides[i] != step:
            return None
        step *= o.shape[i]
    at = order.index(axis)
    before, after = (prod(o.shape[i] for i in axes) for axes in (order[:at], order[at + 1 :]))
    return (before, o.shape[axis], after) if before * after <= MOST_ITEMS else None


def _softmax_columns(b: Builder, p: NeuralProblem, out: Pointer, threads: int) -> int:
    """Write the loop over columns side by side down; returns the number of items of the last group."""
    sizes, item, name = _columns(p), p.dtype.itemsize, p.dtype.name
    assert sizes is not None
    before, width, after = sizes
    halves, wide = name in HALVES, compute_dtype(p.dtype).itemsize
    most = max(WORK_BYTES // (width * wide), LINE)
    share = max(min(even_share(before * after, width, most * width, LINE), after, most), min(LINE, after))
    given, work = b.argument("input"), b.work(share * width * wide) if halves else out
    count = 1
    for columns, starts in ((share, range(0, after - share + 1, share)), (after % share, (after - after % share,))):
        if not columns:
            continue
        b.each(count, threads if count > 1 else 1)  # what the round before has written down
        at = tuple((i * width * after + start) * item for i in range(before) for start in starts)
        source, target = (given[0], given[1], at), (out[0], out[1], at)
        step = columns if halves else after
        fields = [wide, vector_level(), p.op == "log_softmax", width, step, step]
        description = b.packed(f"<{len(fields)}q", *fields)
        if halves:
            b.copy((width, columns), source, (after * item, item), work, (columns * wide, wide), (name, "float32"))
        here = (work, work) if halves else (source, target)
        b.call(_kernels.addresses["softmax_columns"], [description, columns, *here])
        if halves:
            b.copy((width, columns), work, (columns * wide, wide), target, (after * item, item), ("float32", name))
        count = len(at)
    return count


def _softmax(b: Builder, p: NeuralProblem, out: Pointer, threads: int) -> int:
    """Write the loop down; returns the number of items of the last group."""
    width: int = p.operands[0].shape[p.parameter("axis")]
    rows = prod(p.result) // width
    share = even_share(rows, width, ROW_ELEMENTS)
    halves, given = p.dtype.name in HALVES, b.argument("input")
    work = b.work(4 * share * width) if halves else out

    def write(at: Share) -> None:
        source = at.load(given, p.dtype, width, work)
        _rows_of_softmax(b, p, at.units, width, source, work if halves else at.place(out, width * p.dtype.itemsize))
        at.store(work, out, p.dtype, width)

    return in_shares(b, rows, share, threads, write)


def _rows_of_softmax(b: Builder, p: NeuralProblem, rows: int, width: int, source: Pointer, target: Pointer) -> None:
    """Write the loop over some rows down."""
    fields = [compute_dtype(p.dtype).itemsize, vector_level(), p.op == "log_softmax", rows, width, rows]
    description = b.packed(f"<{len(fields)}q", *fields)
    b.call(_kernels.addresses["softmax_rows"], [description, 0, source, target])


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
    fields = [p.dtype.itemsize, vector_level(), *(axis[i] for i in range(4) for axis in axes)]
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
