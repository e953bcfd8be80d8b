"""Records of shadow runs: one for each call that was computed again, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .choice import Choice
from .library_remedy import without

__all__ = ["ShadowRecord", "precisions_of", "remedy_for", "table_of"]


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """One call that was computed again.

    Attributes
    ----------
    op, key
        Name of the operation and key of its Problem.
    library, algorithm
        What ran it; several libraries for a contraction of several steps.
    against
        What computed it again.
    number
        The number of the call among those of this Problem that were computed again, from 1 on.
    difference
        Relative difference of the results, or in units for integers; the relative error where the results alone do not tell.
    tolerance
        The difference that was allowed.
    rounding
        The difference that rounding explains: the tolerance, where none was given.
    drifts
        Whether the difference is more than that, and no other right result explains it.
    seconds
        What computing it again and comparing took.
    """

    op: str
    key: str
    library: str
    algorithm: str
    against: str
    number: int
    difference: float
    tolerance: float
    rounding: float
    drifts: bool
    seconds: float

    @property
    def part(self) -> float:
        """The difference as a part of the tolerance."""
        if self.difference == 0.0:
            return 0.0
        return self.difference / self.tolerance if self.tolerance else float("inf")

    @property
    def is_rounding(self) -> bool:
        """True where it drifts only because the tolerance that was given is below what rounding explains."""
        return self.drifts and self.difference <= self.rounding

    def runs_on(self) -> str:
        """Returns library and algorithm in words."""
        return " ".join(filter(None, [self.library, self.algorithm]))

    def as_dict(self) -> dict[str, Any]:
        """Returns the record for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        verdict = "drifts" if self.drifts else "agrees"
        return (
            f"{self.key} on {self.runs_on()} against {self.against}: {verdict}, difference {self.difference:.1e}, "
            f"tolerance {self.tolerance:.1e}"
        )


def remedy_for(record: ShadowRecord) -> str:
    """Returns what to do about a record that drifts, in words."""
    if record.is_rounding:
        return f"a tolerance of {record.rounding:.1e} or more, or none: no library is at fault"
    return without(record.library)


def precisions_of(choice: Choice) -> tuple[str, ...]:
    """Returns the precisions that a Choice computes in: one, or those of the steps of a contraction."""
    inner = [step.choice for step in getattr(choice, "steps", ()) if step.choice is not None]
    return tuple({each.chosen.precision for each in (choice, *inner) if each.chosen is not None}) or ("",)


def table_of(records: Iterable[ShadowRecord]) -> list[tuple[str, ...]]:
    """Returns a row for each Problem and algorithm, the worst first: calls, difference, tolerance, verdict, what ran, key."""
    groups: dict[tuple[str, str], list[ShadowRecord]] = {}
    for record in records:
        groups.setdefault((record.key, record.runs_on()), []).append(record)
    found: list[tuple[str, ...]] = []
    for (key, runs_on), group in sorted(groups.items(), key=lambda item: -max(r.part for r in item[1])):
        worst = max(group, key=lambda r: (r.drifts, r.part))
        drifted = sum(r.drifts for r in group)
        verdict = f"{drifted} drift" if drifted else "agree"
        if worst.is_rounding:
            verdict += " as rounding does"
        found.append((str(len(group)), f"{worst.difference:.1e}", f"{worst.tolerance:.1e}", verdict, runs_on, key))
    return found
