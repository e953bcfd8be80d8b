"""Functions and attributes that all modules of backends have, made from the declarations of their switches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from .. import switches
from ..errors import BackendUnavailable
from ..switches.switch_module import Computed, SwitchGroup, attributes
from ..switches.switch_module import install as install_switches

__all__ = [
    "Flags", "IsTrue", "SetFlags", "Setter", "Version", "available", "flags_of", "group", "install", "switch_functions",
    "unavailable", "version",
]  # fmt: skip


# For the annotations in the modules: what `install` makes of the declarations.
IsTrue: TypeAlias = Callable[[], bool]
Version: TypeAlias = Callable[[], Any]
Flags: TypeAlias = Callable[..., switches.Scope]
SetFlags: TypeAlias = Callable[..., tuple[Any, ...]]

F = TypeVar("F", bound=Callable[..., Any])


class Setter(Protocol):
    """A function that turns a switch on or off."""

    def __call__(self, enabled: bool) -> None: ...


Lenient: TypeAlias = Callable[[dict[str, object]], dict[str, object]]


def available(backend: str) -> bool:
    """Tells whether the library behind a backend is found and can be loaded now."""
    from ..libraries.presence import availability  # here, because importing backline looks for no library

    return availability(backend).available()


_NUMBERED = ("cudnn", "cusparselt")  # their makers' versions are numbers


def version(backend: str) -> Any:
    """Returns the version of the library behind a backend, or None if it is absent or does not tell."""
    from ..libraries.presence import availability, presence

    return (presence if backend in _NUMBERED else availability)(backend).version()


def unavailable(backend: str, what: str) -> BackendUnavailable:
    """Returns the error for something that needs the library behind a backend: what was looked for, where, how to get it."""
    from ..libraries.presence import unavailable as make

    return make(backend, what)


def _plan_cache(library: str) -> Callable[[], object]:
    def cache() -> object:
        """Its prepared executions: ``size``, ``max_size`` (may be set) and ``clear()``. Read-only."""
        from ..engine import plan_caches

        return plan_caches.cache(library)

    return cache


def _fft_plan_cache(library: str) -> Callable[[], object]:
    def cache() -> object:
        """Its plans of transforms: as ``plan_cache``, and ``nbytes``, ``max_bytes`` (may be set), ``hits`` and ``misses``."""
        from ..engine import fft_plan_caches

        return fft_plan_caches.cache(library)

    return cache


def switch_functions(switch: str, getter: str, setter: str, module: str) -> tuple[IsTrue, Setter]:
    """Makes the functions of `module` that return whether a switch is on, and set it."""

    def read() -> bool:
        return cast(bool, switches.get(switch))

    def write(enabled: bool) -> None:
        switches.assign(switch, enabled, depth=2)

    doc = switches.lookup(switch).doc
    read.__doc__ = f"Return the switch ``{switch}``: {doc}"
    write.__doc__ = f"Set the switch ``{switch}``: {doc}\n\nRaises\n------\nBadType\n    Not a bool.\n"
    return _named(read, getter, module), _named(write, setter, module)


def install(
    module: str,
    *,
    prefix: str | None = None,
    model: tuple[str, ...] = (),
    computed: Computed | None = None,
    lazy: Collection[str] = (),
    plans: str = "",
    transforms: str = "",
    present: bool = True,
    lenient: Lenient | None = None,
    members: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Gives a module its switches as attributes and the functions that every backend has. Its body calls this at the end.

    ``flags`` and ``set_flags``; with `present` also ``is_available`` and ``version``; with a switch ``enabled`` also
    ``is_enabled``. What the module defines itself stays.

    Parameters
    ----------
    module
        The module's ``__name__``.
    prefix
        Beginning of its switches' names; the last part of `module` unless given.
    model
        Switches whose old values ``set_flags`` returns; all unless given.
    computed, lazy
        As for `switches.switch_module.install`.
    plans
        Library whose cache of plans is shown as ``plan_cache``.
    transforms
        Library whose cache of plans of Fourier transforms is shown as ``fft_plan_cache``.
    present
        False for a module that is not about a library.
    lenient
        As for `flags_of`.
    members
        Further members of the module's class.
    """
    prefix = module.rpartition(".")[2] if prefix is None else prefix
    space = sys.modules[module].__dict__
    functions: dict[str, Callable[..., Any]] = {}
    if present:
        functions["is_available"] = lambda: available(prefix)
        functions["is_available"].__doc__ = "Tell whether the library is found and can be loaded now. The answer is kept."
        functions["version"] = lambda: version(prefix)
        functions["version"].__doc__ = "Version of the library, or None if it is absent or does not tell."
    if f"{prefix}.enabled" in switches.declared():
        functions["is_enabled"] = lambda: bool(switches.get(f"{prefix}.enabled")) and bool(space["is_available"]())
        functions["is_enabled"].__doc__ = "Tell whether the library is both enabled here and available."
    functions["flags"], functions["set_flags"] = flags_of(prefix, model, lenient)
    for name, function in functions.items():
        if name not in space or getattr(space[name], "__made__", False):  # made by an earlier load of the module
            space[name] = _named(function, name, module)
    if plans:
        computed = {**(computed or {}), "plan_cache": (_plan_cache(plans), f"{prefix}.plan_cache.max_size")}
    if transforms:
        computed = {**(computed or {}), "fft_plan_cache": (_fft_plan_cache(transforms), f"{prefix}.fft_plan_cache.max_size")}
    install_switches(module, prefix, computed, lazy, members)
    own = [s.attribute for s in switches.all_switches().values() if s.backend == prefix and s.as_attribute]
    space["__all__"] = [*dict.fromkeys([*space.get("__all__", ()), *own])]


