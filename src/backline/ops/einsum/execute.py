"""Running an einsum of several steps: the Plan, copies that put axes in another order, views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np

from ... import _core, switches
from ...errors import refuse_overlap
from ...native import thread_team
from ...native.plan_builder import ELEMENT
from ...problems.einsum_problem import EinsumProblem
from .layout import Steps, two_dimensions

__all__ = ["EinsumPlan", "ViewPlan", "maker", "mover", "narrowed", "viewer", "written"]

Array = np.ndarray[Any, Any]
Instruction = tuple[Any, tuple[int, ...], tuple[int, ...]]

MAX_ITEMS = 100_000  # of a copy in the compiled core: it has a table of where they are
LARGE = 1 << 20  # bytes from which copies are divided among threads


class EinsumPlan:
    """A Plan of several steps. It keeps no array: what a step makes is dropped when it has been read.

    `program` has functions, the slots that they read, and those that nobody reads after them. The first slots hold the `inputs`
    operands, then the output if it is given, then what the steps make; `result` is the slot of the result. The `form` says how
    the arguments of a call hold the arrays: "plain" after the equation, "nested" anywhere among them and in tuples.
    """

    __slots__ = ("_form", "_inputs", "_program", "_result", "choice")

    def __init__(self, program: Sequence[Instruction], result: int, inputs: int, form: str) -> None:
        self.choice: Any = None
        self._program, self._result, self._inputs, self._form = program, result, inputs, form

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it on the arguments of the call that it was made for."""
        if self._form == "plain":
            arrays = [*args[1:]]
        else:
            arrays = [a for v in args for a in (v if isinstance(v, tuple) else (v,)) if isinstance(a, np.ndarray)]
        out = kwargs.get("out")
        if out is not None:
            arrays.append(out)
        if len(arrays) > self._inputs:
            out = arrays[-1]
            for array in arrays[:-1]:
                if np.may_share_memory(out, array):
                    refuse_overlap(out, array)
        slots: list[Any] = arrays
        for function, sources, done in self._program:
            slots.append(function(*[slots[i] for i in sources]))
            for i in done:
                slots[i] = None
        return slots[self._result]


def written(out: Array, values: Any) -> Array:
    """The array, with these values."""
    with np.errstate(all="ignore"):
        out[...] = values
    return out


def narrowed(values: Any, dtype: np.dtype[Any]) -> Any:
    """The values in a dtype of fewer bits; what overflows is infinite, and warns of nothing."""
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def maker(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], Any]:
    """Returns a function that makes a new array; a large one lies in memory that is used again."""
    return partial(_core.empty, shape, dtype)


def mover(
    dtype: np.dtype[Any], labels: tuple[str, ...], sizes: dict[str, int], source: Steps, target: Steps, shape: tuple[int, ...],
    *, given: bool,
) -> Callable[..., Any]:  # fmt: skip
    """Returns a function that copies an array to one with other strides: a new one, or with `given` its second argument."""
    items, (rows, columns) = two_dimensions(labels, sizes, source, target)
    count = math.prod(axis.size for axis in items)
    if dtype.itemsize not in ELEMENT or count > MAX_ITEMS:
        return _by_numpy(labels, sizes, source, target, maker(shape, dtype))
    offsets = [[0], [0]]
    for axis in items:
        offsets = [[o + i * axis.strides[j] for o in offsets[j] for i in range(axis.size)] for j in (0, 1)]
    copy = (
        "copy", ELEMENT[dtype.itemsize], rows.size, columns.size, rows.strides[1], columns.strides[1], rows.strides[0],
        columns.strides[0], (1, 0, tuple(offsets[1])), (2, 0, tuple(offsets[0])),
    )  # fmt: skip
    size = math.prod(sizes[label] for label in labels) * dtype.itemsize
    threads = 1
    if size >= LARGE and count > 1 and thread_team.bind() and not thread_team.forked():
        allowed: Any = switches.get("num_threads")
        threads = thread_team.items_threads(allowed)
    plan: Any = _core.PreparedCall(
        1 + given, [("constant", b""), ("argument", 0), ("argument", 1) if given else ("result", dtype, shape, "C")],
        [(count, threads, [copy])], [2], [], release_gil=size >= LARGE,
    )  # fmt: skip
    made: Callable[..., Any] = plan
    return made


def _by_numpy(
    labels: tuple[str, ...], sizes: dict[str, int], source: Steps, target: Steps, new: Callable[[], Any]
) -> Callable[..., Any]:
    shape = tuple(sizes[label] for label in labels)
    strides = [tuple(steps[label] for label in labels) for steps in (source, target)]
    strided = np.lib.stride_tricks.as_strided

    def run(array: Array, out: Array | None = None) -> Array:
        made: Array = new() if out is None else out
        np.copyto(strided(made, shape, strides[1]), strided(array, shape, strides[0]))
        return made

    return run


class ViewPlan:
    """A Plan that returns a view of the only operand, of a call that has it after the equation."""

    __slots__ = ("_view", "choice")

    def __init__(self, view: Callable[[Array], Any]) -> None:
        self.choice: Any = None
        self._view = view

    def __call__(self, equation: Any, array: Array, memory_limit: Any = None) -> Any:
        return self._view(array)


def viewer(p: EinsumProblem) -> Callable[[Array], Any]:
    """Returns a function that makes the result, a view, of the only operand."""
    (term,), (o,) = p.terms, p.inputs
    if not p.output:
        return itemgetter((0,) * len(term))
    if len(set(term)) == len(term) == len(p.output):
        return methodcaller("transpose", *map(term.index, p.output))
    twice = [label for label in set(term) if term.count(label) > 1]
    if len(twice) == 1 and term.count(twice[0]) == 2 and len(p.output) == len(term) - 1:
        return _diagonal(term, twice[0], p.output)
    steps: Steps = {}
    for label, stride in zip(term, o.strides, strict=True):
        steps[label] = steps.get(label, 0) + stride
    shape, strides = p.result, tuple(steps[label] for label in p.output)
    return lambda array: np.lib.stride_tricks.as_strided(array, shape, strides)


def _diagonal(term: str, label: str, output: str) -> Callable[[Array], Any]:
    first, second = term.index(label), term.rindex(label)
    left = term.replace(label, "") + label  # the axes of what NumPy returns, which cannot be written to
    axes = tuple(map(left.index, output))
    moves = axes != tuple(range(len(axes)))

    def view(array: Array) -> Any:
        made = array.diagonal(0, first, second)
        if array.flags.writeable:
            made.flags.writeable = True
        return made.transpose(axes) if moves else made

    return view
