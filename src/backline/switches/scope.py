"""Scopes: what ``with ...flags(...)`` opens, and how it is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from .. import _core
from ..errors import BadType
from . import store
from .provenance import Place, place, text_of
from .snapshot import Overlay, Snapshot, overlay
from .switch import Value, show
from .switch_registry import lookup, views

__all__ = ["Scope", "make_scope"]

P = ParamSpec("P")
R = TypeVar("R")


class Scope:
    """Values for some switches, held while the scope is open and seen by the current context only.

    A context manager, for ``with`` and ``async with``, and a decorator for functions and coroutine functions. It may be entered
    again while it is open. It is left by identity: scopes may close in any order, and each takes away its own values only.

    Examples
    --------
    >>> from backline.switches import get
    >>> scope = make_scope("flags", {"fallback": "warn"})
    >>> with scope:
    ...     get("fallback")
    'warn'
    >>> @scope
    ... def policy():
    ...     return get("fallback")
    >>> policy(), get("fallback")
    ('warn', 'allow')
    """

    __slots__ = ("__weakref__", "_last", "_overlay", "_place", "_views", "name")

    def __init__(self, name: str, values: Overlay, place: Place, views: Mapping[str, Value] | None = None) -> None:
        self.name = name
        self._overlay = values
        self._place = place
        self._views = views  # what they store depends on what holds where the scope is entered
        self._last: tuple[Snapshot, Overlay] | None = None  # over what they stored what, the last time

    @property
    def values(self) -> dict[str, Value]:
        """The switches it sets, and their values."""
        return {**self._overlay.items, **(self._views or {})}

    @property
    def where(self) -> str:
        """Where in the program it was made: "file.py:12"."""
        return text_of(self._place)

    def __enter__(self) -> Scope:
        frame = store.frames.get(None)
        base = store.the_base
        if base is None:
            base = store.start()
        values = self._overlay
        if self._views is not None:
            values = self._over(store.current())
            frame = store.frames.get(None)
        if frame is None:
            store.frames.set(_core.ScopeState(((self, values, None),), base, values.over(base), None))
        else:
            if frame.base is not base:
                frame = store.frame_over(frame.layers, base, frame.tracer)
            layers = (*frame.layers, (self, values, None))
            store.frames.set(_core.ScopeState(layers, base, values.over(frame.snapshot), frame.tracer))
        return self

    def _over(self, under: Snapshot) -> Overlay:
        last = self._last
        if last is None or last[0] is not under:
            last = self._last = under, overlay(tuple(store.expand(self.values, under._values).items()))
        return last[1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        frame = store.frames.get(None)
        layers = frame.layers if frame is not None else ()
        if frame is None or not layers or layers[-1][0] is not self:
            mine = [index for index, layer in enumerate(layers) if layer[0] is self]
            if frame is None or not mine:
                self._warn_not_open()
                return
            layers = layers[: mine[-1]] + layers[mine[-1] + 1 :]
        else:
            layers = layers[:-1]
        bare = store.bare_frame
        if not layers and frame.tracer is None and bare is not None:
            store.frames.set(bare)
        else:
            store.frames.set(store.frame_over(layers, store.start(), frame.tracer))

    async def __aenter__(self) -> Any:
        # A coroutine runs in the context of the task that awaits it: what is set here holds in the block.
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _warn_not_open(self) -> None:
        import warnings

        warnings.warn(
            f"{self!r} is not open in this context, so leaving it changed nothing. It was left already, "
            "or entered in another thread or task: enter and leave it in the same one.",
            RuntimeWarning,
            stacklevel=3,
        )

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
                with type(self)(self.name, self._overlay, self._place, self._views):  # a layer of its own for each call
                    return await cast(Awaitable[Any], function(*args, **kwargs))

            return later  # type: ignore[return-value]  # it returns an awaitable, as `function` does

        @wraps(function)
        def now(*args: P.args, **kwargs: P.kwargs) -> R:
            with type(self)(self.name, self._overlay, self._place, self._views):
                return function(*args, **kwargs)

        return now

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"<scope {self.name}({values}) made at {self.where}>"


def make_scope(name: str, values: Mapping[str, object], depth: int = 1, *, restore: bool = False) -> Scope:
    """Check `values` (switch name to value, None keeps) and return a scope that sets them.

    Parameters
    ----------
    name
        What the user called, for messages: "mkl.flags".
    values
        Switches to set. One illegal value refuses them all.
    depth
        How many frames up the user's own line is; 1 is the caller of this function.
    restore
        The values were stored before, and need not be such as a program may write.
    """
    check = _restored if restore else store.accepted
    named = {switch: check(switch, value) for switch, value in values.items() if value is not None}
    known = views()
    if not known.keys().isdisjoint(named):
        late = {switch: value for switch, value in named.items() if switch in known}
        plain = tuple((switch, value) for switch, value in named.items() if switch not in late)
        made = Scope(name, overlay(plain), place(depth + 1), late)
        made._over(store.current())  # raises now for what contradicts itself
        return made
    return Scope(name, overlay(tuple(named.items())), place(depth + 1))


def _restored(name: str, value: object) -> Value:
    return lookup(name).restore(value)
