"""Largest elements and means of windows of images: of float32 and float64, and the largest of int8 and uint8 with channels last.

An item is some lines of the result, of bytes those of one image.
"""

from __future__ import annotations

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.memory_layout import contiguous_strides
from ...problems.neural_problem import NeuralProblem
from .conv_steps import cut, same
from .vector_level import vector_level

__all__ = ["pooling_refusal", "write_pooling"]

ITEMS = 16  # parts into which images are divided, whatever the number of threads
MOST_ITEMS = 1 << 16
FLOATS, BYTES = ("float32", "float64"), ("int8", "uint8")


def _shape(p: NeuralProblem) -> tuple[int, ...]:
    """Returns the shape of the input as images (N, C, H, W): those of one dimension have one line."""
    rank, shape = len(p.parameter("kernel")), p.operands[0].shape
    lead, image = shape[:-rank], shape[-rank:]
    return ((1, *lead)[-2:] if len(lead) < 2 else lead) + (1,) * (2 - rank) + image


def _axes(p: NeuralProblem, last: bool) -> tuple[int, ...]:
    """Returns the axes of images in the order of memory, that of channels last or where it stands."""
    axes, at = range(len(p.result)), len(p.result) - len(p.parameter("kernel")) - 1
    return (*axes[:at], *axes[at + 1 :], at) if last else tuple(axes)


def _last(p: NeuralProblem) -> bool | None:
    """Tells whether channels are last in memory, rather than first; None where there are gaps, or another order."""
    return next((last for last in (False, True) if p.operands[0].is_contiguous(_axes(p, last))), None)


def pooling_refusal(p: NeuralProblem) -> str:
    """Returns the reason why the loop cannot compute a Problem, or an empty string."""
    floats, rank = p.dtype.name in FLOATS, len(p.parameter("kernel"))
    names = (*FLOATS, *BYTES) if p.op == "max_pool" else FLOATS
    if p.dtype.name not in names:
        return f"its loop over windows is for {', '.join(names)}, not {p.dtype.name}"
    if floats:
        if rank > 2:
            return "its loop over windows is for images of one or two dimensions"
        return "there are gaps between elements" if _last(p) is None else ""
    if rank != 2 or len(p.result) != 4:
        return "its loop over bytes is for images (N, C, H, W)"
    if not p.operands[0].is_contiguous(_axes(p, True)):
        return "channels are not last in memory"
    return f"there are more than {MOST_ITEMS} images" if _shape(p)[0] > MOST_ITEMS else ""


def _windows(p: NeuralProblem, channels: int, *first: int) -> tuple[int, ...]:
    """Returns the numbers that a loop gets: `first` its own, then those of the windows."""
    missing = 2 - len(p.parameter("kernel"))
    points = (1,) * missing + p.result[len(p.result) - 2 + missing :]
    steps = tuple(1 if n == 1 else step for n, step in zip(points[missing:], p.parameter("stride"), strict=True))

    def two(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
        return (fill,) * missing + tuple(values)

    return (
        *first, vector_level(), channels, *_shape(p)[2:], *points, *two(p.parameter("kernel"), 1), *two(steps, 1),
        *two(tuple(pair[0] for pair in p.parameter("padding")), 0), *two(p.parameter("dilation") or (1,) * (2 - missing), 1),
    )  # fmt: skip


def write_pooling(b: Builder, p: NeuralProblem, threads: int) -> tuple[tuple[Pointer, ...], int]:
    """Writes the loop down; returns the result, and the number of its items."""
    return (_write_floats if p.dtype.name in FLOATS else _write_bytes)(b, p)


def _write_floats(b: Builder, p: NeuralProblem) -> tuple[tuple[Pointer, ...], int]:
    item, last = p.dtype.itemsize, bool(_last(p))
    images, channels, _, width = _shape(p)
    if not last:
        images, channels = images * channels, 1
    fields = _windows(p, channels, item == 8, p.op == "avg_pool", bool(p.parameter("count_include_pad", True)))
    lines, points = fields[7:9]
    out = b.result(p.dtype, p.result, contiguous_strides(p.result, item, _axes(p, last)))
    parts = cut(images * lines, -(-images * lines // ITEMS))
    firsts, counts = [first for first, _ in parts], same([count for _, count in parts])
    kernel, stride, before, dilation = fields[10::2]
    phases = 0 if last else stride * (max(points + (kernel - 1) * dilation // stride, before // stride + 1) + 1)
    what = b.packed(f"<{len(fields)}q", *fields)
    target = out[0], out[1], tuple(first * points * channels * item for first in firsts)
    work = b.work(item * (width * channels + points + phases))
    b.call(_kernels.addresses["pool_lines"], [what, b.argument("input"), target, work, firsts, counts])
    return (out,), len(parts)


def _write_bytes(b: Builder, p: NeuralProblem) -> tuple[tuple[Pointer, ...], int]:
    count, channels, height, width = _shape(p)
    _, _, lines, points = p.result
    fields = _windows(p, channels, p.dtype.kind == "i")
    out = b.result(p.dtype, p.result, contiguous_strides(p.result, 1, _axes(p, True)))
    parts = max(min(-(-ITEMS // count), lines), 1)
    firsts = [lines * i // parts for i in range(parts)] * count
    counts = [lines * (i + 1) // parts - lines * i // parts for i in range(parts)] * count
    images = [i for i in range(count) for _ in range(parts)]
    source = b.argument("input", tuple(i * channels * height * width for i in images))
    target = out[0], out[1], tuple((i * lines + first) * points * channels for i, first in zip(images, firsts, strict=True))
    what = b.packed(f"<{len(fields)}q", *fields)
    b.call(_kernels.addresses["pool_bytes"], [what, source, target, b.work(width * channels), firsts, counts])
    return (out,), len(images)
