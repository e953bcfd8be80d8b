"""The report of ``backline tune`` on a program's calls of BLAS and LAPACK."""

from __future__ import annotations

from typing import Any

from . import output

__all__ = ["print_report"]

ROWS = 20


def print_report(report: Any) -> None:
    """Prints the routines, what they gained, and how the outputs of the runs compare."""
    stock, tuned = report.stock, report.tuned
    before, after = stock.by_routine(), tuned.by_routine() if tuned else {}
    chosen = {r.routine: r for r in report.choice.routines}
    output.heading("calls of NumPy and SciPy")
    cells: list[tuple[str, ...]] = []
    for name, (count, seconds) in list(before.items())[:ROWS]:
        now = after[name][1] if name in after else None
        cells.append(
            (
                name,
                str(count),
                output.seconds(seconds),
                output.seconds(now),
                _times(report, seconds, now),
                _runs_on(chosen.get(name)),
            )
        )
    if len(before) > ROWS:
        cells.append((f"and {len(before) - ROWS} more", *[""] * 5))
    whole = [None if run is None or run.failed else run for run in (stock, tuned)]
    inside = [run.in_calls if run else None for run in whole]
    seconds = [run.seconds if run else None for run in whole]
    cells.append(("all of BLAS and LAPACK", "", *map(output.seconds, inside), _factor(report.faster(whole=False)), ""))
    cells.append(("the whole script", "", *map(output.seconds, seconds), _factor(report.faster(whole=True)), ""))
    styles = [*[""] * (len(cells) - 2), "bold", "bold"]
    heads = ("routine", "calls", "as it was", "tuned", "faster", "runs on")
    output.table(cells, heads, right=[1, 2, 3, 4], styles=styles, indent=2, title=True)
    output.heading("tuning of NumPy and SciPy")
    output.table(_facts(report), indent=2)


def _facts(report: Any) -> list[tuple[str, str]]:
    facts = []
    if report.stock.failed:
        facts.append(
            ("failed", f"the script {report.stock.failed}; what it had called until then was measured, and it was not run again")
        )
    if not report.choice.home:
        facts.append(("result", "no library was measured to be faster by 3 %: all stays with what NumPy and SciPy brought along"))
    elif report.tuned is not None:
        facts.append(("result", "`backline run --tuned`, `python -m backline` and BACKLINE_EXCHANGE=tuned run it so"))
    if report.stock.processes > 1:
        facts.append(("processes", f"the calls are those of {report.stock.processes} processes together"))
    if report.tuned is not None:
        short = report.tuned.exchange > report.stock.in_calls - report.tuned.in_calls
        more = ", more than it saved: it is for longer runs" if short and not report.busy() else ""
        facts.append(("exchange", f"it took {output.seconds(report.tuned.exchange)} of the script's time, once{more}"))
    comparison = report.comparison()
    if comparison is not None:
        facts.append(("compared", str(comparison)))
    error = report.largest_error()
    if error is not None:
        facts.append(("accuracy", f"largest relative difference of a routine's results: {error:.1e}, on random data"))
    if report.records:
        facts.append(("measured", f"{_problems(len(report.records))} in {output.seconds(report.measuring)}"))
    if report.held:
        facts.append(("known", f"{_problems(len(report.held))} measured before; --again measures them anew"))
    if busy := report.busy():
        facts.append(("busy", f"the script ran while {busy}: its runs are not compared"))
    disturbed = [r.disturbed for r in report.records if r.disturbed]
    if disturbed:
        facts.append(("busy", f"{_problems(len(disturbed))} timed on a busy machine, the last while {disturbed[-1]}; tune again"))
    facts += [("taken back", f"{name}: {why}") for name, why in report.taken_back.items()]
    reasons: dict[str, list[str]] = {}
    for name, reason in report.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        facts.append(("left out", f"{shown}: {reason}"))
    facts.append(("kept in", report.file or "no file: it held for this run only"))
    return facts


def _runs_on(routine: Any) -> str:
    if routine is None or routine.library == "numpy":
        return "its own"
    return f"{routine.library} from size {routine.threshold}" if routine.threshold else routine.library


def _times(report: Any, before: float, after: float | None) -> str:
    if not after or report.busy():
        return ""
    return _factor(before / after)


def _factor(faster: float | None) -> str:
    return "" if faster is None else f"{faster:.2f}x"


def _problems(count: int) -> str:
    return f"{count} problem{'' if count == 1 else 's'}"
