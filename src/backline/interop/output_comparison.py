"""Compares what two runs of a program printed: the same text, or numbers that differ by how much."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Comparison", "compare"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
SHOWN = 60  # characters of a line that differs


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two outputs.

    Attributes
    ----------
    same : bool
        Whether they are the same to the last character.
    numbers : int
        Numbers that differ, in text that is the same but for them.
    largest : float
        Largest difference of these, relative to the larger one of the two; absolute where that is below 1.
    text : str
        The first line whose text differs, "" where none does.
    lines : int
        Lines of the first output.
    """

    same: bool
    numbers: int = 0
    largest: float = 0.0
    text: str = ""
    lines: int = 0

    def __str__(self) -> str:
        if not self.lines:
            return "the script printed nothing that could be compared" if self.same else f"the output differs: {self.text}"
        if self.same:
            return f"the output is the same: {_count(self.lines, 'line')}"
        if self.text:
            return f"the output differs: {self.text}"
        return f"the output is the same but for {_count(self.numbers, 'number')}, which differ by {self.largest:.1e} at most"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def compare(first: str, second: str) -> Comparison:
    """Returns how two outputs differ.

    Examples
    --------
    >>> print(compare("x = 1.0\\n", "x = 1.0\\n"))
    the output is the same: 1 line
    >>> print(compare("x = 1.0\\nn = 3\\n", "x = 1.0000001\\nn = 3\\n"))
    the output is the same but for 1 number, which differ by 1.0e-07 at most
    >>> print(compare("yes\\n", "no\\n"))
    the output differs: line 1 was 'yes' and is 'no'
    """
    before, after = first.splitlines(), second.splitlines()
    if first == second:
        return Comparison(True, lines=len(before))
    numbers, largest = 0, 0.0
    for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
        if one == other:
            continue
        if _NUMBER.sub("0", one).split() != _NUMBER.sub("0", other).split():
            return Comparison(False, text=f"line {number} was {one[:SHOWN]!r} and is {other[:SHOWN]!r}", lines=len(before))
        for a, b in zip(map(float, _NUMBER.findall(one)), map(float, _NUMBER.findall(other)), strict=True):
            if a != b:
                numbers, largest = numbers + 1, max(largest, abs(a - b) / max(abs(a), abs(b), 1.0))
    if len(before) != len(after):
        return Comparison(False, text=f"it had {_count(len(before), 'line')} and has {len(after)}", lines=len(before))
    return Comparison(False, numbers, largest, lines=len(before))
