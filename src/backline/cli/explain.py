"""``backline explain``: which library would run an operation, or a routine of NumPy's and SciPy's BLAS and LAPACK, and why."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from . import output

__all__ = ["explain"]


def explain(
    text: Annotated[list[str], typer.Argument(help='The operation: "matmul f32 1024x1024 1024x1024:F".', metavar="TEXT")],
    threads: Annotated[int | None, typer.Option("--threads", help="Threads a call may use.", min=1)] = None,
    exchanged: Annotated[
        bool, typer.Option("--exchanged", help='TEXT is a routine that NumPy or SciPy calls: "dgemm 300x300x300".')
    ] = False,
    blas: Annotated[
        str, typer.Option("--blas", help="With --exchanged: as `run --blas`; by default BACKLINE_EXCHANGE, or tuned.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell which library would run an operation and why, without running it.

    With --exchanged, which library would run a routine of BLAS or LAPACK for NumPy and SciPy under `backline run --blas` or
    --tuned: its name, and the sizes by which small calls are told from large ones, such as m, n and k of a product.
    """
    from ..errors import BadValue

    if blas and not exchanged:
        raise BadValue("--blas goes with --exchanged", remedy="backline explain --exchanged --blas mkl dgemm 300x300x300")
    choice = _of_routine(text, blas, threads) if exchanged else _of_operation(text, threads)
    if json:
        output.as_json(_content(choice))
        return
    output.table(choice.lines())
    output.line()
    rows = choice.rows()
    output.table(rows, right=[3], styles=[output.STYLES.get(r[0], "") for r in rows])


def _of_operation(text: list[str], threads: int | None) -> Any:
    from .. import switches
    from ..engine.explanation import of_problem
    from ..problems import Problem

    problem = Problem.parse(" ".join(text))
    with switches.scope(num_threads=threads):
        return of_problem(problem)


def _of_routine(text: list[str], blas: str, threads: int | None) -> Any:
    from contextlib import suppress

    from ..errors import BadValue
    from ..interop import numpy as exchange
    from ..interop.exchange.loaded_objects import import_scipy
    from ..interop.exchange.routine_explanation import sizes_of
    from ..settings import set_num_threads

    with suppress(ImportError):  # SciPy may be missing: then it is about NumPy
        import_scipy()
    routine, *words = " ".join(text).split() or [""]
    names = sizes_of(routine)
    numbers = words[0].split("x") if len(words) == 1 else words
    if len(words) > 1 or len(numbers) != len(names) or not all(n.isascii() and n.isdecimal() for n in numbers):
        raise BadValue(
            f"{' '.join(words)!r} are no sizes of {routine}" if words else f"{routine} is given without its sizes",
            cause=f"it has {len(names)}: {', '.join(names)}" if names else "no choice depends on its sizes",
            remedy=f"such as: {routine} {'x'.join(['300'] * len(names))}".rstrip(),
        )
    if threads is not None:
        set_num_threads(threads)  # an exchange follows the number of the process, and no scope
    chosen = blas or os.environ.get("BACKLINE_EXCHANGE", "").strip() or "tuned"
    sizes: dict[str, Any] = dict(zip(names, map(int, numbers), strict=True))
    return exchange.explain(routine, chosen, **sizes)


def _content(choice: Any) -> dict[str, Any]:
    from ..engine.precision_figures import text_of

    return {
        "problem": choice.problem.key,
        "library": choice.library,
        "algorithm": choice.algorithm,
        "version": choice.version,
        "threads": choice.chosen.threads,
        "basis": choice.basis,
        "determinism": choice.determinism,
        "requested_precision": choice.requested_precision,
        "effective_precision": choice.effective_precision,
        "same_bits": {"level": choice.chosen.level, "basis": choice.chosen.basis},
        "switches": {name: {"value": value, "origin": origin} for name, (value, origin) in choice.switches.items()},
        "fallbacks": choice.fallbacks,
        "candidates": [
            {
                "library": c.library, "algorithm": c.algorithm, "verdict": c.verdict, "reason": c.reason, "switch": c.switch,
                "threads": c.threads, "seconds": c.seconds, "error": c.error,
                "precision": text_of(choice.problem, c.detail) or None,
            }
            for c in choice.candidates
        ],
    }  # fmt: skip
