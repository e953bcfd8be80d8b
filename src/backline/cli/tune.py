"""``backline tune``: find the fastest way for what a script computes, and show what it brought."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import cluster, output, tune_records
from .progress import Progress

__all__ = ["SETTINGS", "tune"]

#: What the command is registered with: options after the script are the script's.
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
ROWS = 20


def tune(
    script: Annotated[list[str] | None, typer.Argument(help="The script and its arguments.", metavar="SCRIPT [ARGS]")] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")] = False,
    max_error: Annotated[float | None, typer.Option(help="Largest relative error an algorithm may have.", min=0.0)] = None,
    deterministic: Annotated[
        str, typer.Option(help='Same bits: "run" (again) or "threads" (for any count). Nothing is then chosen by timing.')
    ] = "",
    budget: Annotated[float, typer.Option(help="Seconds to measure for.", min=0.0)] = 60.0,
    threads: Annotated[int | None, typer.Option(help="Threads a call may use.", min=1)] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what was measured already, too.")] = False,
    rounds: Annotated[
        int | None,
        typer.Option(help="How often the script runs each way, in turn, to be compared.", min=0, show_default="by its time"),
    ] = None,
    scheduler: Annotated[
        str, typer.Option(help="Measure on the workers of a Dask cluster, once on each kind of machine.", metavar="ADDRESS")
    ] = "",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the script's output in every run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, after the script's own output.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Move the tuning file aside and start anew.")] = False,
    export: Annotated[
        str | None, typer.Option(help="Write the records to a file: .toml for a project, else JSON.", metavar="FILE")
    ] = None,
    import_: Annotated[str | None, typer.Option("--import", help="Take the records of such a file.", metavar="FILE")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge files, named last, into --export or here.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the records.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove records of libraries that have changed.")] = False,
    file: Annotated[str, typer.Option("--file", help="List or export the records of this file.", metavar="FILE")] = "",
    operation: Annotated[str, typer.Option("--op", help="Only of this operation, such as linalg.*.", metavar="NAME")] = "",
    library: Annotated[str, typer.Option("--library", help="Only those that timed this library.", metavar="NAME")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="Only of this dtype.", metavar="DTYPE")] = "",
    processors: Annotated[str, typer.Option("--class", help="Only of this class of machines.", metavar="CLASS")] = "",
    older: Annotated[
        float | None,
        typer.Option(
            "--older-than", help="Only older ones; --prune removes them.", metavar="DAYS", callback=tune_records.checked_days
        ),
    ] = None,
    newer: Annotated[
        float | None,
        typer.Option("--newer-than", help="Only newer ones.", metavar="DAYS", callback=tune_records.checked_days),
    ] = None,
    all_machines: Annotated[bool, typer.Option("--all-machines", help="Those of other machines, too.")] = False,
) -> None:
    """Record what SCRIPT computes, measure every library on it, keep the fastest, run it again, compare.

    SCRIPT runs several times, one that takes seconds up to a dozen times, with --rounds 0 four times. Options stand before it;
    what follows it is the script's. What was measured before is not measured again. The exit status is 1 where the script
    fails, and 3 where it calls no operation of Backline and spends no time in BLAS and LAPACK.
    """
    from ..engine.script_runs import check_script
    from ..engine.tuning import record_exchange, record_store
    from ..errors import BadValue

    if deterministic not in ("", "run", "threads"):
        raise BadValue(f"--deterministic {deterministic!r} is not a level", remedy='"run" or "threads"')
    records = reset or export or import_ or list_ or prune
    if not (script or records or merge):
        raise BadValue("there is nothing to do", remedy="name a script, or --list, --export, --import, --merge, --prune, --reset")
    chosen = tune_records.Filter(operation, library, dtype, processors, older, newer)
    filtered = chosen != tune_records.Filter() or all_machines or file
    if filtered and not (list_ or export or prune):
        raise BadValue("a filter goes with --list, --export or --prune", remedy="backline tune --list --library mkl")
    words = ["-m", *(script or ())] if module else (script or [])
    if words and not merge:
        check_script(words)  # before --reset or --import changes anything
        if list_ or prune:
            raise BadValue(
                f"{'--list' if list_ else '--prune'} goes without a script, and {' '.join(words)} is one",
                cause="the script would be run and measured before",
                remedy="two calls: one with the script, one without it",
            )
    if merge and (scheduler or list_ or import_ or prune or reset or filtered or module):
        raise BadValue("--merge goes with --export alone", remedy="the other options in a call without it")
    if scheduler:
        if not script or records or deterministic or max_error is not None or rounds is not None:
            raise BadValue(
                "--scheduler goes with a script and with --budget, --threads, --again, --verbose and --json",
                remedy="the other options in a call without it",
            )
        cluster.tune(scheduler, script, budget=budget, threads=threads, again=again, verbose=verbose, json=json)
        return
    if reset:
        moved = record_store.reset()
        output.line(f"moved the tuning file to {moved}" if moved else "there was no tuning file")
    if import_:
        taken, usable = record_exchange.import_from(import_)
        output.line(f"took {taken} records from {import_}, {usable} of them for this machine")
    if merge:
        tune_records.merge(script or (), export or "")
        return
    if words:
        _script(words, max_error, deterministic, budget, threads, again, rounds, verbose, json)
    if prune:
        tune_records.prune(older, all_machines, chosen._replace(older=None))
    several = all_machines or bool(processors or file)
    if export:
        wanted = tune_records.matching(chosen, file, several)
        output.line(f"wrote {record_exchange.export(export, wanted)} records to {export}")
    if list_:
        tune_records.print_list(tune_records.matching(chosen, file, several), json, several)


def _script(
    script: list[str], max_error: float | None, deterministic: str, budget: float, threads: int | None, again: bool,
    rounds: int | None, verbose: bool, json: bool,
) -> None:  # fmt: skip
    from ..engine.tune_script import ScriptFailed, nothing_to_tune, tune_script
    from ..interop import tune_program as programs
    from .tune_exchanged import print_report

    name = script[script[0] == "-m"]
    stock = report = exchanged = None
    worth = False
    with Progress() as progress:
        if not deterministic and not programs.unsupported():
            progress.step("NumPy and SciPy as they are, recorded")
            stock = programs.recorded(script, threads=threads, show=verbose)
            worth = programs.worth_tuning(stock)
            if not worth and not stock.operations and not stock.failed:
                raise nothing_to_tune(name, f"its calls of BLAS and LAPACK took {output.seconds(stock.in_calls)} in all")
        if stock is None or stock.operations:
            # A program of both kinds has one budget: what its operations leave of their half is for the others.
            report = tune_script(
                script, max_error=max_error, deterministic=deterministic, threads=threads, budget=budget / 2 if worth else budget,
                again=again, rounds=rounds, verbose=verbose, step=progress.step, progress=progress.measured,
            )  # fmt: skip
        if stock is not None and worth:
            left = max(round(budget - report.measuring, 1), 0.0) if report else budget
            exchanged = programs.tune_program(
                script, stock, max_error=max_error, threads=threads, budget=left, again=again, rounds=rounds, step=progress.step,
                progress=progress.measured,
            )  # fmt: skip
    if json:
        content = report.as_dict() if report else {"script": name}
        output.as_json(content | ({"exchanged": exchanged.as_dict()} if exchanged else {}))
    else:
        if report:
            _print(report)
        if exchanged:
            print_report(exchanged)
    if stock is not None and stock.failed:
        failure = ScriptFailed(f"{name} {stock.failed}", cause=stock.said.replace("\n", "\n           "))
        failure.status = stock.status
        raise failure


def _print(report: Any) -> None:
    rows = report.rows()
    last = "deterministic" if report.deterministic else "tuned"
    output.heading("operations")
    shown = rows[:ROWS]
    cells: list[tuple[str, ...]] = [
        (
            r.key, str(r.count), *map(output.seconds, report.compared(r)),
            _times(r.faster), r.algorithm, "" if r.error is None else f"{r.error:.1e}",
        )
        for r in shown
    ]  # fmt: skip
    if len(rows) > ROWS:
        cells.append((f"and {len(rows) - ROWS} more", *[""] * 7))
    runs = (report.numpy, report.untuned, report.tuned)
    whole = [None if r.failed else r.seconds for r in runs]
    cells.append(("all operations", "", *map(output.seconds, report.totals()), _times(report.in_operations()), "", ""))
    cells.append(("the whole script", "", *map(output.seconds, whole), _times(report.faster(whole[0], whole[2])), "", ""))
    styles = [*[""] * (len(cells) - 2), "bold", "bold"]
    heads = ("problem", "calls", "NumPy", "not tuned", last, "faster", "runs on", "error")
    output.table(cells, heads, right=[1, 2, 3, 4, 5, 7], styles=styles, indent=2, title=True)
    if report.numpy.failed:
        output.line(f"  NumPy alone cannot run it: {report.numpy.failed}", "yellow")
    output.heading("where the time went")
    after = report.tuned.seconds or 1.0
    spent = list(report.tuned.by("library").items())
    spent.append(("the script itself", max(report.tuned.seconds - report.tuned.in_operations, 0.0)))
    output.table([(name, output.seconds(s), f"{100 * s / after:.0f} %") for name, s in spent], right=[1, 2], indent=2)
    output.heading("tuning")
    facts = []
    if report.deterministic:
        facts.append(("chosen by", f"determinism level {report.deterministic!r} and the shipped ranking; nothing by timing"))
    if report.records:
        facts.append(("measured", f"{_problems(len(report.records))} in {output.seconds(report.measuring)}"))
    if report.held:
        facts.append(("known", f"{_problems(len(report.held))} measured before; --again measures them anew"))
    facts.append(("runs", _runs(report)))
    facts += _busy(report)
    errors = [r.error for r in rows if r.error is not None]
    if errors:
        facts.append(("accuracy", f"largest relative error of what ran: {max(errors):.1e}, on random data"))
    if report.max_error is not None:
        facts.append(("bound", f"--max-error {report.max_error:g}"))
    reasons: dict[str, int] = {}
    for reason in report.left_out.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    facts += [("left out", f"{_problems(count)}: {why}") for why, count in reasons.items()]
    facts += [("not loaded", f"{name}: {why}") for name, why in sorted(report.not_loaded.items())]
    facts.append(("kept in", report.file or "no file: it held for this run only"))
    output.table(facts, indent=2)


def _runs(report: Any) -> str:
    """Returns words on the runs that the times are of."""
    if report.rounds:
        return "in turn" + (f", the fastest of {report.rounds} of each" if report.rounds > 1 else ", one of each")
    return f"one of each, the last one {output.seconds(report.measuring)} after the others; --rounds 1 has them in turn"


def _times(faster: float | None) -> str:
    return "" if faster is None else f"{faster:.2f}x"


def _problems(count: int) -> str:
    return f"{count} problem{'' if count == 1 else 's'}"


def _busy(report: Any) -> list[tuple[str, str]]:
    """A line on the runs and one on the measurements that other programs disturbed."""
    facts = []
    if busy := report.busy():
        shown = any(row.faster is not None for row in report.rows())
        rest = "; calls timed in turn are, and rows that say how much faster have their times" if shown else ""
        facts.append(("busy", f"the script ran while {busy}: its runs are not compared{rest}"))
    disturbed = [r.disturbed for r in report.records if r.disturbed]
    if disturbed:
        text = f"{_problems(len(disturbed))} timed on a busy machine, the last while {disturbed[-1]}"
        facts.append(("busy", f"{text}; tune again to time them again"))
    return facts
