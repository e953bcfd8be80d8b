"""Plug-ins: libraries that other distributions bring along, found by their entry points in the group ``backline.libraries``.

An entry point leads to the row of the library, a `LibraryInfo`::

    kahan = "package.row:KAHAN"

Installed distributions are looked through once, when something first needs to know: the engine lists the libraries, or a name is
unknown. That imports nothing: name and enabling switch of each plug-in are known then. The rest is known when its row is read,
which imports the module of the row. The class behind the row is imported when the library is a candidate, as that of any library.
``BACKLINE_PLUGINS=0`` turns it off.

No lock is held while a module of a plug-in is imported or a warning is issued: each of these may wait for a lock that another
thread holds while it waits for this one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from ..errors import BacklineError
from ..switches import current
from ..switches.provenance import steps_out
from ..switches.scope_state import lock
from ..switches.switch import FAMILIES, DerivedSwitch, Switch, show
from ..switches.switch_registry import all_switches, register, remove
from . import registry
from .plugin_search import GROUP, Plugin, is_reference, line_of, remedy, search, words_of
from .registry import LibraryInfo

__all__ = ["GROUP", "RESERVED", "Plugin", "discover", "faults", "found", "is_allowed", "read", "referred"]

RESERVED = (
    "enabled", "fft_plan_cache", "flags", "is_available", "is_enabled", "plan_cache", "set_flags",
    "version",
)  # fmt: skip
"""Names that every module in `backends` has: no switch of a plug-in may take them."""

_found: dict[str, Plugin] | None = None  # None until somebody looked
_faults: list[str] = []
_unsaid: list[str] = []
_here = threading.local()  # of this thread: that it is looking, and the names of the plug-ins whose rows it is reading


def discover(name: str = "") -> bool:
    """Looks for plug-ins, once in a process, and declares the switches that allow them.

    It never raises, whatever is installed: what is wrong with a plug-in is one `RuntimeWarning` (an error where
    warnings are errors). It may be called under the lock of `scope_state`.

    Parameters
    ----------
    name
        An unknown name. For one such as "kahan.block", the row of "kahan" is read, which declares its further switches.

    Returns
    -------
    bool
        True if the name may be a switch of a plug-in whose row cannot be read, or not now.

    Examples
    --------
    >>> discover("mkl.siez")
    False
    """
    if getattr(_here, "looking", False):
        return False  # what looks for plug-ins asks for names itself
    backend, dot, _ = name.partition(".")
    plugin = _look().get(backend)
    asked = plugin if dot and name not in all_switches() else None
    if asked is not None:
        read(asked.name)
    _say()
    return asked is not None and (not asked.is_read or bool(asked.fault))


def found() -> Mapping[str, Plugin]:
    """Returns every plug-in that was found and accepted, by name; none before `discover`."""
    return MappingProxyType(_found or {})


def faults() -> tuple[str, ...]:
    """Returns what was found to be wrong with plug-ins, with the remedies."""
    return tuple(_faults)


def _look() -> dict[str, Plugin]:
    """Looks, or waits for whoever is looking."""
    global _found
    if _found is None:
        with lock.now:
            _here.looking = True
            try:
                if _found is None:
                    _found, wrong = search()
                    _keep(*wrong)
            finally:
                _here.looking = False
    return _found


def is_allowed(name: str) -> bool:
    """Tells whether the switches let plug-in `name` run calls here."""
    values = current()
    only: Any = values["only"]
    return bool(values.get(f"{name}.enabled", True)) and (not only or name in only)


# --- the row -------------------------------------------------------------------------------------------------


def read(name: str) -> LibraryInfo:
    """Returns the row of plug-in `name`, and declares its switches; where it cannot be read, the row that has the name only."""
    plugin = found()[name]
    names: tuple[str, ...] = getattr(_here, "reading", ())
    if plugin.is_read or name in names:
        return plugin.row
    _here.reading = (*names, name)
    try:
        row, fault = _row_of(plugin)
    finally:
        _here.reading = names
    if row is None and not fault:
        return plugin.row  # another thread is importing it
    with lock.now:
        if not plugin.is_read:
            if row is not None:
                fault = _declare(row, plugin)
            if row is not None and not fault:
                if registry.find(name) is plugin.row:  # else the program has put a row of its own there
                    registry.add(row)
                plugin.row = row
            else:
                plugin.fault = f"{plugin.who} {fault}; {remedy(plugin.source)}"
                _keep(f"backline: {plugin.fault}")
            plugin.is_read = True  # last: who finds it set finds the row and the switches too
    _say()
    return plugin.row


def referred(reference: str) -> tuple[Any, str]:
    """Imports what a reference, "package.module:NAME", leads to.

    Returns
    -------
    tuple
        The object and the error in words; None and an empty text while another thread, or the caller, is importing the module.
    """
    path, _, name = reference.partition(":")
    try:
        module = import_module(path)
        if hasattr(module, name):
            target = getattr(module, name)
            return target, "" if target is not None else f"is unusable: {reference} is None"
    except (Exception, SystemExit) as error:  # any error of its own
        return None, f"cannot be imported: {words_of(error)}"
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None, ""
    return None, f"is unusable: the module {path} has no {name}"


def _row_of(plugin: Plugin) -> tuple[LibraryInfo | None, str]:
    """Returns the row that an entry point leads to, or None and what is wrong with it."""
    points = f"its entry point {show(plugin.reference)}"
    change = "make the entry point lead to a LibraryInfo, as docs/plugins.md says under Migration"
    if plugin.reference.endswith(".toml"):
        return None, f"is unusable: {points} leads to a TOML file, which is no plug-in any more; {change}"
    if not is_reference(plugin.reference):
        return None, f'is unusable: {points} is not written "package.module:ROW"'
    row, fault = referred(plugin.reference)
    if fault or row is None:
        return None, fault
    if isinstance(row, type):
        return None, f"is unusable: {points} leads to the class {row.__name__}, which is no plug-in any more; {change}"
    if not isinstance(row, LibraryInfo):
        return None, f"is unusable: {points} leads to {line_of(show(row))}, and must lead to a LibraryInfo"
    wrong = [*_wrong_fields(row, plugin.name), *_wrong_switches(row)]
    shown = [*wrong[:10], f"and {len(wrong) - 10} more"] if len(wrong) > 10 else wrong
    return (None, f"is unusable: {'; '.join(shown)}") if wrong else (row, "")


def _wrong_fields(row: LibraryInfo, name: str) -> list[str]:
    """Returns what is wrong with the values of a row, but for its switches."""
    wrong = []
    for field in LibraryInfo.__annotations__:
        value, default = getattr(row, field), getattr(LibraryInfo, field, "")
        if not isinstance(value, type(default)) and not (default is None and isinstance(value, tuple)):
            wrong.append(f"{field} = {show(value)} must be a {'tuple' if default is None else type(default).__name__}")
        elif isinstance(value, tuple) and field not in ("wheels", "switches") and not all(isinstance(i, str) for i in value):
            wrong.append(f"{field} = {show(value)} must be a tuple of str")
    if wrong:
        return wrong
    for field, wanted in (("name", name), ("backend", name), ("switch", f"{name}.enabled")):
        if getattr(row, field) != wanted:
            wrong.append(f"{field} = {show(getattr(row, field))} must be {wanted!r}, as its entry point is called")
    for field in ("title", "install"):
        if getattr(row, field) != line_of(getattr(row, field)):
            wrong.append(f"{field} = {show(getattr(row, field))} must be one line of at most 200 printable characters")
    devices = dict.fromkeys(device for known in registry.ROWS for device in known.devices)
    for field, legal in (("families", FAMILIES), ("devices", tuple(devices))):
        for word in getattr(row, field):
            if word not in legal:
                wrong.append(f"{show(word)} in {field} is none of {', '.join(legal)}")
    if not is_reference(row.implementation):
        wrong.append(f'implementation = {show(row.implementation)} must be written "package.module:Class"')
    return wrong


def _wrong_switches(row: LibraryInfo) -> list[str]:
    """Returns what is wrong with the further switches of a row."""
    wrong = []
    for switch in row.switches if isinstance(row.switches, tuple) else ():  # else its fields are wrong
        if not isinstance(switch, Switch) or isinstance(switch, DerivedSwitch):
            wrong.append(f"{line_of(show(switch))} in switches is no Switch")
        elif switch.backend != row.name or switch.attribute in RESERVED:
            wrong.append(f"the switch {switch.name} must be called {row.name}. and a name other than {', '.join(RESERVED)}")
        elif switch.library:
            wrong.append(f"the switch {switch.name} must not allow a library: only {row.name}.enabled does")
    return wrong


def _declare(row: LibraryInfo, plugin: Plugin) -> str:
    """Declares the switches of a row, all or none; returns why not, or an empty string. Called with the lock held."""
    declared: list[str] = []
    try:
        for switch in row.switches:
            if all_switches().get(switch.name) != switch:
                register(switch)
                declared.append(switch.name)
        register(registry.enabling_switch(row), replacing=registry.enabling_switch(plugin.row))
    except BacklineError as error:
        for name in declared:
            remove(name)
        return f"is unusable: {error.message} {error.cause}"
    return ""


# --- warnings -----------------------------------------------------------------------------------------


def _keep(*texts: str) -> None:
    _faults.extend(texts)
    _unsaid.extend(texts)


def _say() -> None:
    """Issues what was noted. Where warnings are errors, the first one is raised, and the next call raises the next."""
    while _unsaid:
        import warnings

        with lock.now:
            text = _unsaid.pop(0) if _unsaid else ""
        if text:
            warnings.warn(text, RuntimeWarning, stacklevel=steps_out())


def _forget() -> None:
    """Undoes everything, imports of code aside: for tests."""
    global _found
    with lock.now:
        for name in _found or {}:
            registry.remove(name)
            for switch in [s for s in all_switches() if s.startswith(f"{name}.")]:
                remove(switch)
        _found = None
        _faults.clear()
        _unsaid.clear()
