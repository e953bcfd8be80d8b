"""Reads TOML of unknown origin: what would keep the parser busy for minutes is refused before it sees it."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["MOST_PARTS", "LongKey", "loads"]

MOST_PARTS = 64
"""Parts of a dotted key. No switch has more than five; the parser's time grows with the square of them."""

# Strings that span lines. A string that does not end is taken as far as it may go: the parser refuses it in any case, and
# a search that began anew inside of it would take time that grows with its square.
_BASIC_LINES = r"""\"{3}[^"\\]*+(?:(?:\\[\s\S]|"(?!""))[^"\\]*+)*+(?:"{3,5}+)?+"""
_LITERAL_LINES = r"""'{3}[^']*+(?:'(?!'')[^']*+)*+(?:'{3,5}+)?+"""
_PART = r"""(?:[\w-]++|"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"?+|'[^'\n]*+'?+)"""
_DOT = r"[ \t]*+\.[ \t]*+"
# Comments and whole strings are passed over: dots inside of them part no key. Outside of them only keys have that many dots.
# Possessive: the search takes time proportional to the text.
_TOKEN = (
    rf"#[^\n]*+|{_BASIC_LINES}|{_LITERAL_LINES}|{_PART}(?:{_DOT}{_PART}){{0,{MOST_PARTS - 1}}}+(?P<long>{_DOT}{_PART})?+"
)


class LongKey(ValueError):
    """A dotted key with more than MOST_PARTS parts."""

    def __init__(self) -> None:
        super().__init__(f"a key has more than {MOST_PARTS} parts")


def loads(text: str) -> dict[str, Any]:
    """Parses a text.

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

    if any(token.lastgroup for token in re.finditer(_TOKEN, text)):
        raise LongKey
    return tomllib.loads(text)
