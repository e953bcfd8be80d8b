"""The command ``backline``: info, switches, explain, bench, check, tune, run.

Exit statuses: 0 done; 1 the script or the operation failed; 2 the command was not understood; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import typer

from . import bench, check, explain, info, run, switches, tune
from .show import reported

__all__ = ["app"]

app = typer.Typer(
    help="torch.backends without PyTorch: which maths library runs what, how fast, how exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("info")(reported(info.info))
app.command("switches")(reported(switches.switches))
app.command("explain")(reported(explain.explain))
app.command("bench")(reported(bench.bench))
app.add_typer(check.app, name="check")
app.command("tune", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(reported(tune.tune))

app.command("run", context_settings=run.SETTINGS)(run.run)  # not reported(): the launcher has statuses of its own


@app.callback(invoke_without_command=True)
def main(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """torch.backends without PyTorch: which maths library runs what, how fast, how exactly."""
    if version:
        import backline

        typer.echo(f"backline {backline.__version__}")
        raise typer.Exit
