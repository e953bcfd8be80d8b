"""Tuning of a cluster: what a script computes, here and on the workers, is measured once on each kind of machine among these.

Records are kept here as they come in, so that a scheduler that is lost on the way takes nothing along.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import _core, switches
from ...engine import ranking
from ...engine.choose import eligible, planner
from ...engine.tune_script import NothingToTune, recorded
from ...engine.tuning import coverage, record_store
from ...engine.tuning.benchmark import measure_missing
from ...engine.tuning.record import TuningRecord
from ...engine.tuning.trace_script import Recorder, unpack
from ...errors import BadValue
from . import worker_facts
from .connection import answered, call, check_versions, client_of, lost, results, slots
from .worker_settings import keep_lines, packed, records_of, unpacked

__all__ = ["ClusterTuning", "MachineTuning", "tune"]

BUDGET = 60.0
PER_PROBLEM = 1.0
LOOK = 0.5  # seconds between two looks at the connection
PAUSE = 0.01  # seconds between two looks at the measurements
Wanted = tuple[dict[str, Any], str, int]  # a Problem as JSON has it, its key, threads


@dataclass
class MachineTuning:
    """Measurements on one kind of machine.

    Attributes
    ----------
    machine, processors : str
        Its fingerprint in records, and its class of processors.
    shown : str
        Processor and instructions that libraries may use there: records of the same machine under a cap on them are others.
    in_file : bool
        Whether the records go to the file: of several caps on one machine, those of most workers.
    workers : tuple of str
        Workers on such machines. The first that is there measures.
    records : list of TuningRecord
        What was measured.
    known : int
        Problems that records covered already.
    left_out : dict
        Problems that were not measured, with the reason.
    told : int
        Workers that use the records from now on.
    """

    machine: str
    processors: str
    shown: str
    workers: tuple[str, ...]
    in_file: bool = True
    records: list[TuningRecord] = field(default_factory=list)
    known: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    told: int = 0


@dataclass
class ClusterTuning:
    """The result of tuning a cluster.

    Attributes
    ----------
    script : str
        The script.
    machines : list of MachineTuning
        One for each kind of machine.
    seconds : float
        Time that measuring took.
    file : str
        Where the records were written; empty if they are in no file.
    """

    script: str
    machines: list[MachineTuning]
    seconds: float = 0.0
    file: str = ""

    def measured(self) -> int:
        """Returns the number of records that were made."""
        return sum(len(each.records) for each in self.machines)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return {
            "script": self.script, "measured": self.measured(), "seconds": self.seconds, "file": self.file,
            "machines": {
                f"{each.machine}, {each.shown}": {
                    "processors": each.processors, "workers": each.workers, "measured": len(each.records), "known": each.known,
                    "left_out": each.left_out, "told": each.told,
                }
                for each in self.machines
            },
        }  # fmt: skip


# On workers ---------------------------------------------------------------------------------------------------------------

_recorder: Recorder | None = None


def start_recording() -> None:
    """Writes down from now on which Problems this process solves. Called on workers."""
    global _recorder
    _recorder = Recorder()
    _core.set_tracer(_recorder)


def stop_recording() -> list[dict[str, Any]]:
    """Returns what was written down, and ends that. Called on workers."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is None:
        return []
    _core.set_tracer(None)
    return recorder.entries()


def measure(problem: dict[str, Any], threads: int, seconds: float, again: bool) -> tuple[bytes, bool, str]:
    """Measures one Problem in this process: a task of a worker.

    Returns
    -------
    tuple
        The record, packed, or nothing; whether it was measured now; the reason where there is none.
    """
    asked = unpack(problem)
    with switches.scope(num_threads=threads):
        refused: list[Any] = []
        able = ranking.sort(asked, eligible(asked, threads, refused))
        under = coverage.restrictions(refused, switches.current(), left_out=False)
    if len(able) < 2:
        return b"", False, "there is one way to run it" if able else "nothing there can run it"
    held = None if again else record_store.find(asked, threads)
    if held is not None and not coverage.pending(held, able):
        return packed([held]), False, ""
    try:
        record = measure_missing(
            asked,
            able,
            threads,
            again=again,
            under=under,
            planner=planner,
            budget=min(PER_PROBLEM, seconds),
            limit=seconds,
            tries=1,
        )
    except MemoryError:
        return b"", False, "there is not enough memory to measure it"
    return packed([record]), True, ""


