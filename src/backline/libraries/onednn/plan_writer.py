"""Writes oneDNN's part of a plan down: where operands lie, which primitives run over them, and what is looked at in between.

A primitive reads addresses from memory objects, so a call first puts them there: plans take turns with themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...errors import LibraryFailed, OutOfMemory
from ...native import thread_team
from ...native.plan_builder import ELEMENT, Builder, Pointer
from ...problems import Operand, Problem
from ...problems.memory_layout import batch_offsets, dense_strides, image_strides
from ..base import failure
from . import abi
from .primitives import Desc, Engine, PrimitiveDesc

__all__ = ["NOT_FINITE", "Execution", "Place", "Writer", "fits", "status_failure"]

_F32 = np.dtype(np.float32)

NOT_FINITE = -1  # what the looks at values report in the place of a status
GROUPS = 8  # groups of steps of one plan whose statuses are told apart
MOST_PIECES = 1 << 16
CHUNK = 1 << 15  # elements that are worth a thread to look at them, or to move them
LINE = 16  # points that are moved together at least


class Place(NamedTuple):
    """Memory: what lies there, and where."""

    desc: Desc
    pointer: Pointer


class Spread(NamedTuple):
    """Memory in terms of a caller's array: pointer, and strides in elements."""

    pointer: Pointer
    strides: tuple[int, ...]


def fits(o: Operand) -> bool:
    """Tells whether oneDNN can use an array without a copy: aligned, with positive strides, and no element in memory twice."""
    size = o.dtype.itemsize
    steps = sorted((s, n) for s, n in zip(o.strides, o.shape, strict=True) if n > 1)
    least = size
    for s, n in steps:
        if s < least or s % size:
            return False
        least = s * n
    return o.aligned


class Images(NamedTuple):
    """Dense images that are copied from channels-first to channels-last or, if `last`, back; `item`: bytes of an element."""

    number: int
    channels: int
    points: int
    item: int
    last: bool


def images_to_transpose(source: Desc, target: Desc) -> Images | None:
    """Returns the images if one of two layouts is channels-first and the other channels-last, both without gaps; else None."""
    if not (source.has_layout and target.has_layout):
        return None
    (a, shape, *blocks), (b, other, *more) = source.layout, target.layout
    if len(shape) < 3 or shape != other or any((*blocks, *more)) or source.data_type != target.data_type:
        return None
    layouts = image_strides(shape, False), image_strides(shape, True)
    item = source.nbytes // prod(shape)
    if {a, b} != set(layouts) or item not in ELEMENT:
        return None
    return Images(shape[0], shape[1], prod(shape[2:]), item, a == layouts[1])


def status_failure(plan: Any, problem: Problem, status: int) -> LibraryFailed:
    """The error to raise where a call of oneDNN in a plan returned a status that is not 0."""
    error = OutOfMemory if status == abi.OUT_OF_MEMORY else LibraryFailed
    return failure(plan, f"oneDNN failed to run {problem.key}", cause=abi.status_text(status), error=error)


