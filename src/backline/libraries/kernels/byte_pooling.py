"""Largest elements of windows of images of int8 and uint8 with channels last in memory, as networks of integers have them.

An item is some lines of the result of an image.
"""

from __future__ import annotations

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.memory_layout import contiguous_strides
from ...problems.neural_problem import NeuralProblem
from .vector_level import vector_level

__all__ = ["pooling_refusal", "write_pooling"]

ITEMS = 16  # parts into which large images are divided, whatever the number of threads
MOST_ITEMS = 1 << 16


def pooling_refusal(p: NeuralProblem) -> str:
    """Returns the reason why the loop cannot compute a Problem, or an empty string."""
    o = p.operands[0]
    if p.dtype.name not in ("int8", "uint8"):
        return f"its loop over windows is for int8 and uint8, not {p.dtype.name}"
    if len(o.shape) != 4 or len(p.parameter("kernel")) != 2:
        return "its loop over windows is for images (N, C, H, W)"
    last = contiguous_strides(o.shape, 1, (0, 2, 3, 1))
    if any(n > 1 and s != t for n, s, t in zip(o.shape, o.strides, last, strict=True)):
        return "channels are not last in memory"
    return f"there are more than {MOST_ITEMS} images" if o.shape[0] > MOST_ITEMS else ""


def write_pooling(b: Builder, p: NeuralProblem, threads: int) -> tuple[tuple[Pointer, ...], int]:
    """Writes the loop down; returns the result, and the number of its items."""
    count, channels, height, width = p.operands[0].shape
    _, _, lines, points = p.result
    before = tuple(pair[0] for pair in p.parameter("padding"))
    fields = [
        p.dtype.kind == "i", vector_level(), channels, height, width, lines, points, *p.parameter("kernel"),
        *p.parameter("stride"), *before, *p.parameter("dilation"),
    ]  # fmt: skip
    out = b.result(p.dtype, p.result, contiguous_strides(p.result, 1, (0, 2, 3, 1)))
    parts = max(min(-(-ITEMS // count), lines), 1)
    firsts = [lines * i // parts for i in range(parts)] * count
    counts = [lines * (i + 1) // parts - lines * i // parts for i in range(parts)] * count
    images = [i for i in range(count) for _ in range(parts)]
    source = b.argument("input", tuple(i * channels * height * width for i in images))
    target = out[0], out[1], tuple((i * lines + first) * points * channels for i, first in zip(images, firsts, strict=True))
    what = b.packed(f"<{len(fields)}q", *fields)
    b.call(_kernels.addresses["pool_bytes"], [what, source, target, b.work(width * channels), firsts, counts])
    return (out,), len(images)
