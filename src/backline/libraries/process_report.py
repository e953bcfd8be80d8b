"""The maths libraries of one process, and their conflicts, as values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from . import conflicts, file_facts, openmp_runtimes, thread_scopes
from .in_process import LoadedLibrary

__all__ = ["conflicts_of", "described"]


def conflicts_of(mapped: Any, environ: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Returns the conflicts among libraries of one process, as they are printed."""
    return [
        {
            "kind": c.kind, "severity": c.severity, "meaning": c.meaning, "remedy": c.remedy,
            "files": [library.path for library in c.libraries],
        }
        for c in conflicts.conflicts(mapped, environ)
    ]  # fmt: skip


def described(mapped: Iterable[LoadedLibrary], environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the libraries of one process as they are printed: with the release of their package and their thread scope."""
    mapped = tuple(mapped)
    layer = next((part.threading for part in mapped if part.family.startswith("mkl.") and part.threading), "")
    editions = {runtime.path: runtime.version for runtime in openmp_runtimes.runtimes_of(mapped)}
    rows = []
    for library in mapped:
        scope = thread_scopes.scope_of(library)
        if scope and layer and library.family == "mkl":
            scope = scope._replace(pool=f"{scope.pool}, {layer}")
        rows.append(
            asdict(library)
            | {
                "version": editions.get(library.path) or library.version,
                "release": file_facts.release(library.path, library.owner),
                "scope": scope.text(environ) if scope else "",
            }
        )
    return rows
