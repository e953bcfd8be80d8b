"""Errata: known defects of vendor kernels, each with the exact condition under which it was seen.

`refusal` is read wherever a library lists an algorithm, so that the next library takes over. The shipped rows are in
`errata_table`; `backline check kernels` adds rows for this machine (`errata_local`). Where the version of a library or the
instruction sets of its kernels cannot be known, the defect is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ..problems import Problem, short
from .edges import EDGES

if TYPE_CHECKING:
    from .base import Algorithm, Library

__all__ = ["Erratum", "applying", "clear", "matching", "refusal", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erratum:
    """One defect of one library.

    Attributes
    ----------
    id
        Its name, unique in the table: ``"xnnpack-deconvolution-1"``.
    library
        Name of the library.
    operations
        Operations of Problems ("conv", "fft.c2r"); empty for any.
    dtypes
        Short names of Problems' dtypes ("f32", "bf16"); empty for any.
    algorithm
        Shell pattern of the algorithm's name; "" for any.
    since, before
        First version with the defect, and first without it; "" where not known.
    isa
        Instruction set whose kernels have the defect, as `Library.instruction_sets` names it; "" for any.
    edge
        Name of a predicate over Problems in `edges.EDGES`; "" for none.
    problem
        Key of the one Problem that is meant; "" for any. For rows of this machine.
    condition
        The whole condition in words.
    evidence
        What was seen, on which processor and when.
    remedy
        What to do where the kernel is wanted nevertheless.

    Examples
    --------
    >>> row = Erratum(id="toy-1", library="toy", operations=("matmul",), before="2.0", condition="...", evidence="...")
    >>> row.concerns_version("1.9"), row.concerns_version("2.0.1"), row.concerns_version(None)
    (True, False, True)
    """

    id: str
    library: str
    condition: str
    evidence: str
    remedy: str = ""
    operations: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    algorithm: str = ""
    since: str = ""
    before: str = ""
    isa: str = ""
    edge: str = ""
    problem: str = ""

    def concerns_version(self, version: str | None) -> bool:
        """Return whether a version has the defect; one that is not known has."""
        if not version:
            return True
        number = _numbers(version)
        return (not self.since or number >= _numbers(self.since)) and (not self.before or number < _numbers(self.before))

    def concerns_isa(self, sets: tuple[str, ...] | None) -> bool:
        """Return whether kernels for these instruction sets have the defect; those that are not known have."""
        return not self.isa or sets is None or self.isa in sets

    def concerns(self, problem: Problem, algorithm: str) -> bool:
        """Return whether an algorithm of the library has the defect for a Problem."""
        return (
            (not self.operations or problem.op in self.operations)
            and (not self.dtypes or short(problem.dtype) in self.dtypes)
            and (not self.algorithm or fnmatchcase(algorithm, self.algorithm))
            and (not self.problem or problem.key == self.problem)
            and (not self.edge or EDGES[self.edge](problem))
        )

    def reason(self) -> str:
        """Return the reason of a refusal."""
        return f"erratum {self.id}: {self.condition}" + (f"; {self.remedy}" if self.remedy else "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


# Name of a library -> the object that was asked, and its rows by operation ("" for rows of any operation).
_indexed: dict[str, tuple[Library, dict[str, tuple[Erratum, ...]]]] = {}


def rows() -> tuple[Erratum, ...]:
    """Return the shipped rows, then those of this machine."""
    from .errata_local import local_rows
    from .errata_table import TABLE

    return (*TABLE, *local_rows())


def applying(library: Library) -> tuple[Erratum, ...]:
    """Return the rows that hold for a library as it is loaded here."""
    from .errata_local import local_rows_of
    from .errata_table import TABLE

    of_it = [row for row in TABLE if row.library == library.name]
    if of_it:
        version, sets = library.version(), library.instruction_sets()
        of_it = [row for row in of_it if row.concerns_version(version) and row.concerns_isa(sets)]
    return (*of_it, *local_rows_of(library))


def clear() -> None:
    """Have the rows read again by the next choice."""
    from .. import _core

    _indexed.clear()
    _core.memo_clear()


def matching(library: Library, problem: Problem, algorithm: str) -> Iterable[Erratum]:
    """Yield the rows that an algorithm of a library falls under for a Problem."""
    known = _indexed.get(library.name)
    if known is None or known[0] is not library:
        index: dict[str, tuple[Erratum, ...]] = {}
        for row in applying(library):
            for op in row.operations or ("",):
                index[op] = (*index.get(op, ()), row)
        known = _indexed[library.name] = library, index
    index = known[1]
    if index:
        for row in (*index.get(problem.op, ()), *index.get("", ())):
            if row.concerns(problem, algorithm):
                yield row


def refusal(library: Library, problem: Problem, algorithm: Algorithm) -> str:
    """Return why an algorithm must not run a Problem, or an empty string."""
    return next((row.reason() for row in matching(library, problem, algorithm.name)), "")
