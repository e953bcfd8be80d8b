"""Operands converted before an operation runs: to a dtype that the call names, or as the switch `promote` allows.

Nothing here is reached by a call that is legal as it is: with ``promote = "numpy"`` the conversion is tried where an error about
dtypes would have been raised.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from .. import _core, switches
from ..engine.choose import plan_for, renewed
from ..errors import BacklineError, BadType
from ..libraries import host_arrays
from ..libraries.array_kinds import kind_of
from ..problems import Problem, short
from . import device_dispatch
from .array_arguments import cast, dtype_of

__all__ = ["ConvertedPlan", "accepted", "again", "conversion", "plan_of", "promoting", "recast"]

Array = Any
F = TypeVar("F", bound=Callable[..., Any])

KEPT = ("out", "pivots", "lengths", "offs", "cu_seq_q", "cu_seq_k")  # written to, or integers whatever the others are
UPDATED = ("running_mean", "running_var")  # written to by functions around an operation, which itself reads them
DEPTH = 2  # of the tuples and lists that arrays are looked for in: arguments are what a program gives, legal or not


class ConvertedPlan:
    """A Plan that runs another one on arrays converted to the dtypes of a Problem's operands."""

    __slots__ = ("choice", "dtypes", "plan")

    def __init__(self, plan: Any, problem: Problem) -> None:
        self.plan = plan
        self.choice: Any = replace(plan.choice, problem=replace(plan.choice.problem, converted=problem.converted))
        self.dtypes = tuple(o.dtype for o in problem.operands)

    @property
    def failed(self) -> bool:
        return bool(getattr(self.plan, "failed", False))

    @property
    def scalars(self) -> tuple[str, ...]:
        return getattr(self.plan, "scalars", ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dtypes = iter(self.dtypes)
        plan = renewed(self.plan)
        if plan is not self.plan:
            self.choice = replace(plan.choice, problem=self.choice.problem)
            self.plan = plan

        def one(value: Any) -> Any:
            if _is_array(value):
                return recast(value, next(dtypes))
            return type(value)(map(one, value)) if type(value) in (tuple, list) else value

        given = [one(value) for value in (*args, *kwargs.values())]
        if isinstance(self.plan, _core.PreparedCall):  # takes the arrays alone
            return self.plan(*(a for _, a in _arrays("", given)))
        return self.plan(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))


def plan_of(problem: Problem) -> Any:
    """The Plan of a Problem, with the conversions that it names."""
    plan = plan_for(problem)
    return ConvertedPlan(plan, problem) if problem.converted else plan


