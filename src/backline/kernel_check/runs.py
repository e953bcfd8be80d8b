"""Runs the check: a child process for each library and each cap on its instruction sets, and what became of every case.

A child that crashes or hangs says by its last line which case it was in; another one goes on behind that case.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import libraries
from ..libraries import errata_local
from ..libraries.errata_local import LocalErratum

__all__ = ["TIME_OVER", "Finding", "Job", "Outcome", "jobs", "local_rows", "run"]

START_SECONDS = 120.0  # for a child to import, and to load and probe its library
CASE_SECONDS = 30.0  # for one run of a case
MOST_CRASHES = 100  # of one job
TIME_OVER = "the time is over"
DIGITS = 12  # of a local row's name
# Library -> its variable, and the caps to run under beside none, with the instruction set that each needs.
CAPS: dict[str, tuple[str, dict[str, str]]] = {
    "onednn": ("ONEDNN_MAX_CPU_ISA", {"AVX2": "avx512", "AVX512_CORE": "avx512_bf16", "AVX512_CORE_BF16": "amx_bf16"}),
    "mkl": ("MKL_ENABLE_INSTRUCTIONS", {"AVX2": "avx512"}),
    "openblas": ("OPENBLAS_CORETYPE", {"Haswell": "avx512", "Nehalem": "avx2"}),
}
# Memory from malloc is filled with 0xFE, a NaN of float16 and a huge number of other formats, so that what a kernel leaves
# unwritten shows; the cache for threads would hand out memory as it was.
SETTINGS = {"MALLOC_PERTURB_": "1", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
WAITING = {"OMP_WAIT_POLICY": "passive"}  # thousands of short runs: threads that spin would only take the processor away
_CHILD = "from backline.kernel_check.child import main; main()"


@dataclass(frozen=True, slots=True)
class Job:
    """One library, under one cap on its instruction sets.

    Attributes
    ----------
    library
        Its name.
    variable, cap
        The library's environment variable and its value; "" for no cap.
    """

    library: str
    variable: str = ""
    cap: str = ""

    def __str__(self) -> str:
        return f"{self.library} ({self.cap})" if self.cap else self.library


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure of one algorithm on one Problem.

    Attributes
    ----------
    job
        Where it was seen.
    op, problem, algorithm
        Operation and key of the Problem, name of the algorithm. Without an algorithm it is the case that failed, and `problem` is
        its text.
    what
        What is wrong: "crashes (SIGSEGV)", "relative error 1.3e+00, above 6e-05".
    listed
        Names of the shipped errata that refuse it.
    local
        Whether a row of this machine refuses it.
    """

    job: Job
    op: str
    problem: str
    algorithm: str
    what: str
    listed: tuple[str, ...]
    local: bool

    @property
    def new(self) -> bool:
        return not self.listed and not self.local


@dataclass(slots=True)
class Outcome:
    """The result of a job.

    Attributes
    ----------
    findings
        Failures, one for each algorithm of a Problem.
    sound
        Names of the shipped errata under which a run was right -> how many.
    cases, runs
        Problems begun, and runs of algorithms.
    not_run
        Algorithms that could not be prepared, which are no runs.
    reason
        Why the job ended before its last case; "" if it did not.
    build
        Identity of the library as it ran, for local rows.
    """

    findings: list[Finding] = field(default_factory=list)
    sound: dict[str, int] = field(default_factory=dict)
    cases: int = 0
    runs: int = 0
    not_run: int = 0
    reason: str = ""
    build: str = ""


def jobs(only: str = "") -> list[Job]:
    """Return the jobs for this machine: CPU libraries that are there, under no cap and under each that changes their kernels."""
    found = []
    for name in libraries.names():
        if "cpu" not in libraries.info(name).devices or (only and name != only):
            continue
        library = libraries.get(name)
        if not library.available():
            continue
        found.append(Job(name))
        variable, caps = CAPS.get(name, ("", {}))
        if not os.environ.get(variable):
            sets = library.instruction_sets() or ()
            found += [Job(name, variable, cap) for cap, needs in caps.items() if needs in sets]
    return found


