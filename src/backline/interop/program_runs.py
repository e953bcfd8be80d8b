"""Runs of a program in processes of their own, with the calls of its NumPy and SciPy recorded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO, cast

from .. import switches
from ..engine.tuning import machine_load
from .child_processes import PREFIX, SUFFIX
from .exchange.recorded_calls import Recorded, merged, read_file
from .recorded_program import FACTS

__all__ = ["ProgramRun", "environment", "run"]

KEPT = 1 << 22  # bytes of a run's output that are compared
TAIL = 4000  # characters of a failed run's output that are shown


@dataclass(slots=True)
class ProgramRun:
    """One run of a program.

    Attributes
    ----------
    choice : str
        The exchange: "numpy" for none.
    seconds : float
        Wall time of the program, without the start of Python and with the exchange; where it was killed, until the last record.
    exchange : float
        Wall time of the exchange.
    calls : list of Recorded
        Calls of all its processes, the most time-consuming first.
    processes : int
        How many processes recorded what they called: its own, those that it forked, and others that import NumPy.
    operations : int
        How many operations of Backline it called, without those of its child processes.
    disturbed : str
        What else kept the machine busy meanwhile.
    output : str
        What it printed.
    failed : str
        How it ended, "" where that was well.
    said : str
        The end of what a failed run wrote to stderr.
    status : int
        Its exit status, negative for a signal.
    """

    choice: str
    seconds: float = 0.0
    exchange: float = 0.0
    calls: list[Recorded] = field(default_factory=list)
    processes: int = 0
    operations: int = 0
    disturbed: str = ""
    output: str = ""
    failed: str = ""
    said: str = ""
    status: int = 0

    @property
    def in_calls(self) -> float:
        """Seconds spent in BLAS and LAPACK."""
        return sum(row.seconds for row in self.calls)

    def by_routine(self) -> dict[str, tuple[int, float]]:
        """Number of calls and their seconds, by routine, the most time-consuming first."""
        found: dict[str, tuple[int, float]] = {}
        for row in self.calls:
            count, seconds = found.get(row.symbol.routine, (0, 0.0))
            found[row.symbol.routine] = count + row.count, seconds + row.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def environment(threads: int | None) -> dict[str, str]:
    """Returns the variables of a run on some number of threads; nothing is measured in it."""
    more = {"BACKLINE_BENCHMARK": "0"}
    if threads is not None:
        more |= {"BACKLINE_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    return more


def run(choice: str, words: Sequence[str], more: dict[str, str], *, show: bool, layout: int = 0) -> ProgramRun:
    """Runs a program once; however it ends, what it called until then is in the result.

    Parameters
    ----------
    choice : str
        What `backline.interop.numpy.use` takes, as text; "numpy" exchanges nothing.
    words : sequence of str
        The script and its arguments, or "-m", a module and its arguments.
    more : dict
        Environment variables.
    show : bool
        Whether its output is shown.
    layout : int
        Number of a layout of memory, 0 for the usual one.
    """
    # A process that the program has left behind may write there still.
    with tempfile.TemporaryDirectory(prefix="backline-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "backline.interop.recorded_program", folder]
        command += [str(os.getpid()), choice, str(layout), *words]
        own = {name: value for name, value in os.environ.items() if name != PREFIX}  # it is no child of an outer program
        sys.stdout.flush()
        before = machine_load.read()
        with open(os.path.join(folder, "errors"), "w+b") as errors:
            with subprocess.Popen(command, env=own | more, stdout=subprocess.PIPE, stderr=None if show else errors) as process:
                assert process.stdout is not None
                try:
                    output = _pumped(process.stdout, show)
                except BaseException:
                    process.kill()
                    raise
                status = process.wait()
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace")
        result = _read(folder, choice)
    # Read here, where the processor time of all processes of the program counts as its own; they interrupt each other.
    after = replace(machine_load.read(), switches=None)
    result.disturbed = machine_load.between(before, after, cast(int, switches.get("num_threads"))).disturbed
    result.output, result.status = output.decode("utf-8", "replace"), status
    if status:
        result.failed = _ending(status)
        result.said = (said.strip() or result.output.strip())[-TAIL:]
    return result


def _pumped(source: IO[bytes], show: bool) -> bytes:
    """Returns what comes out of a pipe, at most so much of it; all of it is shown."""
    kept = bytearray()
    while chunk := os.read(source.fileno(), 1 << 16):
        if len(kept) < KEPT:
            kept += chunk
        if show:
            out = getattr(sys.stdout, "buffer", None)
            if out is None:
                sys.stdout.write(chunk.decode("utf-8", "replace"))
            else:
                out.write(chunk)
            sys.stdout.flush()
    return bytes(kept[:KEPT])


def _read(folder: str, choice: str) -> ProgramRun:
    """Returns what is in the files of a run, of all its processes together."""
    result, rows = ProgramRun(choice), []
    for name in sorted(os.listdir(folder)):
        if name.endswith(SUFFIX):
            with contextlib.suppress(OSError, ValueError):  # one that was killed as it began
                processes, calls = read_file(os.path.join(folder, name))
                result.processes += processes
                rows += calls
    result.calls = merged(rows)
    try:
        with open(os.path.join(folder, FACTS), encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, ValueError):
        result.failed = "ended before it began to be recorded"
        return result
    if not content["complete"]:
        result.failed = "ended without a record of its last seconds"
    for name in ("seconds", "exchange", "operations"):
        setattr(result, name, content[name])
    return result


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
