"""Modules whose attributes are switches: ``backline.backends.mkl.enabled = False`` writes ``mkl.enabled``.

`install` gives a real module a class with one property for each of its switches. The module stays the object
that was imported, so tools see it: ``dir()`` and completion list the switches, the source annotates them for
type checkers, pickling goes by name, and reloading works. A name that does not exist is refused, when read
and when written, so that a misspelt one does not pass for a setting.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Protocol, TypeAlias

from ..errors import ReadOnly, UnknownName
from . import mock_support, store
from .switch import Switch, nearest, show
from .switch_registry import all_switches, find_more

__all__ = [
    "FftPlanCache", "PlanCache", "SwitchGroup", "SwitchModule", "Switched", "attributes", "install", "is_submodule",
    "unknown_name",
]  # fmt: skip


class PlanCache(Protocol):
    """The prepared executions kept for one library: a bounded cache that drops the least recently used."""

    max_size: int
    """Most plans kept; lowering it drops plans at once."""

    @property
    def size(self) -> int:
        """Plans kept now."""

    def clear(self) -> None:
        """Drops every plan."""


class FftPlanCache(PlanCache, Protocol):
    """The plans of Fourier transforms kept for one library: bounded in memory, too."""

    max_bytes: int
    """Most memory that plans may hold together, about."""

    @property
    def nbytes(self) -> int:
        """Memory that the plans kept now hold, about."""

    @property
    def hits(self) -> int:
        """Number of times that a plan was used again."""

    @property
    def misses(self) -> int:
        """Number of times that a plan was made."""


class Switched:
    """Base of modules and sub-objects whose attributes are switches. `attributes` fills their classes.

    It has no methods with plain names: a name in a module's own body would hide them.
    """

    __backend__: ClassVar[str]
    __computed__: ClassVar[Mapping[str, tuple[Callable[[], object], str]]]
    __lazy__: ClassVar[Collection[str]] = ()

    def __getattr__(self, name: str) -> Any:
        # Reached when there is no such attribute: a submodule that is not imported yet, a switch declared after the class was
        # made, a name that a test took away, or a mistake.
        if mock_support.is_hidden(self, name):
            raise AttributeError(f"{_title(self)} has no attribute {name!r}: a test deleted it")
        if name in self.__lazy__:
            return importlib.import_module(f"{_title(self)}.{name}")
        switch = _switches_of(self).get(name)
        if switch is not None:
            return store.get(switch.name)
        if name.startswith("__"):  # asked for by the interpreter and by tools, which expect a plain refusal
            raise AttributeError(f"{_title(self)} has no attribute {name!r}")
        find_more(_switch_name(self, name))  # a plug-in may have it: a module of its own, or a switch
        if name in self.__lazy__:
            return importlib.import_module(f"{_title(self)}.{name}")
        switch = _switches_of(self).get(name)
        if switch is not None:
            return store.get(switch.name)
        raise unknown_name(_title(self), name, _public(self))

    def __setattr__(self, name: str, value: object) -> None:
        tool = mock_support.tool(depth=2)
        switch = _switches_of(self).get(name)
        if switch is None and not name.startswith("_") and name not in _public(self):
            find_more(_switch_name(self, name))  # a plug-in may declare it
            switch = _switches_of(self).get(name)
        if switch is not None:
            mock_support.assign(tool, switch.name, value, depth=2)
        elif isinstance(self, ModuleType) and (name.startswith("__") or is_submodule(self, name, value)):
            mock_support.restore(self, name)
            super().__setattr__(name, value)  # the import system's own bookkeeping
        elif name in self.__computed__:
            raise _read_only(self, name, value, self.__computed__[name][1])
        elif name in _public(self) or name in vars(self):
            if not mock_support.replace(self, name, value, tool):
                instead = " or ".join(f"{_title(self)}.{switch}" for switch in _switches_of(self))
                raise _read_only(self, name, value, instead)
        elif tool:  # it has looked whether there is such a name, unless the test told it not to
            super().__setattr__(name, value)
        else:
            raise unknown_name(_title(self), name, _public(self))

    def __delattr__(self, name: str) -> None:
        tool = mock_support.tool(depth=2)
        switch = _switches_of(self).get(name)
        if switch is not None:
            deleted = mock_support.undo(tool, switch.name)
        else:
            deleted = bool(tool) and mock_support.delete(self, name, tool)
        if deleted:
            return
        raise UnknownName(
            f"{_title(self)}.{name} cannot be deleted.",
            cause="the names of a backend are fixed",
            remedy="to change a switch for a while, use its flags() in a with statement",
        )

    def __dir__(self) -> list[str]:
        find_more()
        dunders = [name for name in vars(self) if name.startswith("__")]
        return sorted(name for name in {*dunders, *_public(self)} if not mock_support.is_hidden(self, name))


class SwitchModule(Switched, ModuleType):
    """Class of a module whose switches are attributes. Made by `install`, not by hand."""

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)


class SwitchGroup(Switched):
    """Base of sub-objects such as ``cuda.matmul``, whose attributes are switches. `attributes` fills a subclass."""

    __title__: ClassVar[str]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in _switches_of(self))
        return f"<{self.__title__}: {values}>"

    def __reduce__(self) -> tuple[object, ...]:
        module, _, name = self.__title__.rpartition(".")
        return _attribute_of, (module, name)


def _read_only(thing: Switched, name: str, value: object, instead: str) -> ReadOnly:
    return ReadOnly(
        f"{_title(thing)}.{name} is read-only.",
        cause=f"it is no switch, so it cannot become {show(value)}",
        remedy=f"set {instead} instead" if instead else "call the functions of this module instead",
    )


def _attribute_of(module: str, name: str) -> object:
    return getattr(importlib.import_module(module), name)


def _title(thing: Switched) -> str:
    return thing.__title__ if isinstance(thing, SwitchGroup) else str(vars(thing)["__name__"])


def _switches_of(thing: Switched) -> dict[str, Switch]:
    return {s.attribute: s for s in all_switches().values() if s.backend == thing.__backend__ and s.as_attribute}


def _public(thing: Switched) -> list[str]:
    listed = vars(thing).get("__all__")
    if listed is None:  # a sub-object: what its class has, and its own
        listed = [name for kind in type(thing).__mro__[:-1] for name in vars(kind) if not name.startswith("_")]
        listed += [name for name in vars(thing) if not name.startswith("_")]
    return [*listed, *_switches_of(thing), *thing.__computed__, *thing.__lazy__]


def _switch_name(thing: Switched, attribute: str) -> str:
    return f"{thing.__backend__}.{attribute}".lstrip(".")


def is_submodule(module: ModuleType, name: str, value: object) -> bool:
    """Tells whether `value` is the submodule called `name`: the import system sets it as an attribute of its package."""
    return isinstance(value, ModuleType) and sys.modules.get(f"{module.__name__}.{name}") is value


def unknown_name(module: str, name: str, known: Iterable[str]) -> UnknownName:
    """Returns the error for a name that a module does not have, with the nearest of those it has."""
    near = ", ".join(nearest(name, dict.fromkeys(known))[:3])
    return UnknownName(f"{module} has no name {show(name)}.", remedy=f"the nearest names: {near}")


Computed: TypeAlias = "Mapping[str, tuple[Callable[[], object], str]]"


def attributes(prefix: str, computed: Computed | None = None) -> dict[str, object]:
    """Returns the members of a class whose instances have the switches called "`prefix`.…" as attributes.

    Parameters
    ----------
    prefix
        Backend whose switches it holds; empty for those without a dot.
    computed
        Further read-only attributes: name to a function that returns the value, and what to set instead.
    """
    computed = dict(computed or {})
    members: dict[str, object] = {"__backend__": prefix, "__computed__": computed}
    for switch in all_switches().values():
        if switch.backend == prefix and switch.as_attribute:
            members[switch.attribute] = property(store.reader(switch.name), doc=switch.doc)
    for name, (function, _) in computed.items():
        members[name] = property(_ignoring_owner(function), doc=function.__doc__)
    return members


def install(
    module: str,
    prefix: str,
    computed: Computed | None = None,
    lazy: Collection[str] = (),
    members: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Makes the switches called "`prefix`.…" attributes of `module`, which calls this at the end of its body.

    Parameters
    ----------
    module
        The module's ``__name__``.
    prefix, computed
        As for `attributes`.
    lazy
        Submodules that are imported when they are first asked for.
    members
        Further members of the module's class.

    Notes
    -----
    The module's source annotates each switch (``enabled: bool``) without a value, for type checkers. The module's docstring
    gets a section about its attributes, which is made from the declarations.
    """
    body = {**attributes(prefix, computed), **members, "__lazy__": lazy, "__module__": __name__}
    sys.modules[module].__class__ = type("SwitchModule", (SwitchModule,), body)
    vars(sys.modules[module])["__doc__"] = _with_attributes(vars(sys.modules[module]).get("__doc__"), body)


def _with_attributes(doc: str | None, members: Mapping[str, object]) -> str:
    """Returns the docstring of a module with a section about the properties among `members`."""
    lines = [f"{name}\n    {p.__doc__}" for name, p in members.items() if isinstance(p, property) and p.__doc__]
    return "\n".join([(doc or "").rstrip(), *(["", "Attributes", "----------", *lines] if lines else [])]) + "\n"


def _ignoring_owner(function: Callable[[], object]) -> Callable[[object], object]:
    return lambda owner: function()
