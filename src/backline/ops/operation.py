"""Makes a public operation of a function that turns arguments into a Problem."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import _core
from ..engine import fft_plan_caches
from ..engine.explanation import composites, operation_families, problem_builders
from ..errors import BadType, BadValue
from ..libraries.array_kinds import kind_of
from ..problems import Problem
from ..switches.provenance import steps_out
from . import device_dispatch, promote
from .seeds import is_drawn

__all__ = ["check_array", "check_out", "composed_of", "operation", "unconverted"]

# As `problem_builders`, where operands must not be converted: those of an object that packs them.
unconverted: dict[str, Callable[..., Problem]] = {}


def operation(
    name: str, *, module: str = "backline", family: str = "", lists: tuple[str, ...] = (),
    deprecated: Callable[..., str] | None = None,
) -> Callable[[Callable[..., Problem]], Any]:  # fmt: skip
    """Decorator: the function's signature and docstring become those of a compiled Operation.

    The function takes the arguments and returns the Problem, its operands in the order of the signature. `family` is that of the
    Problem; products and linear algebra need not name theirs. `lists` are parameters whose tuples of arrays may be lists as well.
    `deprecated` takes the arguments, too, and returns a warning for a way to call that is to go; every such call gives it.
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
            made = problem(*args, **kwargs)
            plan = promote.plan_of(made)
            text = deprecated(*args, **kwargs) if deprecated is not None else ""
            if text:
                warnings.warn(text, UserWarning, stacklevel=steps_out())
            # In a tuple it is not kept: the next such call is warned about, too, or has a seed of its own.
            return (plan,) if text or is_drawn(made) else fft_plan_caches.for_memo(plan)

        def general(*args: Any, **kwargs: Any) -> Any:
            keyed = _keyed(parameters, lists, args, kwargs)
            if any(a is not b for a, b in zip((*args, *kwargs.values()), (*keyed[0], *keyed[1].values()), strict=True)):
                return op(*keyed[0], **keyed[1])
            if device_dispatch.among(args, kwargs):
                _know_keywords(op, kwargs)
                return device_dispatch.call(op, problem, args, kwargs)
            return _general(op, problem, args, kwargs)

        op = _core.Operation(name.rpartition(".")[2], parameters, resolve, general, foreign=True)
        op.__doc__ = function.__doc__
        op.__module__ = module
        op.__qualname__ = name.rpartition(".")[2]
        op.__signature__ = signature.replace(return_annotation=inspect.Signature.empty)
        full = f"{module}.{op.__qualname__}".removeprefix("backline.")
        problem_builders[full], unconverted[full] = problem, as_given
        operation_families[full] = family or ("linalg" if module == "backline.linalg" else "matmul")
        return op

    return make


def composed_of(*parts: str, module: str = "backline.linalg") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: an operation made of others, named so that `explain` can say so."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__module__ = module  # the name that users know it by, as operations have it
        composites[f"{module}.{function.__qualname__}".removeprefix("backline.")] = parts
        return function

    return mark


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


def check_array(value: Any, where: str) -> np.ndarray[Any, Any]:
    """The value if it is an array that operations take.

    Raises
    ------
    BadType
        For anything else; the message says what to do about it.
    """
    if not isinstance(value, np.ndarray):
        kind = kind_of(value)
        if kind is not None:
            raise BadType(
                f"{where} must be a NumPy array, not one of {kind.title}", cause="this is computed on the host alone",
                remedy="a copy on the host, which the program makes: nothing is copied behind your back",
            )  # fmt: skip
        raise BadType(
            f"{where} must be a NumPy array, not {type(value).__name__}",
            remedy="np.asarray(x), or np.from_dlpack(x) without a copy",
        )
    if isinstance(value, (np.ma.MaskedArray, np.matrix)):
        raise BadType(
            f"{where} is a {type(value).__name__}, which has rules of its own",
            remedy="x.filled(...) or np.asarray(x)",
        )
    if value.dtype.hasobject or value.dtype.names is not None or (value.dtype.kind in "SUMmV" and value.dtype.name != "bfloat16"):
        raise BadType(f"{where} has dtype {value.dtype}, which is not a number", remedy="x.astype(np.float64)")
    return value


def check_out(out: np.ndarray[Any, Any], where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The output array if it can take the result."""
    check_array(out, where)
    if out.shape != shape:
        raise BadValue(f"{where} has shape {out.shape}, the result has shape {shape}")
    if out.dtype != dtype:
        raise BadType(f"{where} has dtype {out.dtype}, the result has dtype {dtype}")
    if not out.flags.writeable:
        raise BadValue(f"{where} is read-only", remedy="a writeable array: out.copy()")
    if out.size > 1 and any(s == 0 and n > 1 for s, n in zip(out.strides, out.shape, strict=True)):
        raise BadValue(f"{where} has elements that share memory (a stride of 0)", remedy="an array of its own: out.copy()")
    return out


def _keyed(
    names: tuple[str, ...], lists: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the Memo can have them in a key: dtypes by name, and tuples in the place of certain lists."""

    def one(name: str | None, value: Any) -> Any:
        if type(value) is list and name in lists:
            return tuple(value)
        if name == "dtype" and isinstance(value, (np.dtype, type)):
            try:
                return np.dtype(value).name
            except TypeError:
                return value
        return value

    return tuple(map(one, names, args)) + args[len(names) :], {name: one(name, value) for name, value in kwargs.items()}


def _general(op: Any, problem: Callable[..., Problem], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
    return promote.plan_of(made)(*arrays)


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
