"""``backline run``: start a program under chosen switches, on cores of its own. The launcher reads all the arguments itself."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["SETTINGS", "run"]

#: What the command is registered with: no option is this command's, not even --help.
SETTINGS: dict[str, Any] = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


def run(context: typer.Context) -> None:
    """Start a program under chosen switches and libraries, or several instances of it, each on cores of its own."""
    from ..launch import launcher

    raise typer.Exit(launcher.command(context.args, prog="backline run"))
