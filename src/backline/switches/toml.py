"""Reads TOML of unknown origin: what would keep the parser busy for minutes is refused before it sees it."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["MOST_PARTS", "LongKey", "loads"]

MOST_PARTS = 64
"""Parts of a dotted key. No switch has more than five; the parser's time grows with the square of them."""

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
# Possessive, and never from the middle of a word: the search takes time proportional to the text.
_LONG = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}")


class LongKey(ValueError):
    """A dotted key with more than MOST_PARTS parts."""

    def __init__(self) -> None:
        super().__init__(f"a key has more than {MOST_PARTS} parts")


def loads(text: str) -> dict[str, Any]:
    """Parse a text.

    Raises
    ------
    LongKey
        A key has too many parts.
    ValueError, RecursionError
        The text is not TOML, or is nested too deeply.

    Examples
    --------
    >>> loads("mkl.enabled = false")
    {'mkl': {'enabled': False}}
    """
    import tomllib

    if _LONG.search(text):
        raise LongKey
    return tomllib.loads(text)