def _named(function: F, name: str, module: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__made__ = True  # type: ignore[attr-defined]  # a mark of our own
    return function


def group(title: str, prefix: str, computed: Computed | None = None) -> dict[str, Any]:
    """Returns the members of the class of a sub-object: its switches, ``flags``, ``set_flags`` and its public name."""
    flags, set_flags = flags_of(prefix)
    functions = {name: staticmethod(_named(f, name, title)) for name, f in (("flags", flags), ("set_flags", set_flags))}
    return {**attributes(prefix, computed), **functions, "__title__": title}


def precision(module: str, device: str, op: str) -> Any:
    """Makes the sub-object for the precision of one operation: ``fp32_precision``, ``flags``, ``backend`` and ``op``."""
    prefix = f"{module.rpartition('.')[2]}.{op}"
    facts: Computed = {
        "backend": (lambda: device, f"{prefix}.fp32_precision"),
        "op": (lambda: op, f"{prefix}.fp32_precision"),
    }
    members = group(f"{module}.{op}", prefix, facts)
    del members["set_flags"]
    return type("Precision", (SwitchGroup,), members)()


def flags_of(
    prefix: str,
    model: tuple[str, ...] = (),
    lenient: Lenient | None = None,
) -> tuple[Callable[..., switches.Scope], Callable[..., tuple[Any, ...]]]:
    """Makes ``flags`` and ``set_flags`` for the switches called "`prefix`.…", in the order of their declaration.

    `lenient` is given what both are called with, switch name to value, and returns what counts of it.
    """
    names = {s.attribute: s.name for s in switches.all_switches().values() if s.backend == prefix and s.in_flags}
    underscored = {f"_{name}": full for name, full in names.items()}
    returned = [names[name] for name in model or names]
    title = f"{prefix}.flags" if prefix else "backends.flags"

    def flags(*args: object, **kwargs: object) -> switches.Scope:
        if not args and lenient is None:
            named: dict[str, object] = {}
            try:  # the usual form, at its least cost
                for name, value in kwargs.items():
                    named[names[name]] = value
                return switches.make_scope(title, named, depth=2)
            except KeyError:
                pass
        values = _bind(title, names, args, kwargs)
        return switches.make_scope(title, lenient(values) if lenient else values, depth=2)

    def set_flags(*args: object, **kwargs: object) -> tuple[Any, ...]:
        values = _bind(title.replace("flags", "set_flags"), underscored, args, kwargs)
        values = lenient(values) if lenient else values
        before = switches.current()
        old = tuple(_old(before, name) for name in returned)
        switches.assign_many({name: value for name, value in values.items() if value is not None}, depth=2)
        return old

    flags.__doc__ = f"""Return a scope for switches: a context manager and a decorator. None keeps what holds.

Only this thread or task sees the values, and only what is named changes.

Parameters
----------
{_about(names)}

Raises
------
BadValue, BadType
    One of the values is illegal; none is set then.
"""
    set_flags.__doc__ = f"""Assign switches, all or none, and return the old values of {", ".join(model or names)}. None keeps.

Inside a scope the assignment ends with the scope.

Parameters
----------
{_about(underscored)}

Raises
------
BadValue, BadType
    One of the values is illegal; none is set then.
Frozen
    ``disable_global_flags()`` was called, and no scope is open.
"""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    # What `inspect.signature` looks at first, and the stubs of functions do not have.
    flags.__signature__ = Signature([Parameter(n, kind, default=None) for n in names])  # type: ignore[attr-defined]
    set_flags.__signature__ = Signature([Parameter(n, kind, default=None) for n in underscored])  # type: ignore[attr-defined]  # likewise
    return flags, set_flags


def _about(names: Mapping[str, str]) -> str:
    return "\n".join(f"{name}\n    {switches.lookup(full).doc}" for name, full in names.items())


def _old(before: switches.Snapshot, name: str) -> Any:
    switch = switches.lookup(name)
    value = before.resolved(name) if switch.kind is bool else before[name]
    return value if value != switch.unset or switch.unset is None else switches.get(name)


def _bind(title: str, names: Mapping[str, str], args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    if len(args) > len(names):
        raise TypeError(f"{title}() takes at most {len(names)} arguments ({', '.join(names)}), not {len(args)}")
    values = dict(zip(names.values(), args, strict=False))
    for name, value in kwargs.items():
        full = names.get(name)
        if full is None:
            from ..switches.switch import nearest

            near = ", ".join(nearest(name, names)[:3])
            raise TypeError(f"{title}() got an unexpected keyword argument {name!r}; the nearest names: {near}")
        if full in values:
            raise TypeError(f"{title}() got multiple values for argument {name!r}")
        values[full] = value
    return values
