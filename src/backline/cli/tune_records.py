"""The records of ``backline tune``: list, export, merge and prune them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ..errors import BadValue
from . import output

__all__ = ["Filter", "merge", "print_list", "prune"]


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

        operation, _, rest = record.key.partition(" ")
        dtype = rest.partition(" ")[0].partition(":")[0]
        libraries = {key.partition(".")[0] for key in (*record.medians, *record.rejected)}
        return (
            fnmatchcase(operation, self.operation or "*")
            and (not self.library or self.library in libraries)
            and (not self.dtype or dtype == _short(self.dtype))
            and fnmatchcase(class_of(record), self.processors or "*")
            and (self.older is None or record.created < _time(self.older))
            and (self.newer is None or record.created >= _time(self.newer))
        )


def _short(dtype: str) -> str:
    import numpy as np

    from ..problems import short

    try:
        return short(np.dtype(dtype))
    except TypeError:
        return dtype


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
    output.line(f"took {taken} records from {len(files)} files, {usable} of them for this machine")


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
    rows = [(record.key, str(record.threads), why) for record, why in done.reasons]
    output.table(rows, ("problem", "threads", "because"), right=[1], title=True)
    count = len(rows)
    kept = f"; they are kept in {done.file}, and --import brings them back" if done.file else ""
    output.line(f"removed {count} record{'' if count == 1 else 's'}{kept}")
