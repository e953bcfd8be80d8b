"""``backline check results``: the results of a script's operations, compared with those of another library."""

from __future__ import annotations

from typing import Annotated

import typer

from . import output
from .progress import Progress

__all__ = ["SETTINGS", "results"]

#: What the command is registered with: options after the script are the script's.
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def results(
    script: Annotated[list[str] | None, typer.Argument(help="The script and its arguments.", metavar="SCRIPT [ARGS]")] = None,
    against: Annotated[str, typer.Option(help='The library to compare with, or "wider" for a wider format.')] = "numpy",
    tolerance: Annotated[float | None, typer.Option(help="Largest relative difference; else what rounding explains.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")] = False,
) -> None:
    """Run SCRIPT, and name the first operation that drifts.

    Every call is computed again on the same operands, and the script runs once more on the other library alone: an operation that
    computes something else is told from one that was given something else. Options stand before SCRIPT; what follows it is the
    script's, and its output is not shown. The exit status is 1 where a result drifts, or the script fails; 3 where nothing was
    compared: it calls no operation of Backline, or none that the other library had not run itself and can run.
    """
    from ..engine.result_drift import check_results

    words = [*(["-m"] if module else []), *(script or [])]
    report = check_results(words, against, tolerance=tolerance, step=Progress().step)
    if json:
        output.as_json(report.as_dict())
    else:
        output.table(report.rows(), indent=2)
        if report.drifts:
            output.heading("first drift")
            output.table(report.drift_rows(), indent=2)
    if not report:
        raise typer.Exit(1 if report.drifts else 3)
