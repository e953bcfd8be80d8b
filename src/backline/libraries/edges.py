"""Edges: conditions on Problems under which vendor kernels are known to fail, as named pure functions.

A row of the errata table names one of them. A predicate is given Problems of its row's operations only, and looks at sizes and
parameters, never at data. The first line of its docstring is the condition in words.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import NamedTuple, TypeVar

from ..problems import Problem
from ..problems.attention_problem import AttentionProblem
from ..problems.conv_problem import ConvProblem
from ..problems.fft_problem import FftProblem
from ..problems.linalg_problem import LinalgProblem
from ..problems.matmul_problem import MatmulProblem, ProductProblem
from ..problems.packed_attention_problem import PackedAttentionProblem
from ..problems.quantized_problem import QuantizedProblem
from ..problems.rnn_problem import RnnProblem

__all__ = ["EDGES", "edge"]

EDGES: dict[str, Callable[[Problem], bool]] = {}
_P = TypeVar("_P", bound=Problem)


def edge(predicate: Callable[[_P], bool]) -> Callable[[_P], bool]:
    """Register a predicate under the name of its function, with hyphens."""
    # It is called with problems of its own type only, which the table does not say.
    EDGES[predicate.__name__.strip("_").replace("_", "-")] = predicate  # type: ignore[assignment]
    return predicate


# Products ---------------------------------------------------------------------------------------------------------------------


@edge
def terms_not_in_fours(p: MatmulProblem) -> bool:
    """The inner dimension of the product is not divisible by 4."""
    return p.k % 4 != 0


@edge
def row_with_gaps(p: ProductProblem) -> bool:
    """The first operand has one row, and the elements of the row do not lie side by side."""
    row = p.get("a")
    return row is not None and p.m == 1 and p.k > 1 and row.strides[-1] != row.dtype.itemsize


# Linear algebra ---------------------------------------------------------------------------------------------------------------


@edge
def both_sides_up_to_32(p: LinalgProblem) -> bool:
    """No side of the matrix is longer than 32."""
    return max(p.m, p.n) <= 32


# Attention --------------------------------------------------------------------------------------------------------------------


@edge
def lengths_not_of_128(p: AttentionProblem) -> bool:
    """The number of queries or of keys is no multiple of 128."""
    return any(n % 128 for n in p.lengths)


@edge
def masked_length_64_of_128(p: AttentionProblem) -> bool:
    """There is a mask, and the number of queries or of keys leaves 64 when divided by 128."""
    return p.mask is not None and any(n % 128 == 64 for n in p.lengths)


@edge
def one_query(p: AttentionProblem) -> bool:
    """There is one query."""
    return p.lengths[0] == 1


@edge
def grouped_with_few_heads(p: AttentionProblem | PackedAttentionProblem) -> bool:
    """There are fewer heads of keys than of queries, and fewer than 8."""
    return p.heads[1] < min(8, p.heads[0])


# Convolutions -----------------------------------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """One axis of the plain convolution that an operation belongs to: sizes, steps, and zeros before the image."""

    image: int
    kernel: int
    points: int
    stride: int
    dilation: int
    before: int


def axes(p: ConvProblem | QuantizedProblem) -> list[Axis]:
    """Return the axes of the plain convolution: a transposed one is the gradient of one, its result is that one's image."""
    if isinstance(p, QuantizedProblem):
        steps = (p.parameter(name) for name in ("stride", "dilation", "padding"))
        return [Axis(*each) for each in zip(p.shape("input")[2:], p.shape("weight")[2:], p.result[2:], *steps, strict=True)]
    image, points = (p.points, p.image) if p.transposed else (p.image, p.points)
    before = [a for a, _ in p.padding]
    return [Axis(*numbers) for numbers in zip(image, p.kernel, points, p.stride, p.dilation, before, strict=True)]


