"""``backline check``: checks of what is installed here, and of scripts. ``check kernels`` runs every kernel over problems with
edges, ``check errata`` lists the known defects that choices avoid, ``check determinism`` compares the bits of a script's runs,
``check results`` its results with those of another library, ``check precision`` measures how exact every algorithm is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ..kernel_check.cases import cases
from . import check_determinism, check_precision, check_results, output

__all__ = ["app", "errata", "kernels", "page"]

app = typer.Typer(help="Check libraries and scripts.", no_args_is_help=True, add_completion=False)
SECONDS = 300.0


_PAGE = """\
# Errata of vendor libraries

<!-- Made by `backline check errata --docs docs/errata.md` from libraries/errata_table.py. Do not edit. -->

Kernels of vendor libraries that give wrong numbers, crash or hang under some condition, and are therefore not chosen there: the
next library runs the call, and `explain` shows the row as the reason. `backline info` says how many rows hold for a library as it
is installed here, and `backline check errata` lists them.

A row names the library, its versions, the instruction set or the GPUs whose kernels have the defect, and the condition. Where the
version, the instruction set or the GPU cannot be known, the defect is assumed. Versions of cuDNN are written as it counts them:
91501 is 9.15.1. A row that names engines of cuDNN drops their plans only, and one that names kernels of oneDNN has its next
kernel run the call.

`backline check kernels` runs every kernel of every CPU library over problems with edges on your machine, in processes that may
crash. With `--keep`, what fails there is refused from then on, for this build of the library, this processor and that very
problem (`--forget` removes such rows again). They lie in a file in the user's data folder; the variable `BACKLINE_ERRATA` names
another one.
"""


@app.callback()
def check() -> None:
    """Checks of the libraries on this machine and of scripts."""


def kernels(
    library: Annotated[str, typer.Option("--library", help="This library only.")] = "",
    op: Annotated[str, typer.Option("--op", help="Operations whose name has this part, or a family: conv, fft, ...")] = "",
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=1,
            help="Time limit, divided among libraries and instruction-set caps; problems not reached are reported.",
        ),
    ] = SECONDS,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Add what fails to this user's errata file (BACKLINE_ERRATA), so that it is not chosen here."
        ),
    ] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what --keep kept, and check nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run every algorithm of every CPU library over problems with edges, in processes that may crash.

    Libraries whose instruction sets can be capped run again under each cap.

    Exit status 1 if something fails that no erratum lists, or if a check ends early for another reason than time.
    """
    from .. import libraries
    from ..errors import BadValue
    from ..kernel_check import runs
    from ..libraries import errata as table
    from ..libraries import errata_local

    if forget:
        count = table.forget()
        output.line(f"{count} errata of this machine are removed")
        return
    if keep:
        table.keep(())  # or an error now, before anything runs
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
    if json:
        output.as_json([_content(job, outcome) for job, outcome in outcomes.items()])
    if keep:
        table.keep(rows)
    if rows and not json:
        output.line()
        where = f"They are refused from now on: {errata_local.path()}" if keep else "`--keep` has them refused on this machine."
        output.line(f"{len(rows)} failures are not among the errata. {where}", output.STYLES["wrong"])
    new = any(finding.new for outcome in outcomes.values() for finding in outcome.findings)
    if new or any(outcome.reason not in ("", runs.TIME_OVER) for outcome in outcomes.values()):
        raise typer.Exit(1)


def errata(
    docs: Annotated[str, typer.Option("--docs", help="Write the page of the shipped errata to this file.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the known defects of vendor kernels, and which of them hold for the libraries on this machine."""
    from .. import libraries
    from ..libraries import errata as table

    if docs:
        with open(docs, "w", encoding="utf-8") as stream:
            stream.write(page())
        return
    here = {row for each in libraries.all_libraries() if each.available() for row in table.applying(each)}
    rows = table.rows()
    if json:
        output.as_json([{**asdict(row), "holds here": row in here} for row in rows])
        return
    for row in rows:
        output.line(f"{row.id}: {'holds here' if row in here else 'not here'}", "yellow" if row in here else "dim")
        output.table(_facts(row), indent=2)


def _facts(row: Any) -> list[tuple[str, str]]:
    dtypes = f" of {', '.join(row.dtypes)}" if row.dtypes else ""
    since, before = row.since and f"since {row.since}", row.before and f"before {row.before}"
    facts = [
        ("library", row.library),
        ("versions", " and ".join(filter(None, (since, before))) or "all"),
        ("instructions", row.isa or ("" if row.capabilities else "any")),
        ("compute capability", ", ".join(row.capabilities)),
        ("operations", f"{', '.join(row.operations) or 'any'}{dtypes}{f' by {row.algorithm}' if row.algorithm else ''}"),
        ("kernels", ", ".join(row.kernels)),
        ("condition", row.condition),
        ("seen", row.evidence),
        ("remedy", row.remedy),
    ]
    return [(name, text) for name, text in facts if text]


def page() -> str:
    """Return the page of the shipped errata."""
    from ..libraries.errata_table import TABLE

    parts = [_PAGE]
    for row in TABLE:
        facts = "".join(f"- **{name}**: {text}\n" for name, text in _facts(row))
        parts.append(f"\n## {row.id}\n\n{facts}")
    return "".join(parts)


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
    ran = f"{outcome.runs} runs" + (f", {outcome.not_run} not run" if outcome.not_run else "")
    text = f"{job!s:28} {outcome.cases} of {total} problems, {ran}: {result}{ended}"
    output.line(text, output.STYLES["wrong"] if new else "")
    for finding in outcome.findings:
        listed = f"as listed ({', '.join(finding.listed)})" if finding.listed else "known on this machine"
        by = f" by {finding.algorithm}" if finding.algorithm else ""
        status = "new" if finding.new else listed
        output.line(f"    {status}: {finding.problem}{by} {finding.what}", "red" if finding.new else "dim")
    failed = {name for finding in outcome.findings for name in finding.listed}
    for name, count in outcome.sound.items():
        seen = f"right in {count} other runs" if name in failed else f"not seen here in {count} runs"
        output.line(f"    erratum {name}: {seen}", "dim")


def _content(job: Any, outcome: Any) -> dict[str, Any]:
    return {
        "library": job.library, "cap": job.cap, "problems": outcome.cases, "runs": outcome.runs,
        "not_run": outcome.not_run, "ended": outcome.reason,
        "right_though_listed": outcome.sound,
        "failures": [
            {"problem": f.problem, "op": f.op, "algorithm": f.algorithm, "what": f.what, "errata": f.listed, "new": f.new}
            for f in outcome.findings
        ],
    }  # fmt: skip


app.command("kernels", short_help=output.summary(kernels))(output.reported(kernels))
app.command("errata", short_help=output.summary(errata))(output.reported(errata))
app.command("determinism", short_help=output.summary(check_determinism.determinism), context_settings=check_determinism.SETTINGS)(
    output.reported(check_determinism.determinism)
)
app.command("results", short_help=output.summary(check_results.results), context_settings=check_results.SETTINGS)(
    output.reported(check_results.results)
)
app.command("precision", short_help=output.summary(check_precision.precision))(output.reported(check_precision.precision))
