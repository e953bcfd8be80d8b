"""Printing for the commands: aligned columns, coloured on a terminal, plain text into a pipe; JSON where it is asked for.

On a terminal no line is longer than the terminal is wide. Into a pipe or a file each row is one line, however long: other
programs read those.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer

from ..errors import BacklineError, BadType, BadValue, UnknownName
from ..printable import printable, size
from . import text_layout

__all__ = [
    "as_json", "aside", "error", "heading", "json_text", "line", "plain", "reported", "seconds", "size", "summary", "table",
    "width",
]  # fmt: skip

STYLES = {"chosen": "green", "refused": "dim", "missing": "yellow", "fatal": "bold red", "wrong": "bold red", "slow": "yellow"}


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False, markup=False)


def width(stream: Any = None) -> int | None:
    """Columns of the terminal that a stream writes to (by default stdout); None where it is no terminal."""
    stream = stream or sys.stdout
    return max(shutil.get_terminal_size().columns, 20) if stream.isatty() else None


def line(text: str = "", style: str = "") -> None:
    """Print a line; what it quotes from elsewhere cannot steer the terminal."""
    for each in _folded(printable(text), width()):
        _console().print(each, style=style or None)


def _folded(text: str, columns: int | None, hanging: int = 0) -> list[str]:
    """The lines of a text; those that a long one is broken into are indented as it is, and by so many more."""
    lines = []
    for each in text.split("\n"):
        if columns is None or len(each) <= columns:
            lines.append(each)
            continue
        margin = " " * min(len(each) - len(each.lstrip()), columns // 2)
        first, *rest = text_layout.wrapped(each, columns - len(margin))
        rest = text_layout.wrapped(" ".join(each.split())[len(first) :], columns - len(margin) - hanging) if rest else []
        lines += [margin + first, *(margin + " " * hanging + part for part in rest)]
    return lines


def heading(text: str) -> None:
    """Print the title of a part, after an empty line."""
    line()
    line(text, "bold")


def error(text: str) -> None:
    """Print an error to stderr."""
    aside(f"error: {text}", "red")


def aside(text: str, style: str = "") -> None:
    """Print a line to stderr, beside what the command prints."""
    console = _console(stderr=True)
    for each in _folded(printable(text), width(sys.stderr), hanging=2):
        console.print(each, style=style if console.is_terminal else None)


def table(
    rows: Sequence[Sequence[str]],
    heads: Sequence[str] = (),
    *,
    right: Sequence[int] = (),
    styles: Sequence[str] = (),
    indent: int = 0,
    title: bool = False,
) -> None:
    """Print aligned columns.

    Parameters
    ----------
    rows
        Cells as text.
    heads
        Titles of the columns.
    right
        Columns to align at the right.
    styles
        Style of each row.
    indent
        Spaces before each row.
    title
        Whether the first column stands above the others where a row is wider than the terminal.
    """
    everything = [[printable(cell) for cell in row] for row in ([heads, *rows] if heads else rows)]
    if not everything:
        return
    laid_out = text_layout.rows_of(everything, right=right, indent=indent, width=width(), title=title)
    for number, lines in enumerate(laid_out):
        index = number - bool(heads)
        style = "bold" if index < 0 else styles[index] if styles else ""
        for each in lines:
            line(each, style)


def as_json(content: Any) -> None:
    """Print JSON."""
    sys.stdout.write(json_text(content))


def json_text(content: Any) -> str:
    """Returns JSON; what is not finite becomes null."""
    return json.dumps(plain(content), indent=2, sort_keys=True) + "\n"


def plain(value: Any) -> Any:
    """Returns content as JSON has it: what is not finite becomes None, other objects become text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def seconds(value: float | None) -> str:
    """A time in words.

    >>> seconds(0.00125), seconds(None)
    ('1.25 ms', '-')
    """
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            number = value / scale
            return f"{number:.0f} {unit}" if number >= 99.5 else f"{number:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def summary(command: Callable[..., None]) -> str:
    """The first paragraph of a command's help, for the list of commands: given as it is, it is not cut."""
    return " ".join((command.__doc__ or "").split("\n\n")[0].split())


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: errors of backline become one message and an exit status instead of a traceback, warnings a line each."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _warned
                command(*args, **kwargs)
        except (BadValue, BadType, UnknownName) as problem:
            error(str(problem))
            raise typer.Exit(2) from None
        except (BacklineError, OSError, MemoryError) as problem:
            if isinstance(problem, BrokenPipeError):
                raise
            error(str(problem) or type(problem).__name__)
            raise typer.Exit(getattr(problem, "exit_status", 1)) from None
        except KeyboardInterrupt:
            error("stopped")
            raise typer.Exit(130) from None

    return run


def _warned(message: Warning | str, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    """Print a warning: the line of the program that it points to is one of ours, and says nothing to the user."""
    aside(f"warning: {message}", "yellow")
