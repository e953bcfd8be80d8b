"""Taking tuning records into the tuning file, writing them for others, and removing those that hold no more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ... import libraries
from ...native.machine import fingerprint
from . import database, record_files, record_store
from .record import TuningRecord, parse

__all__ = ["Pruned", "all_machines", "export", "import_from", "outdated", "prune"]


class Pruned(NamedTuple):
    """The records that `prune` removed.

    Attributes
    ----------
    reasons : list of (TuningRecord, str)
        Each with the reason.
    file : str
        Where they are kept; empty if there are none.
    """

    reasons: list[tuple[TuningRecord, str]]
    file: str


def export(path: str, records: Iterable[TuningRecord] | None = None) -> int:
    """Writes this machine's records, or others, to a file. Returns how many of them it took.

    A project's file keeps what it has of other machines and Problems, and takes no calibration: that is each machine's own.

    Parameters
    ----------
    path
        "tuning.toml" for a project; anything else has one line of JSON a record, keys sorted.
    records
        By default all of this machine.

    Raises
    ------
    BadValue
        The file of a project that is there cannot be read; it is left as it is.
    """
    chosen = list(record_store.every() if records is None else records)
    if not record_files.is_project_file(path):
        return record_files.write(path, chosen)
    chosen = [record for record in chosen if not record.calibrated]
    before = record_files.read(path) if os.path.lexists(path) else []
    record_files.write(path, record_files.newest(chosen, before))
    return len(chosen)


def import_from(path: str, *more: str) -> tuple[int, int]:
    """Takes the records of files into the tuning file: all that are valid, of whatever machine. Returns (valid, for this one).

    Raises
    ------
    BadValue
        A record is not valid; nothing is taken then, of any of the files.
    """
    records = record_files.merged(path, *more)
    record_store.keep_all(records)
    here = fingerprint()
    return len(records), sum(r.machine == here for r in records)


def all_machines() -> list[TuningRecord]:
    """Returns the valid records of the tuning file, of every machine, by machine and key; of this process where none is kept.

    Raises
    ------
    ValueError, OSError, sqlite3.Error
        The file is not one of ours, or damaged.
    """
    where = database.path()
    if not where or not os.path.exists(where):
        return record_store.every()
    found = []
    for text in database.texts(where):
        with contextlib.suppress(ValueError):  # told of where records are read to be used
            found.append(parse(text))
    return sorted(found, key=lambda r: (r.machine, r.key, r.threads))


def outdated(record: TuningRecord, before: str = "", others: bool = False) -> str:
    """Returns the reason why a record holds no more; an empty string if it does.

    A library that is not there now is no reason: another environment of this user may have it.

    Parameters
    ----------
    record
        Of whatever machine. Only for this one it can be told which libraries have changed.
    before
        A time as records have it; what is older holds no more. Empty for any age.
    others
        Records of other machines hold no more.
    """
    if before and record.created < before:
        return f"it is of {record.created[:10]}"
    if record.machine != fingerprint():
        return f"it is of {record.machine}" if others else ""
    for name in record.versions:  # or nothing is known of their versions
        if name in libraries.names():
            libraries.get(name).available()
    stale = record_store.stale(record)
    rest = record.without(stale)
    return "; ".join(stale.values()) if stale and not rest.medians and not rest.errors else ""


def prune(
    days: float | None = None, *, others: bool = False, chosen: Callable[[TuningRecord], bool] = lambda record: True
) -> Pruned:
    """Removes the records that hold no more from the tuning file. They are written to a file beside it first.

    Parameters
    ----------
    days
        Age from which a record holds no more; None for any.
    others
        Whether those of other machines are removed.
    chosen
        Tells whether a record may be removed at all.

    Raises
    ------
    ValueError, OSError, sqlite3.Error
        The tuning file is not one of ours, or cannot be written.
    """
    where = database.path()
    if not where or not os.path.exists(where):
        return Pruned([], "")
    before = "" if days is None else (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    reasons = [(r, why) for r in all_machines() if chosen(r) and (why := outdated(r, before, others))]
    if not reasons:
        return Pruned([], "")
    number = 1
    while os.path.lexists(kept := f"{where}.pruned{number}.json"):
        number += 1
    record_files.write(kept, [record for record, _ in reasons])
    database.remove(where, [record for record, _ in reasons])
    record_store.reload()
    return Pruned(reasons, kept)
