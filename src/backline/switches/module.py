"""Modules whose attributes are switches: ``backline.backends.mkl.enabled = False`` writes ``mkl.enabled``.

`install` gives a real module a class with one property for each of its switches. The module stays the object
that was imported, so tools see it: ``dir()`` and completion list the switches, the source annotates them for
type checkers, pickling goes by name, and reloading works. A name that does not exist is refused, when read
and when written: a slip of the pen must not pass for a setting.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from ..errors import Frozen, ReadOnly, UnknownName
from . import store
from .declare import Switch, nearest, show
from .declared import declared

__all__ = ["ContextProp", "PlanCache", "PropModule", "SwitchModule", "install"]

T = TypeVar("T")


class PlanCache(Protocol):
    """The prepared executions kept for one library: a bounded cache that drops the least recently used."""

    max_size: int
    """Most plans kept; lowering it drops plans at once."""

    @property
    def size(self) -> int:
        """Plans kept now."""

    def clear(self) -> None:
        """Drop every plan."""


class SwitchModule(ModuleType):
    """Class of a module whose switches are attributes. Made by `install`, not by hand.

    It has no methods with plain names: a name in the module's own body would hide them.
    """

    __backend__: ClassVar[str]
    __computed__: ClassVar[Mapping[str, tuple[Callable[[], object], str]]]

    def __getattr__(self, name: str) -> Any:
        # Reached when there is no such attribute: a switch declared after the class was made, or a mistake.
        switch = _switches_of(self).get(name)
        if switch is not None:
            return store.get(switch.name)
        if name.startswith("__"):  # asked for by the interpreter and by tools, which expect a plain refusal
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise _unknown(self.__name__, name, _public(self))

    def __setattr__(self, name: str, value: object) -> None:
        switch = _switches_of(self).get(name)
        if switch is not None:
            store.assign(switch.name, value, depth=2)
        elif name.startswith("__") or _is_submodule(self, name, value):
            super().__setattr__(name, value)  # the import system's own bookkeeping
        elif name in self.__computed__ or name in self.__dict__:
            instead = " or ".join(f"{self.__name__}.{switch}" for switch in _switches_of(self))
            if name in self.__computed__:
                instead = self.__computed__[name][1]
            raise ReadOnly(
                f"{self.__name__}.{name} is read-only.",
                cause=f"it is no switch, so it cannot become {show(value)}",
                remedy=f"set {instead} instead",
            )
        else:
            raise _unknown(self.__name__, name, _public(self))

    def __delattr__(self, name: str) -> None:
        raise UnknownName(
            f"{self.__name__}.{name} cannot be deleted.",
            cause="the names of a backend are fixed",
            remedy="to change a switch for a while, use the module's flags() in a with statement",
        )

    def __dir__(self) -> list[str]:
        dunders = [name for name in self.__dict__ if name.startswith("__")]
        return sorted({*dunders, *_public(self)})

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)


def _switches_of(module: SwitchModule) -> dict[str, Switch]:
    return {s.attribute: s for s in declared().values() if s.backend == module.__backend__}


def _public(module: SwitchModule) -> list[str]:
    return [*module.__dict__.get("__all__", ()), *_switches_of(module), *module.__computed__]


def _is_submodule(module: ModuleType, name: str, value: object) -> bool:
    return isinstance(value, ModuleType) and sys.modules.get(f"{module.__name__}.{name}") is value


def _unknown(module: str, name: str, known: Iterable[str]) -> UnknownName:
    near = ", ".join(nearest(name, dict.fromkeys(known))[:3])
    return UnknownName(f"{module} has no name {show(name)}.", remedy=f"the nearest names: {near}")


def install(
    module: str, prefix: str, computed: Mapping[str, tuple[Callable[[], object], str]] | None = None
) -> None:
    """Make the switches called "`prefix`.…" attributes of `module`, which calls this at the end of its body.

    Parameters
    ----------
    module
        The module's ``__name__``.
    prefix
        Backend whose switches it holds; empty for those without a dot.
    computed
        Further read-only attributes: name to a function that returns the value, and what to set instead.

    Notes
    -----
    The module's source annotates each switch (``enabled: bool``) without a value, for type checkers.
    """
    target = sys.modules[module]
    computed = dict(computed or {})
    members: dict[str, object] = {"__backend__": prefix, "__computed__": computed, "__module__": __name__}
    for switch in declared().values():
        if switch.backend == prefix:
            members[switch.attribute] = property(store.reader(switch.name), doc=switch.doc)
    for name, (function, _) in computed.items():
        members[name] = property(_ignoring_owner(function))
    target.__class__ = type("SwitchModule", (SwitchModule,), members)


def _ignoring_owner(function: Callable[[], object]) -> Callable[[object], object]:
    return lambda owner: function()


class ContextProp(Generic[T]):
    """Attribute that calls `getter` when read and `setter` when written, for modules of extensions.

    Writing to a frozen base is refused; inside a scope it passes. Deleting is refused.

    Parameters
    ----------
    getter
        Function without arguments that returns the value.
    setter
        Function that takes the new value.

    Examples
    --------
    >>> box = ["slow"]
    >>> class Mode:
    ...     speed = ContextProp(lambda: box[0], lambda value: box.__setitem__(0, value))
    >>> mode = Mode()
    >>> mode.speed = "fast"
    >>> mode.speed
    'fast'
    """

    def __init__(self, getter: Callable[[], T], setter: Callable[[T], object]) -> None:
        self.getter = getter
        self.setter = setter
        self.name = "this attribute"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, kind: type | None = None) -> T:
        return self.getter()

    def __set__(self, owner: object, value: T) -> None:
        if store.frozen() and not store.scope_is_open():
            raise Frozen(
                f"{self.name} = {show(value)} was refused: the base is frozen.",
                cause="disable_global_flags() was called, so process-wide values can no longer change",
                remedy=f"assign {self.name} inside a scope: with backline.backends.flags(): ...",
            )
        self.setter(value)

    def __delete__(self, owner: object) -> NoReturn:
        raise UnknownName(f"{self.name} cannot be deleted.", remedy="assign another value instead")


class PropModule(ModuleType):
    """Module type for extensions: its class holds `ContextProp` attributes, all else is read from module `m`.

    Parameters
    ----------
    m
        Module that answers for names the class does not have.
    name
        Name of the new module.
    """

    def __init__(self, m: ModuleType, name: str) -> None:
        super().__init__(name)
        self.__dict__["m"] = m

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.__dict__["m"], name)
        except (AttributeError, KeyError):
            if name.startswith("__"):
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
            raise _unknown(self.__name__, name, _plain_names(self)) from None

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__") or name in _context_props(self):
            super().__setattr__(name, value)
        else:
            raise _unknown(self.__name__, name, _plain_names(self))

    def __dir__(self) -> list[str]:
        return sorted({*_context_props(self), *dir(self.__dict__["m"])})

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)


def _context_props(module: PropModule) -> list[str]:
    # From the classes' dicts: asking the class itself for the attribute would call its getter.
    return [
        name for kind in type(module).__mro__ for name, x in vars(kind).items() if isinstance(x, ContextProp)
    ]


def _plain_names(module: ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]
