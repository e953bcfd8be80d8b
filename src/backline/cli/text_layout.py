"""Text and tables laid out for the width of a terminal: lines break between words, paths break behind a slash.

Functions of strings and a width; `show` prints what they return.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["broken", "rows_of", "wrapped"]

GAP = "  "  # between columns
NARROWEST = 24  # of a column in which text is wrapped; where less is left it goes below its row
ENOUGH = 40  # of a column in which a word may be broken
SHORT = 12  # columns at most this wide are never wrapped
# Where a word that is too long for a line may be broken: behind a slash, where there is none behind another mark.
BEHIND = (re.compile(r"(?<=/)"), re.compile(r"(?<=[,;:._=|-])"))


def broken(word: str, width: int, marks: Sequence[re.Pattern[str]] = BEHIND) -> list[str]:
    """The parts of a word that is longer than a line: broken behind a slash, else behind a punctuation mark, else anywhere.

    Examples
    --------
    >>> broken("/usr/lib/libopenblas.so", 12)
    ['/usr/lib/', 'libopenblas.', 'so']
    """
    if len(word) <= width:
        return [word]
    if not marks:
        return [word[at : at + width] for at in range(0, len(word), width)]
    parts: list[str] = []
    for piece in filter(None, marks[0].split(word)):
        if parts and len(parts[-1]) + len(piece) <= width:
            parts[-1] += piece
        else:
            parts += broken(piece, width, marks[1:])
    return parts


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, none longer than `width`; at least one.

    Examples
    --------
    >>> wrapped("a second thread pool beside gomp", 16)
    ['a second thread', 'pool beside gomp']
    """
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += broken(word, width) if len(word) > width else [word]
    return lines or [""]


def rows_of(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: int = 0, width: int | None = None, title: bool = False
) -> list[list[str]]:
    """The lines of each row of a table.

    Parameters
    ----------
    rows
        Cells as text, of equal number.
    right
        Columns that are aligned at the right.
    indent
        Spaces before each row.
    width
        Of the terminal; None for lines of any length.
    title
        Whether the first column stands on a line of its own where the row is too long for one.

    Notes
    -----
    In a table that is too wide, the columns from the first one that does not fit are written in what is left of the line, one
    below the other; where too little is left of it, they go below the row.
    """
    rows = [[cell.replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    before = " " * indent
    if width is None or indent + _sum(widths) <= width:
        return [[before + _line(row, widths, right)] for row in rows]
    if title and len(widths) > 1:
        below = rows_of([row[1:] for row in rows], right=[i - 1 for i in right], indent=indent + 2, width=width)
        first = [[before + part for part in wrapped(row[0], max(width - indent, 1))] for row in rows]
        return [[*above, *(line for line in lines if line.strip())] for above, lines in zip(first, below, strict=True)]
    kept = _kept(widths, width - indent)
    start = indent + _sum(widths[:kept]) + len(GAP)
    room = width - start
    longest = max((len(word) for row in rows for cell in row[kept:] for word in cell.split()), default=0)
    if kept == 0 or (room < NARROWEST and max(widths[kept:]) > room) or (room < ENOUGH and longest > room):
        start = indent + 4
        return [_below(row, widths, right, kept, before, start, width) for row in rows]
    return [_beside(row, widths, right, kept, before, start, width) for row in rows]


def _sum(widths: Sequence[int]) -> int:
    shown = [w for w in widths if w]
    return sum(shown) + len(GAP) * max(len(shown) - 1, 0)


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    cells = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)) if w]
    return GAP.join(cells).rstrip()


def _kept(widths: Sequence[int], width: int) -> int:
    """Returns the number of columns that stay columns: as many as leave room for the others, or else as many as fit."""
    fitting = max((n for n in range(len(widths)) if _sum(widths[:n]) <= width), default=0)
    while fitting > 1 and widths[fitting - 1] > SHORT and width - _sum(widths[:fitting]) - len(GAP) < NARROWEST:
        fitting -= 1
    return fitting


def _cells(row: Sequence[str], kept: int, room: int) -> list[str]:
    """The columns that do not fit, as lines: several on a line where they are short."""
    lines: list[str] = []
    for cell in filter(None, row[kept:]):
        if lines and len(lines[-1]) + len(GAP) + len(cell) <= room:
            lines[-1] += GAP + cell
        else:
            lines += wrapped(cell, room)
    return lines


def _beside(
    row: Sequence[str], widths: Sequence[int], right: Sequence[int], kept: int, before: str, start: int, width: int
) -> list[str]:
    head = before + _line(row[:kept], widths[:kept], right)
    lines = _cells(row, kept, width - start) or [""]
    return [(head.ljust(start) + lines[0]).rstrip(), *(" " * start + line for line in lines[1:])]


def _below(
    row: Sequence[str], widths: Sequence[int], right: Sequence[int], kept: int, before: str, start: int, width: int
) -> list[str]:
    room = max(width - start, 1)
    if not kept:
        head = [before + part for part in wrapped(row[0], max(width - len(before), 1))]
        return [*head, *(" " * start + line for line in _cells(row, 1, room))]
    first, lines = before + _line(row[:kept], widths[:kept], right), _cells(row, kept, room)
    beside = len(before) + _sum(widths[:kept]) + len(GAP)
    if len(lines) == 1 and beside + len(lines[0]) <= width:
        return [first.ljust(beside) + lines[0]]
    return [first, *(" " * start + line for line in lines)]
