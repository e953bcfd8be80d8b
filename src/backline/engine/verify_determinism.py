"""Repeated runs of a function or a script, over numbers of threads and places in memory, compared bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import _core, switches
from ..errors import BadType, BadValue
from ..native.moved_memory import moved_copies, moved_memory
from ..switches.switch import show
from .determinism_report import DeterminismReport, report_of
from .run_hashes import HashedRun, RunHashes, events_of, hash_of
from .script_runs import check_module, check_script
from .tune_script import NothingToTune, run_recorded

__all__ = ["RUNS", "THREADS", "plan_of_runs", "verify_determinism", "verify_script"]

RUNS = 3
THREADS = (1, 2)
_one_at_a_time = threading.Lock()  # the process has one tracer that sees every thread


def verify_determinism(
    fn: Callable[..., Any], *arguments: Any, runs: int = RUNS, threads: Sequence[int] = THREADS, moved: bool = True
) -> DeterminismReport:
    """Runs a function repeatedly, and tells whether its operations and what it returns have the same bits every time.

    Parameters
    ----------
    fn
        The function.
    *arguments
        What it is called with: each run is given copies of the NumPy arrays among them, also of those in tuples, lists and dicts.
    runs
        How often it runs on each number of threads.
    threads
        The numbers of threads that calls may use.
    moved
        Whether the second run on a number of threads and those after it find memory laid out another way: arrays among the
        arguments begin at other distances from a 64-byte boundary, others come from other addresses, and with glibc memory that
        nobody wrote to holds other bytes.

    Returns
    -------
    DeterminismReport
        True where all bits are the same; prints as a table that names the first operation that differs, what ran it, and what
        would help.

    Raises
    ------
    BadType, BadValue
        Not a function; runs or threads that compare nothing.

    Notes
    -----
    Operations of Backline are compared one by one, each with the one of the same name that was given the same bits; calls of
    other libraries show only in what is returned. Nothing is proved: other shapes, processors or more runs may differ. Operations
    of other threads of the process count, too. NumPy's own threads and NumPy's blocks of less than a kilobyte stay as they are.
    The layout of memory is changed for the whole process while it runs.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x = np.arange(64.0 * 48).reshape(64, 48)
    >>> with backline.backends.flags(deterministic=True, determinism_level="threads"):
    ...     report = backline.verify_determinism(lambda x: backline.matmul(x.T, x), x, runs=2)
    >>> bool(report), report.level, report.operations
    (True, 'threads', 1)
    """
    if not callable(fn):
        raise BadType(f"verify_determinism takes a function, not {type(fn).__name__}: {show(fn)}")
    if not _one_at_a_time.acquire(blocking=False):
        raise BadValue("verify_determinism is running already", remedy="call it again when that has ended")
    try:
        return report_of([_run_here(fn, arguments, *run) for run in plan_of_runs(runs, threads, moved)])
    finally:
        _one_at_a_time.release()


def plan_of_runs(runs: int, threads: Sequence[int], moved: bool) -> Iterator[tuple[int, int, int]]:
    """Returns threads, number and layout of memory of each run."""
    counts = tuple(dict.fromkeys(threads))
    if runs < 1 or not counts or (runs == 1 and len(counts) == 1):
        raise BadValue(
            f"runs={show(runs)} with threads={show(counts)} compares nothing",
            remedy="2 runs or more, or several numbers of threads",
        )
    for count in counts:
        switches.lookup("num_threads").check(count)
    return ((count, number + 1, number if moved else 0) for count in counts for number in range(runs))


def _run_here(fn: Callable[..., Any], arguments: tuple[Any, ...], threads: int, number: int, layout: int) -> HashedRun:
    hashes = RunHashes()
    with switches.scope(num_threads=threads), moved_memory(layout):
        given = moved_copies(arguments, layout)
        _core.set_tracer(hashes)
        try:
            returned = fn(*given)
        finally:
            _core.set_tracer(None)
        return HashedRun(threads, number, tuple(hashes.events), hash_of(returned))


def verify_script(
    argv: Sequence[str], *, runs: int = RUNS, threads: Sequence[int] = THREADS, moved: bool = True,
    step: Callable[[str], None] = lambda text: None,
) -> DeterminismReport:  # fmt: skip
    """Runs a script repeatedly, each time in a process of its own, and compares its operations bit for bit.

    Parameters
    ----------
    argv
        The script's path and its arguments, or "-m", a module and its arguments.
    runs, threads, moved
        As for `verify_determinism`; NumPy's own BLAS gets the number of threads, too.
    step
        Told which run begins.

    Raises
    ------
    BadValue
        There is no such script or module; runs or threads that compare nothing.
    NothingToTune
        It called no operation of Backline.
    ScriptFailed
        It ended with an error.
    """
    check_script(argv)
    check_module(argv)
    made = []
    for count, number, layout in plan_of_runs(runs, threads, moved):
        step(f"run {number} on {count} thread{'' if count == 1 else 's'}")
        made.append(_run_script(argv, count, number, layout))
        if not made[-1].events:
            raise NothingToTune(
                f"{argv[argv[0] == '-m']} called no operation of Backline, so there is nothing to compare",
                cause="calls of other libraries are not seen",
                remedy="--blas compares what a script prints, and its calls of BLAS; `backline.verify_determinism` compares the "
                "result of a function, too",
            )
    return report_of(made)


def _run_script(argv: Sequence[str], threads: int, number: int, layout: int) -> HashedRun:
    more = {"BACKLINE_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    run = run_recorded(f"run {number}", argv, more, show=False, recorder=("hash_script.py", str(layout)))
    return HashedRun(threads, number, events_of(run.entries))
