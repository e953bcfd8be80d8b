"""The switches: which exist, where their values come from, and the scopes that set them for a while.

The floors above use this; a user sets switches as attributes of `backline.backends` and reads about a value's
origin in what ``explain`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import definitions as _table  # first: it declares what the rest reads
from .provenance import Origin
from .scope import Scope, make_scope
from .snapshot import SCHEMA, Snapshot
from .store import (
    Said,
    assign,
    assign_many,
    current,
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
from .switch import AtLeast, EachOf, Switch, Value, View
from .switch_registry import attach, declared, every, library_names, lookup, views

__all__ = [
    "SCHEMA",
    "AtLeast",
    "EachOf",
    "Origin",
    "Said",
    "Scope",
    "Snapshot",
    "Switch",
    "Value",
    "View",
    "assign",
    "assign_many",
    "attach",
    "current",
    "deciding",
    "declare",
    "declared",
    "every",
    "freeze",
    "frozen",
    "get",
    "history",
    "library_names",
    "lookup",
    "make_scope",
    "origin",
    "scope",
    "scope_is_open",
    "set_tracer",
    "tracer",
    "views",
    "withdraw",
]

del _table


def scope(values: Mapping[str, object] | None = None, /, **more: object) -> Scope:
    """Return a scope that sets switches by their names; None keeps what holds.

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
