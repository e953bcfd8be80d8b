"""Traces as tables, as JSON, and in Chrome's trace event format."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _version
from ..libraries.base import LEVELS
from ..native.machine import fingerprint
from ..native.whole_file import write_whole
from . import machine_peak, trace_facts
from .text_table import TextTable, in_words
from .trace_facts import percent, rate

__all__ = ["summary", "table", "to_chrome", "to_json", "written"]

Events = Sequence[Any]


def table(events: Events, total: int = 0) -> TextTable:
    """Returns a row for each event; they may be the first of more."""
    rows = []
    for event in events:
        _, how, key = event._cells()
        plan = "made" if event.planned else ""
        rate_of = (in_words(event.seconds), rate(event.gflops), percent(event.of_peak))
        rows.append((*rate_of, how, event.precision, event.determinism, plan, key))
    heads = ("time", "GFLOP/s", "of peak", "runs on", "precision", "same bits", "plan", "problem")
    return TextTable(heads, rows, right=(0, 1, 2), empty="no events", total=total)


@dataclass(slots=True)
class _Group:
    """Events of one operation and library, added up."""

    calls: int = 0
    seconds: float = 0.0
    least: float = float("inf")
    planned: int = 0
    flops: float = 0.0
    counted: float = 0.0  # seconds of those whose operations are counted
    at_peak: float = 0.0  # seconds that these would take at the machine's peak
    peaked: float = 0.0  # seconds of those whose peak is known
    precisions: dict[str, None] = field(default_factory=dict)
    level: str = LEVELS[-1]

    def add(self, event: Any) -> None:
        calls = event.choice.problem.parameter("calls", 1) if not event.ended else 1
        self.calls += calls
        self.seconds += event.seconds
        self.least = min(self.least, event.seconds / max(calls, 1))
        self.planned += event.planned
        self.precisions[event.precision] = None
        self.level = min(self.level, event.determinism, key=LEVELS.index)
        if event.flops > 0:
            self.flops += event.flops
            self.counted += event.seconds
            if peak := trace_facts.peak_of(event.choice):
                self.at_peak += event.flops / peak * 1e-9
                self.peaked += event.seconds


def summary(events: Events) -> TextTable:
    """Returns a row for each operation and library, the most time-consuming first."""
    groups: dict[tuple[str, str], _Group] = {}
    for event in events:
        groups.setdefault((event.op, event.library or ""), _Group()).add(event)
    total = sum(group.seconds for group in groups.values())
    rows = [
        (
            op, library, str(g.calls), in_words(g.seconds), percent(g.seconds / total if total else None), in_words(g.least),
            rate(trace_facts.gflops(g.flops, g.counted)), percent(g.at_peak / g.peaked if g.peaked else None),
            ", ".join(g.precisions), g.level, str(g.planned),
        )
        for (op, library), g in sorted(groups.items(), key=lambda item: -item[1].seconds)
    ]  # fmt: skip
    heads = (
        "operation", "library", "calls", "time", "share", "least", "GFLOP/s", "of peak", "precision", "same bits", "plans made",
    )  # fmt: skip
    return TextTable(heads, rows, right=(2, 3, 4, 5, 6, 7, 10), empty="no events")


def to_json(events: Events) -> dict[str, Any]:
    """Returns the events for JSON, with what makes them comparable."""
    return {
        "kind": "backline trace",
        "schema": 1,
        "backline": _version.__version__,
        "machine": fingerprint(),
        "process": os.getpid(),
        "peak": machine_peak.known().as_dict(),
        "events": [event.as_dict() for event in events],
    }


def to_chrome(events: Events) -> dict[str, Any]:
    """Returns the events in Chrome's trace event format: complete events, in microseconds."""
    process = os.getpid()
    timed = [event for event in events if event.ended]
    threads = {thread: number for number, thread in enumerate(dict.fromkeys(event.thread for event in timed), 1)}
    rows: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": f"thread {thread}"}}
        for thread, number in threads.items()
    ]
    for event in timed:
        facts = event.as_dict()
        rows.append(
            {
                "ph": "X", "name": event.op, "cat": event.library or "none", "pid": process, "tid": threads[event.thread],
                "ts": event.ended / 1e3 - event.seconds * 1e6, "dur": event.seconds * 1e6,
                "args": {name: facts[name] for name in facts if name not in ("op", "ended", "thread", "seconds")},
            }
        )  # fmt: skip
    return {"traceEvents": rows, "displayTimeUnit": "ns", "otherData": {"events without a time": len(events) - len(timed)}}


def written(content: dict[str, Any], file: str) -> str:
    """Returns content as JSON, and writes it to a file if one is named."""
    text = json.dumps(content, allow_nan=False)
    if file:
        write_whole(file, text.encode())
    return text
