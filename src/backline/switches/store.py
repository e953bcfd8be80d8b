"""Where the values are: a process-wide base, and layers above it that only the current context sees.

The base is an immutable Snapshot, replaced under a lock. The layers are a tuple inside one ContextVar; no
layer is ever changed, so a thread or task that copied the context keeps the view it had. Reading costs one
lookup in the ContextVar and one in a dict; the compiled core does the first of these by itself.

A layer is a tuple ``(scope, overlay, written)``: the Scope that opened it, its values, and where those that
were assigned inside the scope came from. Entering, leaving (`scope`) and assigning build new tuples.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .. import _core
from ..errors import BadValue, Frozen
from .precision_tree import PARENT, decides
from .provenance import Origin, Place, place, text_of
from .snapshot import Overlay, Snapshot, intern, overlay
from .switch import Reduction, Switch, Value, View, show
from .switch_registry import attached, declared, every, lookup, register, views

if TYPE_CHECKING:
    from .config import Source
    from .scope import Scope

__all__ = [
    "Said",
    "accepted",
    "assign",
    "assign_many",
    "current",
    "deciding",
    "declare",
    "expand",
    "frame_over",
    "freeze",
    "frozen",
    "get",
    "history",
    "origin",
    "reader",
    "scope_is_open",
    "set_tracer",
    "start",
    "thawed",
    "tracer",
    "withdraw",
]

Layer: TypeAlias = "tuple[Scope, Overlay, Mapping[str, Place] | None]"

frames: ContextVar[_core.ScopeState] = ContextVar("backline_switches")
the_base: Snapshot | None = None  # None until something is read
bare_frame: _core.ScopeState | None = None  # no layers over the_base: for every context that closed its last scope

_lock = threading.RLock()  # re-entrant: a signal handler may write a switch while this thread holds it
_sources: list[Source] = []  # files and environment, the weakest first
_starting: dict[str, tuple[Value, str]] = {}  # defaults, with a word on where they come from
_given: dict[str, list[tuple[str, Value, str]]] = {}  # what the sources say: kind, value, where, the weakest first
_assigned: dict[str, tuple[Value, Place]] = {}
_is_frozen = False
_thawed: ContextVar[bool] = ContextVar("backline_thawed", default=False)


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread that does not exist in the child may have held it
    os.register_at_fork(after_in_child=_new_lock)


# --- reading -------------------------------------------------------------------------------------------


def current() -> Snapshot:
    """Return the Snapshot that holds here: in this thread, task and scope.

    Examples
    --------
    >>> current()["fallback"]
    'allow'
    """
    frame = frames.get(None)
    base = the_base
    if base is None:
        base = start()
    if frame is None:
        return base
    if frame.base is base:
        merged: Snapshot = frame.snapshot
        return merged
    anew: Snapshot = _merge_anew(frame, base).snapshot
    return anew


def get(name: str) -> Value:
    """Return what switch `name` reads as here.

    Examples
    --------
    >>> get("mkl.enabled")
    True
    >>> get("cudnn.conv.fp32_precision")
    'tf32'
    """
    lookup(name)
    try:
        value = current().resolved(name)
    except KeyError:  # declared by another thread just now, which is about to make the base anew
        with _lock:
            value = current().resolved(name)
    see = attached(name).see
    return value if see is None else see(value)


def reader(name: str) -> Callable[[object], Value]:
    """Return a function that ignores its argument and returns what switch `name` reads as: a fast getter."""
    if attached(name).see is not None:
        return lambda owner: get(name)

    def read(owner: object, _frame: Callable[[None], Any] = frames.get, _name: str = name) -> Value:
        frame = _frame(None)
        base = the_base
        if base is not None:
            if frame is None:
                return base._resolved[_name]
            if frame.base is base:
                value: Value = frame.snapshot._resolved[_name]
                return value
        return current().resolved(_name)

    return read


def origin(name: str) -> Origin:
    """Tell where the value of switch `name` that holds here comes from.

    Examples
    --------
    >>> from backline.switches import scope
    >>> with scope(fallback="warn"):
    ...     origin("fallback").kind
    'scope'
    """
    return deciding(name, lambda each: history(each)[0]).origin


class Said(NamedTuple):
    """One value that something gives a switch."""

    switch: str
    value: Value
    origin: Origin


def deciding(name: str, said: Callable[[str], Said]) -> Said:
    """What decides how switch `name` reads: for a view one of its nodes, for a node of precision one above it perhaps."""
    switch = lookup(name)
    if isinstance(switch, View):
        found = [deciding(node, said) for node in switch.nodes]
        return next((each for each in found if each.origin.kind != "default"), found[0])
    return said(decides(current()._values, name) if name in PARENT else name)


def history(name: str) -> list[Said]:
    """Everything that gives stored switch `name` a value here: what holds first, the default last.

    Examples
    --------
    >>> from backline.switches import scope
    >>> with scope(fallback="warn"), scope(fallback="error"):
    ...     [said.value for said in history("fallback")]
    ['error', 'warn', 'allow']
    """
    lookup(name)
    current()  # the files have been read now
    found = []
    frame = frames.get(None)
    for scope, values, written in reversed(frame.layers if frame is not None else ()):
        if name in values.items:
            opened = f"{scope.where}, {scope.name}"
            origin = Origin("scope", opened)
            if written is not None and name in written:
                origin = Origin("assignment", f"{text_of(written[name])}, inside the scope of {opened}")
            found.append(Said(name, values.items[name], origin))
    with _lock:
        if name in _assigned:
            value, noted = _assigned[name]
            found.append(Said(name, value, Origin("assignment", text_of(noted))))
        for kind, value, where in reversed(_given.get(name, ())):
            found.append(Said(name, value, Origin(kind, where)))
        value, where = _starting[name]
        found.append(Said(name, value, Origin("default", where)))
    return found


def start() -> Snapshot:
    """Read the configuration and the environment, if that has not been done, and return the base Snapshot.

    The first read of any switch does this. Whatever is wrong in the user's file or the environment becomes one warning for
    each. What is wrong in the project's file, which the program's own people can mend, is one `BadValue`, raised by that first
    read; the rest of the file holds.
    """
    global _sources
    from .config import read_sources, refuse, unknown_keys, warn_about  # at the first read, not at import

    with _lock:
        if the_base is not None:
            return the_base
        sources = read_sources(every())
        _sources = sources
        base = _make_base()
    for source in sources:  # after the lock and with the base in place: a warning may run anything, or raise
        source.faults += unknown_keys(source, every())
    for source in sources:
        if source.kind != "project file":
            warn_about(source)
    for source in sources:
        if source.kind == "project file":
            refuse(source)
    return the_base or base  # plug-ins that were found meanwhile made it anew


def _make_base() -> Snapshot:
    # Holds the lock. The weakest first; each later one replaces what it names.
    for name, switch in declared().items():
        if name not in _starting:
            _starting[name] = switch.starting()
    values = {name: _starting[name][0] for name in declared()}
    _given.clear()
    for source in _sources:
        # Other programs' variables give way to ours, and a view is worked out over what the same source says plainly.
        own = source.kind != "environment"
        order = sorted(source.values.items(), key=lambda row: (own or row[1][1].startswith("BACKLINE_"), row[0] in views()))
        for name, (value, where) in order:
            for node, written in expand({name: value}, values).items():
                values[node] = written
                _given.setdefault(node, []).append((source.kind, written, where))
    values.update({name: value for name, (value, _) in _assigned.items()})
    return _set_base(intern(values))


def expand(values: Mapping[str, Value], under: Mapping[str, Value]) -> dict[str, Value]:
    """Replace the views among checked `values` by what writing them over `under` stores.

    What is written plainly counts before the views; two values for one switch are refused.
    """
    stored = {name: value for name, value in values.items() if name not in views()}
    if len(stored) == len(values):
        return stored
    written: dict[str, tuple[Value, str]] = {}
    for name, value in values.items():
        view = views().get(name)
        if view is None:
            continue
        for node, new in view.write(value, {**under, **stored}).items():
            old, who = written.get(node, (stored.get(node, new), node))
            if old != new:
                raise BadValue(
                    f"{name} = {show(value)} and {who} = {show(values[who])} contradict each other.",
                    cause=f"{name} would store {node} = {show(new)}",
                    remedy="leave one of them out",
                )
            written[node] = new, name
    return stored | {node: value for node, (value, _) in written.items()}


def _set_base(snapshot: Snapshot) -> Snapshot:
    global the_base, bare_frame
    with _lock:
        bare_frame = _core.ScopeState((), snapshot, snapshot, None)
        the_base = snapshot
        _core.set_base(snapshot)
    return snapshot


def _merge_anew(frame: _core.ScopeState, base: Snapshot) -> _core.ScopeState:
    merged = frame_over(frame.layers, base, frame.tracer)
    frames.set(merged)
    return merged


def frame_over(layers: tuple[Layer, ...], base: Snapshot, tracer: object) -> _core.ScopeState:
    """Merge `layers` over `base`, the last one on top."""
    snapshot = base
    for layer in layers:
        snapshot = layer[1].over(snapshot)
    return _core.ScopeState(layers, base, snapshot, tracer)


# --- writing -------------------------------------------------------------------------------------------


def scope_is_open() -> bool:
    """Tell whether a scope is open in this context, so that a write goes to it rather than to the base."""
    frame = frames.get(None)
    return frame is not None and bool(frame.layers)


def assign(name: str, value: object, depth: int = 1) -> None:
    """Set switch `name`: in the innermost open scope of this context, or else for the whole process.

    Examples
    --------
    >>> from backline.switches import scope
    >>> with scope(benchmark=True):
    ...     assign("fallback", "warn")
    ...     get("fallback")
    'warn'
    >>> get("fallback")
    'allow'
    """
    assign_many({name: value}, depth + 1)


def assign_many(values: Mapping[str, object], depth: int = 1) -> None:
    """Set several switches as one; if one value is illegal, or the base is frozen, none is set."""
    named = {name: accepted(name, value) for name, value in values.items()}
    if not named:
        return
    noted = place(depth + 1)
    frame = frames.get(None)
    if frame is not None and frame.layers:
        checked = expand(named, current()._values)
        scope, inner, written = frame.layers[-1]
        layer = (
            scope,
            overlay(tuple({**inner.items, **checked}.items())),
            {**(written or {}), **dict.fromkeys(checked, noted)},
        )
        frames.set(frame_over((*frame.layers[:-1], layer), start(), frame.tracer))
        return
    start()  # outside the lock, for its warnings
    with _lock:
        _refuse_if_frozen(named, values)
        checked = expand(named, start()._values)
        _assigned.update({name: (value, noted) for name, value in checked.items()})
        _set_base(overlay(tuple(checked.items())).over(start()))


def withdraw(name: str) -> None:
    """Take back what was assigned to switch `name` for the process: it reads again as the configuration says."""
    with _lock:
        if _assigned.pop(name, None) is not None and the_base is not None:
            _make_base()


def accepted(name: str, value: object) -> Value:
    """Return `value` as switch `name` stores it, or raise if it is illegal or its library is not there."""
    checked = lookup(name).check(value)
    accept = attached(name).accept
    if accept is not None:
        accept(checked)
    return checked


def _refuse_if_frozen(checked: Mapping[str, Value], given: Mapping[str, object]) -> None:
    if frozen():
        name = next(iter(checked))
        value = given[name] if isinstance(lookup(name), Reduction) else checked[name]  # that one stores what it does not take
        raise Frozen(
            f"{name} = {show(value)} was refused: the base is frozen.",
            cause="disable_global_flags() was called: it is not allowed to set values after disable_global_flags",
            remedy=f"use a scope: {_with_form(name, value)}",
        )


def _with_form(name: str, value: object) -> str:
    from inspect import signature

    backend, _, attribute = name.rpartition(".")
    package = "backline" if backend.partition(".")[0] in ("nn", "utils") else "backline.backends"
    path = ".".join(part for part in (package, backend) if part)
    parent, _, last = path.rpartition(".")
    owner = sys.modules.get(path) or vars(sys.modules.get(parent, sys)).get(last)  # a module, or a sub-object of one
    flags = getattr(owner, "flags", None)
    if flags is not None and attribute in signature(flags).parameters:
        return f"with {path}.flags({attribute}={show(value)}): ..."
    return f"with backline.switches.scope({{{name!r}: {show(value)}}}): ..."


def declare(switch: Switch) -> None:
    """Add a switch, for plug-ins; it takes its value from files and environment like any other.

    Raises `BadValue` if another switch has its name or its environment variable.
    """
    faults = []
    with _lock:
        register(switch)
        if the_base is not None:
            for source in _sources:
                faults += source.take(switch)
            _make_base()
    if not faults:
        return
    from .config import warn_about

    for source, text in faults:
        warn_about(source, [text])


def freeze(on: bool = True) -> None:
    """Freeze the base: process-wide values can no longer change, scopes still can. With `on` False, lift the freeze."""
    global _is_frozen
    with _lock:
        _is_frozen = on
    _thawed.set(False)


def frozen() -> bool:
    """Tell whether the base is frozen here."""
    return _is_frozen and not _thawed.get()


@contextmanager
def thawed() -> Iterator[None]:
    """Lift the freeze for this context while the scope is open. What is assigned meanwhile stays."""
    before = _thawed.get()
    _thawed.set(True)
    try:
        yield
    finally:
        _thawed.set(before)  # not by a token: it may be left in another context than it was entered in


# --- the tracer ----------------------------------------------------------------------------------------


def tracer() -> object:
    """Return what collects the events of this context, or None."""
    frame = frames.get(None)
    return None if frame is None else frame.tracer


def set_tracer(new: object) -> object:
    """Make `new` collect the events of this context (None: nobody does), and return what did so before."""
    base = current()
    frame = frames.get(None)
    if frame is None:
        frames.set(_core.ScopeState((), base, base, new))
        return None
    frames.set(_core.ScopeState(frame.layers, frame.base, frame.snapshot, new))
    return frame.tracer


def _restart() -> None:
    """Forget assignments, freeze and what was read: for tests, which change the environment."""
    global the_base, bare_frame, _is_frozen, _sources
    with _lock:
        _sources = []
        _assigned.clear()
        _starting.clear()
        _is_frozen = False
        the_base = bare_frame = None
        _core.set_base(None)


_core.bind_scope(frames, current)
