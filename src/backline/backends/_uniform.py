"""What every library module of the switchboard does in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import switches

__all__ = ["available", "plan_cache", "swap", "version"]


def available(name: str) -> bool:
    """Tell whether library `name` is found and can be loaded now."""
    from .. import libraries  # here, because nothing looks for a library before somebody asks

    return bool(libraries.get(name).available())


def version(name: str) -> str | None:
    """Version of library `name`, or None if it is absent or does not tell."""
    from .. import libraries

    found: str | None = libraries.get(name).version()
    return found


def plan_cache(name: str) -> object:
    """Return the cache of prepared executions of library `name`."""
    from ..engine import plans

    return plans.cache(name)


def swap(values: Mapping[str, object], depth: int = 2) -> tuple[Any, ...]:
    """Assign those of `values` that are not None, all or none, and return the old value of each."""
    before = switches.current()
    old = tuple(before[name] for name in values)
    switches.assign_many({name: value for name, value in values.items() if value is not None}, depth + 1)
    return old
