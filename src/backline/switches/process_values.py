"""Values that hold for the whole process: defaults, files, environment and assignments, each laid over the ones before.

`snapshot` makes the base Snapshot of them. The lock of `scope_state` guards them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import BadValue
from .lookup import lookup
from .provenance import Place
from .scope_state import lock
from .switch import Value, show
from .switch_registry import all_switches, attached, declared, derived_switches, find

if TYPE_CHECKING:
    from .config import Source

__all__ = [
    "accepted", "assigned", "configured", "defaults", "expand", "forget", "merged", "report", "restored", "were_read",
]  # fmt: skip

defaults: dict[str, tuple[Value, str]] = {}
"""Default of each switch, with a word on where it comes from."""

configured: dict[str, list[tuple[str, Value, str]]] = {}
"""Values from the sources: kind, value and place, the weakest first."""

assigned: dict[str, tuple[Value, Place]] = {}
"""Values that the program assigned outside of scopes."""

_sources: list[Source] | None = None  # files and environment, the weakest first; None before the first read
_looked_up: set[str] = set()  # switches whose values were taken from the sources
_unreported: list[Source] = []  # sources that were just read
_late: list[tuple[Source, str]] = []  # faults in values of switches that were declared after that


def merged() -> dict[str, Value]:
    """Returns the value of every stored switch outside of scopes. Called with the lock held."""
    global _sources
    first = _sources is None
    if _sources is None:
        from .config import read_sources  # at the first read, not at import

        _sources = read_sources(all_switches())
        _unreported.extend(_sources)
    # In rounds, because checking the name of a library may find plug-ins, which declare more.
    while new := [switch for switch in all_switches().values() if switch.name not in _looked_up]:
        for switch in new:
            _looked_up.add(switch.name)
            for source in _sources:
                for fault in source.take(switch):
                    if first:
                        source.faults.append(fault)
                    else:
                        _late.append((source, fault))
    for name, switch in declared().items():
        if name not in defaults:
            defaults[name] = switch.starting()
    values = {name: defaults[name][0] for name in declared()}
    configured.clear()
    for source in _sources:
        # Other programs' variables give way to ours, and a derived switch is worked out over what the same source says plainly.
        own = source.kind != "environment"
        order = sorted(
            source.values.items(), key=lambda row: (own or row[1][1].startswith("BACKLINE_"), row[0] in derived_switches())
        )
        for name, (value, where) in order:
            for node, written in expand({name: value}, values).items():
                values[node] = written
                configured.setdefault(node, []).append((source.kind, written, where))
    values.update({name: value for name, (value, _) in assigned.items()})
    return values


def were_read() -> bool:
    """Tells whether files and environment have been read."""
    return _sources is not None


def report() -> None:
    """Reports the faults of files and environment, each once. Called without the lock: it may find plug-ins, and may raise."""
    if not _unreported and not _late:
        return
    from .config import refuse, unknown_keys, warn_about

    with lock.now:
        sources, _unreported[:] = [*_unreported], []
    for source in sources:
        source.faults += unknown_keys(source, all_switches())
    for source in sources:
        if source.kind != "project file":
            warn_about(source, source.faults)
    for source in sources:
        if source.kind == "project file":
            refuse(source)
    while _late:  # one at a time: where warnings are errors, the next call raises the next
        with lock.now:
            late = [_late.pop(0)] if _late else []
        for source, fault in late:
            warn_about(source, [fault])


def forget() -> None:
    """Forgets everything, for tests, which change the environment."""
    global _sources
    _sources = None
    for kept in (defaults, configured, assigned, _looked_up, _unreported, _late):
        kept.clear()


# --- writing ----------------------------------------------------------------------------------------------


def accepted(name: str, value: object) -> Value:
    """Returns `value` as switch `name` stores it, or raises if it is illegal or its library is not there."""
    checked = (find(name) or lookup(name)).check(value)
    accept = attached(name).accept
    if accept is not None:
        accept(checked)
    return checked


def restored(name: str, value: object) -> Value:
    """Returns a value that switch `name` stored before, checked."""
    return lookup(name).restore(value)


def expand(values: Mapping[str, Value], under: Mapping[str, Value]) -> dict[str, Value]:
    """Replaces the derived switches among checked `values` by what writing them over `under` stores.

    Stored switches are written before the derived ones; two values for one switch are refused.
    """
    stored = {name: value for name, value in values.items() if name not in derived_switches()}
    if len(stored) == len(values):
        return stored
    written: dict[str, tuple[Value, str]] = {}
    for name, value in values.items():
        switch = derived_switches().get(name)
        if switch is None:
            continue
        for node, new in switch.write(value, {**under, **stored}).items():
            old, source = written.get(node, (stored.get(node, new), node))
            if old != new:
                raise BadValue(
                    f"{name} = {show(value)} and {source} = {show(values[source])} contradict each other.",
                    cause=f"{name} would store {node} = {show(new)}",
                    remedy="leave one of them out",
                )
            written[node] = new, name
    return stored | {node: value for node, (value, _) in written.items()}
