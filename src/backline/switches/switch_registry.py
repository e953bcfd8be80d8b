"""Which switches exist, and the registration that plug-ins use. The declarations themselves are in `table`.

A declaration is all a new switch needs; attribute, scope keyword, environment variable, configuration key and the rows of
tables follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import NamedTuple, TypeVar

from ..errors import BadType, BadValue, UnknownName
from .switch import Switch, Value, View, nearest, show

__all__ = ["Attached", "attach", "attached", "declared", "every", "library_names", "lookup", "register", "views", "withdraw"]

_every: dict[str, Switch] = {}
_stored: dict[str, Switch] = {}
_views: dict[str, View] = {}
# Never changed, but replaced: another thread may be going through one.

S = TypeVar("S", bound=Switch)


class _Live(Mapping[str, S]):
    """What one of the tables holds now. Going through it is safe while another thread declares."""

    __slots__ = ("_now",)

    def __init__(self, now: Callable[[], dict[str, S]]) -> None:
        self._now = now

    def __getitem__(self, name: str) -> S:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __contains__(self, name: object) -> bool:
        return name in self._now()

    def keys(self) -> KeysView[str]:
        return self._now().keys()

    def values(self) -> ValuesView[S]:
        return self._now().values()

    def items(self) -> ItemsView[str, S]:
        return self._now().items()


_EVERY, _STORED, _VIEWS = _Live(lambda: _every), _Live(lambda: _stored), _Live(lambda: _views)

# Libraries that no switch of their name turns off, but that may be preferred.
_UNSWITCHED = ("cublas", "cublaslt", "cusolver", "magma", "cufft", "triton", "cupy")


def declared() -> Mapping[str, Switch]:
    """Return every switch that holds a value, by name, in the order of declaration (read-only, always up to date).

    Examples
    --------
    >>> declared()["mkl.enabled"].env
    'BACKLINE_MKL_ENABLED'
    """
    return _STORED


def views() -> Mapping[str, View]:
    """Return every switch that is a view of others, by name."""
    return _VIEWS


def every() -> Mapping[str, Switch]:
    """Return every switch, views among them, by name."""
    return _EVERY


def library_names() -> list[str]:
    """Names of the libraries that may be preferred, or be the only ones allowed."""
    from . import plugins

    plugins.discover()
    return [*dict.fromkeys(s.allows for s in _stored.values() if s.allows), *_UNSWITCHED]


def lookup(name: str) -> Switch:
    """Return the switch called `name`, or raise `UnknownName` with the nearest names."""
    try:
        return _every[name]
    except (KeyError, TypeError):
        from . import plugins  # here, because it stands on the store, which stands on this

        plugins.discover(str(name))
        if isinstance(name, str) and name in _every:
            return _every[name]
        near = ", ".join(nearest(str(name), _every)[:3])
        raise UnknownName(f"there is no switch {show(name)}.", remedy=f"the nearest names: {near}") from None


def register(switch: Switch) -> None:
    """Add `switch` to the table. The store's `declare` does this and makes the snapshots anew."""
    global _every, _stored, _views
    if not isinstance(switch, Switch):
        raise BadType(f"a Switch is wanted, not {type(switch).__name__}: {show(switch)}")
    for other in _every.values():
        if other == switch:
            return  # a plug-in that is imported twice, or reloaded
        if other.name == switch.name or other.env == switch.env:
            raise BadValue(
                f"switch {switch.name} cannot be declared.",
                cause=f"{other.name} (environment {other.env}) is declared already",
                remedy="choose another name",
            )
    if isinstance(switch, View):
        _views = {**_views, switch.name: switch}
    else:
        _stored = {**_stored, switch.name: switch}
    _every = {**_every, switch.name: switch}


def withdraw(name: str) -> None:
    """Take a switch out again: for a plug-in that goes, and for tests."""
    global _every, _stored, _views
    _every = {k: v for k, v in _every.items() if k != name}
    _stored = {k: v for k, v in _stored.items() if k != name}
    _views = {k: v for k, v in _views.items() if k != name}


# --- what the floors above know about a switch ---------------------------------------------------------------


class Attached(NamedTuple):
    """What a floor above adds to a switch whose values depend on the libraries that are there."""

    accept: Callable[[Value], None] | None = None
    """Raises if the program may not set this value now. Files and environment are not asked."""

    see: Callable[[Value], Value] | None = None
    """The value as it reads, given the stored one."""


_attached: dict[str, Attached] = {}


def attach(
    name: str, accept: Callable[[Value], None] | None = None, see: Callable[[Value], Value] | None = None
) -> None:
    """Let `accept` check what is written to a switch, and `see` change what is read from it."""
    _attached[name] = Attached(accept, see)


def attached(name: str) -> Attached:
    """What is attached to a switch."""
    return _attached.get(name, _NOTHING)


_NOTHING = Attached()
