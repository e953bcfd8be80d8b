"""Facts about libraries that are called through bindings, told without driver or device."""

from __future__ import annotations

from typing import Any

from ...presence import presence

__all__ = ["details", "version_of"]


def version_of(name: str) -> str | None:
    """Returns the version that a library's file tells, which takes neither driver nor device."""
    told = presence(name).version()
    return None if told is None else str(told)


def details(name: str) -> dict[str, Any]:
    """Returns what `backline info` shows of a library that is called through a binding, also where the binding is missing."""
    found = presence(name)
    facts = {} if found.path is None else {"version": version_of(name), "path": found.path}
    return facts | {"search": list(found.searched()), "pool": ""}
