"""``backline info --scheduler`` and ``backline tune --scheduler``: the workers of a Dask cluster, and tuning on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..interop import dask
from . import output
from .progress import Progress

__all__ = ["info", "tune"]


def _connected(address: str) -> Any:
    from ..errors import BackendUnavailable

    try:
        from ..interop.dask.connection import connected
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            "--scheduler needs Dask", cause=f"{error.name} is not installed", remedy="pip install 'backline[dask]'"
        ) from None
    return connected(address)


def info(address: str, *, json: bool) -> None:
    """Prints the table of a cluster's workers, and what differs among them."""
    from ..interop.dask.worker_table import HEADS

    with _connected(address) as client:
        table = dask.workers(client)
    if json:
        output.as_json(table.as_dict())
        return
    output.line(f"workers of {table.scheduler}", "bold")
    styles = [output.STYLES["missing"] if row.differs else "" for row in table.rows]
    output.table(table.cells(), HEADS, right=[3], styles=styles, indent=2, title=True)
    output.heading("mismatches")
    for text in table.mismatches:
        output.line(f"  {text}", output.STYLES["missing"])
    if not table.mismatches:
        output.line("  none")


def tune(
    address: str, script: Sequence[str], *, budget: float, threads: int | None, again: bool, verbose: bool, json: bool
) -> None:
    """Measures what a script computes on each kind of machine of a cluster, and prints what was measured where."""
    with _connected(address) as client, Progress() as progress:
        report = dask.tune(
            client, script, budget=budget, threads=threads, again=again, verbose=verbose, step=progress.step,
            progress=progress.measured,
        )  # fmt: skip
    if json:
        output.as_json(report.as_dict())
        return
    output.heading("machines")
    rows = [
        (
            f"{each.machine} ({each.shown})",
            each.processors,
            str(len(each.workers)),
            str(len(each.records)),
            str(each.known),
            str(len(each.left_out)),
        )
        for each in report.machines
    ]
    heads = ("machine", "processor", "workers", "measured", "known", "left out")
    output.table(rows, heads, right=[2, 3, 4, 5], indent=2, title=True)
    output.heading("tuning")
    count = report.measured()
    facts = [("measured", f"{count} problem{'' if count == 1 else 's'} in {output.seconds(report.seconds)}")]
    for each in report.machines:
        reasons: dict[str, int] = {}
        for reason in each.left_out.values():
            reasons[reason] = reasons.get(reason, 0) + 1
        facts += [("left out", f"{number} on {each.processors}: {why}") for why, number in reasons.items()]
        facts.append(("in use", f"by {each.told} of {len(each.workers)} workers on {each.processors}"))
    facts.append(("kept in", report.file or "no file: the records hold for the workers' processes only"))
    output.table(facts, indent=2)
