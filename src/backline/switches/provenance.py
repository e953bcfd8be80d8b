"""Origins of values, and places in the user's program noted at little cost."""

from __future__ import annotations

import sys
from types import CodeType
from typing import TypeAlias

from ..records import Record

__all__ = ["Origin", "Place", "place", "steps_out", "text_of"]

Place: TypeAlias = tuple[CodeType, int]
"""Code object and position in it: what is cheap to note. `text_of` makes text of it, when asked for."""


class Origin(Record):
    """Origin of a value.

    Parameters
    ----------
    kind
        "default", "user file", "project file", "environment", "assignment" or "scope".
    where
        "path:key" for a file, the variable for the environment, "file.py:12" for an assignment or a scope.

    Examples
    --------
    >>> print(Origin("environment", "BACKLINE_FALLBACK"))
    environment (BACKLINE_FALLBACK)
    """

    kind: str
    where: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.where})"


def place(depth: int) -> Place:
    """Notes the line that runs `depth` frames up; 1 is the caller's.

    It keeps the position and not the line number, which costs more to work out than all the rest of a scope;
    and the code, not the frame, which would keep the user's variables alive.
    """
    frame = sys._getframe(depth)
    return frame.f_code, frame.f_lasti


def text_of(noted: Place) -> str:
    """Returns a noted place as "file.py:12"."""
    code, position = noted
    line = code.co_firstlineno
    for first, last, number in code.co_lines():
        if first <= position < last and number is not None:
            line = number
    return f"{code.co_filename}:{line}"


def steps_out() -> int:
    """Returns the number of frames up to the first one outside of this package, for a warning that points there."""
    inside = __name__.partition(".")[0] + "."
    frame, steps = sys._getframe(1), 1
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(inside):
        frame, steps = frame.f_back, steps + 1
    return steps
