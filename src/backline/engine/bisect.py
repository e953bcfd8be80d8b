"""Bisection of a script: which library, algorithm and call makes its result wrong, or slow.

Every run is a process of its own, in which some calls run as they would and the others by the reference library. The first run
writes down which calls there are; the second has all of them by the reference. Between those two the calls are halved.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .. import libraries
from ..errors import BacklineError, BadValue
from .bisect_search import BAD, GOOD, SKIP, Call, search
from .library_remedy import enabling_name, launcher_option, without
from .script_runs import TAIL
from .tune_script import ScriptFailed, check_script

__all__ = ["BisectReport", "NothingToBisect", "Run", "bisect_script"]

SKIPPED = 125  # exit status of a test that can tell neither
SLOWER = 1.2  # a script is slow if it takes so many times as long as by the reference
CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")


class NothingToBisect(BacklineError, RuntimeError):
    """The script is good as it is, or as bad by the reference library."""

    exit_status = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes
    ----------
    number
        From 1 on.
    what
        Which calls ran as chosen, in words.
    outcome
        "good", "bad" or "skip".
    seconds
        Time of the operations.
    """

    number: int
    what: str
    outcome: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"run {self.number}: {self.what}: {self.outcome}"


@dataclass(slots=True, repr=False)
class BisectReport:
    """Result of a bisection; prints as a table.

    Attributes
    ----------
    script, against
        What ran, and the reference library.
    runs
        Every run, in order.
    calls
        How many calls were suspects.
    suspects
        The calls that are left: one, more where runs were skipped.
    alone
        Whether the script is good with these calls alone by the reference; None where that was not tried or is not known.
    without_library
        Whether it is good with their library switched off; None where that was not tried or is not known.
    """

    script: str
    against: str
    runs: list[Run] = field(default_factory=list)
    calls: int = 0
    suspects: list[Call] = field(default_factory=list)
    alone: bool | None = None
    without_library: bool | None = None

    def rows(self) -> list[tuple[str, str]]:
        """Returns the lines of the conclusion: pairs of label and text."""
        if not self.suspects:
            return []
        found = [
            (name, ", ".join(dict.fromkeys(str(call[i]) for call in self.suspects)))
            for i, name in enumerate(("library", "algorithm", "problem"))
        ]
        if len(self.suspects) == 1:
            found.append(("call", f"number {self.suspects[0].number} of this problem"))
        else:
            found.append(("call", f"one of {len(self.suspects)}: the runs that would tell were skipped"))
        if self.alone is not None:
            alone = f"that call alone: with it by {self.against} the script is good"
            others = f"others, too: with it alone by {self.against} the script is bad"
            found.append(("extent", alone if self.alone else others))
        return [*found, ("remedy", self.remedy())]

    def remedy(self) -> str:
        """Returns what to set, in words."""
        name = str(self.suspects[0].library)
        option = launcher_option(name)
        if self.without_library is False:
            around = "that call, which is good" if self.alone else "the calls of this problem; every call by it is good"
            tried = f"without {name} another library ran it, and it is bad, too"
            return f"with backline.use({self.against!r}): around {around}; {tried}"
        if not option:
            return without(name)
        tried = ", which is good" if self.without_library else ""
        return f"backline run {option} {self.script}{tried}; or backline.backends.{enabling_name(name)} = False"

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["runs"] = [{item.name: getattr(run, item.name) for item in fields(run)} for run in self.runs]
        found["suspects"] = [call._asdict() for call in self.suspects]
        found["remedy"] = self.remedy() if self.suspects else ""
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.script}: {len(self.runs)} runs; print() shows it>"

    def __str__(self) -> str:
        lines = [str(run) for run in self.runs] + [f"{label:<10}  {text}" for label, text in self.rows()]
        return "\n".join(lines)


