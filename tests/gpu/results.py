"""Results of the check on a GPU: collected row by row, written as one file that says all of it."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.rows import ROWS

__all__ = ["FINE", "KINDS", "Recorder", "Results", "slug"]

SCHEMA = 2
MOST_TEXT = 4000  # characters of one entry of the file: it stays below a megabyte
KINDS = ("refuted", "not_reached", "unavailable", "left_out", "recorded", "proved")
"""Outcomes of rows."""

FINE = ("proved", "recorded", "unavailable", "left_out")
"""Outcomes that do not fail the check."""


@dataclass
class Recorder:
    """The report of one test of a row.

    Attributes
    ----------
    outcome
        "" until the test has run, then "passed", "failed" or "not_reached"; "left_out" where nobody asked for it, and "unavailable"
        where something is `missing`.
    missing
        What the test needs and this machine has not, with the reason.
    """

    results: Results
    id: str
    test: str
    expected: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    recording: bool = False
    outcome: str = ""
    seconds: float = 0.0

    def expect(self, text: str) -> None:
        """Notes what the test is to show."""
        self.expected.append(str(text))

    def observe(self, what: Any, evidence: str = "") -> None:
        """Notes what was seen, and the routine, plan name or error figure that shows it."""
        self.observed.append(_text(what))
        if evidence:
            self.evidence.append(str(evidence))

    def record(self) -> None:
        """The row has no right answer: it is recorded when the test passes, not proved."""
        self.recording = True

    def timing(self, *, op: str, shape: Any, dtype: str, library: str, algorithm: str, times_us: Iterable[float], **more: Any) -> None:
        """Timings of one thing, each run begun with a cold cache."""
        times = [float(t) for t in times_us]
        self.results.timings.append({
            "op": op, "shape": _plain(shape), "dtype": str(dtype), "library": library, "algorithm": algorithm, "cold_cache": True,
            "median_us": round(statistics.median(times), 3), "min_us": round(min(times), 3), "runs": len(times), "row": self.id, **more,
        })  # fmt: skip

    def finding(self, number: int, text: str) -> None:
        """An answer to a numbered question that only a device could answer."""
        self.results.findings.setdefault(str(number), []).append(_text(text))


class Results:
    """Everything the check found.

    Attributes
    ----------
    machine, versions
        What it ran on.
    timings, findings
        As the rows gave them.
    missing
        What tests need and this machine has not -> why, and how to get it.
    wanted
        The rows that were asked for; none for all of them.
    """

    def __init__(self, known: Iterable[str] = ROWS) -> None:
        self.known = list(known)
        self.machine: dict[str, Any] = {}
        self.versions: dict[str, Any] = {}
        self.timings: list[dict[str, Any]] = []
        self.findings: dict[str, list[str]] = {}
        self.recorders: list[Recorder] = []
        self.notes: list[str] = []
        self.missing: dict[str, str] = {}
        self.wanted: set[str] = set()
        self.begun = time.monotonic()
        self.deadline_hit = False

    def recorder(self, row: str, test: str) -> Recorder:
        """A new test of a row."""
        self.recorders.append(Recorder(self, row, test))
        return self.recorders[-1]

    def row(self, name: str) -> dict[str, Any]:
        """Returns what became of one row: all its tests together."""
        mine = [each for each in self.recorders if each.id == name]
        return {
            "id": name, "outcome": self._outcome(name, mine), "seconds": round(sum(each.seconds for each in mine), 3),
            **{part: "; ".join(dict.fromkeys(t for each in mine for t in getattr(each, part)))[:MOST_TEXT]
               for part in ("expected", "observed", "evidence", "missing")},
        }  # fmt: skip

    def _outcome(self, name: str, mine: list[Recorder]) -> str:
        """One of `KINDS`. Tests that something is missing for do not count, unless they are all that there is."""
        outcomes = {each.outcome for each in mine}
        if "failed" in outcomes:
            return "refuted"
        if (self.wanted and name not in self.wanted) or outcomes == {"left_out"}:
            return "left_out"
        if outcomes == {"unavailable"}:
            return "unavailable"
        if outcomes - {"unavailable"} != {"passed"}:  # no test at all, or one that nobody ran
            return "not_reached"
        return "recorded" if any(each.recording for each in mine) else "proved"

    def outcomes(self) -> dict[str, str]:
        """Returns the outcome of every row."""
        return {name: self.row(name)["outcome"] for name in self.known}

    def complete(self) -> bool:
        """Tells whether no row was refuted or not reached, and one at least was proved or recorded."""
        found = {*self.outcomes().values()}
        return found <= {*FINE} and not found.isdisjoint(("proved", "recorded"))

    def text(self) -> str:
        """The file: keys in order, one row, one timing on a line."""
        whole = {
            "schema": SCHEMA, "machine": self.machine, "versions": self.versions, "wall_s": round(time.monotonic() - self.begun, 1),
            "deadline_hit": self.deadline_hit, "missing": self.missing, "notes": self.notes, "rows": [self.row(name) for name in self.known],
            "timings": self.timings, "findings": {number: "; ".join(dict.fromkeys(texts)) for number, texts in self.findings.items()},
        }  # fmt: skip
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {_lines(whole[key])}" for key in sorted(whole)) + "\n}\n"

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all: a row that ends the process does not take away what was found before it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(self.text(), encoding="utf-8")
        os.replace(part, path)


def slug(name: str) -> str:
    """A card's name as part of a file's name.

    >>> slug("NVIDIA H100 80GB HBM3")
    'h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-") or "unknown"


def _lines(value: Any) -> str:
    def one(item: Any) -> str:
        return json.dumps(item, sort_keys=True, ensure_ascii=False, default=str)

    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {one(item)}" for item in value) + "\n]"
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {one(value[key])}" for key in sorted(value)) + "\n}"
    return one(value)


def _text(what: Any) -> str:
    if isinstance(what, float):
        return f"{what:.4g}"
    return str(what)


def _plain(shape: Any) -> Any:
    if isinstance(shape, tuple | list):
        return [_plain(each) for each in shape]
    return int(shape) if hasattr(shape, "__index__") else str(shape)
