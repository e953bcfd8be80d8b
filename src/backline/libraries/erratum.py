"""The row of the table of errata: one defect of one library, with the condition under which it was seen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..problems import Problem
from .edges import EDGES

__all__ = ["Erratum"]


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
    capabilities
        Compute capabilities of the GPUs with the defect: "9.0", or "10" for every 10.x; empty for any, and for CPUs.
    engines
        Numbers of the engines of cuDNN that have the defect: their plans are dropped, the others may run. Empty where the whole
        algorithm is refused.
    kernels
        Shell patterns of the names of oneDNN's kernels that have the defect: its next one is taken. Empty likewise.
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
    capabilities: tuple[str, ...] = ()
    engines: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    edge: str = ""
    problem: str = ""

    def concerns_version(self, version: str | None) -> bool:
        """Returns whether a version has the defect; one that is not known has."""
        if not version:
            return True
        number = _numbers(version)
        return (not self.since or number >= _numbers(self.since)) and (not self.before or number < _numbers(self.before))

    def concerns_isa(self, sets: tuple[str, ...] | None) -> bool:
        """Returns whether kernels for these instruction sets have the defect; those that are not known have."""
        return not self.isa or sets is None or self.isa in sets

    def concerns_capability(self, capability: tuple[int, int]) -> bool:
        """Returns whether kernels for a compute capability have the defect; one that is not known, (0, 0), has."""
        major, minor = capability
        return not self.capabilities or not major or bool({str(major), f"{major}.{minor}"} & set(self.capabilities))

    def covers(self, op: str, dtype: str, algorithm: str) -> bool:
        """Returns whether an algorithm of the library has the defect for some Problems of an operation and dtype."""
        return (
            (not self.operations or op in self.operations)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.algorithm or fnmatchcase(algorithm, self.algorithm))
        )

    def concerns(self, problem: Problem) -> bool:
        """Returns whether a Problem that the row covers shows the defect."""
        return (not self.problem or problem.key == self.problem) and (not self.edge or EDGES[self.edge](problem))

    def reason(self) -> str:
        """Returns the reason of a refusal."""
        return f"erratum {self.id}: {self.condition}" + (f"; {self.remedy}" if self.remedy else "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))