def bisect_script(
    argv: Sequence[str], *, test: str = "", slow: bool = False, against: str = "numpy",
    step: Callable[[Run], None] = lambda run: None,
) -> BisectReport:  # fmt: skip
    """Finds which library, algorithm and call makes a script's result wrong, or the script slow.

    Parameters
    ----------
    argv
        The script's path and its arguments, or "-m", a module and its arguments.
    test
        A command that runs after a script that succeeds, and tells by its exit status what became of it, as for
        ``git bisect run``: 0 for good, 1 to 127 for bad, 125 where it cannot tell. Without it the script's own status counts.
    slow
        Look for what makes the script slow instead: bad is what takes longer than the geometric mean of the times as chosen and
        by the reference.
    against
        The reference library.
    step
        Told of each run when it ends.

    Raises
    ------
    BadValue
        There is no such script or library, or the test is no command.
    NothingToBisect
        The script is good as it is, is bad by the reference library as well, or calls nothing that another library runs.
    ScriptFailed
        The test, or the script where its time is looked at, ended with a status that tells nothing.
    """
    check_script(argv)
    if not libraries.get(against).available():
        raise BadValue(f"{against!r} is not available", cause=libraries.get(against).reason(), remedy='"numpy" is always there')
    words = _command(test)
    report = BisectReport(shlex.join(argv), against)
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        _Bisection(report, argv, words, slow, folder, step).run()
    return report


def _command(test: str) -> list[str]:
    """Returns the words of a test, or raises `BadValue` for what cannot be run."""
    remedy = 'a command, such as --test "python verify.py"'
    try:
        words = shlex.split(test)
    except ValueError as error:
        raise BadValue(f"--test {test!r} is no command", cause=str(error), remedy=remedy) from None
    if test and (not words or shutil.which(words[0]) is None):
        raise BadValue(
            f"--test {test!r} cannot be run", cause=f"there is no program {words[0] if words else ''!r}", remedy=remedy
        )
    return words


