"""How the commands print: aligned columns, coloured on a terminal, plain text into a pipe; JSON where it is asked for."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from ..errors import BacklineError, BadType, BadValue, UnknownName
from ..printable import printable

__all__ = ["as_json", "error", "heading", "line", "reported", "seconds", "size", "table"]

STYLES = {"chosen": "green", "refused": "dim", "missing": "yellow", "fatal": "bold red", "wrong": "bold red", "slow": "yellow"}


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, emoji=False, markup=False)


def line(text: str = "", style: str = "") -> None:
    """Print a line; what it quotes from elsewhere cannot steer the terminal."""
    _console().print(printable(text), style=style or None)


def heading(text: str) -> None:
    """Print the title of a part, after an empty line."""
    line()
    line(text, "bold")


def error(text: str) -> None:
    """Print an error to stderr."""
    console = _console(stderr=True)
    console.print(f"error: {printable(text)}", style="red" if console.is_terminal else None)


def table(
    rows: Sequence[Sequence[str]],
    heads: Sequence[str] = (),
    *,
    right: Sequence[int] = (),
    styles: Sequence[str] = (),
    indent: int = 0,
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
    """
    everything = [[printable(cell).replace("\n", " ") for cell in row] for row in ([heads, *rows] if heads else rows)]
    if not everything:
        return
    widths = [max(len(row[i]) for row in everything) for i in range(len(everything[0]))]
    for number, row in enumerate(everything):
        cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        text = " " * indent + "  ".join(c for c, w in zip(cells, widths, strict=True) if w).rstrip()
        index = number - bool(heads)
        line(text, "bold" if index < 0 else styles[index] if styles else "")


def as_json(content: Any) -> None:
    """Print JSON; what is not finite becomes null."""
    sys.stdout.write(json.dumps(_plain(content), indent=2, sort_keys=True) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
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


def size(value: int | None) -> str:
    """An amount of memory in words.

    >>> size(2 << 20)
    '2 MiB'
    """
    if value is None:
        return "unknown"
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 * scale else f"{value / scale:.0f} {unit}"
    return f"{value} bytes"


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: errors of backline become one message and an exit status instead of a traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (BadValue, BadType, UnknownName) as problem:
            error(str(problem))
            raise typer.Exit(2) from None
        except (BacklineError, OSError, MemoryError) as problem:
            if isinstance(problem, BrokenPipeError):
                raise
            error(str(problem) or type(problem).__name__)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            error("stopped")
            raise typer.Exit(130) from None

    return run
