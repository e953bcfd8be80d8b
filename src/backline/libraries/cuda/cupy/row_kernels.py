"""Softmax, normalisation and their gradients on CUDA arrays as one kernel each: which launches an operation takes, and its Plan.

An array is seen as it lies in memory: as `outer` pieces of `n` elements that are reduced, each with `inner` elements from one to
the next. Rows (`inner` is 1) are read in chunks of 16 bytes by as many threads as they have chunks for, a part of a warp or a
block; rows that do not fit into registers are read twice. Where `inner` is more, neighbouring threads take neighbouring columns.
An array that lies in no such way is copied first. What is computed stands in `row_operations_source` and `batch_norm_source`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ....errors import LibraryFailed
from ....problems import Operand
from ....problems.dtypes import compute_dtype
from ....problems.neural_problem import NeuralProblem
from ..common import bindings
from ..common.dense_views import Order, is_dense, memory_order, new
from ..common.device_facts import device_info, index_of
from . import row_source
from .batch_norm_source import BATCH, CHANNELS
from .layer_norm_source import LAYER_SUMS
from .row_operations_source import ROWS

__all__ = ["NAME", "NOTE", "OPERATIONS", "Geometry", "compiled", "function", "geometry", "refusal", "rows_launch", "source"]

Array = Any
Run = Callable[..., Any]

OPERATIONS = {
    "softmax": "Softmax", "log_softmax": "LogSoftmax", "softmax_grad": "SoftmaxGrad", "log_softmax_grad": "LogSoftmaxGrad",
    "layer_norm": "LayerNorm", "layer_norm_grad": "LayerNormGrad", "rms_norm": "RmsNorm", "batch_norm": "BatchNorm",
    "batch_norm_train": "", "batch_norm_train_grad": "",
}  # fmt: skip
"""The operations that there are kernels for, each with the class that it is in `ROWS`."""

KEPT = {"softmax": "KeptSoftmax", "log_softmax": "KeptLogSoftmax", "layer_norm": "KeptLayerNorm"}
"""Of operations with two classes, the one for rows that threads keep in registers."""

NAME = "rows"
NOTE = "one kernel; statistics and sums of channels take one or two more where several blocks share a channel"
MOST_BLOCKS = (1 << 31) - 1  # of a grid; each takes several rows where there are more
WARP, BLOCK = 32, 1024  # threads
SMALL_BLOCK = 128  # threads of a block whose rows are shorter than a block
CHUNKS = {True: 2, False: 4}  # that a thread keeps in registers, of two arrays and of one; a power of two
SUMS = "layer_norm_sums"  # the kernel of the gradients of layer_norm by weight and bias
STEPS = 8  # that a thread goes through of a channel, before several blocks share it
_kernels: dict[tuple[Any, str, str], Any] = {}  # by the CuPy that compiled it


# --- where the elements are ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Geometry:
    """Order of axes in memory, and in that order: pieces, elements that are reduced, elements from one of these to the next."""

    order: Order
    outer: int
    n: int
    inner: int


def geometry(p: NeuralProblem) -> Geometry | None:
    """Returns how the first array of a Problem lies; None where what is reduced does not lie together, in its order."""
    first = _first(p)
    shape, order = first.shape, memory_order(first.shape, first.strides)
    if p.op.startswith("batch_norm"):
        axes: tuple[int, ...] = (1,)
    elif p.parameter("axes"):
        axes = tuple(range(len(shape) - p.parameter("axes"), len(shape)))
    else:
        axes = (p.parameter("axis"),) if shape else ()
    real = [axis for axis in order if shape[axis] != 1]
    reduced = [axis for axis in real if axis in axes]
    if reduced != sorted(reduced):
        return None
    at = real.index(reduced[0]) if reduced else len(real)
    if real[at : at + len(reduced)] != reduced:
        return None
    sizes = [shape[axis] for axis in real]
    return Geometry(order, prod(sizes[:at]), prod(sizes[at : at + len(reduced)]), prod(sizes[at + len(reduced) :]))


def _first(p: NeuralProblem) -> Operand:
    return next(o for o in p.operands if o.role in ("input", "result", "grad"))


def refusal(p: NeuralProblem) -> str:
    """Returns why there is no kernel for a Problem; empty if there is."""
    if p.op not in OPERATIONS:
        return f"there is no kernel for {p.op}"
    if p.dtype.name not in row_source.TYPES:
        return f"the kernels are for {', '.join(row_source.TYPES)}, not {p.dtype.name}"
    return "" if geometry(p) is not None else "the axes that are normalised do not lie together in memory, in their order"


# --- launches --------------------------------------------------------------------------------------------------------


def _power(n: int) -> int:
    """Returns the least power of two that is no less."""
    return 1 << max(n - 1, 0).bit_length()


def rows_launch(rows: int, n: int, inner: int, itemsize: int, two: bool = False) -> tuple[str, int, tuple[int, int]]:
    """Returns the body of the kernel for rows, blocks of the grid, and threads of a block.

    `inner` is 1 for rows in one piece; `two`, whether two arrays are read.

    Examples
    --------
    >>> rows_launch(1000, 12, 1, 4), rows_launch(1000, 4096, 1, 4)
    (('by_rows<{}, 1>', 32, (4, 32)), ('by_rows<{}, 4>', 1000, (256, 1)))
    >>> rows_launch(10, 200_000, 1, 4), rows_launch(64, 100, 7, 4)
    (('by_rows<{}, 0>', 10, (1024, 1)), ('by_columns<{}>', 2, (32, 16)))
    """
    width = 16 // itemsize
    chunks = -(-n // width)
    if inner > 1:
        return "by_columns<{}>", min(-(-rows // WARP), MOST_BLOCKS), (WARP, min(_power(-(-chunks // 2)), 16))
    most = CHUNKS[two]
    if chunks <= WARP * most:
        threads = min(_power(chunks), WARP)
        beside = SMALL_BLOCK // threads
        kept = _power(-(-chunks // threads))
        return f"by_rows<{{}}, {kept}>", min(-(-rows // beside), MOST_BLOCKS), (threads, beside)
    kept = most if chunks <= BLOCK * most else 0
    threads = min(-(-chunks // (WARP * (kept or 1))) * WARP, BLOCK)
    return f"by_rows<{{}}, {kept}>", min(rows, MOST_BLOCKS), (threads, 1)


_SIGNATURES = {
    "": ("const T *x, T *y, L rows, L n, L inner", "x, 0, y, rows, n, inner"),
    "_grad": ("const T *x, const T *g, T *y, L rows, L n, L inner", "x, g, y, rows, n, inner"),
    "_norm": (
        "const T *x, T *y, L rows, L n, L inner, const void *weight, const void *bias, int weight_kind, int bias_kind, "
        "double eps",
        "x, 0, y, rows, n, inner, weight, bias, 0, 0, weight_kind, bias_kind, 0, 0, 0, eps",
    ),
    "batch_norm": (
        "const T *x, T *y, L rows, L n, L channels, const void *mean, const void *variance, const void *weight, "
        "const void *bias, int mean_kind, int variance_kind, int weight_kind, int bias_kind, double eps",
        "x, 0, y, rows, n, 1, weight, bias, mean, variance, weight_kind, bias_kind, mean_kind, variance_kind, channels, eps",
    ),
    "layer_norm_grad": (
        "const T *x, const T *g, T *y, L rows, L n, L inner, const void *weight, int weight_kind, double eps, S *kept",
        "x, g, y, rows, n, inner, weight, 0, 0, 0, weight_kind, 0, 0, 0, 0, eps, kept",
    ),
}  # fmt: skip
"""Parameters of the kernels, and the fields of `Given` made of them, by the end of an operation's name."""


