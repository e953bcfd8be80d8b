"""Snapshots, which are all switch values as seen from one place, and the scopes that lay other values over them.

There is one Snapshot per set of values in a process, so ``is`` tells whether two places see the same settings,
and the compiled core can use the object's identity as a key. Only `intern` makes one.
"""

from __future__ import annotations

import weakref
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from types import TracebackType
from typing import Any, Final, NoReturn

from .. import _core
from ..errors import BacklineError, BadValue
from . import process_values
from .lookup import lookup
from .process_values import accepted, expand, restored
from .provenance import Place, place, text_of
from .scope_decorator import ScopeDecorator
from .scope_state import ForkSafeLock, lock, process, set_base, state_over, states
from .switch import Value, show
from .switch_registry import any_derived, declared, derived_switches, find_more

__all__ = ["SCHEMA", "Overlay", "Scope", "Snapshot", "current", "intern", "make_scope", "overlay", "start"]

SCHEMA: Final = 2
"""Number of the pickled form. It goes up when an old reader would misunderstand a new pickle."""


class Snapshot:
    """The value of every switch, as seen at one place in the program.

    Read it like a mapping. Snapshots of equal values are the same object, also after pickling and unpickling
    within one process. Get one from `backline.switches.current`.

    Examples
    --------
    >>> from backline import switches
    >>> snapshot = switches.current()
    >>> snapshot["fallback"]
    'allow'
    >>> with switches.scope(fallback="warn"):
    ...     switches.current() is snapshot
    False
    """

    __slots__ = ("__weakref__", "_resolved", "_values")
    _values: dict[str, Value]
    _resolved: dict[str, Value]

    def __new__(cls) -> Snapshot:
        raise TypeError("a Snapshot is not made by hand; backline.switches.current() returns one")

    @property
    def version(self) -> int:
        """Schema number of the pickled form."""
        return SCHEMA

    def __getitem__(self, name: str) -> Value:
        try:
            return self._values[name]
        except KeyError:
            lookup(name)  # raises with the nearest names
            raise KeyError(f"switch {name!r} was declared after this snapshot was taken") from None

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """Returns the value of switch `name`, or `default` if there is none of that name."""
        return self._values.get(name, default)

    def resolved(self, name: str) -> Value:
        """Returns what switch `name`, or a derived one such as ``cudnn.allow_tf32``, reads as here.

        Precision switches are stored as they were written; this walks up their tree.

        Examples
        --------
        >>> from backline import switches
        >>> with switches.scope(fp32_precision="tf32"):
        ...     switches.current().resolved("cuda.matmul.allow_tf32")
        True
        """
        return self._resolved[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> KeysView[str]:
        """Returns the names of the switches."""
        return self._values.keys()

    def values(self) -> ValuesView[Value]:
        """Returns the values, in the order of the names."""
        return self._values.values()

    def items(self) -> ItemsView[str, Value]:
        """Returns the pairs of name and value."""
        return self._values.items()

    def apply(self) -> Scope:
        """Returns a scope in which every switch has the value it has here.

        For worker processes: send the snapshot, and do the work inside ``with snapshot.apply():``.
        """
        return make_scope("snapshot.apply", self._values, depth=2, restore=True)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TypeError("a Snapshot never changes; open a scope or assign the switch to get another one")

    def __delattr__(self, name: str) -> NoReturn:
        raise TypeError("a Snapshot never changes; open a scope or assign the switch to get another one")

    def __copy__(self) -> Snapshot:
        return self

    def __deepcopy__(self, memo: object) -> Snapshot:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (SCHEMA, tuple(self._values.items()))

    def __repr__(self) -> str:
        table = declared()
        changed = [
            f"{name}={value!r}"
            for name, value in self._values.items()
            if name in table and (callable(table[name].default) or value != table[name].default)
        ]
        rest = f"the other {len(self._values) - len(changed)} at their defaults"
        return f"<Snapshot {' '.join(changed)}; {rest}>"


class _Resolved(dict[str, Value]):
    """Values of one Snapshot as they read, each computed when it is first needed."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values

    def __missing__(self, name: str) -> Value:
        value = self[name] = lookup(name).resolve(self._values)
        return value


# Weak, so that a program that walks through many values of a switch does not keep them all.
_interned: weakref.WeakValueDictionary[tuple[object, ...], Snapshot] = weakref.WeakValueDictionary()
_overlays: dict[tuple[tuple[str, Value], ...], Overlay] = {}
_KEPT = 512  # overlays, and results per overlay: a bound, not a tuning value
_lock = ForkSafeLock()


def intern(values: Mapping[str, Value]) -> Snapshot:
    """Returns the one Snapshot of these values, which have been checked."""
    names = tuple(sorted(values))
    key = (names, tuple([values[name] for name in names]))
    with _lock.now:
        snapshot = _interned.get(key)
        if snapshot is None:
            snapshot = object.__new__(Snapshot)
            object.__setattr__(snapshot, "_values", dict(values))
            object.__setattr__(snapshot, "_resolved", _Resolved(snapshot._values))
            _interned[key] = snapshot
        return snapshot


class Overlay:
    """Values of some switches, laid over a Snapshot; remembers the results."""

    __slots__ = ("_over", "items")

    def __init__(self, items: tuple[tuple[str, Value], ...]) -> None:
        self.items = dict(items)
        self._over: dict[Snapshot, Snapshot] = {}

    def over(self, under: Snapshot) -> Snapshot:
        """Returns the Snapshot that has these values, and those of `under` for the rest."""
        snapshot = self._over.get(under)
        if snapshot is None:
            snapshot = intern({**under._values, **self.items})
            if len(self._over) >= _KEPT:
                self._over = {}  # a new dict: another thread may be reading the old one
            self._over[under] = snapshot
        return snapshot


def overlay(items: tuple[tuple[str, Value], ...]) -> Overlay:
    """Returns the Overlay of these pairs, whose values have been checked; equal ones are usually shared."""
    known = _overlays.get(items)
    if known is None:
        known = Overlay(items)
        with _lock.now:
            if len(_overlays) >= _KEPT:
                _overlays.clear()
            _overlays[items] = known
    return known


def _restore(schema: int, items: tuple[tuple[str, Value], ...]) -> Snapshot:
    if schema != SCHEMA:
        raise BadValue(
            f"a snapshot of schema {show(schema)} cannot be read here.",
            cause=f"this version of backline reads schema {SCHEMA}",
            remedy="run the same version of backline where it was made and where it is read",
        )
    table = declared()
    values: dict[str, Value] = {}
    for name, value in items:
        if name not in table:
            find_more(name)
        if name not in table:
            raise BadValue(
                f"the snapshot sets {show(name)}, a switch that does not exist here.",
                cause="it comes from another version of backline, or its plug-in is not imported here",
                remedy="use the same version on both sides, and import the plug-in before unpickling",
            )
        try:
            values[name] = table[name].restore(value)
        except BacklineError as error:
            raise BadValue(f"the snapshot cannot be read here: {error.message}", cause=error.cause) from None
    for name, switch in table.items():
        if name not in values:  # declared here but not where it was made
            values[name] = switch.starting()[0]
    return intern(values)


# --- the Snapshot that holds here -------------------------------------------------------------------------


def current() -> Snapshot:
    """Returns the Snapshot that holds here: in this thread, task and scope.

    Examples
    --------
    >>> current()["fallback"]
    'allow'
    """
    state = states.get(None)
    base: Snapshot | None = process.base
    if base is None:
        base = start()
    if state is None:
        return base
    if state.base is not base:
        state = state_over(state.layers, base, state.tracer)
        states.set(state)
    snapshot: Snapshot = state.snapshot
    return snapshot


def start() -> Snapshot:
    """Returns the base Snapshot, made anew if a switch was declared meanwhile; the first read of any switch does this.

    Whatever is wrong in the user's file or the environment becomes one warning for each. What is wrong in the project's file,
    which the program's own people can fix, is one `BadValue`, raised by that first read; the rest of the file holds.
    """
    with lock.now:
        if process.base is None:
            set_base(intern(process_values.merged()))
    process_values.report()  # after the lock and with the base in place: a warning may run anything, or raise
    base: Snapshot | None = process.base
    return base if base is not None else start()  # a plug-in that was found meanwhile declared switches


# --- scopes -----------------------------------------------------------------------------------------------


class Scope(ScopeDecorator):
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

    __slots__ = ("__weakref__", "_derived", "_last", "_overlay", "_place", "name")

    def __init__(self, name: str, values: Overlay, place: Place, derived: Mapping[str, Value] | None = None) -> None:
        self.name = name
        self._overlay = values
        self._place = place
        self._derived = derived  # what they store depends on what holds where the scope is entered
        self._last: tuple[Snapshot, Overlay] | None = None  # over what they stored what, the last time

    @property
    def values(self) -> dict[str, Value]:
        """The switches it sets, and their values."""
        return {**self._overlay.items, **(self._derived or {})}

    @property
    def where(self) -> str:
        """Place in the program that made it: "file.py:12"."""
        return text_of(self._place)

    def __enter__(self) -> Scope:
        state = states.get(None)
        base = process.base
        if base is None:
            base = start()
        values = self._overlay
        if self._derived is not None:
            values = self._over(current())
            state = states.get(None)
        if state is None:
            states.set(_core.ScopeState(((self, values, None),), base, values.over(base), None))
        else:
            if state.base is not base:
                state = state_over(state.layers, base, state.tracer)
            layers = (*state.layers, (self, values, None))
            states.set(_core.ScopeState(layers, base, values.over(state.snapshot), state.tracer))
        return self

    def _over(self, under: Snapshot) -> Overlay:
        last = self._last
        if last is None or last[0] is not under:
            last = self._last = under, overlay(tuple(expand(self.values, under._values).items()))
        return last[1]

    def _copy(self) -> Scope:
        return type(self)(self.name, self._overlay, self._place, self._derived)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state = states.get(None)
        layers = state.layers if state is not None else ()
        if state is None or not layers or layers[-1][0] is not self:
            mine = [index for index, layer in enumerate(layers) if layer[0] is self]
            if state is None or not mine:
                self._warn_not_open()
                return
            layers = layers[: mine[-1]] + layers[mine[-1] + 1 :]
        else:
            layers = layers[:-1]
        bare = process.bare
        if not layers and state.tracer is None and bare is not None:
            states.set(bare)
        else:
            states.set(state_over(layers, start(), state.tracer))

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

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"<scope {self.name}({values}) made at {self.where}>"


def make_scope(name: str, values: Mapping[str, object], depth: int = 1, *, restore: bool = False) -> Scope:
    """Checks `values` (switch name to value, None keeps) and returns a scope that sets them.

    Parameters
    ----------
    name
        Function that the user called, for messages: "mkl.flags".
    values
        Switches to set. One illegal value refuses them all.
    depth
        Number of frames up to the user's own line; 1 is the caller of this function.
    restore
        The values were stored before, and need not be such as a program may write.
    """
    check = restored if restore else accepted
    named: dict[str, Value] = {}
    for switch, value in values.items():  # this function makes every scope: no comprehension, which would be one more call
        if value is not None:
            named[switch] = check(switch, value)
    if any_derived(named):
        known = derived_switches()
        derived = {switch: value for switch, value in named.items() if switch in known}
        plain = tuple((switch, value) for switch, value in named.items() if switch not in derived)
        scope = Scope(name, overlay(plain), place(depth + 1), derived)
        scope._over(current())  # raises now for what contradicts itself
        return scope
    return Scope(name, overlay(tuple(named.items())), place(depth + 1))
