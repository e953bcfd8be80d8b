"""Reading and writing switches: a process-wide base, and layers above it that only the current context sees.

The base is an immutable Snapshot, replaced under a lock. The layers are a tuple inside one ContextVar; no
layer is ever changed, so a thread or task that copied the context keeps the values it had. Reading costs one
lookup in the ContextVar and one in a dict; the compiled core does the first of these by itself.

A layer is a tuple ``(scope, overlay, written)``: the Scope that opened it, its values, and where those that
were assigned inside the scope came from. Entering, leaving (`Scope`) and assigning build new tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from .. import _core
from ..errors import Frozen
from . import process_values
from .lookup import lookup
from .precision_tree import PARENT, decides
from .process_values import accepted, expand, restored
from .provenance import Origin, place, text_of
from .scope_state import Layer, lock, process, set_base, state_over, states
from .snapshot import current, overlay, start
from .switch import DerivedSwitch, Reduction, Switch, Value, show
from .switch_registry import attached, register

__all__ = [
    "Said", "assign", "assign_many", "deciding", "declare", "freeze", "frozen", "get", "history", "origin", "reader",
    "scope_is_open", "set_tracer", "thawed", "tracer", "withdraw",
]  # fmt: skip

_is_frozen = False
_thawed: ContextVar[bool] = ContextVar("backline_thawed", default=False)


# --- reading -------------------------------------------------------------------------------------------


def get(name: str) -> Value:
    """Returns what switch `name` reads as here.

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
        with lock.now:
            value = current().resolved(name)
    on_read = attached(name).on_read
    return value if on_read is None else on_read(value)


def reader(name: str) -> Callable[[object], Value]:
    """Returns a function that ignores its argument and returns what switch `name` reads as: a fast getter."""
    if attached(name).on_read is not None:
        return lambda owner: get(name)

    def read(owner: object, _state: Any = states.get, _process: Any = process, _name: str = name) -> Value:
        state = _state(None)
        base = _process.base
        if base is not None:
            if state is None:
                value: Value = base._resolved[_name]
                return value
            if state.base is base:
                value = state.snapshot._resolved[_name]
                return value
        return current().resolved(_name)

    return read


def origin(name: str) -> Origin:
    """Returns the origin of the value of switch `name` that holds here.

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
    """Returns the value that decides how switch `name` reads.

    For a derived switch it is that of one of its nodes, for a node of precision perhaps that of one above it.
    """
    switch = lookup(name)
    if isinstance(switch, DerivedSwitch):
        decisions = [deciding(node, said) for node in switch.nodes]
        return next((each for each in decisions if each.origin.kind != "default"), decisions[0])
    return said(decides(current()._values, name) if name in PARENT else name)


def history(name: str, state: Any = None) -> list[Said]:
    """Returns everything that gives stored switch `name` a value here: what holds first, the default last.

    With a scope `state`, as the context had it once, the scopes are those of then.

    Examples
    --------
    >>> from backline.switches import scope
    >>> with scope(fallback="warn"), scope(fallback="error"):
    ...     [said.value for said in history("fallback")]
    ['error', 'warn', 'allow']
    """
    lookup(name)
    current()  # the files have been read now
    entries = []
    state = states.get(None) if state is None else state
    for scope, laid, written in reversed(state.layers if state is not None else ()):
        if name in laid.items:
            opened = f"{scope.where}, {scope.name}"
            origin = Origin("scope", opened)
            if written is not None and name in written:
                origin = Origin("assignment", f"{text_of(written[name])}, inside the scope of {opened}")
            entries.append(Said(name, laid.items[name], origin))
    with lock.now:
        if name in process_values.assigned:
            value, noted = process_values.assigned[name]
            entries.append(Said(name, value, Origin("assignment", text_of(noted))))
        for kind, value, where in reversed(process_values.configured.get(name, ())):
            entries.append(Said(name, value, Origin(kind, where)))
        value, where = process_values.defaults[name]
        entries.append(Said(name, value, Origin("default", where)))
    return entries


# --- writing -------------------------------------------------------------------------------------------


def scope_is_open() -> bool:
    """Tells whether a scope is open in this context, so that a write goes to it rather than to the base."""
    state = states.get(None)
    return state is not None and bool(state.layers)


def assign(name: str, value: object, depth: int = 1) -> None:
    """Sets switch `name`: in the innermost open scope of this context, or else for the whole process.

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


