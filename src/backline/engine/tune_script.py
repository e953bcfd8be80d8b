"""Tuning a script: what it computes is recorded, measured on every library, and the fastest ways are kept.

The script runs on NumPy alone, which is what it had; on backline without tuning, recorded; and with what was measured in between.
One that is short runs in these three ways once more, in turn, to be compared. Every run is a process of its own.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .. import libraries, switches
from ..libraries.base import FileLibrary
from ..problems import Problem
from . import ranking, script_runs
from .choice import Candidate
from .choose import eligible, planner
from .script_runs import NothingToTune, Run, ScriptFailed, check_script, nothing_to_tune, recorded, run_recorded
from .tuning import coverage, database
from .tuning import record_store as records
from .tuning.benchmark import measure_missing
from .tuning.budgeted_loop import BudgetedLoop
from .tuning.load_cost import not_worth_loading
from .tuning.record import TuningRecord
from .tuning.trace_script import unpack

__all__ = [
    "NothingToTune", "Row", "Run", "ScriptFailed", "TuneReport", "check_script", "nothing_to_tune", "recorded", "run_recorded",
    "tune_script",
]  # fmt: skip

BUDGET = 60.0
PER_PROBLEM = 1.0
MOST = 0.8  # part of the time in operations that has to be compared for a figure that is said to be of all


@dataclass(slots=True)
class Row:
    """One Problem in the three runs: seconds in all, what ran it in the last, and how much faster that is than NumPy.

    `alone` has the seconds of one call on NumPy and tuned, from the measurement, in which both took turns. Where other programs
    disturbed the runs of the script, which come one after the other, `faster` is by those; None where they disturbed that, too.
    """

    key: str
    threads: int
    count: int
    numpy: float | None
    untuned: float | None
    tuned: float | None
    algorithm: str
    error: float | None
    faster: float | None = None
    alone: tuple[float | None, float | None] = (None, None)


@dataclass(slots=True)
class TuneReport:
    """The result of tuning a script; the figures of the command line's tables.

    Attributes
    ----------
    numpy, untuned, tuned
        The three runs. Under determinism nothing is chosen by timing, and `tuned` is the deterministic run.
    rounds
        How often the script ran in all three ways in turn, of which these are the fastest; 0 where `numpy` and `untuned` are
        from before the measuring.
    records
        What was measured.
    held
        Records that covered their Problems already.
    left_out
        Problems that were not measured, with the reason.
    not_loaded
        Libraries that the script is not worth loading, with the figures.
    measuring
        Seconds spent measuring.
    file
        Where the records were written; empty if they were not.
    deterministic
        "" or the level asked for.
    max_error
        The bound asked for, or None.
    """

    script: str
    numpy: Run
    untuned: Run
    tuned: Run
    rounds: int = 0
    records: list[TuningRecord] = field(default_factory=list)
    held: list[TuningRecord] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    not_loaded: dict[str, str] = field(default_factory=dict)
    measuring: float = 0.0
    file: str = ""
    deterministic: str = ""
    max_error: float | None = None

    def rows(self) -> list[Row]:
        """One row for each Problem, the most time-consuming first."""
        known = {(r.key, r.threads): r for r in [*records.every(), *self.held, *self.records]}
        # Libraries return some results by rows and others by columns, so the layouts of what follows may differ between runs.
        tables = [_by_problem(run, layouts=False) for run in (self.numpy, self.untuned, self.tuned)]
        found = []
        for same in dict.fromkeys(key for table in reversed(tables) for key in table):
            entries = [table.get(same) for table in tables]
            shown = next(e for e in reversed(entries) if e)
            numpy, untuned, tuned = (e["seconds"] if e else None for e in entries)
            at = (shown["key"], shown["threads"])
            algorithm = f"{shown['algorithm'].partition('@')[0]} x{shown['used']}"
            record = known.get(at)
            error = record.error(shown["algorithm"]) if record else None
            row = Row(at[0], at[1], shown["count"], numpy, untuned, tuned, algorithm, error, self.faster(numpy, tuned))
            if record and entries[0] and entries[2]:
                row.alone = (record.seconds(entries[0]["algorithm"]), record.seconds(entries[2]["algorithm"]))
            if self.busy():  # figures of a record that was disturbed itself say no more than the runs
                row.faster = None
                if record and not record.disturbed and row.alone[0] and row.alone[1]:
                    row.faster = row.alone[0] / row.alone[1]
            found.append(row)
        return sorted(found, key=lambda r: -max(r.numpy or 0.0, r.untuned or 0.0, r.tuned or 0.0))

    def busy(self) -> str:
        """Describes other load during runs that are compared; empty if their times can be compared."""
        return next((run.disturbed for run in (self.tuned, self.untuned, self.numpy) if run.disturbed), "")

    def faster(self, before: float | None, after: float | None) -> float | None:
        """Returns the speed-up of one run over another; None where they cannot be compared."""
        return before / after if before and after and not self.busy() else None

    def in_operations(self) -> float | None:
        """Returns the speed-up of all operations, tuned, over NumPy; None where that is not known."""
        if not self.busy():
            return self.faster(self.numpy.in_operations, self.tuned.in_operations)
        in_turn = self._in_turn()
        return in_turn[0] / in_turn[1] if in_turn else None

    def compared(self, row: Row) -> tuple[float | None, float | None, float | None]:
        """Returns the seconds of a row, NumPy, untuned and tuned, by which `faster` is: on a busy machine of calls in turn."""
        if not self.busy() or row.faster is None:
            return row.numpy, row.untuned, row.tuned
        before, after = (row.count * (seconds or 0.0) for seconds in row.alone)
        return before, None, after

    def totals(self) -> tuple[float | None, float | None, float | None]:
        """Returns the seconds in all operations, NumPy, untuned and tuned, by which `in_operations` is."""
        if self.busy() and (in_turn := self._in_turn()):
            return in_turn[0], None, in_turn[1]
        numpy, untuned, tuned = (None if r.failed else r.in_operations for r in (self.numpy, self.untuned, self.tuned))
        return numpy, untuned, tuned

    def _in_turn(self) -> tuple[float, float] | None:
        """Seconds of all calls on NumPy and tuned, from measurements in turn; None where those are of too small a part."""
        rows = [row for row in self.rows() if row.faster is not None]
        if not rows or sum(row.tuned or 0.0 for row in rows) < MOST * self.tuned.in_operations:
            return None
        pairs = [self.compared(row) for row in rows]
        return sum(before or 0.0 for before, _, _ in pairs), sum(after or 0.0 for _, _, after in pairs)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        runs = {}
        for run in (self.numpy, self.untuned, self.tuned):
            runs[run.name] = {
                "seconds": run.seconds, "in_operations": run.in_operations, "failed": run.failed,
                "by_library": run.by("library"), "disturbed": run.disturbed,
            }  # fmt: skip
        return {
            "script": self.script, "runs": runs, "rounds": self.rounds, "rows": [asdict(r) for r in self.rows()],
            "measured": len(self.records), "held": len(self.held),
            "disturbed": {r.key: r.disturbed for r in self.records if r.disturbed}, "left_out": self.left_out,
            "not_loaded": self.not_loaded, "measuring": self.measuring, "file": self.file,
            "deterministic": self.deterministic, "max_error": self.max_error,
        }  # fmt: skip


def _by_problem(run: Run, layouts: bool = True) -> dict[tuple[str, int], dict[str, Any]]:
    """Entries by Problem and threads, added up; the key in each is that of the one that took longest."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for e in run.entries:
        at = (e["key"] if layouts else re.sub(r":[CFX]\b", "", e["key"]), e["threads"])
        if at not in found:
            found[at] = dict(e)
            continue
        both = found[at]
        longer = e if e["seconds"] > both["seconds"] else both
        both.update(
            count=both["count"] + e["count"], seconds=both["seconds"] + e["seconds"],
            algorithm=longer["algorithm"], used=longer["used"], key=longer["key"],
        )  # fmt: skip
    return found


