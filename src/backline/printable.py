"""Text of unknown origin as text that a terminal shows and does not obey, and amounts of memory in words."""

from __future__ import annotations

import re

__all__ = ["printable", "size"]

# Controls but tab and newline, the second set of controls, marks that reorder text, and halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return `text` with control characters written as escapes.

    Parameters
    ----------
    text
        Names of scripts and plug-ins, messages of libraries, anything.

    Examples
    --------
    >>> print(printable("\\x1b[2Jdone"))
    \\x1b[2Jdone
    """
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def size(value: int | None) -> str:
    """Returns an amount of memory in words.

    >>> size(2 << 20)
    '2 MiB'
    """
    if value is None:
        return "unknown"
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 * scale else f"{value / scale:.0f} {unit}"
    return f"{value} bytes"
