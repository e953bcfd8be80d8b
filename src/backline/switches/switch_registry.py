"""The registry of the declared switches. Those of Backline itself are in `definitions`.

A declaration is all a new switch needs; attribute, scope keyword, environment variable, configuration key and the rows of
tables follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import NamedTuple, TypeVar

from ..errors import BadType, BadValue
from .scope_state import lock, set_base
from .switch import DerivedSwitch, Switch, Value, show

__all__ = [
    "Attached", "all_switches", "any_derived", "attach", "attached", "declared", "derived_switches", "find", "find_more",
    "known_libraries", "on_unknown", "register", "remove",
]  # fmt: skip

_all: dict[str, Switch] = {}
_stored: dict[str, Switch] = {}
_derived: dict[str, DerivedSwitch] = {}
# Never changed, but replaced: another thread may be going through one.
_by_environment: dict[str, Switch] = {}  # by variable; read and written under the lock

S = TypeVar("S", bound=Switch)


class _Live(Mapping[str, S]):
    """Read-only view of one of the tables as it is now. Iteration is safe while another thread declares."""

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


_ALL, _STORED, _DERIVED = _Live(lambda: _all), _Live(lambda: _stored), _Live(lambda: _derived)

# Libraries that no switch of their name turns off, but that may be preferred.
_UNSWITCHED = ("cublas", "cublaslt", "cusolver", "magma", "cufft", "triton", "cupy")


def declared() -> Mapping[str, Switch]:
    """Returns every switch that holds a value, by name, in the order of declaration (read-only, always up to date).

    Examples
    --------
    >>> declared()["mkl.enabled"].env
    'BACKLINE_MKL_ENABLED'
    """
    return _STORED


def derived_switches() -> Mapping[str, DerivedSwitch]:
    """Returns every switch that is computed from others and holds no value, by name."""
    return _DERIVED


def any_derived(names: Iterable[str]) -> bool:
    """Tells whether one of these switches is computed from others."""
    return not _derived.keys().isdisjoint(names)


def all_switches() -> Mapping[str, Switch]:
    """Returns every switch, derived ones included, by name."""
    return _ALL


def find(name: str) -> Switch | None:
    """Returns the switch called `name`, or None; faster than `all_switches`, for calls on every read."""
    return _all.get(name)


def known_libraries() -> list[str]:
    """Returns the names of the libraries that have a switch here or may be preferred without one."""
    return [*dict.fromkeys(s.allows for s in _stored.values() if s.allows), *_UNSWITCHED]


def register(switch: Switch, replacing: Switch | None = None) -> None:
    """Adds a switch, or puts it in the place of another; the next read takes its value from files and environment.

    Raises `BadValue` if another switch has its name or its environment variable.
    """
    global _all, _stored, _derived
    if not isinstance(switch, Switch):
        raise BadType(f"a Switch is wanted, not {type(switch).__name__}: {show(switch)}")
    with lock.now:
        other = _all.get(switch.name) or _by_environment.get(switch.env)
        if other == switch:
            return  # a plug-in that is imported twice, or reloaded
        if other is not None and other != replacing:
            raise BadValue(
                f"switch {switch.name} cannot be declared.",
                cause=f"{other.name} (environment {other.env}) is declared already",
                remedy="choose another name",
            )
        _by_environment[switch.env] = switch
        if isinstance(switch, DerivedSwitch):
            _derived = {**_derived, switch.name: switch}
        else:
            _stored = {**_stored, switch.name: switch}
        _all = {**_all, switch.name: switch}
        set_base(None)  # the next read makes a Snapshot that has the switch


def remove(name: str) -> None:
    """Removes a switch: for a plug-in that goes, and for tests."""
    global _all, _stored, _derived
    with lock.now:
        if name in _all:
            _by_environment.pop(_all[name].env, None)
        _all = {k: v for k, v in _all.items() if k != name}
        _stored = {k: v for k, v in _stored.items() if k != name}
        _derived = {k: v for k, v in _derived.items() if k != name}
        set_base(None)


# --- switches that are declared when they are needed ----------------------------------------------------------

_finders: list[Callable[[str], bool]] = []


def on_unknown(finder: Callable[[str], bool]) -> None:
    """Has `finder` declare further switches when one is needed that is not known: it is called with the name, or an empty string.

    It returns True where the name may be that of a switch which it cannot declare now. It may be called under the lock.
    """
    _finders.append(finder)


def find_more(name: str = "") -> bool:
    """Has switches declared that are declared when they are needed.

    Parameters
    ----------
    name
        The switch that is needed; empty for the names of libraries only.

    Returns
    -------
    bool
        True if there is such a switch now, or may be one later.
    """
    expected = [finder(name) for finder in _finders]
    return name in _all or any(expected)


# --- checks that need the libraries --------------------------------------------------------------------------


class Attached(NamedTuple):
    """Functions of a switch whose values depend on the libraries that are there."""

    accept: Callable[[Value], None] | None = None
    """Raises if the program may not set this value now. Values of files and environment are not checked by it."""

    on_read: Callable[[Value], Value] | None = None
    """Returns the value as it reads, given the stored one."""


_attached: dict[str, Attached] = {}
_NOTHING = Attached()


def attach(name: str, accept: Callable[[Value], None] | None = None, on_read: Callable[[Value], Value] | None = None) -> None:
    """Lets `accept` check what is written to a switch, and `on_read` change what is read from it."""
    _attached[name] = Attached(accept, on_read)


def attached(name: str) -> Attached:
    """Returns the functions that are attached to a switch."""
    return _attached.get(name, _NOTHING)
