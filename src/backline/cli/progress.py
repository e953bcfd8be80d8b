"""Progress on stderr while a command measures: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
from typing import Any

import typer

from ..printable import printable
from . import output, text_layout

__all__ = ["Progress"]

BAR = 20  # columns
FIXED = 52  # columns of all but the text at the end


class Progress:
    """Says what is going on. As a context it ends with the block, and Ctrl-C ends the command with what was measured kept."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None
        self.done = self.total = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self.end()
        if kind is KeyboardInterrupt:
            output.error(f"stopped; what was measured is kept ({self.done} of {self.total} problems)")
            raise typer.Exit(130) from None

    def step(self, text: str) -> None:
        """Say that something begins."""
        self.end()
        sys.stdout.flush()
        sys.stderr.write(f"running: {printable(text)}\n")
        sys.stderr.flush()

    def measured(self, done: int, total: int, text: str) -> None:
        """Say that so many of the problems are measured, and which one is at work."""
        self.done, self.total = done, total
        columns = output.width(sys.stderr)
        if columns is None:
            if done == 0:
                sys.stderr.write(f"measuring {total} problem{'' if total == 1 else 's'}\n")
                sys.stderr.flush()
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            what = TextColumn("{task.description}", markup=False)
            parts = (TextColumn("measuring"), BarColumn(BAR), MofNCompleteColumn(), TimeElapsedColumn(), what)
            self.bar = Progress(*parts, console=Console(stderr=True), transient=True, refresh_per_second=4)
            self.task = self.bar.add_task("", total=total)
        self.bar.start()
        room = max(columns - FIXED, 1)
        self.bar.update(self.task, completed=done, description=text_layout.wrapped(printable(text), room)[0])

    def hide(self) -> None:
        """Take the bar off the terminal for what is printed now; `measured` shows it again."""
        if self.bar is not None:
            self.bar.stop()

    def end(self) -> None:
        """Take the bar off for good."""
        self.hide()
        self.bar = None
