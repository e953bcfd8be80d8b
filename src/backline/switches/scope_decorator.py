"""The use of a scope as a decorator of functions and coroutine functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, ParamSpec, TypeVar, cast

from ..errors import BadType
from .switch import show

__all__ = ["ScopeDecorator"]

P = ParamSpec("P")
R = TypeVar("R")


class ScopeDecorator:
    """Base of scopes that can decorate functions."""

    __slots__ = ()

    def _copy(self) -> AbstractContextManager[Any]:
        """Returns another scope that sets the same."""
        raise NotImplementedError

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function) or isinstance(function, type):
            raise BadType(
                f"{self!r} cannot decorate {show(function)}.",
                cause="it decorates functions and coroutine functions",
                remedy="decorate the methods one by one, or use it in a with statement",
            )
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise BadType(
                f"{self!r} cannot decorate the generator function {show(function)}.",
                cause="its body runs in turn with its caller, where the scope would leak or be missing",
                remedy="open the scope inside the function, around what needs it",
            )
        if iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__):

            @wraps(function)
            async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self._copy():  # a layer of its own for each call
                    return await cast(Awaitable[Any], function(*args, **kwargs))

            return later  # type: ignore[return-value]  # it returns an awaitable, as `function` does

        @wraps(function)
        def now(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._copy():
                return function(*args, **kwargs)

        return now