class _Bisection:
    """The runs of one bisection."""

    def __init__(
        self, report: BisectReport, argv: Sequence[str], test: Sequence[str], slow: bool, folder: str, step: Callable[[Run], None]
    ) -> None:
        self.report, self.argv, self.test, self.slow, self.folder, self.step = report, argv, test, slow, folder, step
        self.calls: list[Call] = []
        self.called = False  # whether the script called any operation
        self.limit = math.inf  # seconds from which on a run is slow
        self.said, self.speaker = "", ""  # the end of what was printed last, by the script or the test

    def run(self) -> None:
        """Makes the runs, and fills the report in."""
        report = self.report
        first = self._tried("every call as chosen", None)
        recorded = self._recorded()
        self.called = bool(recorded)
        self.calls = sorted(call for call in recorded if call.library != report.against)
        report.calls = len(self.calls)
        self._needs_suspects(first)
        second = self._tried(f"every call by {report.against}", [])
        if self.slow:
            self._compare_times(first, second)
        elif second.outcome != GOOD:
            if second.outcome == SKIP:
                message, cause = f"neither good nor bad on {report.against} alone", "there is nothing to compare with"
            else:
                message, cause = f"bad on {report.against} alone as well", "the cause is none of these libraries"
            raise self._nothing(f"it is {message}", cause + self._printed(), "what was printed tells what failed")
        low, high = search(self.calls, self._outcome)
        report.suspects = self.calls[low:high]
        if high - low > 1:
            return
        rest = [call for call in self.calls if call != self.calls[low]]
        others = self._tried(f"every call as chosen but the one found, {self._named(low)}", rest) if rest else None
        report.alone = None if others is None or others.outcome == SKIP else others.outcome == GOOD
        switch = enabling_name(self.calls[low].library)
        if switch:
            variable = "BACKLINE_" + switch.upper().replace(".", "_")
            last = self._tried(f"as chosen with {switch} = False", None, {variable: "0"})
            report.without_library = None if last.outcome == SKIP else last.outcome == GOOD

    def _needs_suspects(self, first: Run) -> None:
        if not self.calls:
            said = self._printed() if first.outcome == BAD else ""
            reference = f"no library but {self.report.against} ran an operation of it"
            message = reference if self.called else "it calls no operation of Backline"
            raise self._nothing(message, f"calls of other packages are not seen{said}", "call Backline's operations")
        if self.slow or first.outcome == BAD:
            return
        who, skipped = self.speaker, first.outcome == SKIP
        message = f"{who} cannot tell whether it is good or bad as it is" if skipped else "it is good as it is"
        remedy = "a test that fails on what is wrong" if self.test else "--test names a command that tells good from bad"
        raise self._nothing(message, f"{who} ended with status {SKIPPED if skipped else 0}", f"{remedy}; --slow looks at time")

    def _compare_times(self, first: Run, second: Run) -> None:
        if first.seconds < SLOWER * second.seconds:
            faster = first.seconds < second.seconds
            raise self._nothing(
                f"its operations take {first.seconds:.3g} s, and {second.seconds:.3g} s on {self.report.against} alone",
                "they are faster as chosen" if faster else f"less than {SLOWER:g} times as long is not slow",
                "look for the time outside of Backline's operations: python -m cProfile",
            )
        self.limit = math.sqrt(first.seconds * second.seconds)

    def _printed(self) -> str:
        return f"; {self.speaker} printed: {self.said}" if self.said else ""

    def _nothing(self, message: str, cause: str, remedy: str) -> NothingToBisect:
        return NothingToBisect(f"{self.report.script}: {message}", cause=cause, remedy=remedy)

    def _outcome(self, count: int) -> str:
        """The outcome where so many of the calls run as chosen."""
        what = f"{count} of {len(self.calls)} calls as chosen, up to {self._named(count - 1)}"
        return self._tried(what, self.calls[:count]).outcome

    def _named(self, at: int) -> str:
        call = self.calls[at]
        return f"{call.library} {call.algorithm}, {call.shape}, call {call.number}"

    # One run -----------------------------------------------------------------------------------------------------------

    def _tried(self, what: str, chosen: Sequence[Call] | None, more: dict[str, str] | None = None) -> Run:
        """Runs the script once, with some calls as chosen, or all of them."""
        status, seconds, self.said = self._child(chosen, more or {})
        self.speaker = "the script"
        outcome = self._judged(status, seconds)
        run = Run(len(self.report.runs) + 1, what, outcome, seconds)
        self.report.runs.append(run)
        self.step(run)
        return run

    def _judged(self, status: int, seconds: float) -> str:
        if self.slow:
            if status:
                message = f"{self.report.script} ended with status {status}"
                raise ScriptFailed(message, cause=self.said, remedy="a script that succeeds")
            return BAD if seconds > self.limit else GOOD
        if status == 0 and self.test:
            done = subprocess.run(self.test, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            status, self.said, self.speaker = done.returncode, _end_of(done.stdout), "the test"
        if status == SKIPPED:
            return SKIP
        if status > 127 or (status < 0 and _signal(status) not in CRASHES):
            who = shlex.join(self.test) or self.report.script
            message = f"{who} ended with status {status}, which tells nothing"
            raise ScriptFailed(message, cause=self.said, remedy="0 for good, 1 to 127 for bad")
        return GOOD if status == 0 else BAD

    def _child(self, chosen: Sequence[Call] | None, more: dict[str, str]) -> tuple[int, float, str]:
        """Exit status, seconds spent in operations, and the end of the output."""
        first = not self.report.runs
        numbers: dict[str, list[int]] | None = None
        if chosen is not None:
            numbers = {}
            for call in chosen:
                numbers.setdefault(call.shape, []).append(call.number)
        order, output, kept = (os.path.join(self.folder, name) for name in ("order.json", "run.json", "output"))
        with open(order, "w", encoding="utf-8") as stream:
            json.dump({"against": self.report.against, "chosen": numbers, "record": self._record() if first else ""}, stream)
        if os.path.exists(output):
            os.unlink(output)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bisect_script.py")
        command = [sys.executable, script, order, output, str(os.getpid()), *self.argv]
        sys.stdout.flush()
        with open(kept, "w+b") as said:
            status = subprocess.run(command, env=os.environ | more, stdout=said, stderr=said, check=False).returncode
            said.seek(0)
            text = _end_of(said.read())
        try:
            with open(output, encoding="utf-8") as stream:
                seconds = float(json.load(stream)["entries"][0]["seconds"])
        except (OSError, ValueError):  # it crashed
            seconds = 0.0
        return status, seconds, text

    def _record(self) -> str:
        return os.path.join(self.folder, "calls")

    def _recorded(self) -> list[Call]:
        try:
            with open(self._record(), encoding="utf-8") as stream:
                return [Call(*json.loads(line)) for line in stream if line.endswith("\n")]
        except OSError:
            return []


def _end_of(output: bytes) -> str:
    """Returns the end of what a process printed, indented as the cause of an error is."""
    return output.decode("utf-8", "replace").strip()[-TAIL:].replace("\n", "\n           ")


def _signal(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return ""
