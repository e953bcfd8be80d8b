"""Tuning a program that calls NumPy and SciPy.

Its calls of BLAS and LAPACK are recorded, measured on every library, and the program runs again with the fastest.

Every run is a process of its own. What is kept are tuning records, by which ``use("tuned")`` chooses.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from .. import switches
from ..engine.script_runs import rounds_in_turn
from ..engine.tuning import database, record_store
from ..engine.tuning.budgeted_loop import BudgetedLoop
from ..engine.tuning.record import TuningRecord
from ..errors import BackendUnavailable, BacklineError
from ..settings import set_num_threads
from .exchange import layouts, loaded_objects, measured_calls, targets, tuned_choice
from .exchange.recorded_calls import Recorded
from .output_comparison import Comparison, compare
from .program_runs import ProgramRun, environment, run

__all__ = ["ProgramReport", "recorded", "tune_program", "unsupported", "worth_tuning"]

BUDGET = 60.0
PER_CALL = 1.0  # seconds for one problem
LEAST = 1e-3  # seconds in BLAS and LAPACK below which there is nothing to gain
PART = 0.002  # of the time in BLAS and LAPACK: less than that is not measured
SLOWER = 1.03  # a routine that takes so many times longer in the program goes back to what it had,
NOTICED = 0.01  # where that is so large a part of the time in BLAS and LAPACK
"""Limits by which calls are measured, and routines taken back."""


@dataclass(slots=True)
class ProgramReport:
    """The result of tuning a program.

    Attributes
    ----------
    script : str
        Its name.
    stock, tuned : ProgramRun
        The runs; `tuned` is None where nothing was exchanged, or where the program failed before. Of a short program `stock` is a
        run that followed the tuned one.
    choice : Tuned
        What was chosen.
    records, held : list of TuningRecord
        What was measured, and what had been before.
    left_out : dict
        What was not measured, with the reason.
    taken_back : dict
        Routines that were slower in the program than before, with the figures.
    measuring : float
        Seconds spent measuring.
    file : str
        Where the records are, "" if nowhere.
    """

    script: str
    stock: ProgramRun
    choice: tuned_choice.Tuned = field(default_factory=lambda: tuned_choice.Tuned("", ()))
    tuned: ProgramRun | None = None
    records: list[TuningRecord] = field(default_factory=list)
    held: list[TuningRecord] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    taken_back: dict[str, str] = field(default_factory=dict)
    measuring: float = 0.0
    file: str = ""

    def busy(self) -> str:
        """Describes other load during the runs; empty if their times can be compared."""
        return self.stock.disturbed or (self.tuned.disturbed if self.tuned else "")

    def faster(self, *, whole: bool) -> float | None:
        """Returns how much faster the program is, or its calls; None where the runs cannot be compared."""
        if self.tuned is None or self.busy() or self.stock.failed or self.tuned.failed:
            return None
        before, after = (r.seconds if whole else r.in_calls for r in (self.stock, self.tuned))
        return before / after if before and after else None

    def comparison(self) -> Comparison | None:
        """Returns how the outputs of the runs differ; None where there is one run."""
        return None if self.tuned is None else compare(self.stock.output, self.tuned.output)

    def largest_error(self) -> float | None:
        """Returns the largest relative difference of a chosen library's results from the package's own, on random operands."""
        chosen = {(r.routine, r.library) for r in self.choice.routines}
        errors = [
            error
            for record in [*self.records, *self.held]
            for key, error in record.errors.items()
            if tuple(reversed(key.partition("@")[0].split("."))) in chosen
        ]
        return max(errors, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        comparison = self.comparison()
        return {
            "script": self.script,
            "runs": {r.choice: _run_as_dict(r) for r in (self.stock, self.tuned) if r is not None},
            "home": self.choice.home,
            "routines": [asdict(r) for r in self.choice.routines],
            "faster": {"whole": self.faster(whole=True), "calls": self.faster(whole=False)},
            "comparison": str(comparison) if comparison else "",
            "largest_error": self.largest_error(),
            "measured": len(self.records), "held": len(self.held), "left_out": self.left_out, "taken_back": self.taken_back,
            "disturbed": {r.key: r.disturbed for r in self.records if r.disturbed}, "measuring": self.measuring,
            "file": self.file,
        }  # fmt: skip


def _run_as_dict(run: ProgramRun) -> dict[str, Any]:
    routines = {name: {"calls": count, "seconds": seconds} for name, (count, seconds) in run.by_routine().items()}
    return {
        "seconds": run.seconds, "in_calls": run.in_calls, "exchange": run.exchange, "failed": run.failed,
        "disturbed": run.disturbed, "processes": run.processes, "routines": routines,
    }  # fmt: skip


def unsupported() -> str:
    """Returns why the calls of NumPy and SciPy cannot be recorded in this process, "" where they can."""

    try:
        layouts.require_system()
        layouts.require(loaded_objects.modules())
    except BackendUnavailable as error:
        return error.cause or str(error)
    return ""


def recorded(words: Sequence[str], *, threads: int | None = None, show: bool = False) -> ProgramRun:
    """Runs a program on what NumPy and SciPy brought along, and returns what it called."""
    return run("numpy", words, environment(threads), show=show)


def worth_tuning(stock: ProgramRun) -> bool:
    """Tells whether a program spends time in routines that can be measured."""
    return sum(row.seconds for row in stock.calls if row.call is not None) >= LEAST


def tune_program(
    words: Sequence[str],
    stock: ProgramRun,
    *,
    max_error: float | None = None,
    threads: int | None = None,
    budget: float = BUDGET,
    again: bool = False,
    rounds: int | None = None,
    step: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> ProgramReport:
    """Measures what a run called, and runs the program again with what is fastest.

    Parameters
    ----------
    words
        The script and its arguments, or "-m", a module and its arguments.
    stock
        The run by which its calls are known: what `recorded` returned.
    threads
        Threads a call may use; by default what the switches say.
    budget
        Seconds for measuring, the most time-consuming calls first.
    again
        Measure what records cover already, too.
    rounds
        0: the program does not run as it is once more, to be compared; by default it does unless that takes long.
    max_error
        Largest relative difference that a routine's results may have from those of the package's own library.
    step, progress
        Told what begins: a run; a problem (number, of how many, its key).

    Raises
    ------
    KeyboardInterrupt
        Passed on; what was measured is kept.
    """
    report = ProgramReport(words[1] if words[0] == "-m" else words[0], stock)
    more = environment(threads) | ({} if max_error is None else {"BACKLINE_MAX_ERROR": repr(max_error)})
    begin = time.perf_counter()
    with _threads(threads), switches.scope(max_error=max_error):
        _measure(report, budget, again, progress)
        report.measuring = time.perf_counter() - begin
        report.file = record_store.path() if not record_store.report()["problem"] else ""
        report.choice = tuned_choice.tuned()
        if stock.failed or not report.choice.home:
            return report
        step("tuned")
        report.tuned = _again(report, words, more, show=True)
        if not stock.failed and (rounds_in_turn(stock.seconds) if rounds is None else rounds):
            # What is taken back is told by runs that follow each other: a machine's speed changes while calls are measured.
            step("NumPy and SciPy as they are, to compare")
            once_more = recorded(words, threads=threads)
            if not once_more.failed and (stock.disturbed or not once_more.disturbed):
                report.stock = once_more
        if _take_back(report):
            report.choice = tuned_choice.tuned()
            if report.choice.home:
                step("tuned, without what was slower")
                report.tuned = _again(report, words, more, show=False)
    return report


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """A scope in which this process may use so many threads: an exchange follows the setting of the process, and no scope."""
    former = cast(int, switches.get("num_threads"))
    if count is not None:
        set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            set_num_threads(former)


def _again(report: ProgramReport, words: Sequence[str], more: dict[str, str], *, show: bool) -> ProgramRun:
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        if not report.file:  # the run gets the records in a file of its own
            more = {**more, "BACKLINE_TUNING": os.path.join(folder, "tuning.sqlite")}
            database.write(more["BACKLINE_TUNING"], record_store.every())
        return run("tuned", words, more, show=show)


# Measuring --------------------------------------------------------------------------------------------------------------


def _problems(report: ProgramReport) -> list[Recorded]:
    """One call for each routine, set of flags and class of sizes: the one that took most of the time."""
    classes: dict[tuple[Any, ...], list[Recorded]] = {}
    total = report.stock.in_calls
    for row in report.stock.calls:
        name = f"{row.package}.{row.symbol.routine}"
        if row.call is None:
            if row.seconds >= PART * total:
                report.left_out[name] = "its arguments are not known here"
            continue
        if row.call.work <= 0:
            continue  # empty: nothing is computed
        size = int(math.log2(row.call.work))
        classes.setdefault((row.package, row.symbol, tuple(row.call.flags.values()), size), []).append(row)
    found = []
    for rows in classes.values():
        longest = max(rows, key=lambda row: row.seconds)
        both = replace(longest, count=sum(row.count for row in rows), seconds=sum(row.seconds for row in rows))
        if both.seconds < PART * total:
            report.left_out[f"{both.package}.{both.symbol.routine}"] = (
                f"less than {100 * PART:g} % of the time in BLAS and LAPACK"
            )
        else:
            found.append(both)
    return sorted(found, key=lambda row: -row.seconds)


def _measure(report: ProgramReport, budget: float, again: bool, progress: Callable[[int, int, str], None]) -> None:
    """Measures what records do not cover; what the machine was too busy for a second time, if there is time left."""
    _import_what_is_called(report.stock)
    names = [name for name in targets.NAMES if _available(name)]
    loop = BudgetedLoop(_problems(report), budget, lambda row: row.key, progress)
    with measured_calls.thread_counts(names):
        for row in loop:
            held = record_store.find_key(row.key, targets.threads())
            if loop.first and held is not None and not again and not held.disturbed:
                report.held.append(_with_calls(held, row.count))
                continue
            left = loop.seconds_left()
            if left <= 0:
                loop.leave_out(row)
                continue
            functions, refused = measured_calls.candidates(row, names)
            if len(functions) < 3:  # the package's own, on all threads and on one
                why = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
                report.left_out[row.key] = f"no other library can run it ({why})" if why else "no other library is here"
                continue
            try:
                record = measured_calls.measure_call(row, functions, budget=min(PER_CALL, left))
            except MemoryError:
                report.left_out[row.key] = "its operands are too large to be measured beside the program's"
                continue
            record_store.keep(record)
            loop.keep(row, record)
    report.left_out |= loop.left_out
    report.records = loop.records()
    record_store.keep_all(report.held)


def _with_calls(record: TuningRecord, count: int) -> TuningRecord:
    return replace(record, calls=count)


def _available(name: str) -> bool:

    try:
        targets.load(name)
    except BacklineError:
        return False
    return True


def _import_what_is_called(stock: ProgramRun) -> None:
    """Imports the modules through which SciPy's routines are called: their addresses are known from them."""
    if any(row.package == "scipy" for row in stock.calls):
        loaded_objects.import_scipy()


