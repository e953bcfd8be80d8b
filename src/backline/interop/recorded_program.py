"""Runs a Python program with the calls of its NumPy and SciPy recorded: ``backline tune`` starts it.

Called as ``python -m backline.interop.recorded_program OUTPUT PARENT CHOICE [-m] PROGRAM [ARGUMENTS]``; CHOICE is "numpy" or
"tuned". The program sees the arguments, the name ``__main__`` and the import path that it would have without it, and its exit
status is the status. OUTPUT holds one JSON object, written every few seconds, so that it is there however the program ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from .. import _core, switches
from ..engine.tuning import machine_load
from ..engine.tuning.trace_script import end_with
from . import numpy
from .exchange import recorded_calls
from .exchanged_program import run_program

__all__ = ["main"]

EVERY = 2.0  # seconds between two writings


class _Record:
    """What is known of the program, and where it is written."""

    def __init__(self, output: str) -> None:
        self.output, self.process = output, os.getpid()
        self.operations = 0
        self.exchange = 0.0  # seconds that it took
        self.begin, self.before = time.perf_counter(), machine_load.read()
        self.lock = threading.Lock()
        self.recording: recorded_calls.Recording | None = None
        self.done = threading.Event()

    def count(self, op: str, plan: Any, nanoseconds: int) -> None:
        """Called with every operation of Backline."""
        self.operations += 1

    def start(self) -> None:
        self.begin, self.before = time.perf_counter(), machine_load.read()
        threading.Thread(target=self.keep_writing, name="backline-recorded-calls", daemon=True).start()

    def keep_writing(self) -> None:
        while not self.done.wait(EVERY):
            self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        if os.getpid() != self.process or self.recording is None:
            return  # a forked child of the program has nothing to say
        seconds = time.perf_counter() - self.begin + self.exchange
        after = replace(machine_load.read(), switches=None)  # threads of the program interrupt each other
        content = {
            "seconds": seconds,
            "exchange": self.exchange,
            "operations": self.operations,
            "complete": complete,
            "disturbed": machine_load.between(self.before, after, cast(int, switches.get("num_threads"))).disturbed,
            "calls": [_packed(row) for row in self.recording.calls()],
        }
        with self.lock:
            # Not by `write_whole`, which sets the permissions that the whole process gives new files for a moment.
            with open(f"{self.output}.new", "w", encoding="utf-8") as stream:
                json.dump(content, stream)
            os.replace(f"{self.output}.new", self.output)


def _packed(row: recorded_calls.Recorded) -> dict[str, Any]:
    symbol, call = row.symbol, row.call
    return {
        "package": row.package, "routine": symbol.routine, "interface": symbol.interface, "width": symbol.width,
        "bundled": symbol.bundled, "library": row.library, "flags": dict(call.flags) if call else None,
        "integers": dict(call.integers) if call else None, "count": row.count, "seconds": row.seconds, "least": row.least,
        "rounded": row.rounded,
    }  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Runs the program and writes what it called."""
    output, parent, choice, *program = words
    end_with(int(parent))
    record = _Record(output)
    if choice != "numpy":
        numpy.use(choice)
        record.exchange = time.perf_counter() - record.begin
    record.recording = recorded_calls.recording()
    with record.recording:
        _core.set_tracer(record.count)
        record.start()
        try:
            return run_program(program)
        finally:
            _core.set_tracer(None)
            record.done.set()
            record.write(complete=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
