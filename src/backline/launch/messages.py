"""The launcher's messages, all on stderr: stdout belongs to the programs it starts. Colour on a terminal only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence

from ..printable import printable
from .counts import Note

__all__ = ["error", "line", "notes", "table"]


def line(text: str, colour: str = "") -> None:
    """Write a line; `colour` is a terminal's code for one, such as "33"."""
    if sys.stderr is None:
        return
    text = printable(text)
    if colour and sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        text = f"\x1b[{colour}m{text}\x1b[0m"
    with contextlib.suppress(OSError, ValueError):  # nobody reads it: no reason to end the instances
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def error(text: str) -> None:
    """Write an error."""
    line(f"error: {text}", "31")


def notes(found: Iterable[Note]) -> None:
    """Write each note once, however often it came up."""
    for note in dict.fromkeys(found):
        if note.level == "warning":
            line(f"warning: {note.text}", "33")
        else:
            line(note.text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Write aligned columns, those of `right` aligned at the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for number, row in enumerate((heads, *rows)):
        cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        line("  ".join(cells).rstrip(), "" if number else "1")
