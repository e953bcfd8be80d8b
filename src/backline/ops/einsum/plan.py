"""An einsum as a list of steps, found once: sums over single axes, products of pairs, copies where axes lie too far apart.

Every product is a `MatmulProblem`, and what is no product a small `EinsumProblem`, for which the engine finds a library as for
any other call: switches, determinism, precision and tuning count for every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ... import _core, switches
from ...errors import NoKernel
from ...libraries.base import PythonPlan
from ...libraries.reference.reference_einsum import kind_of
from ...problems import Operand, Problem
from ...problems.dtypes import HALVES
from ...problems.einsum_problem import EinsumProblem
from ...problems.memory_layout import contiguous_strides
from .execute import EinsumPlan, ViewPlan, maker, mover, narrowed, viewer, written
from .layout import Pair, Steps, Term, axes_in_order, dense, pair
from .steps import StepWriter, cost_later, kept_labels, looping

__all__ = ["Contraction"]

Array = np.ndarray[Any, Any]

PRODUCTS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")  # what BLAS has, or takes by way of float32


class _Several(Exception):
    """It takes more than one product of the operands as they are."""


class Contraction(StepWriter):
    """Finds the steps of an einsum.

    `make` gives the Plan of a step's Problem, or, with `dry`, where no arrays will come, something that has its Choice.
    """

    home = "numpy"

    def __init__(self, problem: EinsumProblem, make: Callable[[Problem], Any], *, dry: bool = False) -> None:
        super().__init__(problem, make, len(problem.operands))
        self.dry = dry
        self.strict = problem.dtype.name in HALVES
        try:
            self._find(problem.dtype)
        except _Several:
            self.strict = False
            self._find(np.dtype(np.float32))  # every step in float32, and one rounding at the end

    def _find(self, dtype: np.dtype[Any]) -> None:
        p = self.problem
        self.dtype, self.item = dtype, dtype.itemsize
        self.steps, self.program = [], []
        self.direct = None
        self.out = p.index("out")
        if p.empty:
            self._empty()
            return
        terms = [self._term(label, o) for label, o in zip(p.terms, p.inputs, strict=True)]
        work: list[tuple[int, Term]] = list(enumerate(terms))
        if p.dtype != dtype:
            strides = [contiguous_strides(t.shape, self.item) for _, t in work]
            work = [
                (self._convert(i, dtype), replace(t, aligned=True, strides=s)) for (i, t), s in zip(work, strides, strict=True)
            ]
        self._contract(work)

    def _term(self, labels: str, o: Operand) -> Term:
        axes = tuple(label if n != 1 else "" for label, n in zip(labels, o.shape, strict=True))
        return Term(axes, o.shape, o.strides, o.aligned)

    # writing steps down ---------------------------------------------------------------------------------------------

    def _finished(self) -> list[tuple[Any, tuple[int, ...], tuple[int, ...]]]:
        """Functions, the slots they read, and those that nobody reads after them."""
        given = len(self.problem.operands)
        last: dict[int, int] = {}
        for at, (_, sources) in enumerate(self.program):
            last |= dict.fromkeys(sources, at)
        ends: dict[int, list[int]] = {}
        for slot, at in last.items():
            if slot >= given and slot != self.result:
                ends.setdefault(at, []).append(slot)
        return [(function, sources, tuple(ends.get(at, ()))) for at, (function, sources) in enumerate(self.program)]

    def _convert(self, slot: int, dtype: np.dtype[Any]) -> int:
        return self._add(lambda array: array.astype(dtype, order="C"), slot)

    def _empty(self) -> None:
        """Nothing to add up: zeros."""
        shape, dtype = self.problem.result, self.problem.dtype

        def zeros() -> Any:
            return np.zeros(shape, dtype)[()]

        def fill(out: Array) -> Array:
            out[...] = 0
            return out

        self.result = self._add(zeros) if self.out is None else self._add(fill, self.out)

    def _in_one_loop(self, terms: list[Term]) -> bool:
        """Takes the sum as one compiled loop over the call's arrays, unless it needs a product of matrices; tells if it did."""
        p = self.problem
        if self.dtype != p.dtype or len(terms) > 2 or not self._elementwise(*terms):
            return False
        try:
            made = self.make(replace(p, parameters=(("equation", p.parameter("equation")),)))
        except NoKernel:
            return False
        if made.choice.library != "kernels":
            return False
        self.path = ((0, 1),) if len(terms) == 2 else ()
        self._note(kind_of(p), made.choice, tuple(terms), self.output)
        self.result = self._add(made, *range(len(p.operands)))
        self.direct = made
        return True

    def _elementwise(self, x: Term, y: Term | None = None) -> bool:
        """Tells whether nothing is added up along an axis that only one operand has, so that no product of matrices is needed."""
        labels = set(x.labels) if y is None else {*x.labels, *y.labels}
        if y is None:
            return labels != set(self.output)
        return labels <= set(self.output) or (set(x.labels) == set(y.labels) and self.dtype.kind != "c")

    # the order ------------------------------------------------------------------------------------------------------

    def _contract(self, work: list[tuple[int, Term]]) -> None:
        output = self.output
        if self._in_one_loop([t for _, t in work]):
            return
        if len(work) == 1:
            self._alone(*work[0], output)
            return
        self._find_path([t for _, t in work])
        if self.strict and len(self.path) > 1:
            raise _Several
        groups = [tuple(sorted(step)) for step in self.path]
        for at, chosen in enumerate(groups):
            now = [work[i] for i in chosen]
            work = [w for i, w in enumerate(work) if i not in chosen]
            final = at == len(groups) - 1
            kept = frozenset(output).union(*(t.labels for _, t in work))
            if len(now) == 1:
                made = now[0]
            elif len(now) == 2:
                later = cost_later(groups[at + 1 :], [t.labels for _, t in work], output, self._size)
                made = self._pair(now[0], now[1], kept, output if final else None, later)
            else:
                made = self._by_numpy(now, output if final else kept_labels(now, kept), final)
            work.append(made)
        self._end(*work[0])

    # steps ----------------------------------------------------------------------------------------------------------

    def _alone(self, slot: int, term: Term, output: tuple[str, ...]) -> None:
        """One operand: a view if nothing is added up, else a sum."""
        p = self.problem
        if set(term.labels) == set(output):
            self._note("view", None, (term,), output)
            shape, look = p.result, viewer(p)
            if self.out is None:
                self.result = self._add(look, slot)
            else:
                self.result = self._add(lambda array, out: written(out, look(array).reshape(shape)), slot, self.out)
            return
        if self.strict:
            raise _Several
        self._end(*self._sum(slot, term, output, True))

    def _sum(self, slot: int, term: Term, output: tuple[str, ...], final: bool) -> tuple[int, Term]:
        """Add up what is in no other operand and not kept."""
        if self.strict:
            raise _Several

        def plain() -> tuple[int, Term]:
            return self._by_numpy([(slot, term)], output, final)

        def product() -> tuple[int, Term]:
            added = tuple(label for label in term.labels if label not in output)
            order = axes_in_order(added, term.steps)
            ones = Term(order, tuple(self.sizes[label] for label in order), tuple(dense(order, self.sizes, self.item).values()))
            values = np.ones(ones.shape, self.dtype)
            found = self._product((slot, term), (-1, ones), frozenset(output), output if final else None, lambda order: 0.0)
            return self._perform(found, (slot, term), (-1, ones), output if final else None, constant=values)

        return self._either(plain, product)

    def _either(self, first: Callable[[], tuple[int, Term]], second: Callable[[], tuple[int, Term]]) -> tuple[int, Term]:
        """The first of two ways, or the second if no library may do the first."""
        state = len(self.program), len(self.steps)
        try:
            return first()
        except NoKernel as refused:
            del self.program[state[0] :], self.steps[state[1] :]
            if self.dtype.name not in PRODUCTS:
                raise
            try:
                return second()
            except NoKernel:
                raise refused from None

    def _pair(
        self, left: tuple[int, Term], right: tuple[int, Term], kept: frozenset[str], output: tuple[str, ...] | None,
        later: Callable[[tuple[str, ...]], float],
    ) -> tuple[int, Term]:  # fmt: skip
        left, right = (self._reduced(this, other, kept) for this, other in ((left, right), (right, left)))
        x, y = left[1], right[1]
        order = output if output is not None else kept_labels([left, right], kept)
        summed = any(label not in kept for label in x.labels)

        def loops() -> tuple[int, Term]:
            return self._by_numpy([left, right], order, output is not None)

        find = partial(self._product, left, right, kept, output, later)
        if self.dtype.name not in PRODUCTS:
            return loops()
        if not summed or (set(x.labels) == set(y.labels) and self.dtype.kind != "c"):
            # One element of each for one of the result, or for one term of its sums.
            return self._either(loops, lambda: self._perform(find(), left, right, output))
        try:
            found = find()
        except NoKernel:
            return loops()

        def product() -> tuple[int, Term]:
            return self._perform(found, left, right, output)

        if looping(x, y, self.sizes, self.dtype) < found.cost and not switches.get("emulate"):
            return self._either(loops, product)
        return self._either(product, loops)

    def _reduced(self, this: tuple[int, Term], other: tuple[int, Term], kept: frozenset[str]) -> tuple[int, Term]:
        slot, term = this
        needed = tuple(label for label in axes_in_order(term.labels, term.steps) if label in kept or label in other[1].labels)
        return this if len(needed) == len(term.labels) else self._sum(slot, term, needed, False)

    def _by_numpy(self, now: list[tuple[int, Term]], output: tuple[str, ...], final: bool) -> tuple[int, Term]:
        """A step that is no matrix product, as an `EinsumProblem` of its own."""
        if self.strict:
            raise _Several
        names = iter(chr(c) for c in range(0x5000, 0x6000))
        inputs = ["".join(axis or next(names) for axis in t.axes) for _, t in now]
        operands = [Operand(f"in{i}", self.dtype, t.shape, t.strides, t.aligned) for i, (_, t) in enumerate(now)]
        shape = tuple(self.sizes[label] for label in output)
        given = final and self.out is not None and self.problem.dtype == self.dtype
        steps, aligned = dense(output, self.sizes, self.item), True
        if given:
            assert self.out is not None
            o = self.problem.operands[self.out]
            whole = self._term(self.problem.output, o)
            steps, aligned = whole.steps, o.aligned
        equation = (("equation", f"{','.join(inputs)}->{''.join(output)}"),)
        if not given and (shape or final):
            alone = self._by_loop(now, EinsumProblem("einsum", tuple(operands), equation, "einsum"), output)
            if alone is not None:
                self.result = alone if final and self.problem.result == shape else self.result
                return alone, Term(output, shape, tuple(steps[label] for label in output), aligned)
        # Always into an array of ours: NumPy would lie a result of its own out as the operands are.
        operands.append(Operand("out", self.dtype, shape, tuple(steps[label] for label in output), aligned))
        problem = EinsumProblem("einsum", tuple(operands), equation, "einsum")
        made = self.make(problem)
        self._note(kind_of(problem), made.choice, tuple(t for _, t in now), output)
        sources = [slot for slot, _ in now]
        if given:
            assert self.out is not None
            index = (*(slice(None) if axis else 0 for axis in whole.axes), Ellipsis)
            sources.append(self.out if all(whole.axes) else self._add(lambda out: out[index], self.out))
        else:
            sources.append(self._add(maker(shape, self.dtype)))
        slot = self._add(made, *sources)
        return slot, Term(output, shape, tuple(steps[label] for label in output), aligned)

    def _by_loop(self, now: list[tuple[int, Term]], problem: EinsumProblem, output: tuple[str, ...]) -> int | None:
        """The slot of a step's result that a compiled loop makes; None where there is no such loop."""
        try:
            made = self.make(problem)
        except NoKernel:
            return None
        if made.choice.library != "kernels":
            return None
        self._note(kind_of(problem), made.choice, tuple(t for _, t in now), output)
        return self._add(made, *(slot for slot, _ in now))

    def _target(self) -> tuple[Steps, bool, bool]:
        """Strides of the output, whether it is aligned, and whether the caller gives it."""
        p = self.problem
        if self.out is not None and p.dtype == self.dtype:
            o = p.operands[self.out]
            return self._term(p.output, o).steps, o.aligned, True
        return dense(self.output, self.sizes, self.item), True, False

    def _product(
        self, left: tuple[int, Term], right: tuple[int, Term], kept: frozenset[str], output: tuple[str, ...] | None,
        later: Callable[[tuple[str, ...]], float],
    ) -> Pair:  # fmt: skip
        target = self._target()[0] if output is not None else None
        found = pair(left[1], right[1], self.sizes, self.item, kept, target=target, later=later)
        if found is None:
            raise NoKernel("einsum: a product of so many small matrices has no plan", remedy="let numpy run it")
        return found

    def _perform(
        self, found: Pair, left: tuple[int, Term], right: tuple[int, Term], output: tuple[str, ...] | None,
        constant: Array | None = None,
    ) -> tuple[int, Term]:  # fmt: skip
        p = self.problem
        if self.strict and (found.left or found.right or found.target):
            raise _Several
        final = output is not None
        to = output if output is not None else found.order
        strides, aligned, given = self._target() if final and found.target is None else (found.steps, True, False)
        shape = tuple(self.sizes[label] for label in found.order)
        result = p.result if final and found.target is None else shape or (1,)
        writes = "" if given else found.writes(self.item)
        both = ((left, found.left), (right, found.right))
        alignment = (*(order is not None or t.aligned for (_, t), order in both), aligned)
        swapped = writes == "right left"
        # The checker sees a tuple of any length; it has the two operands and the output.
        problem = found.problem(self.dtype, alignment, swapped=swapped, out=not writes, result=result)  # type: ignore[arg-type]
        made = self.make(problem)
        slots = []
        for (slot, term), order in both:
            if slot < 0:
                assert constant is not None
                slot = self._add(lambda: constant)
            slots.append(self._copy(slot, term, order) if order is not None else slot)
        self._note("product", made.choice, (left[1], right[1]), to)
        if swapped:
            slots.reverse()
        if not writes:
            assert self.out is not None or not given
            slots.append(self.out if given and self.out is not None else self._add(maker(result, self.dtype)))
        slot = self._add(made, *slots)
        made_of = Term(found.order, shape, tuple(strides[label] for label in found.order))
        if not shape:
            made_of = Term(("",), (1,), (self.item,))
        if found.target is not None:
            return self._copy_out(slot, made_of), Term((), (), ())
        if final:
            self.result = slot
            arrays = (0, 1) if self.out is None else (0, 1, self.out)
            if len(self.program) == 1 and sorted(slots) == list(arrays):
                self.single = replace(problem, operands=tuple(problem.operands[slots.index(i)] for i in arrays))
                self.direct = made if tuple(slots) == arrays else None
        return slot, made_of

    def _copy(self, slot: int, term: Term, order: tuple[str, ...]) -> int:
        """A copy of an operand with its axes in another order, one in the other."""
        self._note("copy", None, (term,), order)
        shape = tuple(self.sizes[label] for label in order)
        return self._move(slot, term.steps, order, dense(order, self.sizes, self.item), shape or (1,), None)

    def _copy_out(self, slot: int, term: Term) -> int:
        """Copy what a product has written to where the output wants it."""
        p = self.problem
        self._note("copy", None, (term,), self.output)
        steps, _, given = self._target()
        self.result = self._move(slot, term.steps, self.output, steps, p.result, self.out if given else None)
        return self.result

    def _move(
        self, slot: int, source: Steps, labels: tuple[str, ...], target: Steps, shape: tuple[int, ...], out: int | None
    ) -> int:
        sources = (slot,) if out is None else (slot, out)
        if self.dry:
            return self._add(None, *sources)
        return self._add(mover(self.dtype, labels, self.sizes, source, target, shape, given=out is not None), *sources)

    # the end --------------------------------------------------------------------------------------------------------

    def _end(self, slot: int, term: Term) -> None:
        """Give what the last step made the shape and the dtype of the result."""
        p, given = self.problem, self._target()[2]
        if self.result < 0:
            if given:
                assert self.out is not None
                self.result = self._add(lambda made, out: out, slot, self.out)
            elif term.shape != p.result:
                shape = p.result
                self.result = self._add(lambda made: made.reshape(shape), slot)
            else:
                self.result = self._add(lambda made: made[()], slot) if not p.result else slot
        if p.dtype != self.dtype:
            dtype = p.dtype
            with_out = self.out
            if with_out is None:
                self.result = self._add(lambda made: narrowed(made, dtype), self.result)
            else:
                self.result = self._add(lambda made, out: written(out, made), self.result, with_out)

    def plan(self, form: str) -> Any:
        """The Plan; `form` says how the arguments of a call hold its arrays."""
        if self.direct is not None and isinstance(self.direct, (_core.PreparedCall, PythonPlan)):
            return self.direct
        if form == "plain" and self.out is None and [step.kind for step in self.steps] == ["view"]:
            return ViewPlan(self.program[0][0])
        return EinsumPlan(self._finished(), self.result, len(self.problem.inputs), form)
