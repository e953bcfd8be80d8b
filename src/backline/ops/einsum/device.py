"""einsum on arrays that are not NumPy's: its steps are products of the device's library, sums and products of elements.

The steps are found from shapes and strides alone, in the order that opt_einsum gives. What a step makes is dense; an operand is
copied, on its device, where its axes lie too far apart for a product to take them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import methodcaller
from typing import Any

import numpy as np

from ...errors import NoKernel
from ...problems import Operand, Problem
from ...problems.dtypes import HALVES
from ...problems.einsum_problem import EinsumProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.memory_layout import contiguous_strides
from ...problems.op_registry import operations
from ..array_arguments import cast, into
from .contraction_choice import choice_of
from .layout import Term
from .steps import StepWriter

__all__ = ["DeviceContraction"]

Array = Any
Run = Callable[..., Array]


class DeviceContraction(StepWriter):
    """Finds the steps of an einsum on a device."""

    def __init__(self, problem: EinsumProblem, make: Callable[[Problem], Any]) -> None:
        super().__init__(problem, make, len(problem.inputs))
        self.home = "mlx" if problem.device == "mps" else "cupy"
        if not problem.empty:
            self._find()

    def _find(self) -> None:
        p = self.problem
        work = [self._operand(i, term, o) for i, (term, o) in enumerate(zip(p.terms, p.inputs, strict=True))]
        if len(work) > 1:
            self._find_path([t for _, t in work])
        summed = any(sum(label in t.labels for _, t in work) == 1 and label not in self.output for label in self.sizes)
        if p.dtype.name in HALVES and (len(self.path) > 1 or summed):
            self.dtype = np.dtype(np.float32)  # every step in float32, and one rounding at the end
            widened = _Late(lambda xp: _converted(xp, np.float32))
            work = [(self._add(widened, slot), self._made(t.labels)) for slot, t in work]
        for chosen in self.path:
            now = [work[i] for i in sorted(chosen)]
            work = [w for i, w in enumerate(work) if i not in chosen]
            if len(now) > 2:
                raise NoKernel(
                    f"einsum: memory_limit={p.parameter('memory_limit')} leaves {len(now)} operands to be contracted at once",
                    cause=f"on {p.device} each step takes two", remedy="a larger memory_limit, or None",
                )  # fmt: skip
            kept = frozenset(self.output).union(*(t.labels for _, t in work))
            work.append(self._pair(now[0], now[1], kept) if len(now) == 2 else now[0])
        slot, term = self._summed(*work[0], frozenset(self.output))
        self._finish(slot, term)

    def _made(self, labels: tuple[str, ...]) -> Term:
        shape = tuple(self.sizes[label] for label in labels)
        return Term(labels, shape, contiguous_strides(shape, self.dtype.itemsize))

    # steps ----------------------------------------------------------------------------------------------------------

    def _operand(self, slot: int, labels: str, o: Operand) -> tuple[int, Term]:
        """An operand without its axes of size 1, and with the diagonals that repeated labels take."""
        axes = [(label, n, s) for label, n, s in zip(labels, o.shape, o.strides, strict=True) if n != 1]
        if len(axes) < len(labels):
            shape = tuple(n for _, n, _ in axes)
            slot = self._add(methodcaller("reshape", shape), slot)
        while True:
            names = [label for label, _, _ in axes]
            twice = next((label for label in names if names.count(label) > 1), None)
            if twice is None:
                break
            i = names.index(twice)
            j = names.index(twice, i + 1)
            slot = self._add(_diagonal(i, j), slot)
            joined = (twice, axes[i][1], axes[i][2] + axes[j][2])
            axes = [a for at, a in enumerate(axes) if at not in (i, j)] + [joined]
        term = Term(tuple(a[0] for a in axes), tuple(a[1] for a in axes), tuple(a[2] for a in axes))
        return slot, self._made(term.labels) if self.home == "mlx" else term

    def _summed(self, slot: int, term: Term, kept: frozenset[str]) -> tuple[int, Term]:
        """Add up what is in no other operand and not kept."""
        left = tuple(label for label in term.labels if label in kept)
        if left == term.labels:
            return slot, term
        made = self._by_elements((term,), left)
        self._note("sum", made.choice, (term,), left)
        return self._add(made, slot), self._made(left)

    def _by_elements(self, terms: tuple[Term, ...], to: tuple[str, ...]) -> Any:
        operands = tuple(Operand(f"in{i}", self.dtype, t.shape, t.strides) for i, t in enumerate(terms))
        parameters = (("equation", self._equation(*terms, to=to)),)
        return self.make(EinsumProblem("einsum", operands, parameters, "einsum", device=self.problem.device))

    def _pair(self, left: tuple[int, Term], right: tuple[int, Term], kept: frozenset[str]) -> tuple[int, Term]:
        left = self._summed(*left, kept.union(right[1].labels))
        right = self._summed(*right, kept.union(left[1].labels))
        x, y = left[1], right[1]
        both = [label for label in x.labels if label in y.labels]
        batch, inner = [n for n in both if n in kept], [n for n in both if n not in kept]
        rows, columns = [n for n in x.labels if n not in both], [n for n in y.labels if n not in both]
        if not inner and (not rows or not columns):  # one element of each for one of the result
            to = x.labels if not columns else y.labels
            made = self._by_elements((x, y), to)
            self._note("multiply", made.choice, (x, y), to)
            return self._add(made, left[0], right[0]), self._made(to)
        wanted = {label: at for at, label in enumerate(self.output)}
        batch.sort(key=lambda label: (wanted.get(label, len(wanted)), x.labels.index(label)))
        if self.output == (*batch, *columns, *rows):  # the result comes out in the order that is wanted
            left, right, x, y, rows, columns = right, left, y, x, columns, rows
        inner.sort(key=lambda label: -x.steps[label])
        first, a = self._matrices(left[0], x, batch, rows, inner)
        second, b = self._matrices(right[0], y, batch, inner, columns)
        product = self._product(a, b)
        made = self.make(product)
        to = (*batch, *rows, *columns)
        self._note("product", made.choice, (x, y), to)
        term = self._made(to)
        slot = self._add(made, first, second)
        if product.result != term.shape:
            slot = self._add(methodcaller("reshape", term.shape), slot)
        return slot, term

    def _product(self, a: Term, b: Term) -> MatmulProblem:
        """The Problem of a product of matrices, or batches of them."""
        memory = np.empty(1, self.dtype)
        seen = [np.lib.stride_tricks.as_strided(memory, t.shape, t.strides, writeable=False) for t in (a, b)]
        product: MatmulProblem = replace(operations["matmul"].build(*seen), device=self.problem.device)
        return product

    def _matrices(self, slot: int, term: Term, *groups: list[str]) -> tuple[int, Term]:
        """An operand with each group of axes as one; the batch is left out where there is none."""
        used = [group for at, group in enumerate(groups) if group or at]
        order = tuple(term.labels.index(label) for group in used for label in group)
        item = self.dtype.itemsize
        shape = tuple(self._size(tuple(group)) for group in used)
        merged = [_merged([(self.sizes[label], term.steps[label]) for label in group], item) for group in used]
        moved = order != tuple(range(len(order)))
        strides: tuple[int, ...]
        if self.home == "mlx" or any(step is None for step in merged):
            strides = contiguous_strides(shape, item)
            self._note("copy", None, (term,), tuple(label for group in used for label in group))
            slot = self._add(_Late(lambda xp: _dense(xp, order if moved else None, shape)), slot)
        else:
            strides = tuple(item if step is None else step for step in merged)
            if moved or shape != term.shape:
                slot = self._add(_viewed(order, shape), slot)
        return slot, Term(("",) * len(shape), shape, strides)

    def _finish(self, slot: int, term: Term) -> None:
        p = self.problem
        order = tuple(term.labels.index(label) for label in self.output)
        moved, rounded, shape, dtype = order != tuple(range(len(order))), self.dtype != p.dtype, p.result, p.dtype
        alone = len(p.inputs) == 1 and not any(s.choice for s in self.steps)
        if alone:
            self._note("view", None, (term,), self.output)
        elif moved:
            self._note("copy", None, (term,), self.output)

        dense = moved and not alone
        if slot >= self.first and shape and not (moved or rounded) and shape == term.shape:  # a sum of all may have an axis
            self.result = slot
        elif dense or rounded:

            def last(xp: Any) -> Run:
                def run(x: Array) -> Array:
                    x = x.transpose(order) if moved else x
                    x = xp.ascontiguousarray(x) if dense else x
                    return (cast(x, dtype) if rounded else x).reshape(shape)

                return run

            self.result = self._add(_Late(last), slot)
        else:
            self.result = self._add(_viewed(order, shape), slot)

    def plan(self) -> Any:
        """The Plan: a function of the operands."""
        return _Plan(self, choice_of(self))


@dataclass(frozen=True, slots=True)
class _Late:
    """A function of arrays that is made when the Plan is, by the namespace of their kind."""

    make: Callable[[Any], Run]


def _namespace(home: str) -> tuple[Any, Callable[..., Any]]:
    """The namespace of a kind of arrays, and how a function is called on those of a device."""
    if home == "mlx":
        from ...libraries.mlx.mlx_names import names

        return names(), lambda function, arrays: function(*arrays)
    from ...libraries.cuda.common import alignment, bindings

    return bindings.cupy(), alignment.called


def _converted(xp: Any, dtype: Any) -> Run:
    """The conversion to a dtype, dense."""
    return lambda x: xp.ascontiguousarray(cast(x, dtype))


def _diagonal(i: int, j: int) -> _Late:
    """The diagonal of two axes, behind the others."""
    return _Late(lambda xp: lambda x: xp.diagonal(x, 0, i, j))


def _dense(xp: Any, order: tuple[int, ...] | None, shape: tuple[int, ...]) -> Run:
    """The function that gives an array without gaps, with the axes in an order where one is said, and then the shape."""
    return lambda x: xp.ascontiguousarray(x if order is None else x.transpose(order)).reshape(shape)


def _viewed(order: tuple[int, ...], shape: tuple[int, ...]) -> Run:
    """The function that gives a view with the axes in an order, and then the shape."""
    if order == tuple(range(len(order))):
        return methodcaller("reshape", shape)
    return lambda x: x.transpose(order).reshape(shape)


def _merged(axes: list[tuple[int, int]], item: int) -> int | None:
    """The stride of axes as one, or None where they are none in memory."""
    for (_, outer), (n, inner) in pairwise(axes):
        if outer != n * inner:
            return None
    return axes[-1][1] if axes else item


class _Plan:
    """Runs the steps: functions of the slots that they read, and those that nobody reads after them. It keeps no array."""

    __slots__ = ("_call", "_out", "_program", "_result", "_steps", "_xp", "choice", "device", "empty")

    def __init__(self, c: DeviceContraction, choice: Any) -> None:
        self.choice = choice
        device = c.problem.device
        self.device = int(device.removeprefix("cuda:")) if device.startswith("cuda:") else None
        self._xp, self._call = _namespace(c.home)
        self._out, self._result = len(c.problem.inputs), c.result
        self.empty = (c.problem.result, c.problem.dtype) if c.problem.empty else None
        self._steps = tuple(function for function, _ in c.program if not isinstance(function, _Late))
        functions = [f.make(self._xp) if isinstance(f, _Late) else f for f, _ in c.program]
        last = {slot: at for at, (_, sources) in enumerate(c.program) for slot in sources}
        last.pop(c.result, None)
        self._program = tuple(
            (function, sources[0], sources[1] if len(sources) > 1 else None, tuple(s for s in set(sources) if last.get(s) == at))
            for at, (function, (_, sources)) in enumerate(zip(functions, c.program, strict=True))
        )

    @property
    def failed(self) -> bool:
        """True if the plan of a step must not be used again."""
        return any(getattr(step, "failed", False) for step in self._steps)

    def __call__(self, *arrays: Any) -> Any:
        if self.device is None:
            return self._run(*arrays)
        cuda = self._xp.cuda
        if cuda.runtime.getDevice() == self.device:
            return self._call(self._run, arrays)
        with cuda.Device(self.device):
            return self._call(self._run, arrays)

    def _run(self, *arrays: Any) -> Any:
        if self.empty is not None:
            result = self._xp.zeros(self.empty[0], dtype=self.empty[1])
        else:
            slots: list[Any] = list(arrays[: self._out])
            for function, first, second, done in self._program:
                slots.append(function(slots[first]) if second is None else function(slots[first], slots[second]))
                for slot in done:
                    slots[slot] = None
            result = slots[self._result]
        return into(arrays[self._out], "einsum", result) if len(arrays) > self._out else result
