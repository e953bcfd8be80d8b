"""Tuning a script: what it computes is recorded, measured on every library, and the fastest ways are kept.

The script runs three times: on NumPy alone, which is what it had; on backline without tuning, recorded; and with what was
measured in between. Every run is a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .. import libraries, switches
from ..errors import BacklineError, BadValue
from ..libraries.base import FileLibrary
from ..problems import Problem
from . import ranking
from .choice import Candidate
from .choose import eligible, planner
from .tuning import coverage, database
from .tuning import record_store as records
from .tuning.benchmark import measure_missing
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
TAIL = 4000  # characters of a failed script's output that are shown


class NothingToTune(BacklineError, RuntimeError):
    """The script called no operation of Backline."""

    exit_status = 3


class ScriptFailed(BacklineError, RuntimeError):
    """The script to be tuned ended with an error; `status` is its exit status."""

    status = 1


@dataclass(slots=True)
class Run:
    """One run of the script.

    Attributes
    ----------
    name
        "numpy", "untuned" or "tuned".
    seconds
        Wall time of the script, without the start of Python.
    entries
        What ran: problem, library, algorithm, threads, count, seconds.
    failed
        Why there are no figures.
    disturbed
        What else kept the machine busy meanwhile; empty if it was quiet.
    """

    name: str
    seconds: float = 0.0
    entries: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""
    disturbed: str = ""

    @property
    def in_operations(self) -> float:
        """Seconds spent in operations of backline."""
        return float(sum(e["seconds"] for e in self.entries))

    def by(self, name: str) -> dict[str, float]:
        """Seconds by a property of the entries, most first."""
        found: dict[str, float] = {}
        for e in self.entries:
            found[e[name]] = found.get(e[name], 0.0) + e["seconds"]
        return dict(sorted(found.items(), key=lambda x: -x[1]))


@dataclass(slots=True)
class Row:
    """One Problem in the three runs: seconds in all, what ran it in the last, and how much faster that is than NumPy.

    `alone` has the seconds of one call on NumPy and tuned, from the measurement, in which both took turns. Where other programs
    disturbed the runs of the script, which come one after the other, `faster` is by those.
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
            if self.busy():
                row.faster = row.alone[0] / row.alone[1] if row.alone[0] and row.alone[1] else None
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
        pairs = [(r.count * r.alone[0], r.count * r.alone[1]) for r in self.rows() if r.alone[0] and r.alone[1]]
        if sum(r.tuned or 0.0 for r in self.rows() if r.faster is not None) < MOST * self.tuned.in_operations:
            return None
        return sum(before for before, _ in pairs) / sum(after for _, after in pairs) if pairs else None

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        runs = {}
        for run in (self.numpy, self.untuned, self.tuned):
            runs[run.name] = {
                "seconds": run.seconds, "in_operations": run.in_operations, "failed": run.failed,
                "by_library": run.by("library"), "disturbed": run.disturbed,
            }  # fmt: skip
        return {
            "script": self.script, "runs": runs, "rows": [asdict(r) for r in self.rows()], "measured": len(self.records),
            "held": len(self.held), "disturbed": {r.key: r.disturbed for r in self.records if r.disturbed},
            "left_out": self.left_out, "not_loaded": self.not_loaded, "measuring": self.measuring, "file": self.file,
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


def check_script(argv: Sequence[str]) -> None:
    """Raises `BadValue` if there is no such script; whether there is a module, only the program's own Python can tell."""
    if not argv or (argv[0] == "-m" and len(argv) < 2) or (argv[0] != "-m" and not os.path.isfile(argv[0])):
        raise BadValue(f"there is no script {argv[-1] if argv else ''!r}", remedy="the path of a Python file, or -m and a module")


def tune_script(
    argv: Sequence[str],
    *,
    max_error: float | None = None,
    deterministic: str = "",
    threads: int | None = None,
    budget: float = BUDGET,
    again: bool = False,
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
    step("NumPy alone")
    try:
        numpy = run_recorded("numpy", argv, common | plain, show=verbose)
    except ScriptFailed as error:
        numpy = Run("numpy", failed=error.message)
    else:
        _check_that_it_computes(name, numpy)
    step("backline, not tuned")
    untuned = run_recorded("untuned", argv, common | asked | {"BACKLINE_TUNING": ""}, show=verbose)
    _check_that_it_computes(name, untuned)
    report = TuneReport(name, numpy, untuned, untuned, deterministic=deterministic, max_error=max_error)
    begin = time.perf_counter()
    wanted = _problems(untuned)
    if deterministic and max_error is None:
        report.left_out = {p.key: "nothing is chosen by timing under determinism" for p, _ in wanted}
    else:
        _measure(report, wanted, budget, not deterministic, again, progress)
        _weigh(report, untuned)
    report.measuring = time.perf_counter() - begin
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        last = common | asked | ({"BACKLINE_MAX_ERROR": repr(max_error)} if max_error is not None else {})
        where = records.path()
        if where and not records.report()["problem"]:
            report.file = where
        else:  # records are not kept in a file: the run gets them in one of its own
            last["BACKLINE_TUNING"] = os.path.join(folder, "tuning.sqlite")
            database.write(last["BACKLINE_TUNING"], records.every())
        step("backline, tuned" if not deterministic else "backline, deterministic")
        report.tuned = run_recorded("tuned", argv, last, show=True)
    return report


def _check_that_it_computes(script: str, run: Run) -> None:
    if not run.entries:
        raise nothing_to_tune(
            script, "functions of NumPy and SciPy are not replaced, and what other processes of the script do is not recorded"
        )


def nothing_to_tune(script: str, cause: str) -> NothingToTune:
    """Returns the error for a script that has no calls which could be tuned."""
    return NothingToTune(
        f"{script} called no operation of Backline, so there is nothing to tune",
        cause=cause,
        remedy="call Backline's operations instead, such as backline.matmul(a, b) for a @ b and backline.linalg.svd(a) for "
        "numpy.linalg.svd(a), and run `backline tune` again",
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
    deadline = time.perf_counter() + budget
    measured: dict[tuple[str, int], TuningRecord] = {}
    second = [*wanted]
    for number, (problem, threads) in enumerate(second):
        if number < len(wanted):
            progress(number, len(wanted), problem.key)
        left = deadline - time.perf_counter()  # before libraries are loaded to be asked, which may take longer than measuring
        at = (problem.key, threads)
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
        if held is not None and held.disturbed and not again and number < len(wanted):
            second.append((problem, threads))  # what was not measured at all comes first
            continue
        if left <= 0:
            if at not in measured:
                report.left_out[problem.key] = f"the budget of {budget:g} s was used up; `backline tune` again goes on with them"
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
        if record.disturbed and number < len(wanted):
            second.append((problem, threads))
        measured[at] = record
    report.records = list(measured.values())
    progress(len(wanted), len(wanted), "")


def _weigh(report: TuneReport, untuned: Run) -> None:
    """Note in the records which libraries take longer to load than they save the script; not by times of a busy machine."""
    if any(r.disturbed for r in report.records):
        return
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


def run_recorded(
    name: str, argv: Sequence[str], more: dict[str, str], *, show: bool, recorder: Sequence[str] = ("tuning/trace_script.py",)
) -> Run:
    """Run the script in a process of its own, recorded by a script of this folder with arguments of its own."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), *recorder[0].split("/"))
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        output = os.path.join(folder, "run.json")
        command = [sys.executable, path, *recorder[1:], output, str(os.getpid()), *argv]
        with open(os.path.join(folder, "output"), "w+b") as kept:
            to = None if show else kept
            sys.stdout.flush()
            status = subprocess.run(command, env=os.environ | more, stdout=to, stderr=to, check=False).returncode
            if status:
                kept.seek(0)
                raise _failure(argv[argv[0] == "-m"], name, status, kept.read().decode("utf-8", "replace"))
        try:
            with open(output, encoding="utf-8") as stream:
                content = json.load(stream)
        except (OSError, ValueError):
            raise ScriptFailed(
                f"{argv[argv[0] == '-m']} ended without a record of what it did",
                cause="it left by os._exit or replaced its process",
            ) from None
    return Run(name, content["seconds"], content["entries"], disturbed=content["disturbed"])


def _failure(script: str, name: str, status: int, text: str) -> ScriptFailed:
    import signal

    if status < 0:
        try:
            how = f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            how = f"was ended by signal {-status}"
    else:
        how = f"ended with status {status}"
    where = {"numpy": " on NumPy alone", "tuned": " when tuned"}.get(name, "")
    shown = text.strip()[-TAIL:].replace("\n", "\n           ")
    error = ScriptFailed(f"{script} {how}{where}", cause=shown)
    error.status = status
    return error


def recorded(argv: Sequence[str], more: dict[str, str], *, show: bool) -> Run:
    """Runs a script once, untuned, in a process of its own with some environment variables; returns what it called."""
    return run_recorded("untuned", argv, {"BACKLINE_TUNING": "", **more}, show=show)