# Taking back --------------------------------------------------------------------------------------------------------------


def _take_back(report: ProgramReport) -> bool:
    """Notes in the records which routines took longer in the program than before; returns whether there are any.

    Not by times of a busy machine.
    """
    tuned = report.tuned
    if tuned is None or report.busy() or tuned.failed:
        return False
    before, after = report.stock.by_routine(), tuned.by_routine()
    moved = {r.routine: r.library for r in report.choice.routines if r.library != "numpy"}
    noticed = NOTICED * report.stock.in_calls
    whole = tuned.in_calls > report.stock.in_calls
    for routine, library in moved.items():
        then, now = before.get(routine, (0, 0.0))[1], after.get(routine, (0, 0.0))[1]
        if whole or (now > SLOWER * then and now - then > noticed):
            report.taken_back[routine] = f"{library} took {now:.3g} s in the program, where it had taken {then:.3g} s"
    if not report.taken_back:
        return False
    changed = []
    for group in (report.records, report.held):
        for i, record in enumerate(group):
            routine = record.key.split()[1].partition(".")[2]
            if routine in report.taken_back:
                key = f"{moved[routine]}.{routine}@n"
                reason = f"slower in a program: {report.taken_back[routine]}"
                group[i] = replace(record, rejected={**record.rejected, key: reason}, created=_later(record.created))
                changed.append(group[i])
    record_store.keep_all(changed)
    return True


def _later(created: str) -> str:
    """The time of now, so that a record takes the place of the one it was made from."""
    from datetime import UTC, datetime

    return max(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), created)
