"""Writes down a PreparedCall: buffers, then steps over them.

A library method reads like the algorithm it prepares::

    b = Builder(problem)
    a = b.argument("a")
    ...
    b.call(lib.lapack("sgetrf"), [b.integer(m), b.integer(n), lu, b.integer(m), pivots, b.info(count)])

Pointers are values ``(buffer, offset, stride)``; the stride leads from one item of the batch to the next, or is a tuple of
all offsets.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from ..problems import Operand, Problem
from ..problems.symbolic_sizes import SymbolicSize, is_symbolic

__all__ = ["ELEMENT", "Builder", "Description", "Pointer", "described", "same_place", "shift"]

Pointer = tuple[int, int, "int | tuple[int, ...]"]

# Kinds of element copies, in the order of copy.hpp.
ELEMENT = {
    2: 0, 4: 1, 8: 2, 16: 3,
    ("conj", 8): 4, ("conj", 16): 5,
    ("float16", "float32"): 6, ("bfloat16", "float32"): 7, ("float32", "float16"): 8, ("float32", "bfloat16"): 9,
    ("int64", "int32"): 10, ("int32", "int64"): 11,
}  # fmt: skip
FLOAT16 = -2  # in the place of an item size where exponents are looked at: 2 is bfloat16
TRIANGLE = {"zero_upper": 0, "zero_lower": 1, "unit_diagonal": 2, "mirror_lower": 3, "mirror_upper": 4}


def shift(pointer: Pointer, offset: int) -> Pointer:
    """The pointer moved by some bytes."""
    return pointer[0], pointer[1] + offset, pointer[2]


class Description(NamedTuple):
    """The parts of a PreparedCall, as `Builder` writes them down.

    Attributes
    ----------
    arguments, buffers, groups, results, overlaps
        The arguments of `_core.PreparedCall`; the first buffer holds the constants.
    options
        Its keyword arguments.
    patches
        Symbolic sizes among the constants: where, in how many bytes, which.
    """

    arguments: int
    buffers: list[Any]
    groups: list[Any]
    results: list[int]
    overlaps: list[Any]
    options: dict[str, Any]
    patches: list[tuple[int, int, SymbolicSize]]


class _Writing(threading.local):
    described: list[Description] | None = None


_writing = _Writing()


@contextmanager
def described() -> Iterator[list[Description]]:
    """Inside, builders of this thread make no PreparedCall: their descriptions are collected in the list that this gives."""
    former, _writing.described = _writing.described, list[Description]()
    try:
        yield _writing.described
    finally:
        _writing.described = former


class Builder:
    """Collects the parts of one PreparedCall.

    Parameters
    ----------
    problem
        Its operands are the arguments of the plan.
    int_size
        Bytes of the library's integers by reference.
    """

    def __init__(self, problem: Problem, int_size: int = 4) -> None:
        self.problem = problem
        self._index = {o.role: i for i, o in reversed([*enumerate(problem.operands)])}
        self.int_size = int_size
        self.constants = bytearray()
        self.buffers: list[Any] = [("constant", b"")]
        self.groups: list[tuple[int, int, list[Any]]] = []
        self.steps: list[Any] = []
        self.first_groups: list[tuple[int, int, list[Any]]] = []
        self.first_steps: list[Any] = []
        self._in_first = False
        self.results: list[int] = []
        self.info_buffer: tuple[int, int, int] | None = None
        self.keep: list[Any] = []
        self.share_work = False
        self._patches: list[tuple[int, int, SymbolicSize]] = []

    # buffers ----------------------------------------------------------------------------------------------------

    def _add(self, buffer: Any) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def argument(self, role: str, items: int | tuple[int, ...] = 0) -> Pointer:
        """The operand with this role."""
        return self._add(("argument", self._index[role])), 0, items

    def result(self, dtype: Any, shape: Sequence[int], order: str | Sequence[int] = "C", items: int = 0) -> Pointer:
        """A new array to be returned; the order is C, F or strides in bytes."""
        where = order if isinstance(order, str) else tuple(order)
        return self._add(("result", np.dtype(dtype), tuple(shape), where)), 0, items

    def work(self, nbytes: int, items: int = 0, *, shared: bool | None = None) -> Pointer:
        """Workspace; each thread of a group has its own, with `shared` all have one, for what an earlier group wrote.

        None is what `share_work` says.
        """
        shared = self.share_work if shared is None else shared
        size = nbytes if is_symbolic(nbytes) else int(nbytes)
        return self._add(("work", size, shared) if shared else ("work", size)), 0, items

    def kept(self, nbytes: int) -> Pointer:
        """Memory of the plan's own, for what `first` writes: weights of a packed Problem."""
        return self._add(("kept", int(nbytes))), 0, 0

    def constant(self, data: bytes) -> Pointer:
        """Constant memory."""
        while len(self.constants) % 8:
            self.constants.append(0)
        at = len(self.constants)
        self.constants += data
        return 0, at, 0

    def packed(self, layout: str, *values: Any) -> Pointer:
        """Numbers by reference, as `struct` packs them."""
        if not any(is_symbolic(value) for value in values):
            return self.constant(struct.pack(layout, *values))
        pointer = self.constant(struct.pack(layout, *(v.value if is_symbolic(v) else v for v in values)))
        letters = "".join(letter * int(count or 1) for count, letter in re.findall("([0-9]*)([a-z])", layout))
        for i, value in enumerate(values):
            if is_symbolic(value):
                at = pointer[1] + struct.calcsize(f"<{letters[:i]}")
                self._patches.append((at, struct.calcsize(f"<{letters[i]}"), value))
        return pointer

    def integer(self, value: int) -> Pointer:
        """An integer by reference, of the library's width."""
        return self.packed("<q" if self.int_size == 8 else "<i", value)

    def character(self, value: str) -> Pointer:
        """A character by reference."""
        return self.constant(value.encode())

    def number(self, value: complex, dtype: np.dtype[Any]) -> Pointer:
        """A number of the dtype by reference."""
        scalar = value if dtype.kind == "c" else value.real
        return self.constant(np.array(scalar, dtype).tobytes())

    # steps ------------------------------------------------------------------------------------------------------

    def call(
        self,
        address: int,
        arguments: Sequence[Any],
        *,
        returns: int = 0,
        to: Pointer | None = None,
    ) -> None:
        """Adds a native call; `arguments` are integers, pointers and floats in the function's order.

        A `numpy.float32` is passed as a float, a `float` or `numpy.float64` as a double. A list in the place of an integer holds
        one value for every item of the group. `returns` is 0 for nothing, 1 for a float and 2 for a double, written to `to`; 3
        for a status, which is not 0 if the call failed: then `to` is a pointer from `info`, and the item's other calls are
        left out.
        """
        assert address
        self.steps.append(("call", address, list(arguments), returns, to))

    def copy(
        self,
        shape: tuple[int, int],
        source: Pointer,
        source_strides: tuple[int, int],
        target: Pointer,
        target_strides: tuple[int, int],
        element: Any,
    ) -> None:
        """Copy a matrix, strides in bytes; `element` is an item size or a key of ELEMENT."""
        kind = ELEMENT[element]
        self.steps.append(("copy", kind, *shape, *source_strides, *target_strides, source, target))

    def triangle(
        self, mode: str, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any], target: Pointer
    ) -> None:
        """Change one triangle of a matrix in place."""
        self.steps.append(("triangle", TRIANGLE[mode], *shape, *strides, dtype.itemsize, int(dtype.kind == "c"), target))

    def finite(
        self, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any], source: Pointer, info: Pointer, value: int
    ) -> None:
        """End the item's steps with `value` as its info if the matrix holds a NaN or an infinity."""
        rows, cols = shape
        item = FLOAT16 if dtype == np.float16 else dtype.itemsize
        if dtype.kind == "c":
            item //= 2
            if strides[1] == 2 * item:
                cols, strides = 2 * cols, (strides[0], item)
            else:  # real and imaginary parts are neighbours along neither axis: look at both in turn
                shifted = shift(source, item)
                self.steps.append(("finite", rows, cols, *strides, item, value, shifted, info))
        self.steps.append(("finite", rows, cols, *strides, item, value, source, info))

    def within(self, count: int, stride: int, low: int, high: int, source: Pointer, info: Pointer, value: int) -> None:
        """End the item's native calls with `value` as its info if an int32 of a vector is not in low .. high."""
        self.steps.append(("range", count, stride, low, high, value, source, info))

    def each(self, count: int = 1, threads: int = 1) -> None:
        """Close the group: the steps since the last one run for every item, divided among that many threads."""
        if self.steps:
            self.groups.append((count, threads, self.steps))
            self.steps = []

    @contextmanager
    def first(self) -> Iterator[None]:
        """Inside, steps are those of the first call only, before the rest; until it has succeeded, a call is the first."""
        if self._in_first:
            yield
            return
        self._in_first = True
        self._exchange()
        try:
            yield
        finally:
            self.each()
            self._exchange()
            self._in_first = False

    def _exchange(self) -> None:
        self.groups, self.first_groups = self.first_groups, self.groups
        self.steps, self.first_steps = self.first_steps, self.steps

    def info(self, count: int) -> Pointer:
        """Returns the memory for LAPACK's info, one per item."""
        if self.info_buffer is None:
            at = self._add(("work", self.int_size * max(count, 1)))
            self.info_buffer = (at, self.int_size, count)
        return self.info_buffer[0], 0, self.int_size

    # the plan ---------------------------------------------------------------------------------------------------

    def overlaps(self, same: tuple[str, ...] = ()) -> list[Any]:
        """Every given output against every other operand; roles in `same` may be the output itself."""
        found = []
        outs = [(i, o) for i, o in enumerate(self.problem.operands) if o.role.startswith("out")]
        for i, out in outs:
            for j, other in enumerate(self.problem.operands):
                if j == i or (other.role.startswith("out") and j < i):
                    continue
                allowed = other.role in same and same_place(out, other)
                found.append((i, *out.extent(), j, *other.extent(), allowed))
        return found

    def plan(
        self,
        *results: Pointer,
        count: int = 1,
        threads: int = 1,
        wrap: Callable[..., Any] | None = None,
        on_info: Callable[..., Any] | None = None,
        thread_guard: Any = None,
        guard_threads: int = 0,
        release_gil: bool = False,
        same: tuple[str, ...] = (),
        serial: bool = False,
    ) -> Any:
        """The PreparedCall; with `serial` its calls run one after the other."""
        self.each(count, threads)
        self.buffers[0] = ("constant", bytes(self.constants))
        options = {
            "wrap": wrap, "info": self.info_buffer, "on_info": on_info, "thread_guard": thread_guard, "threads": guard_threads,
            "release_gil": release_gil, "keep": tuple(self.keep) or None, "serial": serial, "first": self.first_groups or None,
        }  # fmt: skip
        written = Description(
            len(self.problem.operands), self.buffers, self.groups, [r[0] for r in results], self.overlaps(same), options,
            self._patches,
        )  # fmt: skip
        if _writing.described is not None:
            _writing.described.append(written)
            return None
        return _core.PreparedCall(*written[:5], **options)


def same_place(a: Operand, b: Operand) -> bool:
    """Tells if two operands at the same address are the same elements."""
    # The stride of an axis of one element says nothing: broadcasting writes 0 there.
    steps = all(s == t or n == 1 for n, s, t in zip(a.shape, a.strides, b.strides, strict=False))
    return a.shape == b.shape and steps and a.dtype == b.dtype
