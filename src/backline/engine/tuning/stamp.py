"""The fields of a tuning record that say where, when and with what it was made."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ... import libraries
from ..._version import __version__
from ...native import machine
from ...problems import Problem
from .record import TuningRecord

__all__ = ["stamped"]


def stamped(problem: Problem, threads: int, used: Iterable[str], **found: Any) -> TuningRecord:
    """Returns the record, made now on this machine, of what was found of a Problem with some libraries."""
    return TuningRecord(
        problem.key,
        threads,
        **found,
        place=str(problem.place()) if problem.device == "cpu" else "",
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        versions={name: libraries.get(name).version() or "" for name in sorted(set(used))},
        machine=machine.fingerprint(),
        backline=__version__,
    )