class Execution:
    """A primitive and its memory objects, which plans run over addresses, as often as they like.

    Parameters
    ----------
    writer
        Of the plan.
    desc
        The primitive; the thread count that it is made for is to be in force.
    layouts
        What it reads and writes, by argument.
    items
        Items of a group that run it at once, on one thread each; 0 for a primitive that all threads run together.
    """

    def __init__(self, writer: Writer, desc: PrimitiveDesc, layouts: dict[int, Desc], items: int = 0) -> None:
        self.writer, self.items = writer, items
        engine, keep = writer.engine, writer.b.keep
        primitive, memories = engine.primitive(desc), []
        keep.append(primitive)
        self._streams = [engine.stream() for _ in range(items)] or [writer.stream]
        for _ in self._streams:
            memories.append([engine.memory(layout) for layout in layouts.values()])
            keep += memories[-1]
        keep += self._streams
        self._primitive, self._count = primitive.address, len(layouts)
        self._memories = {arg: self._of_items([own[i].address for own in memories]) for i, arg in enumerate(layouts)}
        given = [abi.exec_args([(arg, m.address) for arg, m in zip(layouts, own, strict=True)]) for own in memories]
        at = writer.b.constant(b"".join(given))
        self._arguments = at[0], at[1], len(given[0]) if items else 0

    def _of_items(self, addresses: list[int]) -> Any:
        return addresses if self.items else addresses[0]

    def run(self, pointers: dict[int, Pointer]) -> None:
        """Writes down that it runs over memory at these addresses."""
        b, native = self.writer.b, self.writer.engine.native
        status = self.writer.statuses if self.items else self.writer.status
        set_data = native.address("dnnl_memory_set_data_handle")
        for arg, pointer in pointers.items():
            stays = not self.items and b.buffers[pointer[0]][0] in ("constant", "kept")
            with b.first() if stays else nullcontext():
                b.call(set_data, [self._memories[arg], pointer], returns=3, to=status)
        streams = self._of_items([stream.address for stream in self._streams])
        execute = native.address("dnnl_primitive_execute")
        b.call(execute, [self._primitive, streams, self._count, self._arguments], returns=3, to=status)