def source(op: str, dtype: str, body: str = "", **facts: str) -> str:
    """Returns the CUDA C++ of the kernel of an operation for a dtype.

    Parameters
    ----------
    op, dtype
        One of `OPERATIONS`, or `SUMS`, and of the elements.
    body
        From `rows_launch`; empty for sums of channels, whose kernels `facts` are about.
    """
    element, compute = row_source.TYPES[dtype]
    head = row_source.HEAD.replace("ELEMENT", element).replace("COMPUTE", compute) + row_source.STATISTICS + ROWS
    if not body:
        defined = "".join(f"#define {name} {value}\n" for name, value in facts.items())
        return defined + head + CHANNELS + (LAYER_SUMS if op == SUMS else BATCH)
    parameters, fields = next(text for end, text in reversed(_SIGNATURES.items()) if op.endswith(end))
    kept = body.startswith("by_rows") and not body.endswith(" 0>")
    called = body.format(KEPT.get(op, OPERATIONS[op]) if kept else OPERATIONS[op])
    bound = f"__launch_bounds__({BLOCK})"
    return f'{head}\nextern "C" __global__ {bound} void {op}({parameters})\n{{ const Given p = {{{fields}}}; {called}(p); }}\n'


def compiled(text: str, name: str) -> Any:
    """Returns the kernel of a name in CUDA C++, compiled once."""
    cupy = bindings.cupy()
    kernel = _kernels.get((cupy, text, name))
    if kernel is None:
        try:
            kernel = cupy.RawKernel(text, name)
            kernel.compile()
        except Exception as error:  # CuPy's own, which is no RuntimeError: the formula runs in its place
            raise LibraryFailed(f"NVRTC did not compile the kernel {name}", cause=f"{type(error).__name__}: {error}") from error
        _kernels[cupy, text, name] = kernel
    return kernel


