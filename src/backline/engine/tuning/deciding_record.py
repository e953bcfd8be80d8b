"""The tuning record that decides for a Problem: this machine's own measurement, else the project's, else a calibration.

Measuring asks `record_store` alone: what another machine found keeps nothing from being measured here.
"""

from __future__ import annotations

from ...problems import Problem
from . import machine_class, record_store
from .record import TuningRecord

__all__ = ["find", "origin", "problem_keys", "refused"]


def find(problem: Problem, threads: int) -> TuningRecord | None:
    """Returns the record that decides for a Problem, None where there is none that holds.

    What was measured on this machine for a program comes first, then what the project ships whose program runs, then what
    `backline calibrate` measured on this machine.

    Parameters
    ----------
    problem
        What is asked; its key counts.
    threads
        Threads allowed.
    """
    own = record_store.find(problem, threads)
    if own is not None and not own.calibrated:
        return own
    shipped = record_store.project().records.get((problem.key, threads))
    held = None if shipped is None else record_store.still_valid(shipped)
    return own if held is None else held


def origin(record: TuningRecord) -> str:
    """Returns words for the project's file that a record comes from; empty for one of this machine's tuning file."""
    project = record_store.project()
    shipped = project.records.get((record.key, record.threads)) if project.records else None
    if shipped is None or record is not record_store.still_valid(shipped):
        return ""
    return f", of the project's {project.path}, measured on {record.machine}"


def refused(problem: Problem, threads: int) -> str:
    """Returns why records of a Problem do not count here, as a whole or in part; empty where there are none such."""
    at, project = (problem.key, threads), record_store.project()
    named = f"record of the project's {project.path}"
    reasons = []
    for record, name in ((record_store.filed(*at), "tuning record"), (project.records.get(at), named)):
        changed = record_store.stale(record) if record is not None else {}
        if record is not None and changed:
            part = "part of the" if record_store.still_valid(record) is not None else "the"
            reasons.append(f"{part} {name} is not used: {'; '.join(changed.values())}")
    if at in project.other_classes:
        reasons.append(f"the {named} is not used: it is for {project.other_classes[at]}, and this is {machine_class.here()}")
    return "; ".join(reasons)


def problem_keys() -> set[str]:
    """Returns the keys of the Problems that there are records of, of this machine and of the project."""
    return {record.key for record in (*record_store.every(), *record_store.project().records.values())}
