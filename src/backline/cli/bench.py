"""``backline bench``: time, rate and error of operations, by library and precision, on this machine."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from . import output
from .progress import Progress

__all__ = ["bench"]

HALVES = ("f16", "bf16")


def _operations(incomplete: str) -> list[str]:
    """The operations with sizes of their own or run by default, whose names begin so."""
    from ..problems.op_registry import operations

    return [name for name, row in operations.items() if (row.bench or row.sizes) and name.startswith(incomplete)]


def _default() -> list[str]:
    """The operations that are run where none is named; the cheapest first, since a limit of time leaves out the last."""
    from ..problems.op_registry import operations

    names = [name for name, row in operations.items() if row.bench]
    return sorted(names, key=lambda name: operations[name].flops(1, 1, 1))


def _libraries(incomplete: str) -> list[str]:
    """The libraries whose names begin so."""
    from .. import libraries

    return [name for name in libraries.names() if name.startswith(incomplete)]


def bench(
    operations: Annotated[
        list[str] | None,
        typer.Argument(
            help='"matmul", or a whole text: "matmul f32 64x64 64x64".', metavar="OPERATION", autocompletion=_operations
        ),
    ] = None,
    library: Annotated[
        list[str] | None,
        typer.Option("--library", "-l", help="Only this library; may be repeated.", autocompletion=_libraries),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", "-d", help="Precision: f32, f64, c64, c128, f16, bf16.")] = None,
    size: Annotated[list[int] | None, typer.Option("--size", "-n", help="Size of the matrices; may be repeated.", min=1)] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads a call may use.", min=1)] = None,
    budget: Annotated[float, typer.Option("--budget", help="Seconds for each problem.", min=0.0)] = 0.5,
    total: Annotated[float, typer.Option("--total", help="Seconds for all; what is not reached is named.", min=0.0)] = 60.0,
    every: Annotated[bool, typer.Option("--all", help="Every algorithm, not only the fastest of each library.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure operations on every library: time, rate, relative error. Nothing is kept.

    Without an OPERATION, a product, a batch, a product with a vector and the factorisations, in float32 and float64.
    """
    from .. import libraries, switches
    from ..engine import ranking
    from ..engine.choose import eligible, planner
    from ..engine.tuning.measure import measure_problem

    for name in library or ():
        libraries.get(name)  # refuses names that are not known
    rows: list[dict[str, Any]] = []
    disturbed: list[str] = []
    late: list[str] = []
    progress = Progress()
    start = time.monotonic()
    with switches.scope(num_threads=threads):
        allowed: Any = switches.get("num_threads")
        problems = _problems(operations or _default(), dtype or ["f32", "f64"], size or [512])
        for number, problem in enumerate(problems):
            _fits(problem)
            left = total - (time.monotonic() - start)
            if number and left <= 0:  # the first one is measured, however short the time
                late.append(problem.key)
                rows.append(_row(problem, None, None, "", None, f"not reached in {total:g} s"))
                continue
            progress.measured(number, len(problems), problem.key)
            able = [a for a in ranking.sort(problem, eligible(problem, allowed)) if not library or a.library in library]
            if able:
                # One candidate alone is checked but not timed: it stands in twice then.
                candidates = able if len(able) > 1 else able * 2
                # What is not needed here is there for those that follow.
                share = min(budget, max(left, 0.0) / (len(problems) - number))
                limit = max(left, share)
                record = measure_problem(problem, candidates, allowed, budget=share, limit=limit, planner=planner)
                found = _rows(problem, able, record, every)
                disturbed += [record.disturbed] if record.disturbed else []
            else:
                found = [_row(problem, None, None, "", None, "no library here can run it")]
            rows += found
            if not json:
                progress.hide()
                _print(problem, found)
    progress.end()
    if json:
        output.as_json(rows)
        return
    if len(problems) > 1:
        count = len(problems) - len(late)
        output.line(f"{count} problem{'' if count == 1 else 's'} in {output.seconds(time.monotonic() - start)}", "bold")
    if late:
        named = ", ".join(dict.fromkeys(key.split()[0] for key in late))
        output.line(f"{len(late)} not reached in {total:g} s, --total gives more: {named}", output.STYLES["missing"])
    if disturbed:
        busy = f"{len(disturbed)} problem{'' if len(disturbed) == 1 else 's'}"
        output.line(f"{busy} timed on a busy machine, the last while {disturbed[-1]}: their times may be wrong", "yellow")


def _problems(operations: list[str], dtypes: list[str], sizes: list[int]) -> list[Any]:
    from ..problems import Problem
    from ..problems.op_registry import operations as rows

    texts = []
    for name in operations:
        if " " in name.strip():
            texts.append(name)
            continue
        form = (rows[name].sizes if name in rows else "") or "{n}x{n}"
        for d in dtypes:
            if d in HALVES and not name.startswith(("matmul", "mm", "bmm", "mv")):
                continue
            texts += [f"{name} {d} {form.format(n=n)}" for n in sizes]
    return [Problem.parse(text) for text in dict.fromkeys(texts)]


def _fits(problem: Any) -> None:
    from ..errors import BadValue
    from ..native.machine import machine

    memory = machine().memory
    # Operands, a result of about their size, LAPACK's workspace, and NumPy's copies.
    if memory is not None and 6 * problem.bytes > memory:
        raise BadValue(
            f"{problem.key} takes {output.size(problem.bytes)} for its operands alone",
            cause=f"there are {output.size(memory)} of memory",
            remedy="a smaller size",
        )


def _row(
    problem: Any, library: Any, algorithm: Any, used: Any, seconds: Any, why: str, error: Any = None, disturbed: str = ""
) -> dict[str, Any]:
    rate = problem.flops / seconds / 1e9 if seconds else None
    return {
        "problem": problem.key, "library": library, "algorithm": algorithm, "threads": used or None, "seconds": seconds,
        "gflops": rate, "error": error, "refused": why, "disturbed": disturbed,
    }  # fmt: skip


def _rows(problem: Any, able: list[Any], record: Any, every: bool) -> list[dict[str, Any]]:
    timed = sorted((a for a in able if a.key in record.medians), key=lambda a: record.medians[a.key])
    found, seen = [], set()
    for a in timed:
        if every or a.library not in seen:
            seen.add(a.library)
            error = record.errors.get(a.key)
            found.append(_row(problem, a.library, a.name, a.threads, record.medians[a.key], "", error, record.disturbed))
    for a in able:
        if a.key in record.rejected and (every or a.library not in seen):
            seen.add(a.library)
            found.append(_row(problem, a.library, a.name, a.threads, None, record.rejected[a.key], record.errors.get(a.key)))
    return found


def _print(problem: Any, rows: list[dict[str, Any]]) -> None:
    output.line(problem.key, "bold")
    if rows[0]["library"] is None:
        output.line(f"  {rows[0]['refused']}")
        return
    best = next((r["seconds"] for r in rows if r["seconds"]), None)
    cells = [
        (
            r["library"], f"{r['algorithm']} x{r['threads']}", output.seconds(r["seconds"]),
            "" if r["gflops"] is None else f"{r['gflops']:.3g} GF/s", "" if r["error"] is None else f"error {r['error']:.1e}",
            r["refused"] or ("fastest" if r["seconds"] == best else f"{r['seconds'] / best:.2f}x the time"),
        )
        for r in rows
    ]  # fmt: skip
    output.table(cells, right=[2, 3], styles=["green" if r["seconds"] == best else "" for r in rows], indent=2)