class Writer:
    """Collects the steps of one plan.

    Parameters
    ----------
    engine
        Makes the objects; the thread count of the plan is to be in force.
    problem
        Its operands are the arguments.
    threads
        Threads of the plan.
    items
        Items of groups whose primitives run at once, each with a status of its own.
    """

    def __init__(self, engine: Engine, problem: Problem, threads: int, items: int = 0) -> None:
        self.engine, self.problem, self.threads = engine, problem, threads
        self.b = Builder(problem)
        self.stream = engine.stream()
        self.b.keep.append(self.stream)
        self._arguments: dict[str, Pointer] = {}
        count = 1 + GROUPS + items
        buffer, _, _ = self.b.info(count)
        self.finite, self.status, self.statuses = (buffer, 0, 0), (buffer, 4, 0), (buffer, 4 * (1 + GROUPS), 4)
        self.b.copy((1, count), self.b.constant(bytes(4 * count)), (0, 4), self.finite, (0, 4), 4)

    # where things lie

    def argument(self, role: str) -> Pointer:
        found = self._arguments.get(role)
        if found is None:
            found = self._arguments[role] = self.b.argument(role)
        return found

    def spread(self, role: str, o: Operand | None = None, *, copied: bool = False, order: Sequence[int] | None = None) -> Spread:
        """An operand: as it lies where oneDNN can take that, else (or with `copied`) a dense copy, its axes in an order.

        `o` describes a part of the operand.
        """
        o = o or self.problem.get(role)
        assert o is not None, role
        size, pointer = o.dtype.itemsize, self.argument(role)
        if fits(o) and not copied:
            return Spread(pointer, tuple(max(s // size, 1) for s in o.strides))
        strides = dense_strides(o.shape, order)
        target = self.b.work(o.nbytes, shared=True)
        self._copy(o, pointer, tuple(o.strides), target, tuple(s * size for s in strides))
        return Spread(target, strides)

    def _copy(self, o: Operand, source: Pointer, a: tuple[int, ...], target: Pointer, b: tuple[int, ...]) -> None:
        """Copy an array from one layout to another, the two longest axes at a time; strides in bytes."""
        longest = sorted(range(len(o.shape)), key=lambda i: o.shape[i])[-2:]
        rest = [i for i in range(len(o.shape)) if i not in longest]
        shape = tuple(o.shape[i] for i in rest)
        from_, to = (batch_offsets(shape, shape, tuple(strides[i] for i in rest)) for strides in (a, b))
        if prod(shape) > MOST_PIECES and (isinstance(from_, tuple) or isinstance(to, tuple)):
            raise RuntimeError(f"an operand of shape {o.shape} would have to be copied in {prod(shape)} pieces first")
        sizes, steps = [1, 1], [(0, 0), (0, 0)]
        for place, i in zip((-1, -2), reversed(longest), strict=False):
            sizes[place], steps[place] = o.shape[i], (a[i], b[i])
        self.b.copy(
            (sizes[0], sizes[1]), (source[0], source[1], from_), (steps[0][0], steps[1][0]),
            (target[0], target[1], to), (steps[0][1], steps[1][1]), o.dtype.itemsize,
        )  # fmt: skip
        self.b.each(prod(shape))

    def widened(self, role: str, o: Operand) -> Place:
        """A float16 vector as float32: kernels for float16 want a bias of float32. `o` describes the operand, or a part of it."""
        n = o.shape[-1]
        target = self.b.work(4 * n, shared=True)
        self.b.copy((1, n), self.argument(role), (0, o.strides[-1]), target, (0, 4), ("float16", "float32"))
        return Place(self.engine.desc((n,), _F32, (1,)), target)

    def result(self, shape: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int]) -> Pointer:
        """A new array to be returned; strides in elements."""
        return self.b.result(dtype, shape, [s * dtype.itemsize for s in strides])

    def scattered(self, role: str, source: Pointer, strides: Sequence[int]) -> None:
        """After everything else: copy a dense array to an operand that oneDNN cannot write to."""
        o = self.problem.get(role)
        assert o is not None
        self.b.each()
        self._copy(o, source, tuple(s * o.dtype.itemsize for s in strides), self.argument(role), tuple(o.strides))

    def work(self, desc: Desc) -> Place:
        return Place(desc, self.b.work(desc.nbytes, shared=True))

    def scalar(self, value: float, ndim: int) -> Place:
        """A float32 that stays the same, as an array of one element."""
        ones = (1,) * ndim
        return Place(self.engine.desc(ones, np.dtype(np.float32), ones), self.b.constant(struct.pack("<f", value)))

    # what is done

    def run(self, desc: PrimitiveDesc, places: dict[int, Place]) -> None:
        """Execute a primitive; its scratchpad is added, unless it is given."""
        scratch = desc.desc(abi.Query.SCRATCHPAD)
        if scratch is not None and scratch.nbytes and abi.Arg.SCRATCHPAD not in places:
            places = {**places, abi.Arg.SCRATCHPAD: self.work(scratch)}
        execution = Execution(self, desc, {arg: place.desc for arg, place in places.items()})
        execution.run({arg: place.pointer for arg, place in places.items()})

    def reorder(self, source: Place, desc: Desc) -> Place:
        """The same values as `desc` wants them: where they are, if they lie like that, else copied."""
        if source.desc == desc:
            return source
        target = self.work(desc)
        self.move(source, target)
        return target

    def pack(self, given: Callable[[], Place], desc: Desc) -> Place:
        """Weights as `desc` wants them: brought there by every call, or by the first one where the Problem's are packed.

        `given` says where they are, and may copy them for that.
        """
        if not self.problem.packed:
            return self.reorder(given(), desc)
        with self.b.first():
            source = given()
            if source.desc == desc and source.pointer in self._arguments.values():
                return source
            target = Place(desc, self.b.kept(desc.nbytes))
            self.move(source, target)
        return target

    def move(self, source: Place, target: Place) -> None:
        """Copy from one layout to another."""
        images = images_to_transpose(source.desc, target.desc)
        if images and (self.threads == 1 or self.engine.pool == thread_team.name()):
            return self._transpose_images(images, source.pointer, target.pointer)
        self.run(self.engine.reorder_desc(source.desc, target.desc), {abi.Arg.SRC: source, abi.Arg.DST: target})

    def _next_group(self) -> None:
        """Close the group of steps. Each call of oneDNN writes its status, so those that follow get another place for theirs."""
        self.b.each()
        buffer, at, step = self.status
        assert at < 4 * GROUPS, "more groups of steps than places for their statuses"
        self.status = buffer, at + 4, step

    def _transpose_images(self, images: Images, source: Pointer, target: Pointer) -> None:
        """Copy images from channels-first to channels-last or back: images, or points of each, are divided among the threads."""
        count, channels, points, item, last = images
        many = self.threads if count * channels * points >= self.threads * CHUNK else 1
        parts = 1 if count % many == 0 or count >= 8 * many else 4 * many
        size = points // parts // LINE * LINE or points
        whole, image = points // size, channels * points * item
        steps = (points * item, item), (item, channels * item)  # bytes from a channel, and from a point, to the next
        a, b = (steps[1], steps[0]) if last else steps
        self._next_group()
        for start, length, pieces in ((0, size, whole), (whole * size, points - whole * size, 1)):
            if length:
                from_, to = (
                    tuple(i * image + k * size * step[1] for i in range(count) for k in range(pieces)) if pieces > 1 else image
                    for step in (a, b)
                )
                self.b.copy(
                    (channels, length), (source[0], source[1] + start * a[1], from_), a,
                    (target[0], target[1] + start * b[1], to), b, item,
                )  # fmt: skip
                self.b.each(count * pieces, many)

    def look(self, pointer: Pointer, elements: int, dtype: np.dtype[Any] = _F32, *, alone: bool = False) -> None:
        """Report NOT_FINITE if an element is NaN or infinite.

        All threads look; with `alone` one does, and where it reports something no primitive runs after it.
        """
        item = dtype.itemsize
        if alone:
            self.b.finite((1, elements), (0, item), dtype, pointer, self.finite, NOT_FINITE)
            return
        self._next_group()
        parts = self.threads if elements >= self.threads * CHUNK else 1
        size = -(-elements // parts)
        starts = tuple(item * min(i * size, elements - size) for i in range(parts))
        self.b.finite((1, size), (0, item), dtype, (pointer[0], pointer[1], starts), self.finite, NOT_FINITE)
        self.b.each(parts, parts)

    def guard_relu(
        self, target: Place, elements: int, again: Callable[[], Any] | None, dtype: np.dtype[Any] = _F32
    ) -> Callable[..., Any]:
        """See to it that relu keeps NaN; returns `exact` for the plan.

        oneDNN's relu makes 0 of NaN. Its prelu with slope 0, a post-operation, keeps NaN and makes NaN of minus infinity: where
        that was fused (`again` makes the plan without it), a result that is not finite is computed anew. Else relu is
        appended here, and not run where it would meet NaN.

        Parameters
        ----------
        target
            A dense array.
        elements
            Its size.
        again
            Makes the plan without relu, or None.
        dtype
            Of the elements: float32, bfloat16 or float16.
        """
        self.look(target.pointer, elements, dtype, alone=again is None)
        if again is None:
            relu = self.engine.primitive_desc(
                "eltwise_forward", abi.Prop.FORWARD_INFERENCE, abi.Alg.RELU, target.desc, target.desc, 0.0, 0.0,
                attr=self.engine.attributes(),
            )  # fmt: skip
            self.run(relu, {abi.Arg.SRC: target, abi.Arg.DST: target})
        plans: list[Any] = []

        def exact(arrays: tuple[Any, ...], result: Any) -> Any:
            if again is not None:
                if not plans:
                    plans.append(again())
                result = plans[0](*arrays)
            return np.maximum(result, 0, out=result)

        return exact

    # the plan

    def plan(
        self,
        *results: Pointer,
        release_gil: bool,
        same: tuple[str, ...] = (),
        exact: Callable[[tuple[Any, ...], Any], Any] | None = None,
    ) -> Any:
        """The PreparedCall.

        `exact` computes the result where `look` found what is not finite; it is given the arrays of the call and the result.
        """
        problem = self.problem

        def on_info(plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
            finite, *statuses = infos
            status = next(filter(None, statuses), 0)
            if finite == NOT_FINITE and status == 0 and exact is not None:
                return exact(arrays, results[0])
            raise status_failure(plan, problem, status)

        return self.b.plan(
            *results, thread_guard=self.engine.thread_guard,
            guard_threads=self.threads if self.engine.thread_guard else 0, release_gil=release_gil,
            same=same, serial=True, on_info=on_info,
        )  # fmt: skip
