"""Steps of a Fourier transform by cuFFT, as values: memory, plans, the copies around them, and their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Buffer", "Copy", "Exec", "Offsets", "PlanKey", "Recipe", "Scale", "Side", "Slices", "Step", "Widen", "Zero"]

Slices = tuple[tuple[int, int, int], ...]  # of each axis: begin, end, step
Offsets = tuple[tuple[int, int], ...]  # bytes of the two sides


@dataclass(frozen=True, slots=True)
class Side:
    """Layout of one side of a plan, in elements: storage size of each axis, stride of the last axis, stride of the batch."""

    embed: tuple[int, ...]
    stride: int
    dist: int


@dataclass(frozen=True, slots=True)
class PlanKey:
    """One plan of cuFFT: all that it depends on, and the key that it is kept under."""

    sizes: tuple[int, ...]  # points along up to three axes
    batch: int  # how many transforms
    # source, target: how they lie.
    source: Side
    target: Side
    kind: str  # "C2C", "R2C" or "C2R"
    value: str  # "f16", "f32" or "f64"


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array of a recipe: an operand of the call (`operand` is its position), the result, or memory for a while.

    `order` has the axes as they lie in memory, the widest first; those of an operand lie as its `strides` say. A buffer of
    `pairs` has a further axis of 2: the parts of complex numbers for which there is no dtype.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    operand: int = -1
    order: tuple[int, ...] = ()
    pairs: bool = False


@dataclass(frozen=True, slots=True)
class Zero:
    """Zeros into a part of a buffer; with `imag`, into the imaginary parts."""

    target: int
    slices: Slices
    imag: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A part of a buffer into one of another, converted; with `conj`, the conjugates of complex numbers."""

    source: int
    slices: Slices
    target: int
    into: Slices
    conj: bool = False


@dataclass(frozen=True, slots=True)
class Exec:
    """One plan, run once for each pair of offsets in bytes. Direction: -1 forward, +1 inverse."""

    key: PlanKey
    source: int
    target: int
    direction: int
    offsets: Offsets = ((0, 0),)


@dataclass(frozen=True, slots=True)
class Widen:
    """Pairs of float16 into complex64."""

    source: int
    target: int
    into: Slices


@dataclass(frozen=True, slots=True)
class Scale:
    """Every element times a number."""

    target: int
    factor: float


Step = Zero | Copy | Exec | Widen | Scale


@dataclass(frozen=True, slots=True)
class Recipe:
    """All of one transform."""

    # buffers, steps: the arrays by their index, and what is done, in order.
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    result: int  # index of the buffer that is returned
    # Buffers of the caller that a plan uses as they are: their addresses must be multiples of so many bytes.
    needs: tuple[tuple[int, int], ...] = ()
    # The recipe for addresses that are not, which only a call knows; it copies these buffers.
    otherwise: Recipe | None = field(default=None, compare=False)

    @property
    def plans(self) -> tuple[PlanKey, ...]:
        """The plans it needs, each once."""
        return tuple(dict.fromkeys(step.key for step in self.steps if isinstance(step, Exec)))
