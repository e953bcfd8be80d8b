"""Modules that are much to import, and not needed before something is chosen; each function imports one when it is first called.

An import statement inside a function costs something at every call of it; these cost next to nothing.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

__all__ = ["capability", "errata", "overrides", "problem_class", "record_store", "refusals", "verbose_scopes"]


@cache
def errata() -> ModuleType:
    """Returns `libraries.errata`."""
    from ..libraries import errata

    return errata


@cache
def capability() -> ModuleType:
    """Returns `libraries.capability`."""
    from ..libraries import capability

    return capability


@cache
def overrides() -> ModuleType:
    """Returns `libraries.overrides`."""
    from ..libraries import overrides

    return overrides


@cache
def problem_class() -> ModuleType:
    """Returns `engine.problem_class`."""
    from . import problem_class

    return problem_class


@cache
def refusals() -> ModuleType:
    """Returns `engine.refusals`."""
    from . import refusals

    return refusals


@cache
def record_store() -> ModuleType:
    """Returns `engine.tuning.record_store`."""
    from .tuning import record_store

    return record_store


@cache
def verbose_scopes() -> ModuleType:
    """Returns `engine.verbose_scopes`."""
    from . import verbose_scopes

    return verbose_scopes
