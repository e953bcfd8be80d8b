"""``backline explain``: which library would run an operation, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import output

__all__ = ["explain"]


def explain(
    text: Annotated[list[str], typer.Argument(help='The operation: "matmul f32 1024x1024 1024x1024:F".', metavar="TEXT")],
    threads: Annotated[int | None, typer.Option("--threads", help="Threads a call may use.", min=1)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell which library would run an operation and why, without running it."""
    from .. import switches
    from ..engine.explanation import of_problem
    from ..problems import Problem

    problem = Problem.parse(" ".join(text))
    with switches.scope(num_threads=threads):
        choice = of_problem(problem)
    if json:
        output.as_json(_content(choice))
        return
    output.table(choice.lines())
    output.line()
    rows = choice.rows()
    output.table(rows, right=[3], styles=[output.STYLES.get(r[0], "") for r in rows])


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
