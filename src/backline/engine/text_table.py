"""Tables of text: aligned columns when printed, an HTML table in a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from ..printable import printable

__all__ = ["TextTable", "in_words"]

SHOWN = 200  # rows that a notebook shows, at the most


class TextTable:
    """Rows of text under titles. Numbers are aligned at the right.

    Parameters
    ----------
    heads
        Titles of the columns.
    rows
        Cells as text.
    right
        Numbers of the columns that are aligned at the right.
    empty
        What is printed where there are no rows.
    total
        How many rows there are, where these are the first of them.

    Examples
    --------
    >>> print(TextTable(("name", "calls"), [("matmul", "12"), ("svd", "3")], right=(1,)))
    name    calls
    matmul     12
    svd         3
    """

    def __init__(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), empty: str = "nothing",
        total: int = 0,
    ) -> None:  # fmt: skip
        self.heads = tuple(heads)
        self.rows = [tuple(row) for row in rows]
        self.right = frozenset(right)
        self.empty = empty
        self.total = total or len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return self.empty
        lines = [[printable(cell) for cell in line] for line in (self.heads, *self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.heads))]
        return "\n".join("  ".join(self._cell(i, cell, widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines)

    def _cell(self, column: int, text: str, width: int) -> str:
        return text.rjust(width) if column in self.right else text.ljust(width)

    def __repr__(self) -> str:
        count = len(self.rows)
        return f"<TextTable of {count} row{'' if count == 1 else 's'}; print() shows them>"

    def _repr_html_(self) -> str:
        from html import escape

        heads = "".join(f"<th>{escape(head)}</th>" for head in self.heads)
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self.rows[:SHOWN]]
        if self.total > len(rows):
            rows.append(f"<td colspan='{len(self.heads)}'>and {self.total - len(rows)} more</td>")
        return f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def in_words(seconds: float) -> str:
    """Returns a time with three digits and its unit.

    >>> in_words(0.00125), in_words(2.5e-7)
    ('1.25 ms', '250 ns')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
