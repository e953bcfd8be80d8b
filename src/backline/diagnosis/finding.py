"""Findings of the doctor, the checks that make them, and the list that holds and prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import BadValue
from ..libraries.conflicts import SEVERITIES

if TYPE_CHECKING:
    from .facts import Facts

__all__ = ["LEVELS", "Check", "Finding", "Findings"]

#: How bad, the worst first: the process may end; numbers may be wrong; calls are slow; worth knowing.
LEVELS = SEVERITIES


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or slow in an environment.

    Attributes
    ----------
    id : str
        The check that found it: "oversubscription".
    level : str
        One of `LEVELS`.
    text : str
        What it is, and what it leads to.
    proof : str
        The figures that show it, as read or measured here.
    remedy : str
        What to do, with the command.
    cost : float or None
        How many times as long it makes take what it concerns; None where that is not known.
    reference : str
        A public page about it, where there is one.

    Examples
    --------
    >>> print(Finding("steal", "slow", "The hypervisor takes processor time.", "12 % in 0.3 s", "another machine", 1.14))
    slow: steal, 1.1 times
      means : The hypervisor takes processor time.
      proof : 12 % in 0.3 s
      remedy: another machine
    """

    id: str
    level: str
    text: str
    proof: str
    remedy: str
    cost: float | None = None
    reference: str = ""

    def title(self) -> str:
        """Returns the level, the check and the cost in one line."""
        return f"{self.level}: {self.id}" + (f", {self.cost:.2g} times" if self.cost is not None and self.cost > 1.0 else "")

    def rows(self) -> list[tuple[str, str]]:
        """Returns pairs of label and text."""
        rows = [("means", self.text), ("proof", self.proof), ("remedy", self.remedy)]
        return rows + ([("see", self.reference)] if self.reference else [])

    def __str__(self) -> str:
        return "\n".join([self.title(), *(f"  {label:<6}: {text}" for label, text in self.rows())])


class Findings(list[Finding]):
    """Findings, the most costly first. It is a list, and prints as a report.

    Attributes
    ----------
    checked : tuple of str
        The checks that were made, by id.
    skipped : dict
        Checks that were not, with the reason.
    """

    def __init__(
        self, found: Iterable[Finding] = (), checked: Iterable[str] = (), skipped: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sorted(found, key=lambda each: (LEVELS.index(each.level), -(each.cost or 0.0))))
        self.checked = tuple(checked)
        self.skipped = dict(skipped or {})

    def at_least(self, level: str) -> list[Finding]:
        """Returns the findings that are as bad as a level, or worse.

        Raises
        ------
        BadValue
            It is not one of `LEVELS`.

        Examples
        --------
        >>> Findings([Finding("untuned", "note", "", "", "")]).at_least("slow")
        []
        """
        if level not in LEVELS:
            raise BadValue(f"{level!r} is not a level of findings", remedy=f"one of: {', '.join(LEVELS)}")
        return [each for each in self if LEVELS.index(each.level) <= LEVELS.index(level)]

    def summary(self) -> str:
        """Returns one line on what was checked.

        Examples
        --------
        >>> Findings(checked=["steal"]).summary()
        'nothing found by 1 check'
        """
        made = f"{len(self.checked)} check{'' if len(self.checked) == 1 else 's'}"
        text = f"{len(self)} found by {made}" if self else f"nothing found by {made}"
        reasons: dict[str, list[str]] = {}
        for name, why in self.skipped.items():
            reasons.setdefault(why, []).append(name)
        left = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
        return text + (f"; left out: {left}" if left else "")

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self), self.summary()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        parts = []
        for each in self:
            rows = "".join(f"<tr><th style='text-align:left'>{a}</th><td>{escape(b)}</td></tr>" for a, b in each.rows())
            parts.append(f"<p><b>{escape(each.title())}</b></p><table>{rows}</table>")
        return "".join(parts) + f"<p>{escape(self.summary())}</p>"

    def as_dict(self) -> dict[str, Any]:
        """Returns it as what JSON can hold."""
        fields = Finding.__dataclass_fields__
        found = [{name: getattr(each, name) for name in fields} for each in self]
        return {"findings": found, "checked": list(self.checked), "skipped": self.skipped}


@dataclass(frozen=True, kw_only=True)
class Check:
    """A row of the doctor's table: one thing that may be wrong.

    Attributes
    ----------
    id : str
        Its name, unique in the table.
    level : str
        How bad it is where it is found; `find` may say otherwise for a case.
    looks_at : str
        What is read.
    measured : str
        How its figure is measured; empty where it is read or counted. Such rows are left out of a quick run.
    text, proof, remedy : str
        Texts of the finding, with names of values in braces.
    find : callable
        Yields, for each case, the values: those in braces, and `level`, `cost` and `reference` where a case has its own.
    """

    id: str
    level: str
    looks_at: str
    text: str
    proof: str
    remedy: str
    find: Callable[[Facts], Iterable[Mapping[str, Any]]]
    measured: str = ""

    def findings(self, facts: Facts) -> Iterable[Finding]:
        """Yields what is found among facts."""
        for values in self.find(facts):
            yield Finding(
                self.id,
                values.get("level", self.level),
                self.text.format_map(values),
                self.proof.format_map(values),
                self.remedy.format_map(values),
                values.get("cost"),
                values.get("reference", ""),
            )
