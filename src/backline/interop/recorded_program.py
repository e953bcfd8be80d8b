"""Runs a Python program with the calls of its NumPy and SciPy recorded: ``backline tune`` starts it.

Called as ``python -m backline.interop.recorded_program FOLDER PARENT CHOICE LAYOUT [-m] PROGRAM [ARGUMENTS]``: CHOICE is that
of an exchange, "numpy" for none, and LAYOUT the number of a layout of memory, 0 for the usual one. The program sees the
arguments, the name ``__main__`` and the import path that it would have without it, and its exit status is the status. FOLDER
gets a file with the calls of this process and of those that it forks, one for each other process of the same Python, and
``program.json`` with the rest, written every few seconds. So all is there however the program ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence

from .. import _core
from ..engine.tuning.trace_script import end_with
from ..native.moved_memory import moved_memory
from . import child_processes, numpy
from .exchange import recorded_calls
from .exchanged_program import run_program

__all__ = ["FACTS", "main"]

EVERY = 2.0  # seconds between two writings
FACTS = "program.json"


class _Facts:
    """Facts of the program but for its calls, and the file that they are written to."""

    def __init__(self, folder: str) -> None:
        self.output, self.process = os.path.join(folder, FACTS), os.getpid()
        self.operations = 0
        self.exchange = 0.0  # seconds that it took
        self.begin = time.perf_counter()
        self.lock = threading.Lock()
        self.done = threading.Event()

    def count(self, op: str, plan: object, nanoseconds: int) -> None:
        """Called with every operation of Backline."""
        self.operations += 1

    def start(self) -> None:
        self.begin = time.perf_counter()
        self.write(complete=False)
        threading.Thread(target=self.keep_writing, name="backline-recorded-calls", daemon=True).start()

    def keep_writing(self) -> None:
        while not self.done.wait(EVERY):
            self.write(complete=False)

    def write(self, *, complete: bool) -> None:
        if os.getpid() != self.process:
            return  # in a forked child of the program
        content = {
            "seconds": time.perf_counter() - self.begin + self.exchange,
            "exchange": self.exchange,
            "operations": self.operations,
            "complete": complete,
        }
        with self.lock:
            # Not by `write_whole`, which sets the permissions that the whole process gives new files for a moment.
            with open(f"{self.output}.new", "w", encoding="utf-8") as stream:
                json.dump(content, stream)
            os.replace(f"{self.output}.new", self.output)


def main(words: Sequence[str]) -> int:
    """Runs the program and writes what it called."""
    folder, parent, choice, layout, *program = words
    end_with(int(parent))
    facts = _Facts(folder)
    recorded_calls.record_in_file(child_processes.new_file(folder))
    if choice != "numpy":
        numpy.use(choice)
        facts.exchange = time.perf_counter() - facts.begin
    child_processes.carry(choice, folder)
    with moved_memory(int(layout)), recorded_calls.recording():
        _core.set_tracer(facts.count)
        facts.start()
        try:
            return run_program(program)
        finally:
            _core.set_tracer(None)
            facts.done.set()
            facts.write(complete=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