def run(job: Job, cases: list[str], seconds: float, progress: Callable[[int, Outcome], None] = lambda n, o: None) -> Outcome:
    """Run the cases of a job until the time is over.

    Parameters
    ----------
    job
        Library and cap.
    cases
        Lines of text.
    seconds
        After which the job ends.
    progress
        Called with the number of cases done and the outcome so far.
    """
    outcome = Outcome()
    deadline = time.monotonic() + seconds
    start, skip, crashes = 0, list[tuple[int, str, str]](), 0  # skip: what was begun of the case, for the next child
    while not outcome.reason and start < len(cases):
        child = _Child(job, {"library": job.library, "cases": cases, "start": start, "skip": skip})
        begun: dict[str, Any] = {}
        reached = False
        try:
            ended = False
            for line in child.lines(deadline):
                if "unavailable" in line:
                    outcome.reason = f"not available: {line['unavailable']}"
                elif "case" in line:
                    if line["case"] != start:
                        skip.clear()
                    start, reached, begun = line["case"], True, {}
                    outcome.cases = max(outcome.cases, start + 1)
                    progress(start, outcome)
                elif "begin" in line:
                    begun = line["begin"]
                    outcome.runs += 1
                    skip.append((start, begun["problem"], begun["key"]))
                elif "ended" in line:
                    if line["ended"] is None:
                        outcome.runs, outcome.not_run = outcome.runs - 1, outcome.not_run + 1
                    else:
                        _note(job, outcome, begun, line["ended"])
                    begun = {}
                elif "broken" in line:
                    _note_case(job, outcome, cases[start], f"cannot be checked: {line['broken']}")
                    begun = {}
                else:
                    outcome.build = line.get("build", outcome.build)
                    ended = "end" in line
            if ended or outcome.reason:
                break
            if time.monotonic() >= deadline:
                outcome.reason = TIME_OVER
                break
            why = child.why()
        except TimeoutError:
            why = "hangs"
        finally:
            child.close()
        crashes += 1
        if not reached:
            outcome.reason = f"the child {why} before its first case"
        elif crashes >= MOST_CRASHES:
            outcome.reason = f"{crashes} crashes"
        if begun:
            _note(job, outcome, begun, why)
        elif reached:
            _note_case(job, outcome, cases[start], f"{why} outside of any algorithm")
            start, skip = start + 1, []
    return outcome


def _note(job: Job, outcome: Outcome, begun: dict[str, Any], what: str) -> None:
    listed = tuple(begun["listed"])
    if not what:
        for name in listed:
            outcome.sound[name] = outcome.sound.get(name, 0) + 1
        return
    _add(outcome, Finding(job, begun["op"], begun["problem"], begun["algorithm"], what, listed, begun["local"]))


def _note_case(job: Job, outcome: Outcome, case: str, what: str) -> None:
    _add(outcome, Finding(job, case.partition(" ")[0], case, "", what, (), False))


def _add(outcome: Outcome, finding: Finding) -> None:
    same = (finding.problem, finding.algorithm)
    if all((f.problem, f.algorithm) != same for f in outcome.findings):
        outcome.findings.append(finding)


class _Child:
    """A process that runs cases, and the lines that it writes."""

    def __init__(self, job: Job, task: dict[str, Any]) -> None:
        environment = {**WAITING, **os.environ, **SETTINGS}
        if job.variable:
            environment[job.variable] = job.cap
        # -P: what lies in the working directory is not imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(json.dumps(task).encode())

    def lines(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield what it writes, until it ends or the time is over.

        Raises
        ------
        TimeoutError
            It writes nothing for too long.
        """
        assert self._process.stdout is not None
        rest, limit = b"", START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            heard = time.monotonic()
            while True:
                now = time.monotonic()
                if now >= deadline and limit != START_SECONDS:
                    return
                if now - heard > limit:
                    raise TimeoutError
                if not selector.select(min(heard + limit, max(deadline, now + 0.01)) - now):
                    continue
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return
                heard, limit = time.monotonic(), CASE_SECONDS
                *whole, rest = (rest + data).split(b"\n")
                yield from map(json.loads, whole)

    def why(self) -> str:
        """Returns how the child ended, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=1)
            if code < 0:
                return f"crashes ({signal.Signals(-code).name})"
            return f"ends the process with status {code}"
        return "hangs"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def local_rows(outcome: Outcome, today: str) -> list[LocalErratum]:
    """Return a row of this machine for each failure of an algorithm that no row has yet."""
    rows = []
    for finding in outcome.findings:
        if finding.new and finding.algorithm:
            words = f"{finding.problem} by {finding.algorithm}"
            rows.append(
                LocalErratum(
                    id=f"local-{finding.job.library}-{_digest(words, outcome.build)}",
                    library=finding.job.library,
                    operations=(finding.op,),
                    algorithm=finding.algorithm,
                    problem=finding.problem,
                    condition=f"{words}: {finding.what}",
                    evidence=f"Seen on this machine by `backline check kernels` on {today}: {finding.what}.",
                    remedy="`backline check kernels --forget` forgets it",
                    build=outcome.build,
                    processor=errata_local.processor(),
                )
            )
    return rows


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:DIGITS]
