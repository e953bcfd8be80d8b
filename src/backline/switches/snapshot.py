"""The Snapshot: all switch values as seen from one place, immutable and unique.

There is one object per set of values in a process, so ``is`` tells whether two places see the same settings,
and the compiled core can use the object's identity as a key. Nobody but this module makes one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Final, NoReturn

from ..errors import BacklineError, BadValue
from .switch import Value, show
from .switch_registry import declared, lookup

if TYPE_CHECKING:
    from .scope import Scope

__all__ = ["SCHEMA", "Overlay", "Snapshot", "intern", "overlay"]

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
        """Value of switch `name`, or `default` if there is none of that name."""
        return self._values.get(name, default)

    def resolved(self, name: str) -> Value:
        """Return what switch `name`, or a view such as ``cudnn.allow_tf32``, reads as here.

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
        """Names of the switches."""
        return self._values.keys()

    def values(self) -> ValuesView[Value]:
        """Values, in the order of the names."""
        return self._values.values()

    def items(self) -> ItemsView[str, Value]:
        """Pairs of name and value."""
        return self._values.items()

    def apply(self) -> Scope:
        """Return a scope in which every switch has the value it has here.

        For worker processes: send the snapshot, and do the work inside ``with snapshot.apply():``.
        """
        from .scope import make_scope

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
    """What the switches of one Snapshot read as, worked out when first asked for."""

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
_lock = threading.RLock()  # re-entrant: a signal handler may read a switch while this thread holds it


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread that does not exist in the child may have held it
    os.register_at_fork(after_in_child=_new_lock)


def intern(values: Mapping[str, Value]) -> Snapshot:
    """Return the one Snapshot of these values, which have been checked."""
    names = tuple(sorted(values))
    key = (names, tuple([values[name] for name in names]))
    with _lock:
        found = _interned.get(key)
        if found is None:
            found = object.__new__(Snapshot)
            object.__setattr__(found, "_values", dict(values))
            object.__setattr__(found, "_resolved", _Resolved(found._values))
            _interned[key] = found
        return found


class Overlay:
    """Values of some switches, laid over a Snapshot; remembers the results."""

    __slots__ = ("_over", "items")

    def __init__(self, items: tuple[tuple[str, Value], ...]) -> None:
        self.items = dict(items)
        self._over: dict[Snapshot, Snapshot] = {}

    def over(self, under: Snapshot) -> Snapshot:
        """Return the Snapshot that has these values, and those of `under` for the rest."""
        found = self._over.get(under)
        if found is None:
            found = intern({**under._values, **self.items})
            if len(self._over) >= _KEPT:
                self._over = {}  # a new dict: another thread may be reading the old one
            self._over[under] = found
        return found


def overlay(items: tuple[tuple[str, Value], ...]) -> Overlay:
    """Return the Overlay of these pairs, whose values have been checked; equal ones are usually shared."""
    found = _overlays.get(items)
    if found is None:
        found = Overlay(items)
        with _lock:
            if len(_overlays) >= _KEPT:
                _overlays.clear()
            _overlays[items] = found
    return found


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
            from . import plugins

            plugins.discover(name)
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
