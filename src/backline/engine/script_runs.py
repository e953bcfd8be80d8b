"""Runs of a script in processes of their own, with the operations that it calls recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BacklineError, BadValue

__all__ = [
    "NothingToTune", "Run", "ScriptFailed", "check_module", "check_script", "nothing_to_tune", "recorded", "rounds_in_turn",
    "run_recorded",
]  # fmt: skip

TAIL = 4000  # characters of a failed script's output that are shown
COMPARING = 30.0  # seconds for running a script as it was and tuned in turn, after the measuring
ROUNDS = 2


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


def check_script(argv: Sequence[str]) -> None:
    """Raises `BadValue` if there is no such script; whether there is a module, only the program's own Python can tell.

    Examples
    --------
    >>> check_script(["--quickly", "job.py"])
    Traceback (most recent call last):
      ...
    backline.errors.BadValue: there is no option --quickly
      cause : what stands before the script is an option of the command
      remedy: --help lists the options; those of the script stand behind it
    """
    is_module = bool(argv) and argv[0] == "-m"
    named = argv[is_module] if len(argv) > is_module else ""
    if is_module and named and not named.startswith("-"):
        return
    if named and not is_module and os.path.isfile(named):
        return
    if len(named) > 1 and named.startswith("-"):
        raise BadValue(
            f"there is no option {named.partition('=')[0]}",
            cause="what stands before the script is an option of the command",
            remedy="--help lists the options; those of the script stand behind it",
        )
    what = f"there is no script {named!r}" if named else f"no {'module' if is_module else 'script'} is given"
    raise BadValue(what, remedy="the path of a Python file, or -m and a module")


def nothing_to_tune(script: str, cause: str) -> NothingToTune:
    """Returns the error for a script that has no calls which could be tuned."""
    return NothingToTune(
        f"{script} called no operation of Backline, so there is nothing to tune",
        cause=cause,
        remedy="call Backline's operations instead, such as backline.matmul(a, b) for a @ b and backline.linalg.svd(a) for "
        "numpy.linalg.svd(a), and run `backline tune` again",
    )


def rounds_in_turn(seconds: float) -> int:
    """Returns how often runs that take so long together are made in turn; 0 where once would take too long.

    The speed of a machine changes within the minute between the first runs and those that follow the measuring.
    """
    return min(ROUNDS, int(COMPARING / max(seconds, 1e-3)))


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


def check_module(argv: Sequence[str]) -> None:
    """Raises `BadValue` if a program is a module after "-m" that is not found; of one in a package, whether there is the package.

    Nothing is imported.

    Examples
    --------
    >>> check_module(["-m", "json.tool"])
    >>> check_module(["-m", "no_such_module"])
    Traceback (most recent call last):
      ...
    backline.errors.BadValue: there is no module 'no_such_module'
      remedy: its name as Python imports it from this folder, or the path of a script without -m
    """
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    if argv[0] != "-m":
        return
    top = argv[1].partition(".")[0]
    try:
        there = top and (find_spec(top) or PathFinder.find_spec(top, [os.getcwd()]))
    except ValueError:  # it is loaded, and does not say from where
        return
    if not there:
        raise BadValue(
            f"there is no module {argv[1]!r}",
            remedy="its name as Python imports it from this folder, or the path of a script without -m",
        )
