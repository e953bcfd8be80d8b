"""``backline bisect``: which library, algorithm and call makes a script's result wrong, or slow."""

from __future__ import annotations

from typing import Annotated

import typer

from . import output

__all__ = ["SETTINGS", "bisect"]

#: What the command is registered with: options after the script are the script's.
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def bisect(
    script: Annotated[list[str] | None, typer.Argument(help="The script and its arguments.", metavar="SCRIPT [ARGS]")] = None,
    test: Annotated[
        str, typer.Option(help="Command to run after SCRIPT: status 0 is good, 1-127 bad, 125 neither. Else SCRIPT's counts.")
    ] = "",
    slow: Annotated[bool, typer.Option("--slow", help="Look for what makes SCRIPT slow.")] = False,
    against: Annotated[str, typer.Option(help="The reference library: calls that are not suspected run on it.")] = "numpy",
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")] = False,
) -> None:
    """Find the library and call that make SCRIPT wrong or slow.

    SCRIPT runs as it is, then on the reference library alone, then with fewer and fewer calls as they are: divided by library,
    then by algorithm and problem, then call by call. Each run is a line; the conclusion says what to set. Options stand before
    SCRIPT; what follows it is the script's, and its output is not shown. The exit status is 0 where a call was found, and 3 where
    there is nothing to find: SCRIPT is good as it is, or bad on the reference library as well.
    """
    from ..engine.bisect import bisect_script

    words = [*(["-m"] if module else []), *(script or [])]
    report = bisect_script(words, test=test, slow=slow, against=against, step=lambda run: None if json else output.line(str(run)))
    if json:
        output.as_json(report.as_dict())
        return
    output.heading("found")
    output.table(report.rows(), indent=2)
