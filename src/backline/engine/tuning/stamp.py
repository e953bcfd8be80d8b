"""The fields of a tuning record that say where, when and with what it was made."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ... import libraries
from ..._version import __version__
from ...native import machine
from ...problems import Problem
from . import machine_class
from .record import TuningRecord

__all__ = ["stamped", "stamped_key"]


def stamped(problem: Problem, threads: int, used: Iterable[str], **found: Any) -> TuningRecord:
    """Returns the record, made now on this machine, of what was found of a Problem with some libraries."""
    place = str(problem.place()) if problem.device == "cpu" else ""
    return stamped_key(problem.key, threads, used, place=place, **found)


def stamped_key(key: str, threads: int, used: Iterable[str], **found: Any) -> TuningRecord:
    """Returns the record, made now on this machine, that is filed under a key."""
    return TuningRecord(
        key,
        threads,
        **found,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        versions={name: libraries.get(name).version() or "" for name in sorted(set(used))},
        machine=machine.fingerprint(),
        processors=str(machine_class.here()),
        backline=__version__,
    )
