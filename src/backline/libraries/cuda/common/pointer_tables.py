"""Tables of the addresses of a batch's items, as routines for batches want them: made on the device, by one kernel.

Nothing is copied from the host, which a call would wait for, and which no CUDA graph could repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from . import bindings, elementwise_kernels

__all__ = ["Steps", "source", "steps_of", "tables"]

Steps = tuple[tuple[int, tuple[int, ...]], ...]
"""Axes of a batch, the outermost first: size, and bytes from item to item of each table."""


def steps_of(batch: Sequence[int], offsets: Sequence[int | Sequence[int]]) -> Steps:
    """The axes of a batch from the offsets of its items in bytes: of each table one step for all, or the offset of every item.

    Examples
    --------
    >>> steps_of((2, 3), (8, (0, 0, 0, 24, 24, 24))), steps_of((2, 3), (8, 16))
    (((2, (24, 24)), (3, (8, 0))), ((6, (8, 16)),))
    """
    axes: list[tuple[int, tuple[int, ...]]] = []
    inner = 1
    for n in reversed(batch):
        if n > 1:
            steps = tuple(inner * each if isinstance(each, int) else each[inner] - each[0] for each in offsets)
            inside = axes[0] if axes else None
            if inside is not None and all(step == inside[0] * own for step, own in zip(steps, inside[1], strict=True)):
                axes[0] = n * inside[0], inside[1]
            else:
                axes.insert(0, (n, steps))
        inner *= n
    return tuple(axes) or ((1, (0,) * len(offsets)),)


@lru_cache
def source(count: int, axes: int) -> elementwise_kernels.Kernel:
    """The kernel of `count` tables over a batch of so many axes. Element i of all of them is item ``i % items`` of one."""
    names = [f"int64 base{t}" for t in range(count)] + ["int64 items"]
    text = "long long item = i % items; const long long which = i / items; long long at = 0;\n"
    text += _choice("at", [f"base{t}" for t in range(count)], "=")
    for axis in reversed(range(axes)):
        names += [f"int64 n{axis}", *(f"int64 s{axis}_{t}" for t in range(count))]
        text += f"{{ const long long k = item % n{axis}; item /= n{axis}; long long step = 0;\n"
        text += _choice("step", [f"s{axis}_{t}" for t in range(count)], "=") + "at += k * step; }\n"
    return elementwise_kernels.Kernel(", ".join(names), "T y", text + "y = at;")


def _choice(target: str, values: Sequence[str], operator: str) -> str:
    parts = [f"if (which == {t}) {target} {operator} {value};" for t, value in enumerate(values)]
    return " else ".join(parts) + "\n"


def tables(bases: Sequence[int], steps: Steps) -> Any:
    """The tables of a batch whose items are at these addresses and steps: int64 of shape (tables, items)."""
    items = prod(n for n, _ in steps)
    made = bindings.cupy().empty((len(bases), items), np.int64)
    kernel = elementwise_kernels.made(f"addresses_{len(bases)}_{len(steps)}", source(len(bases), len(steps)), "")
    numbers = [number for n, each in reversed(steps) for number in (n, *each)]
    kernel(*bases, items, *numbers, made)
    return made
