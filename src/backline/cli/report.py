"""``backline report``: one page about a program: what ran, on what, how fast, how precisely, and how to run it again."""

from __future__ import annotations

from typing import Annotated

import typer

from . import output
from .progress import Progress

__all__ = ["SETTINGS", "report"]

#: What the command is registered with: options after the script are the script's.
SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def report(
    script: Annotated[list[str], typer.Argument(help="The script and its arguments.", metavar="SCRIPT [ARGS]")],
    file: Annotated[str, typer.Option("--output", "-o", help="The page to write.", metavar="FILE")] = "",
    json: Annotated[str, typer.Option("--json", help="Write the report as JSON; without -o, only that.", metavar="FILE")] = "",
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as for python -m.")] = False,
    check_determinism: Annotated[
        bool, typer.Option("--check-determinism", help="Run the script again, and compare its operations bit for bit.")
    ] = False,
) -> None:
    """Run SCRIPT, and write one page about what it computed and on what.

    Options stand before SCRIPT; what follows it is the script's. Without -o and --json the page is report.html. The exit status
    is the script's, and the report is written however it ends; 2 where there is no such script.
    """
    import os

    from ..errors import BadValue
    from ..native.whole_file import write_whole
    from ..report import page, run_report

    page_file = file or ("" if json else "report.html")
    for name in filter(None, (page_file, json)):  # before the script runs, which may take hours
        folder, base = os.path.split(os.path.abspath(name))
        if not os.path.isdir(folder):
            raise BadValue(f"there is no folder {folder!r} to write {base} to", remedy="make it, or name another")
        if os.path.isdir(name):
            raise BadValue(
                f"{name!r} is a folder, and one file is written", remedy=f"a file in it: {os.path.join(name, 'report.html')}"
            )
        if not os.access(folder, os.W_OK):
            raise BadValue(f"nothing can be written to the folder {folder!r}", remedy="name another")
    if page_file and json and os.path.realpath(page_file) == os.path.realpath(json):
        raise BadValue(
            f"-o and --json name the same file, {json!r}", cause="the page and the data are two files", remedy="two names"
        )
    words = [*(["-m"] if module else []), *script]
    content = output.plain(run_report.report_of(words, check_determinism=check_determinism, step=Progress().step))
    if json:
        write_whole(json, output.json_text(content).encode())
    if page_file:
        write_whole(page_file, page.page(content).encode())
    output.aside(f"wrote {' and '.join(filter(None, (page_file, json)))}")
    if content["status"]:
        raise typer.Exit(content["status"])
