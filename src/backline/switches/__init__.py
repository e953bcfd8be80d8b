"""The switches: their declarations, the origins of their values, and the scopes that set them for a while.

The layers above use this; a user sets switches as attributes of `backline.backends` and reads about a value's
origin in what ``explain`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import definitions as _definitions  # first: it declares the switches that the rest reads
from .legal import AtLeast, EachOf
from .lookup import library_names, lookup
from .provenance import Origin
from .snapshot import SCHEMA, Scope, Snapshot, current, make_scope
from .store import (
    Said,
    assign,
    assign_many,
    deciding,
    declare,
    freeze,
    frozen,
    get,
    history,
    origin,
    scope_is_open,
    set_tracer,
    tracer,
    withdraw,
)
from .switch import DerivedSwitch, Switch, Value
from .switch_registry import all_switches, attach, declared, derived_switches

__all__ = [
    "SCHEMA", "AtLeast", "DerivedSwitch", "EachOf", "Origin", "Said", "Scope", "Snapshot", "Switch", "Value", "all_switches",
    "assign", "assign_many", "attach", "current", "deciding", "declare", "declared", "derived_switches", "freeze", "frozen",
    "get", "history", "library_names", "lookup", "make_scope", "origin", "scope", "scope_is_open", "set_tracer", "tracer",
    "withdraw",
]  # fmt: skip
del _definitions


def scope(values: Mapping[str, object] | None = None, /, **more: object) -> Scope:
    """Returns a scope that sets switches by their names; None keeps what holds.

    Parameters
    ----------
    values
        Switch name to value, for names with a dot.
    more
        Switches of the root as keywords.

    Examples
    --------
    >>> with scope({"mkl.enabled": False}, fallback="warn"):
    ...     get("mkl.enabled"), get("fallback")
    (False, 'warn')
    """
    return make_scope("switches.scope", {**(values or {}), **more}, depth=2)
