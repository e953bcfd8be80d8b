"""Decorator of operations that libraries have for NumPy's arrays, and that are composed of others wherever they have not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .. import _core, switches
from ..engine import policy
from ..engine.plan_templates import FAMILIES, template_of
from ..errors import BadValue, FallbackRefused, NoKernel, NotDeterministic
from ..libraries import host_arrays
from ..libraries.array_kinds import kind_of
from ..problems import Problem
from ..problems.op_registry import Flops, Op, operations
from . import promote
from .array_arguments import into
from .composite import composed_of
from .operation import published

__all__ = ["planned"]

P = ParamSpec("P")
R = TypeVar("R")


def planned(
    build: Callable[..., Problem | None], *parts: str, module: str = "backline.linalg", family: str = "linalg",
    lists: tuple[str, ...] = (), flops: Flops | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:  # fmt: skip
    """Decorator: the function becomes a compiled Operation, which runs Plans where libraries have one for the call.

    Where they have none the function itself runs: for arrays of devices, for arguments that `build` returns None for, among them
    all that the function refuses, and where switches leave no library that can.

    Parameters
    ----------
    build
        Takes the arguments of a call, the arrays NumPy's own, and returns its Problem, or None. The Problem's parameters are
        arguments of the function.
    *parts
        The operations that the function is composed of.
    module
        Public module of the operation.
    family
        Family of its Problems.
    lists
        Parameters whose lists of arrays may be tuples as well, which the Memo can have in a key.
    flops
        Field of its row, `Op`; results are compared with those of the function in float64.
    """

    def make(function: Callable[P, R]) -> Callable[P, R]:
        if parts:
            composed_of(*parts, module=module)(function)
        signature = inspect.signature(function)
        name = function.__name__
        full = f"{module}.{name}".removeprefix("backline.")

        def described(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem | None:
            if any(kind_of(value) is not None for value in (*args, *kwargs.values())):
                return None
            try:
                return build(*args, **kwargs)
            except TypeError:  # a parameter too many, or none of that name: the function says so
                return None

        def general(*args: Any, **kwargs: Any) -> Any:
            result = host_arrays.call(op, args, kwargs)
            if result is not NotImplemented:
                return result
            if lists and args and type(args[0]) is list:
                return op(tuple(args[0]), *args[1:], **kwargs)
            plain, named = tuple(map(_tupled, args)), {key: _tupled(value) for key, value in kwargs.items()}
            if any(a is not b for a, b in zip((*args, *kwargs.values()), (*plain, *named.values()), strict=True)):
                return op(*plain, **named)
            out = kwargs.get("out")
            without = {key: value for key, value in kwargs.items() if key != "out"}
            if out is None or described(args, without) is None:
                return function(*args, **kwargs)
            return into(out, name, op(*args, **without))

        def resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            begin = perf_counter()
            if kwargs.get("out") is not None:
                return None
            problem = described(args, {key: value for key, value in kwargs.items() if key != "out"})
            if problem is None:
                return None
            snapshot: Any = switches.current()
            if snapshot["fallback"] != "allow" and policy.preferred(problem, snapshot)[0]:
                return None  # a preference holds for each of the parts
            try:
                plan = promote.plan_of(problem)
            except (NoKernel, FallbackRefused, NotDeterministic):
                return None
            # A plan in Python takes the arrays themselves, which may not have the shapes of the Problem's operands.
            shapes = [a.shape for a in (*args, *kwargs.values()) if isinstance(a, np.ndarray)]
            same = [o.shape for o in problem.operands] == shapes

            def usable(plan: Any) -> bool:
                return same or isinstance(plan, _core.PreparedCall)

            if usable(plan) and snapshot["benchmark"] == "online":
                from ..engine.trials import watched

                return watched(plan, problem, begin, usable)
            return plan if usable(plan) else None

        def problem(*args: Any, **kwargs: Any) -> Problem:
            found = described(args, {key: value for key, value in kwargs.items() if key != "out"})
            if found is None:
                made_of = " and ".join(parts)
                raise BadValue(
                    f"{full} is made of other operations: {made_of}" if parts else f"{full} is computed element by element",
                    cause="no library has one plan for such a call",
                    remedy=f"explain {made_of}, or trace() a run of it" if parts else "",
                )  # fmt: skip
            return found

        def deviation(p: Problem, arrays: list[Any], results: tuple[Any, ...]) -> float:
            wide = [a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in arrays]
            given = {name: value for name, value in p.parameters if name in signature.parameters}
            wanted: Any = function(*((wide,) if lists else wide), **given)
            pairs = zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True)
            return max(_deviation(np.asarray(got), np.asarray(want)) for got, want in pairs)

        def templated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return None if kwargs.get("out") is not None else template_of(build, args, kwargs)

        changing = templated if family in FAMILIES else None
        op: Any = _core.Operation(name, tuple(signature.parameters), resolve, general, templated=changing)
        published(op, function, module, signature)  # type: ignore[arg-type]  # it returns results here, not a Problem
        op.__wrapped__ = function
        row: dict[str, Any] = {} if flops is None else {"flops": flops}
        operations[full] = Op(
            name=full, build=problem, family=family, signature=signature, check=deviation, **row
        )
        return op  # type: ignore[no-any-return]  # it has the function's signature

    return make


def _tupled(value: Any) -> Any:
    """Returns axes that are given in lists as tuples, which the Memo can have in a key; other values as they are."""
    if type(value) not in (list, tuple):
        return value
    parts = [_tupled(part) if type(part) in (list, tuple) else part for part in value]
    legal = all(type(part) in (int, tuple) for part in parts)
    same = type(value) is tuple and all(a is b for a, b in zip(value, parts, strict=True))
    return value if same or not legal else tuple(parts)


def _deviation(got: Any, want: Any) -> float:
    """Returns the largest difference, relative to the largest element."""
    largest = float(np.max(np.abs(want), initial=0.0))
    return float(np.max(np.abs(got - want), initial=0.0)) / (largest or 1.0)
