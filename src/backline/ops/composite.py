"""Decorators of operations that are composed of others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np

from ..errors import BadType
from ..libraries import host_arrays
from ..libraries.array_kinds import kind_of
from ..problems.op_registry import composites
from .array_arguments import native
from .doc_fragments import filled
from .promote import again, names_of

__all__ = ["composed_of", "natively", "on_its_device"]

Array = Any
F = TypeVar("F", bound=Callable[..., Any])


def composed_of(*parts: str, module: str = "backline.linalg") -> Callable[[F], F]:
    """Decorator: names the operations that this one is composed of, for `explain`."""

    def mark(function: F) -> F:
        function.__doc__ = filled(function.__doc__)
        function.__module__ = module  # the name that users know it by, as operations have it
        composites[f"{module}.{function.__qualname__}".removeprefix("backline.")] = parts
        return function

    return mark


def natively(function: F) -> F:
    """Decorator: converts arrays of the other byte order before the function gets them, all but `out`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        converted: dict[int, Array] = {}  # what is one array in several places stays one

        def own(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value if value.dtype.isnative else converted.setdefault(id(value), native(value))
            return type(value)(map(own, value)) if type(value) in (tuple, list) else value

        return function(*map(own, args), **{name: value if name == "out" else own(value) for name, value in kwargs.items()})

    return call  # type: ignore[return-value]  # it has the signature of `function`, which `wraps` does not say


def on_its_device(function: F) -> F:
    """Decorator: runs the function on the device of its first array, and promotes dtypes as the switch `promote` allows."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if args and type(args[0]) is np.ndarray:
                return function(*args, **kwargs)
            result = host_arrays.call(call, args, kwargs)
            if result is not NotImplemented:
                return result
            with _device(args, kwargs):
                return function(*args, **kwargs)
        except BadType as error:
            return again(function, error, names_of(function), args, kwargs)

    call.__doc__ = filled(function.__doc__)
    return call  # type: ignore[return-value]  # it has the signature of `function`, which `wraps` does not say


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in (*args, *kwargs.values()):
        for part in value if isinstance(value, (tuple, list)) else (value,):
            kind = kind_of(part)
            if kind is not None and kind.package == "cupy":
                from ..libraries.cuda.common import bindings

                return bindings.cupy().cuda.Device(int(part.device.id))
    return nullcontext()
