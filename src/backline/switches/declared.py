"""Which switches exist: one table, and the registration that plug-ins use.

A declaration here is all a new switch needs; attribute, scope keyword, environment variable, configuration
key and the rows of tables follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import BadType, BadValue, UnknownName
from .cores import starting_threads
from .declare import AtLeast, EachOf, Switch, nearest, show

__all__ = ["declared", "library_names", "lookup"]

_registry: dict[str, Switch] = {}


def declared() -> Mapping[str, Switch]:
    """Return every declared switch by name, in the order of declaration (read-only, always up to date).

    Examples
    --------
    >>> declared()["mkl.enabled"].env
    'BACKLINE_MKL_ENABLED'
    """
    return _VIEW


def library_names() -> list[str]:
    """Names of the libraries that a call may run on: those that have an ``enabled`` switch."""
    return [name.removesuffix(".enabled") for name in _registry if name.endswith(".enabled")]


def lookup(name: str) -> Switch:
    """Return the switch called `name`, or raise `UnknownName` with the nearest names."""
    try:
        return _registry[name]
    except (KeyError, TypeError):
        near = ", ".join(nearest(str(name), _registry)[:3])
        raise UnknownName(f"there is no switch {show(name)}.", remedy=f"the nearest names: {near}") from None


def register(switch: Switch) -> None:
    """Add `switch` to the table. The store's `declare` does this and makes the snapshots anew."""
    if not isinstance(switch, Switch):
        raise BadType(f"a Switch is wanted, not {type(switch).__name__}: {show(switch)}")
    for other in _registry.values():
        if other == switch:
            return  # a plug-in that is imported twice, or reloaded
        if other.name == switch.name or other.env == switch.env:
            raise BadValue(
                f"switch {switch.name} cannot be declared.",
                cause=f"{other.name} (environment {other.env}) is declared already",
                remedy="choose another name",
            )
    _registry[switch.name] = switch


_VIEW = MappingProxyType(_registry)
_ALL = ("matmul", "linalg")
_LIBRARIES = EachOf(library_names, "a tuple of library names")

for _switch in (
    Switch("fallback", str, "allow", ("allow", "warn", "error"), governs=_ALL,
           doc="What happens when a preference cannot be kept: take the next library, warn, or raise."),
    Switch("benchmark", bool, False, governs=_ALL,
           doc="Time the candidates once per signature and keep the fastest."),
    Switch("benchmark_limit", int, 10, AtLeast(0), governs=_ALL,
           doc="Most candidates timed per signature; 0 times all."),
    Switch("deterministic", bool, False, governs=_ALL,
           doc="Use only what gives the same bits again, as strongly as determinism_level says."),
    Switch("warn_only", bool, False, governs=_ALL,
           doc="While deterministic: warn instead of raising where nothing conforms."),
    Switch("determinism_level", str, "run", ("run", "threads"), governs=_ALL,
           doc="Same bits from run to run, or also for any number of threads."),
    Switch("num_threads", int, starting_threads, AtLeast(1), governs=_ALL,
           doc="Threads a library call may use."),
    Switch("prefer", tuple, (), _LIBRARIES, governs=_ALL,
           doc="Libraries to try first, in this order."),
    Switch("only", tuple, (), _LIBRARIES, governs=_ALL,
           doc="The only libraries allowed; empty allows all."),
    Switch("max_error", float, math.inf, AtLeast(0), governs=_ALL,
           doc="Largest relative error measured by tuning that an algorithm may have."),
    Switch("numpy.enabled", bool, True, governs=_ALL,
           doc="NumPy's own routines may run calls."),
    Switch("openblas.enabled", bool, True, governs=_ALL,
           doc="OpenBLAS, loaded directly, may run calls."),
    Switch("mkl.enabled", bool, True, governs=_ALL,
           doc="Intel's MKL may run calls."),
    Switch("blis.enabled", bool, True, governs=_ALL,
           doc="BLIS may run calls."),
):  # fmt: skip
    register(_switch)
