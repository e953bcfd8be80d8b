"""Comparison of runs by the hashes of their operations: the first that gave other bits for the same arrays, and a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .. import switches
from ..errors import BacklineError
from ..libraries import registry
from ..libraries.base import LEVELS
from .explanation import of_problem
from .run_hashes import HashedEvent, HashedRun

__all__ = ["DeterminismReport", "Difference", "report_of"]

_WORDS = {
    "off": "no: runs on one number of threads differ",
    "run": "from run to run",
    "threads": "from run to run and for any of these numbers of threads",
}
_OTHERS = ", and other bits on another number of threads"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two runs.

    Attributes
    ----------
    what
        "result": an operation gave other bits for the same arrays. "inputs": none did, and one was given arrays that it was not
        given in the first run. "missing": the first run has an operation that the second one lacks. "returned": the operations
        agree, and what the function returned differs.
    first, second
        The runs, in words.
    number, operations
        The number of the operation in the second run, from 1 on, and how many that run has.
    before, after
        The operation in the first run and in the second; None where there is none.
    cause, remedy
        In words.
    """

    what: str
    first: str
    second: str
    number: int
    operations: int
    before: HashedEvent | None
    after: HashedEvent | None
    cause: str
    remedy: str

    def rows(self) -> list[tuple[str, str]]:
        """Returns the lines of a table: pairs of label and text."""
        found = [("between", f"{self.first} and {self.second}")]
        ran = [event for event in (self.before, self.after) if event is not None]
        if ran:
            found.append(("operation", f"{ran[-1].key}, number {self.number} of {self.operations}"))
            found.append(("runs on", "; then ".join(dict.fromkeys(event.runs_on() for event in ran))))
        return [*found, ("cause", self.cause), ("remedy", self.remedy)]


@dataclass(frozen=True, slots=True, repr=False)
class DeterminismReport:
    """The result of runs that should give the same bits; prints as a table, and is true where all of them did.

    Attributes
    ----------
    level
        The determinism level that the runs reached. "threads": the same bits in all of them. "run": the same on one number of
        threads, where that is all that was tried, or others gave other bits. "off": not the same on one number of threads.
    threads, runs, operations
        The numbers of threads, how many runs there were on each, and the operations in the first one.
    difference
        The first difference; None where there is none.
    """

    level: str
    threads: tuple[int, ...]
    runs: int
    operations: int
    difference: Difference | None = None

    def __bool__(self) -> bool:
        return self.difference is None

    def reaches(self, level: str) -> bool:
        """Tells whether the runs gave the same bits as a determinism level asks: "run" or "threads"."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def rows(self) -> list[tuple[str, str]]:
        """Returns the lines above the difference: pairs of label and text."""
        same = _WORDS[self.level] + (_OTHERS if self.level == "run" and self.difference else "")
        return [
            ("runs", f"{self.runs} on each of these numbers of threads: {', '.join(map(str, self.threads))}"),
            ("operations", f"{self.operations} in the first run"),
            ("same bits", same),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.difference is not None:
            found["difference"] = {field.name: getattr(self.difference, field.name) for field in fields(self.difference)}
            for name in ("before", "after"):
                event = getattr(self.difference, name)
                found["difference"][name] = None if event is None else event.as_dict()
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'the same bits' if self else 'other bits'}, level {self.level!r}; print() shows it>"

    def __str__(self) -> str:
        rows = [*self.rows(), *([("", ""), *self.difference.rows()] if self.difference is not None else [])]
        return "\n".join(f"{label:<10}  {text}".rstrip() for label, text in rows)


def report_of(runs: Sequence[HashedRun]) -> DeterminismReport:
    """Returns the report on runs: each is compared with the first on as many threads, and if they agree with the first of all."""
    firsts: dict[int, HashedRun] = {}
    found, level = None, "threads"
    for run in runs:
        if (first := firsts.setdefault(run.threads, run)) is not run and found is None:
            found, level = _difference(first, run, "run"), "off"
    others = list(firsts.values())
    if found is None:
        level = "threads" if len(others) > 1 else "run"
        found = next(filter(None, (_difference(others[0], other, "threads") for other in others[1:])), None)
        level = level if found is None else "run"
    return DeterminismReport(level, tuple(firsts), len(runs) // len(firsts), len(runs[0].events), found)


def _difference(first: HashedRun, second: HashedRun, level: str) -> Difference | None:
    """Returns the first difference between runs that should agree at a determinism level."""
    known = dict(_numbered(first))
    strange: tuple[int, HashedEvent] | None = None
    for number, (at, after) in enumerate(_numbered(second), 1):
        before = known.pop(at, None)
        if before is None:
            strange = strange or (number, after)
        elif before.result != after.result:
            cause, remedy = _of_result(before, after, level)
            return Difference("result", str(first), str(second), number, len(second.events), before, after, cause, remedy)
    if strange is not None:
        number, after = strange
        what, lost, new, cause = "inputs", None, after, "it was given other arrays, and no operation of Backline made them differ"
    elif known:
        what, lost, new, cause = "missing", next(iter(known.values())), None, "the program did not call it again"
        number = len(second.events)
    elif first.returned != second.returned:
        what, lost, new, cause = "returned", None, None, "what was returned differs, and no operation of Backline made it differ"
        number = len(second.events)
    else:
        return None
    remedy = (
        "look for random numbers without a seed, clocks, the order of sets, threads of the program's own, memory that is read "
        "before it is written, and other libraries than Backline's: their calls are not seen"
    )
    return Difference(what, str(first), str(second), number, len(second.events), lost, new, cause, remedy)


def _numbered(run: HashedRun) -> Iterator[tuple[tuple[str, str, int], HashedEvent]]:
    """Yields the events of a run, each with its name, its inputs and the number of times that it came with them before."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in run.events:
        yield (event.op, event.inputs, counts[event.op, event.inputs]), event
        counts[event.op, event.inputs] += 1


def _of_result(before: HashedEvent, after: HashedEvent, level: str) -> tuple[str, str]:
    """Returns the cause and the remedy where an operation gave other bits for the same arrays."""
    ask = f"backline.use_deterministic_algorithms(True, level={level!r})"
    if level == "run" and (before.algorithm, before.threads) != (after.algorithm, after.threads):
        return (
            "another algorithm, or another number of threads, was taken for the same problem: measured times or the load of the "
            "machine decided",
            f"{ask}: neither has a say then",
        )
    cause = f"{after.library} gave other bits for the same arrays"
    cause += " on another number of threads" if level == "threads" else " in another run, with memory laid out another way"
    if LEVELS.index(after.asked) >= LEVELS.index(level):
        cause += f", though it should reach level {after.level!r} ({after.basis}); this is a defect"
        return cause, _without(after.library)
    if after.problem is None:
        return cause, f"{ask}: what promises the same bits runs it then, or NotDeterministic is raised"
    try:
        with switches.scope(deterministic=True, determinism_level=level, warn_only=False):
            chosen = of_problem(after.problem).chosen
    except BacklineError:
        chosen = None
    if chosen is not None:
        return cause, f"{ask}: {chosen.library} {chosen.name} runs it then, at level {chosen.level!r} ({chosen.basis})"
    if level == "threads":
        return cause, "one number of threads in all runs, such as backline.set_num_threads(1): nothing here promises more for it"
    return cause, _without(after.library)


def _without(library: str) -> str:
    """Returns how a library is kept from running, in words."""
    row = registry.find(library)
    if row is None or not row.switch:
        return f"another library than {library}: backline.use(...)"
    return f"backline.backends.{row.switch} = False: another library than {library} runs it then"
