"""Sequence of cuFFT's work for a Fourier transform: plans, copies around them, and their order. No device is needed.

cuFFT transforms up to three axes at once and one axis of a batch, and takes strides only where each axis lies inside the one
before it. What lies otherwise is copied, or transformed in several calls or passes; both are decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ....problems import Operand
from ....problems.fft_problem import FftProblem
from ....problems.memory_layout import contiguous_strides
from ...fft_steps import merge, offsets
from .transform_steps import Buffer, Copy, Exec, Offsets, PlanKey, Recipe, Scale, Side, Slices, Step, Widen, Zero

__all__ = ["half_refusal", "recipe", "refusal"]

MOST_AXES = 3
MIRRORED_AXES = 3  # a mirrored result of more axes falls into too many parts: its input is made complex instead
FEW_CALLS, MOST_CALLS = 8, 4096
LONG_CALL = 1 << 20  # bytes of a call from which on many calls cost less than copying everything
HALF_CAPABILITY = (5, 3)
MOST_HALVES = 4_000_000_000  # elements: NVIDIA says that its float16 transforms span no more than 4 billion


def refusal(p: FftProblem) -> str:
    """Returns why cuFFT does not support a Problem at all, or an empty string."""
    if p.op == "fft.r2r":
        return "cuFFT has no cosine and sine transforms"
    if p.dtype.char in "gG":
        return "a GPU has no longdouble"
    if any(s % o.dtype.itemsize for o in p.operands for s, n in zip(o.strides, o.shape, strict=True) if n > 1):
        return "an array's strides are no multiples of its element's size"
    return ""


def half_refusal(p: FftProblem, capability: tuple[int, int]) -> str:
    """Returns why cuFFT does not transform a float16 Problem in float16, or an empty string."""
    if p.op == "fft.c2r":
        return "cuFFT's transforms in float16 are used for real input that is no spectrum"
    if capability < HALF_CAPABILITY:
        return f"transforms in float16 take compute capability 5.3, and the device has {capability[0]}.{capability[1]}"
    wrong = [n for n in p.lengths if n & (n - 1)]
    if wrong:
        return f"transforms in float16 are of powers of two, not {wrong[0]}"
    if len(p.axes) > MOST_AXES:
        return f"transforms in float16 are of up to {MOST_AXES} axes, not {len(p.axes)}"
    count = max(prod(p.result), *(prod(o.shape) for o in p.operands))
    if count > MOST_HALVES:
        return f"transforms in float16 span at most {MOST_HALVES} elements, not {count}"
    return ""


def recipe(p: FftProblem, way: str = "plan") -> Recipe:
    """The recipe for a Problem that `refusal` lets pass; `way` is "plan", or "half" where `half_refusal` lets it pass."""
    direct = _Writer(p, way, copied=False).written()
    if not direct.needs:
        return direct
    return replace(direct, otherwise=_Writer(p, way, copied=True).written())


@dataclass(frozen=True, slots=True)
class _Part:
    """A buffer's first elements along each axis."""

    index: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int

    def cut(self, axis: int, n: int) -> _Part:
        return replace(self, shape=tuple(n if i == axis else m for i, m in enumerate(self.shape)))

    @property
    def slices(self) -> Slices:
        return tuple((0, n, 1) for n in self.shape)


