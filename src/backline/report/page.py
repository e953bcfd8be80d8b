"""The page of a report: one HTML file that needs nothing else, with the report itself in it as data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from ..engine.text_table import in_words
from ..engine.trace_facts import percent, rate
from ..launch.saved_report import MARK
from ..libraries.base import LEVELS
from ..printable import printable, size
from . import plots
from .style import CSS

__all__ = ["page"]

ROWS = 60  # of a table, at the most; the data inside the page has all
Report = dict[str, Any]


def page(report: Report) -> str:
    """Returns the page of a report.

    Parameters
    ----------
    report
        What `report_of` returned, or JSON of it.
    """
    report = _clean(report)
    sections = [(name, title, text) for name, title, make in _SECTIONS if (text := make(report))]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections)
    body = "".join(f'<section><h2 id="{name}">{escape(title)}</h2>{text}</section>' for name, title, text in sections)
    title = f"Backline report: {_name(report)}"
    # No "<" of the data may end the element that it stands in, or begin a comment.
    data = json.dumps(report, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{CSS}</style></head><body>'
        f"<header><h1>{escape(title)}</h1>{_head(report)}<nav>{links}</nav></header><main>{body}</main>"
        f"{MARK}{data}</script></body></html>\n"
    )


def _clean(value: Any) -> Any:
    """Returns a report with its texts as a page may show them: no control characters."""
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(each) for each in value]
    return printable(value) if isinstance(value, str) else value


# Parts ----------------------------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[int] = ()) -> str:
    """Returns a table; on a narrow screen each row becomes a card under its first cell. Empty without rows."""
    rows = list(rows)
    if not rows:
        return ""
    kinds = ["first" if i == 0 else "number" if i in right else "" for i in range(len(heads))]
    titles = "".join(f'<th class="{"number" if i in right else ""}" scope="col">{escape(h)}</th>' for i, h in enumerate(heads))
    lines = []
    for row in rows[:ROWS]:
        cells = zip(heads, kinds, row, strict=True)
        lines.append("".join(f'<td class="{k}" data-head="{escape(h, quote=True)}">{escape(str(c))}</td>' for h, k, c in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f'<p class="soft">and {len(rows) - ROWS} more, in the data of this page</p>' if len(rows) > ROWS else ""
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>{more}"


def _facts(pairs: Iterable[tuple[str, Any]]) -> str:
    return "<dl>" + "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(str(b))}</dd></div>" for a, b in pairs if b) + "</dl>"


def _text(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _name(report: Report) -> str:
    command = report["command"]
    return str(command[1] if command[0] == "-m" else command[0])


def _in_operations(report: Report) -> float:
    return float(sum(row["seconds"] for row in report["operations"]))


def _head(report: Report) -> str:
    inside = _in_operations(report)
    calls = sum(row["count"] for row in report["operations"])
    shares = percent(min(inside / report["seconds"], 1.0)) if report["seconds"] else ""
    facts = [
        ("ended", report["ending"] or "well"),
        ("took", in_words(report["seconds"])),
        ("in operations", f"{in_words(inside)} ({shares})" if inside else ""),
        ("calls", calls),
        ("libraries", ", ".join(row["name"] for row in report["libraries"])),
        ("threads for a call", report["threads"]),
    ]
    notes = "".join(_text(note) for note in [*report["notes"], *filter(None, [plots.available()])])
    boxed = f'<div class="notes" role="note">{notes}</div>' if notes else ""
    made = f"{report['created']}, on {report['machine']['processor']}, by Backline {report['backline']}"
    return f"<pre>{escape(shlex.join(report['command']))}</pre>{_text(made, 'soft')}{_facts(facts)}{boxed}"


def _drawn(make: Callable[..., str], *arguments: Any) -> str:
    return "" if plots.available() else make(*arguments)


def _time(report: Report) -> str:
    operations, exchanged = report["operations"], report["exchanged"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in operations:
        groups.setdefault((row["op"], row["library"]), []).append(row)
    for row in exchanged:
        at = (f"{row['package']}.{row['routine']}", row["library"])
        groups.setdefault(at, []).append({"gflops": None, "planned": 0, **row})
    if not groups:
        return _text("Nothing ran that is recorded: no operation of Backline, and no BLAS or LAPACK of NumPy and SciPy.")
    total = report["seconds"]
    sums = {at: sum(row["seconds"] for row in rows) for at, rows in groups.items()}
    rows = []
    for (op, library), mine in sorted(groups.items(), key=lambda item: -sums[item[0]]):
        counted = [row for row in mine if row["gflops"]]
        flops, spent = sum(r["flops"] * r["count"] for r in counted), sum(r["seconds"] for r in counted)
        rows.append(
            (
                op, library, sum(r["count"] for r in mine), in_words(sums[op, library]),
                percent(sums[op, library] / total if total else None), in_words(min(r["least"] for r in mine)),
                rate(flops / spent * 1e-9 if spent else None), sum(r["planned"] for r in mine),
            )
        )  # fmt: skip
    heads = ("operation", "library", "calls", "time", "of the program", "least", "GFLOP/s", "plans made")
    plot = _drawn(plots.time_by_operation, [(op, library, seconds) for (op, library), seconds in sums.items()])
    known = report["plans"]
    memo = f"{known['hits']} calls found their plan, {known['misses']} did not." if known else ""
    return plot + _table(heads, rows, right=(2, 3, 4, 5, 6, 7)) + _text(memo, "soft")


def _problems(report: Report) -> str:
    if not report["operations"]:
        return ""
    gflops = report["peak"]["gflops"] or {}
    plot = _drawn(plots.roofline, report["operations"], report["peak"]) if any(r["gflops"] for r in report["operations"]) else ""
    peaks = ", ".join(f"{unit} {rate(value)} GFLOP/s ({report['peak']['by'].get(unit, '')})" for unit, value in gflops.items())
    memory = report["peak"]["gigabytes"]
    said = f"Measured peaks of this machine on {_plural(report['peak']['threads'], 'thread')}: {peaks}"
    said += f", memory {memory:.0f} GB/s by copying." if memory else "."
    rows = [
        (
            r["problem"], f"{r['library']} {r['algorithm']} x{r['threads']}", r["count"], in_words(r["seconds"]),
            rate(r["gflops"]),
            percent(r["gflops"] / gflops[r["unit"]] if r["gflops"] and gflops.get(r["unit"]) else None), r["planned"],
        )
        for r in report["operations"]
    ]  # fmt: skip
    heads = ("problem", "runs on", "calls", "time", "GFLOP/s", "of peak", "plans made")
    said = said if peaks else "The machine's peak was not measured."
    return plot + _text(said, "soft") + _table(heads, rows, right=(2, 3, 4, 5, 6))


def _calls(report: Report) -> str:
    rows = [
        (f"{r['package']}.{r['routine']} {r['sizes']}", r["library"], r["count"], in_words(r["seconds"]), in_words(r["least"]))
        for r in report["exchanged"]
    ]
    return _table(("routine", "library", "calls", "time", "least"), rows, right=(2, 3, 4))


def _tuning(report: Report) -> str:
    records = report["records"]
    if not records:
        return _text("No problem that ran was measured on this machine: `backline tune` does, on what a script computes.")
    rows = []
    for record in records:
        for key in sorted(record["medians"], key=record["medians"].__getitem__):
            median, least = record["medians"][key], record["minima"].get(key)
            error = record["errors"].get(key)
            rows.append(
                (
                    f"{record['problem']}, {_plural(record['threads'], 'thread')}", key,
                    "runs" if key == record["chosen"] else "",
                    in_words(median), in_words(least) if least else "", f"{(median / least - 1) * 100:.0f} %" if least else "",
                    record["runs"].get(key, ""), "" if error is None else f"{error:.1e}", record["created"][:10],
                )
            )  # fmt: skip
    heads = ("problem", "algorithm", "chosen", "median", "least", "spread", "runs", "error", "measured")
    return _drawn(plots.tuning, records) + _table(heads, rows, right=(3, 4, 5, 6, 7))


def _precision(report: Report) -> str:
    found: dict[tuple[str, str, str, str], int] = {}
    for row in report["operations"]:
        at = (row["op"], row["library"], row["requested"], row["precision"])
        found[at] = found.get(at, 0) + row["count"]
    heads = ("operation", "library", "requested", "computed in", "calls")
    return _table(heads, [(*at, count) for at, count in found.items()], right=(4,))


def _determinism(report: Report) -> str:
    rows = report["operations"]
    if not rows:
        return ""
    lowest = min((row["level"] for row in rows), key=LEVELS.index)
    words = {
        "off": "Some operations promise no equal bits.", "run": "Every operation gives the same bits from run to run.",
        "threads": "Every operation gives the same bits for any number of threads.",
    }  # fmt: skip
    checked = report["determinism"]
    if checked is None:
        said = _text("Not checked: `backline report --check-determinism` runs the script again, to compare bits.", "soft")
    elif checked["failed"]:
        said = _text(f"The check failed: {checked['failed']}", "bad")
    else:
        said = _table(("checked", ""), [*checked["rows"], *checked["difference"]])
    groups: dict[tuple[str, str, str, str, str], int] = {}
    for row in rows:
        at = (row["op"], f"{row['library']} {row['algorithm']}", row["level"], row["basis"], row["asked"])
        groups[at] = groups.get(at, 0) + row["count"]
    heads = ("operation", "runs on", "same bits", "by", "asked for", "calls")
    return _text(words[lowest]) + said + _table(heads, [(*at, count) for at, count in groups.items()], right=(5,))


def _fallbacks(report: Report) -> str:
    fallbacks = dict.fromkeys((row["problem"], text) for row in report["operations"] for text in row["fallbacks"])
    refusals = [
        (f"{r['library']} {r['algorithm']}".strip(), r["reason"], r["switch"], "; ".join(r["problems"][:3]), len(r["problems"]))
        for r in report["refusals"]
    ]
    kept = _table(("problem", "preference that was not kept"), fallbacks) or _text("Every preference was kept.")
    return kept + _table(("refused", "reason", "switch", "problems", "how many"), refusals, right=(4,))


def _switches(report: Report) -> str:
    rows = [(r["name"], r["text"], f"{r['kind']} ({r['where']})") for r in report["switches"]]
    inside: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in report["operations"]:
        for name, said in row["switches"].items():
            if said["origin"].startswith(("scope", "assignment")):
                inside.setdefault((name, said["value"], said["origin"]), {})[row["op"]] = None
    scoped = [(*at, ", ".join(ops)) for at, ops in inside.items()]
    if not rows and not scoped:
        return _text("Every switch has its default.")
    of_process = _table(("switch", "value", "set by"), rows)
    return of_process + _table(("switch in a scope", "value", "set by", "operations"), scoped)


def _libraries(report: Report) -> str:
    rows = [(r["name"], r["version"], r.get("path", ""), r.get("found by", "")) for r in report["libraries"]]
    files = [
        (
            r["family"], r["version"], " ".join(filter(None, (r["owner"], r["release"]))), r["path"], r["sha256"],
            "" if r["threads"] is None else r["threads"],
        )
        for r in report["mapped"]
    ]  # fmt: skip
    return _table(("ran operations", "version", "file", "found by"), rows) + _table(
        ("in the process", "version", "brought by", "file", "SHA-256", "threads"), files, right=(5,)
    )


def _conflicts(report: Report) -> str:
    rows = [(r["kind"], r["severity"], r["meaning"], r["remedy"], ", ".join(r["files"])) for r in report["conflicts"]]
    return _table(("conflict", "severity", "means", "remedy", "files"), rows) or _text("None.")


def _machine(report: Report) -> str:
    here = report["machine"]
    variables = ", ".join(f"{name}={value}" for name, value in report["variables"].items())
    return _facts(
        [
            ("processor", f"{here['processor']} ({here['capability']})"), ("cores", here["cores"]),
            ("processors usable", here["usable"]), ("quota", f"{here['quota']:g}" if here["quota"] else ""),
            ("caches", f"L2 {size(here['l2'])}, L3 {size(here['l3'])}"), ("memory", size(here["memory"])),
            ("system", f"{here['system']}, {here['libc']}"), ("Python", f"{report['python']}, {report['executable']}"),
            ("NumPy", report["numpy"]), ("known as", report["fingerprint"]), ("variables", variables),
            ("untuned choices", f"ranking of {report['ranking'].get('shipped for', '')}"),
        ]
    )  # fmt: skip


def _again(report: Report) -> str:
    command = shlex.join(report["command"])
    lines = f"cd {shlex.quote(report['folder'])}\nbackline run --from REPORT {command}\nbackline report {command}"
    said = (
        "REPORT is this page or the file of --json. `backline run --from` sets the switches above and says what differs here: "
        "versions, the machine, libraries that are missing, numbers of threads."
    )
    return f"<pre>{escape(lines)}</pre>{_text(said)}"


_SECTIONS: tuple[tuple[str, str, Callable[[Report], str]], ...] = (
    ("where", "Where the time went", _time),
    ("problems", "Operations and the machine's limits", _problems),
    ("calls", "Calls of NumPy and SciPy", _calls),
    ("tuning-records", "Tuning", _tuning),
    ("precision", "Precision", _precision),
    ("determinism", "Determinism", _determinism),
    ("fallbacks", "Fallbacks and refusals", _fallbacks),
    ("switches", "Switches", _switches),
    ("conflicts", "Conflicts", _conflicts),
    ("libraries", "Libraries", _libraries),
    ("machine", "Machine", _machine),
    ("again", "Run it again", _again),
)
