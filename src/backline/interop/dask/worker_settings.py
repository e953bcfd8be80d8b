"""The settings that go to workers, as plain values: collected where a program runs, put in force in a worker's process.

They are the Snapshot without what a machine decides by itself, the exchange of NumPy's BLAS, and tuning records. Nothing of it is
an object of Backline's, so that a worker of another version can read it and say what is wrong.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable
from typing import Any

from ... import switches
from ..._version import __version__
from ...engine.tuning import database, record_store
from ...engine.tuning.record import TuningRecord, parse
from ...errors import BadValue
from ...native.machine import fingerprint
from ...switches import Value
from ..exchange import exchange_state
from ..exchange.choices import Choice
from ..exchange.exchange_state import Layer
from ..workers import this_process

__all__ = ["Applied", "collect", "is_here", "keep_lines", "packed", "records_of", "switch_values", "unpacked"]


def switch_values() -> dict[str, Value]:
    """Returns the values of the switches here, without those that start with what the machine says and that nothing has set.

    Examples
    --------
    >>> with switches.scope(num_threads=1):
    ...     switch_values()["num_threads"]
    1
    """
    table = switches.declared()

    def goes_along(name: str) -> bool:
        return not callable(table[name].default) or switches.history(name)[0].origin.kind != "default"

    return {name: value for name, value in switches.current().items() if name in table and goes_along(name)}


def records_of(machines: Iterable[str]) -> list[TuningRecord]:
    """Returns the valid records that the tuning file has of some machines; of this one, those in use."""
    found: list[TuningRecord] = []
    where = database.path()
    for machine in dict.fromkeys(machines):
        if machine == fingerprint():
            found += record_store.every()
        elif where and os.path.exists(where):
            try:
                rows, _ = database.rows(where, machine)
            except (sqlite3.Error, ValueError, OSError):
                continue  # `record_store` warns about it
            found += [record for _, _, text in rows if (record := _parsed(text)) is not None]
    return found


def _parsed(line: str) -> TuningRecord | None:
    try:
        return parse(line)
    except ValueError:
        return None


def packed(records: Iterable[TuningRecord]) -> bytes:
    """Returns records as bytes: lines of JSON, compressed.

    Examples
    --------
    >>> unpacked(packed([]))
    []
    """
    return zlib.compress("".join(f"{record.line()}\n" for record in records).encode("ascii"))


def unpacked(data: bytes) -> list[TuningRecord]:
    """Returns the records in bytes, without those that are not valid here."""
    lines = zlib.decompress(data).decode("ascii").splitlines()
    return [record for line in lines if (record := _parsed(line)) is not None]


def keep_lines(data: bytes) -> int:
    """Uses records from now on, without writing them to a file; returns how many are of this machine. Called on workers."""
    records = [record for record in unpacked(data) if record.machine == fingerprint()]
    record_store.keep_all(records, file=False)
    return len(records)


def collect(records: Iterable[TuningRecord] = (), expected: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the settings that hold here, as plain values.

    Parameters
    ----------
    records
        Tuning records to send along.
    expected
        Facts that a worker must share; None where it need not.
    """
    layer = exchange_state.layer()
    return {
        "backline": __version__,
        "process": this_process(),
        "switches": switch_values(),
        "exchange": layer and {"rows": layer.choice.rows, "small": layer.choice.small, "keep_pools": layer.keep_pools},
        "records": packed(records),
        "expected": expected,
    }


def is_here(content: dict[str, Any]) -> bool:
    """Tells whether settings were collected in this process."""
    return bool(content["process"] == this_process())


class Applied:
    """Settings that are in force in this process, until `withdraw`.

    Parameters
    ----------
    content
        What `collect` returned, perhaps on another machine.

    Raises
    ------
    BadValue
        They come from another version of Backline.
    BackendUnavailable, LibraryFailed
        The exchange is not possible here. Nothing is in force then.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        if content.get("backline") != __version__:
            raise BadValue(
                f"settings of Backline {content.get('backline')} were sent to a worker that has {__version__}",
                remedy="the same version where the client runs and where the workers run",
            )
        self._names: tuple[str, ...] = ()
        self._layer: Layer | None = None
        if is_here(content):  # a worker in the process of the client: its settings are there already
            return
        chosen = content["exchange"]
        if chosen:
            layer = Layer(
                Choice(tuple(map(tuple, chosen["rows"])), tuple(map(tuple, chosen["small"]))), keep_pools=chosen["keep_pools"]
            )
            exchange_state.push(layer)
            self._layer = layer
        try:
            here = switches.current()
            changed = {name: value for name, value in content["switches"].items() if name not in here or here[name] != value}
            switches.assign_many(changed, depth=2, restore=True)
            self._names = tuple(changed)
        except BaseException:
            self.withdraw()
            raise
        keep_lines(content["records"])

    def withdraw(self) -> None:
        """Takes the settings back: the process has those of its own environment and files again. Records stay."""
        for name in self._names:
            switches.withdraw(name)
        self._names = ()
        if self._layer is not None:
            exchange_state.pop(self._layer)
            self._layer = None
