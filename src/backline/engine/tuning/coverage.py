"""Coverage of a tuning record: which candidates it has measured, and how the others are added.

Which candidates are measured depends on switches: a library that is off and candidates beyond ``benchmark_limit`` are not. A
record holds for those it covers; others are measured when somebody asks for it, beside the fastest of those that were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...libraries.base import Algorithm
from ...problems import Problem
from ..choice import Candidate
from . import record_store
from .record import TuningRecord

__all__ = ["anchor", "describe", "merged", "pending", "restrictions", "untried"]


def pending(record: TuningRecord | None, algorithms: Sequence[Algorithm], *, timing: bool = True) -> list[Algorithm]:
    """Returns the candidates that a record gives no verdict on.

    Parameters
    ----------
    record
        What was measured, if anything was.
    algorithms
        Candidates that are allowed now. A single one is checked and never timed.
    timing
        False where errors are asked for, and no times.

    Examples
    --------
    >>> a, b = Algorithm(library="numpy", name="matmul"), Algorithm(library="mkl", name="gemm")
    >>> record = TuningRecord("matmul f32 8x8 8x8", 1, errors={"numpy.matmul@1": 0.0}, covered=("numpy.matmul@1",))
    >>> [one.key for one in pending(record, [a, b])], pending(record, [a])
    (['mkl.gemm@1'], [])
    """
    if record is None:
        return list(algorithms)
    if record.winner == "default":  # set by hand: nothing is to be measured
        return []
    if not timing or len(algorithms) == 1:
        return [a for a in algorithms if a.key not in record.errors and a.key not in record.rejected]
    covered = {*record.covered, *record.rejected}
    return [a for a in algorithms if a.key not in covered]


def untried(problem: Problem, threads: int, record: TuningRecord | None, algorithms: Sequence[Algorithm]) -> bool:
    """Returns whether a record lacks a verdict on candidates that this process has not tried to measure yet."""
    tried = record_store.tried(problem, threads)
    return any(a.key not in tried for a in pending(record, algorithms))


def anchor(record: TuningRecord | None, algorithms: Sequence[Algorithm]) -> Algorithm | None:
    """Returns the fastest candidate that a record covers: what is new is timed in turn with it."""
    if record is None:
        return None
    timed = [a for a in algorithms if a.key in record.covered and a.key in record.medians]
    return min(timed, key=lambda a: record.medians[a.key], default=None)


def merged(old: TuningRecord | None, new: TuningRecord, algorithms: Sequence[Algorithm]) -> TuningRecord:
    """Returns one record of both: what the old one covers stays, and the times of the new one are brought to its scale.

    Parameters
    ----------
    old
        What was known.
    new
        What was measured now. An algorithm that both timed says by how much the machine was slower or faster this time.
    algorithms
        All candidates that are allowed now, in the order of the ranking.
    """
    if old is None:
        return new
    both = [key for key in new.medians if key in old.medians and key in old.covered]
    first = min(both, key=lambda key: old.medians[key], default="")
    scale = old.medians[first] / new.medians[first] if first else 1.0
    sound = {key: s for key, s in old.medians.items() if key in old.covered and key not in new.rejected}
    others = {key: s for key, s in old.medians.items() if key not in new.rejected}
    medians = others | {key: s * scale for key, s in new.medians.items()} | sound
    minima = (
        {key: s for key, s in old.minima.items() if key in others}
        | {key: s * scale for key, s in new.minima.items()}
        | {key: s for key, s in old.minima.items() if key in sound}
    )
    covered = tuple(sorted({*old.covered, *new.covered}))
    made = replace(
        new, medians=medians, minima=minima, runs={key: n for key, n in {**old.runs, **new.runs}.items() if key in medians},
        errors={**old.errors, **new.errors}, rejected={**old.rejected, **new.rejected}, left=old.left, plan=new.plan or old.plan,
        spent=round(old.spent + new.spent, 6), versions={**old.versions, **new.versions}, covered=covered, winner="",
        disturbed=(new.disturbed or old.disturbed) if set(medians) - set(covered) else "",
    )  # fmt: skip
    return replace(made, winner=_winner(old, made, algorithms))


def _winner(old: TuningRecord, made: TuningRecord, algorithms: Sequence[Algorithm]) -> str:
    if old.winner == "default":
        return old.winner
    best = record_store.winner(made, algorithms)
    # The winner of before may be switched off just now, and still be the fastest.
    absent = old.winner in made.medians and all(a.key != old.winner for a in algorithms)
    if absent and (not best or made.medians[old.winner] < made.medians[best]):
        return old.winner
    return best


def restrictions(refused: Iterable[Candidate], snapshot: Any, left_out: bool) -> dict[str, str]:
    """Returns the switches that keep candidates from being measured, with their values as text.

    Parameters
    ----------
    refused
        What was refused, each with its switch.
    snapshot
        The switches.
    left_out
        Whether ``benchmark_limit`` leaves candidates out.
    """
    names = {c.switch for c in refused if c.switch} | ({"benchmark_limit"} if left_out else set())
    return {name: ascii(snapshot.get(name, "")).strip("'\"")[:200] for name in sorted(names)}


def describe(record: TuningRecord, algorithms: Sequence[Algorithm]) -> str:
    """Returns where an order comes from that rests on a record, and what among the candidates it does not cover."""
    left = sum(a.key not in record.medians for a in pending(record, algorithms))
    return record.describe() + (f"; {left} other{'' if left == 1 else 's'} not timed" if left else "")
