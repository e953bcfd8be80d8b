"""``backline check determinism``: runs of a script, compared bit for bit."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import output
from .progress import Progress

__all__ = ["SETTINGS", "determinism"]

#: What the command is registered with: options after the script are the script's.
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def determinism(
    script: Annotated[list[str] | None, typer.Argument(help="The script and its arguments.", metavar="SCRIPT [ARGS]")] = None,
    runs: Annotated[int, typer.Option(help="Runs on each number of threads.", min=1)] = 3,
    threads: Annotated[str, typer.Option(help="Numbers of threads, separated by commas.")] = "1,2",
    level: Annotated[
        str, typer.Option(help='Same bits: "run" (on one number of threads) or "threads" (on all; the default for several).')
    ] = "",
    blas: Annotated[
        str, typer.Option("--blas", help="Compare output and calls of BLAS, under this library (`run --blas`); numpy for none.")
    ] = "",
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")] = False,
    moved: Annotated[bool, typer.Option("--moved/--not-moved", help="Lay memory out another way in some runs.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run SCRIPT again and again, and name the first operation that gives other bits for the same arrays.

    Runs differ in the number of threads and in where arrays lie in memory. Options stand before SCRIPT; what follows it is the
    script's, and its output is not shown. With --blas for a program that does not call Backline: what it prints is compared, and
    how often it calls which routines of BLAS and LAPACK. The exit status is 1 where the runs do not reach the level, or the
    script fails; 3 where it calls no operation of Backline, or with --blas prints nothing and calls nothing.
    """
    from ..engine.verify_determinism import verify_script
    from ..errors import BadValue
    from ..interop.program_determinism import verify_program
    from ..libraries.base import LEVELS

    if level not in ("", *LEVELS[1:]):
        raise BadValue(f"--level {level!r} is not a level", remedy='"run" or "threads"')
    try:
        counts = [int(word) for word in threads.split(",")]
    except ValueError:
        raise BadValue(f"--threads {threads!r} are no numbers of threads", remedy="such as --threads 1,2,4") from None
    if min(counts) < 1:
        raise BadValue(f"--threads {threads!r}: {min(counts)} is no number of threads", remedy="1 or more: --threads 1,2,4")
    how: dict[str, Any] = {"runs": runs, "threads": counts, "moved": moved, "step": Progress().step}
    words = [*(["-m"] if module else []), *(script or [])]
    report = verify_program(words, blas, **how) if blas else verify_script(words, **how)
    if json:
        output.as_json(report.as_dict())
    else:
        output.table(report.rows(), indent=2)
        if report.difference is not None:
            output.heading("first difference")
            output.table(report.difference.rows(), indent=2)
    if not report.reaches(level or ("threads" if len(report.threads) > 1 else "run")):
        raise typer.Exit(1)
