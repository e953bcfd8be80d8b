"""Plug-ins: libraries that other distributions bring along, found by their entry points in the group ``backline.libraries``.

`plugin_search` reads metadata and TOML files; nothing of a plug-in is imported. It does so once, when something first needs to
know: the engine lists the libraries, or a name is unknown. ``BACKLINE_PLUGINS=0`` turns it off.

An entry point has one of two forms::

    strassen = "package:strassen.toml"     # a data file in the package says all that is asked before the code is needed
    kahan = "package.module:Kahan"         # the class says it: it is imported when one of its answers is needed

No lock is held while a switch is declared, while code of a plug-in is imported or while a warning is issued: each of these may
wait for a lock of somebody else, who may be waiting for ours.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import BackendUnavailable, BacklineError
from .plugin_file import RESERVED, Plugin, is_module
from .plugin_search import GROUP, noted, remedy, search, words_of
from .provenance import steps_out
from .scope_state import ForkSafeLock
from .switch import DerivedSwitch, Switch, show
from .switch_registry import all_switches, register, remove

__all__ = ["GROUP", "Plugin", "backend_of", "complain", "discover", "failed", "found", "load", "unread", "words_of"]

_lock = ForkSafeLock()
_found: dict[str, Plugin] | None = None  # None until somebody looked
_unsaid: list[str] = []
_declared = False
_classes: dict[str, type] = {}
_failed: dict[str, str] = {}
_here = threading.local()  # of this thread: that it is looking, and the names of what it is loading


def discover(name: str = "") -> bool:
    """Looks for plug-ins, once in a process, and declares their switches; call it before refusing a name as unknown.

    It never raises, whatever is installed: what is wrong with a plug-in is one `RuntimeWarning` (an error where
    warnings are errors). It may be called under the lock of `scope_state`. Look again after it,
    whatever it returns: another thread may have declared the name meanwhile.

    Parameters
    ----------
    name
        The unknown name. For one such as "kahan.block", where a class and no file says which switches "kahan" has, the class
        is imported.

    Returns
    -------
    bool
        True if this call declared something.

    Examples
    --------
    >>> discover()
    False
    """
    global _declared
    if getattr(_here, "looking", False):
        return False  # what looks for plug-ins asks for names itself
    new = False
    if not _declared:
        for plugin in _look().values():
            new |= _declare(plugin, plugin.switches)
        _declared = True  # not before: who finds it set finds the switches too
    asked = unread(name)
    if asked is not None and not getattr(_here, "loading", ()):
        count = len(all_switches())
        try:
            load(asked.name)
        except BackendUnavailable as error:
            if failed(asked.name):  # else another thread is importing it
                _note(asked.name, asked.source, [error.message])
        new |= len(all_switches()) > count
    _say()
    return new


def found() -> Mapping[str, Plugin]:
    """Returns every plug-in that was found and accepted, by name; none before `discover`."""
    return MappingProxyType(_found or {})


def unread(name: str) -> Plugin | None:
    """Returns the plug-in that a switch of this name would belong to, if it is one whose class must be asked and was not yet.

    Such a key in a configuration file is no mistake, or not yet.
    """
    backend, dot, _ = name.partition(".")
    plugin = (_found or {}).get(backend)
    if plugin is None or not dot or plugin.file or backend in _classes or backend in _failed:
        return None
    return plugin


def _look() -> dict[str, Plugin]:
    """Look, or wait for whoever is looking."""
    global _found
    with _lock.now:
        if _found is not None:
            return _found
        _here.looking = True
        try:
            accepted, faults = search()
            _unsaid.extend(faults)
            _found = accepted
        finally:
            _here.looking = False
        return _found


# --- declaring and importing -----------------------------------------------------------------------------


def _declare(plugin: Plugin, switches: tuple[Switch, ...]) -> bool:
    new = False
    for switch in switches:
        if all_switches().get(switch.name) == switch:
            continue
        new = True
        try:
            register(switch)
        except BacklineError as error:  # the program declared the like while we were reading
            _note(plugin.name, plugin.source, [f"{error.message} {error.cause}"])
    return new


def load(name: str) -> type:
    """Returns the class of plug-in `name`, imported if it was not; its switches are declared then.

    Raises
    ------
    BackendUnavailable
        It cannot be imported. The text says which plug-in it is, of which distribution, and what happened.
    """
    if name in _classes:
        return _classes[name]
    plugin = found()[name]
    if name in _failed:
        raise BackendUnavailable(_failed[name], remedy=remedy(plugin.source))
    names: tuple[str, ...] = getattr(_here, "loading", ())
    if name in names:
        raise BackendUnavailable(f"plug-in {name} of {plugin.source} is being imported")
    _here.loading = (*names, name)
    try:
        imported = _import(plugin)
    finally:
        _here.loading = names
    if isinstance(imported, str):
        _failed[name] = imported
        raise BackendUnavailable(imported, remedy=remedy(plugin.source))
    wrong: list[str] = []
    own = _switches_of(plugin, imported, wrong)
    if not plugin.file:
        _declare(plugin, own)
        if (backend := getattr(imported, "backend", "")) != "" and not is_module(backend):
            wrong.append(f'{plugin.library}.backend = {show(backend)} is ignored: it must be written "package.module"')
    elif missing := [switch.name for switch in own if switch.name not in all_switches()]:
        wrong.append(f"{', '.join(missing)}: the switches of its class are not asked; its file {plugin.file} declares them")
    _classes[name] = imported  # not before: who finds it set finds the switches too
    _note(plugin.name, plugin.source, wrong)
    _say()
    return imported


def backend_of(name: str) -> str:
    """Returns the backend module that the class of a plug-in names, if the class is imported and no file speaks for it."""
    library = _classes.get(name)
    backend = getattr(library, "backend", "")
    return backend if library is not None and not found()[name].file and is_module(backend) else ""


def failed(name: str) -> bool:
    """Tells whether the class of plug-in `name` was imported in vain; this is not tried again."""
    return name in _failed


def _import(plugin: Plugin) -> type | str:
    from importlib import import_module

    path, _, name = plugin.library.partition(":")
    try:
        module = import_module(path)
        library = getattr(module, name, None)
    except (Exception, SystemExit) as error:  # any error of its own
        return f"plug-in {plugin.name} of {plugin.source} cannot be imported: {words_of(error)}"
    if isinstance(library, type):
        return library
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):  # another thread is importing it, and asks for its switches
        raise BackendUnavailable(f"plug-in {plugin.name} of {plugin.source} is being imported")
    return f"plug-in {plugin.name} of {plugin.source} is unusable: {plugin.library} is {show(library)}, and no class"


def _switches_of(plugin: Plugin, library: type, wrong: list[str]) -> tuple[Switch, ...]:
    """Returns the usable ones of the class attribute `switches`."""
    listed = getattr(library, "switches", ())
    if not isinstance(listed, (tuple, list)):
        wrong.append(f"{plugin.library}.switches is ignored: a tuple of Switch is wanted, not {show(listed)}")
        return ()
    kept: list[Switch] = []
    for switch in listed:
        if not isinstance(switch, Switch) or isinstance(switch, DerivedSwitch):
            wrong.append(f"{show(switch)} in {plugin.library}.switches is ignored: it is no Switch")
        elif switch.backend != plugin.name or switch.attribute in RESERVED:
            legal = f"{plugin.name}. and a name other than {', '.join(RESERVED)}"
            wrong.append(f"switch {switch.name} is ignored: its name must be {legal}")
        elif switch.library:
            wrong.append(f"switch {switch.name} is ignored: only {plugin.name}.enabled allows a library")
        else:
            kept.append(switch)
    return tuple(kept)


# --- warnings -----------------------------------------------------------------------------------------


def complain(name: str, text: str) -> None:
    """Warns that something is wrong with plug-in `name`, once."""
    _note(name, found()[name].source, [text])
    _say()


def _note(name: str, source: str, faults: list[str]) -> None:
    """Keeps what is wrong with a plug-in for one warning."""
    _unsaid.extend(text for text in noted(name, source, faults) if text not in _unsaid)


def _say() -> None:
    """Issues what was noted. Where warnings are errors, the first one is raised, and the next call raises the next."""
    while _unsaid:
        import warnings

        with _lock.now:
            text = _unsaid.pop(0) if _unsaid else ""
        if text:
            warnings.warn(text, RuntimeWarning, stacklevel=steps_out())


def _forget() -> None:
    """Undoes everything, imports of code aside: for tests."""
    global _found, _declared
    with _lock.now:
        for name in _found or {}:
            for switch in [s for s in list(all_switches()) if s.startswith(f"{name}.")]:
                remove(switch)
        _found, _declared = None, False
        _classes.clear()
        _failed.clear()
        _unsaid.clear()