class _Writer:
    """Writes down one recipe; with `copied`, no plan uses an array of the caller."""

    def __init__(self, p: FftProblem, way: str, copied: bool) -> None:
        self.p, self.way, self.copied = p, way, copied
        self.value = "f16" if way == "half" else "f32" if p.single else "f64"
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.needs: dict[int, int] = {}

    def written(self) -> Recipe:
        p = self.p
        o, out = p.get("input"), p.get("out")
        assert o is not None
        x = self.given(o, p.index("input"))
        y = self.new(p.result, p.result_dtype) if out is None else self.given(out, p.index("out"))
        if not p.empty:
            if not p.axes:
                self.steps.append(Copy(x.index, x.slices, y.index, y.slices))
            else:
                getattr(self, p.op.removeprefix("fft."))(x, y)
            if p.scale != 1.0:
                self.steps.append(Scale(y.index, p.scale))
        return Recipe(tuple(self.buffers), tuple(self.steps), y.index, tuple(self.needs.items()))

    # the operations -----------------------------------------------------------------------------------------------------

    def c2c(self, x: _Part, y: _Part) -> None:
        p = self.p
        if p.dtype.kind == "c":
            self.passes(self.ready(x, y, "C2C"), y, p.sign)
        elif self.way == "half" or len(p.axes) <= MIRRORED_AXES:
            half = y.cut(p.axes[-1], p.lengths[-1] // 2 + 1)
            self.real(x, half)
            if p.sign > 0:
                self.steps.append(Copy(half.index, half.slices, half.index, half.slices, conj=True))
            self.mirror(y)
        else:
            self.passes(self.ready(x, y, "C2C", p.complex), y, p.sign)

    def r2c(self, x: _Part, y: _Part) -> None:
        self.real(x, y)
        if self.p.sign > 0:
            self.steps.append(Copy(y.index, y.slices, y.index, y.slices, conj=True))

    def real(self, x: _Part, y: _Part) -> None:
        """From real numbers, the first half along the last axis, and then all of the other axes; always forward."""
        p = self.p
        if self.way == "half":
            wide, y = y, self.new(y.shape, np.dtype(np.float16), self.last(p.axes), pairs=True)
        last = p.axes[-MOST_AXES:]
        # Strides on the side of the float16 numbers are not among what cuFFT takes.
        source = self.ready(x, y, "R2C", None, self.last(p.axes) if self.way == "half" else None)
        self.transform("R2C", source, y, last, p.lengths[-MOST_AXES:], -1)
        self.rest(y, p.axes[:-MOST_AXES], p.lengths[:-MOST_AXES], -1)
        if self.way == "half":
            self.steps.append(Widen(y.index, wide.index, wide.slices))

    def c2r(self, x: _Part, y: _Part) -> None:
        p = self.p
        last, n = p.axes[-1], p.lengths[-1]
        # The plan destroys what it reads. Only the last axis is half of a mirror image, whatever lies along the others.
        source = self.ready(x, y, "C2R", p.complex, spare=True)
        self.rest(source, p.axes[:-1], p.lengths[:-1], 1)
        for k in sorted({0, n // 2} if n % 2 == 0 else {0}):  # elements that are their own mirror images are real
            here = tuple((k, k + 1, 1) if axis == last else s for axis, s in enumerate(source.slices))
            self.steps.append(Zero(source.index, here, imag=True))
        self.transform("C2R", source, y, (last,), (n,), 1)

    def passes(self, source: _Part, y: _Part, sign: int) -> None:
        p = self.p
        self.transform("C2C", source, y, p.axes[-MOST_AXES:], p.lengths[-MOST_AXES:], sign)
        self.rest(y, p.axes[:-MOST_AXES], p.lengths[:-MOST_AXES], sign)

    def rest(self, y: _Part, axes: tuple[int, ...], lengths: tuple[int, ...], sign: int) -> None:
        """Transform further axes where the numbers are."""
        while axes:
            self.transform("C2C", y, y, axes[-MOST_AXES:], lengths[-MOST_AXES:], sign)
            axes, lengths = axes[:-MOST_AXES], lengths[:-MOST_AXES]

    def mirror(self, y: _Part) -> None:
        """Fill the second half along the last axis with the conjugates of the first, mirrored along all of them."""
        p = self.p
        n = p.lengths[-1]
        missing = (n - 1) // 2
        if not missing:
            return
        for parts in product((False, True), repeat=len(p.axes) - 1):  # along the others: element 0, or those after it
            source, target = list(y.slices), list(y.slices)
            source[p.axes[-1]], target[p.axes[-1]] = (missing, 0, -1), (n - missing, n, 1)
            for axis, m, after in zip(p.axes, p.lengths, parts, strict=False):
                source[axis] = (m - 1, 0, -1) if after else (0, 1, 1)
                target[axis] = (1, m, 1) if after else (0, 1, 1)
            if all(start != stop for start, stop, _ in target):
                self.steps.append(Copy(y.index, tuple(source), y.index, tuple(target), conj=True))

    # buffers ------------------------------------------------------------------------------------------------------------

    def given(self, o: Operand, position: int | None) -> _Part:
        assert position is not None
        self.buffers.append(Buffer(o.shape, o.strides, o.dtype, position))
        return _Part(len(self.buffers) - 1, o.shape, o.strides, o.dtype.itemsize)

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any], order: tuple[int, ...] = (), *, pairs: bool = False) -> _Part:
        """Memory that lies without gaps, its axes in some order."""
        order = order or tuple(range(len(shape)))
        item = dtype.itemsize * (2 if pairs else 1)
        strides = contiguous_strides(shape, item, order)
        self.buffers.append(Buffer(shape, strides, dtype, -1, order, pairs))
        return _Part(len(self.buffers) - 1, shape, strides, item)

    def last(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """All axes, those that are transformed behind the others: so any plan takes them."""
        return (*(i for i in range(len(self.p.result)) if i not in axes), *axes)

    def usable(self, part: _Part) -> bool:
        return not self.copied or self.buffers[part.index].operand < 0

    def ready(
        self, x: _Part, y: _Part, kind: str, dtype: np.dtype[Any] | None = None, order: tuple[int, ...] | None = None,
        *, spare: bool = False,
    ) -> _Part:  # fmt: skip
        """The input as it lies where that can be; else, or if it is spare and must not be touched, a copy."""
        p = self.p
        conj = kind == "C2R" and p.sign < 0 and p.dtype.kind == "c"
        dtype = dtype or (p.complex if p.dtype.kind == "c" else np.dtype(np.float16) if self.way == "half" else p.real)
        shape = list(x.shape)
        for axis, n in zip(p.axes, p.taken, strict=True):
            shape[axis] = n
        cut = replace(x, shape=tuple(min(n, there) for n, there in zip(shape, x.shape, strict=True)))
        whole = cut.shape == tuple(shape)
        same = whole and dtype == p.dtype and not conj and self.usable(x)
        if order is not None:
            same = same and cut.strides == self.packed(cut, order).strides
        if same and (not spare or (p.parameter("overwrite") and _apart(cut))):
            return cut
        wanted = replace(x, shape=tuple(shape), item=dtype.itemsize)
        if order is None:
            order = _order(y)
            axes = p.axes[-1:] if kind == "C2R" else p.axes[-MOST_AXES:]
            if not self.usable(y) or self.fit(kind, self.packed(wanted, order), y, axes, p.lengths[-len(axes) :]) is None:
                order = self.last(p.axes)
        copy = self.new(wanted.shape, dtype, order)
        if not whole:
            self.steps.append(Zero(copy.index, copy.slices))
        if 0 not in cut.shape:
            self.steps.append(Copy(x.index, cut.slices, copy.index, cut.slices, conj))
        return copy

    def packed(self, part: _Part, order: tuple[int, ...]) -> _Part:
        """The part as it would lie without gaps, its axes in some order."""
        return replace(part, strides=contiguous_strides(part.shape, part.item, order))

    def like(self, part: _Part, order: tuple[int, ...]) -> _Part:
        """Memory for the same elements, which lie without gaps."""
        of = self.buffers[part.index]
        return self.new(part.shape, of.dtype, order, pairs=of.pairs)

    # plans --------------------------------------------------------------------------------------------------------------

    def transform(
        self, kind: str, source: _Part, target: _Part, axes: tuple[int, ...], lengths: tuple[int, ...], sign: int
    ) -> None:
        """One plan, and copies before and after it where arrays lie as it cannot have them."""
        key, at, before, after = self.way_for(kind, source, target, axes, lengths)
        here, there = source, target
        if before:
            here = self.like(source, before)
            self.steps.append(Copy(source.index, source.slices, here.index, here.slices))
        if after:
            there = here if kind == "C2C" and before == after else self.like(target, after)
        for part in (here, there):
            if self.buffers[part.index].operand >= 0:
                self.needs[part.index] = max(source.item, target.item)
        self.steps.append(Exec(key, here.index, there.index, sign, at))
        if after:
            self.steps.append(Copy(there.index, there.slices, target.index, target.slices))

    def way_for(
        self, kind: str, source: _Part, target: _Part, axes: tuple[int, ...], lengths: tuple[int, ...]
    ) -> tuple[PlanKey, Offsets, tuple[int, ...], tuple[int, ...]]:
        """A plan, its calls, and the orders of axes in copies of the input and the result; empty where there is no copy."""
        behind = self.last(axes)
        for before, after in ((), ()), (_order(target), ()), ((), _order(source)), (behind, behind):
            if not (before or self.usable(source)) or not (after or self.usable(target)):
                continue
            here = self.packed(source, before) if before else source
            there = self.packed(target, after) if after else target
            found = self.fit(kind, here, there, axes, lengths)
            if found is not None:
                return *found, before, after
        raise AssertionError(f"no plan of cuFFT for axes {axes} of {source}")  # packed arrays always have one

    def fit(
        self, kind: str, source: _Part, target: _Part, axes: tuple[int, ...], lengths: tuple[int, ...]
    ) -> tuple[PlanKey, Offsets] | None:
        """The plan and where its calls begin, or None if cuFFT cannot have arrays that lie so."""
        pairs = sorted(zip(axes, lengths, strict=True), key=lambda pair: -source.strides[pair[0]])
        if kind != "C2C":  # the axis that is halved is the innermost
            pairs = [*(pair for pair in pairs if pair[0] != axes[-1]), (axes[-1], lengths[-1])]
        inner = tuple(axis for axis, _ in pairs)
        sides = [_embedded(part, inner) for part in (source, target)]
        if None in sides:
            return None
        every = list(zip(target.shape, source.strides, target.strides, strict=True))
        dims = merge([each for i, each in enumerate(every) if i not in axes])
        batch, steps = 1, (0, 0)
        able = [i for i, (_, s, t) in enumerate(dims) if s > 0 and t > 0]
        if able:
            batch, *rest = dims.pop(max(able, key=lambda i: dims[i][0]))
            steps = (rest[0], rest[1])
        calls = prod(d[0] for d in dims)
        if calls > MOST_CALLS or (calls > FEW_CALLS and batch * prod(lengths) * target.item < LONG_CALL):
            return None
        at = tuple(zip(offsets(dims, 1), offsets(dims, 2), strict=True))
        grain = max(source.item, target.item)
        if any(here % grain or there % grain for here, there in at):
            return None
        made = []
        for side, part, step in zip(sides, (source, target), steps, strict=True):
            assert side is not None
            embed, stride = side
            made.append(Side(embed, stride, step // part.item if batch > 1 else prod(embed) * stride))
        return PlanKey(tuple(n for _, n in pairs), batch, made[0], made[1], kind, self.value), at


def _embedded(part: _Part, axes: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    """The room of each axis and the step of the innermost; None if an axis does not lie inside the one before it."""
    sizes = [part.shape[axis] for axis in axes]
    steps = [part.strides[axis] // part.item for axis in axes]
    if any(step <= 0 and n > 1 for step, n in zip(steps, sizes, strict=True)):
        return None
    stride = step = steps[-1] if sizes[-1] > 1 else 1  # that of an axis of one element says nothing
    embed = [sizes[0]]
    for i in range(len(axes) - 1, 0, -1):
        room = sizes[i] if sizes[i - 1] == 1 else steps[i - 1] // step
        if sizes[i - 1] > 1 and (room * step != steps[i - 1] or room < sizes[i]):
            return None
        embed.insert(1, room)
        step *= room
    return tuple(embed), stride


def _order(part: _Part) -> tuple[int, ...]:
    """Axes as they lie, the widest first."""
    return tuple(sorted(range(len(part.shape)), key=lambda i: (-abs(part.strides[i]), i)))


def _apart(part: _Part) -> bool:
    """Tells whether no two elements share memory, by a sufficient condition on the strides."""
    step = 0
    for n, s in sorted(((n, abs(s)) for n, s in zip(part.shape, part.strides, strict=True) if n > 1), key=lambda d: d[1]):
        if s <= step:
            return False
        step = s * (n - 1) + step
    return True
