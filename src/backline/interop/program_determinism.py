"""Repeated runs of a program that calls NumPy and SciPy, compared by what they print and by the calls that they make.

Calls of BLAS and LAPACK are known by routine, sizes, flags and number, and not by their bits: what a program prints, and how
often an iteration calls, shows whether its results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..engine.determinism_report import DeterminismReport, Difference
from ..engine.script_runs import NothingToTune, ScriptFailed, check_script
from ..engine.verify_determinism import RUNS, THREADS, plan_of_runs
from .exchange.choices import parse
from .output_comparison import compare
from .program_runs import ProgramRun, environment, run

__all__ = ["verify_program"]

_REMEDY = {
    "run": "a fixed seed for random numbers, no times and addresses in the output; if it is neither of these, another library",
    "threads": 'one number of threads: OPENBLAS_NUM_THREADS and BACKLINE_NUM_THREADS, or --blas of a library whose bits do not '
    "depend on it",
}  # fmt: skip


def verify_program(
    words: Sequence[str], choice: str, *, runs: int = RUNS, threads: Sequence[int] = THREADS, moved: bool = True,
    step: Callable[[str], None] = lambda text: None,
) -> DeterminismReport:  # fmt: skip
    """Runs a program repeatedly under an exchange, each time in a process of its own, and compares output and calls.

    Parameters
    ----------
    words
        The script and its arguments, or "-m", a module and its arguments.
    choice
        What `backline.interop.numpy.use` takes, as text; "numpy" exchanges nothing.
    runs, threads, moved
        As for `backline.verify_determinism`: how often it runs on each number of threads, and whether some of the runs have
        memory laid out another way.
    step
        Told which run begins.

    Returns
    -------
    DeterminismReport
        Its operations are calls of BLAS and LAPACK.

    Raises
    ------
    BadValue
        There is no such script or library; runs or threads that compare nothing.
    NothingToTune
        It printed nothing and called nothing.
    ScriptFailed
        It ended with an error.
    """
    check_script(words)
    if choice != "tuned":
        parse(choice)
    script = words[words[0] == "-m"]
    made: list[tuple[str, int, ProgramRun]] = []
    for count, number, layout in plan_of_runs(runs, threads, moved):
        name = f"run {number} on {count} thread{'' if count == 1 else 's'}"
        step(name)
        found = run(choice, words, environment(count), show=False, layout=layout)
        if found.failed:
            error = ScriptFailed(f"{script} {found.failed}", cause=found.said.replace("\n", "\n           "))
            error.status = found.status or 1
            raise error
        if not found.output and not found.calls:
            raise NothingToTune(
                f"{script} printed nothing and called no BLAS, so there is nothing to compare", remedy="print its results"
            )
        made.append((name, count, found))
    return _report(made)


def _report(made: Sequence[tuple[str, int, ProgramRun]]) -> DeterminismReport:
    """Each run is compared with the first on as many threads, and if they agree with the first of all."""
    firsts: dict[int, tuple[str, int, ProgramRun]] = {}
    found = None
    for each in made:
        first = firsts.setdefault(each[1], each)
        found = found or _difference(first, each, "run")
    level = "off" if found else "run"
    if found is None and len(firsts) > 1:
        of_each = list(firsts.values())
        found = next(filter(None, (_difference(of_each[0], other, "threads") for other in of_each[1:])), None)
        level = "run" if found else "threads"
    return DeterminismReport(level, tuple(firsts), len(made) // len(firsts), _count(made[0][2]), found)


def _count(found: ProgramRun) -> int:
    return sum(row.count for row in found.calls)


def _numbers(found: ProgramRun) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for row in found.calls:
        numbers[row.key] = numbers.get(row.key, 0) + row.count
    return numbers


def _difference(first: tuple[str, int, ProgramRun], second: tuple[str, int, ProgramRun], level: str) -> Difference | None:
    """Returns the first difference between two runs that should agree at a determinism level."""
    what, cause = "", ""
    output = compare(first[2].output, second[2].output)
    before, after = _numbers(first[2]), _numbers(second[2])
    if not output.same:
        what, cause = "output", str(output)
    elif before != after:
        key = min(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        what = "calls"
        cause = f"{key.partition(' ')[2]} was called {before.get(key, 0)} times, then {after.get(key, 0)}; the output is the same"
    if not what:
        return None
    return Difference(what, first[0], second[0], 0, _count(second[2]), None, None, cause, _REMEDY[level])
