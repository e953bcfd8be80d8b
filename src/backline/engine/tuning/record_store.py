"""Tuning records: measured times of the algorithms for one Problem on one machine, kept in this process and in the tuning file.

What is read is data and is checked; a file that is damaged or not ours is named in one warning, ignored, and left as it is.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ... import _core, libraries, switches
from ...libraries.base import Algorithm
from ...native.machine import fingerprint
from ...problems import Place, Problem
from ...switches.provenance import steps_out
from .. import plan_caches
from . import database, project_records
from .database import path
from .record import SCHEMA, TuningRecord, parse

__all__ = [
    "SCHEMA", "TuningRecord", "arrange", "count", "empty", "every", "filed", "find", "find_key", "generation", "keep",
    "keep_all", "measured", "path", "project", "reload", "report", "reset", "sooner", "stale", "still_valid", "tried", "winner",
]  # fmt: skip

# A second thread pool beside the one in use costs more than it shows when measured alone: while one pool's threads spin
# waiting for work, the other's want the cores. An algorithm on another pool must be this much faster to be taken.
SECOND_POOL = 1.3
# What the ranking puts first stays unless another takes less than this part of its time: noise must not decide.
MARGIN = 0.97
# On a busy machine there is more of it.
BUSY_MARGIN = 0.8

Key = tuple[str, int]


class _Store:
    """The contents of the tuning file, as read by this process."""

    def __init__(self) -> None:
        self.records: dict[Key, TuningRecord] | None = None
        self.unusable = ""  # why the file is left alone
        self.dropped: dict[str, str] = {}  # what was left out of the records, and why
        self.other_machines = 0
        # By identity of the record and libraries left out; with the record, so that no other one takes its identity.
        self.trimmed: dict[tuple[int, tuple[str, ...]], tuple[TuningRecord, TuningRecord]] = {}
        self.tried: dict[Key, set[str]] = {}  # algorithms that this process has measured, or tried to
        self.places: dict[tuple[str, str], list[tuple[Place, TuningRecord]]] | None = None
        self.project = project_records.NOTHING


_store = _Store()
_lock = threading.RLock()
_generation = 0


def generation() -> int:
    """Returns a number that changes whenever the records do."""
    return _generation


def _renew() -> None:
    global _generation
    _generation += 1


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


# Looking up -----------------------------------------------------------------------------------------------------------


def empty() -> bool:
    """Tells whether there is no record at all, of this machine or the project: then none need be looked for."""
    return not (_load() if _store.records is None else _store.records) and not _store.project.records


def find(problem: Problem, threads: int) -> TuningRecord | None:
    """The record that holds for a Problem on that many threads, without the times of libraries that have changed since.

    Parameters
    ----------
    problem
        What is asked; its key counts.
    threads
        Threads allowed.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems import operand
    >>> find(Problem("no such operation", (operand("a", np.zeros(3)),)), 1) is None
    True
    """
    return find_key(problem.key, threads)


def find_key(key: str, threads: int) -> TuningRecord | None:
    """The same for what a record is filed under."""
    record = filed(key, threads)
    if record is None:
        return None
    for name, why in stale(record).items():
        _store.dropped[f"{record.key}, {name}"] = why
    return still_valid(record)


def filed(key: str, threads: int) -> TuningRecord | None:
    """Returns the record of this machine as it is filed, whatever has changed since."""
    return (_store.records if _store.records is not None else _load()).get((key, threads))


def still_valid(record: TuningRecord) -> TuningRecord | None:
    """Returns a record without what it says of libraries that have changed since; None if nothing is left of it."""
    gone = tuple(stale(record))
    if not gone:
        return record
    at = id(record), gone
    if at not in _store.trimmed:
        _store.trimmed[at] = record, record.without(gone)
    trimmed = _store.trimmed[at][1]
    return trimmed if trimmed.medians or trimmed.errors else None


def stale(record: TuningRecord) -> dict[str, str]:
    """Returns the libraries that are not what they were when a record was made, each with the versions."""
    found = {}
    for name in record.versions:
        if _changed(name, record):
            known = name in libraries.names()
            now = f"{libraries.get(name).version()} is here now" if known else "no such library is known here"
            found[name] = f"measured with {name} {record.versions[name]}, {now}"
    return found


def project() -> project_records.ProjectRecords:
    """Returns the records that the project ships whose program runs."""
    if _store.records is None:
        _load()
    return _store.project


def _changed(name: str, record: TuningRecord) -> bool:
    if name not in libraries.names():
        return True
    snapshot: Any = switches.current()
    only = snapshot["only"]
    if not snapshot.get(f"{name}.enabled", True) or (only and name not in only):
        return False  # it is no candidate now, and must not be loaded to be asked
    library = libraries.get(name)
    return library.loaded() and library.available() and (library.version() or "") != record.versions[name]


def arrange(order: list[Algorithm], record: TuningRecord, home: str) -> list[Algorithm]:
    """Algorithms in the order in which a record would have them tried.

    Parameters
    ----------
    order
        As the ranking has them; its first stays first unless another is clearly faster.
    record
        What was measured. A `winner` in it that is among `order` comes first; "default" keeps the ranking's order.
    home
        The thread pool in use; others have to make up for standing beside it.
    """
    if record.winner == "default" or not order:
        return list(order)

    def cost(a: Algorithm) -> tuple[bool, float]:
        seconds = record.seconds(a.key)
        if seconds is None:
            return True, 0.0  # not measured: after those that were, in the order of the ranking
        return False, seconds * (SECOND_POOL if a.pool not in ("", home) else 1.0)

    ranked = sorted(order, key=cost)
    winner = next((a for a in order if a.key == record.winner), None)
    if winner is None:
        first, best = cost(order[0]), cost(ranked[0])
        margin = BUSY_MARGIN if record.disturbed else MARGIN
        winner = order[0] if not first[0] and best[1] >= margin * first[1] else ranked[0]
    return [winner, *(a for a in ranked if a is not winner)]


def winner(record: TuningRecord, algorithms: Sequence[Algorithm]) -> str:
    """Returns the key of the candidate that a record without a winner puts first; empty if it timed none of them.

    Parameters
    ----------
    record
        What was measured.
    algorithms
        Candidates in the order of the ranking.
    """
    timed = [a for a in algorithms if a.key in record.medians]
    home = next((a.pool for a in algorithms if a.pool not in ("", "numpy")), "")
    return arrange(timed, record, home)[0].key if timed else ""


def _placed(op: str, dtype: str) -> list[tuple[Place, TuningRecord]]:
    """Returns the records of an operation and dtype, each with its place; not those of a busy machine."""
    known = _store.records if _store.records is not None else _load()
    if _store.places is None:
        places: dict[tuple[str, str], list[tuple[Place, TuningRecord]]] = {}
        for record in known.values():
            current = find_key(record.key, record.threads)
            if current is not None and current.place and not current.disturbed:
                place = Place.parse(current.place)
                places.setdefault(place[:2], []).append((place, current))
        _store.places = places
    return _store.places.get((op, dtype), [])


def count(op: str, dtype: str, kind: str) -> int:
    """Returns how many Problems of an operation, dtype and shape class there are records of."""
    return len({record.key for place, record in _placed(op, dtype) if place.shape_class == kind})


def measured(op: str, dtype: str) -> list[tuple[str, Place, dict[str, float]]]:
    """Returns what the records say of an operation and dtype: Problem's key, place, and microseconds of each algorithm.

    Times on all threads come from the records with the most threads, and so do all of a Problem that has several records.
    """
    found = _placed(op, dtype)
    most = max((record.threads for _, record in found), default=0)
    result: dict[str, tuple[str, Place, dict[str, float]]] = {}
    for place, record in sorted(found, key=lambda pair: pair[1].threads):
        times = {k: s * 1e6 for k, s in record.medians.items() if record.threads == most or k.endswith("@1")}
        if times:
            result[record.key] = record.key, place.sized_as(record.key), times
    return list(result.values())


def tried(problem: Problem, threads: int) -> set[str]:
    """Returns the keys of the algorithms that this process has measured for a Problem, or tried to; callers add to them.

    What memory was lacking for, or what was timed on a busy machine, is measured again by the next process, and not at every
    call of this one.
    """
    return _store.tried.setdefault((problem.key, threads), set())


def sooner(record: TuningRecord, chosen: str, names: Collection[str]) -> str:
    """The one of some libraries whose algorithm a record has come first, if that may be before the one `chosen`.

    Parameters
    ----------
    record
        What was measured.
    chosen
        Key of the algorithm that is taken unless another library is asked.
    names
        Libraries that are not loaded. Those that the record says are not worth it are left out.
    """
    known = record.seconds(chosen)
    found: dict[str, float] = {}
    for key, seconds in record.medians.items():
        name = key.partition(".")[0]
        if name not in names or name in record.left:
            continue
        if key == record.winner:
            return name
        if known is None or seconds < known / MARGIN:
            found[name] = min(seconds, found.get(name, seconds))
    return min(found, key=found.__getitem__) if found else ""


# Keeping --------------------------------------------------------------------------------------------------------------


def keep(record: TuningRecord, *, file: bool = True) -> None:
    """Use a record from the next call on, and write it to the file unless told not to."""
    keep_all([record], file=file)


def keep_all(
    records: Iterable[TuningRecord], *, file: bool = True, choices: bool = True, merge: database.Merge | None = None
) -> int:
    """Use records from the next call on; write them in one transaction. Returns how many the file took.

    Of two records of one Problem on one machine the newer stays. What cannot be written holds for this process, and one
    warning says so. Without `choices` they say nothing about which algorithm is chosen: what was chosen is kept.
    """
    records = list(records)
    if _store.records is None:
        _load()
    here = fingerprint()
    with _lock:
        known = dict(_store.records or {})
        for r in records:
            old = known.get((r.key, r.threads))
            if r.machine == here and r.schema == SCHEMA and (old is None or r.created >= old.created):
                known[r.key, r.threads] = r
        _store.records = known
        _store.trimmed = {}
        _store.places = None
        _renew()
    written = _write(records, merge) if file and records else 0
    if choices:
        plan_caches.clear()
        _core.memo_clear()
    return written


def reload() -> None:
    """Forget what was read or kept in this process; the file is read again when something is asked."""
    global _store
    with _lock:
        _store = _Store()
        _renew()
    plan_caches.clear()
    _core.memo_clear()


# The file -------------------------------------------------------------------------------------------------------------


def _refuse(where: str, reason: str, *, remedy: str) -> None:
    first = not _store.unusable
    _store.unusable = reason
    if first:
        warnings.warn(f"the tuning file {where} is not used: {reason}. {remedy}", RuntimeWarning, stacklevel=steps_out())


ASIDE = "It is left as it is; `backline tune --reset` moves it aside."


def _load() -> dict[Key, TuningRecord]:
    with _lock:
        if _store.records is None:
            where = path()
            found: dict[Key, TuningRecord] = {}
            if where and os.path.exists(where):
                found = _read(where, fingerprint())
            _store.project = project_records.load() if where else project_records.NOTHING
            _store.records = found  # last: who finds it there reads the other without the lock
            if _store.project.problem:
                text = f"the project's tuning file {_store.project.path} is not used: {_store.project.problem}"
                warnings.warn(text, RuntimeWarning, stacklevel=steps_out())
        return _store.records


def _read(where: str, machine: str) -> dict[Key, TuningRecord]:
    """The valid records of this machine; all of them, or none if the file is damaged."""
    import sqlite3

    try:
        rows, _store.other_machines = database.rows(where, machine)
    except (sqlite3.Error, ValueError, OSError) as error:
        _refuse(where, str(error), remedy=ASIDE)
        return {}
    found: dict[Key, TuningRecord] = {}
    for key, threads, text in rows:
        try:
            record = parse(text)
            if (record.key, record.threads, record.machine) != (key, threads, machine):
                raise ValueError("it is filed under another key")
        except ValueError as error:
            _store.dropped[str(key)[:200]] = str(error)
            continue
        found[record.key, record.threads] = record
    if _store.dropped:
        name, why = next(iter(_store.dropped.items()))
        warnings.warn(
            f"{len(_store.dropped)} of {len(rows)} records in the tuning file {where} are not valid and not used, "
            f"the first for {name}: {why}",
            RuntimeWarning,
            stacklevel=steps_out(),
        )
    return found


def _write(records: list[TuningRecord], merge: database.Merge | None) -> int:
    import sqlite3

    where = path()
    if not where or _store.unusable:
        return 0
    try:
        return database.write(where, records, merge)
    except (sqlite3.Error, ValueError, OSError) as error:
        _refuse(where, str(error), remedy=f"What was measured holds for this process only. {ASIDE}")
        return 0


def reset() -> str | None:
    """Move the file aside and start with none. Returns where it went, or None if there was none."""
    where = path()
    moved = ""
    if where and os.path.exists(where):
        number = 1
        while os.path.exists(moved := f"{where}.old{number}"):
            number += 1
        os.rename(where, moved)
        for suffix in ("-journal", "-wal", "-shm"):
            if os.path.exists(where + suffix):
                os.rename(where + suffix, moved + suffix)
    reload()
    return moved or None


def every() -> list[TuningRecord]:
    """The records of this machine, by key."""
    known = _store.records if _store.records is not None else _load()
    return [known[key] for key in sorted(known)]


def report() -> dict[str, Any]:
    """Facts about the file, for `backline info`."""
    records = every()
    for record in records:
        find_key(record.key, record.threads)  # which notes what does not hold
    where = path()
    return {
        "path": where,
        "exists": bool(where) and os.path.exists(where),
        "records": len(records),
        "newest": max((r.created for r in records), default=""),
        "other_machines": _store.other_machines,
        "problem": _store.unusable,
        "dropped": dict(_store.dropped),
        "project": _store.project.path,
        "project_records": len(_store.project.records),
        "project_problem": _store.project.problem,
    }
