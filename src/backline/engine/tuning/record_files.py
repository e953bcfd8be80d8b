"""Files that carry tuning records from one machine or project to another: JSON lines, and TOML for projects.

A TOML file names each machine with the class of its processor, and has its records as lines of JSON, so that a project's
history shows which record changed. Both are data: each record is checked, and a file with a wrong one is refused as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ...errors import BadValue
from ...native.machine import fingerprint
from ...native.whole_file import write_whole
from ...switches import toml
from . import machine_class
from .database import MAX_FILE, MAX_ROWS
from .record import TuningRecord, parse

__all__ = ["is_project_file", "merged", "newest", "read", "write"]

FORMAT = 1
MAX_PROJECT = 16 << 20  # bytes: a process that finds a project reads its file
REMEDY = "`backline tune --export FILE` writes such files; nothing of this one was taken"


def is_project_file(path: str) -> bool:
    """Tells whether a file is in the format of projects, by its name.

    >>> is_project_file("tuning.toml"), is_project_file("records.json")
    (True, False)
    """
    return path.lower().endswith(".toml")


def read(path: str) -> list[TuningRecord]:
    """Returns the records of a file, of whatever machines.

    Parameters
    ----------
    path
        A file that `write` wrote, of either format.

    Raises
    ------
    BadValue
        It is missing or cannot be read, it is no such file, it is too large, or a record in it is not valid.
    """
    project = is_project_file(path)
    content = _content(path, MAX_PROJECT if project else MAX_FILE)
    records: list[TuningRecord] = []
    for where, text, processors in _lines_of_project(path, content) if project else _lines(content):
        try:
            record = parse(text)
        except ValueError as error:
            raise BadValue(f"{path}, {where} is not a tuning record", cause=str(error), remedy=REMEDY) from None
        if len(records) >= MAX_ROWS:
            raise BadValue(f"{path} has more than {MAX_ROWS} records", remedy=REMEDY)
        records.append(record if record.processors or not processors else replace(record, processors=processors))
    return records


def _content(path: str, most: int) -> bytes:
    # What is no plain file may never end, or wait for somebody to write to it.
    if os.path.exists(path) and not os.path.isfile(path):
        raise BadValue(f"{path} is not a file", remedy=REMEDY)
    try:
        with open(path, "rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        raise BadValue(f"the records of {path} cannot be read", cause=_said(error), remedy="name a file that is there") from None
    if len(content) > most:
        raise BadValue(f"{path} has more than {most >> 20} MB", remedy=REMEDY)
    return content


def _said(error: OSError) -> str:
    """Returns what the system says, without the name of a file: that may be a temporary one."""
    return (error.strerror or type(error).__name__).lower()


def _lines(content: bytes) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if line.strip():
            yield f"line {number}", line, ""


def _lines_of_project(path: str, content: bytes) -> Iterator[tuple[str, str, str]]:
    """Yields where each record stands, its text, and the class of its machine."""

    def wrong(what: str, cause: str = "") -> BadValue:
        return BadValue(f"{path} is no file of tuning records: {what}", cause=cause, remedy=REMEDY)

    try:
        table: Any = toml.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise wrong("it is not TOML", str(error)[:200]) from None
    if table.get("format") != FORMAT:
        raise wrong(f"format is {str(table.get('format'))[:40]}, not {FORMAT}")
    machines = table.get("machine", [])
    if table.keys() - {"format", "machine"} or not isinstance(machines, list):
        raise wrong("it has other content than `format` and tables `[[machine]]`")
    for machine in machines:
        if not isinstance(machine, dict) or machine.keys() != {"name", "class", "records"}:
            raise wrong("a machine has `name`, `class` and `records`, and nothing else")
        name, processors, texts = machine["name"], machine["class"], machine["records"]
        if not isinstance(name, str) or not isinstance(processors, str) or not isinstance(texts, list):
            raise wrong("`name` and `class` of a machine are texts, `records` is a list of texts")
        for number, text in enumerate(texts, 1):
            yield f"record {number} of machine {name[:80]!r}", text, processors


def write(path: str, records: Iterable[TuningRecord]) -> int:
    """Writes records to a file, whole or not at all, and returns how many. The end of its name says which format.

    Parameters
    ----------
    path
        "tuning.toml" for a project; anything else has one line of JSON a record.
    records
        Of whatever machines.

    Raises
    ------
    BadValue
        It cannot be written.
    """
    ordered = sorted(records, key=lambda r: (r.machine, r.key, r.threads))
    text = _project_text(ordered) if is_project_file(path) else "".join(f"{r.line()}\n" for r in ordered)
    try:
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise BadValue(
            f"the records cannot be written to {path}", cause=_said(error), remedy="name a file in a folder that allows it"
        ) from None
    return len(ordered)


def _project_text(records: list[TuningRecord]) -> str:
    import json

    parts = [
        "# Tuning records of Backline: measured times, by machine. They are data, and checked when they are read.\n"
        "# `backline tune --list --file FILE` shows them, `backline tune --export FILE` adds this machine's.\n"
        f"format = {FORMAT}\n"
    ]

    def quoted(line: str) -> str:
        # A literal string of TOML, in which nothing is escaped; JSON has another way to write the quote.
        return line.replace("'", "\\u0027")

    machines: dict[tuple[str, str], list[TuningRecord]] = {}
    for record in records:
        machines.setdefault((record.machine, _class_of(record)), []).append(record)
    for (name, processors), listed in machines.items():
        lines = "".join(f"    '{quoted(record.line())}',\n" for record in listed)
        parts.append(f"\n[[machine]]\nname = {json.dumps(name)}\nclass = {json.dumps(processors)}\nrecords = [\n{lines}]\n")
    return "".join(parts)


def _class_of(record: TuningRecord) -> str:
    """Returns the class of a record's machine; records of this one that do not tell it have the class of this processor."""
    return record.processors or (str(machine_class.here()) if record.machine == fingerprint() else "")


def newest(*lists: Iterable[TuningRecord]) -> list[TuningRecord]:
    """Returns the records of several lists: of one Problem, number of threads and machine the newest, of equals the first."""
    found: dict[tuple[str, str, int], TuningRecord] = {}
    for record in (record for records in lists for record in records):
        at = record.machine, record.key, record.threads
        if at not in found or record.created > found[at].created:
            found[at] = record
    return list(found.values())


def merged(*files: str) -> list[TuningRecord]:
    """Returns the records of several files, of whatever machines: of one Problem on one machine the newest.

    Raises
    ------
    BadValue
        As `read`, before anything is merged.
    """
    return newest(*[read(file) for file in files])
