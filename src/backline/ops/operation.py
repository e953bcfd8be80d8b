"""Makes a public operation of a function that turns arguments into a Problem."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import numpy as np

from .. import _core, switches
from ..engine import fft_plan_caches, first_sights
from ..engine.choose import plan_for
from ..engine.plan_templates import FAMILIES, template_of
from ..libraries import host_arrays
from ..libraries.array_kinds import arrays_in, learn
from ..problems import Problem
from ..problems.op_registry import Measured, Op, operations
from ..switches.provenance import steps_out
from . import device_dispatch, promote
from .doc_fragments import filled
from .seeds import drawn_seed, is_drawn, seed_of

__all__ = ["operation", "published", "unconverted"]

Array = np.ndarray[Any, Any]
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

# Builders as in the rows of `operations`, where operands must not be converted: those of an object that packs them.
unconverted: dict[str, Callable[..., Problem]] = {}


@overload
def operation(
    name: str, *, results: type[R], module: str = ..., family: str = ..., lists: tuple[str, ...] = ...,
    deprecated: Callable[..., str] | None = ..., scalar: str = ..., **measured: Unpack[Measured],
) -> Callable[[Callable[P, Problem]], Callable[P, R]]: ...  # fmt: skip
@overload
def operation(
    name: str, *, module: str = ..., family: str = ..., lists: tuple[str, ...] = ...,
    deprecated: Callable[..., str] | None = ..., scalar: str = ..., **measured: Unpack[Measured],
) -> Callable[[Callable[P, Problem]], Callable[P, Array]]: ...  # fmt: skip
def operation(
    name: str, *, results: Any = None, module: str = "backline", family: str = "", lists: tuple[str, ...] = (),
    deprecated: Callable[..., str] | None = None, scalar: str = "", **measured: Unpack[Measured],
) -> Any:  # fmt: skip
    """Decorator: the function's signature and docstring become those of a compiled Operation.

    The function takes the arguments and returns the Problem, its operands in the order of the signature. For type checkers the
    operation has the function's parameters and returns `results`, or an array where none is named.

    Parameters
    ----------
    name
        Name of the operation in its module.
    results
        Class of the result where it is not one array: a named tuple.
    module
        Public module of the operation.
    family
        Family of the Problem; products and linear algebra need not name theirs.
    lists
        Parameters whose tuples of arrays may be lists as well.
    deprecated
        Takes the arguments, too, and returns the text of a warning for a deprecated form of the call, else an empty one.
    scalar
        Parameter that is a run-time scalar, a seed: Plans are given its value with the arrays, no Problem and no key has it.
        A Plan that takes one is given a number that the process draws where the call has none.
    **measured
        Further fields of its row in the registry, `Op`: how it is measured and checked.
    """
    promotes = family not in ("quantized", "sparse")  # what is packed has its dtype, and integers are meant

    def make(function: Callable[..., Problem]) -> Any:
        signature = inspect.signature(function)
        parameters = tuple(signature.parameters)

        def of_numpy(*args: Any, **kwargs: Any) -> Problem:
            made = function(*args, **kwargs)
            return _in_call_order(made, parameters, args, kwargs) if kwargs else made

        def as_given(*args: Any, **kwargs: Any) -> Problem:
            if device_dispatch.among(args, kwargs):
                return device_dispatch.problem_of(op.__qualname__, of_numpy, args, kwargs)
            return of_numpy(*args, **kwargs)

        def problem(*args: Any, **kwargs: Any) -> Problem:
            args, kwargs = _keyed(parameters, lists, args, kwargs)
            return promote.accepted(as_given, parameters, args, kwargs) if promotes else as_given(*args, **kwargs)

        def resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            begin = perf_counter()
            made = problem(*args, **kwargs)
            plan = promote.plan_of(made) if made.converted else plan_for(made)
            text = deprecated(*args, **kwargs) if deprecated is not None else ""
            if text:
                warnings.warn(text, UserWarning, stacklevel=steps_out())
            # In a tuple it is not kept: the next such call is warned about, too, or has a seed of its own (recurrent networks).
            once = first_sights.concerns(made.family, made.op, made.device) and first_sights.passing(made)
            if text or once or is_drawn(made.parameters):
                return (plan,)
            kept = fft_plan_caches.for_memo(plan)
            if switches.current()["benchmark"] == "online":
                from ..engine.trials import watched

                return watched(kept, made, begin)
            return kept

        def templated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            warns = deprecated is not None and deprecated(*args, **kwargs)
            return None if warns else template_of(of_numpy, args, kwargs)

        def scalars(made: Problem, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
            """The run-time scalars of a call that the compiled Operation does not run itself."""
            if not made.scalars:
                return {}
            return {scalar: seed_of(op.__name__, dict(zip(parameters, args, strict=False), **kwargs).get(scalar))}

        def general(*args: Any, **kwargs: Any) -> Any:
            result = host_arrays.call(op, args, kwargs)
            if result is not NotImplemented:
                return result
            keyed = _keyed(parameters, lists, args, kwargs)
            if any(a is not b for a, b in zip((*args, *kwargs.values()), (*keyed[0], *keyed[1].values()), strict=True)):
                return op(*keyed[0], **keyed[1])
            if device_dispatch.among(args, kwargs):
                _know_keywords(op, kwargs)
                return _call_on_device(op, problem, scalars, args, kwargs)
            return _general(op, problem, scalars, args, kwargs)

        kind = family or ("linalg" if module == "backline.linalg" else "matmul")
        changing = templated if kind in FAMILIES else None
        op: Any = _core.Operation(
            name.rpartition(".")[2], parameters, resolve, general, foreign=True, templated=changing,
            scalar=scalar or None, draw=partial(drawn_seed, name.rpartition(".")[2]) if scalar else None,
        )  # fmt: skip
        published(op, function, module, signature)
        full = f"{module}.{op.__qualname__}".removeprefix("backline.")
        operations[full] = Op(
            name=full, build=problem, family=kind, signature=signature, results=results, scalar=scalar, **measured
        )
        unconverted[full] = as_given
        return op

    return make


def published(op: Any, function: Callable[P, Problem], module: str, signature: inspect.Signature) -> Callable[P, Array]:
    """Gives a compiled operation the name, documentation and parameters of the function that makes its Problems."""
    op.__doc__ = filled(function.__doc__)
    op.__module__ = module
    op.__qualname__ = op.__name__
    op.__signature__ = signature.replace(return_annotation=inspect.Signature.empty)
    typed: Callable[P, Array] = op
    return typed


def _in_call_order(problem: Problem, parameters: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
    """Operands in the order in which the call lists its arrays, which keywords may change."""
    names = [*parameters[: len(args)], *kwargs]
    counts = {}
    for name, value in zip(names, (*args, *kwargs.values()), strict=True):
        if isinstance(value, np.ndarray):
            counts[name] = 1
        elif isinstance(value, tuple):
            counts[name] = sum(isinstance(v, np.ndarray) for v in value)
    first, position = {}, 0
    for name in parameters:
        first[name] = position
        position += counts.get(name, 0)
    order = [first[name] + i for name in names for i in range(counts.get(name, 0))]
    if order == sorted(order):
        return problem
    return replace(problem, operands=tuple(problem.operands[i] for i in order))


def _keyed(
    names: tuple[str, ...], lists: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the Memo can have them in a key: dtypes by name, and tuples in the place of certain lists."""

    def one(name: str | None, value: Any) -> Any:
        if type(value) is list and name in lists:
            return tuple(value)
        if name in ("dtype", "out_dtype", "output_dtype") and isinstance(value, (np.dtype, type)):
            try:
                return np.dtype(value).name
            except TypeError:
                return value
        return value

    return tuple(map(one, names, args)) + args[len(names) :], {name: one(name, value) for name, value in kwargs.items()}


