"""The libraries: found on this machine, probed once, driven through one interface.

Nothing is loaded by importing this package. `get` makes the object that stands for a library; the library itself is
searched, loaded and probed when something first asks whether it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from .base import Algorithm, Library, PythonPlan, Refusal

__all__ = ["Algorithm", "Library", "PythonPlan", "Refusal", "get", "names", "register"]

# name -> where its class is. The order is the order in which candidates are listed.
_WHERE: dict[str, str] = {
    "mkl": "backline.libraries.cpu.mkl:MKL",
    "openblas": "backline.libraries.cpu.openblas:OpenBLAS",
    "blis": "backline.libraries.cpu.blis:BLIS",
    "numpy": "backline.libraries.cpu.numpy:NumPy",
}
_MADE: dict[str, Library] = {}


def names() -> tuple[str, ...]:
    """Names of the libraries known here, found or not.

    >>> "numpy" in names()
    True
    """
    return tuple(_WHERE)


def get(name: str) -> Library:
    """The library with this name; it may turn out not to be available.

    Raises
    ------
    BadValue
        For a name that is not known.
    """
    if name not in _MADE:
        if name not in _WHERE:
            from ..errors import BadValue

            raise BadValue(f"there is no library {name!r}", remedy=f"one of: {', '.join(_WHERE)}")
        module, _, attribute = _WHERE[name].partition(":")
        _MADE[name] = getattr(import_module(module), attribute)()
    return _MADE[name]


def register(library: Library) -> None:
    """Add a library, or put another object in the place of one. The engine considers it from the next call on."""
    from .. import _core

    _WHERE.setdefault(library.name, f"{type(library).__module__}:{type(library).__qualname__}")
    _MADE[library.name] = library
    _core.memo_clear()


def all_libraries() -> Iterator[Library]:
    """Every known library, in order."""
    for name in _WHERE:
        yield get(name)
