"""Measuring what no tuning record covers, and keeping it: for the switch `benchmark`, and for tuning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...libraries.base import NULL_PLANNER, Algorithm, Planner
from ...problems import Problem
from ...switches.provenance import steps_out
from . import coverage, measure, record_store
from .record import TuningRecord

__all__ = ["measure_missing", "measure_once"]

_NOTHING: Mapping[str, str] = MappingProxyType({})
_warned = False


def measure_once(
    problem: Problem, algorithms: list[Algorithm], threads: int, under: Mapping[str, str] = _NOTHING,
    planner: Planner = NULL_PLANNER,
) -> TuningRecord:  # fmt: skip
    """The record for a Problem, which covers the candidates: what it does not cover yet is measured and kept.

    Threads that ask for the same wait. What this process has tried to measure is not tried again. One warning a process says that
    the machine was too busy.
    """
    with measure.one_at_a_time:
        record = record_store.find(problem, threads)
        if record is not None and not coverage.untried(problem, threads, record, algorithms):
            return record
        record = measure_missing(problem, algorithms, threads, under=under, planner=planner)
        record_store.tried(problem, threads).update(a.key for a in algorithms)  # not those that there was no memory for any of
    global _warned
    if record.disturbed and not _warned:
        _warned = True
        warnings.warn(
            f"timed on a busy machine: {problem.key} (while {record.disturbed}). What was found holds for now; a later process "
            "with benchmark on times it again",
            RuntimeWarning,
            stacklevel=steps_out(),
        )
    return record


def measure_missing(
    problem: Problem, algorithms: list[Algorithm], threads: int, *, again: bool = False, timing: bool = True, **options: Any
) -> TuningRecord:
    """Measure the candidates that the record for a Problem does not cover, add them to it and keep it.

    Parameters
    ----------
    problem, algorithms, threads, timing
        As in `measure_problem`.
    again
        Measure those that it covers, too, and put a new record in its place.
    options
        As in `measure_problem`.
    """
    with measure.one_at_a_time:
        known = None if again else record_store.find(problem, threads)
        new = coverage.pending(known, algorithms, timing=timing)
        if known is not None and not new:
            return known
        beside = coverage.anchor(known, algorithms) if timing and len(algorithms) > 1 else None
        measured = [a for a in algorithms if a in new or a is beside]
        made = measure.measure_problem(problem, measured, threads, timing=timing, **options)
        record = coverage.merged(known, made, algorithms)
        record_store.keep(record)
        return record