def _idle_tap(x: Axis) -> bool:
    """Return whether a row of the kernel lies in padding at every position."""
    for tap in range(x.kernel):
        first = -(-(x.before - tap * x.dilation) // x.stride)
        last = (x.image - 1 + x.before - tap * x.dilation) // x.stride
        if max(first, 0) > min(last, x.points - 1):
            return True
    return False


def _empty_window(x: Axis) -> bool:
    """Return whether a position of the kernel has no row in the image."""
    # A kernel with gaps no longer than the image can only miss it before its first point, or behind its last.
    positions = range(x.points) if x.dilation > x.image else {0, x.points - 1}
    for position in positions:
        start = position * x.stride - x.before
        first, last = -(start // x.dilation), (x.image - 1 - start) // x.dilation
        if max(first, 0) > min(last, x.kernel - 1):
            return True
    return False


def _unread_point(x: Axis) -> bool:
    """Return whether no position of the kernel reads some point of the image."""
    # What lies far from both ends repeats with the stride: a long image is cut to a short one with the same ends.
    surplus = max((x.image - 4 * (x.kernel * x.dilation + x.before + x.stride)) // x.stride, 0)
    surplus = min(surplus, x.points - 1)
    image, points = x.image - surplus * x.stride, x.points - surplus
    unread = set(range(image))
    for tap in range(x.kernel):
        start = tap * x.dilation - x.before
        unread.difference_update(range(start, start + points * x.stride, x.stride))
        if not unread:
            return False
    return True


@edge
def kernel_in_padding(p: ConvProblem) -> bool:
    """Some kernel element only meets padding, or some output point is computed from padding only."""
    return not p.empty and any(_idle_tap(x) or _empty_window(x) for x in axes(p))


@edge
def points_left_out(p: ConvProblem) -> bool:
    """Some kernel element or output point meets padding only, or some image point is not read."""
    return not p.empty and any(_idle_tap(x) or _empty_window(x) or _unread_point(x) for x in axes(p))


@edge
def uneven_windows(p: ConvProblem) -> bool:
    """Some kernel element or output point meets padding only, the kernel is longer than the image, or padding meets dilation."""
    if p.empty:
        return False
    padded, dilated = any(map(any, p.padding)), any(d > 1 for d in p.dilation)
    longer = any(x.image < x.dilation * (x.kernel - 1) + 1 for x in axes(p))
    return longer or (padded and dilated) or kernel_in_padding(p)


@edge
def volumes(p: ConvProblem) -> bool:
    """The images have three dimensions."""
    return len(p.kernel) == 3


@edge
def strided_point_kernel(p: ConvProblem) -> bool:
    """The kernel has one point, and a stride."""
    return all(k == 1 for k in p.kernel) and any(s > 1 for s in p.stride)


@edge
def result_below_stride(p: ConvProblem) -> bool:
    """The result is smaller than the stride along an axis; the kernel is neither dilated nor smaller than its stride."""
    dense = all(d == 1 for d in p.dilation) and all(k >= s for k, s in zip(p.kernel, p.stride, strict=True))
    return dense and any(n < s for n, s in zip(p.points, p.stride, strict=True))


TILE = 64  # bytes of a row of a tile of AMX


@edge
def channels_joined_to_tiles(p: ConvProblem | QuantizedProblem) -> bool:
    """Channels fill no whole tiles, those of as many points as divide kernel and stride do; no padding at the sides."""
    last, weight = axes(p)[-1], p.get("weight")
    assert weight is not None
    size = 1 if isinstance(p, QuantizedProblem) else 2  # bytes of bfloat16, in which float32 is multiplied as well
    if p.groups > 1 or last.dilation > 1 or last.before or (isinstance(p, ConvProblem) and p.padding[-1][1]):
        return False
    row = weight.shape[1] * size
    return row % TILE != 0 and row * gcd(last.kernel, last.stride) % TILE == 0


@edge
def rows_passed_over(p: ConvProblem | QuantizedProblem) -> bool:
    """The kernel has several points; along an axis but the last some of the image are not read, others behind them are."""
    every = axes(p)
    if all(x.kernel == 1 for x in every):
        return False
    ends = [(x.points - 1) * x.stride + (x.kernel - 1) * x.dilation + 1 - x.before for x in every]
    return any(_unread_point(x._replace(image=min(x.image, end))) for x, end in zip(every[:-1], ends[:-1], strict=True))


@edge
def padded_above_only(p: QuantizedProblem) -> bool:
    """Images whose zero point may not be 0 are padded, but not at the sides, and rows of the result have more than 32 points."""
    down, along = axes(p)
    return down.before > 0 and not along.before and not p.parameter("from_zero", False) and along.points > 32


# Fourier transforms -----------------------------------------------------------------------------------------------------------
#
# How the arrays lie, the number of transforms and the number of threads are left out on purpose: how libraries divide transforms
# among their kernels is not documented.


@edge
def uneven_end(p: FftProblem) -> bool:
    """The last length is even, 8192 or more, and no multiple of 64."""
    n = p.lengths[-1]
    return n >= 8192 and n % 2 == 0 and n % 64 != 0


@edge
def both_directions(p: RnnProblem) -> bool:
    """Recurrent networks that go through a sequence in both directions."""
    return p.directions == 2