def assign_many(values: Mapping[str, object], depth: int = 1, *, restore: bool = False) -> None:
    """Sets several switches as one; if one value is illegal, or the base is frozen, none is set.

    With `restore` the values are such as a Snapshot holds, which need not be such as a program may write.
    """
    check = restored if restore else accepted
    named = {name: check(name, value) for name, value in values.items()}
    if not named:
        return
    noted = place(depth + 1)
    state = states.get(None)
    if state is not None and state.layers:
        checked = expand(named, current()._values)
        scope, inner, written = state.layers[-1]
        layer: Layer = (
            scope,
            overlay(tuple({**inner.items, **checked}.items())),
            {**(written or {}), **dict.fromkeys(checked, noted)},
        )
        states.set(state_over((*state.layers[:-1], layer), start(), state.tracer))
        return
    start()  # outside the lock, for its warnings
    with lock.now:
        _refuse_if_frozen(named, values)
        checked = expand(named, start()._values)
        process_values.assigned.update({name: (value, noted) for name, value in checked.items()})
        set_base(overlay(tuple(checked.items())).over(start()))


def withdraw(name: str) -> None:
    """Takes back what was assigned to switch `name` for the process: it reads again as the configuration says."""
    with lock.now:
        if process_values.assigned.pop(name, None) is not None:
            set_base(None)


def _refuse_if_frozen(checked: Mapping[str, Value], written: Mapping[str, object]) -> None:
    if frozen():
        name = next(iter(checked))
        value = written[name] if isinstance(lookup(name), Reduction) else checked[name]  # that one stores what it does not take
        raise Frozen(
            f"{name} = {show(value)} was refused: the base is frozen.",
            cause="disable_global_flags() was called: it is not allowed to set values after disable_global_flags",
            remedy=f"use a scope: {_with_form(name, value)}",
        )


def _with_form(name: str, value: object) -> str:
    """Returns the ``with`` statement that sets a switch for a while."""
    switch = lookup(name)
    if not switch.in_flags:
        return f"with backline.switches.scope({{{name!r}: {show(value)}}}): ..."
    package = "backline" if switch.backend.startswith("utils.") else "backline.backends"
    path = ".".join(part for part in (package, switch.backend) if part)
    return f"with {path}.flags({switch.attribute}={show(value)}): ..."


def declare(switch: Switch) -> None:
    """Adds a switch, for plug-ins; it takes its value from files and environment like any other.

    Raises `BadValue` if another switch has its name or its environment variable.
    """
    register(switch)
    if process_values.were_read():
        start()  # warns now if they have an illegal value for it


def freeze(on: bool = True) -> None:
    """Freezes the base: process-wide values can no longer change, scopes still can. With `on` False, lift the freeze."""
    global _is_frozen
    with lock.now:
        _is_frozen = on
    _thawed.set(False)


def frozen() -> bool:
    """Tells whether the base is frozen here."""
    return _is_frozen and not _thawed.get()


@contextmanager
def thawed() -> Iterator[None]:
    """Lifts the freeze for this context while the scope is open. What is assigned meanwhile stays."""
    before = _thawed.get()
    _thawed.set(True)
    try:
        yield
    finally:
        _thawed.set(before)  # not by a token: it may be left in another context than it was entered in


# --- the tracer ----------------------------------------------------------------------------------------


def tracer() -> object:
    """Returns the collector of the events of this context, or None."""
    state = states.get(None)
    return None if state is None else state.tracer


def set_tracer(new: object) -> object:
    """Makes `new` collect the events of this context (None: nothing does), and returns the collector before it.

    Where calls are sampled here they still are: the collector is told of them, as the one before it was.
    """
    base = current()
    state = states.get(None)
    before = None if state is None else state.tracer
    if isinstance(before, _core.CallSampler) and callable(new) and not isinstance(new, _core.CallSampler):
        new = before.over(new)
    if state is None:
        states.set(_core.ScopeState((), base, base, new))
        return None
    states.set(_core.ScopeState(state.layers, state.base, state.snapshot, new))
    return state.tracer


def _restart() -> None:
    """Forgets assignments, freeze and what was read: for tests, which change the environment."""
    global _is_frozen
    with lock.now:
        process_values.forget()
        _is_frozen = False
        set_base(None)


_core.bind_scope(states, current)
