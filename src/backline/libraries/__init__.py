"""The libraries: found on this machine, probed once, called through one interface.

Nothing is loaded by importing this package. `get` returns the object that stands for a library; the library itself is searched,
loaded and probed when it is first asked whether it is there. What is known before that is in `registry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import switches
from ..switches.switch_registry import on_unknown
from . import registry
from .registry import LibraryInfo

if TYPE_CHECKING:
    from .base import Algorithm, Library, PythonPlan, Refusal

__all__ = [
    "Algorithm", "Library", "LibraryInfo", "PythonPlan", "Refusal", "all_libraries", "get", "info", "is_loaded",
    "names", "ready", "register", "unregister",
]  # fmt: skip

_SHIPPED: dict[str, str] = {row.name: row.implementation for row in registry.ROWS if row.implementation}
_order = dict(_SHIPPED)  # name -> class, in the order in which candidates are listed; plug-ins and what a program adds at the end
_objects: dict[str, Library] = {}


def names() -> tuple[str, ...]:
    """Returns the names of the libraries that can run calls, found or not, those of plug-ins included.

    >>> "numpy" in names()
    True
    """
    _add_plugins()
    return tuple(_order)


def _changed() -> None:
    from .. import _core

    registry.changed()
    _core.memo_clear()


def _add_plugins() -> None:
    from . import plugins  # here and below: `import backline` looks for no plug-ins

    plugins.discover()
    for name, plugin in plugins.found().items():
        _order.setdefault(name, plugin.row.implementation)  # a library that the program registered before stays in its place


def _discover(name: str) -> bool:
    from . import plugins

    return plugins.discover(name)


on_unknown(_discover)


def ready() -> None:
    """Declares every switch that a library which is on may read; called before a Snapshot is taken.

    Plug-ins are looked for, and the rows are read of those that are on.
    """
    from . import plugins

    _add_plugins()
    for name, plugin in plugins.found().items():
        if not plugin.is_read and name not in _objects and plugins.is_allowed(name):
            plugins.read(name)
            _changed()


def get(name: str) -> Library:
    """Returns the library with this name; it may turn out not to be available.

    Raises
    ------
    BadValue
        For a name that is not known.
    """
    if name not in _objects:
        if name not in _order:
            _add_plugins()
        _check(name)
        library = _make(name)
        if not library.being_made:
            _objects.setdefault(name, library)
        return _objects.get(name, library)
    return _objects[name]


def _check(name: str) -> None:
    if name not in _order:
        from ..errors import BadValue

        raise BadValue(f"there is no library {name!r}", remedy=f"one of: {', '.join(_order)}")


def _make(name: str) -> Library:
    from . import plugins

    plugin = plugins.found().get(name)
    if plugin is not None and registry.find(name) is plugin.row:
        from . import plugin_guard

        return plugin_guard.make(plugin)
    module, _, attribute = _order[name].partition(":")
    library: Library = getattr(import_module(module), attribute)()
    return library


def register(library: Library | LibraryInfo) -> None:
    """Adds a library, or puts another in the place of one; calls may run on it from the next one on.

    Parameters
    ----------
    library
        A row: the switches of the library and its module in `backends` exist from now on, and its class is imported when it is
        needed. Or the library itself, made by the program, without a module.

    Raises
    ------
    BadValue
        Another switch has the name, or the environment variable, of the row's switch.
    """
    if isinstance(library, LibraryInfo):
        _declare_switches(library)
        registry.add(library)
        _objects.pop(library.name, None)
        if library.implementation:
            _order[library.name] = library.implementation
        _changed()
        return
    _order.setdefault(library.name, f"{type(library).__module__}:{type(library).__qualname__}")
    _objects[library.name] = library
    _changed()


def _declare_switches(row: LibraryInfo) -> None:
    if row.implementation and row.switch and row.switch not in switches.declared():
        switches.declare(registry.enabling_switch(row))
    for switch in row.switches:
        switches.declare(switch)


def unregister(name: str) -> None:
    """Undoes `register`: a library of Backline's or of a plug-in's gets its place back, another one is forgotten.

    A switch that was declared for a row stays declared, for a program may have set it.

    Raises
    ------
    BadValue
        For a name that is not known.

    Examples
    --------
    >>> from backline.libraries.numpy.library import NumPy
    >>> mine = NumPy()
    >>> register(mine); get("numpy") is mine
    True
    >>> unregister("numpy"); get("numpy") is mine
    False
    """
    from . import plugins

    _check(name)
    registry.remove(name)
    _objects.pop(name, None)
    if name in _SHIPPED:
        _order[name] = _SHIPPED[name]
    elif name in plugins.found():
        registry.add(plugins.found()[name].row)
        _order[name] = plugins.found()[name].row.implementation
    else:
        del _order[name]
    _changed()


def info(name: str) -> LibraryInfo:
    """Returns the row of a library that can run calls; a library of Backline's is not imported for it.

    Raises
    ------
    BadValue
        For a name that is not known.

    Examples
    --------
    >>> info("fftw").families, info("numpy").devices
    (('fft',), ('cpu',))
    """
    row = None if name in _objects else registry.find(name)
    return row if row is not None and row.implementation else get(name).info


def is_loaded(name: str) -> bool:
    """Tells whether asking a library for algorithms costs no more than the answer: no file has to be loaded for it."""
    row = registry.find(name)
    return get(name).loaded() if name in _objects or row is None else not row.loads_file


def all_libraries() -> Iterator[Library]:
    """Yields every library that can run calls, in order."""
    for name in names():
        yield get(name)


def __getattr__(name: str) -> Any:
    if name in ("Algorithm", "Library", "PythonPlan", "Refusal"):  # with what they import, too much for `import backline`
        from . import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


for _row in registry.ROWS:
    _declare_switches(_row)  # of those that `switches.definitions` does not have: a library is one row