def recast(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in a dtype; the same array where it has it."""
    if dtype_of(array) == dtype:
        return array
    with np.errstate(all="ignore"):  # what a narrower dtype does not hold shows in the result
        return cast(array, dtype)


def conversion(name: str, array: Array, dtype: np.dtype[Any]) -> str:
    """Words for the conversion of an argument, for `explain`."""
    return f"{name} {short(dtype_of(array))} -> {short(dtype)}"


def accepted(problem: Callable[..., Problem], names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
    """Returns the Problem of a call, its operands converted where they have to be and the switch `promote` allows it.

    `problem` makes it of the arguments, or raises, for the call as it is or with its operands converted. `names` are the
    parameters of the operation, in order.
    """
    try:
        return problem(*args, **kwargs)
    except BadType as error:
        allowed, refused = switches.current()["promote"] == "numpy", error
        if not allowed and device_dispatch.among(args, kwargs):
            raise  # what would help is not tried on a device
        for dtype in _candidates(names, args, kwargs, KEPT):
            words: list[str] = []
            converted, named = _converted(names, args, kwargs, KEPT, dtype, _described, words)
            try:
                made = problem(*converted, **named)
            except BadType as another:  # such as an `out` of another dtype than the result
                refused = another if allowed else error
                continue
            except BacklineError:  # the conversion would only lead to another error
                if allowed:
                    raise
                continue
            if allowed:
                return replace(made, converted=(*words, *made.converted))
            error.remedy += f"{', or ' if error.remedy else ''}backends.promote = 'numpy', which converts to {dtype}"
            break
        raise refused from None


def again(
    function: Callable[..., Any], error: BadType, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a function that refused its arguments, with their arrays converted; raises `error` if nothing may be."""
    if switches.current()["promote"] == "numpy":
        kept = KEPT + UPDATED
        for dtype in _candidates(names, args, kwargs, kept):
            converted, named = _converted(names, args, kwargs, kept, dtype, recast, [])
            try:
                return function(*converted, **named)
            except BadType as another:
                error = another
    raise error from None


def promoting(function: F) -> F:
    """Decorator for an operation that is a Python function: `again` where it refuses dtypes."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (args and type(args[0]) is np.ndarray):
            result = host_arrays.call(call, args, kwargs)
            if result is not NotImplemented:
                return result
        try:
            return function(*args, **kwargs)
        except BadType as error:
            return again(function, error, names_of(function), args, kwargs)

    return call  # type: ignore[return-value]  # it has the signature of `function`, which `wraps` does not say


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of a function that may be given by position."""
    found = inspect.signature(function).parameters.values()
    return tuple(p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


# What is converted, and to what -----------------------------------------------------------------------------------------


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or kind_of(value) is not None


def _arrays(name: str, values: Any, depth: int = DEPTH) -> Iterator[tuple[str, Array]]:
    """Arrays among values, and among those of tuples and lists in them."""
    for i, value in enumerate(values):
        within = f"{name}[{i}]" if name else f"operand {i}"
        if _is_array(value):
            yield within, value
        elif isinstance(value, (tuple, list)) and depth:
            yield from _arrays(within, value, depth - 1)


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for i, value in enumerate(args):
        yield (names[i] if i < len(names) else f"operand {i}"), value
    yield from kwargs.items()


def _converts(name: str, array: Array, kept: tuple[str, ...]) -> bool:
    """True if an argument is converted to the common dtype; a mask of bool is not."""
    return name not in kept and not ("mask" in name and dtype_of(array) == np.bool_)


def _candidates(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], kept: tuple[str, ...]
) -> list[np.dtype[Any]]:
    """The dtype that NumPy makes of those of a call, and float64 in the place of integers; those that would change one."""
    found = []
    for name, value in _named(names, args, kwargs):
        for _, array in _arrays(name, (value,)):
            if isinstance(array, (np.ma.MaskedArray, np.matrix)):
                return []  # these are refused for what they are, and a conversion would hide it
            if _converts(name, array, kept):
                found.append(dtype_of(array).newbyteorder("="))
    try:
        common = np.result_type(*found)
    except (TypeError, ValueError):  # there is none; or no array
        return []
    options = [common] if common.kind not in "biu" else [common, np.dtype(np.float64)]
    return [dtype for dtype in options if any(dtype != d for d in found)]


def _described(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array that lies in memory as the converted one would, which a Problem can be made of without converting."""
    if isinstance(array, np.ndarray):
        return array if array.dtype == dtype else np.empty_like(array, dtype=dtype, subok=False)
    return recast(array, dtype)


def _converted(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], kept: tuple[str, ...], dtype: np.dtype[Any],
    convert: Callable[[Array, np.dtype[Any]], Array], words: list[str],
) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The arguments with their arrays in a dtype, and in `words` which were converted. The same array stays one array."""
    done: dict[int, Array] = {}

    def one(name: str, within: str, value: Any, depth: int = DEPTH) -> Any:
        if type(value) in (tuple, list) and depth:
            return type(value)(one(name, f"{within}[{i}]", v, depth - 1) for i, v in enumerate(value))
        if not _is_array(value) or not _converts(name, value, kept):
            return value
        if id(value) not in done:
            done[id(value)] = convert(value, dtype)
        if done[id(value)] is not value:
            words.append(conversion(within, value, dtype))
        return done[id(value)]

    made = [one(name, name, value) for name, value in _named(names, args, kwargs)]
    return tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True))
