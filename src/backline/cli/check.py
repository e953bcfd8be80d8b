"""``backline check``: checks of what is installed here. ``check kernels`` runs every kernel over problems with edges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ..kernel_check.cases import cases
from . import show

__all__ = ["app", "kernels"]

app = typer.Typer(help="Checks of the libraries on this machine.", no_args_is_help=True, add_completion=False)
SECONDS = 300.0


@app.callback()
def check() -> None:
    """Checks of the libraries on this machine."""


def kernels(
    library: Annotated[str, typer.Option("--library", help="This library only.")] = "",
    op: Annotated[str, typer.Option("--op", help="Operations whose name has this part, or a family: conv, fft, ...")] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="Time for everything.", min=1)] = SECONDS,
    keep: Annotated[bool, typer.Option("--keep", help="Refuse on this machine what fails, from now on.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what --keep kept, and check nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run every algorithm of every CPU library over problems with edges, in processes that may crash.

    Exit status 1 if something fails that no erratum lists.
    """
    from .. import libraries
    from ..errors import BadValue
    from ..kernel_check import runs
    from ..libraries import errata_local

    if forget:
        count = errata_local.forget()
        show.line(f"{count} errata of this machine are removed")
        return
    if library:
        libraries.get(library)  # or an error that lists the names
    lines = cases(op)
    if not lines:
        raise BadValue(f"no case of the check has an operation like {op!r}", remedy="a family or a part of a name, such as conv")
    found = runs.jobs(library)
    if not found:
        raise BadValue(f"{library or 'no CPU library'} is not available", remedy="`backline info` says why")
    today = datetime.now(UTC).date().isoformat()
    outcomes: dict[Any, Any] = {}
    rows = []
    end = time.monotonic() + seconds
    with _progress(json) as told:
        for number, job in enumerate(found):
            share = (end - time.monotonic()) / (len(found) - number)
            outcome = runs.run(job, lines, max(share, 1.0), told(str(job), len(lines)))
            outcomes[job] = outcome
            rows += runs.local_rows(outcome, today)
            if not json:
                _shown(job, outcome, len(lines))
    if keep:
        errata_local.keep(rows)
    if json:
        show.as_json([_content(job, outcome) for job, outcome in outcomes.items()])
    elif rows:
        show.line()
        where = f"They are refused from now on: {errata_local.path()}" if keep else "`--keep` has them refused on this machine."
        show.line(f"{len(rows)} failures are not among the errata. {where}", show.STYLES["wrong"])
    if rows:
        raise typer.Exit(1)


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """A bar on a terminal, nothing elsewhere; yields what makes a function that is told of progress."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:

        def of_job(title: str, total: int) -> Any:
            task = bar.add_task(title, total=total)

            def told(done: int, outcome: Any) -> None:
                bar.update(task, completed=done)

            return told

        yield of_job


def _shown(job: Any, outcome: Any, total: int) -> None:
    new = [f for f in outcome.findings if f.new]
    ended = f", ended early: {outcome.reason}" if outcome.reason else ""
    result = f"{len(new)} new failures" if new else "nothing new"
    text = f"{job!s:28} {outcome.cases} of {total} problems, {outcome.runs} runs: {result}{ended}"
    show.line(text, show.STYLES["wrong"] if new else "")
    for finding in outcome.findings:
        listed = f"as listed ({', '.join(finding.listed)})" if finding.listed else "known on this machine"
        status = "new" if finding.new else listed
        show.line(f"    {status}: {finding.problem} by {finding.algorithm} {finding.what}", "red" if finding.new else "dim")
    failed = {name for finding in outcome.findings for name in finding.listed}
    for name, count in outcome.sound.items():
        seen = f"right in {count} other runs" if name in failed else f"not seen here in {count} runs"
        show.line(f"    erratum {name}: {seen}", "dim")


def _content(job: Any, outcome: Any) -> dict[str, Any]:
    return {
        "library": job.library, "cap": job.cap, "problems": outcome.cases, "runs": outcome.runs, "ended": outcome.reason,
        "right_though_listed": outcome.sound,
        "failures": [
            {"problem": f.problem, "op": f.op, "algorithm": f.algorithm, "what": f.what, "errata": f.listed, "new": f.new}
            for f in outcome.findings
        ],
    }  # fmt: skip


app.command("kernels")(show.reported(kernels))