def _general(
    op: Any, problem: Callable[..., Problem], scalars: Callable[..., dict[str, int]], args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """A call that cannot be memoised as it is: make plain what can be, let the operation refuse the rest."""
    _know_keywords(op, kwargs)
    plain_args = tuple(_plain(v) for v in args)
    plain_kwargs = {str(k): v if k == "out" else _plain(v) for k, v in kwargs.items()}
    same = all(a is b for a, b in zip(args, plain_args, strict=True))
    same &= all(a is b for a, b in zip(kwargs.values(), plain_kwargs.values(), strict=True))
    if not same:
        return op(*plain_args, **plain_kwargs)
    made = problem(*args, **kwargs)  # raises for what is wrong
    out = kwargs.get("out")
    if out is not None and any(type(a) is not np.ndarray for a in (out if isinstance(out, tuple) else (out,))):
        plain_kwargs["out"] = tuple(o.view(np.ndarray) for o in out) if isinstance(out, tuple) else out.view(np.ndarray)
        op(*plain_args, **plain_kwargs)
        return out
    arrays = [a for v in (*args, *kwargs.values()) for a in (v if isinstance(v, tuple) else (v,)) if isinstance(a, np.ndarray)]
    return promote.plan_of(made)(*arrays, **scalars(made, args, kwargs))


def _call_on_device(
    op: Any, problem: Callable[..., Problem], scalars: Callable[..., dict[str, int]], args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Runs a call that the Memo has no key for, mostly because it has not seen arrays of this type yet."""
    found = tuple(arrays_in(iter((*args, *kwargs.values()))))
    if any(learn(array, kind) for array, kind in found):
        return op(*args, **kwargs)
    made = problem(*args, **kwargs)
    return _core.run(op.__name__, promote.plan_of(made), *(array for array, _ in found), **scalars(made, args, kwargs))


def _know_keywords(op: Any, kwargs: dict[str, Any]) -> None:
    for name in kwargs:
        if name not in op.parameters:
            raise TypeError(f"{op.__name__}() got an unexpected keyword argument {name!r}; it has {', '.join(op.parameters)}")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if isinstance(value, (np.ma.MaskedArray, np.matrix)):
            return value
        if type(value) is not np.ndarray:
            value = value.view(np.ndarray)
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return value.item()
    if isinstance(value, tuple):
        parts = tuple(_plain(v) for v in value)
        # The same tuple if nothing in it changed: else a call that cannot be memoised would come back here for ever.
        return value if type(value) is tuple and all(a is b for a, b in zip(parts, value, strict=True)) else parts
    if isinstance(value, (bool, int, float, complex, str)) and type(value) not in (bool, int, float, complex, str):
        plain: Any = value
        return next(t(plain) for t in (int, float, complex, str) if isinstance(value, t))
    return value
