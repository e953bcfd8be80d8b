"""Comparison of a script's results with those of another library: the first operation that drifts, and whether by itself.

The script runs twice, each time in a process of its own: as it is, with every call computed again on the same operands, and on
the other library alone. The first run tells what an operation does to its operands, the second what became of them before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .library_remedy import launcher_option
from .result_sketch import apart
from .shadow import WIDER, shadow
from .shadow_records import ShadowRecord, remedy_for
from .tune_script import NothingToTune, check_script, run_recorded

__all__ = ["InputDrift", "ResultReport", "check_results"]


@dataclass(frozen=True, slots=True)
class InputDrift:
    """An operation whose result differs between the runs, and that agrees on the same operands.

    Attributes
    ----------
    key
        Of its Problem.
    number
        Its number in the program, from 1 on.
    inputs, result
        Relative differences of its operands and of its result between the runs.
    """

    key: str
    number: int
    inputs: float
    result: float


@dataclass(frozen=True, slots=True, repr=False)
class ResultReport:
    """The result of the comparison; prints as a table, and is true where something was compared and nothing drifts.

    Attributes
    ----------
    script, against
        What ran, and what it was compared with.
    operations, compared
        Calls of operations, and how many of them were computed again.
    first, number
        The first operation that drifts on the same operands, and its number in the program; None and 0 where none does.
    drifted
        How many do.
    inputs
        The first operation that drifts by its operands alone; None where none does.
    later
        How many operations drift by their operands alone.
    uncompared
        Keys of Problems that could not be compared, with the reason.
    diverged
        Number of the operation from which on the two runs called others; 0 if they did not.
    already
        How many calls were not computed again because `against` itself had run them.
    within_rounding
        How many of those that drift do so only because the tolerance that was given is below what rounding explains.
    """

    script: str
    against: str
    operations: int
    compared: int
    first: ShadowRecord | None
    number: int
    drifted: int
    inputs: InputDrift | None
    later: int
    uncompared: dict[str, str] = field(default_factory=dict)
    diverged: int = 0
    already: int = 0
    within_rounding: int = 0

    def __bool__(self) -> bool:
        return self.compared > 0 and not self.drifts

    @property
    def drifts(self) -> bool:
        """True where the result of any operation drifts."""
        return self.first is not None or self.inputs is not None

    def rows(self) -> list[tuple[str, str]]:
        """Returns the lines above the first drift: pairs of label and text."""
        found = [("operations", f"{self.operations}, {self.compared} of them computed again by {self.against}")]
        found += [("not compared", f"{key}: {reason}") for key, reason in self.uncompared.items()]
        if self.already:
            found.append(("not compared", f"{self.already} that {self.against} itself ran"))
        if self.diverged:
            found.append(("runs part", f"from operation {self.diverged} on the two runs call others, by what results were"))
        if self.drifts:
            return [*found, ("agree", f"all but {self.drifted + self.later}")]
        if not self.compared:
            remedy = '--against another library, or "wider"' if self.against not in WIDER else "--against a library"
            return [*found, ("agree", "unknown: nothing was compared"), ("remedy", remedy)]
        return [
            *found,
            ("agree", "all of them" if self.compared == self.operations else f"the {self.compared} that were compared"),
        ]

    def drift_rows(self) -> list[tuple[str, str]]:
        """Returns the lines about the first operation that drifts; none where none does."""
        if self.first is not None:
            return self._own_rows(self.first)
        return [] if self.inputs is None else self._input_rows(self.inputs)

    def _own_rows(self, record: ShadowRecord) -> list[tuple[str, str]]:
        found = [
            ("operation", f"{record.key}, number {self.number} of {self.operations}"),
            ("runs on", record.runs_on()),
            ("difference", f"{record.difference:.1e} from {self.against} on the same operands; allowed: {record.tolerance:.1e}"),
            ("cause", f"the operation itself: {record.library} computes it wrong, or less precisely than it says"),
        ]
        if record.is_rounding:
            found[-1] = ("cause", f"the tolerance is below what rounding explains, {record.rounding:.1e}: without it they agree")
        if self.drifted > 1:
            beyond = self.drifted - self.within_rounding
            more = f", {beyond} of them by more than rounding explains" if record.is_rounding and beyond else ""
            found.append(("others", f"{self.drifted - 1} other calls drift by themselves{more}"))
        if self.later:
            found.append(("later", f"{self.later} operations drift by their operands alone, as a consequence"))
        option = "" if record.is_rounding else launcher_option(record.library)
        remedy = remedy_for(record) + (f"; or backline run {option} {self.script}" if option else "")
        return [*found, ("remedy", remedy)]

    def _input_rows(self, drift: InputDrift) -> list[tuple[str, str]]:
        cause = f"its operands, which differ by {drift.inputs:.1e} between the runs already; on the same operands libraries agree"
        remedy = "the program enlarges rounding errors, and no library is at fault: a wider dtype, or better conditioned operands"
        return [
            ("operation", f"{drift.key}, number {drift.number} of {self.operations}"),
            ("difference", f"{drift.result:.1e} from a run on {self.against} alone"),
            ("cause", cause),
            ("remedy", remedy),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["first"] = None if self.first is None else self.first.as_dict()
        found["inputs"] = None if self.inputs is None else {f.name: getattr(self.inputs, f.name) for f in fields(self.inputs)}
        return found

    def __repr__(self) -> str:
        words = "drifts" if self.drifts else "agrees" if self else "nothing was compared"
        return f"<{type(self).__name__} against {self.against}: {words}; print() shows it>"

    def __str__(self) -> str:
        rows = [*self.rows(), *([("", ""), *self.drift_rows()] if self.drifts else [])]
        return "\n".join(f"{label:<12}  {text}".rstrip() for label, text in rows)


def check_results(
    argv: Sequence[str], against: str = "numpy", *, tolerance: float | None = None,
    step: Callable[[str], None] = lambda text: None,
) -> ResultReport:  # fmt: skip
    """Runs a script, and compares the results of its operations with those of another library.

    Parameters
    ----------
    argv
        The script's path and its arguments, or "-m", a module and its arguments.
    against, tolerance
        As for `backline.shadow`.
    step
        Told which run begins.

    Raises
    ------
    BadValue
        There is no such script or library.
    NothingToTune
        It called no operation of Backline.
    ScriptFailed
        It ended with an error.
    """
    check_script(argv)
    shadow(against, every=1, tolerance=tolerance)  # or an error that says what is wrong with them
    step(f"every call again by {against}")
    first = _run(argv, "beside", against, tolerance)
    if not first:
        raise NothingToTune(
            f"{argv[0]} called no operation of Backline, so there is nothing to compare",
            cause="calls of other libraries are not seen",
            remedy="call Backline's operations",
        )
    second = None
    if against not in WIDER:
        step(f"all calls by {against} alone")
        second = _run(argv, "instead", against, tolerance)
    return report_of(" ".join(argv), against, first, second)


def _run(argv: Sequence[str], mode: str, against: str, tolerance: float | None) -> list[dict[str, Any]]:
    recorder = ("shadow_script.py", mode, against, "" if tolerance is None else repr(tolerance))
    return run_recorded(mode, argv, {}, show=False, recorder=recorder).entries


def report_of(script: str, against: str, first: list[dict[str, Any]], second: list[dict[str, Any]] | None) -> ResultReport:
    """Returns the report on the entries of the two runs; of one where there is no second."""
    records = [None if entry["record"] is None else ShadowRecord(**entry["record"]) for entry in first]
    own = {i: record for i, record in enumerate(records) if record is not None and record.drifts}
    uncompared = {entry["key"]: entry["reason"] for entry in first if entry["reason"]}
    diverged, moved = 0, list[InputDrift]()
    for i, (one, other) in enumerate(zip(first, second or (), strict=False)):
        if _shape(one["key"]) != _shape(other["key"]):
            diverged = i + 1
            break
        difference = apart(one["result"], other["result"])
        if i not in own and difference > one["tolerance"] * (i + 1):  # each operation before it may have rounded
            moved.append(InputDrift(one["key"], i + 1, apart(one["inputs"], other["inputs"]), difference))
    else:
        if second is not None and len(second) != len(first):
            diverged = min(len(first), len(second)) + 1
    start = min(own, default=-1)
    return ResultReport(
        script, against, len(first), sum(record is not None for record in records), own.get(start), start + 1,
        len(own), moved[0] if moved else None, len(moved), uncompared, diverged,
        sum(entry["library"] == against for entry in first), sum(record.is_rounding for record in own.values()),
    )  # fmt: skip


def _shape(key: str) -> str:
    """Returns the key of a Problem without layouts: libraries return some results by rows and others by columns."""
    return re.sub(r":[CFX]\b", "", key)
