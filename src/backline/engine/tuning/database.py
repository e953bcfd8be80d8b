"""The file that keeps tuning records: one SQLite database in the user's data folder, or where ``BACKLINE_TUNING`` says.

Every write is one transaction, so processes that tune at the same time lose nothing; for each Problem the newer record stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from .record import SCHEMA, TuningRecord

__all__ = ["MAX_FILE", "MAX_ROWS", "Merge", "connect", "path", "remove", "rows", "texts", "write"]

Merge = Callable[[str, TuningRecord], TuningRecord]  # of the text that the file holds and a new record

APPLICATION = 0x424B4C4E  # in the header of the file: it is ours
MAX_FILE = 256 << 20
MAX_ROWS = 100_000
MAX_CELL = 1 << 20  # bytes
TIMEOUT = 30.0  # seconds to wait for another process's transaction
LONGEST = 30.0  # seconds after which reading a file is given up
COLUMNS = (
    "(machine TEXT NOT NULL, key TEXT NOT NULL, threads INTEGER NOT NULL, "
    "created TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (machine, key, threads)) WITHOUT ROWID"
)


def path() -> str:
    """Returns the path of the records; an empty string where none are kept.

    >>> path() == "" or os.path.isabs(path())
    True
    """
    named = os.environ.get("BACKLINE_TUNING")
    if named is not None:
        return os.path.abspath(named) if named else ""
    from platformdirs import user_data_dir

    return os.path.join(user_data_dir("backline", appauthor=False), "tuning.sqlite")


def connect(where: str, *, create: bool = False) -> Any:
    """Open the database; every statement is a transaction of its own unless one is begun."""
    import sqlite3
    from urllib.parse import quote

    # rw also when only reading: what a killed writer left half done is rolled back on opening.
    mode = "rwc" if create else "rw"
    connection = sqlite3.connect(f"file:{quote(where)}?mode={mode}", timeout=TIMEOUT, isolation_level=None, uri=True)
    # A file may hold anything: no functions from its schema, no cell larger than any record, and an end in time.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL)
    end = time.monotonic() + LONGEST + TIMEOUT
    connection.set_progress_handler(lambda: int(time.monotonic() > end), 100_000)
    return connection


def _foreign(connection: Any) -> str:
    """Returns the reason that a database is not one of ours, or an empty string."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    content = connection.execute("SELECT type, name, sql FROM sqlite_master LIMIT 2").fetchall()
    if application == 0 and version == 0 and not content:
        return ""  # new and empty
    if application != APPLICATION:
        return "it is a database of another program"
    if version != SCHEMA:
        return f"it has schema {version}, this backline has schema {SCHEMA}"
    # A view that never ends, a trigger or a virtual table may have the name of our table: only the table that we make is read.
    if content and content != [("table", "records", f"CREATE TABLE records {COLUMNS}")]:
        return "it holds something other than the one table of backline"
    return ""


@contextmanager
def _reading(where: str) -> Iterator[Any]:
    """An open database of ours; None in the place of one that is empty.

    Raises
    ------
    ValueError, OSError, sqlite3.Error
        The file is not one of ours, or damaged: nothing of it is to be used.
    """
    if not os.path.isfile(where):
        raise ValueError("it is not a file")
    if os.path.getsize(where) > MAX_FILE:
        raise ValueError(f"it has more than {MAX_FILE >> 20} MB")
    with closing(connect(where)) as connection:
        reason = _foreign(connection)
        if reason:
            raise ValueError(reason)
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            yield None
            return
        state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if state != "ok":
            raise ValueError(f"it is damaged: {' '.join(str(state).split())}")
        yield connection


def rows(where: str, machine: str) -> tuple[list[tuple[str, int, str]], int]:
    """Key, threads and text of each record of a machine, the newest first, and how many there are of others.

    Raises
    ------
    ValueError, OSError, sqlite3.Error
        The file is not one of ours, or damaged: nothing of it is to be used.
    """
    with _reading(where) as connection:
        if connection is None:
            return [], 0
        found = connection.execute(
            "SELECT key, threads, record FROM records WHERE machine = ? ORDER BY created DESC LIMIT ?", (machine, MAX_ROWS)
        ).fetchall()
        others = connection.execute("SELECT count(*) FROM records WHERE machine <> ?", (machine,)).fetchone()[0]
    return found, int(others)


def texts(where: str) -> list[str]:
    """Returns the text of each record of every machine, the newest first.

    Raises
    ------
    ValueError, OSError, sqlite3.Error
        As `rows`.
    """
    with _reading(where) as connection:
        if connection is None:
            return []
        found = connection.execute("SELECT record FROM records ORDER BY created DESC LIMIT ?", (MAX_ROWS,)).fetchall()
    return [text for (text,) in found]


def remove(where: str, records: Iterable[TuningRecord]) -> int:
    """Removes records from a file in one transaction, and returns how many: what another process has replaced since stays.

    Raises
    ------
    ValueError, OSError, sqlite3.Error
        As `rows`; or it cannot be written.
    """
    with _reading(where) as connection:
        if connection is None:
            return 0
        connection.execute("BEGIN IMMEDIATE")
        before = connection.total_changes
        connection.executemany(
            "DELETE FROM records WHERE machine = ? AND key = ? AND threads = ? AND created = ?",
            [(r.machine, r.key, r.threads, r.created) for r in records],
        )
        removed = connection.total_changes - before
        connection.execute("COMMIT")
    return int(removed)


def write(where: str, records: list[TuningRecord], merge: Merge | None = None) -> int:
    """Write records to a file in one transaction, where they are newer than what it holds. Returns how many it took.

    With `merge`, what it returns of the text that the file holds of a Problem and of the new record is written.

    Raises
    ------
    ValueError, OSError, sqlite3.Error
        The file is not one of ours, or cannot be written.
    """
    os.makedirs(os.path.dirname(where), exist_ok=True)
    with closing(connect(where, create=True)) as connection:  # what was not committed is rolled back
        connection.execute("BEGIN IMMEDIATE")
        reason = _foreign(connection)
        if reason:
            raise ValueError(reason)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute(f"CREATE TABLE IF NOT EXISTS records {COLUMNS}")
        if merge is not None:
            records = [_merged(connection, r, merge) for r in records]
        before = connection.total_changes
        connection.executemany(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET created = excluded.created, "
            "record = excluded.record WHERE excluded.created >= records.created",
            [(r.machine, r.key, r.threads, r.created, r.line()) for r in records],
        )
        written = connection.total_changes - before
        connection.execute("COMMIT")
    return int(written)


def _merged(connection: Any, new: TuningRecord, merge: Merge) -> TuningRecord:
    held = "SELECT record FROM records WHERE machine = ? AND key = ? AND threads = ?"
    row = connection.execute(held, (new.machine, new.key, new.threads)).fetchone()
    return new if row is None else merge(row[0], new)