# --- Plans -----------------------------------------------------------------------------------------------------------


def function(p: NeuralProblem) -> Run:
    """Returns the function of the arrays of a call, for a Problem that `refusal` has nothing against, with elements."""
    where = geometry(p)
    assert where is not None
    if p.op == "layer_norm_grad":
        return _layer_norm_grad(p, where)
    return (_batch_norm if p.op.startswith("batch_norm_train") else _rows)(p, where)


class _Inputs:
    """Takes the arrays of a call: the large ones dense, with the axes of the first one's order; parameters in one piece."""

    def __init__(self, p: NeuralProblem, order: Order) -> None:
        self.cupy, self.order = bindings.cupy(), order
        large = ("input", "result", "grad")
        self.large = [(i, is_dense(o, order)) for i, o in enumerate(p.operands) if o.role in large]
        self.large.sort(key=lambda each: p.operands[each[0]].role == "grad")  # the gradient comes second, wherever it stands
        self.places = {o.role: (i, o.is_contiguous()) for i, o in enumerate(p.operands) if o.role not in large}
        self.kinds = {
            role: np.int32(0 if (o := p.get(role)) is None else 1 if o.dtype == p.dtype else 2)
            for role in ("weight", "bias", "mean", "variance")
        }

    def arrays(self, arrays: tuple[Array, ...]) -> list[Array]:
        return [arrays[i] if dense else self._copied(arrays[i]) for i, dense in self.large]

    def _copied(self, array: Array) -> Array:
        made = new(self.cupy, array.shape, array.dtype, self.order)
        made[...] = array
        return made

    def parameter(self, role: str, arrays: tuple[Array, ...]) -> Array:
        place = self.places.get(role)
        if place is None:
            return NOTHING
        return arrays[place[0]] if place[1] else self.cupy.ascontiguousarray(arrays[place[0]])


NOTHING = np.uint64(0)  # a pointer to no array


def _rows(p: NeuralProblem, where: Geometry) -> Run:
    first, inputs, cupy = _first(p), _Inputs(p, where.order), bindings.cupy()
    by_channel = p.op == "batch_norm"
    rows, n, inner = where.outer * where.inner, where.n, where.inner
    if by_channel:  # nothing is reduced: rows are what lies together of a channel, or the channels of a place
        rows, n, inner = (where.outer * where.n, where.inner, 1) if where.inner > 1 else (where.outer, where.n, 1)
    body, blocks, threads = rows_launch(rows, n, inner, first.dtype.itemsize, p.op.endswith("_grad"))
    kernel = compiled(source(p.op, p.dtype.name, body), p.op)
    kinds, eps = inputs.kinds, np.float64(p.parameter("eps", 0.0))
    channels = where.n if where.inner > 1 else 0
    sizes = tuple(np.int64(v) for v in (rows, n, channels if by_channel else inner))
    if by_channel:
        roles: tuple[str, ...] = ("mean", "variance", "weight", "bias")
    else:
        roles = ("weight", "bias") if p.op.endswith("_norm") else ()
    rest = (*(kinds[role] for role in roles), eps) if roles else ()
    grid, order = (blocks,), where.order

    def run(*arrays: Array) -> Array:
        given = inputs.arrays(arrays)
        y = new(cupy, given[0].shape, given[0].dtype, order)
        kernel(grid, threads, (*given, y, *sizes, *(inputs.parameter(role, arrays) for role in roles), *rest))
        return y

    return run


