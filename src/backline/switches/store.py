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
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _core
from ..errors import Frozen
from .config import Source, read_sources, warn_about
from .declare import Switch, Value, show
from .declared import declared, lookup, register
from .provenance import Origin, Place, place, text_of
from .snapshot import Overlay, Snapshot, intern, overlay

if TYPE_CHECKING:
    from .scope import Scope

__all__ = [
    "assign",
    "assign_many",
    "current",
    "declare",
    "frame_over",
    "freeze",
    "frozen",
    "get",
    "origin",
    "reader",
    "scope_is_open",
    "set_tracer",
    "start",
    "tracer",
]

Layer: TypeAlias = "tuple[Scope, Overlay, Mapping[str, Place] | None]"

frames: ContextVar[_core.Frame] = ContextVar("backline_switches")
the_base: Snapshot | None = None  # None until something is read
bare_frame: _core.Frame | None = None  # no layers over the_base: for every context that closed its last scope

_lock = threading.RLock()  # re-entrant: a signal handler may write a switch while this thread holds it
_sources: list[Source] = []  # files and environment, the weakest first
_starting: dict[str, tuple[Value, str]] = {}  # defaults, with a word on where they come from
_assigned: dict[str, tuple[Value, Place]] = {}
_is_frozen = False


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
    """Return the value of switch `name` that holds here.

    Examples
    --------
    >>> get("mkl.enabled")
    True
    """
    return current()[name]


def reader(name: str) -> Callable[[object], Value]:
    """Return a function that ignores its argument and returns the value of switch `name`: a fast getter."""

    def read(owner: object, _frame: Callable[[None], Any] = frames.get, _name: str = name) -> Value:
        frame = _frame(None)
        base = the_base
        if base is not None:
            if frame is None:
                return base._values[_name]
            if frame.base is base:
                value: Value = frame.snapshot._values[_name]
                return value
        return current()[_name]

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
    lookup(name)
    current()  # the files have been read now
    frame = frames.get(None)
    for scope, values, written in reversed(frame.layers if frame is not None else ()):
        if name in values.items:
            opened = f"{scope.where}, {scope.name}"
            if written is not None and name in written:
                return Origin("assignment", f"{text_of(written[name])}, inside the scope of {opened}")
            return Origin("scope", opened)
    with _lock:
        if name in _assigned:
            return Origin("assignment", text_of(_assigned[name][1]))
        for source in reversed(_sources):
            if name in source.values:
                return Origin(source.kind, source.values[name][1])
        return Origin("default", _starting[name][1])


def start() -> Snapshot:
    """Read the configuration and the environment, if that has not been done, and return the base Snapshot.

    The first read of any switch does this. Whatever is wrong in a file becomes one warning for that file.
    """
    global _sources
    with _lock:
        if the_base is not None:
            return the_base
        sources = read_sources(declared())
        _sources = sources
        base = _make_base()
    for source in sources:  # after the lock and with the base in place: a warning may run anything, or raise
        warn_about(source)
    return base


def _make_base() -> Snapshot:
    # Holds the lock. The weakest first; each later one replaces what it names.
    for name, switch in declared().items():
        if name not in _starting:
            _starting[name] = switch.starting()
    values = {name: _starting[name][0] for name in declared()}
    for source in _sources:
        values.update({name: value for name, (value, _) in source.values.items()})
    values.update({name: value for name, (value, _) in _assigned.items()})
    return _set_base(intern(values))


def _set_base(snapshot: Snapshot) -> Snapshot:
    global the_base, bare_frame
    with _lock:
        bare_frame = _core.Frame((), snapshot, snapshot, None)
        the_base = snapshot
        _core.set_base(snapshot)
    return snapshot


def _merge_anew(frame: _core.Frame, base: Snapshot) -> _core.Frame:
    merged = frame_over(frame.layers, base, frame.tracer)
    frames.set(merged)
    return merged


def frame_over(layers: tuple[Layer, ...], base: Snapshot, tracer: object) -> _core.Frame:
    """Merge `layers` over `base`, the last one on top."""
    snapshot = base
    for layer in layers:
        snapshot = layer[1].over(snapshot)
    return _core.Frame(layers, base, snapshot, tracer)


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
    checked = {name: lookup(name).check(value) for name, value in values.items()}
    if not checked:
        return
    noted = place(depth + 1)
    frame = frames.get(None)
    if frame is not None and frame.layers:
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
        _refuse_if_frozen(checked)
        _assigned.update({name: (value, noted) for name, value in checked.items()})
        _set_base(overlay(tuple(checked.items())).over(start()))


def _refuse_if_frozen(values: Mapping[str, object]) -> None:
    if _is_frozen:
        name, value = next(iter(values.items()))
        raise Frozen(
            f"{name} = {show(value)} was refused: the base is frozen.",
            cause="disable_global_flags() was called, so process-wide values can no longer change",
            remedy=f"use a scope: {_with_form(name, value)}",
        )


def _with_form(name: str, value: object) -> str:
    backend, _, attribute = name.rpartition(".")
    module = ".".join(part for part in ("backline.backends", backend) if part)
    if hasattr(sys.modules.get(module), "flags"):
        return f"with {module}.flags({attribute}={show(value)}): ..."
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
    for source, text in faults:
        warn_about(source, [text])


def freeze() -> None:
    """Freeze the base, for good: process-wide values can no longer change. Scopes still can."""
    global _is_frozen
    with _lock:
        _is_frozen = True


def frozen() -> bool:
    """Tell whether the base is frozen."""
    return _is_frozen


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
        frames.set(_core.Frame((), base, base, new))
        return None
    frames.set(_core.Frame(frame.layers, frame.base, frame.snapshot, new))
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
