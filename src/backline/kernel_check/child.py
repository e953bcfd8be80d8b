"""The process that runs cases of one library, and that may crash: it writes to a pipe what it begins and what it found."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import sys
import warnings
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from .. import libraries, switches
from ..engine import accuracy
from ..engine.tuning import sample_operands
from ..errors import BacklineError
from ..libraries import errata, errata_local
from ..libraries.base import Algorithm, Library, Refusal
from ..libraries.errata_local import LocalErratum
from ..problems import Problem
from ..problems.fft_problem import FftProblem
from .memory import PLACES, Guarded

__all__ = ["main"]

THREADS = 2
TIGHTER = 6  # transforms lose digits long before they are wrong: `accuracy.bound` is divided by this for them
_KILL_WITH_PARENT = 1


def main() -> None:
    """Run the cases that stdin describes; a line of JSON for each begun run, each finding, and the end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected
    faulthandler.disable()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, 9)
    pipe = os.dup(1)
    os.dup2(2, 1)  # libraries print errors of their own
    warnings.simplefilter("ignore")
    task = json.load(sys.stdin)

    def tell(**what: Any) -> None:
        os.write(pipe, (json.dumps(what) + "\n").encode())

    switches.assign("num_threads", min(THREADS, cast(int, switches.get("num_threads"))), depth=1)
    library = libraries.get(task["library"])
    if not library.available():
        tell(unavailable=library.reason())
        return
    tell(build=errata_local.identity(library))
    skip = {tuple(each) for each in task["skip"]}
    for number in range(task["start"], len(task["cases"])):
        tell(case=number)
        try:
            for problem in _problems(task["cases"][number]):
                _run(library, problem, number, skip, tell)
        except Exception as error:  # of the check or of what lists algorithms: the other cases go on
            tell(broken=f"{type(error).__name__}: {error}"[:300])
    tell(end=True)


def _problems(text: str) -> Iterator[Problem]:
    """The Problem of a line of text; and again with an output that the caller gives, where the operation takes one."""
    yield Problem.parse(text)
    if text.startswith("mv "):
        return  # its Problem is that of a matrix of one column, which no vector is an output of
    with contextlib.suppress(BacklineError, TypeError):
        yield Problem.parse(f"{text} out")


def _run(library: Library, problem: Problem, number: int, skip: set[tuple[Any, ...]], tell: Any) -> None:
    arrays = reference = None
    allowed = cast(int, switches.get("num_threads"))
    for algorithm in library.algorithms(problem, allowed):
        if isinstance(algorithm, Refusal) or (number, problem.key, algorithm.key) in skip:
            continue
        if arrays is None:
            arrays = sample_operands.arrays_for(problem, number)
            reference = accuracy.Reference(problem, arrays)  # runs get copies, between guard pages
        rows = list(errata.matching(library, problem, algorithm.name))
        listed = [row.id for row in rows if not isinstance(row, LocalErratum)]
        known = {
            "case": number, "algorithm": algorithm.name, "key": algorithm.key, "problem": problem.key, "op": problem.op,
            "listed": listed, "local": len(listed) < len(rows),
        }  # fmt: skip
        tell(begin=known)
        wrong = _tried(library, problem, algorithm, arrays, reference)
        tell(ended=wrong)


def _tried(library: Library, problem: Problem, algorithm: Algorithm, arrays: list[Any], reference: Any) -> str | None:
    """Returns what is wrong with an algorithm, an empty string, or None if it was not run."""
    try:
        plan = library.prepare(problem, algorithm)
    except (RuntimeError, MemoryError):
        return None  # the engine goes on to the next algorithm: nothing wrong comes of it
    for place in PLACES:
        guarded = [
            Guarded(o, place, None if o.role.startswith("out") else a) for o, a in zip(problem.operands, arrays, strict=True)
        ]
        try:
            result = plan(*(g.array for g in guarded))
        except Exception as error:  # any error of its own: these operands are all legal
            return f"raises {type(error).__name__}: {error}"[:300]
        touched = next(filter(None, (g.touched() for g in guarded)), "")
        if touched and not (touched == "changes an operand" and problem.parameter("overwrite")):
            return touched
        with np.errstate(all="ignore"):
            distance = reference.error(result)
        allowed = accuracy.bound(problem, algorithm.precision)
        if isinstance(problem, FftProblem):
            allowed /= TIGHTER
        if not distance <= allowed:
            return f"relative error {distance:.1e}, above {allowed:.1e}"
    return ""