def _batch_norm(p: NeuralProblem, where: Geometry) -> Run:
    inputs, cupy = _Inputs(p, where.order), bindings.cupy()
    grad, wide = p.op.endswith("_grad"), compute_dtype(p.dtype)
    channels = where.n
    grid, threads, facts = _shares(p, where)
    kernel = compiled(source(p.op, p.dtype.name, **facts), "batch_norm_grad" if grad else p.op)
    sizes = (*(np.int64(v) for v in (where.outer, channels, where.inner)), np.int32(grid[1]))
    phases = [np.int32(v) for v in ((0,) if grid[1] == 1 else (1, 2, 3) if grad else (1, 2))]
    roles = ("weight",) if grad else ("weight", "bias")
    eps, kinds = np.float64(p.parameter("eps")), tuple(inputs.kinds[role] for role in roles)
    fields = (6 if grad else 4) * grid[1] * channels
    order, rest = where.order, p.dtype if grad else wide

    def run(*arrays: Array) -> tuple[Array, ...]:
        given = inputs.arrays(arrays)
        y = new(cupy, given[0].shape, given[0].dtype, order)
        results = (y, cupy.empty(channels, rest), cupy.empty(channels, rest))
        partial = cupy.empty(fields, wide) if len(phases) > 1 else NOTHING
        parameters = tuple(inputs.parameter(role, arrays) for role in roles)
        for phase in phases:
            kernel(grid, threads, (*given, *results, partial, *sizes, phase, eps, *parameters, *kinds))
        return results

    return run


def _shares(p: NeuralProblem, where: Geometry) -> tuple[tuple[int, int], tuple[int, int], dict[str, str]]:
    """Returns blocks and threads for sums of channels, and what their kernels are compiled for."""
    width = 16 // p.dtype.itemsize
    grid, threads, columns = batch_norm_launch(where, width, device_info(index_of(p)).multiprocessors)
    facts = {
        "COLUMNS": str(int(columns)), "VECTOR": str(int(not columns and where.inner % width == 0)),
        "INDEX": "unsigned" if where.outer * where.inner < 1 << 31 else "unsigned long long",
    }  # fmt: skip
    return grid, threads, facts


def _layer_norm_grad(p: NeuralProblem, where: Geometry) -> Run:
    """The gradient of each row is one kernel; sums over rows, of parts of them where there are many, are another."""
    inputs, cupy, wide = _Inputs(p, where.order), bindings.cupy(), compute_dtype(p.dtype)
    rows, n, inner, order = where.outer * where.inner, where.n, where.inner, where.order
    body, blocks, threads = rows_launch(rows, n, inner, p.dtype.itemsize, True)
    by_row = compiled(source(p.op, p.dtype.name, body), p.op)
    grid, beside, facts = _shares(p, where)
    over_rows = compiled(source(SUMS, p.dtype.name, **facts), SUMS)
    shape, parts = p.result[len(p.result) - p.parameter("axes") :], grid[1]
    lengths = tuple(np.int64(v) for v in (rows, n, inner))
    sizes = (*(np.int64(v) for v in (where.outer, n, inner)), np.int32(parts))
    launches = [(grid, np.int32(0))] if parts == 1 else [(grid, np.int32(1)), ((grid[0], 1), np.int32(2))]
    kind, eps = inputs.kinds["weight"], np.float64(p.parameter("eps"))

    def run(*arrays: Array) -> tuple[Array, ...]:
        given = inputs.arrays(arrays)
        y = new(cupy, given[0].shape, given[0].dtype, order)
        by_weight, by_bias, kept = cupy.empty(shape, y.dtype), cupy.empty(shape, y.dtype), cupy.empty(3 * rows, wide)
        by_row((blocks,), threads, (*given, y, *lengths, inputs.parameter("weight", arrays), kind, eps, kept))
        partial = cupy.empty(2 * parts * n, wide) if parts > 1 else NOTHING
        for blocks_of, phase in launches:
            over_rows(blocks_of, beside, (*given, kept, by_weight, by_bias, partial, *sizes, phase))
        return y, by_weight, by_bias

    return run


def batch_norm_launch(where: Geometry, width: int, multiprocessors: int) -> tuple[tuple[int, int], tuple[int, int], bool]:
    """Returns blocks and threads for statistics of channels, and whether these lie side by side, a thread for each.

    Several blocks share a channel where there are fewer blocks than multiprocessors, and enough of each channel.
    """
    each, columns = where.outer * where.inner, where.inner == 1
    chunks = -(-each // width)
    if columns:
        tiles, threads = -(-where.n // WARP), (WARP, min(_power(chunks), 16))
        beside = threads[1]
    else:
        beside = min(-(-chunks // WARP) * WARP, BLOCK)
        tiles, threads = where.n, (beside, 1)
    steps = -(-chunks // beside)
    parts = 1
    if tiles < multiprocessors and steps >= 2 * STEPS:
        parts = min(-(-2 * multiprocessors // tiles), steps // STEPS)
    return (tiles, parts), threads, columns
