"""Reports of ``backline report`` as ``backline run --from`` reads them: the switches of a run, and what differs here.

A report is data from anywhere: it is checked before anything of it is used, and nothing of it is run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _version, switches
from ..errors import BadValue
from .counts import Note

__all__ = ["KIND", "MARK", "SCHEMA", "THREADS", "SavedReport", "assignments", "differences", "parse", "read"]

KIND = "backline report"
SCHEMA = 1
MAX_FILE = 64 << 20
MAX_ROWS = 10_000
MARK = '<script type="application/json" id="backline-report">'  # what stands before the report inside of a page

#: Variables that say how many threads libraries start.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "GOTO_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class SavedReport:
    """The part of a report that tells how to run under the same conditions.

    Attributes
    ----------
    backline, python, numpy
        Versions.
    machine
        Fingerprint of the machine.
    switches
        Switches that differed from their defaults for the whole process: name to value, written as in an environment variable.
    libraries
        Libraries that ran something: name to version.
    variables
        Those of `THREADS` that were set.
    """

    backline: str
    python: str
    numpy: str
    machine: str
    switches: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def read(path: str) -> SavedReport:
    """Returns what the report in a file says: the JSON that ``--json`` wrote, or the page of ``-o``.

    Raises
    ------
    BadValue
        The file cannot be read, or is not such a report; the message names the field.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise BadValue(
            f"--from {path!r} cannot be read", cause=error.strerror or str(error),
            remedy="a file of `backline report --json FILE`",
        ) from None  # fmt: skip
    if len(data) > MAX_FILE:
        raise _refusal(f"it has more than {MAX_FILE >> 20} MiB", path)
    try:
        return parse(data.decode())
    except UnicodeDecodeError as error:
        raise _refusal(f"it is not UTF-8 (byte {error.start})", path) from None
    except BadValue as error:
        raise _refusal(error.cause, path) from None


def parse(text: str) -> SavedReport:
    """Returns what the text of a report says.

    Raises
    ------
    BadValue
        It is not a report.

    Examples
    --------
    >>> try:
    ...     parse('{"kind": "backline report", "schema": 99}')
    ... except BadValue as error:
    ...     print(error.cause)
    schema is 99, not 1
    """
    if text.lstrip()[:9].lower() == "<!doctype":
        _, mark, rest = text.partition(MARK)
        if not mark:
            raise _refusal("the page contains no report")
        text = rest.partition("</script>")[0]
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"it is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise _refusal(f"it is a JSON {type(content).__name__}, not an object")
    for name, (legal, wanted) in _FIELDS.items():
        if name not in content:
            raise _refusal(f"{name} is missing")
        if not legal(content[name]):
            raise _refusal(f"{name} is {_short(content[name])}, not {wanted}")
    rows: dict[str, dict[str, str]] = {}
    for name, (key, value) in _ROWS.items():
        rows[name] = _rows(content.get(name), name, key, value)
    variables = content.get("variables")
    if not isinstance(variables, dict) or not _is_table(variables):
        raise _refusal(f"variables is {_short(variables)}, not names with values")
    return SavedReport(
        content["backline"], content["python"], content["numpy"], content["fingerprint"], rows["switches"], rows["libraries"],
        {name: value for name, value in variables.items() if name in THREADS},
    )  # fmt: skip


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,99}")


def _line(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 1000 and value.isprintable()


def _is_table(value: dict[Any, Any]) -> bool:
    return len(value) <= MAX_ROWS and all(_line(k) and _line(v) for k, v in value.items())


def _is_machine(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(fact, (str, int, float, type(None))) for fact in value.values())


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda v: v == KIND, f"{KIND!r}"),
    "schema": (lambda v: type(v) is int and v == SCHEMA, f"{SCHEMA}"),
    "backline": (_line, "a version"),
    "python": (_line, "a version"),
    "numpy": (_line, "a version"),
    "fingerprint": (_line, "the name of a machine"),
    "machine": (_is_machine, "facts by name"),
    "threads": (lambda v: type(v) is int and v >= 0, "a number of threads"),  # 0 of a program that told none
    "command": (lambda v: isinstance(v, list) and all(isinstance(word, str) for word in v), "the words of a command"),
    "status": (lambda v: type(v) is int, "an exit status"),
}
_ROWS = {"switches": ("name", "text"), "libraries": ("name", "version")}


def _rows(rows: Any, name: str, key: str, value: str) -> dict[str, str]:
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise _refusal(f"{name} is {_short(rows)}, not a list")
    found: dict[str, str] = {}
    for row in rows:
        if not (isinstance(row, dict) and isinstance(row.get(key), str) and _NAME.fullmatch(row[key]) and _line(row.get(value))):
            raise _refusal(f"{name} has {_short(row)}, which has no {key} and {value}")
        if row[key] in found:
            raise _refusal(f"{name} has {row[key]} twice")
        found[row[key]] = row[value]
    return found


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refusal(cause: str, path: str = "") -> BadValue:
    what = f"--from {path!r} is not a report" if path else "this is not a report"
    return BadValue(what, cause=cause, remedy="a file that `backline report --json FILE` or `backline report -o FILE` wrote")


def assignments(saved: SavedReport) -> tuple[list[str], list[Note]]:
    """Returns the switches of a report as ``--set`` takes them, and a note for each that is not known here."""
    known, notes = [], []
    for name, text in saved.switches.items():
        if name in switches.all_switches():
            known.append(f"{name}={text}")
        else:
            notes.append(Note("warning", f"the report sets {name}={text}: there is no such switch here, it is left out"))
    return known, notes


def differences(saved: SavedReport, environ: Mapping[str, str] | None = None) -> list[Note]:
    """Returns what is different here: versions, machine, libraries. Those that the report names are loaded to be asked."""
    import platform

    import numpy

    from .. import libraries
    from ..native.machine import fingerprint

    environ = os.environ if environ is None else environ
    here = {
        "backline": _version.__version__, "Python": platform.python_version(), "NumPy": numpy.__version__,
        "machine": fingerprint(),
    }  # fmt: skip
    there = dict(zip(here, (saved.backline, saved.python, saved.numpy, saved.machine), strict=True))
    found = [f"{name} is {here[name]}, it was {there[name]}" for name in here if here[name] != there[name]]
    for name, version in saved.libraries.items():
        if name not in libraries.names():
            found.append(f"{name} {version}: no such library is known here")
            continue
        library = libraries.get(name)
        if not library.available():
            found.append(f"{name} {version} is missing: {library.reason()}")
        elif (library.version() or "") != version:
            found.append(f"{name} is {library.version()}, it was {version}")
    for name in THREADS:
        now, then = environ.get(name, ""), saved.variables.get(name, "")
        if now != then:
            found.append(f"{name} is {now or 'not set'}, it was {then or 'not set'}")
    return [Note("warning", f"differs from the report: {text}") for text in found]
