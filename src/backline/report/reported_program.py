"""Runs a Python program with everything recorded that its report shows: ``backline report`` starts it.

Called as ``python -m backline.report.reported_program OUTPUT PARENT [-m] PROGRAM [ARGUMENTS]``. The program sees the
arguments, the name ``__main__`` and the import path that it would have without it, and its exit status is the status. OUTPUT
holds one JSON object, written every few seconds, so that it is there however the program ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from .. import _core, switches
from ..engine import trace_facts
from ..engine.tuning import machine_load
from ..engine.tuning.trace_script import end_with
from ..errors import BacklineError
from ..interop.exchange import recorded_calls
from ..interop.exchanged_program import run_program
from ..switches.scope_state import process, states
from . import process_facts

__all__ = ["Recorder", "main"]

EVERY = 2.0  # seconds between two writings
MOST = 20_000  # Choices that are told apart
STARTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.spawn"))  # audit events


class Entry:
    """Calls of one Choice under the same switches; of several Choices where there are too many of them."""

    __slots__ = ("count", "least", "nanoseconds", "op", "planned", "problems", "source", "state")

    def __init__(self, op: str, source: Any, state: Any) -> None:
        self.op, self.source, self.state = op, source, state
        self.count = self.nanoseconds = self.planned = 0
        self.problems = 1
        self.least = 1 << 62

    @property
    def choice(self) -> Any:
        """The Choice; found now where it is of a template's Plan."""
        if type(self.source) is tuple:
            function, argument = self.source
            self.source = function(argument)
        return self.source


class Recorder:
    """Adds up what runs. Its instances are called with every Event of the process."""

    def __init__(self) -> None:
        self.seen: dict[tuple[Any, int, str], Entry] = {}
        self.last: dict[int, int] = {}  # by thread: when the event before it ended

    def __call__(self, op: str, plan: Any, nanoseconds: int) -> None:
        thread = threading.get_ident()
        source, planned = trace_facts.seen(plan, self.last.get(thread, 0))
        state = states.get(None) or process.bare
        snapshot = state.snapshot if state is not None else None  # none for a moment, while a switch is declared
        key = (source if type(source) is tuple else id(source), id(snapshot), op)
        entry = self.seen.get(key)
        if entry is None and len(self.seen) >= MOST:
            key = (0, id(snapshot), op)
            entry = self.seen.get(key)
            if entry is not None:
                entry.problems = 2
        if entry is None:  # the entry holds both: their ids stay their own
            entry = self.seen[key] = Entry(op, source, state)
        entry.count += 1
        entry.nanoseconds += nanoseconds
        entry.least = min(entry.least, nanoseconds)
        entry.planned += planned
        self.last[thread] = time.time_ns()


class _Record:
    """Facts about the program, and the file that they are written to."""

    def __init__(self, output: str) -> None:
        self.output, self.process = output, os.getpid()
        self.recorder = Recorder()
        self.started_processes = 0
        self.error = ""
        self.seconds = 0.0
        self.notes: list[str] = []
        self.lock = threading.Lock()
        self.recording: recorded_calls.Recording | None = None
        self.done = threading.Event()
        self.begin, self.before = time.perf_counter(), machine_load.read()

    def start(self) -> None:
        recording = recorded_calls.recording()
        try:
            self.recording = recording.__enter__()
        except BacklineError as error:
            self.notes.append(f"Calls of NumPy and SciPy are not recorded: {error.message}.")
        sys.addaudithook(self.audit)
        switches.current()  # now there is a base
        _core.set_tracer(self.recorder)
        self.begin, self.before = time.perf_counter(), machine_load.read()
        threading.Thread(target=self.keep_writing, name="backline-report", daemon=True).start()

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Counts processes that the program starts; those that Backline starts to try a library do not count."""
        if event in STARTS and os.getpid() == self.process and not _inside_backline():
            self.started_processes += 1

    def end(self) -> None:
        _core.set_tracer(None)
        self.done.set()
        if os.getpid() != self.process:
            return  # a forked child of the program has nothing to say
        with suppress(Exception):  # the program has ended, and its exit status is to be passed on
            self.write(complete=True)
            self.write(complete=True, refusals=True)

    def keep_writing(self) -> None:
        while not self.done.wait(EVERY):
            with suppress(Exception):  # entries may be added meanwhile
                self.write(complete=False)

    def write(self, *, complete: bool, refusals: bool = False) -> None:
        if os.getpid() != self.process:
            return
        after = replace(machine_load.read(), switches=None)  # threads of the program interrupt each other
        with self.lock:
            if self.done.is_set() and not complete:
                return
            if not refusals:  # the second writing of the end
                self.seconds = time.perf_counter() - self.begin
            threads = cast(int, switches.get("num_threads"))
            content = {
                "seconds": self.seconds,
                "complete": complete,
                "error": self.error,
                "disturbed": machine_load.between(self.before, after, threads).disturbed,
                "processes": self.started_processes,
                "notes": self.notes,
                "exchanged": process_facts.exchanged(self.recording.calls()) if self.recording is not None else [],
                **process_facts.gather(list(self.recorder.seen.values()), complete=complete, refusals=refusals),
            }
            # Not by `write_whole`, which sets the permissions that the whole process gives new files for a moment.
            with open(f"{self.output}.new", "w", encoding="utf-8") as stream:
                json.dump(content, stream)
            os.replace(f"{self.output}.new", self.output)


def _inside_backline() -> bool:
    """Tells whether a function of Backline other than this module's is among those that run."""
    package = (__package__ or "").partition(".")[0] + "."  # the name of this module may be "__main__"
    own = (f"{package}report.reported_program", f"{package}interop.exchanged_program")
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(package) and name not in own:
            return True
        frame = frame.f_back
    return False


def main(words: Sequence[str]) -> int:
    """Runs the program and writes what it did."""
    output, parent, *program = words
    end_with(int(parent))
    record = _Record(output)
    record.start()
    try:
        return run_program(program)
    except SystemExit as stopped:
        if stopped.code not in (None, 0):
            record.error = f"It ended itself: SystemExit({stopped.code!r})"
        raise
    except BaseException as error:
        record.error = f"{type(error).__name__}: {error}"[:2000]
        raise
    finally:
        record.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