# Here ---------------------------------------------------------------------------------------------------------------------


def tune(
    client: Any, script: Sequence[str], *, budget: float = BUDGET, threads: int | None = None, again: bool = False,
    verbose: bool = False, step: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> ClusterTuning:  # fmt: skip
    """Measures what a script computes once on each kind of machine of a cluster, and gives the records to all workers.

    The script runs once, here; a client that it makes without an address is one of this cluster. What it calls itself counts, and
    what the workers call meanwhile. Every Problem is measured with the numbers of threads that the workers have.

    Parameters
    ----------
    client
        A client of the cluster.
    script
        The script's path and its arguments.
    budget
        Seconds for measuring on each machine, the most time-consuming Problems first.
    threads
        Threads that a call may use; by default what each worker has.
    again
        Measure what records cover already, too.
    verbose
        Show the script's output.
    step, progress
        Told what begins, and of each Problem measured: number, of how many, key.

    Returns
    -------
    ClusterTuning
        What was measured where.

    Raises
    ------
    BadValue
        There is no such script.
    NothingToTune
        Neither the script nor the workers called an operation of Backline.
    ScriptFailed
        It ended with an error.
    WorkerMismatch
        A worker has another version of Backline, or none.
    SchedulerLost
        The scheduler was lost. The records that had come in are kept, and another call goes on with the rest.

    Examples
    --------
    >>> tune(None, ["no_such_script.py"])
    Traceback (most recent call last):
      ...
    backline.errors.BadValue: there is no script 'no_such_script.py'
      remedy: the path of a Python file
    """
    if not script or not os.path.isfile(script[0]):
        raise BadValue(f"there is no script {script[0] if script else ''!r}", remedy="the path of a Python file")
    client = client_of(client)
    check_versions(client)
    found = results(call(client, worker_facts.facts, False), "telling of itself")
    step("the script, recorded")
    entries = _entries(client, script, threads, verbose)
    if not entries:
        raise NothingToTune(
            f"neither {script[0]} nor the workers called an operation of Backline, so there is nothing to tune",
            cause="functions of NumPy, SciPy and Dask are not replaced",
            remedy="operations of backline, or of backline.interop.dask on dask arrays",
        )
    report = ClusterTuning(script[0], _machines(found), file=record_store.path())
    step(f"measuring on {len(report.machines)} of {len(found)} workers")
    begin = time.perf_counter()
    try:
        _Measuring(client, report, budget, again, progress).run(entries, found, threads)
    finally:
        report.seconds = time.perf_counter() - begin
    for each in report.machines:
        if each.records:
            told = call(client, keep_lines, packed(each.records), workers=[w for w in each.workers if w in slots(client)])
            each.told = sum(not isinstance(answer, BaseException) for answer in told.values())
    return report


def _entries(client: Any, script: Sequence[str], threads: int | None, verbose: bool) -> list[dict[str, Any]]:
    """Problems of the script and the workers, with the time that they took, the longest first."""
    results(call(client, start_recording), "recording")
    here = {"BACKLINE_BENCHMARK": "0", "DASK_SCHEDULER_ADDRESS": client.scheduler.address}
    if threads is not None:
        here["BACKLINE_NUM_THREADS"] = str(threads)
    try:
        run = recorded(script, here, show=verbose)
    finally:
        there = call(client, stop_recording)
    entries = [e for each in there.values() if isinstance(each, list) for e in each]
    longest: dict[str, dict[str, Any]] = {}
    for e in [*run.entries, *entries]:
        if e["problem"] is not None:
            known = longest.setdefault(e["key"], {**e, "seconds": 0.0})
            known["seconds"] += e["seconds"]
    return sorted(longest.values(), key=lambda e: -e["seconds"])


def _machines(found: dict[str, dict[str, Any]]) -> list[MachineTuning]:
    kinds: dict[tuple[str, str], list[str]] = {}
    for address, facts in sorted(found.items()):
        kinds.setdefault((facts["machine"], facts["arithmetic"]), []).append(address)
    made: dict[str, MachineTuning] = {}
    everything = []
    for (machine, shown), members in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        each = MachineTuning(machine, found[members[0]]["processors"], shown, tuple(members), machine not in made)
        made.setdefault(machine, each)
        everything.append(each)
    return everything


class _Measuring:
    """The measurements under way: one at a time on each kind of machine."""

    def __init__(
        self, client: Any, report: ClusterTuning, budget: float, again: bool, progress: Callable[[int, int, str], None]
    ) -> None:
        self.client, self.report, self.budget, self.again, self.progress = client, report, budget, again, progress
        self.left: dict[int, deque[Wanted]] = {}
        self.under_way: dict[Any, tuple[MachineTuning, Wanted, str]] = {}
        self.lost_once: list[Wanted] = []
        self.done = self.total = 0

    def run(self, entries: Iterable[dict[str, Any]], found: dict[str, dict[str, Any]], threads: int | None) -> None:
        for each in self.report.machines:
            counts = sorted({found[w]["num_threads"] for w in each.workers}) if threads is None else [threads]
            self.left[id(each)] = deque((e["problem"], e["key"], count) for e in entries for count in counts)
            known = records_of([each.machine]) if each.in_file and not self.again else []
            if known:  # what was measured before, on another such machine perhaps
                call(self.client, keep_lines, packed(known), workers=each.workers[:1])
        self.total = sum(map(len, self.left.values()))
        deadline = time.monotonic() + self.budget
        try:
            while True:
                for each in self.report.machines:
                    self._begin(each, deadline)
                if not self.under_way:
                    break
                self._wait()
        finally:
            if self.client.status == "running":
                self.client.cancel(list(self.under_way))
        self.progress(self.total, self.total, "")

    def _begin(self, each: MachineTuning, deadline: float) -> None:
        left = self.left[id(each)]
        if not left or any(machine is each for machine, _, _ in self.under_way.values()):
            return
        seconds = deadline - time.monotonic()
        here = [address for address in each.workers if address in self._there()]
        if seconds <= 0 or not here:
            why = f"the budget of {self.budget:g} s was used up" if here else "no worker of this kind is left"
            each.left_out |= {key: why for _, key, _ in left}
            self.done += len(left)
            left.clear()
            return
        wanted = left.popleft()
        self.progress(self.done, self.total, wanted[1])
        with answered("a measurement was begun", self._kept):
            most = min(seconds, max(3 * PER_PROBLEM, seconds / 4))
            future = self.client.submit(measure, wanted[0], wanted[2], most, self.again, workers=[here[0]], pure=False)
        self.under_way[future] = each, wanted, here[0]

    def _there(self) -> dict[str, int]:
        if self.client.status != "running":
            raise lost("it was measured", f"the client is {self.client.status}", self._kept())
        with answered("it was measured", self._kept):
            return slots(self.client)

    def _wait(self) -> None:
        """Waits for a measurement to end, for the connection to be lost, or for the worker to leave."""
        until = time.monotonic() + LOOK
        while time.monotonic() < until and not any(future.done() for future in self.under_way):
            time.sleep(PAUSE)
        there = self._there()
        for future, (each, wanted, worker) in list(self.under_way.items()):
            if future.done() and self.client.status == "running":
                self.done += 1
                self._take(each, wanted, future)
            elif worker not in there:  # Dask would wait for it to come back
                future.cancel()
                if wanted in self.lost_once:  # it may be what ends the workers
                    self.done += 1
                    each.left_out[wanted[1]] = f"two workers were lost while they measured it, the last at {worker}"
                else:
                    self.lost_once.append(wanted)
                    self.left[id(each)].appendleft(wanted)
            else:
                continue
            del self.under_way[future]

    def _take(self, each: MachineTuning, wanted: Wanted, future: Any) -> None:
        if future.status != "finished":
            error = future.exception() if future.status == "error" else None
            each.left_out[wanted[1]] = f"measuring failed: {' '.join(str(error or future.status).split())}"
            return
        data, now, why = future.result()
        if why:
            each.left_out[wanted[1]] = why
        elif not now:
            each.known += 1
        if data:
            records = unpacked(data)
            if each.in_file:
                record_store.keep_all(records)
            each.records += records if now else []

    def _kept(self) -> str:
        file = self.report.file
        count = sum(len(each.records) for each in self.report.machines if each.in_file)
        return f"{count} records that had come in are kept{f' in {file}' if file else ' for this process only'}"