def tune_script(
    argv: Sequence[str],
    *,
    max_error: float | None = None,
    deterministic: str = "",
    threads: int | None = None,
    budget: float = BUDGET,
    again: bool = False,
    rounds: int | None = None,
    verbose: bool = False,
    step: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> TuneReport:
    """Tune a script and compare it with what it was.

    Parameters
    ----------
    argv
        The script's path and its arguments.
    max_error
        Largest relative error that an algorithm may have, compared with a more precise result.
    deterministic
        "run" or "threads": reproducible at that level; then nothing is chosen by timing.
    threads
        Threads a call may use; by default what the switches say.
    budget
        Seconds for measuring, the most time-consuming Problems first.
    again
        Measure what records cover already, too.
    rounds
        How often the script runs in all three ways in turn, to be compared; by default as often as its time allows.
    verbose
        Show the script's output in every run, not only in the last.
    step, progress
        Told what begins: a run; a Problem (number, of how many, its key).

    Raises
    ------
    BadValue
        There is no such script.
    NothingToTune
        It called no operation of Backline.
    ScriptFailed
        It ended with an error.
    KeyboardInterrupt
        Passed on; what was measured is kept.
    """
    check_script(argv)
    name = argv[argv[0] == "-m"]
    common = {"BACKLINE_BENCHMARK": "0"}
    if threads is not None:
        common["BACKLINE_NUM_THREADS"] = str(threads)
    asked = {"BACKLINE_DETERMINISTIC": "1", "BACKLINE_DETERMINISM_LEVEL": deterministic} if deterministic else {}
    plain = {"BACKLINE_ONLY": "numpy", "BACKLINE_TUNING": ""}
    if threads is not None:
        plain["OPENBLAS_NUM_THREADS"] = str(threads)  # NumPy's own BLAS can only be told before it is loaded
    environments = {"numpy": common | plain, "untuned": common | asked | {"BACKLINE_TUNING": ""}}
    begin = time.perf_counter()
    step("NumPy alone")
    numpy = _run_numpy(argv, environments["numpy"], show=verbose)
    if not numpy.failed:
        _check_that_it_computes(name, numpy)
    numpy_ended = time.perf_counter()
    step("backline, not tuned")
    untuned = run_recorded("untuned", argv, environments["untuned"], show=verbose)
    _check_that_it_computes(name, untuned)
    report = TuneReport(name, numpy, untuned, untuned, deterministic=deterministic, max_error=max_error)
    # The tuned run takes as long as the one before it, or less.
    untuned_ended = time.perf_counter()
    able = script_runs.rounds_in_turn(numpy_ended - begin + 2 * (untuned_ended - numpy_ended))
    report.rounds = able if rounds is None else rounds
    wanted = _problems(untuned)
    if deterministic and max_error is None:
        report.left_out = {p.key: "nothing is chosen by timing under determinism" for p, _ in wanted}
    else:
        _measure(report, wanted, budget, not deterministic, again, progress)
        _weigh(report, untuned)
    report.measuring = time.perf_counter() - untuned_ended
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        last = common | asked | ({"BACKLINE_MAX_ERROR": repr(max_error)} if max_error is not None else {})
        where = records.path()
        if where and not records.report()["problem"]:
            report.file = where
        else:  # records are not kept in a file: the run gets them in one of its own
            last["BACKLINE_TUNING"] = os.path.join(folder, "tuning.sqlite")
            database.write(last["BACKLINE_TUNING"], records.every())
        what = "tuned" if not deterministic else "deterministic"
        twice = f", {report.rounds} times" if report.rounds > 1 else ""
        step(f"NumPy, untuned and {what}, in turn{twice}" if report.rounds else f"backline, {what}")
        _run_in_turn(report, argv, environments | {"tuned": last}, verbose)
    return report


def _run_numpy(argv: Sequence[str], environment: dict[str, str], *, show: bool) -> Run:
    """Runs the script on NumPy alone, which may be unable to."""
    try:
        return run_recorded("numpy", argv, environment, show=show)
    except ScriptFailed as error:
        return Run("numpy", failed=error.message)


def _run_in_turn(report: TuneReport, argv: Sequence[str], environments: dict[str, dict[str, str]], verbose: bool) -> None:
    """Runs the script tuned, in all three ways where there is time; keeps the fastest of each, of a quiet machine if any."""
    runs: dict[str, list[Run]] = {name: [] for name in environments}
    for left in reversed(range(max(report.rounds, 1))):
        if report.rounds and not report.numpy.failed:
            runs["numpy"].append(_run_numpy(argv, environments["numpy"], show=verbose))
        if report.rounds:
            runs["untuned"].append(run_recorded("untuned", argv, environments["untuned"], show=verbose))
        runs["tuned"].append(run_recorded("tuned", argv, environments["tuned"], show=verbose or not left))
    for name, several in runs.items():
        if several:
            setattr(report, name, min(several, key=lambda run: (bool(run.failed), bool(run.disturbed), run.seconds)))


def _check_that_it_computes(script: str, run: Run) -> None:
    if not run.entries:
        raise nothing_to_tune(
            script, "functions of NumPy and SciPy are not replaced, and what other processes of the script do is not recorded"
        )


def _problems(run: Run) -> list[tuple[Problem, int]]:
    """Problems of a run with their threads, the most time-consuming first."""
    entries = sorted(_by_problem(run).values(), key=lambda e: -e["seconds"])
    return [(unpack(e["problem"]), e["threads"]) for e in entries if e["problem"] is not None]


def _measure(
    report: TuneReport, wanted: list[tuple[Problem, int]], budget: float, timing: bool, again: bool,
    progress: Callable[[int, int, str], None],
) -> None:  # fmt: skip
    """Measure what records do not cover; if time is left, measure again what the machine was too busy for, now or before."""
    loop = BudgetedLoop(wanted, budget, lambda item: item[0].key, progress)
    for item in loop:
        problem, threads = item
        left = loop.seconds_left()  # before libraries are loaded to be asked, which may take longer than measuring
        refused: list[Candidate] = []
        with switches.scope(num_threads=threads):
            able = ranking.sort(problem, eligible(problem, threads, refused))
            under = coverage.restrictions(refused, switches.current(), left_out=False)
        if len(able) < 2 and timing:
            report.left_out[problem.key] = "there is one way to run it" if able else "nothing here can run it"
            continue
        held = records.find(problem, threads)
        if held is not None and not again and not coverage.pending(held, able, timing=timing):
            report.held.append(held)
            continue
        if held is not None and held.disturbed and not again and loop.first:
            loop.again(item)  # what was not measured at all comes first
            continue
        if left <= 0:
            loop.leave_out(item)
            continue
        try:
            with switches.scope({"cudnn.benchmark": timing}):  # its own plans have times as well
                record = measure_missing(
                    problem,
                    able,
                    threads,
                    again=again,
                    timing=timing,
                    under=under,
                    planner=planner,
                    budget=min(PER_PROBLEM, left),
                    limit=min(left, max(3 * PER_PROBLEM, left / 4)),
                    tries=1,
                )
        except MemoryError:
            report.left_out[problem.key] = "there is not enough memory to measure it"
            continue
        loop.keep(item, record)
    report.left_out |= loop.left_out
    report.records = loop.records()


def _weigh(report: TuneReport, untuned: Run) -> None:
    """Note in the records which libraries take longer to load than they save the script."""
    counts = {(e["key"], e["threads"]): e["count"] for e in _by_problem(untuned).values()}
    weighed = [*report.records, *report.held]
    measured = [(r, counts[r.key, r.threads]) for r in weighed]
    known = {(r.key, r.threads) for r in weighed}
    needed = {e["library"] for e in untuned.entries if (e["key"], e["threads"]) not in known}
    files = [library for library in libraries.all_libraries() if isinstance(library, FileLibrary) and library.loaded()]
    # A library that is missing took time to be looked for as well; it is `backline info` that tells of those.
    loading = {library.name: library.load_seconds for library in files if library.load_seconds and library.available()}
    report.not_loaded = not_worth_loading(measured, loading, needed)
    if report.not_loaded or any(r.left for r in weighed):
        report.records = [replace(r, left=report.not_loaded) for r in report.records]
        report.held = [replace(r, left=report.not_loaded) for r in report.held]
        records.keep_all([*report.records, *report.held])
