"""The command ``backline``: info, switches, explain, bench, check, bisect, tune, calibrate, doctor, report, run.

Exit statuses: 0 done; 1 the script or the operation failed; 2 the command was not understood; 3 the script
to tune has nothing to tune; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os

import typer

from . import bench, bisect, calibrate, check, doctor, explain, info, report, run, switches, tune
from .output import reported, summary

__all__ = ["app", "runs_program"]

app = typer.Typer(
    help="torch.backends without PyTorch: which maths library runs what, how fast, how exactly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("info", short_help=summary(info.info))(reported(info.info))
app.command("switches", short_help=summary(switches.switches))(reported(switches.switches))
app.command("explain", short_help=summary(explain.explain))(reported(explain.explain))
app.command("bench", short_help=summary(bench.bench))(reported(bench.bench))
app.add_typer(check.app, name="check")
app.command("bisect", short_help=summary(bisect.bisect), context_settings=bisect.SETTINGS)(reported(bisect.bisect))
app.command("tune", short_help=summary(tune.tune), context_settings=tune.SETTINGS)(reported(tune.tune))
app.command("calibrate", short_help=summary(calibrate.calibrate))(reported(calibrate.calibrate))
app.command("doctor", short_help=summary(doctor.doctor), context_settings=doctor.SETTINGS)(reported(doctor.doctor))
app.command("report", short_help=summary(report.report), context_settings=report.SETTINGS)(reported(report.report))

# Not reported(): the launcher has statuses of its own.
app.command("run", short_help=summary(run.run), context_settings=run.SETTINGS)(run.run)


@app.callback(invoke_without_command=True)
def main(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """torch.backends without PyTorch: which maths library runs what, how fast, how exactly."""
    if version:
        import backline

        typer.echo(f"backline {backline.__version__}")
        raise typer.Exit


def runs_program(words: list[str]) -> bool:
    """Tells whether a command line begins with a program to run, and not with a command or an option.

    Examples
    --------
    >>> runs_program(["job.py", "--size", "3"]), runs_program(["-m", "package.module"]), runs_program(["info"]), runs_program([])
    (True, True, False, False)
    """
    if not words:
        return False
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups} | {"check"}
    first = words[0]
    if first == "-m":
        return len(words) > 1
    return first not in commands and not first.startswith("-") and (first.endswith(".py") or os.path.isfile(first))
