"""The records of ``backline tune``: list, export, merge and prune them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import typer

from ..errors import BadValue
from . import output

__all__ = ["Filter", "checked_days", "matching", "merge", "print_list", "prune"]

MOST_DAYS = 36_500  # a hundred years


class Filter(NamedTuple):
    """The records that are meant; an empty text or None stands for all.

    Attributes
    ----------
    operation, library, dtype
        Operation of the Problem, as "matmul" or "linalg.*"; a library that was timed; short or long name of the dtype.
    processors
        Class of the machine, as "intel-amx-2c".
    older, newer
        Days: what is older, and what is newer.
    """

    operation: str = ""
    library: str = ""
    dtype: str = ""
    processors: str = ""
    older: float | None = None
    newer: float | None = None

    def accepts(self, record: Any) -> bool:
        """Tells whether a record is meant."""
        from fnmatch import fnmatchcase

        operation = record.key.partition(" ")[0]
        return (
            fnmatchcase(operation, self.operation or "*")
            and (not self.library or self.library in _libraries_of(record))
            and (not self.dtype or _dtype_of(record) == _short(self.dtype))
            and fnmatchcase(class_of(record), self.processors or "*")
            and (self.older is None or record.created < _time(self.older))
            and (self.newer is None or record.created >= _time(self.newer))
        )


def _libraries_of(record: Any) -> set[str]:
    return {key.partition(".")[0] for key in (*record.medians, *record.rejected)}


def _dtype_of(record: Any) -> str:
    return str(record.key.partition(" ")[2].partition(" ")[0].partition(":")[0])


def _short(dtype: str) -> str:
    import numpy as np

    from ..problems import SHORT, short

    if dtype in SHORT.values():  # before NumPy is asked, to which i8 is an integer of 8 bytes
        return dtype
    try:
        return short(np.dtype(dtype))
    except TypeError:
        return dtype


def checked_days(days: float | None) -> float | None:
    """Returns a number of days, as an option has it, or refuses it: negative ones would mean every record, of the future too."""
    if days is not None and not 0 <= days <= MOST_DAYS:
        raise typer.BadParameter(f"{days:g} is no number of days that have passed: from 0 to {MOST_DAYS}")
    return days


def _time(days: float) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def class_of(record: Any) -> str:
    """Returns the class of a record's machine; empty where it is not known."""
    from ..engine.tuning import machine_class
    from ..native.machine import fingerprint

    return record.processors or (str(machine_class.here()) if record.machine == fingerprint() else "")


def records(file: str, everywhere: bool) -> list[Any]:
    """Returns the records of a file, or of the tuning file: of this machine, or of all."""
    from ..engine.tuning import record_exchange, record_files, record_store

    if file:
        return record_files.read(file)
    return record_exchange.all_machines() if everywhere else record_store.every()


def matching(chosen: Filter, file: str, everywhere: bool) -> list[Any]:
    """Returns the records that are meant, of a file or of the tuning file."""
    found = records(file, everywhere)
    _check_names(chosen, found)
    return [record for record in found if chosen.accepts(record)]


def _check_names(chosen: Filter, found: Sequence[Any]) -> None:
    """Refuses a library or a dtype that there is none of; records of other machines may have libraries that are unknown here."""
    from .. import libraries
    from ..problems import SHORT

    wanted = _short(chosen.dtype)
    if chosen.dtype and wanted not in SHORT.values() and not any(wanted == _dtype_of(record) for record in found):
        raise BadValue(f"--dtype {chosen.dtype!r} is no dtype of a record", remedy=f"one of: {', '.join(SHORT.values())}")
    if chosen.library and not any(chosen.library in _libraries_of(record) for record in found):
        libraries.get(chosen.library)  # or an error that lists the names


def print_list(found: Sequence[Any], json: bool, machines: bool) -> None:
    """Prints records, with their machines where there may be several."""
    if json:
        from json import loads

        output.as_json([loads(r.line()) for r in found])
        return
    rows = []
    for r in found:
        notes = [r.created[:10], "on a busy machine" if r.disturbed else "", "calibration" if r.calibrated else ""]
        cells = (r.key, str(r.threads), r.winner, output.seconds(r.seconds(r.winner)), str(len(r.medians)))
        rows.append((*cells, ", ".join(filter(None, notes)), *([class_of(r) or "unknown", r.machine] if machines else [])))
    heads = ("problem", "threads", "winner", "time", "measured", "of", *(["class", "machine"] if machines else []))
    output.table(rows, heads, right=[1, 3, 4], title=True)
    if not rows:
        output.line("there are no records that match")


def merge(files: Sequence[str], target: str) -> None:
    """Merges files of records into one, or into the tuning file."""
    from ..engine.tuning import record_exchange, record_files

    strange = next((file for file in files if file.startswith("-")), "")
    if not files or strange:
        raise BadValue(
            f"--merge {strange}: files are wanted" if strange else "--merge names no files",
            remedy="backline tune --export ALL.toml --merge ONE.toml OTHER.toml; options stand before the files",
        )
    if target:
        # What the target holds already must not be lost.
        before = [target] if os.path.lexists(target) and target not in files else []
        merged = record_files.merged(*files, *before)
        count = record_files.write(target, merged)
        machines = sorted({class_of(record) or "unknown class" for record in merged})
        output.line(f"wrote {count} records of {len({r.machine for r in merged})} machines to {target}: {', '.join(machines)}")
        return
    taken, usable = record_exchange.import_from(*files)
    output.line(f"took {taken} records from {len(files)} file{'' if len(files) == 1 else 's'}, {usable} of them for this machine")


def prune(days: float | None, others: bool, chosen: Filter) -> None:
    """Removes the records that hold no more, and says which and why."""
    import sqlite3

    from ..engine.tuning import record_exchange, record_store

    try:
        done = record_exchange.prune(days, others=others, chosen=chosen.accepts)
    except (sqlite3.Error, ValueError) as error:
        raise BadValue(
            f"the tuning file {record_store.path()} is not one that can be pruned", cause=str(error),
            remedy="it is left as it is; backline tune --reset moves it aside",
        ) from None  # fmt: skip
    if not done.reasons:
        _check_names(chosen, ())
    rows = [(record.key, str(record.threads), why) for record, why in done.reasons]
    output.table(rows, ("problem", "threads", "because"), right=[1], title=True)
    count = len(rows)
    kept = f"; they are kept in {done.file}, and --import brings them back" if done.file else ""
    output.line(f"removed {count} record{'' if count == 1 else 's'}{kept}")
