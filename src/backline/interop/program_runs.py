"""Runs of a program in processes of their own, with the calls of its NumPy and SciPy recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from .exchange import signatures
from .exchange.recorded_calls import Recorded
from .exchange.routines import Symbol

__all__ = ["ProgramRun", "run"]

KEPT = 1 << 22  # bytes of a run's output that are compared
TAIL = 4000  # characters of a failed run's output that are shown


@dataclass(slots=True)
class ProgramRun:
    """One run of a program.

    Attributes
    ----------
    choice : str
        "numpy" or "tuned".
    seconds : float
        Wall time of the program, without the start of Python and with the exchange; where it was killed, until the last record.
    exchange : float
        Wall time of the exchange.
    calls : list of Recorded
        What was called, the most time-consuming first.
    operations : int
        How many operations of Backline it called.
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


def run(choice: str, words: Sequence[str], more: dict[str, str], *, show: bool) -> ProgramRun:
    """Runs a program once; however it ends, what it called until then is in the result.

    Parameters
    ----------
    choice : str
        "numpy", or "tuned".
    words : sequence of str
        The script and its arguments, or "-m", a module and its arguments.
    more : dict
        Environment variables.
    show : bool
        Whether its output is shown.
    """
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        written = os.path.join(folder, "calls.json")
        command = [sys.executable, "-m", "backline.interop.recorded_program", written, str(os.getpid()), choice, *words]
        sys.stdout.flush()
        with open(os.path.join(folder, "errors"), "w+b") as errors:
            with subprocess.Popen(
                command, env=os.environ | more, stdout=subprocess.PIPE, stderr=None if show else errors
            ) as process:
                assert process.stdout is not None
                try:
                    output = _pumped(process.stdout, show)
                except BaseException:
                    process.kill()
                    raise
                status = process.wait()
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace")
        result = _read(written, choice)
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


def _read(path: str, choice: str) -> ProgramRun:
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, ValueError):
        return ProgramRun(choice, failed="ended without a record of what it called")
    failed = "" if content["complete"] else "ended without a record of its last seconds"
    rows = [_unpacked(row) for row in content["calls"]]
    seconds = content["seconds"], content["exchange"]
    return ProgramRun(choice, *seconds, rows, content["operations"], content["disturbed"], failed=failed)


def _unpacked(row: dict[str, Any]) -> Recorded:
    symbol = Symbol(row["routine"], row["interface"], row["width"], row["bundled"])
    signature = signatures.find(symbol.routine, symbol.interface)
    call = None
    if signature is not None and row["flags"] is not None:
        call = signatures.Call(signature, row["flags"], row["integers"])
    return Recorded(row["package"], symbol, row["library"], call, row["count"], row["seconds"], row["least"], row["rounded"])


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
