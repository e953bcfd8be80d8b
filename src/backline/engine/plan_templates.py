"""Templates of Plans: for calls whose sizes keep changing, what all sizes of a range have in common is found once.

`SizeTrace` puts symbols in the place of the sizes of one call; then the Problem is made, the ranking asked, and the Plan written
down by the same code as for any call. What comes out holds for all calls whose sizes satisfy the conditions on the way, and
the compiled core makes their Plans without Python. Where something else than the ranking decides (a tuning record, a
measurement, a preference), or a Plan is made of more than sizes, there is no template: each call is planned for itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from .. import _core, libraries, switches
from ..libraries.base import NULL_PLANNER, planner_for
from ..native import thread_team
from ..native.plan_builder import Description, described
from ..problems import Operand, Problem, short
from ..problems.symbolic_sizes import SizeTrace, SymbolicSize, Terms, Untraceable
from . import verbose_scopes
from .choice import Choice
from .choose import choice_of, planner
from .leader import Leader, leader
from .tuning import deciding_record, record_store

__all__ = ["FAMILIES", "Part", "template_of"]

# Families whose Plans may be of one form for many sizes. In no other one is a Problem made for the sake of a template: where a
# process draws seeds, that would draw one.
FAMILIES = ("fft", "linalg", "matmul", "neural")
LARGEST = 1 << 62  # bounds of conditions beyond it are none
LEVEL_STEPS = 1  # to a doubling: within a step an algorithm that was chosen for one size is near the best for the others


class Part(NamedTuple):
    """A Problem that is all there is to do for another one, which the call asks for.

    Attributes
    ----------
    step
        What a library runs; its operands are in the order of the call.
    whole
        What the call asks for.
    explain
        Function of `whole` and of what tells the Choice for a step: the Choice for the call. None where that of the step is told.
    """

    step: Problem
    whole: Problem
    explain: Callable[[Problem, Callable[[Problem], Choice]], Choice] | None = None


Build = Callable[..., "Problem | Part | None"]


class _Traced(NamedTuple):
    """A result found with symbols in the place of sizes.

    Attributes
    ----------
    written
        Description of the Plan with symbolic sizes; None where there is none of one form.
    rwlock
        Lock that its calls take.
    describe
        Returns the Choice of a call, from its sizes.
    same
        Tells from the sizes of a call if the ranking chooses the same algorithm for it; None where nobody knows.
    lasts
        Calls of one shape after which a Plan that is made for the shape takes its place; 0 for never.
    """

    written: Description | None = None
    rwlock: Any = None
    describe: Callable[[tuple[int, ...]], Choice] | None = None
    same: Callable[[tuple[int, ...]], bool] | None = None
    lasts: int = 0


def template_of(build: Build, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _core.PlanTemplate | None:
    """Returns the template that holds for a call, and for others like it; or one that says that there is none for such sizes.

    Parameters
    ----------
    build
        Makes the Problem of a call, or returns None where it has none.
    args, kwargs
        Arguments of the call.
    """
    trace = SizeTrace()
    try:
        found = _traced(trace, build, args, kwargs)
    except Exception:  # also for arguments that are refused: the call itself says so
        found = _Traced()
    written, rwlock, describe, same, lasts = found
    try:
        conditions, encoder = list(_conditions(trace)), _Encoder()
        levels = [(terms, min(steps, LEVEL_STEPS)) for terms, steps in trace.levels]
        tree, options = (None, {}) if written is None else (encoder.encode_description(written), written.options)
        return _core.PlanTemplate(
            trace.symbols, trace.quotients, conditions, levels, encoder.sums, tree, options, rwlock, describe, same, lasts
        )
    except (Untraceable, OverflowError):
        return None


def _traced(trace: SizeTrace, build: Build, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Traced:
    """Returns what holds for a call and for those like it."""
    libraries.ready()  # before the snapshot: plug-ins declare switches
    snapshot: Any = switches.current()
    if thread_team.forked():
        return _Traced()
    positions = count()

    def symbolic(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return trace.array(value, next(positions))
        return tuple(map(symbolic, value)) if type(value) is tuple else value

    # One after the other: arrays count in the order of the call, and Python makes the keywords of a call before its `*arguments`.
    positional = tuple(map(symbolic, args))
    keywords = {name: symbolic(value) for name, value in kwargs.items()}
    made = _part(build(*positional, **keywords))
    if made is None:
        return _Traced()
    problem = made.step
    if problem.family not in FAMILIES or problem.packed or problem.converted or _recorded(problem):
        return _Traced()
    first = leader(problem, snapshot, planner, changing=True)
    if first is None or verbose_scopes.speaks(libraries.get(first.algorithm.library), snapshot):
        return _Traced()

    def same(sizes: tuple[int, ...]) -> bool:
        found = leader(_evaluated(trace, problem, sizes), snapshot, planner, changing=True)
        return found is not None and found.algorithm == first.algorithm

    nothing = _Traced(same=same)
    try:
        written = _written(problem, first)
    except Exception:  # the library needs a number
        return nothing
    if written is None:
        return nothing

    # The way that was gone with symbols must be the way that is gone with numbers.
    values = tuple(trace.values[: len(trace.symbols)])
    plain = _part(build(*args, **kwargs))
    if plain is None or any(
        type(b) is not type(here := _evaluated(trace, a, values)) or b != here for a, b in zip(made[:2], plain[:2], strict=True)
    ):
        return nothing
    again = leader(plain.step, snapshot, planner, changing=True)
    if again is None or again.algorithm != first.algorithm:
        return nothing
    expected = _written(plain.step, again)
    if expected is None or tuple(trace.evaluated(tuple(written[:5]), values)) != tuple(expected[:5]):
        return nothing

    def choice(step: Problem) -> Choice:
        return choice_of(step, first, snapshot)

    def describe(sizes: tuple[int, ...]) -> Choice:
        if made.explain is None:
            return choice(_evaluated(trace, problem, sizes))
        return made.explain(_evaluated(trace, made.whole, sizes), choice)

    rwlock = libraries.get(first.algorithm.library).rwlock
    return _Traced(written, rwlock, describe, same, min(first.passed.values(), default=0))


def _part(built: Problem | Part | None) -> Part | None:
    return Part(built, built) if isinstance(built, Problem) else built


def _written(problem: Problem, first: Leader) -> Description | None:
    """Returns the description of the Plan of an Algorithm, if it is all that the Plan consists of."""
    library = libraries.get(first.algorithm.library)
    with described() as found:
        library.prepare(problem, first.algorithm, *planner_for(library, NULL_PLANNER))  # no plans of others in it
    if len(found) != 1:
        return None
    options = found[0].options
    if options["keep"] is not None or options["first"] is not None:  # made for these sizes
        return None
    plain = all(_knows_no_sizes(options[name]) for name in ("wrap", "on_info")) and not _has_sizes(options["info"])
    return found[0] if plain else None


def _knows_no_sizes(function: Any) -> bool:
    """Tells if a function, or None, has nothing in it that belongs to one Problem."""
    from ..libraries.blas.cblas import BlasTraits  # known by now, if any plan needs it

    if isinstance(function, functools.partial):
        bound = (*function.args, *function.keywords.values())
        return _knows_no_sizes(function.func) and all(
            value is None or isinstance(value, (str, int, BlasTraits, type)) for value in bound
        )
    return function is None or isinstance(function, type) or getattr(function, "__closure__", "none") is None


def _has_sizes(value: Any) -> bool:
    return type(value) is SymbolicSize or (isinstance(value, (tuple, list)) and any(map(_has_sizes, value)))


def _evaluated(trace: SizeTrace, problem: Problem, sizes: tuple[int, ...]) -> Problem:
    """Returns a Problem with numbers in the place of its symbolic sizes."""
    made = {field.name: trace.evaluated(getattr(problem, field.name), sizes) for field in fields(problem)}
    made["operands"] = tuple(
        Operand(o.role, o.dtype, trace.evaluated(o.shape, sizes), trace.evaluated(o.strides, sizes), o.aligned)
        for o in problem.operands
    )
    return replace(problem, **made)


def _recorded(problem: Problem) -> bool:
    """Tells if there is a tuning record of a Problem with a first operand of this shape, which would decide."""
    if record_store.empty():
        return False
    shapes = _recorded_shapes(record_store.generation()).get((problem.op, short(problem.dtype)), ())
    first = problem.operands[0].shape
    return any(len(first) == len(shape) and all(m == n for m, n in zip(first, shape, strict=True)) for shape in shapes)


@functools.lru_cache(maxsize=1)
def _recorded_shapes(generation: int) -> dict[tuple[str, str], set[tuple[int, ...]]]:
    """Shapes of the first operands in the tuning records, by operation and dtype."""
    found: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for key in deciding_record.problem_keys():
        words = key.split()
        sizes = words[2].partition(":")[0] if len(words) > 2 else "scalar"
        shape = () if sizes == "scalar" else tuple(map(int, sizes.split("x")))
        found.setdefault((words[0], words[1]), set()).add(shape)
    return found


# As the core takes it ---------------------------------------------------------------------------------------------------


def _conditions(trace: SizeTrace) -> Iterator[tuple[Terms, float | None, float | None, list[int]]]:
    """Yields the conditions: a sum, its least and largest value, others that it must not have. Those of the work come first."""
    listed = [(terms, bounds) for terms, bounds in trace.conditions.items()]
    for terms, bounds in sorted(listed, key=lambda pair: not _is_real(pair[0])):
        low, high = bounds.low, bounds.high
        if _is_real(terms):
            if bounds.excluded:
                raise Untraceable("a number that is no integer is compared with one value")
            yield terms, low, high, []
            continue
        low = None if low is None or low <= -LARGEST else math.ceil(low)
        high = None if high is None or high >= LARGEST else math.floor(high)
        yield terms, low, high, [int(value) for value in bounds.excluded if value == int(value)]


def _is_real(terms: Terms) -> bool:
    return any(isinstance(factor, float) for _, factor in terms)


class _Encoder:
    """Writes a description with symbolic sizes as tuples (kind, ...) that the core reads; the sizes' sums stand apart."""

    def __init__(self) -> None:
        self.sums: list[Terms] = []
        self._numbers: dict[Terms, int] = {}

    def _sum(self, size: SymbolicSize) -> int:
        terms: Terms = tuple(sorted(size.terms.items()))
        if _is_real(terms):
            raise Untraceable("a size that is no integer")
        if terms not in self._numbers:
            self._numbers[terms] = len(self.sums)
            self.sums.append(terms)
        return self._numbers[terms]

    def encode(self, part: Any) -> tuple[Any, ...]:
        if type(part) is SymbolicSize:
            return "#", self._sum(part)
        if not _has_sizes(part):
            return "=", part
        return "t" if type(part) is tuple else "l", [self.encode(child) for child in part]

    def encode_description(self, written: Description) -> tuple[Any, ...]:
        constants = written.buffers[0]
        patches = [(at, width, self._sum(size)) for at, width, size in written.patches]
        first = ("t", [("=", constants[0]), ("b", constants[1], patches)]) if patches else ("=", constants)
        buffers = "l", [first, *map(self.encode, written.buffers[1:])]
        return "t", [("=", written.arguments), buffers, *map(self.encode, written[2:5])]
