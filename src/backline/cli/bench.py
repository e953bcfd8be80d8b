"""``backline bench``: time, rate and error of operations, by library and precision, on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import show

__all__ = ["bench"]

# What is run without arguments; N is the size, and the shapes are what users have.
OPERATIONS = {
    "matmul": "{n}x{n} {n}x{n}",
    "bmm": "64x32x32 64x32x32",
    "mv": "{n}x{n} {n}",
    "linalg.cholesky": "{n}x{n}",
    "linalg.inv": "{n}x{n}",
    "linalg.solve": "{n}x{n} {n}x16",
    "linalg.lu_factor": "{n}x{n}",
    "linalg.qr": "{n}x{n}",
    "linalg.eigh": "{n}x{n}",
    "linalg.svd": "{n}x{n}",
    "linalg.svdvals": "{n}x{n}",
}
TWO_MATRICES = ("mm", "linalg.solve_triangular", "linalg.lstsq", "cholesky_solve")
HALVES = ("f16", "bf16")


def bench(
    operations: Annotated[
        list[str] | None, typer.Argument(help='"matmul", or a whole text: "matmul f32 64x64 64x64".', metavar="[OPERATION]...")
    ] = None,
    library: Annotated[list[str] | None, typer.Option("--library", "-l", help="Only this library; may be repeated.")] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", "-d", help="Precision: f32, f64, c64, c128, f16, bf16.")] = None,
    size: Annotated[list[int] | None, typer.Option("--size", "-n", help="Size of the matrices; may be repeated.", min=1)] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads a call may use.", min=1)] = None,
    budget: Annotated[float, typer.Option("--budget", help="Seconds for each problem.", min=0.0)] = 0.5,
    every: Annotated[bool, typer.Option("--all", help="Every algorithm, not only the fastest of each library.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure operations on every library: time, rate, relative error. Nothing is kept."""
    from .. import libraries, switches
    from ..engine import ranking
    from ..engine.choose import eligible
    from ..engine.measure import measure_problem

    for name in library or ():
        libraries.get(name)  # refuses names that are not known
    rows: list[dict[str, Any]] = []
    with switches.scope(num_threads=threads):
        allowed: Any = switches.get("num_threads")
        for problem in _problems(operations or list(OPERATIONS), dtype or ["f32", "f64"], size or [512]):
            _fits(problem)
            able = [a for a in ranking.sort(problem, eligible(problem, allowed)) if not library or a.library in library]
            if not able:
                rows.append(_row(problem, None, None, "", None, "no library here can run it"))
                continue
            # One candidate alone is checked but not timed: it stands in twice then.
            record = measure_problem(problem, able if len(able) > 1 else able * 2, allowed, budget=budget)
            found = _rows(problem, able, record, every)
            rows += found
            if not json:
                _print(problem, found)
    if json:
        show.as_json(rows)


def _problems(operations: list[str], dtypes: list[str], sizes: list[int]) -> list[Any]:
    from .problem_text import parse

    texts = []
    for name in operations:
        if " " in name.strip():
            texts.append(name)
            continue
        form = OPERATIONS.get(name) or ("{n}x{n} {n}x{n}" if name in TWO_MATRICES else "{n}x{n}")
        for d in dtypes:
            if d in HALVES and not name.startswith(("matmul", "mm", "bmm", "mv")):
                continue
            texts += [f"{name} {d} {form.format(n=n)}" for n in sizes]
    return [parse(text) for text in dict.fromkeys(texts)]


def _fits(problem: Any) -> None:
    from ..errors import BadValue
    from ..libraries.machine import machine

    memory = machine().memory
    # Operands, a result of about their size, LAPACK's workspace, and NumPy's copies.
    if memory is not None and 6 * problem.bytes > memory:
        raise BadValue(
            f"{problem.key} takes {show.size(problem.bytes)} for its operands alone",
            cause=f"there are {show.size(memory)} of memory",
            remedy="a smaller size",
        )


def _row(problem: Any, library: Any, algorithm: Any, used: Any, seconds: Any, why: str, error: Any = None) -> dict[str, Any]:
    rate = problem.flops / seconds / 1e9 if seconds else None
    return {
        "problem": problem.key, "library": library, "algorithm": algorithm, "threads": used or None, "seconds": seconds,
        "gflops": rate, "error": error, "refused": why,
    }  # fmt: skip


def _rows(problem: Any, able: list[Any], record: Any, every: bool) -> list[dict[str, Any]]:
    timed = sorted((a for a in able if a.key in record.medians), key=lambda a: record.medians[a.key])
    found, seen = [], set()
    for a in timed:
        if every or a.library not in seen:
            seen.add(a.library)
            found.append(_row(problem, a.library, a.name, a.threads, record.medians[a.key], "", record.errors.get(a.key)))
    for a in able:
        if a.key in record.rejected and (every or a.library not in seen):
            seen.add(a.library)
            found.append(_row(problem, a.library, a.name, a.threads, None, record.rejected[a.key], record.errors.get(a.key)))
    return found


def _print(problem: Any, rows: list[dict[str, Any]]) -> None:
    show.line(problem.key, "bold")
    best = next((r["seconds"] for r in rows if r["seconds"]), None)
    cells = [
        (
            r["library"], f"{r['algorithm']} x{r['threads']}", show.seconds(r["seconds"]),
            "" if r["gflops"] is None else f"{r['gflops']:.3g} GF/s", "" if r["error"] is None else f"error {r['error']:.1e}",
            r["refused"] or ("fastest" if r["seconds"] == best else f"{r['seconds'] / best:.2f} of the fastest"),
        )
        for r in rows
    ]  # fmt: skip
    show.table(cells, right=[2, 3], styles=["green" if r["seconds"] == best else "" for r in rows], indent=2)
