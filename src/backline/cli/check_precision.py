"""``backline check precision``: relative errors and mantissa bits of every algorithm, against a wider format."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from . import output
from .progress import Progress

__all__ = ["precision"]


def precision(
    ops: Annotated[
        list[str] | None,
        typer.Argument(help="Families, parts of names or patterns: fft, linalg.solve, linalg.*.", metavar="[OP ...]"),
    ] = None,
    library: Annotated[str, typer.Option("--library", help="This library only.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="This dtype only: float32, f32, ...")] = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="Time limit; problems not reached are reported.")] = math.inf,
    quick: Annotated[bool, typer.Option("--quick", help="A few ordinary problems only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how precise every algorithm is, in bits of mantissa.

    Results for ordinary and for hard operands are compared with a wider format. `bits` are those of sums of one term where the
    operation has sums, `ordinary` those of random operands, `worst` the least of all cases. Reduced precision is measured whether
    it is permitted or not. The exit status is 1 where an algorithm fails.
    """
    from ..engine.check_precision import HEADS, check_precision
    from ..engine.precision_figures import BOUND

    progress = Progress()
    try:
        report = check_precision(
            *(ops or ()), library=library, dtype=dtype, seconds=seconds, quick=quick, progress=progress.measured
        )
    finally:
        progress.end()
    if json:
        output.as_json(report.as_dict())
    else:
        styles = ["yellow" if row.figure.loss > BOUND else "" for row in report.rows]
        output.table([row.cells() for row in report.rows], HEADS, right=(5, 6, 7, 8), styles=styles)
        for case, said in report.failures.items():
            output.line(f"failed: {case}: {'; '.join(said)}", output.STYLES["wrong"])
        if report.unreached:
            output.line(f"{report.unreached} problems were not reached in {seconds:g} s", "yellow")
    if report.failures:
        raise typer.Exit(1)
