"""Errata: known defects of vendor kernels, each with the exact condition under which it was seen.

`refusal` is read wherever a library lists an algorithm, so that the next library takes over. The shipped rows are in
`errata_table`; `backline check kernels` adds rows for this machine (`errata_local`). Where the version of a library or the
instruction sets of its kernels cannot be known, the defect is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..problems import Problem, short
from . import errata_local, errata_table
from .erratum import Erratum

if TYPE_CHECKING:
    from .base import Algorithm, Library

__all__ = ["applying", "clear", "concerning", "engines", "forget", "keep", "kernels", "matching", "refusal", "rows"]

# Name of a library -> the object that was asked, its rows, and those by operation, dtype and algorithm.
_indexed: dict[str, tuple[Library, tuple[Erratum, ...], dict[tuple[str, str, str], tuple[Erratum, ...]]]] = {}


def rows() -> tuple[Erratum, ...]:
    """Returns the shipped rows, then those of this machine."""
    return (*errata_table.TABLE, *errata_local.local_rows())


def applying(library: Library) -> tuple[Erratum, ...]:
    """Returns the rows that hold for a library as it is loaded here."""
    of_it = [row for row in errata_table.TABLE if row.library == library.name]
    if of_it:
        version, sets = library.version(), library.instruction_sets()
        of_it = [row for row in of_it if row.concerns_version(version) and row.concerns_isa(sets)]
    return (*of_it, *errata_local.local_rows_of(library))


def clear() -> None:
    """Makes the next choice read the rows again."""
    from .. import _core

    errata_local.reload()
    _indexed.clear()
    _core.memo_clear()


def keep(rows: Iterable[errata_local.LocalErratum]) -> int:
    """Adds rows of this machine to its file and applies them from now on; returns how many are new.

    Raises as `errata_local.keep`.
    """
    count = errata_local.keep(rows)
    clear()
    return count


def forget() -> int:
    """Removes the file with the rows of this machine; returns how many it had."""
    count = errata_local.forget()
    clear()
    return count


def concerning(library: Library, op: str, dtype: str, algorithm: str) -> tuple[Erratum, ...]:
    """Returns the rows that an algorithm of a library falls under for some Problems of an operation and dtype (short name)."""
    known = _indexed.get(library.name)
    if known is None or known[0] is not library:
        known = _indexed[library.name] = library, applying(library), {}
    _, rows, found = known
    key = (op, dtype, algorithm)
    if rows and key not in found:
        found[key] = tuple(row for row in rows if row.covers(op, dtype, algorithm))
    return found[key] if rows else ()


def matching(library: Library, problem: Problem, algorithm: str) -> Iterable[Erratum]:
    """Yields the rows that an algorithm of a library falls under for a Problem."""
    rows = concerning(library, problem.op, short(problem.dtype), algorithm)
    return (
        row
        for row in rows
        if row.concerns(problem) and (not row.capabilities or row.concerns_capability(library.capability(problem)))
    )


def refusal(library: Library, problem: Problem, algorithm: Algorithm) -> str:
    """Returns the reason why an algorithm must not run a Problem, or an empty string."""
    rows = matching(library, problem, algorithm.name)
    return next((row.reason() for row in rows if not row.engines and not row.kernels), "")


def engines(library: Library, problem: Problem, algorithm: str) -> Mapping[int, str]:
    """Returns the engines of a library whose plans must not run a Problem by an algorithm, each with the reason."""
    return {engine: row.reason() for row in matching(library, problem, algorithm) for engine in row.engines}


def kernels(library: Library, problem: Problem, algorithm: str) -> tuple[str, ...]:
    """Returns shell patterns of the names of a library's kernels that must not run a Problem by an algorithm."""
    return tuple(pattern for row in matching(library, problem, algorithm) for pattern in row.kernels)
