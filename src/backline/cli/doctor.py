"""``backline doctor``: what is wrong or slow in this environment, the most costly first, each with its proof and its remedy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import other_process, output

__all__ = ["SETTINGS", "doctor"]

#: What the command is registered with: options after the script are the script's.
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def doctor(
    script: Annotated[
        list[str] | None, typer.Argument(help="A script to look at as it ends, with its arguments.", metavar="SCRIPT [ARGS]")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what has to be measured.")] = False,
    level: Annotated[
        str, typer.Option(help='Exit with 1 from here on: "fatal", "wrong", "slow" or "note".', metavar="LEVEL")
    ] = "slow",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is wrong or slow here, most costly first, with proof and remedy.

    With SCRIPT it looks at the process that the script leaves. Nothing is written or kept. The exit status is 0 if nothing of
    --level or worse was found, else 1.
    """
    from ..diagnosis.finding import LEVELS, Finding, Findings
    from ..diagnosis.table import doctor as diagnosed
    from ..errors import BadValue

    if level not in LEVELS:
        raise BadValue(f"--level {level!r} is not a level of findings", remedy=f"one of: {', '.join(LEVELS)}")
    if script:
        content = other_process.at_the_end_of(["-m", *script] if module else script, "doctor", {"quick": quick})
        found = Findings([Finding(**each) for each in content["findings"]], content["checked"], content["skipped"])
        what = content["what"]
    else:
        found, what = diagnosed(quick=quick), "this environment"
    if json:
        output.as_json(found.as_dict() | {"what": what, "level": level})
    else:
        _print(found, what)
    if found.at_least(level):
        raise typer.Exit(1)


def _print(found: Any, what: str) -> None:
    output.line(what, "bold")
    for each in found:
        output.line()
        output.line(f"  {each.title()}", output.STYLES.get(each.level, ""))
        output.table(each.rows(), indent=4)
    output.line()
    output.line(f"  {found.summary()}")
