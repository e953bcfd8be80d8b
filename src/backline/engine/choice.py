"""A Choice: the Algorithm taken, and every one considered with its verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import time_ns
from typing import TYPE_CHECKING, Any

from .. import libraries
from ..libraries.base import Algorithm
from ..problems import Problem, short
from . import precision_figures
from .text_table import in_words

__all__ = ["Candidate", "Choice"]


@dataclass(slots=True)
class Candidate:
    """One algorithm, or a whole library where that was refused.

    Attributes
    ----------
    library, algorithm
        Names; the algorithm may be "".
    verdict
        "chosen", "next" (could have run) or "refused".
    reason
        Why.
    switch
        The switch that would change the verdict, if one would.
    seconds
        Median time a valid tuning record holds for it.
    error
        Relative error the record holds for it.
    lacks
        Whether the library does not have the operation at all: such refusals share one line of the table.
    """

    library: str
    algorithm: str
    verdict: str
    reason: str = ""
    switch: str = ""
    seconds: float | None = None
    error: float | None = None
    lacks: bool = False
    detail: Algorithm | None = field(default=None, repr=False)

    @property
    def threads(self) -> int | None:
        return self.detail.threads if self.detail else None


@dataclass(slots=True, repr=False)
class Choice:
    """The algorithm that runs, and the reasons.

    It prints as a table and shows as one in a notebook; its repr is one line.

    Attributes
    ----------
    problem
        What was asked.
    chosen
        The Algorithm taken, or None.
    candidates
        Every Candidate, the chosen one first, then those that could have run in the order they would be tried.
    basis
        What the order rests on: "tuning record ...", "shipped ranking ...", "measured now".
    threads
        Threads allowed.
    determinism
        "off", "run" or "threads".
    switches
        Switches that mattered: name to (value, origin).
    fallbacks
        Preferences that could not be kept, with the reason.
    requested, effective
        For float32 and complex64: what fp32_precision permits here ("none", "ieee", "tf32", "bf16"), and what is computed in.
    made
        When it was made, in nanoseconds since 1970.
    """

    problem: Problem
    chosen: Algorithm | None
    candidates: list[Candidate]
    basis: str = ""
    threads: int = 1
    determinism: str = "off"
    switches: dict[str, tuple[str, str]] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)
    requested: str = ""
    effective: str = ""
    planned: float | None = None
    made: int = field(default_factory=time_ns, compare=False)
    _complete: Callable[[Choice], None] | None = field(default=None, compare=False)

    def complete_later(self, complete: Callable[[Choice], None]) -> Choice:
        """Has the candidates and the basis found when one of them is first read, by a function that sets both."""
        del self.candidates, self.basis
        self._complete = complete
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # reached for what has not been set
            if name not in ("candidates", "basis"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            complete = self._complete
            if complete is not None:
                complete(self)
                self._complete = None
            return object.__getattribute__(self, name)

    @property
    def library(self) -> str | None:
        return self.chosen.library if self.chosen else None

    @property
    def algorithm(self) -> str | None:
        return self.chosen.name if self.chosen else None

    @property
    def version(self) -> str:
        """The version of the library that is taken, as it is loaded now; empty where it does not tell."""
        name = self.library
        return libraries.get(name).version() or "" if name in libraries.names() else ""

    @property
    def trial(self) -> bool:
        """True where it ran in the place of another, to find out how long it takes: with ``benchmark = "online"``."""
        return self._complete is None and self.basis.startswith("online: trying")

    @property
    def requested_precision(self) -> str:
        """The precision that the switches ask for, where they govern it; else the dtype."""
        return self.requested if self.requested in ("tf32", "bf16") else short(self.problem.dtype)

    @property
    def effective_precision(self) -> str:
        """The precision that it is computed in."""
        if self.effective not in ("", "ieee"):
            return self.effective
        return short(self.problem.dtype)

    @property
    def emulated(self) -> bool:
        """True where reduced precision is emulated by rounding the inputs."""
        return self.chosen is not None and "emulated" in self.chosen.traits

    def lines(self) -> list[tuple[str, str]]:
        """The head of the table: pairs of label and text."""
        taken = self.chosen
        if taken is None:
            head = "nothing"
        else:
            head = f"{taken.library} {taken.name}, {taken.threads} thread{'s' if taken.threads > 1 else ''}"
        rows = [("problem", self.problem.key), ("runs on", head), ("because", self.basis)]
        if self.version:
            rows.append(("version", self.version))
        precision = self.effective_precision
        if precision.removesuffix(" (emulated)") != self.requested_precision:
            precision = f"{precision} (requested {self.requested_precision})"
        rows.append(("precision", precision))
        if taken is not None:
            rows.append(("same bits", {"off": "no promise", "run": "from run to run at one thread count",
                                       "threads": "for any thread count"}[taken.level] + f" ({taken.basis})"))  # fmt: skip
        if self.problem.converted:
            rows.append(("converted", ", ".join(self.problem.converted)))
        if self.planned is not None:
            rows.append(("planned", f"in {in_words(self.planned)}"))
        rows += [("switch", f"{name} = {value}, {origin}") for name, (value, origin) in self.switches.items()]
        rows += [("fallback", text) for text in self.fallbacks]
        return rows

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The table: verdict, library, algorithm, time, reason. Algorithms of a library that one reason refuses share a row.

        Libraries that do not have the operation at all share the last one.
        """
        found: list[tuple[str, str, str, str, str]] = []
        lacking: dict[str, None] = {}
        for c in self.candidates:
            if c.lacks:
                lacking[c.library] = None
                continue
            time = "" if c.seconds is None else in_words(c.seconds)
            name = c.algorithm + (f" x{c.threads}" if c.threads and c.threads > 1 else "")
            figure = precision_figures.text_of(self.problem, c.detail)
            reason = "; ".join(filter(None, [c.reason, figure])) + (f" [{c.switch}]" if c.switch else "")
            row = (c.verdict, c.library, name, time, reason)
            if found and c.verdict == "refused" and c.seconds is None:
                last = found[-1]
                if (last[0], last[1], last[3], last[4]) == (row[0], row[1], row[3], row[4]) and name and last[2]:
                    found[-1] = (*last[:2], f"{last[2]}, {name}", *last[3:])
                    continue
            found.append(row)
        if lacking:
            others = f"{len(lacking)} other{'' if len(lacking) == 1 else 's'}"
            found.append(("refused", others, "", "", f"no {self.problem.op}: {', '.join(lacking)}"))
        return found

    def __repr__(self) -> str:
        taken = self.chosen
        runs = f"{taken.library} {taken.name} x{taken.threads}" if taken else "nothing"
        return f"<{type(self).__name__} {self.problem.key}: {runs}; print() shows why>"

    def __str__(self) -> str:
        head = self.lines()
        width = max(len(label) for label, _ in head)
        text = [f"{label:<{width}}  {value}" for label, value in head]
        rows = self.rows()
        widths = [max((len(r[i]) for r in rows), default=0) for i in range(4)]
        text.append("")
        for r in rows:
            cells = [r[i].rjust(widths[i]) if i == 3 else r[i].ljust(widths[i]) for i in range(4) if widths[i]]
            text.append("  ".join([*cells, r[4]]).rstrip())
        return "\n".join(text)

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<tr><th style='text-align:left'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in self.lines())
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows())
        titles = "".join(f"<th>{t}</th>" for t in ("verdict", "library", "algorithm", "time", "reason"))
        return f"<table>{head}</table><table><tr>{titles}</tr>{body}</table>"
