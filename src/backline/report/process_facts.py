"""Facts that a process tells of itself for its report: operations, choices, switches, libraries, tuning records, conflicts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _core, libraries, switches
from ..engine import trace_facts
from ..engine.tuning import record_store
from ..errors import BacklineError
from ..interop.exchange.choices import ORIGINAL
from ..interop.exchange.recorded_calls import Recorded
from ..launch.profiles import text_of
from ..libraries import in_process
from ..libraries.base import LEVELS
from ..libraries.process_report import conflicts_of, described

__all__ = ["exchanged", "gather", "operations", "set_switches"]

OTHERS = "other problems"  # in the place of one, where there are too many
ROWS, FEWER = 2000, 200  # of operations: at the end, and while the program runs
EXPLAINED = 30  # of the most time-consuming problems: what was refused for them
RECORDS = 40  # tuning records that are shown, of the most time-consuming problems


def gather(entries: Sequence[Any], *, complete: bool, refusals: bool = False) -> dict[str, Any]:
    """Returns the facts about this process as JSON takes them.

    Parameters
    ----------
    entries
        What `Recorder` added up.
    complete
        Whether the program has ended. Before that no library is asked for anything, and fewer rows are made.
    refusals
        Whether libraries that were not asked are loaded now, to say why they did not run.
    """
    memo = _core.memo_info()
    content = {
        "switches": set_switches(),
        "operations": operations(entries, ROWS if complete else FEWER),
        "plans": {"hits": memo["lookups"] - memo["misses"], "misses": memo["misses"]},
        "threads": switches.get("num_threads"),
    }
    if complete:
        mapped = in_process.loaded()
        content |= {
            "mapped": described(mapped, os.environ), "conflicts": conflicts_of(mapped), "libraries": _libraries(entries),
            "records": _records(entries),
        }  # fmt: skip
    if refusals:  # after all else: it may load libraries
        content["refusals"] = _refusals(entries)
    return content


def set_switches() -> list[dict[str, Any]]:
    """Returns the switches that something sets for the whole process, with the origin of each value."""
    rows = []
    for name in switches.declared():
        said = switches.history(name)[0]
        if said.origin.kind != "default":
            rows.append({"name": name, "text": text_of(said.value), "kind": said.origin.kind, "where": said.origin.where})
    return rows


def _most_first(entries: Iterable[Any]) -> list[Any]:
    return sorted(entries, key=lambda entry: -entry.nanoseconds)


def operations(entries: Iterable[Any], most: int = ROWS) -> list[dict[str, Any]]:
    """Returns a row for each operation, Problem, algorithm and set of switches, the most time-consuming first.

    Those beyond so many rows are added up by operation and library.
    """
    ordered = _most_first(entries)
    rows = [_row(entry) for entry in ordered[:most]]
    rest: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in ordered[most:]:
        row = _row(entry)
        other = rest.setdefault((row["op"], row["library"]), row | dict.fromkeys(("count", "seconds", "planned", "problems"), 0))
        for name in ("count", "seconds", "planned", "problems"):
            other[name] += row[name]
        other["least"] = min(other["least"], row["least"])
        other["level"] = min(other["level"], row["level"], key=LEVELS.index)
    for row in rest.values():
        row |= {"problem": OTHERS, "flops": 0.0, "gflops": None, "switches": {}}
    return [*rows, *rest.values()]


def _row(entry: Any) -> dict[str, Any]:
    choice, chosen = entry.choice, entry.choice.chosen
    seconds = entry.nanoseconds * 1e-9
    counted = trace_facts.flops(choice) if entry.problems == 1 else 0.0
    return {
        "op": entry.op, "problem": choice.problem.key if entry.problems == 1 else OTHERS,
        "problems": entry.problems, "family": choice.problem.family, "device": choice.problem.device,
        "library": choice.library or "", "algorithm": choice.algorithm or "", "threads": chosen.threads if chosen else 0,
        "count": entry.count, "seconds": seconds, "least": entry.least * 1e-9, "planned": entry.planned,
        "bytes": choice.problem.bytes, "flops": counted, "gflops": trace_facts.gflops(counted * entry.count, seconds),
        "requested": choice.requested_precision, "precision": choice.effective_precision, "unit": trace_facts.unit(choice),
        "level": chosen.level if chosen else "off", "basis": chosen.basis if chosen else "", "asked": choice.determinism,
        "trial": choice.trial, "fallbacks": list(choice.fallbacks), "switches": trace_facts.provenance_rows(entry.state),
    }  # fmt: skip


def exchanged(rows: Iterable[Recorded]) -> list[dict[str, Any]]:
    """Returns the calls of BLAS and LAPACK that NumPy and SciPy made, the most time-consuming first."""
    found = [
        {
            "package": row.package, "routine": row.symbol.routine, "sizes": str(row.call) if row.call else "",
            "library": row.package if row.library == ORIGINAL else row.library, "count": row.count, "seconds": row.seconds,
            "least": row.least, "rounded": row.rounded,
        }
        for row in rows
    ]  # fmt: skip
    return sorted(found, key=lambda row: -row["seconds"])


def _libraries(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns facts about the libraries that ran something."""
    ran = {entry.choice.library for entry in entries}
    ran |= {step.choice.library for e in entries for step in getattr(e.choice, "steps", ()) if step.choice is not None}
    rows = []
    for name in sorted(ran & set(libraries.names())):
        report = libraries.get(name).report()
        rows.append({key: report[key] for key in ("name", "title", "version", "path", "found by", "pool") if report.get(key)})
        rows[-1].setdefault("version", "")
    return rows


def _records(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns what tuning records say of the problems that ran."""
    rows, known = [], set()
    for entry in _most_first(entries):
        at = (entry.choice.problem.key, entry.choice.threads)
        record = None if at in known else record_store.find(entry.choice.problem, entry.choice.threads)
        known.add(at)
        if record is None or not record.medians:
            continue
        rows.append(
            {
                "problem": record.key, "threads": record.threads, "medians": dict(record.medians), "minima": dict(record.minima),
                "runs": dict(record.runs), "errors": {k: v if math.isfinite(v) else None for k, v in record.errors.items()},
                "rejected": dict(record.rejected), "created": record.created, "disturbed": record.disturbed,
                "chosen": entry.choice.chosen.key if entry.choice.chosen else "", "versions": dict(record.versions),
            }
        )  # fmt: skip
        if len(rows) == RECORDS:
            break
    return rows


def _refusals(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns why libraries did not run the most time-consuming problems: one row for each reason."""
    found: dict[tuple[str, str, str, str], dict[str, None]] = {}
    for entry in _most_first(entries)[:EXPLAINED]:
        try:
            candidates = entry.choice.candidates
        except (BacklineError, OSError):
            continue  # a library that cannot be asked any more
        for c in candidates:
            if c.verdict == "refused" and not c.lacks:
                found.setdefault((c.library, c.algorithm, c.reason, c.switch), {})[entry.choice.problem.key] = None
    return [
        {"library": library, "algorithm": algorithm, "reason": reason, "switch": switch, "problems": list(problems)}
        for (library, algorithm, reason, switch), problems in found.items()
    ]
