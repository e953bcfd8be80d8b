"""The tuning records that a project ships: a file that the project's `pyproject.toml` names.

    [tool.backline]
    tuning = "tuning.toml"

It is looked for from the folder of the program that runs, upwards, and never from the working directory. A record holds where the
class of the processor is the same, and for libraries in the version that was measured.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from ...errors import BacklineError
from ...native.machine import fingerprint
from ...switches import toml
from . import machine_class, record_files
from .record import TuningRecord

__all__ = ["NOTHING", "VARIABLE", "ProjectRecords", "load", "location"]

VARIABLE = "BACKLINE_PROJECT_TUNING"
MAX_CONFIGURATION = 1 << 20  # bytes
MOST_FOLDERS = 64

Key = tuple[str, int]


class ProjectRecords(NamedTuple):
    """Content of a project's file.

    Attributes
    ----------
    path : str
        The file; empty if there is none.
    records : dict
        Those of this class of processors, by key and threads.
    other_classes : dict
        Those of other classes, which do not hold: key and threads -> the classes.
    problem : str
        Why nothing of the file is used; empty if it is.
    """

    path: str
    records: dict[Key, TuningRecord]
    other_classes: dict[Key, str]
    problem: str = ""


NOTHING = ProjectRecords("", {}, {})


def location(program: str | None = None) -> tuple[str, str]:
    """Returns the path of the project's tuning file and why it cannot be used; empty texts where there is none, or nothing wrong.

    Parameters
    ----------
    program
        Path of the program; by default the one that runs. What is installed belongs to no project, and neither does an
        interactive session, where the variable BACKLINE_PROJECT_TUNING names the file.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        return (os.path.abspath(named), "") if named.strip() else ("", "")
    if program is None:
        program = getattr(sys.modules.get("__main__"), "__file__", None)
    if not program:
        return "", ""
    folder = os.path.dirname(os.path.realpath(program))
    if _installed(folder):
        return "", ""
    for _ in range(MOST_FOLDERS):
        for name, tables in (("backline.toml", ()), ("pyproject.toml", ("tool", "backline"))):
            value = _named_in(os.path.join(folder, name), tables)
            if isinstance(value, str) and value.strip():
                return os.path.join(folder, value), ""
            if value is not None:
                return os.path.join(folder, name), f"tuning is {str(value)[:40]!r}, not the path of a file"
        above = os.path.dirname(folder)
        if above == folder or os.path.exists(os.path.join(folder, ".git")):
            break
        folder = above
    return "", ""


def _installed(folder: str) -> bool:
    """Tells whether a folder is of the interpreter or of installed packages."""
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    own = [os.path.join(prefix, part) for prefix in prefixes for part in ("bin", "lib", "lib64", "local", "Scripts", "Lib")]
    return any(folder == each or folder.startswith(each + os.sep) for each in own) or "site-packages" in folder.split(os.sep)


def _named_in(path: str, tables: tuple[str, ...]) -> Any:
    """Returns what a configuration file has under `tuning`; None where it has nothing, or cannot be read as TOML.

    What is wrong with the file as a whole is the business of the switches, which read it, too.
    """
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_CONFIGURATION + 1)
        if len(data) > MAX_CONFIGURATION or b"tuning" not in data:
            return None
        content: Any = toml.loads(data.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None
    for name in (*tables, "tuning"):
        content = content.get(name) if isinstance(content, dict) else None
    return content


def load() -> ProjectRecords:
    """Returns the records of the project whose program runs; what is wrong with its file is told, and nothing is raised."""
    path, problem = location()
    if not path:
        return NOTHING
    if problem:
        return NOTHING._replace(path=path, problem=problem)
    try:
        records = record_files.read(path)
    except (BacklineError, OSError) as error:
        text = " ".join(str(error).split())
        return NOTHING._replace(path=path, problem=text)
    return of_class(path, records)


def of_class(path: str, records: list[TuningRecord]) -> ProjectRecords:
    """Sorts records by what holds here; of several machines of this class, this one comes first, then the newest record."""
    here, own = str(machine_class.here()), fingerprint()
    chosen: dict[Key, TuningRecord] = {}
    others: dict[Key, set[str]] = {}
    for record in sorted(records, key=lambda r: (r.machine == own, r.created)):
        at = record.key, record.threads
        if record.processors == here:
            chosen[at] = record
        else:
            others.setdefault(at, set()).add(record.processors or "an unknown class")
    return ProjectRecords(path, chosen, {at: ", ".join(sorted(names)) for at, names in others.items() if at not in chosen})
