"""Test doubles on switch modules: what ``unittest.mock`` and pytest's ``monkeypatch`` set and take back again.

A function or submodule that is replaced is replaced for its readers only: the class of the module gets a descriptor of that
name, which hides the original. The module's own code, which reads its globals, keeps the original. A switch that is patched is
assigned, and its state from before, which no getter returns in full, comes back at the end.

These tools are recognised by the module that calls ``setattr``. They check names themselves, so what they set is not
misspelt; and `unittest.mock` ends the patch of an attribute that is not in the module's ``__dict__`` by deleting it, which is an
error for other callers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from . import store

__all__ = ["assign", "delete", "is_hidden", "replace", "restore", "tool", "undo"]

_MOCK: Final = ("unittest.mock", "mock.mock", "mock")
_TOOLS: Final = (*_MOCK, "_pytest.monkeypatch")
_DELETED: Final = object()
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)


def tool(depth: int = 1) -> str:
    """Returns the name of the tool whose code is `depth` frames up, or an empty string if it is none."""
    name = sys._getframe(depth).f_globals.get("__name__", "")
    return name if name in _TOOLS else ""


# --- switches ----------------------------------------------------------------------------------------------------------

_patched: dict[str, list[tuple[object, Callable[[], None]]]] = {}
"""For each switch that is patched: what it read as before, and how to put it back; the innermost patch last."""


def assign(by: str, name: str, value: object, depth: int = 1) -> None:
    """Assigns switch `name`; if a tool does it, so that it can be undone."""
    if not by:
        store.assign(name, value, depth + 1)
        return
    stack = _patched.setdefault(name, [])
    if by not in _MOCK and stack and stack[-1][0] == value:
        stack.pop()[1]()  # monkeypatch undoes a patch by setting what was read before it
        return
    from .undo import remember

    before, put_back = store.get(name), remember(name)
    if by in _MOCK:
        stack.append((before, _nothing))  # where the value is refused, it ends the patch all the same
        store.assign(name, value, depth + 1)
        stack[-1] = before, put_back
    else:
        store.assign(name, value, depth + 1)
        stack.append((before, put_back))


def _nothing() -> None:
    pass


def undo(by: str, name: str) -> bool:
    """Ends the innermost patch of switch `name` by a tool that deletes what it has set. False if there is none."""
    stack = _patched.get(name)
    if by not in _MOCK or not stack:
        return False
    stack.pop()[1]()
    return True


# --- functions and submodules ------------------------------------------------------------------------------------------


class _Double:
    """Descriptor that hides an attribute of a module from its readers."""

    __slots__ = ("name", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[Any] = []  # of nested patches, the innermost last

    def __get__(self, module: object, kind: type | None = None) -> Any:
        if self.values[-1] is _DELETED:
            raise AttributeError(self.name)
        return self.values[-1]

    def __set__(self, module: object, value: object) -> None:  # having this, it comes before the module's own dict
        self.values[-1] = value


def is_hidden(thing: object, name: str) -> bool:
    """Tells whether a test has deleted an attribute of a module."""
    double = _double(thing, name)
    return double is not None and double.values[-1] is _DELETED


def _double(thing: object, name: str) -> _Double | None:
    attribute = vars(type(thing)).get(name)
    return attribute if isinstance(attribute, _Double) else None


def replace(thing: Any, name: str, value: object, by: str) -> bool:
    """Puts `value` in place of a function, class, submodule or sub-object. False if it cannot stand there.

    A tool may put anything there; an assignment, a callable for what is called, and no plain value for what has attributes.
    """
    if name.startswith("_") and not by:
        return False
    is_module = isinstance(thing, ModuleType)
    original = vars(thing).get(name, _DELETED) if is_module else getattr(type(thing), name, _DELETED)
    if not by and not (callable(value) if callable(original) else _has_attributes(original) and not isinstance(value, _PLAIN)):
        return False
    if not is_module or name.startswith("_"):
        _in_place(thing, name, value)
    elif value is original:
        _back(thing, name, by)
    else:
        _lay(thing, name, value, by)
    return True


def _has_attributes(original: object) -> bool:
    return original is _DELETED or not isinstance(original, _PLAIN)  # a submodule may not have been imported yet


def _in_place(thing: Any, name: str, value: object) -> None:
    """Replaces a private name, or one of a sub-object: its class, which it may share with others, keeps the original."""
    if not isinstance(thing, ModuleType) and value == getattr(type(thing), name, _DELETED):
        vars(thing).pop(name, None)
    else:
        vars(thing)[name] = value


def _lay(module: ModuleType, name: str, value: object, by: str) -> None:
    double = _double(module, name)
    if double is None:
        double = _Double(name)
        double.values.append(value)
        setattr(type(module), name, double)
    elif not by:
        double.values[-1] = value
    elif by not in _MOCK and value in double.values[:-1]:
        del double.values[double.values.index(value) + 1 :]  # the undoing of a patch inside another
    else:
        double.values.append(value)


def _back(module: ModuleType, name: str, by: str) -> None:
    """Takes away the innermost double, if a tool ends its patch; else all."""
    double = _double(module, name)
    if double is not None:
        double.values.pop()
        if not double.values or by not in _MOCK:
            restore(module, name)


def restore(module: ModuleType, name: str) -> None:
    """Takes away what stands in the place of an attribute of a module, if anything does."""
    if _double(module, name) is not None:
        delattr(type(module), name)


def delete(thing: Any, name: str, by: str) -> bool:
    """Deletes an attribute for a tool: ends the patch of it, or hides it. False if there is none that can be."""
    if name in thing.__computed__:
        return by in _MOCK  # the end of a patch that was refused
    double = _double(thing, name)
    if double is not None and by in _MOCK:
        _back(thing, name, by)
    elif isinstance(thing, ModuleType) and name in (*vars(thing).get("__all__", ()), *getattr(type(thing), "__lazy__", ())):
        _lay(thing, name, _DELETED, by)
    elif name in vars(thing):
        del vars(thing)[name]
    else:
        return False
    return True
